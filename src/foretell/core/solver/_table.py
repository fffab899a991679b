"""The result of a sweep: NumPy columns, one row a configuration."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from foretell.errors import ExtraError, InputError
from foretell.units import GIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Table"]

_SHOWN = 10
"""Rows that printing a table shows."""
_WIDE = 110


class Table:
    """Columns of equal length.  `valid` says that a row can run, `feasible` that it fits, `reason` why not."""

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        coded: Mapping[str, tuple[NDArray[Any], list[Any]]],
        *,
        by: str = "total_memory_bytes",
    ) -> None:
        """Keep plain columns, and coded ones (codes, values) that become columns when they are asked for.

        ``by``: the column that :meth:`best` looks at where none is named.
        """
        self.by = by
        self._plain = dict(columns)
        self._coded = dict(coded)
        self._columns: dict[str, NDArray[Any]] | None = None

    def with_column(self, name: str, values: NDArray[Any]) -> Table:
        """Return the table with one more column."""
        return Table({name: values} | self._plain, self._coded, by=self.by)

    def __len__(self) -> int:
        return len(next(iter(self._plain.values())))

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Name -> array; sizes end in `_bytes`."""
        if self._columns is None:
            decoded = {name: _decode(codes, values) for name, (codes, values) in self._coded.items()}
            self._columns = decoded | self._plain
        return self._columns

    def __repr__(self) -> str:
        """Return the first rows as a table: what varies, the column to choose by, the verdict, the reason."""
        varies = [name for name, (codes, _) in self._coded.items() if codes.min() != codes.max()]
        names = [n for n in varies if n not in ("reason", "verdict", "peak_phase")]
        rows = [self.row(i) for i in range(min(len(self), _SHOWN))]
        verdict = [name for name in ("verdict",) if name in self._coded]
        memory = self.by == "total_memory_bytes"
        lines = [[*names, "total GiB" if memory else self.by, *verdict, "reason"]]
        for row in rows:
            found = row[self.by]
            shown = (f"{found / GIB:.2f}" if memory else f"{found:.4g}") if math.isfinite(found) else "-"
            lines.append([*(str(row[n]) for n in names), shown, *(row[n] for n in verdict), row["reason"]])
        wide = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
        text = ["  ".join([c.rjust(w) for c, w in zip(line, wide, strict=False)] + line[-1:])[:_WIDE].rstrip() for line in lines]
        fitting = int(np.count_nonzero(self._plain["feasible"]))
        head = f"Table of {len(self)} rows, {fitting} feasible; columns: .columns, best row: .best()"
        more = [f"... {len(self) - len(rows)} more rows"] if len(self) > len(rows) else []
        return "\n".join([head, *text, *more])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return one column."""
        if name in self._plain:
            return self._plain[name]
        if name in self._coded:
            return _decode(*self._coded[name])
        raise InputError("is no column", field="by", value=name, allowed=[*self._coded, *self._plain])

    def row(self, index: int) -> dict[str, Any]:
        """Return one row as plain values."""
        out = {name: values[int(codes[index])] for name, (codes, values) in self._coded.items()}
        return out | {name: column[index].item() for name, column in self._plain.items()}

    def best(
        self,
        by: str | None = None,
        *,
        largest: bool = False,
        feasible: bool = True,
        verdict: str | Collection[str] | None = None,
    ) -> Any:  # a dict of plain values
        """Return the row with the smallest (or largest) `by`, as a dict; None where no row qualifies.

        Left out, `by` is the total memory, and of the sweeps over time the step.

        Rows that qualify are the feasible ones: the point is within what the device offers, without headroom
        and without the interval.  `verdict="fits"` (or several verdicts) asks for more: those whose verdict it
        is.  `feasible=False` takes every row that can run.
        """
        column = self[by or self.by]
        mask = self._plain["feasible" if feasible else "valid"]
        if verdict is not None:
            codes, names = self._coded["verdict"]
            wanted = {verdict} if isinstance(verdict, str) else set(verdict)
            for name in wanted - set(names):
                raise InputError("is no verdict", field="verdict", value=name, allowed=names)
            mask = self._plain["valid"] & np.isin(codes, [i for i, name in enumerate(names) if name in wanted])
        rows = np.flatnonzero(mask)
        if not len(rows):
            return None
        found = column[rows]
        return self.row(int(rows[int(found.argmax() if largest else found.argmin())]))

    def to_polars(self) -> Any:  # polars.DataFrame, where polars is installed
        """Return a polars DataFrame; needs the optional dependencies `sweep`."""
        try:
            pl = importlib.import_module("polars")  # optional
        except ImportError:
            raise ExtraError.missing("sweep", "to_polars()") from None
        coded = {
            name: pl.Series(name, [v if v is None or isinstance(v, str | int | float) else str(v) for v in values]).gather(codes)
            for name, (codes, values) in self._coded.items()
        }
        return pl.DataFrame(coded | self._plain)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file; needs the optional dependencies `sweep`."""
        self.to_polars().write_parquet(os.fspath(path))


def _decode(codes: NDArray[Any], values: list[Any]) -> NDArray[Any]:
    """Return the values of codes; text and None as objects, since the same few are repeated."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        table: NDArray[Any] = np.asarray(values)
    else:
        table = np.empty(len(values), dtype=object)
        table[:] = values
    out: NDArray[Any] = table[codes]
    return out
