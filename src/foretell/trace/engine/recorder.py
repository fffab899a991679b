"""The recorder: a dispatch mode that sees every operator's outputs and keeps the life of each storage."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Self
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foretell.trace.engine.answers import Answers
from foretell.trace.engine.convolutions import allowance
from foretell.trace.engine.inplace import InPlace
from foretell.trace.engine.places import Places
from foretell.trace.engine.policies import Policies
from foretell.trace.engine.waits import Waits, blocks
from foretell.trace.events import Category, Phase, PhaseName, Recording, Storage

__all__ = ["Recorder", "TooLong"]

_DEVICE = torch.ops.prim.device.default
_PLAIN = frozenset({"FakeTensor", "Parameter", "Tensor", "Buffer"})
_COLLECTIVE = ("c10d::", "_c10d_functional::", "fsdp::")

Workspace = Callable[[Any, tuple[Any, ...], bool], tuple[int, ...]]
"""(operator, its arguments, in backward?) -> bytes that its kernel asks the allocator for while it runs."""


@functools.cache
def _is_distributed(types: tuple[type, ...]) -> bool:
    """Say whether a tensor that is spread over ranks (``DTensor``) is among the arguments."""
    return any(base.__name__ == "DTensor" for kind in types for base in kind.__mro__)


def _parts(tensor: Any) -> list[torch.Tensor]:
    """Return the tensors that a tensor is made of: itself, if it is none that wraps others."""
    if type(tensor).__name__ in _PLAIN or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [part for one in inner if isinstance(one, torch.Tensor) for part in _parts(one)]


class TooLong(Exception):  # noqa: N818  # the run is
    """More events than were allowed."""


class Recorder(TorchDispatchMode):
    """Records what happens on one device type while it is the active mode; use as a context manager."""

    def __init__(
        self,
        device: str,
        *,
        fake: bool,
        policies: Policies | None = None,
        workspace: Workspace | None = None,
        stream: Callable[[], int] = lambda: 0,
        limit: int = 20_000_000,
    ) -> None:
        """Record storages of ``device``; ``limit``: most events."""
        super().__init__()
        self.device, self.fake, self.workspace, self.stream, self.limit = device, fake, workspace, stream, limit
        self.policies = policies or Policies()
        self.places = Places()
        self.answers = Answers(self.policies, self.places) if fake else None
        self.in_place = InPlace()
        self.storages: list[Storage] = []
        self.order: list[int] = []
        self.phases = [Phase("load", 0, 0, 0)]
        self.live: dict[int, tuple[int, Any]] = {}
        """Address of a storage object -> (its index, -1 while it has no bytes; a weak reference that records the free)."""
        self.waiting: list[int] | None = None
        """Frees that are still to be put in order."""
        self.ended: int | None = None
        """Events recorded when the run ended; what is freed after that is only our own tidying up."""
        self.operators = 0
        self.level = 0
        """Bytes that are allocated now, as they were asked for."""
        self.convolutions = {"peak_bytes": 0, "largest_bytes": 0}
        """The highest level with the workspace that a convolution may be given, and the largest such workspace."""
        self.waits = Waits()
        self.waits.free = self._freed
        self.on_progress: Callable[[int, str], None] | None = None
        """Told the number of events, and the place that was reached in words."""

    # -- phases ---------------------------------------------------------------------------------------------

    def phase(self, name: PhaseName, step: int, micro: int) -> None:
        """Begin a phase."""
        last = self.phases[-1]
        if last.start == len(self.order) and len(self.phases) > 1:
            self.phases.pop()
        self.phases.append(Phase(name, step, micro, len(self.order)))
        self.places.backward = name == "backward"
        if name != "backward":
            self.places.again.clear()

    def end(self) -> None:
        """The run is over."""
        self.ended = len(self.order)

    # -- storages -------------------------------------------------------------------------------------------

    def see(self, tensor: torch.Tensor, op: str = "", category: Category | None = None) -> None:
        """Note a tensor: a storage not seen before is an allocation; ``category`` is what it is known to be."""
        if tensor.device.type != self.device:
            return
        if type(tensor).__name__ not in _PLAIN and hasattr(tensor, "__tensor_flatten__"):
            for inner in _parts(tensor):
                self.see(inner, op, category)
            return
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor's parts are seen as they are made
            return
        known = self.live.get(storage._cdata)
        if known is None:
            index = self._allocate(storage, op, category)
        elif self._bytes(known[0]) != storage.nbytes():
            index = self._resize(storage, known[0])
        else:
            index = known[0]
        if category is not None and index >= 0:
            self.storages[index].category = category

    def _bytes(self, index: int) -> int:
        return self.storages[index].bytes if index >= 0 else 0

    def _allocate(self, storage: Any, op: str, category: Category | None, place: tuple[str, str] | None = None) -> int:
        size = storage.nbytes()
        index = len(self.storages) if size else -1
        if size:
            module, line = place or self.places.here()
            stream = self.stream()
            if category is None:
                category = "collective" if op.startswith(_COLLECTIVE) or stream else "temporary"
            self.storages.append(Storage(size, op, len(self.phases) - 1, module, line, stream, category))
            self.order.append(index)
            self.level += size
            if index % 512 == 0:
                self._pulse()
        key = storage._cdata
        self.live[key] = index, weakref.ref(storage, lambda _ref: self._free(key, index))
        return index

    def _free(self, key: int, index: int) -> None:
        self.live.pop(key, None)
        if index >= 0:
            self._give_up(index)

    def _give_up(self, index: int) -> None:
        """A storage has no owner any more; it may still have to wait for another stream."""
        self.level -= self.storages[index].bytes
        if not self.waits.ask(index, len(self.order)):
            self._freed(index)

    def _freed(self, index: int) -> None:
        (self.order if self.waiting is None else self.waiting).append(~index)

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a tensor: its memory is free only when that one is done."""
        for part in _parts(tensor):
            self._use(part, stream)

    def _use(self, tensor: torch.Tensor, stream: int) -> None:
        known = self.live.get(tensor.untyped_storage()._cdata)
        if known is not None and known[0] >= 0 and self.storages[known[0]].stream != stream:
            self.waits.use(known[0])

    def _at_once(self, work: Callable[[], None]) -> None:
        """Do what frees many storages in no order of its own (a table by address): the oldest goes first."""
        self.waiting = []
        try:
            work()
        finally:
            self.order += sorted(self.waiting, reverse=True)
            self.waiting = None

    def _resize(self, storage: Any, index: int) -> int:
        """A storage of another size: the old memory goes, new memory comes (FSDP takes and gives back gathered weights so)."""
        if index < 0:
            return self._allocate(storage, "resize_", "collective" if self.fake else None)
        old = self.storages[index]
        self._give_up(index)
        category: Category = "collective" if old.category == "temporary" and self.fake else old.category
        return self._allocate(storage, "resize_", category, (old.module, old.line))

    def _pulse(self) -> None:
        if len(self.order) > self.limit:
            raise TooLong(f"more than {self.limit:,} events")
        if self.on_progress is not None:
            self.on_progress(len(self.order), self._reached())

    def _reached(self) -> str:
        """Say where the run is."""
        phase, last = self.phases[-1], self.storages[-1]
        inside = " ".join(part for part in (last.module, last.line and f"({last.line})") if part)
        return f"{phase.name} of step {phase.step}" + (f", in {inside}" if inside else "")

    # -- operators ------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's
        """Run an operator and see what it made."""
        if func is _DEVICE and type(args[0]) is FakeTensor:  # more than half of all calls
            return args[0].fake_device
        if _is_distributed(types):  # it runs its local operators with this mode active
            return NotImplemented
        self.operators += 1
        self.waits.launched(func)
        if self.waits.pending and blocks(func, args, kwargs or {}):
            self.waits.done()
        name = func._schema.name
        kwargs = kwargs or {}
        called = self.in_place(func, args, kwargs)
        out = called(*args, **kwargs) if self.answers is None else self.answers.call(called, args, kwargs)
        self.in_place.after(called, out)
        if called is not func and torch.is_grad_enabled():
            out = torch.ops.aten.alias.default(out)  # what autograd takes for new must not be the old tensor itself
        if isinstance(out, torch.Tensor):
            self.see(out, name)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.see(leaf, name)
        if self.workspace is not None:
            self._work(func, args, name, out)
        return out

    def _work(self, func: Any, args: Any, name: str, out: Any) -> None:
        """Record what a kernel asks for and gives back before it returns (a negative size stays)."""
        assert self.workspace is not None  # noqa: S101  # asked by the caller
        for size in self.workspace(func, args, self.places.backward):
            module, line = self.places.here()
            index = len(self.storages)
            self.storages.append(Storage(abs(size), name, len(self.phases) - 1, module, line, self.stream(), "workspace"))
            self.order.append(index)
            if size > 0:
                self.order.append(~index)
            else:
                self.level -= size
        possible = allowance(func, args, out)
        if possible:
            known = self.convolutions
            known["largest_bytes"] = max(known["largest_bytes"], possible)
            known["peak_bytes"] = max(known["peak_bytes"], self.level + possible)

    # -- life of the mode -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Record from here on; storages that are resized in place (FSDP does) are seen as well."""
        original = torch.UntypedStorage.resize_
        recorder = self

        def resize_(storage: Any, size: int) -> Any:
            out = original(storage, size)
            known = recorder.live.get(storage._cdata)
            if known is not None and recorder._bytes(known[0]) != storage.nbytes():
                recorder._resize(storage, known[0])
            return out

        clear = torch.clear_autocast_cache

        def clear_cache() -> None:
            self._at_once(clear)

        self._resizing = mock.patch.object(torch.UntypedStorage, "resize_", resize_)
        self._clearing = mock.patch.object(torch, "clear_autocast_cache", clear_cache)
        self._resizing.start()
        self._clearing.start()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Record no more."""
        super().__exit__(*exc)
        self._clearing.stop()
        self._resizing.stop()

    def recording(self, about: dict[str, Any]) -> Recording:
        """Return what was recorded, and forget the storages that still live."""
        self.live.clear()
        done = len(self.order) if self.ended is None else self.ended
        asked = {index: at for index, at in self.waits.asked.items() if at < done}
        return Recording(self.storages, self.order[:done], self.phases, about, asked=asked)
