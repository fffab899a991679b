"""Fit what software adds to the kernels of a training step, and write ``catalog/data/calibration/training.json``.

    python scripts/fit_training.py ROWS           # fit, write, print errors in and out of sample
    python scripts/fit_training.py ROWS --select  # also print what each fitted constant is worth on sources left out (minutes)

ROWS is a file of measured training runs (the schema of ``foretell validate training``).  Only rows marked ``calib`` are fitted:
replicates and runs that only differ by a release are not.  Every constant has a prior, with where it comes from, and a range;
those in FREE are fitted (log errors, robust loss, held to their priors), the others keep theirs.  A source with many rows weighs
less per row.  Each source is left out in turn; what the left-out rows say is the interval of runs unlike any measured one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from foretell.cost import software
from foretell.cost.pass_time import Pass, Passes
from foretell.cost.software import Software
from foretell.cost.stage_time import Reduction, StageCost
from foretell.cost.step_time import step_time
from foretell.cost.training_time import Priced, price_run, tp_overlap
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import quantile
from foretell.evidence.training_rows import TrainingRow, training_row
from foretell.recipe.resolve import Run, resolve

ROOT = Path(__file__).parents[1]
OUT = ROOT / "src/foretell/catalog/data/calibration/training.json"
KERNELS = "of kernels in a step over those alone: clocks under sustained load, cold caches"
PRIORS: dict[str, tuple[float, float, float, str]] = {
    # name: prior, low, high, where the prior comes from
    "matmul.ampere": (1.0, 0.7, 1.5, KERNELS),
    "matmul.hopper": (1.0, 0.7, 1.5, KERNELS),
    "matmul.blackwell": (1.0, 0.7, 1.5, KERNELS),
    "low.ampere": (1.0, 0.6, 1.5, "as low.hopper"),
    "low.hopper": (1.0, 0.6, 1.5, "8-bit products reach the share of their peak that kernels.json gives"),
    "low.blackwell": (1.0, 0.6, 1.5, "as low.hopper"),
    "experts.ampere": (1.2, 0.6, 2.0, "as experts.hopper"),
    "experts.hopper": (1.2, 0.6, 2.0, "tokens are spread evenly at best"),
    "experts.blackwell": (1.2, 0.6, 2.0, "as experts.hopper"),
    "attention.megatron": (1.1, 0.6, 3.5, "Transformer Engine takes cuDNN's kernels, the ones that were measured"),
    "attention.megatron.hopper": (1.1, 0.6, 3.5, "as attention.megatron"),
    "attention.megatron.blackwell": (1.1, 0.6, 3.5, "as attention.megatron"),
    "attention.flash1": (1.8, 0.6, 3.5, "FlashAttention-2 is about twice as fast as its Triton ancestor (arXiv 2307.08691)"),
    "attention.flash1.ampere": (1.8, 0.6, 3.5, "as attention.flash1"),
    "attention.flash1.hopper": (1.8, 0.6, 3.5, "as attention.flash1"),
    "attention.deepspeed": (1.1, 0.6, 3.5, "FlashAttention-2"),
    "attention.eager": (1.1, 0.6, 3.5, "PyTorch's SDPA runs FlashAttention-2 or cuDNN"),
    "attention.compiled": (1.1, 0.6, 3.5, "as attention.eager"),
    "stream.megatron": (0.9, 0.3, 3.0, "Transformer Engine fuses casts, residuals and dropouts"),
    "stream.deepspeed": (1.0, 0.3, 3.0, "operators apart"),
    "stream.eager": (1.0, 0.3, 3.0, "operators apart"),
    "stream.compiled": (0.7, 0.3, 3.0, "TorchInductor fuses what lies side by side"),
    "launch.megatron": (1e-5, 2e-6, 8e-5, "5 to 10 us an operator in PyTorch's eager dispatch, more in Python-heavy modules"),
    "launch.deepspeed": (2e-5, 2e-6, 8e-5, "as launch.megatron, with hooks of the engine"),
    "launch.eager": (8e-6, 2e-6, 8e-5, "as launch.megatron"),
    "launch.compiled": (4e-6, 2e-6, 8e-5, "a generated wrapper launches without dispatch"),
    "call.megatron": (3e-5, 0.0, 1e-4, "20 to 50 us of host time a collective"),
    "call.deepspeed": (3e-5, 0.0, 1e-4, "as call.megatron"),
    "call.eager": (5e-5, 0.0, 1e-4, "as call.megatron"),
    "call.compiled": (5e-5, 0.0, 1e-4, "as call.megatron"),
    "checkpoint.deepspeed": (2e-4, 0.0, 3e-3, "copies of the random state to and from the device wait for it"),
    "checkpoint.megatron": (5e-5, 0.0, 3e-3, "as checkpoint.deepspeed"),
    "checkpoint.eager": (1e-4, 0.0, 3e-3, "as checkpoint.deepspeed"),
    "checkpoint.compiled": (0.0, 0.0, 3e-3, "the compiler recomputes in the graph"),
    "route.megatron": (3e-4, 0.0, 6e-3, "the host reads how many tokens each expert got, and the device runs dry"),
    "route.deepspeed": (5e-4, 0.0, 6e-3, "as route.megatron"),
    "route.eager": (5e-4, 0.0, 6e-3, "as route.megatron"),
    "route.compiled": (5e-4, 0.0, 6e-3, "as route.megatron"),
    "gaps": (1.03, 1.0, 1.15, "PyTorch's own engine: FSDP's streams wait for each other at every unit"),
    "tp_hidden": (0.5, 0.0, 1.0, "Transformer Engine's userbuffers hide half and more"),
    "cp_hidden": (0.8, 0.0, 1.0, "keys and values travel beside attention but for the first step"),
    "ep_hidden": (0.5, 0.0, 0.9, "dispatch and combine beside another micro-batch (Megatron-Core, 1F1B all-to-all overlap)"),
    "dp_hidden.megatron": (0.8, 0.0, 1.0, "buckets beside the backward and the next forward pass"),
    "dp_hidden.deepspeed": (0.1, 0.0, 1.0, "overlap_comm is off by default below ZeRO-3"),
    "dp_hidden.eager": (0.9, 0.0, 1.0, "FSDP prefetches the next unit"),
    "dp_hidden.compiled": (0.9, 0.0, 1.0, "as dp_hidden.eager"),
    "interference": (0.3, 0.0, 0.5, "NCCL takes multiprocessors and bandwidth: 1.1 to 1.3 (Galvatron, arXiv 2211.13878)"),
    "p2p": (0.5, 0.0, 1.0, "half of the transfers are waited for"),
    "maturity.young": (
        0.1,
        0.0,
        0.5,
        "releases of one framework on new hardware: 4 % at the median, 24 % at the 90th percentile",
    ),
    "maturity.months": (12.0, 3.0, 36.0, "a year of releases"),
    "fixed": (5e-3, 0.0, 2e-2, "logging, scheduler, first launches"),
}
FREE = (
    "matmul.ampere",
    "matmul.hopper",
    "matmul.blackwell",
    "low.hopper",
    "low.blackwell",
    "experts.hopper",
    "experts.blackwell",
    "attention.megatron.hopper",
    "attention.megatron.blackwell",
    "attention.flash1.ampere",
    "attention.flash1.hopper",
    "stream.megatron",
    "stream.deepspeed",
    "stream.eager",
    "gaps",
    "launch.deepspeed",
    "checkpoint.deepspeed",
    "route.megatron",
    "tp_hidden",
    "ep_hidden",
    "dp_hidden.megatron",
    "interference",
    "maturity.young",
    "maturity.months",
)
HELD = 0.08
"""Weight of a prior: a constant that moves by a quarter of its range costs as much as an error of so many parts of one."""
SOFT = 0.07
"""Log error from which on a row weighs less."""
FAMILY_OF = (("MLPerf", "MLPerf"), ("vTrain", "vTrain"), ("NeMo", "NeMo"), ("Megatron-Bridge", "Megatron-Bridge"))
"""Sources that are one: releases of a benchmark, runs of one paper."""
Vector = np.ndarray[Any, np.dtype[np.float64]]
Known = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A measured run, priced."""

    id: str
    source: str
    seconds: float
    row: TrainingRow
    run: Run
    priced: Priced

    @property
    def moe(self) -> bool:
        """Whether it has routed experts."""
        return self.row.workload.architecture.experts > 0

    @property
    def regime(self) -> str:
        """Kind of run whose residuals belong together."""
        return f"{software.family(self.run)} {'experts' if self.moe else 'dense'}"


