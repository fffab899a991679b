"""How a replay ends for want of memory, and what PyTorch would print then (2.13 ``CUDACachingAllocator.cpp``)."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.trace.events import Storage
from foretell.units import GIB

__all__ = ["Oom", "format_size"]

_HINT = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def format_size(nbytes: int) -> str:
    """Write bytes as PyTorch's messages do (``c10/core/Allocator.h``): a unit begins above one of itself.

    >>> format_size(1024), format_size(1 << 20), format_size(20 << 20), format_size(3 << 29)
    ('1024 bytes', '1024.00 KiB', '20.00 MiB', '1.50 GiB')

    """
    if nbytes <= 1 << 10:
        return f"{nbytes} bytes"
    if nbytes <= 1 << 20:
        return f"{nbytes / 1024:.2f} KiB"
    if nbytes <= 1 << 30:
        return f"{nbytes / 1024**2:.2f} MiB"
    return f"{nbytes / GIB:.2f} GiB"


@dataclass(frozen=True, slots=True)
class Oom:
    """The request that ended the run.  Bytes, as they were after all that was free had been given back."""

    event: int
    """Index into the recording's order."""
    index: int
    """Of the storage that could not be had."""
    storage: Storage
    """Its operator, module and line; :attr:`Storage.bytes` is what was asked for."""
    tried: int
    """What the allocator asked of the device: the size of a segment for it."""
    allocated: int
    reserved: int
    capacity: int | None = None
    """What the allocator may reserve on the device; None: only the allowed memory limits it."""
    total: int | None = None
    """The whole device, where it is known."""
    allowed: int | None = None
    """What a memory fraction allows."""

    def free(self, context: int = 0) -> int:
        """Bytes of the device that nobody has; ``context``: what the process holds outside PyTorch's allocator."""
        if self.capacity is not None:
            return max(0, self.capacity - self.reserved)
        return max(0, (self.total or 0) - context - self.reserved)

    def message(self, *, context: int = 0, gpu: int = 0) -> str:
        """Return the text of ``torch.OutOfMemoryError`` on a device that only this process uses.

        ``context``: bytes that the process holds outside PyTorch's allocator (CUDA context, communicators).  A device whose
        total is not known is one of the capacity and this.
        """
        total = self.total if self.total is not None else (self.capacity or 0) + context
        allowed = "" if self.allowed is None else f"{format_size(self.allowed)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {format_size(self.tried)}. GPU {gpu} has a total capacity of "
            f"{format_size(total)} of which {format_size(self.free(context))} is free. Including non-PyTorch memory, this "
            f"process has {format_size(self.reserved + context)} memory in use. {allowed}Of the allocated memory "
            f"{format_size(self.allocated)} is allocated by PyTorch, and {format_size(self.reserved - self.allocated)} is "
            f"reserved by PyTorch but unallocated. {_HINT}"
        )
