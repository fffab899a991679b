"""One fold as matrices: rows are levels of memory, columns the products of sizes that they are linear in."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretell.core._terms import TERM_OF
from foretell.cost.overheads import Overheads, overheads
from foretell.cost.training_memory import fold_run
from foretell.cost.workspace import library_workspace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.architecture import Architecture
    from foretell.cost.evaluate import Basis
    from foretell.cost.memory import StageFold
    from foretell.cost.tape import Point
    from foretell.machine.hardware import HardwareNode
    from foretell.recipe.resolve import Run

__all__ = ["PHASES", "Found", "Group", "group_of"]

PHASES = ["", "forward", "loss", "backward", "optimizer"]
"""What a phase's code stands for; a phase that the fold adds is appended when it is first met."""
_KEPT = 1024
_groups: OrderedDict[tuple[object, ...], tuple[object, Group]] = OrderedDict()


def group_of(arch: Architecture, run: Run, device: HardwareNode) -> Group:
    """Return the group of a run, made once for each fold and device."""
    folds = fold_run(arch, run)
    above = overheads(run, device)
    key = (id(folds), above, device.compute_capability, bool(run.par.sp), run.par.hsdp_replicas)
    found = _groups.get(key)
    if found is None:
        workspace = library_workspace(arch, run, device.compute_capability) if above.cuda_like else 0.0
        found = _groups[key] = (folds, Group(folds, run, above, workspace))  # the fold is kept, so its id stays its own
        while len(_groups) > _KEPT:
            _groups.popitem(last=False)
    return found[1]


@dataclass(slots=True)
class Found:
    """Levels of many runs, bytes."""

    total: NDArray[Any]
    allocated: NDArray[Any]
    reserved: NDArray[Any]
    stage: NDArray[Any]
    phase: NDArray[Any]
    terms: dict[str, NDArray[Any]]


class Group:
    """The runs that share a fold."""

    def __init__(self, folds: tuple[StageFold, ...], run: Run, above: Overheads, workspace: float) -> None:
        """Lay the levels out as matrices; the formulas are those of `foretell.cost.levels`."""
        self.run = run
        self.above = above
        self.workspace = workspace
        forms = [form for i, fold in enumerate(folds) for form in _reserved_forms(i, fold, self.above)]
        points = [[p for ps in fold.phases.values() for p in ps] for fold in folds]
        self.monomials = _monomials([form for _, form in forms], [p for ps in points for p in ps])
        column = {name: j for j, name in enumerate(self.monomials)}
        rows = np.array([_row(form, column) for _, form in forms])
        kept = _undominated(rows)
        self.reserved = rows[kept]
        self.fold_of = np.array([fold for fold, _ in forms])[kept]
        self.stage_of = np.array([fold.stage.index for fold in folds])[self.fold_of]
        self.points = {int(i): _Points(points[i], column) for i in np.unique(self.fold_of)}
        floors = [workspace + (0.0 if _pooled(fold, above) else above.slack_floor) for fold in folds]
        self.floor = np.array(floors)[self.fold_of]

    def evaluate(self, basis: Basis, n: int, *, terms: bool) -> Found:
        """Return the levels of `n` runs whose products of sizes are those of `basis`."""
        x = np.empty((len(self.monomials), n))
        for j, name in enumerate(self.monomials):
            x[j] = basis[name]
        levels = self.reserved @ x
        which = levels.argmax(axis=0)
        reserved = np.take_along_axis(levels, which[None], 0)[0] + self.floor[which]
        found = Found(
            total=reserved,
            allocated=np.empty(n),
            reserved=reserved,
            stage=self.stage_of[which],
            phase=np.zeros(n, np.int8),
            terms={},
        )
        folds = self.fold_of[which]
        for fold, points in self.points.items():
            rows = np.flatnonzero(folds == fold) if len(self.points) > 1 else np.arange(n)
            if len(rows):
                points.fill(found, rows, x if len(rows) == n else x[:, rows], terms=terms)
        found.allocated += self.workspace
        found.total = found.reserved + self.above.outside
        if terms:
            slack = found.reserved - found.allocated
            found.terms["allocator_slack"] = found.terms.get("allocator_slack", 0.0) + slack
            found.terms["library_workspaces"] = np.full(n, self.workspace)
            found.terms["cuda_context"] = np.full(n, self.above.context)
            found.terms["nccl"] = np.full(n, self.above.nccl)
        return found


