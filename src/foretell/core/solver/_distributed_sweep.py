"""The question of DistributedModel for many runs at once: passes priced once for each set of sizes, memory by its matrices.

Settings that change which terms exist are walked through one by one, and of the degrees only whether they are above one.
What is left are numbers, and the folds take arrays of them: rows that differ only in what a step repeats share their passes.
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
from foretell.core._request import DEFAULTS
from foretell.core._validate import check_recompute, checked_parallelism, checked_recipe, completed
from foretell.core._verdict import fits_and_fails, regime_of
from foretell.core.solver._axes import Axes
from foretell.core.solver._group import group_of
from foretell.core.solver._profile import ROOFS
from foretell.core.solver._rows import parts
from foretell.core.solver._sizes import Sized, unique_sizes
from foretell.core.solver._table import Table
from foretell.core.solver._timed import HEADROOM, Knobs, knobs_of, timed
from foretell.core.solver._training import KNOBS, request_of
from foretell.cost.evaluate import Basis
from foretell.cost.overheads import available_bytes
from foretell.cost.pipeline import saturation
from foretell.cost.training_memory import sizes_of, windows
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.recipe.resolve import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.workload import Workload

__all__ = ["ARRAYS", "sweep"]

ARRAYS: Final = (
    "batch_size",
    "seq_len",
    "tp_size",
    "cp_size",
    "ep_size",
    "etp_size",
    "microbatch_count",
    "gradient_accumulation_steps",
)
"""Settings that are arrays inside one fold; the others are walked through."""
_CHUNK: Final = 262_144
"""Rows put in groups at a time."""
_PIECE: Final = 8_192
"""Sets of sizes priced at a time: their arrays stay in a core's cache."""
_VERDICTS: Final = ["fits", "uncertain", "does_not_fit", "invalid"]
_REASONS: Final = [
    "",
    "does not fit",
    "batch_size is not a multiple of dp x micro-batches",
    "tp x pp x cp does not divide the fleet's accelerators",
    "microbatch_count and gradient_accumulation_steps differ",
    "the schedule cannot run so many micro-batches",
]
_NO_LIMIT: Final = 2**40
_TIMES: Final = (
    "step_latency_total_s",
    "effective_throughput_per_s",
    "mfu",
    "hfu",
    "scaling_efficiency",
    "dp_communication_latency_s",
    "tp_communication_latency_s",
    "pp_communication_latency_s",
    "ep_communication_latency_s",
    "cp_communication_latency_s",
    "communication_latency_s",
    "exposed_communication_latency_s",
    "pipeline_bubble_latency_s",
    "bubble_fraction",
)


def sweep(
    model: Workload | str | os.PathLike[str] | Mapping[str, Any],
    fleet: Fleet | str | os.PathLike[str],
    axes: Mapping[str, Any],
    *,
    product: bool,
    profile: bool,
) -> Table:
    """Return the table of every run that the axes make; ``profile``: with what one device does, its columns ``node_...``."""
    given = {"batch_size": KNOBS["batch_size"]} | dict(axes)
    work = _Sweep(load_model(model), load_fleet(fleet), Axes(given, product=product, arrays=ARRAYS))
    if profile:
        known = (name for name in ROOFS if name != "energy_j" or work.device.tdp_w is not None)
        work.numbers = (*_TIMES, *(f"node_{name}" for name in known))
    return work.table()


@dataclass(frozen=True, slots=True)
class _Kind:
    """One combination of the settings that are walked through, completed; or why it cannot run."""

    settings: Mapping[str, Any]
    run: Run | None = None
    facts: Facts | None = None
    knobs: Knobs | None = None
    reason: str = ""
    limit: int = _NO_LIMIT
    """Micro-batches from which on a stage keeps no more."""


