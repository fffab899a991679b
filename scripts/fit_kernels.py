"""Fit the shares that kernels reach, and write ``catalog/data/calibration/kernels.json``.

    python scripts/fit_kernels.py           # fit, write, print errors in and out of sample
    python scripts/fit_kernels.py --select  # print what each fitted share is worth on rows that were left out (minutes)
    python scripts/fit_kernels.py --check   # exit 1 when the file's own numbers do not follow from its rows and shares

Rows stand in ``src/foretell/evidence/data/kernels.jsonl``.  Every share has a prior with its source and a range; those in FREE
are fitted for each generation of devices (log errors, robust loss, held to their priors), the others stay where the literature
has them.  Each source, each accelerator and each fifth of the rows is left out in turn; a generation that has no rows left keeps
its priors.  A share is fitted only if that lowers the error of what was left out.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from foretell.cost.kernels import Efficiency
from foretell.evidence.kernel_rows import KINDS, KernelRow, predict_all, read_row
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import quantile

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "src/foretell/evidence/data/kernels.jsonl"
OUT = ROOT / "src/foretell/catalog/data/calibration/kernels.json"
MAMF = "stas00/ml-engineering, compute/accelerator/benchmarks (maximum achievable matmul FLOPS)"
GENERATIONS = ("ampere", "hopper", "blackwell")
Rows = list[tuple[dict[str, Any], KernelRow]]
Known = dict[str, dict[str, float]]
Vector = npt.NDArray[np.float64]

PRIORS: dict[str, tuple[tuple[float, float, float], float, tuple[float, float], str]] = {
    # name -> (prior of each generation), what it is known to, (least, most), source
    "matmul": ((0.81, 0.80, 0.78), 0.05, (0.4, 0.95), f"best of a search over shapes: {MAMF}"),
    "wave": ((0.5, 0.5, 0.5), 0.3, (0.0, 1.0), "between stream-K (0) and whole waves (1)"),
    "fill": ((100.0, 100.0, 100.0), 100.0, (0.0, 600.0), "a pipeline of three or four stages of 32 to 64 elements (CUTLASS)"),
    "tile": (
        (0.3, 0.3, 0.3),
        0.3,
        (0.0, 1.5),
        "128 x 64 tiles reach 0.75 to 0.9 of 256 x 128: NVIDIA Matrix Multiplication Background",
    ),
    "power": (
        (0.1, 0.2, 0.3),
        0.3,
        (0.0, 1.0),
        "1.41 GHz boost and about 1.2 to 1.3 under load (A100), 1.98 and 1.4 to 1.7 (H100)",
    ),
    "onset": ((2e-4, 2e-4, 2e-4), 2e-4, (2e-5, 2e-3), "power is regulated within milliseconds"),
    "result": ((0.5, 0.5, 0.5), 0.3, (0.0, 1.0), "between a persistent kernel (0) and one tile after the other (1)"),
    "low": ((0.95, 0.90, 0.97), 0.05, (0.7, 1.1), f"fp8 over bf16, 0.71 / 0.80 on H100 and 0.76 / 0.78 on B200: {MAMF}"),
    "group": ((8e-6, 8e-6, 8e-6), 4e-6, (0.0, 3e-5), "one launch from Python and cuBLASLt takes the host 5 to 10 us"),
    "memory": ((0.85, 0.85, 0.85), 0.05, (0.6, 0.95), "streaming kernels reach 80 to 92 % (BabelStream, nvbandwidth)"),
    "operand_memory": ((0.8, 0.8, 0.8), 0.1, (0.4, 0.95), "as streaming kernels, less what the tiles' order loses"),
    "floor": ((3e-6, 3e-6, 3e-6), 2e-6, (5e-7, 1e-5), "an empty kernel takes 2 to 5 us on the device"),
    "attention": (
        (0.65, 0.60, 0.60),
        0.1,
        (0.2, 0.9),
        "FlashAttention-2 on A100 up to 0.73; FlashAttention-3 on H100 up to 0.75",
    ),
    "attention_backward": (
        (0.5, 0.5, 0.5),
        0.1,
        (0.15, 0.9),
        "FlashAttention-2 on A100 0.55 to 0.63; FlashAttention-3 0.5 to 0.58",
    ),
    "attention_fill": ((0.5, 0.5, 0.5), 0.5, (0.0, 3.0), "the last blocks end at different times"),
    "attention_call": ((3e-5, 3e-5, 3e-5), 3e-5, (0.0, 1.2e-4), "a few launches of the host"),
    "wide_head": ((0.85, 0.85, 0.85), 0.1, (0.5, 1.0), "kernels are tuned for equal heads of 128"),
}
FREE = ("matmul", "wave", "power", "group", "operand_memory", "floor", "attention_backward", "attention_call")
DEVICES: dict[str, dict[str, float]] = {
    # where a search found the best shape far from what the generation's shares say; found in products of milliseconds
    "gaudi2": {"matmul": 0.97, "power": 0.0},
    "gaudi3": {"matmul": 0.74, "power": 0.0},
    "mi300x": {"matmul": 0.51, "power": 0.0},
    "mi325x": {"matmul": 0.60, "power": 0.0},
    "mi350x": {"matmul": 0.68, "power": 0.0},
    "mi355x": {"matmul": 0.68, "power": 0.0},
}
HELD = 0.1
"""Weight of a prior against one row (both in units of a log error)."""
ROBUST = 0.08
"""Log error from which on a row pulls less than its square."""
INTERVAL = (0.05, 0.95)
LEAST_ROWS = 20
"""Rows below which a kind has no interval of its own in a generation."""
FOLDS = 5
COVERED = (0.88, 0.95)
"""Share of rows that the kept intervals may hold (they were drawn to hold nine in ten of rows not seen)."""
WORSE = 0.01
"""Share by which the loss of the kept numbers may lie above that of a new fit (another machine's arithmetic)."""


def main() -> int:
    """Fit and write, or check."""
    rows = read_rows()
    if "--select" in sys.argv:
        return select(rows)
    if "--check" in sys.argv:
        return check(rows)
    known = fitted(rows)
    known = {gen: {name: float(f"{value:.4g}") for name, value in of.items()} for gen, of in known.items()}
    data = written(rows, known)
    report(rows, known, data["left_out"])
    OUT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return 0


def read_rows() -> Rows:
    """Return the rows that can be predicted, with what was read of them."""
    out = []
    for line in ROWS.read_text("utf-8").splitlines():
        row = json.loads(line)
        try:
            out.append((row, read_row(row)))
        except Skip:
            continue
    return out


def source(row: dict[str, Any]) -> str:
    """Return a row's source."""
    return str(row["source"]["title"])


def gpu(row: dict[str, Any]) -> str:
    """Return a row's accelerator."""
    return str(row["hardware"]["gpu"])


def fold(row: dict[str, Any]) -> str:
    """Return which fifth a row belongs to, at random but always the same."""
    return f"fifth {1 + zlib.crc32(row['id'].encode()) % FOLDS}"


def prior(gen: str) -> dict[str, float]:
    """Return the priors of a generation."""
    return {name: values[GENERATIONS.index(gen)] for name, (values, *_) in PRIORS.items()}


def seen(gen: str, rows: Rows) -> tuple[str, ...]:
    """Return the shares in FREE that rows of a generation say something about."""
    kinds = {k.kind for _, k in rows if k.generation == gen}
    out = []
    for name in FREE:
        needs = {"group": {"grouped_gemm"}, "attention_call": {"attention_fwd"}, "attention_backward": {"attention_bwd"}}
        if kinds & needs.get(name, {"gemm", "grouped_gemm"}):
            out.append(name)
    return tuple(out)


def residuals(gen: str, some: list[KernelRow], free: tuple[str, ...], start: dict[str, float]) -> Callable[[Vector], Vector]:
    """Return the function of the free shares (in units of their ranges) that a fit makes small."""
    measured = np.array([k.measured for k in some])
    low, high, spread = (np.array([v(name) for name in free]) for v in (_least, _most, lambda name: PRIORS[name][1]))
    at = np.array([prior(gen)[name] for name in free])

    def errors(u: Vector) -> Vector:
        x = low + u * (high - low)
        shares = Efficiency(**(start | dict(zip(free, x.tolist(), strict=True))))
        return np.append(np.log(np.array(predict_all(some, shares)) / measured), HELD * (x - at) / spread)

    return errors


def _least(name: str) -> float:
    return PRIORS[name][2][0]


def _most(name: str) -> float:
    return PRIORS[name][2][1]


def fitted(rows: Rows, without: str = "") -> Known:
    """Fit the shares of each generation; ``without`` one that stays at its prior."""
    out = {}
    for gen in GENERATIONS:
        some = [k for _, k in rows if k.generation == gen]
        free = tuple(name for name in seen(gen, rows) if name != without)
        start = prior(gen)
        out[gen] = start | (solved(gen, some, free, start)[0] if some else {})
    return out


def solved(gen: str, some: list[KernelRow], free: tuple[str, ...], start: dict[str, float]) -> tuple[dict[str, float], float]:
    """Return the best shares and their loss; whole tiles and waves make the loss uneven, hence two starts."""
    errors = residuals(gen, some, free, start)
    low, high = (np.array([v(name) for name in free]) for v in (_least, _most))
    best: Any = None
    for wave in (0.2, 0.8):
        first = (np.array([start[name] for name in free]) - low) / (high - low)
        if "wave" in free:
            first[free.index("wave")] = wave  # its range is 0 to 1
        found = least_squares(errors, first, bounds=(0, 1), loss="soft_l1", f_scale=ROBUST, diff_step=1e-3, max_nfev=40)
        if best is None or found.cost < best.cost:
            best = found
    return dict(zip(free, (low + best.x * (high - low)).tolist(), strict=True)), float(best.cost)


def logs(rows: Rows, known: Known) -> list[float]:
    """Return ln(measured / predicted) of rows."""
    out = [0.0] * len(rows)
    for gen in GENERATIONS:
        places = [i for i, (_, k) in enumerate(rows) if k.generation == gen]
        some = [rows[i][1] for i in places]
        for i, k, seconds in zip(places, some, predict_all(some, Efficiency(**known[gen])), strict=True):
            out[i] = math.log(k.measured / seconds)
    return out


def mape(errors: list[float]) -> float:
    """Return the mean absolute error in per cent, of logarithms of measured over predicted."""
    return 100 * sum(abs(math.exp(-e) - 1) for e in errors) / len(errors)


def intervals(rows: Rows, errors: list[float], unmeasured: list[float]) -> dict[str, Any]:
    """Return the interval of each kind in a generation, and of devices without rows: quantiles of ln(measured / predicted).

    A kind with few rows takes those of its generation; the range of devices without rows is the same to both sides.
    """
    sized = [abs(error) for error in unmeasured]  # two devices say little of the side on which the next one will lie
    found: dict[str, list[float]] = {"unmeasured": [*sized, *(-size for size in sized)]}
    for gen in GENERATIONS:
        every = [error for (_, k), error in zip(rows, errors, strict=True) if k.generation == gen]
        for kind in KINDS:
            own = [error for (_, k), error in zip(rows, errors, strict=True) if k.generation == gen and k.kind == kind]
            if own:
                found[f"{kind}.{gen}"] = own if len(own) >= LEAST_ROWS else every
    return {
        name: {"p": list(INTERVAL), "log_error": [round(placed(values, p), 4) for p in INTERVAL], "rows": len(values)}
        for name, values in found.items()
    }


def placed(values: list[float], p: float) -> float:
    """Return a quantile for a new row: of n + 1 places, not of n."""
    n = len(values)
    place = min(max((p * (n + 1) - 1) / (n - 1), 0.0), 1.0)
    return quantile(values, place)


def unseen(rows: Rows, name: Callable[[dict[str, Any]], str], without: str = "") -> list[float]:
    """Return ln(measured / predicted) of rows by fits that did not see their source, accelerator or fifth."""
    out = [0.0] * len(rows)
    for part in sorted({name(row) for row, _ in rows}):
        known = fitted([pair for pair in rows if name(pair[0]) != part], without)
        places = [i for i, (row, _) in enumerate(rows) if name(row) == part]
        for i, error in zip(places, logs([rows[i] for i in places], known), strict=True):
            out[i] = error
    return out


def left_out(rows: Rows, name: Callable[[dict[str, Any]], str], errors: list[float], ranges: dict[str, Any]) -> dict[str, Any]:
    """Return what rows see of fits without their part; a part that is a whole device is held to the range of unmeasured ones."""
    out = {}
    for part in sorted({name(row) for row, _ in rows}):
        inside = [i for i, (row, _) in enumerate(rows) if name(row) == part]
        held = 0
        for i in inside:
            kind, gen = rows[i][1].kind, rows[i][1].generation
            low, high = ranges[f"{kind}.{gen}" if name is fold else "unmeasured"]["log_error"]
            held += low <= errors[i] <= high
        out[part] = {
            "rows": len(inside),
            "mape_pct": round(mape([errors[i] for i in inside]), 1),
            "coverage_pct": round(100 * held / len(inside), 1),
        }
    return out


def select(rows: Rows) -> int:
    """Print the left-out error with all shares fitted, then with each one kept at its prior: one that is not worth it goes."""
    for name in ("", *FREE):
        by_fold, by_source = (mape(unseen(rows, named, name)) for named in (fold, source))
        print(f"  without {name or 'nothing':20s} fifths {by_fold:.2f} %  sources {by_source:.2f} %", flush=True)
    return 0


def written(rows: Rows, known: Known) -> dict[str, Any]:
    """Return the calibration file."""
    errors = {named: unseen(rows, named) for named in (source, gpu, fold)}
    ranges = intervals(rows, errors[fold], errors[gpu])
    return {
        "about": "Shares of a datasheet that kernels reach, and times in seconds; written by scripts/fit_kernels.py from "
        "evidence/data/kernels.jsonl. What each is: foretell.cost.kernels.Efficiency. basis: prior = the named literature; fit = "
        "fitted to the rows from that prior. devices: replace the shares of the generation. intervals: ln(measured / "
        "predicted) of rows by fits without a fifth of the rows; unmeasured: without the accelerator. left_out: errors of rows "
        "whose source, accelerator or fifth of all rows the fit did not see.",
        "generations": {gen: known[gen] for gen in GENERATIONS},
        "constants": {
            name: {
                "prior": dict(zip(GENERATIONS, values, strict=True)),
                "basis": {gen: "fit" if name in seen(gen, rows) else "prior" for gen in GENERATIONS},
                "range": list(limits),
                "source": text,
            }
            for name, (values, _, limits, text) in PRIORS.items()
        },
        "devices": {
            name: {"values": values, "source": f"best of a search over shapes: {MAMF}"} for name, values in DEVICES.items()
        },
        "intervals": ranges,
        "left_out": {named.__name__: left_out(rows, named, errors[named], ranges) for named in (source, gpu, fold)},
        "measured": sorted({gpu(row) for row, _ in rows}),
        "fitted_on": [row["id"] for row, _ in rows],
    }


def check(rows: Rows) -> int:
    """Compare the file with what the rows say now."""
    data = json.loads(OUT.read_text("utf-8"))
    kept: Known = data["generations"]
    stale = [
        name for name in ("constants", "fitted_on") if list(data[name]) != (list(PRIORS) if name == "constants" else ids(rows))
    ]
    for gen in () if stale else GENERATIONS:
        some, free = [k for _, k in rows if k.generation == gen], seen(gen, rows)
        errors = residuals(gen, some, free, prior(gen))
        now = (np.array([kept[gen][name] for name in free]) - [_least(n) for n in free]) / [_most(n) - _least(n) for n in free]
        loss = float((ROBUST**2 * (np.sqrt(1 + (errors(now) / ROBUST) ** 2) - 1)).sum())
        if loss > (1 + WORSE) * solved(gen, some, free, prior(gen))[1] or set(kept[gen]) != set(PRIORS):
            stale.append(gen)
        stale += [f"{gen}.{n}" for n in PRIORS if n not in free and kept[gen][n] != prior(gen)[n]]
    if not stale and not COVERED[0] <= covered(rows, kept, data["intervals"]) <= COVERED[1]:
        stale.append("intervals")
    if stale:
        print("out of date, run `python scripts/fit_kernels.py`:", ", ".join(stale))
    return int(bool(stale))


def covered(rows: Rows, known: Known, ranges: dict[str, Any]) -> float:
    """Return the share of rows that lie in their interval."""
    held = 0
    for (_, k), error in zip(rows, logs(rows, known), strict=True):
        low, high = ranges[f"{k.kind}.{k.generation}"]["log_error"]
        held += low <= error <= high
    return held / len(rows)


def ids(rows: Rows) -> list[str]:
    """Return the ids of rows."""
    return [row["id"] for row, _ in rows]


def report(rows: Rows, known: Known, out: dict[str, Any]) -> None:
    """Print the shares, and the errors by kind, source and accelerator, in and out of sample."""
    for name in PRIORS:
        print(f"  {name:20s}", "  ".join(f"{prior(gen)[name]:.4g} -> {known[gen][name]:.4g}" for gen in GENERATIONS))
    for part in sorted({(gpu(row), k.kind) for row, k in rows}):
        own = [pair for pair in rows if (gpu(pair[0]), pair[1].kind) == part]
        errors = logs(own, known)
        bias = 100 * sum(math.exp(-e) - 1 for e in errors) / len(errors)
        print(f"  {' '.join(part):32s} {len(own):4d} rows  {mape(errors):5.1f} %  bias {bias:+5.1f} %")
    for title, named in (("source", source), ("gpu", gpu), ("fold", fold)):
        for part, found in out[title].items():
            errors = logs([pair for pair in rows if named(pair[0]) == part], known)
            there = f"left out {found['mape_pct']:5.1f} %, {found['coverage_pct']:.1f} % inside"
            print(f"  {part:16s} {found['rows']:4d} rows  in {mape(errors):5.1f} %  {there}")
        total = sum(found["rows"] * found["mape_pct"] for found in out[title].values()) / len(rows)
        print(f"  all, by {title}: in {mape(logs(rows, known)):.1f} %  left out {total:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
