"""One accelerator as the folds see it: memory, rates, links, power. Plain numbers in SI base units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretell.catalog import loader
from foretell.dtypes import dtype
from foretell.errors import InputError
from foretell.machine._fields import COUNT, coerce, gather_notes, read, table, unit

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["HardwareNode", "Link", "Pcie", "load_hardware"]

_ROUNDING = 1.05  # a nameplate may be rounded down: TPU v5p is sold as 95 GB, holds 96 GiB and offers 95.74 GiB


@dataclass(frozen=True)
class Link:
    """How an accelerator reaches the others; a rate is of one direction (vendors often print the sum)."""

    name: str
    bandwidth_bytes_per_s: float | None = field(default=None, metadata=unit("byte/s"))
    """One accelerator's, to all others together, bytes/s."""
    domain_size: int | None = field(default=None, metadata=COUNT)
    """Accelerators that reach one another over it (8 in a DGX, 72 in an NVL72)."""
    per_peer_bytes_per_s: float | None = field(default=None, metadata=unit("byte/s"))
    """To one other, where the links are point to point, bytes/s."""
    note: str | None = None

    def __post_init__(self) -> None:
        """Take text and pint quantities too."""
        coerce(self)


@dataclass(frozen=True)
class Pcie:
    """How an accelerator reaches its host; the rate is that of one direction."""

    bytes_per_s: float | None = field(default=None, metadata=unit("byte/s"))
    gen: int | None = field(default=None, metadata=COUNT)
    lanes: int | None = field(default=None, metadata=COUNT)

    def __post_init__(self) -> None:
        """Take text and pint quantities too."""
        coerce(self)


@dataclass(frozen=True)
class HardwareNode:
    """One accelerator. Unknown is None. A quantity may be given as a number, text or a pint.Quantity.

    >>> mine = HardwareNode(
    ...     name="mine",
    ...     memory_bytes="80 GB",
    ...     memory_bandwidth_bytes_per_s="2 TB/s",
    ...     peak_flops={"bf16": "400 TFLOP/s"},
    ... )
    >>> mine.memory_bytes, mine.ridge_point("bf16")
    (80000000000, 200.0)
    """

    name: str
    memory_bytes: int = field(metadata=unit("byte", positive=True))
    """Nameplate capacity, bytes."""
    memory_bandwidth_bytes_per_s: float = field(metadata=unit("byte/s", positive=True))
    peak_flops: dict[str, float] = field(hash=False, metadata=unit("FLOP/s", each=True, positive=True))
    """Precision -> dense peak, FLOP/s (a multiply-add is two)."""
    id: str = ""
    aliases: tuple[str, ...] = ()
    vendor: str | None = None
    kind: str | None = None
    release_year: int | None = field(default=None, metadata=COUNT)
    usable_memory_bytes: int | None = field(default=None, metadata=unit("byte", positive=True))
    """What processes together can allocate on an empty card, contexts included, bytes."""
    usable_memory_range_bytes: tuple[int, int] | None = None
    """Lowest and highest of the usable bytes seen across drivers."""
    card_memory_bytes: int | None = field(default=None, metadata=unit("byte"))
    """Total that the vendor's tool prints, bytes."""
    logical_devices: int = field(default=1, metadata=COUNT)
    """Devices that frameworks show for one package; every other number is the package's."""
    usable_memory_per_logical_device_bytes: int | None = field(default=None, metadata=unit("byte"))
    """What one of the logical devices offers, bytes: a single tensor must fit it."""
    peak_flops_sparse: dict[str, float] = field(default_factory=dict, hash=False, metadata=unit("FLOP/s", each=True))
    """Precision -> peak with structured 2:4 sparsity, FLOP/s."""
    link: Link | None = None
    """To the other accelerators of its node or domain."""
    pcie: Pcie | None = None
    """To its host."""
    tdp_w: float | None = field(default=None, metadata=unit("W"))
    cuda_like: bool = True
    """Whether the caching allocator, context and reserved/process levels of CUDA (or HIP) apply."""
    compute_capability: str | None = None
    sm_count: int | None = field(default=None, metadata=COUNT)
    l2_bytes: int | None = field(default=None, metadata=unit("byte"))
    llc_bytes: int | None = field(default=None, metadata=unit("byte"))
    """Cache behind L2 (Infinity Cache and the like), bytes."""
    context_bytes: int | None = field(default=None, metadata=unit("byte"))
    """What a process holds before its first tensor (CUDA or HIP context), bytes."""
    notes: dict[str, str] = field(default_factory=dict, hash=False)
    """What a number is about ("context" -> text), from the file's `..._note` keys."""
    estimates: tuple[str, ...] = ()
    """Names of the values that are inferred rather than read."""
    sources: Any = field(default=(), hash=False)
    """Where the numbers come from, with dates, as in the catalog's file."""

    def __post_init__(self) -> None:
        """Take text and pint quantities, precision aliases and tables."""
        coerce(self)
        for key in ("peak_flops", "peak_flops_sparse"):
            peaks = {dtype(name, key).name: value for name, value in getattr(self, key).items()}
            object.__setattr__(self, key, peaks)
        seen = self.usable_memory_range_bytes
        if seen is not None and seen[0] > seen[1]:
            raise InputError("is not the lowest, then the highest", field="usable_memory_range_bytes", value=list(seen))
        target = self.compute_capability or "0.0"
        if not (target.startswith("gfx") or all(part.isdecimal() for part in target.split(".", 1))):
            allowed = "major.minor (9.0) or an AMD target (gfx942)"
            raise InputError("is no compute capability", field="compute_capability", value=target, allowed=allowed)
        for key in ("usable_memory_bytes", "context_bytes"):
            part = getattr(self, key)
            if part is not None and part > _ROUNDING * self.memory_bytes:
                allowed = f"about memory_bytes = {self.memory_bytes} at most"
                raise InputError("is more than the device has", field=key, value=part, allowed=allowed)

    @property
    def available_bytes(self) -> int:
        """Bytes that processes can use: the measured figure where it is known, else the nameplate."""
        return self.memory_bytes if self.usable_memory_bytes is None else self.usable_memory_bytes

    def peak(self, precision: str) -> float:
        """Dense peak in FLOP/s for a precision or its alias; InputError where the device has none."""
        name = dtype(precision, "precision").name
        if name in self.peak_flops:
            return self.peak_flops[name]
        problem = f"has no known peak on {self.name}"
        raise InputError(problem, field="precision", value=precision, allowed=list(self.peak_flops))

    def ridge_point(self, precision: str = "fp16") -> float:
        """FLOP per byte above which arithmetic, not memory, is the limit (roofline, Williams et al. 2009)."""
        return self.peak(precision) / self.memory_bandwidth_bytes_per_s


def load_hardware(ref: str | os.PathLike[str] | Mapping[str, Any] | HardwareNode) -> HardwareNode:
    """Return the accelerator of a catalog id or alias, a path to a file, or a mapping of the catalog's form.

    >>> load_hardware("H100").id
    'h100-sxm-80gb'
    """
    if isinstance(ref, HardwareNode):
        return ref
    is_name = isinstance(ref, str) or hasattr(ref, "__fspath__")
    data = dict(loader.entry("hardware", ref) if is_name else table(ref, "hardware", "load_hardware"))  # type: ignore[arg-type]
    where = f"hardware {data.get('id', ref)}"
    data.setdefault("name", data.get("id"))
    for key, kind in (("link", Link), ("pcie", Pcie)):
        if key in data:
            data[key] = read(kind, table(data[key], key, where), f"{where}, {key}")
    return read(HardwareNode, gather_notes(data), where)