class _Sweep:
    def __init__(self, model: Workload, fleet: Fleet, axes: Axes) -> None:
        self.model, self.arch, self.fleet, self.axes = model, model.architecture, fleet, axes
        self.device, self.world = fleet.accelerator, fleet.total_accelerators
        self.available = float(available_bytes(self.device))
        self.windows = windows(self.arch)
        self.explicit = ("seq_len",) if "seq_len" in axes else ()
        self.reasons = [*_REASONS, *(check.reason for check in CHECKS)]
        self.kinds: dict[int, _Kind] = {}
        self.columns: dict[str, NDArray[Any]] = {}
        self.numbers: tuple[str, ...] = _TIMES

    # -- settings -> kinds ----------------------------------------------------------------------------------

    def kind(self, code: int) -> _Kind:
        """Return the kind of a combination of the walked settings."""
        found = self.kinds.get(code)
        if found is None:
            settings = DEFAULTS | KNOBS | self.axes.walked(code)
            try:
                knobs = knobs_of(settings, self.fleet)
                run, facts = self.run(settings, 0, 1)
                check_precision(self.device, run.recipe.precision, run.recipe.compute_dtype)
                limit = saturation(run.schedule, run.par.pp, run.par.vpp)
                found = _Kind(settings, run, facts, knobs, "", limit or _NO_LIMIT)
            except InputError as error:
                found = _Kind(settings, reason=str(error))
            self.kinds[code] = found
        return found

    def run(self, settings: Mapping[str, Any], flags: int, accum: int) -> tuple[Run, Facts]:
        """Return a run that stands for all with the same degrees above one and attention windows exceeded (`flags`)."""
        dp, tp, cp, ep, etp = (1 + (flags >> i & 1) for i in range(5))
        bounds = (0, *self.windows) if self.windows else (4095,)
        sizes: dict[str, Any] = {"batch_size": dp * accum, "tp_size": tp, "cp_size": cp, "ep_size": ep}
        sizes["seq_len"] = 1 + bounds[flags >> 5] if self.arch.reads_tokens else settings["seq_len"]
        if "etp_size" in self.axes or flags:
            sizes["etp_size"] = etp
        recipe, par = request_of(self.arch, {**settings, **sizes}, dp, accum)
        recipe, par = checked_recipe(recipe), checked_parallelism(par)
        check_recompute(recipe.recompute)
        return completed(self.arch, recipe, par, explicit=self.explicit)

    def reason(self, text: str) -> int:
        """Return the code of a reason."""
        if text not in self.reasons:
            self.reasons.append(text)
        return self.reasons.index(text)

    # -- rows -----------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """Work through the rows, chunk by chunk."""
        n = len(self.axes)
        make: dict[str, NDArray[Any]] = {name: np.zeros(n, np.int64) for name in ("dp", "micro_batch", "micro_batches")}
        make |= {name: np.full(n, np.nan) for name in (*self.numbers, "total_memory_bytes")}
        if self.arch.reads_tokens:
            make |= {name: np.full(n, np.nan) for name in ("tokens_per_second", "tokens_per_second_per_device")}
        make |= {"reason": np.zeros(n, np.int16), "verdict": np.full(n, 3, np.int8)}
        self.columns = make
        for start in range(0, n, _CHUNK):
            self._chunk(np.arange(start, min(start + _CHUNK, n)))
        total, reason = make["total_memory_bytes"], make["reason"]
        valid = reason == 0
        feasible = valid & (total <= self.available)
        reason[valid & ~feasible] = 1
        coded = dict(self.axes.coded())
        coded["reason"] = (make.pop("reason"), self.reasons)
        coded["verdict"] = (make.pop("verdict"), _VERDICTS)
        make |= {"valid": valid, "feasible": feasible, "memory_utilization": total / self.available}
        return Table(make, coded, by="step_latency_total_s")

    def _chunk(self, rows: NDArray[Any]) -> None:
        codes = self.axes.codes(rows)
        for part in parts(codes):
            self._rows_of_kind(self.kind(int(codes[part[0]])), rows[part])

    def _rows_of_kind(self, kind: _Kind, rows: NDArray[Any]) -> None:
        out = self.columns
        if kind.run is None or kind.facts is None:
            out["reason"][rows] = self.reason(kind.reason)
            return
        sizes, reason = self._sizes(kind, rows)
        for name, values in (("dp", sizes.dp), ("micro_batch", sizes.micro_batch), ("micro_batches", sizes.accum)):
            out[name][rows] = values
        out["reason"][rows] = reason
        good = np.flatnonzero(reason == 0)
        if not len(good):
            return
        sizes, rows = sizes.take(good), rows[good]
        key = np.searchsorted(self.windows, sizes.seq_len) << 5 if self.windows else np.zeros(len(rows), np.int64)
        for bit, values in enumerate((sizes.dp, sizes.tp, sizes.cp, sizes.ep, sizes.etp)):
            key = key | (values > 1).astype(np.int64) << bit
        for part in parts(key):
            self._rows_of_group(kind, int(key[part[0]]), rows[part], sizes.take(part))

    def _sizes(self, kind: _Kind, rows: NDArray[Any]) -> tuple[Sized, NDArray[Any]]:
        """Return the sizes of rows, and the code of the first rule that each breaks."""
        assert kind.run is not None  # noqa: S101  # the caller looked
        assert kind.facts is not None  # noqa: S101
        par, size = kind.run.par, self.axes.size
        tp, cp, ep = (size(f"{name}_size", rows, 1) for name in ("tp", "cp", "ep"))
        counts, steps = (size(name, rows, 1) for name in ("microbatch_count", "gradient_accumulation_steps"))
        accum = np.maximum(counts, steps)
        dp, left = np.divmod(self.world, tp * par.pp * cp)
        dp = np.maximum(dp, 1)
        micro, rest = np.divmod(size("batch_size", rows, 1), dp * accum)
        etp = self._expert_tp(kind, rows, dp, tp, cp, ep)
        seq_len = size("seq_len", rows, kind.run.recipe.seq_len if not self.arch.reads_tokens else int(kind.settings["seq_len"]))
        sizes = Sized(micro, accum, seq_len, dp, tp, cp, ep, etp)
        broken = [
            (3, left != 0),
            (2, (rest != 0) | (micro < 1)),
            (4, (counts > 1) & (steps > 1) & (counts != steps)),
            (5, _refused(kind.run, accum)),
        ]
        degrees = Degrees(
            micro_batch=micro,
            seq_len=seq_len,
            dp=dp,
            tp=tp,
            pp=par.pp,
            cp=cp,
            ep=ep,
            etp=etp,
            vpp=par.vpp,
            sp=int(bool(par.sp)),
            hsdp=par.hsdp_replicas,
        )
        broken += [(i + len(_REASONS), check.broken(kind.facts, degrees)) for i, check in enumerate(CHECKS)]
        reason = np.zeros(len(rows), np.int16)
        for code, where in broken:
            reason[(reason == 0) & where] = code
        return sizes, reason

    def _expert_tp(self, kind: _Kind, rows: NDArray[Any], dp: Any, tp: Any, cp: Any, ep: Any) -> NDArray[Any]:
        """Expert tensor parallelism as `recipe.resolve` chooses it."""
        assert kind.run is not None  # noqa: S101
        if "etp_size" in self.axes:
            return self.axes.size("etp_size", rows, 1)
        default = kind.run.profile.default_expert_tp
        out: NDArray[Any] = np.full(len(rows), default, np.int64) if default is not None else np.where(ep > dp * cp, 1, tp)
        return out

    def _rows_of_group(self, kind: _Kind, flags: int, rows: NDArray[Any], sizes: Sized) -> None:
        try:
            run, _ = self.run(kind.settings, flags, 1)
        except InputError as error:
            self.columns["reason"][rows] = self.reason(str(error))
            return
        distinct, place = unique_sizes(sizes)
        order = np.argsort(place, kind="stable")
        ends = np.searchsorted(place[order], np.arange(0, distinct.rows + _PIECE, _PIECE))
        for i, start in enumerate(range(0, distinct.rows, _PIECE)):
            inside = order[ends[i] : ends[i + 1]]
            few = distinct.take(slice(start, start + _PIECE))
            self._piece(kind, flags, run, few, rows[inside], place[inside] - start, sizes.accum[inside])

    def _piece(
        self, kind: _Kind, flags: int, run: Run, sizes: Sized, rows: NDArray[Any], place: NDArray[Any], accum: NDArray[Any]
    ) -> None:
        """Answer for rows, each of one set of sizes (`place`)."""
        out = self.columns
        assert kind.knobs is not None  # noqa: S101
        try:
            found = timed(self.arch, run, sizes, place, accum, self.device, kind.knobs)
        except InputError as error:
            out["reason"][rows] = self.reason(str(error))
            return
        for name in self.numbers:
            out[name][rows] = found[name]
        if "tokens_per_second" in out:
            tokens = found["effective_throughput_per_s"] * sizes.seq_len[place]
            out["tokens_per_second"][rows] = tokens
            out["tokens_per_second_per_device"][rows] = tokens / self.world
        basis_of = sizes.array_run(run, 1)
        caps = np.minimum(accum, kind.limit)
        for part in parts(caps):
            here, back = np.unique(place[part], return_inverse=True)
            standing, _ = self.run(kind.settings, flags, int(caps[part[0]]))
            group = group_of(self.arch, standing, self.device)
            basis = Basis(sizes_of(basis_of if len(here) == sizes.rows else sizes.take(here).array_run(run, 1)))
            total = group.evaluate(basis, len(here), terms=False).total[back]
            spread = regime_of(self.model, standing, self.device)
            fits, fails = fits_and_fails(total, spread, self.available, HEADROOM)
            out["total_memory_bytes"][rows[part]] = total
            out["verdict"][rows[part]] = np.where(fits, 0, np.where(fails, 2, 1))


def _refused(run: Run, accum: NDArray[Any]) -> Any:
    """Where a schedule has no order for so many micro-batches (`cost.schedule_inputs`)."""
    pp = run.par.pp
    if pp > 1 and run.schedule == "interleaved-1f1b":
        return accum % pp != 0
    if pp > 1 and run.schedule == "dualpipe":
        return (accum % 2 != 0) | (accum < 2 * pp)
    return False