def main() -> int:
    """Fit, write and report."""
    paths = [Path(a) for a in sys.argv[1:] if not a.startswith("--")]
    if not paths:
        print(__doc__)
        return 2
    rows = [row for path in paths for row in read(path)]
    known = fit(rows)
    print(f"{len(rows)} rows, {len(FREE)} constants fitted")
    for name in FREE:
        print(f"  {name:32s} {PRIORS[name][0]:10.4g} -> {known[name]:10.4g}")
    report("in sample", rows, errors(rows, known))
    if "--quick" in sys.argv:
        return 0
    unseen = left_out(rows, FREE)
    report("whole sources left out", rows, unseen)
    if "--select" in sys.argv:
        select(rows, unseen)
    OUT.write_text(written(rows, known, unseen), "utf-8")
    return 0


def read(path: Path) -> Iterable[Row]:
    """Rows to fit, priced; what cannot be read is named."""
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row.get("split", "calib") != "calib":
            continue
        try:
            made = training_row(row)
        except Skip as reason:
            print(f"  {row['id']}: {reason}")
            continue
        run = resolve(made.recipe, made.parallelism, made.profile)
        priced = price_run(made.workload.architecture, run, made.hardware, made.topology)
        title = row["source"]["title"]
        source = next((name for start, name in FAMILY_OF if start in title), title)
        yield Row(row["id"], source, float(row["measured"]["step_s"]), made, run, priced)


