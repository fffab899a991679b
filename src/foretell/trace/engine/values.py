"""Values that are known though the tensors are fake: those of small tensors that follow from the numbers in the code alone.

Step counters, rates of stochastic depth, tables of frequencies, sequence lengths and the like decide what a step does next.
Each such fake tensor carries a real one on the CPU, made by the same operators; views share its memory, as in reality.
Weights, activations and whatever is drawn at random stay unknown, and so does what is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["LIMIT", "UNKNOWN", "array_of", "compute", "follow", "give", "value_of"]

LIMIT = 2**16
"""Most elements of a tensor whose values are kept."""
UNKNOWN: Any = object()
"""Stands for a result that is not known (None is one that is)."""
_RUN = frozenset({"aten", "prims"})
_FILLS = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1, "full_like": None, "new_full": None}
"""Operators whose result is known whatever the values of their input; None: the last positional argument is the value."""


_KEEP = frozenset({"_amp_update_scale_"})
"""Operators that write what was there, in an ordinary step: the loss scale stays."""


class _Known:
    """What a fake tensor carries: its values, and whether they still hold, which views of one memory share."""

    __slots__ = ("holds", "values")

    def __init__(self, values: torch.Tensor, holds: list[bool]) -> None:
        self.values, self.holds = values, holds

    def __deepcopy__(self, memo: Any) -> _Known:
        with torch._C._DisableTorchDispatch():
            return _Known(self.values.clone(), list(self.holds))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What matters of an operator here."""

    name: str
    random: bool
    written: tuple[int, ...]
    """Places of the arguments that it writes to."""


_kinds: dict[Any, _Kind] = {}


def _kind(func: Any) -> _Kind:
    schema = func._schema
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    random = torch.Tag.nondeterministic_seeded in func.tags
    made = _kinds[func] = _Kind(schema.name.removeprefix("aten::"), random, written)
    return made


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, None where they are not known."""
    if isinstance(tensor, FakeTensor):
        known = getattr(tensor, "_known", None)
        return known.values if known is not None and known.holds[0] else None
    return tensor if type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.numel() <= LIMIT else None


def array_of(tensor: torch.Tensor) -> Any:
    """Return the values of a tensor as an array of NumPy, None where they are not known."""
    values = value_of(tensor)
    if values is None:
        return None
    with torch._C._DisableTorchDispatch():
        return values.numpy().copy()


def give(tensor: torch.Tensor, values: torch.Tensor, holds: list[bool] | None = None) -> None:
    """Let a fake tensor have these values."""
    tensor.constant = None  # type: ignore[attr-defined]  # torch's own memory of a scalar, which no module could be copied with
    tensor._known = _Known(values, holds or [True])  # type: ignore[attr-defined]


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator makes of known values; :data:`UNKNOWN` where one is not known, or the CPU cannot do it.

    Somebody's own operators and collectives are never run.
    """
    if func.namespace not in _RUN or any(value_of(t) is None for t in _tensors((args, kwargs))):
        return UNKNOWN

    def real(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return value_of(leaf)
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    args, kwargs = tree_map(real, (args, {k: v for k, v in kwargs.items() if k != "pin_memory"}))
    try:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return func(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return UNKNOWN


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Let the results of an operator have their values, where all that it took is known."""
    kind = _kinds.get(func) or _kind(func)
    first = _first(args)
    if kind.written:
        _write(func, args, kwargs, kind)
    elif kind.random:
        return
    elif not kind.name.startswith("empty") if first is None else value_of(first) is not None:
        _derive(func, args, kwargs, out)
    elif kind.name in _FILLS and out.numel() <= LIMIT:
        fill = _FILLS[kind.name]
        with torch._C._DisableTorchDispatch():
            give(out, torch.full(out.shape, args[-1] if fill is None else fill, dtype=out.dtype, device="cpu"))


def _first(args: Any) -> Any:
    """Return the first tensor, also of a list that comes first; None: there is none."""
    for one in args:
        if isinstance(one, torch.Tensor):
            return one
        if isinstance(one, (list, tuple)) and one and isinstance(one[0], torch.Tensor):
            return one[0]
    return None


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _derive(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    made = list(_tensors(out))
    if not made or any(t.numel() > LIMIT for t in made):
        return
    result = compute(func, args, kwargs)
    if result is UNKNOWN:
        return
    fakes: list[Any] = [t for t in _tensors((args, kwargs)) if isinstance(t, FakeTensor)]
    holders = {_memory(t): t._known.holds for t in fakes}
    for fake, real in zip(made, _tensors(result), strict=True):
        if fake.shape == real.shape and isinstance(fake, FakeTensor):
            with torch._C._DisableTorchDispatch():
                owner = real.untyped_storage()._cdata
            give(fake, real, holders.get(owner))


def _memory(tensor: Any) -> int:
    with torch._C._DisableTorchDispatch():
        address: int = tensor._known.values.untyped_storage()._cdata
    return address


def _write(func: Any, args: Any, kwargs: Any, kind: _Kind) -> None:
    """Do to the values what an operator does in place; forget them where what it writes is not known."""
    if kind.name in _KEEP:
        return
    names = [a.name for a in func._schema.arguments]
    targets = [args[i] if i < len(args) else kwargs.get(names[i]) for i in kind.written]
    known = [t for t in _tensors(targets) if isinstance(t, FakeTensor) and value_of(t) is not None]
    if not known:
        return
    if kind.random or compute(func, args, kwargs) is UNKNOWN:
        for tensor in known:
            tensor._known.holds[0] = False  # type: ignore[attr-defined]
