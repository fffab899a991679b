"""Frees that wait for another stream: what ``tensor.record_stream(stream)`` does to a block that is given up.

PyTorch puts an event on the other stream when such a block is freed, asks at each later allocation whether the event has
happened, and gives the block to nobody before (2.13 ``c10/cuda/CUDACachingAllocator.cpp``).  A trace has no clock.  It takes the
host to be ahead of the GPU as far as it can be:

* where the host waits (for an event, a stream or the device, or for a value or a copy that blocks), all that was given to any
  stream before the moment that it waits for has been done, and nothing else has;
* a thousand launches later it has been done too: CUDA queues about so many, and lets the host wait then.

This is the most memory that the program's order allows.  A GPU that waits for its host frees sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["QUEUED", "Waits", "blocks"]

aten = torch.ops.aten
QUEUED = 1024
"""Launches that CUDA takes before it lets the host wait."""
_VALUES = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.equal.default,
        aten.nonzero.default,
        aten.masked_select.default,
        aten._unique2.default,
        aten.unique_dim.default,
        aten.unique_consecutive.default,
        aten.repeat_interleave.Tensor,
        aten.bincount.default,
    }
)
"""Operators that tell the host a value, or need one to know their output's size."""
_MASKS = (torch.bool, torch.uint8)


class Waits:
    """The storages of one recording that other streams use."""

    def __init__(self) -> None:
        """Begin with none."""
        self.moment = 0
        """Launches so far."""
        self.used: set[int] = set()
        """Storages that another stream uses."""
        self.pending: deque[tuple[int, int]] = deque()
        """Moment at which a storage was given up, and the storage, in order."""
        self.asked: dict[int, int] = {}
        """Storage -> events that came before it was given up."""
        self.free: Callable[[int], None] = lambda _index: None
        """Told which storage is free now."""

    def use(self, index: int) -> None:
        """Another stream uses a storage."""
        self.used.add(index)

    def ask(self, index: int, events: int) -> bool:
        """A storage is given up after so many events; say whether it has to wait."""
        if index not in self.used:
            return False
        self.used.discard(index)
        self.asked[index] = events
        self.pending.append((self.moment, index))
        return True

    def launched(self, func: Any) -> None:
        """An operator has been called; a view gives the GPU nothing to do."""
        if not func.is_view:
            self.moment += 1
            if self.pending:
                self.done(self.moment - QUEUED)

    def done(self, moment: int | None = None) -> None:
        """All that was given to the GPU up to a moment (None: up to now) has been done."""
        moment = self.moment if moment is None else moment
        while self.pending and self.pending[0][0] <= moment:
            self.free(self.pending.popleft()[1])


def blocks(func: Any, args: Any, kwargs: Any) -> bool:
    """Say whether an operator lets the host wait for the GPU."""
    if func in _VALUES:
        return bool(args[0].device.type == "cuda")
    if func is aten._to_copy.default:
        device = kwargs.get("device")
        return device is not None and not kwargs.get("non_blocking") and _crosses(args[0].device, torch.device(device))
    if func is aten.copy_.default:
        asynchronous = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return not asynchronous and _crosses(args[0].device, args[1].device)
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype in _MASKS for index in args[1])
    return False


def _crosses(one: torch.device, other: torch.device) -> bool:
    """Is one of the two the host and the other the GPU?"""
    return {one.type, other.type} == {"cpu", "cuda"}
