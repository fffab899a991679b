"""Sizes of many runs as arrays, and a run whose numbers are such arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.recipe.resolve import Run

__all__ = ["Sized", "unique_sizes"]


@dataclass(slots=True)
class Sized:
    """Sizes of some runs, each an int64 array."""

    micro_batch: NDArray[Any]
    accum: NDArray[Any]
    seq_len: NDArray[Any]
    dp: NDArray[Any]
    tp: NDArray[Any]
    cp: NDArray[Any]
    ep: NDArray[Any]
    etp: NDArray[Any]

    @property
    def rows(self) -> int:
        """Number of runs."""
        return len(self.dp)

    def take(self, rows: NDArray[Any] | slice) -> Sized:
        """Return the sizes of some of the runs."""
        return Sized(*(getattr(self, f.name)[rows] for f in fields(self)))

    def array_run(self, run: Run, micro_batches: Any) -> Run:
        """Return `run` with these numbers in the place of its own: formulas take arrays where they take numbers."""
        recipe: dict[str, Any] = {"micro_batch": self.micro_batch.astype(float), "seq_len": self.seq_len.astype(float)}
        degrees: dict[str, Any] = {name: getattr(self, name) for name in ("dp", "tp", "cp", "ep", "etp")}
        return replace(
            run,
            recipe=replace(run.recipe, **recipe, grad_accum=micro_batches),
            par=replace(run.par, **degrees),
        )


def unique_sizes(sizes: Sized) -> tuple[Sized, NDArray[Any]]:
    """Return the distinct sets of sizes, micro-batches of a step aside, and which of them each run has."""
    key = np.zeros(sizes.rows, np.int64)
    for name in ("micro_batch", "seq_len", "dp", "tp", "cp", "ep", "etp"):
        values = getattr(sizes, name)
        if (values == values[0]).all():
            continue
        found, codes = np.unique(values, return_inverse=True)
        if int(key.max()) * len(found) >= 2**62:  # compress: the combinations seen are no more than the rows
            key = np.unique(key, return_inverse=True)[1]
        key = key * len(found) + codes
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return sizes.take(first), place