class _Points:
    """Levels of allocated memory of one pipeline rank."""

    def __init__(self, points: list[Point], column: dict[str, int]) -> None:
        self.levels = np.array([_row(p.flat, column) for p in points])
        codes = []
        for p in points:
            if p.phase not in PHASES:
                PHASES.append(p.phase)
            codes.append(PHASES.index(p.phase))
        self.phase = np.array(codes, np.int8)
        self.names: list[list[str]] = []
        self.parts: list[NDArray[Any]] = []
        for p in points:
            rows: dict[str, NDArray[Any]] = {}
            for (category, monomial), value in p.size.items():
                term = TERM_OF.get(category, category)
                if term not in rows:
                    rows[term] = np.zeros(len(column))
                rows[term][column[monomial]] += value
            self.names.append(list(rows))
            self.parts.append(np.array(list(rows.values())))

    def fill(self, found: Found, rows: NDArray[Any], x: NDArray[Any], *, terms: bool) -> None:
        """Write allocated bytes, phase and terms of some rows."""
        levels = self.levels @ x
        which = levels.argmax(axis=0)
        found.allocated[rows] = np.take_along_axis(levels, which[None], 0)[0]
        found.phase[rows] = self.phase[which]
        if not terms:
            return
        n = len(found.allocated)
        for i in np.unique(which):
            inside = np.flatnonzero(which == i)
            values = self.parts[i] @ (x if len(inside) == x.shape[1] else x[:, inside])
            for name, row in zip(self.names[i], values, strict=True):
                if name not in found.terms:
                    found.terms[name] = np.zeros(n)
                found.terms[name][rows[inside]] = row


def _pooled(fold: StageFold, above: Overheads) -> bool:
    """Whether the fold itself counts what the allocator reserves, a pool per stream."""
    return bool(fold.pooled) and above.cuda_like


def _reserved_forms(index: int, fold: StageFold, above: Overheads) -> list[tuple[int, dict[str, float]]]:
    """Return the reserved bytes of every level of one rank as forms (stage, monomial -> bytes)."""
    pooled = _pooled(fold, above)
    fraction = above.pooled_fraction if pooled else above.slack_fraction
    resident = fold.resident.by_monomial()
    out = []
    for point in fold.pooled if pooled else (p for points in fold.phases.values() for p in points):
        form = {name: value * (1 + fraction) for name, value in point.flat.items()}
        for name, value in resident.items():
            form[name] = form.get(name, 0.0) - fraction * value
        out.append((index, form))
    return out


def _undominated(rows: NDArray[Any]) -> NDArray[Any]:
    """Return which rows no other row covers whatever the sizes are (of equal rows, the first is kept)."""
    covers = (rows[:, None, :] >= rows[None, :, :]).all(axis=2)
    equal = covers & covers.T
    earlier = np.tri(len(rows), k=-1, dtype=bool).T  # [i, j]: i stands before j
    return np.flatnonzero(~((covers & ~equal) | (equal & earlier)).any(axis=0))


def _monomials(forms: list[dict[str, float]], points: list[Point]) -> list[str]:
    names: dict[str, None] = {}
    for form in forms:
        names |= dict.fromkeys(form)
    for point in points:
        names |= dict.fromkeys(point.flat)
        names |= dict.fromkeys(monomial for _, monomial in point.size)
    return list(names)


def _row(form: dict[str, float], column: dict[str, int]) -> NDArray[Any]:
    row = np.zeros(len(column))
    for name, value in form.items():
        row[column[name]] = value
    return row
