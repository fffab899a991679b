"""Fit the constants of collectives, and write ``catalog/data/calibration/collectives.json``.

    python scripts/fit_collectives.py           # fit, write, print errors in and out of sample
    python scripts/fit_collectives.py --select  # print what each fitted constant is worth on rows that were left out (minutes)
    python scripts/fit_collectives.py --check   # exit 1 when the file's own numbers do not follow from its rows and constants

Rows stand in ``src/foretell/evidence/data/collectives.jsonl``.  Every constant has a prior with its source and a range; those in
FREE are fitted (log errors, robust loss, held to their priors), the others stay where the literature has them.  Each source and
each accelerator is left out in turn.  A constant is fitted only if that lowers the error of what was left out.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foretell.cost import collectives
from foretell.evidence.collective_rows import CollectiveRow, read_row
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import quantile

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "src/foretell/evidence/data/collectives.jsonl"
OUT = ROOT / "src/foretell/catalog/data/calibration/collectives.json"
NCCL = "NCCL src/graph/tuning.cc (2.27)"
ISSUE = "https://github.com/NVIDIA/nccl"
Rows = list[tuple[dict[str, Any], CollectiveRow]]
Vector = npt.NDArray[np.float64]
PRIORS: dict[str, tuple[float, str]] = {
    "launch.host_s": (40e-6, "launching and timing one collective takes the host 20 to 50 us: no shorter time is seen"),
    "launch.kernel_s": (14e-6, f"base latency of a kernel, 6.6 to 14 us: {NCCL}"),
    "launch.queued_s": (8e-6, f"the same behind other kernels of a stream: base latency of a ring with LL128 or simple: {NCCL}"),
    "hop.link_s": (0.6e-6, f"NVLink hop with the LL protocol: {NCCL}"),
    "ramp.exponent": (0.6, "between 0 (no ramp) and 1 (a fixed delay)"),
    "ramp.link_s": (15e-6, "a few chunks of 512 KiB in flight (NCCL buffer of 4 MiB in eight steps)"),
    "ramp.link_s.nvlink4": (15e-6, "as ramp.link_s"),
    "ramp.network_s": (25e-6, "113 us for 2 MiB, 231 for 8, 812 for 32 between two GPUs on 50 GB/s cards: nccl-tests/issues/232"),
    "ramp.network_s.unstated": (25e-6, "as ramp.network_s"),
    "network.step_s": (2e-6, f"overhead of a step of a ring that leaves the node, 1 to 2 us: {NCCL}"),
    "efficiency.nvlink1": (0.80, "as NVLink2"),
    "efficiency.nvlink2": (
        0.85,
        "DGX-1V and DGX-2: 128 to 130 of 150 GB/s, nccl-tests doc/PERFORMANCE.md and NCCL 2.4 release post",
    ),
    "efficiency.nvlink3": (0.78, "DGX A100: 230 to 235 of 300 GB/s, nccl/issues/1048; the cap of NCCL's own model is 235"),
    "efficiency.nvlink4": (0.80, "between the generations before and after"),
    "efficiency.nvlink5": (0.76, "GB200 NVL72 without SHARP: 680 of 900 GB/s (GTC 2025)"),
    "efficiency.xgmi": (
        0.72,
        "48 of 64 GB/s a link after protocol, 310 to 330 of 448 GB/s: AMD ROCm blog, RCCL and xGMI on MI300X, 2025-03",
    ),
    "efficiency.ici": (0.85, "no published collective table: JAX scaling book uses the nominal rate, profiles reach 80 to 90 %"),
    "efficiency.neuronlink": (0.70, "no published collective table: as a mesh of point-to-point links"),
    "efficiency.scale-up-ethernet": (0.85, "Gaudi 2: about 255 of 300 GB/s with HCCL, Intel Gaudi documentation, hccl_demo"),
    "efficiency.hccs": (0.70, "no published collective table: as a mesh of point-to-point links"),
    "efficiency.pcie": (0.60, "8 x H100 PCIe without switch: 35 to 45 of 63 GB/s (vendor table of nccl-tests)"),
    "nvls.efficiency": (0.70, "DGX H100: 476 to 480 GB/s bus bandwidth with 8 ranks, nccl-tests/issues/290"),
    "nvls.rack_bus": (0.945, "GB200 NVL72 with SHARP: 850 of 900 GB/s (GTC 2025)"),
    "nvls.latency_s": (25e-6, f"one hop of NVLS: {NCCL}"),
    "nvls.min_ranks.nvlink4": (5.0, "NCCL took it from 5 ranks on H200: stas00/ml-engineering, network"),
    "nvls.min_ranks.nvlink5": (6.0, "NCCL took it from 6 ranks on B200: stas00/ml-engineering, network"),
    "tree.share": (0.78, f"0.92 x 0.85 of a ring's rate: {NCCL}; 150 against 190 GB/s on 5 nodes, nccl/issues/1368"),
    "tree.link_share": (0.92, NCCL),
    "all_to_all.share": (
        0.89,
        "all-to-all against all-gather on B200, 537 and 606 GB/s: SimuMax configs/system/b200_bf16_ceperm.json",
    ),
    "network.efficiency.ib": (
        0.95,
        "192 of 200 GB/s on DGX A100, nccl/issues/812; 46 to 48 of 50 GB/s a card, nccl-tests/issues/290",
    ),
    "network.efficiency.roce": (0.93, "190 of 200 GB/s on 5 nodes of H100, nccl/issues/1368, less tuned networks below"),
    "network.efficiency.efa": (0.93, "as RoCE; AWS p5 guides show 85 to 95 % of the cards"),
    "network.efficiency.net": (0.92, "protocol not stated: as RoCE"),
    "network.efficiency.ethernet": (0.75, "TCP sockets without RDMA, NCCL's socket transport"),
    "network.efficiency.unstated": (0.60, "nothing stated: between a tuned and an untuned network"),
    "network.hop_s.ib": (5e-6, f"network hop: {NCCL}; 63 us over 256 ranks of 32 nodes, nccl/issues/652"),
    "network.hop_s.roce": (8e-6, "InfiniBand's and the Ethernet switches'"),
    "network.hop_s.efa": (30e-6, "SRD round trip of 15 to 20 us and the proxy's"),
    "network.hop_s.net": (8e-6, "as RoCE"),
    "network.hop_s.ethernet": (30e-6, "TCP round trip in a data centre"),
    "network.hop_s.unstated": (10e-6, "between InfiniBand and TCP"),
    "deepep.link_efficiency": (0.87, "726 and 740 of 900 GB/s on 64 multiprocessors: DeepEP README"),
    "deepep.half_sms": (4.6, "643 and 675 GB/s on 24: DeepEP README"),
    "deepep.network_efficiency": (0.90, "61 GB/s on 4 nodes, of which 3/4 cross a 50 GB/s card: DeepEP README"),
}
RANGES: dict[str, tuple[float, float]] = {
    "launch.kernel_s": (5e-6, 60e-6),
    "ramp.link_s": (1e-6, 100e-6),
    "ramp.link_s.nvlink4": (1e-6, 100e-6),
    "ramp.network_s.unstated": (1e-6, 300e-6),
    "nvls.latency_s": (1e-6, 40e-6),
    "network.hop_s.efa": (5e-6, 100e-6),
    "network.hop_s.unstated": (1e-6, 60e-6),
    "network.efficiency.unstated": (0.05, 1.0),
}
SHARE = (0.4, 0.97)
"""Range of every other constant that is fitted."""
FREE = (
    "launch.kernel_s",
    "ramp.link_s",
    "ramp.link_s.nvlink4",
    "ramp.network_s.unstated",
    "nvls.latency_s",
    "network.efficiency.efa",
    "network.hop_s.efa",
    "network.efficiency.unstated",
    "network.hop_s.unstated",
)
"""Tried and kept at their priors, as rows that were left out fared no better (--select): the host's launch, the exponent, a ramp
for each further generation, and every efficiency that is published."""
LOOSE = ("launch", "ramp", "hop", "latency", "unstated")
"""Constants whose priors are known to a factor only; the others to a tenth."""
SPREAD = {True: 1.0, False: 0.1}
HELD = 0.1
"""Weight of a prior against one row (both in units of a log error)."""
ROBUST = 0.1
"""Log error from which on a row pulls less than its square."""
INTERVAL = (0.05, 0.95)
LEAST_ROWS = 20
"""Rows below which a regime's interval is no narrower than that of all rows."""
TOLERANCE = 0.02
"""By which a constant may differ when it is fitted again (another machine's arithmetic)."""