@dataclass(frozen=True)
class Stack:
    """Rows whose steps have one structure, as arrays."""

    index: list[int]
    rows: list[Row]
    costs: list[StageCost]
    transfer: Vector
    micro_batches: Vector
    bandwidth: Vector


def stacks(rows: Sequence[Row]) -> list[Stack]:
    """Stack rows of equal structure."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, r in enumerate(rows):
        par = r.run.par
        key = (par.pp, len(r.priced.costs[0].chunks), r.run.schedule if par.pp > 1 else "", par.zero == 3, par.reshard)
        groups[(*key, par.vpp > 1, r.run.profile.name, r.run.recipe.compile, tp_overlap(r.run))].append(i)
    return [_stack(index, [rows[i] for i in index]) for index in groups.values()]


def _stack(index: list[int], rows: list[Row]) -> Stack:
    made: dict[tuple[int, ...], Passes] = {}

    def column(values: Iterable[Any]) -> Vector:
        return np.array([float(v) for v in values])

    def passes(parts: Sequence[Passes]) -> Passes:
        key = tuple(id(p) for p in parts)
        if key not in made:
            joined: dict[str, Any] = {}
            for f in fields(Passes):
                each = [getattr(p, f.name) for p in parts]
                if isinstance(each[0], Pass):
                    joined[f.name] = Pass(*(column(getattr(p, g.name) for p in each) for g in fields(Pass)))
                else:
                    joined[f.name] = column(each)
            made[key] = Passes(**joined)
        return made[key]

    costs = []
    for s, first in enumerate(rows[0].priced.costs):
        chunks = tuple(passes([r.priced.costs[s].chunks[c] for r in rows]) for c in range(len(first.chunks)))
        reductions = [r.priced.costs[s].reduction for r in rows]
        reduction = Reduction(*(column(getattr(x, f.name) for x in reductions) for f in fields(Reduction)))
        costs.append(StageCost(chunks, reduction, column(r.priced.costs[s].layers for r in rows)))  # type: ignore[arg-type]
    return Stack(
        index,
        rows,
        costs,
        column(r.priced.transfer for r in rows),
        column(r.run.recipe.grad_accum for r in rows),
        column(r.priced.device.bandwidth for r in rows),
    )


def predict(groups: Sequence[Stack], count: int, known: Known) -> Vector:
    """Seconds of every row."""
    out = np.zeros(count)
    for g in groups:
        each = [r.priced.software(r.run, known) for r in g.rows]
        soft = Software(*(np.array([getattr(s, f.name) for s in each]) for f in fields(Software)))
        one = g.rows[0]
        device = replace(one.priced.device, bandwidth=g.bandwidth)  # type: ignore[arg-type]
        out[g.index] = step_time(
            g.costs,
            one.run,
            soft,
            device,
            one.priced.efficiency,
            transfer=g.transfer,
            micro_batches=g.micro_batches,
            tp_overlap=tp_overlap(one.run),
        ).total
    return out


def fit(rows: Sequence[Row], free: Sequence[str] = FREE, steps: int = 20) -> Known:
    """Fit the free constants; a constant that no row depends on keeps its prior."""
    known = {name: prior for name, (prior, *_) in PRIORS.items()}
    groups, truth = stacks(rows), np.log([r.seconds for r in rows])
    counts = Counter(r.source for r in rows)
    weight = np.array([counts[r.source] ** -0.25 for r in rows])
    weight /= weight.mean()
    prior, low, high = (np.array([PRIORS[name][i] for name in free], float) for i in range(3))
    span = high - low

    def residuals(x: Vector) -> Vector:
        now = known | dict(zip(free, map(float, x), strict=True))
        off = np.log(predict(groups, len(rows), now)) - truth
        return np.append(off * weight, HELD * 4.0 * (x - prior) / span)

    start = np.clip(prior, low + 1e-6 * span, high - 1e-6 * span)
    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, x_scale=span / 4, max_nfev=steps)
    return known | dict(zip(free, map(float, found.x), strict=True))


def errors(rows: Sequence[Row], known: Known) -> Vector:
    """Log of predicted over measured."""
    truth = np.log([r.seconds for r in rows])
    return np.asarray(np.log(predict(stacks(rows), len(rows), known)) - truth)


def left_out(rows: Sequence[Row], free: Sequence[str]) -> Vector:
    """Log errors of every row by a fit that saw nothing of its source."""
    out = np.zeros(len(rows))
    for source in sorted({r.source for r in rows}):
        inside = [r for r in rows if r.source != source]
        here = [i for i, r in enumerate(rows) if r.source == source]
        out[here] = errors([rows[i] for i in here], fit(inside, free, steps=12))
    return out


def select(rows: Sequence[Row], base: Vector) -> None:
    """Print what leaving each constant at its prior does to the error of left-out sources."""
    for name in FREE:
        without = left_out(rows, [other for other in FREE if other != name])
        gain = mape(without) - mape(base)
        print(f"  {name:32s} left at its prior: {gain:+.2f} points of left-out error")


def mape(off: Vector) -> float:
    """Mean absolute percentage error of log errors."""
    return 100.0 * float(np.abs(np.exp(off) - 1.0).mean())


def table(rows: Sequence[Row], off: Vector) -> dict[str, dict[str, float]]:
    """Errors by source, of dense models and of those with experts, per cent."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, r in enumerate(rows):
        for name in (r.source, "experts" if r.moe else "dense"):
            groups[name].append(i)
    out = {}
    for name, index in sorted(groups.items()):
        each = 100.0 * (np.exp(off[index]) - 1.0)
        out[name] = {
            "rows": len(index),
            "mape_pct": round(float(np.abs(each).mean()), 2),
            "p90_pct": round(float(np.quantile(np.abs(each), 0.9)), 2),
            "bias_pct": round(float(each.mean()), 2),
        }
    return out


