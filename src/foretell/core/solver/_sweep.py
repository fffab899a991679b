"""The memory question for many runs at once: one fold for each kind of run, arrays for the sizes.

Settings that change which terms exist (framework, precision, pp, ZeRO stage ...) are walked through one by one,
and of the degrees only whether they are above one.  What is left are sizes, and the fold is linear in products
of sizes: a matrix product gives every level of every run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.arch._load import load_model
from foretell.core._checks import CHECKS, Degrees, Facts
from foretell.core._device import check_precision
from foretell.core._request import DEFAULTS, GivenInt, build
from foretell.core._validate import check_recompute, checked_parallelism, checked_recipe, completed
from foretell.core._verdict import fits_and_fails, regime_of
from foretell.core.solver._axes import Axes
from foretell.core.solver._group import PHASES, Group, group_of
from foretell.core.solver._table import Table
from foretell.cost.evaluate import Basis, Sizes
from foretell.cost.overheads import available_bytes
from foretell.cost.pipeline import saturation
from foretell.cost.training_memory import windows
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.resolve import Run
from foretell.validation import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.workload import Workload

__all__ = ["sweep"]

_CHUNK: Final = 65_536
"""Rows worked on at a time: bounds the memory of intermediate arrays."""
_WHOLE: Final = "batch_size is not a multiple of dp x micro-batches"
_VERDICTS: Final = ["fits", "uncertain", "does_not_fit", "invalid"]
_NO_LIMIT: Final = 2**40


def sweep(
    model: Workload | str | os.PathLike[str] | Mapping[str, Any],
    hardware: HardwareNode | str,
    axes: Mapping[str, Any],
    *,
    product: bool,
    headroom: float,
    terms: bool,
) -> Table:
    """Return the table of every run that the axes make."""
    work = _Sweep(load_model(model), load_hardware(hardware), Axes(axes, product=product))
    work.headroom = number(headroom, "headroom", maximum=1)
    return work.table(terms=terms)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One combination of the settings that are walked through, completed; or why it cannot run."""

    settings: Mapping[str, Any]
    run: Run | None
    facts: Facts | None
    reason: str = ""
    limit: int = _NO_LIMIT
    """Micro-batches from which on a stage keeps no more."""