Known = dict[str, float]


def main() -> int:
    """Fit and write, or check."""
    rows = read_rows()
    if "--select" in sys.argv:
        return select(rows)
    known = fitted(rows)
    if "--check" in sys.argv:
        return check(rows, known)
    known = {name: float(f"{value:.4g}") for name, value in known.items()}
    data = written(rows, known)
    report(rows, known, data["left_out"])
    OUT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return 0


def read_rows() -> list[tuple[dict[str, Any], CollectiveRow]]:
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


def fitted(rows: Rows, free: tuple[str, ...] = FREE, start: Known | None = None) -> Known:
    """Fit the constants named in ``free``: Gauss-Newton on reweighted log errors, steps damped and kept in the ranges."""
    known = {name: value for name, (value, _) in PRIORS.items()}
    first = known if start is None else start
    prior = np.array([math.log(known[name]) for name in free])
    low, high = (np.array([math.log(max(RANGES.get(name, SHARE)[i], 1e-7)) for name in free]) for i in (0, 1))
    spread = np.array([SPREAD[any(word in name for word in LOOSE)] for name in free])

    def errors(x: Vector) -> Vector:
        trial = known | dict(zip(free, np.exp(x).tolist(), strict=True))
        return np.array([math.log(c.predict(trial) / c.measured) for _, c in rows])

    def loss(e: Vector, x: Vector) -> float:
        robust = 2 * ROBUST**2 * (np.sqrt(1 + (e / ROBUST) ** 2) - 1)
        return float(robust.sum() + (HELD * HELD * ((x - prior) / spread) ** 2).sum())

    x, damping = np.clip(np.array([math.log(first[name]) for name in free]), low, high), 1e-3
    e = errors(x)
    for _ in range(60):
        jacobian = np.stack([(errors(x + step) - e) / 1e-4 for step in 1e-4 * np.eye(len(free))], axis=1)
        weight = 1 / np.sqrt(1 + (e / ROBUST) ** 2)
        hold = (HELD / spread) ** 2
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(hold)
        slope = jacobian.T @ (weight * e) + hold * (x - prior)
        before = loss(e, x)
        while damping < 1e6:
            trial = np.clip(x - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope), low, high)
            found = errors(trial)
            if loss(found, trial) < before:
                break
            damping *= 4
        else:
            break
        x, e, damping = trial, found, damping / 4
        if before - loss(e, x) < 1e-5 * before:
            break
    return known | dict(zip(free, np.exp(x).tolist(), strict=True))