def report(title: str, rows: Sequence[Row], off: Vector) -> None:
    """Print errors."""
    print(title)
    for name, e in table(rows, off).items():
        print(f"  {name[:48]:48s} {e['rows']:5.0f} MAPE {e['mape_pct']:6.2f} p90 {e['p90_pct']:6.2f} bias {e['bias_pct']:+6.2f}")


def regimes(rows: Sequence[Row], seen: Vector, unseen: Vector) -> dict[str, Any]:
    """Ends of 90 % intervals, ln(measured / predicted): of each kind of run, and of runs unlike those."""
    out: dict[str, Any] = {}
    for name in sorted({r.regime for r in rows}):
        index = [i for i, r in enumerate(rows) if r.regime == name]
        out[name] = _ends(-seen[index])
    for name, moe in (("elsewhere", False), ("experts elsewhere", True)):
        out[name] = _ends(-unseen[[i for i, r in enumerate(rows) if r.moe == moe]])
    out["anchored"] = {"log_error": [-0.03, 0.03], "rows": 0}
    return out


def _ends(off: Vector) -> dict[str, Any]:
    low, high = (quantile(sorted(map(float, off)), p) for p in (0.05, 0.95))
    return {"log_error": [round(low, 4), round(high, 4)], "rows": len(off)}


def written(rows: Sequence[Row], known: Mapping[str, float], unseen: Vector) -> str:
    """Text of the calibration file."""
    constants = {
        name: {
            "value": float(f"{known[name]:.4g}"),
            "basis": "fit" if name in FREE else "prior",
            "prior": prior,
            "range": [low, high],
            "source": source,
        }
        for name, (prior, low, high, source) in PRIORS.items()
    }
    rounded = {name: entry["value"] for name, entry in constants.items()}
    seen = errors(rows, rounded)  # type: ignore[arg-type]
    data = {
        "about": "What software adds to the kernels of a training step; written by scripts/fit_training.py. Ratios of seconds, "
        "seconds, or shares. basis: prior = where source says; fit = fitted to the rows from that prior. regimes: "
        "ln(measured / predicted), 5th and 95th percentile; elsewhere: of rows whose whole source the fit did not see; anchored: "
        "repeated runs of one configuration (MLPerf logs: 1.1 % at the 90th percentile), widened for what changes with the "
        "configuration.",
        "constants": constants,
        "regimes": regimes(rows, seen, unseen),
        "in_sample": table(rows, seen),
        "left_out": table(rows, unseen),
        "devices": sorted({str(r.row.hardware.id) for r in rows}),
        "fitted_on": [r.id for r in rows],
    }
    return json.dumps(data, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