class _Sweep:
    def __init__(self, model: Workload, device: HardwareNode, axes: Axes) -> None:
        self.model, self.arch, self.device, self.axes = model, model.architecture, device, axes
        self.headroom = 0.1
        self.explicit = ("seq_len",) if "seq_len" in axes else ()
        self.available = float(available_bytes(device))
        self.windows = windows(self.arch)
        self.reasons = ["", "does not fit", _WHOLE, *(check.reason for check in CHECKS)]
        self.kinds: dict[int, _Kind] = {}
        self.groups: dict[tuple[int, int], Group | int] = {}
        self.columns: dict[str, NDArray[Any]] = {}

    # -- settings -> kinds -> groups ------------------------------------------------------------------------

    def kind(self, code: int) -> _Kind:
        """Return the kind of a combination of the walked settings."""
        found = self.kinds.get(code)
        if found is None:
            settings = DEFAULTS | self.axes.walked(code)
            if settings["seq_len"] is None:
                settings["seq_len"] = DEFAULTS["seq_len"]
            if isinstance(settings["seq_len"], GivenInt) and not self.arch.reads_tokens:
                settings["seq_len"] = 1
            found = self.kinds[code] = self._kind(settings)
        return found

    def _kind(self, settings: dict[str, Any]) -> _Kind:
        try:
            recipe, par = build(settings | self._sizes_of_one(settings, 0))
            recipe, par = checked_recipe(recipe), checked_parallelism(par)
            check_recompute(recipe.recompute)
            run, facts = completed(self.arch, recipe, par, explicit=self.explicit)
            check_precision(self.device, run.recipe.precision, run.recipe.compute_dtype)
        except InputError as error:
            return _Kind(settings, None, None, str(error))
        limit = saturation(run.schedule, run.par.pp, run.par.vpp)
        return _Kind(settings, run, facts, "", limit or _NO_LIMIT)

    def _sizes_of_one(self, settings: Mapping[str, Any], flags: int, accum: int = 1) -> dict[str, Any]:
        """Return sizes that stand for all with the same degrees above one and attention windows exceeded (`flags`)."""
        dp, tp, cp, ep, etp = (1 + (flags >> i & 1) for i in range(5))
        vision = settings["seq_len"] == 1
        bounds = (0, *self.windows) if self.windows else (4095,)
        return {
            "batch_size": dp * accum,
            "micro_batch": None,
            "gradient_accumulation_steps": accum,
            "seq_len": 1 if vision else 1 + bounds[flags >> 5],
            "dp_size": dp,
            "tp_size": tp,
            "cp_size": cp,
            "ep_size": ep,
            "etp_size": None if settings.get("etp_size") is None and "etp_size" not in self.axes else etp,
        }

    def group(self, code: int, key: int) -> Group | int:
        """Return the group of a kind and a key (see `_rows_of_kind`), or the code of a reason."""
        found = self.groups.get((code, key))
        if found is None:
            found = self.groups[code, key] = self._group(code, key)
        return found

    def _group(self, code: int, key: int) -> Group | int:
        kind = self.kind(code)
        accum, flags = divmod(key, 32 * (1 + len(self.windows)))
        try:
            recipe, par = build({**kind.settings, **self._sizes_of_one(kind.settings, flags, accum)})
            run, _ = completed(self.arch, recipe, par, explicit=self.explicit)
            return group_of(self.arch, run, self.device)
        except InputError as error:
            return self._reason(str(error))

    def _reason(self, text: str) -> int:
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)

    # -- rows -----------------------------------------------------------------------------------------------

    def table(self, *, terms: bool) -> Table:
        """Work through the rows, chunk by chunk."""
        n = len(self.axes)
        make = {
            "micro_batch": np.zeros(n, np.int64),
            "micro_batches": np.zeros(n, np.int64),
            "total_memory_bytes": np.full(n, np.nan),
            "allocated_memory_bytes": np.full(n, np.nan),
            "reserved_memory_bytes": np.full(n, np.nan),
            "reason": np.zeros(n, np.int16),
            "verdict": np.full(n, 3, np.int8),
            "stage": np.full(n, -1, np.int16),
            "peak_phase": np.zeros(n, np.int8),
        }
        self.columns = make
        self.terms = terms
        for start in range(0, n, _CHUNK):
            self._chunk(np.arange(start, min(start + _CHUNK, n)))
        total, reason = make["total_memory_bytes"], make["reason"]
        valid = reason == 0
        feasible = valid & (total <= self.available)
        reason[valid & ~feasible] = 1
        coded = dict(self.axes.coded())
        coded["reason"] = (make.pop("reason"), self.reasons)
        coded["verdict"] = (make.pop("verdict"), _VERDICTS)
        coded["peak_phase"] = (make.pop("peak_phase"), PHASES)
        for name in ("micro_batch", "micro_batches"):
            if name in coded:
                make.pop(name)
        make |= {"valid": valid, "feasible": feasible, "memory_utilization": total / self.available}
        return Table(make, coded)

    def _chunk(self, rows: NDArray[Any]) -> None:
        codes = self.axes.codes(rows)
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        for part in np.split(order, bounds):
            self._rows_of_kind(int(codes[part[0]]), rows[part])

    def _rows_of_kind(self, code: int, rows: NDArray[Any]) -> None:
        kind, out = self.kind(code), self.columns
        if kind.run is None or kind.facts is None:
            out["reason"][rows] = self._reason(kind.reason)
            return
        sizes = self.axes.sizes(rows, kind.settings, kind.run, given_etp="etp_size" in self.axes)
        out["micro_batch"][rows], out["micro_batches"][rows] = sizes.micro_batch, sizes.accum
        reason = _broken(kind, sizes)
        good = np.flatnonzero(reason == 0)
        out["reason"][rows] = reason
        if not len(good):
            return
        sizes = sizes.take(good)
        rows = rows[good]
        key = np.minimum(sizes.accum, kind.limit) * (1 + len(self.windows))
        key = key + np.searchsorted(self.windows, sizes.seq_len) << 5
        for bit, values in enumerate((sizes.dp, sizes.tp, sizes.cp, sizes.ep, sizes.etp)):
            key |= (values > 1).astype(np.int64) << bit
        order = np.argsort(key, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            self._rows_of_group(code, int(key[part[0]]), rows[part], sizes.take(part), kind)

    def _rows_of_group(self, code: int, key: int, rows: NDArray[Any], sizes: Any, kind: _Kind) -> None:
        out = self.columns
        group = self.group(code, key)
        if isinstance(group, int):
            out["reason"][rows] = group
            return
        run = group.run
        basis = Basis(
            Sizes(
                micro_batch=sizes.micro_batch.astype(float),
                seq_len=sizes.seq_len.astype(float),
                encoder_seq_len=float(kind.settings["encoder_seq_len"] or 0) or sizes.seq_len.astype(float),
                dp=sizes.dp.astype(float),
                tp=sizes.tp.astype(float),
                cp=sizes.cp.astype(float),
                ep=sizes.ep.astype(float),
                etp=sizes.etp.astype(float),
                sp=bool(run.par.sp),
                hsdp_replicas=run.par.hsdp_replicas,
            )
        )
        found = group.evaluate(basis, len(rows), terms=self.terms)
        out["total_memory_bytes"][rows] = found.total
        out["allocated_memory_bytes"][rows] = found.allocated
        out["reserved_memory_bytes"][rows] = found.reserved
        out["stage"][rows] = found.stage
        out["peak_phase"][rows] = found.phase
        out["verdict"][rows] = self._verdicts(run, found.total)
        for name, values in found.terms.items():
            column = out.get(f"{name}_bytes")
            if column is None:
                column = out[f"{name}_bytes"] = np.zeros(len(self.axes))
            column[rows] = values

    def _verdicts(self, run: Run, total: NDArray[Any]) -> NDArray[Any]:
        spread = regime_of(self.model, run, self.device)
        fits, fails = fits_and_fails(total, spread, self.available, self.headroom)
        return np.where(fits, 0, np.where(fails, 2, 1)).astype(np.int8)


def _broken(kind: _Kind, sizes: Any) -> NDArray[Any]:
    """Return the code of the first check that each row breaks, 0 where none."""
    assert kind.run is not None  # noqa: S101  # the caller looked
    assert kind.facts is not None  # noqa: S101
    par = kind.run.par
    reason = np.where(sizes.whole, 0, 2).astype(np.int16)
    degrees = Degrees(
        micro_batch=sizes.micro_batch,
        seq_len=sizes.seq_len,
        dp=sizes.dp,
        tp=sizes.tp,
        pp=par.pp,
        cp=sizes.cp,
        ep=sizes.ep,
        etp=sizes.etp,
        vpp=par.vpp,
        sp=int(bool(par.sp)),
        hsdp=par.hsdp_replicas,
    )
    for i, check in enumerate(CHECKS):
        broken = check.broken(kind.facts, degrees)
        if np.any(broken):
            reason[(reason == 0) & broken] = i + 3
    return reason