def mape(rows: Rows, known: Known) -> float:
    """Return the mean absolute error in per cent."""
    return 100 * sum(abs(c.predict(known) / c.measured - 1) for _, c in rows) / len(rows)


def left_out(rows: Rows, name: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Fit without each source, or accelerator, and return what its rows then see."""
    out = {}
    for part in sorted({name(row) for row, _ in rows}):
        inside = [pair for pair in rows if name(pair[0]) == part]
        known = fitted([pair for pair in rows if name(pair[0]) != part])
        held = sum(low <= c.measured <= high for (_, c), (low, high) in zip(inside, bounds(inside, known, rows), strict=True))
        out[part] = {
            "rows": len(inside),
            "mape_pct": round(mape(inside, known), 1),
            "coverage_pct": round(100 * held / len(inside), 1),
        }
    return out


def select(every: Rows) -> int:
    """Print the left-out error with all constants, then with each one kept at its prior: one that is not worth it goes.

    Runs whose network nobody states tell nothing of other sources' networks and are not asked.
    """
    rows = [pair for pair in every if collectives.regime(pair[1].group, pair[1].topology) != "unstated"]
    start = fitted(rows)

    def unseen(free: tuple[str, ...]) -> float:
        total = 0.0
        for name in (source, gpu):
            for part in {name(row) for row, _ in rows}:
                inside = [pair for pair in rows if name(pair[0]) == part]
                total += len(inside) * mape(inside, fitted([pair for pair in rows if name(pair[0]) != part], free, start))
        return total / (2 * len(rows))

    print(f"  all {len(FREE)}: in {mape(rows, start):.2f} %, left out {unseen(FREE):.2f} %", flush=True)
    for name in FREE:
        if "unstated" not in name:
            free = tuple(other for other in FREE if other != name)
            print(f"  without {name:32s} in {mape(rows, fitted(rows, free)):.2f} %, left out {unseen(free):.2f} %", flush=True)
    return 0


def bounds(inside: Rows, known: Known, rows: Rows) -> list[tuple[float, float]]:
    """Return intervals of rows from the regimes that the other rows give."""
    others = [pair for pair in rows if pair not in inside]
    made = regimes(others, known)
    out = []
    for _, c in inside:
        low, high = made[collectives.regime(c.group, c.topology)]["log_error"]
        point = c.predict(known)
        out.append((point * math.exp(low), point * math.exp(high)))
    return out


def regimes(rows: Rows, known: Known) -> dict[str, Any]:
    """Return the interval of each regime: quantiles of ln(measured / predicted), of times."""
    logs: dict[str, list[float]] = {"link": [], "network": [], "unstated": []}
    for _, c in rows:
        sign = 1 if c.metric == "time_us" else -1
        logs[collectives.regime(c.group, c.topology)].append(sign * math.log(c.measured / c.predict(known)))
    every = [e for found in logs.values() for e in found]
    out = {}
    for name, found in logs.items():
        low, high = (placed(found or every, p) for p in INTERVAL)
        if len(found) < LEAST_ROWS:
            wide = (placed(every, INTERVAL[0]), placed(every, INTERVAL[1]))
            low, high = min(low, wide[0]), max(high, wide[1])
        out[name] = {"p": list(INTERVAL), "log_error": [round(low, 4), round(high, 4)], "rows": len(found)}
    return out


def placed(values: list[float], p: float) -> float:
    """Return a quantile for a new row: of n + 1 places, not of n."""
    n = len(values)
    place = min(max((p * (n + 1) - 1) / (n - 1), 0.0), 1.0)
    return quantile(values, place)


def written(rows: Rows, known: Known) -> dict[str, Any]:
    """Return the calibration file."""
    return {
        "about": "Constants of collectives; written by scripts/fit_collectives.py from evidence/data/collectives.jsonl. Seconds, "
        "or shares of a nominal rate. basis: prior = the named literature; fit = fitted to the rows from that prior. regimes: "
        "ln(measured / predicted) of times. left_out: errors of rows whose source, or accelerator, the fit did not see.",
        "constants": {
            name: {"value": known[name], "basis": "fit" if name in FREE else "prior", "prior": value, "source": text}
            for name, (value, text) in PRIORS.items()
        },
        "regimes": regimes(rows, known),
        "left_out": {"source": left_out(rows, source), "gpu": left_out(rows, gpu)},
        "fitted_on": [row["id"] for row, _ in rows],
    }


def check(rows: Rows, known: Known) -> int:
    """Compare the file with what the rows say now."""
    data = json.loads(OUT.read_text("utf-8"))
    kept = {name: entry["value"] for name, entry in data["constants"].items()}
    stale = [name for name in PRIORS if name not in kept or abs(kept[name] / known[name] - 1) > TOLERANCE]
    stale += [name for name in kept if name not in PRIORS]
    if data["fitted_on"] != [row["id"] for row, _ in rows]:
        stale.append("fitted_on")
    if not stale and data["regimes"] != regimes(rows, kept):
        stale.append("regimes")
    if stale:
        print("out of date, run `python scripts/fit_collectives.py`:", ", ".join(stale))
    return int(bool(stale))


def report(rows: Rows, known: Known, out: dict[str, Any]) -> None:
    """Print the constants, and the errors by source and accelerator, in and out of sample."""
    for name in FREE:
        print(f"  {name:32s} {PRIORS[name][0]:.4g} -> {known[name]:.4g}")
    for title, named in (("source", source), ("gpu", gpu)):
        for part, found in out[title].items():
            own = [pair for pair in rows if named(pair[0]) == part]
            print(f"  {part:28s} {len(own):4d} rows  in {mape(own, known):5.1f} %  left out {found['mape_pct']:5.1f} %")
        total = sum(found["rows"] * found["mape_pct"] for found in out[title].values()) / len(rows)
        print(f"  all, by {title}: in {mape(rows, known):.1f} %  left out {total:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
