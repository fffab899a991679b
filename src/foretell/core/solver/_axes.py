"""Axes of a sweep: which settings vary, and the values of any rows of the table that they span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.errors import InputError
from foretell.validation import MAX_SEQUENCE, positive_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.recipe.resolve import Run

__all__ = ["SIZES", "Axes", "RowSizes"]

SIZES: Final = (
    "batch_size",
    "micro_batch",
    "seq_len",
    "dp_size",
    "tp_size",
    "cp_size",
    "ep_size",
    "etp_size",
    "gradient_accumulation_steps",
)
"""Settings that are arrays inside one fold; the others are walked through."""
_TUPLES: Final = ("recompute_modules", "lora_targets", "offload", "pp_layout")
"""Settings that are tuples themselves: only a list (or an array) of them makes an axis."""
MAX_ROWS: Final = 20_000_000


@dataclass(slots=True)
class RowSizes:
    """Sizes of some rows, each an int64 array."""

    micro_batch: NDArray[Any]
    accum: NDArray[Any]
    seq_len: NDArray[Any]
    dp: NDArray[Any]
    tp: NDArray[Any]
    cp: NDArray[Any]
    ep: NDArray[Any]
    etp: NDArray[Any]
    whole: NDArray[Any]
    """Whether the global batch divides into whole micro-batches."""

    def take(self, rows: NDArray[Any]) -> RowSizes:
        """Return the sizes of some of the rows."""
        return RowSizes(*(getattr(self, f.name)[rows] for f in fields(self)))


class Axes:
    """The axes, in the order given; the last one varies fastest."""

    def __init__(self, axes: Mapping[str, Any], *, product: bool, arrays: tuple[str, ...] = SIZES) -> None:
        """Tell axes from single values, check sizes, and lay the rows out; ``arrays`` names the settings that are not walked."""
        if axes.get("batch_size") is None and axes.get("micro_batch") is None:
            raise InputError("is needed (or micro_batch)", field="batch_size")
        self.values = {name: _values(name, value, arrays) for name, value in axes.items()}
        lengths = [len(v) for v in self.values.values()]
        if product:
            self.rows = int(np.prod(lengths, dtype=float))
        else:
            self.rows = max(lengths)
            for name, values in self.values.items():
                if len(values) not in (1, self.rows):
                    raise InputError(
                        f"has {len(values)} values where another axis has {self.rows}",
                        field=name,
                        hint="product=True makes every combination",
                    )
        if self.rows > MAX_ROWS or not self.rows:
            raise InputError("combinations are asked for", field="sweep", value=self.rows, allowed=f"1 to {MAX_ROWS}")
        self.product = product
        self.stride: dict[str, int] = {}
        step = 1
        for name in reversed(self.values):
            self.stride[name] = step
            step *= len(self.values[name])
        self.walk = [name for name in self.values if name not in arrays]
        self.table = {
            name: np.array([0 if v is None else v for v in self.values[name]], np.int64) for name in self.values if name in arrays
        }

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, name: object) -> bool:
        return name in self.values and self.values[str(name)] != [None]

    def index(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Return which value of an axis each row has."""
        n = len(self.values[name])
        if n == 1:
            return np.zeros(len(rows), np.int64)
        return rows // self.stride[name] % n if self.product else rows

    def codes(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the combination of walked settings of each row."""
        out = np.zeros(len(rows), np.int64)
        for name in self.walk:
            if len(self.values[name]) > 1:
                out = out * len(self.values[name]) + self.index(name, rows)
        return out

    def walked(self, code: int) -> dict[str, Any]:
        """Return the settings of a combination; the sizes that do not vary come with it."""
        out = {name: values[0] for name, values in self.values.items()}
        for name in reversed(self.walk):
            values = self.values[name]
            if len(values) > 1:
                code, i = divmod(code, len(values))
                out[name] = values[i]
        return out

    def size(self, name: str, rows: NDArray[Any], otherwise: object) -> NDArray[Any]:
        """Return the values of a size, or of what it is where it was not given."""
        if name in self:
            out: NDArray[Any] = self.table[name][self.index(name, rows)]
            return out
        return np.full(len(rows), otherwise, np.int64)

    def sizes(self, rows: NDArray[Any], settings: Mapping[str, Any], run: Run, *, given_etp: bool) -> RowSizes:
        """Return the sizes of some rows of one kind."""
        dp, tp, cp, ep = (self.size(f"{name}_size", rows, 1) for name in ("dp", "tp", "cp", "ep"))
        accum = self.size("gradient_accumulation_steps", rows, 1)
        seq = self.size("seq_len", rows, int(settings["seq_len"]))
        whole = np.ones(len(rows), bool)
        if "micro_batch" in self:
            micro = self.size("micro_batch", rows, 1)
            if "batch_size" in self:
                steps, rest = np.divmod(self.size("batch_size", rows, 1), dp * micro)
                whole = (rest == 0) & ((accum == 1) | (accum == steps)) & (steps > 0)
                accum = np.maximum(steps, 1)
        else:
            micro, rest = np.divmod(self.size("batch_size", rows, 1), dp * accum)
            whole = (rest == 0) & (micro > 0)
        etp = self.size("etp_size", rows, 1) if given_etp else tp
        if not given_etp and run.profile.default_expert_tp is not None:
            etp = np.full(len(rows), run.profile.default_expert_tp, np.int64)
        return RowSizes(micro, accum, seq, dp, tp, cp, ep, etp, whole)

    def coded(self) -> Iterator[tuple[str, tuple[NDArray[Any], list[Any]]]]:
        """Yield each axis as (codes, values)."""
        rows = np.arange(self.rows)
        for name, values in self.values.items():
            codes = self.index(name, rows)
            small = np.int16 if len(values) < 2**15 else np.int32
            yield name, (codes.astype(small), [plain_int(v) for v in values])


def plain_int(value: object) -> object:
    """Return a default as the plain number that it is."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_setting(name: str, item: object) -> bool:
    """Whether an item of a list is a whole setting, rather than a part of one."""
    return item is None or isinstance(item, tuple | list | set | frozenset) or (name != "pp_layout" and isinstance(item, str))


def _values(name: str, value: Any, arrays: tuple[str, ...]) -> list[Any]:  # a value or any sequence of values
    """Return the values of one axis, sizes checked."""
    single = isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__")
    if name in _TUPLES and not (isinstance(value, list) and all(_is_setting(name, item) for item in value)):
        single = True
    if isinstance(value, np.ndarray | np.generic):
        value, single = value.tolist(), not value.ndim
    items = [value] if single else [item.item() if isinstance(item, np.generic) else item for item in value]
    if not items:
        raise InputError("has no values", field=name, value=value)
    if name not in arrays:
        return items
    if any(item is None for item in items) and len(items) > 1:
        raise InputError("mixes values with None", field=name, value=items)
    most = MAX_SEQUENCE if name == "seq_len" else 10**9
    return [None if item is None else positive_int(item, name, maximum=most) for item in items]
