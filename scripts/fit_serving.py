"""Fit the constants of serving engines: python scripts/fit_serving.py ROWS [--rounds N].

ROWS is a JSON Lines file of measured servers (evidence of the kind ``serving``).  Writes
``src/foretell/catalog/data/calibration/serving.json``.  Each constant has a prior, a range and the rows it was fitted on; sources
count at most as many rows as ``CAP``, so that no table decides alone.  Every source is left out once, and what its rows then
see is reported; the intervals come from those errors.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import json
import math
import pathlib
import time
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from foretell.core.serving_forecast import serve
from foretell.cost import serving_host
from foretell.cost.serving_host import EngineTime
from foretell.cost.serving_step import Steps
from foretell.errors import ForetellError
from foretell.evidence.replay import read_rows
from foretell.evidence.row_run import Skip
from foretell.evidence.serving_checks import suspicious
from foretell.evidence.serving_predict import family as kind_of
from foretell.evidence.serving_predict import predicted
from foretell.evidence.serving_replay import PLAYED, score
from foretell.evidence.serving_rows import ServingRow, serving_row

OUT = pathlib.Path(__file__).parents[1] / "src/foretell/catalog/data/calibration/serving.json"
SHARED = {
    # name: (prior, lowest, highest, where the prior comes from)
    "kernel_s": (
        1.5e-6,
        0.3e-6,
        5e-6,
        "gap between kernels of a CUDA graph, 1 to 2 us (NVIDIA, Getting Started with CUDA Graphs, 2019)",
    ),
    "cache_share": (0.85, 0.5, 0.97, "flash-decoding reads the cache at 80 to 90 % of the bandwidth (PyTorch blog, 2023-10-12)"),
    "expert_share": (0.8, 0.3, 1.2, "grouped products fill tiles less well than one product of their size"),
    "unpack": (1.3, 1.0, 3.0, "Marlin, arXiv 2408.11743, figure 1: near the ideal up to batch 16-32, slower than 16 bits beyond"),
}
FAMILY = {
    "step_s": (1.0e-3, 2e-5, 3e-2, "vLLM v0.6.0 blog (2024-09-05): scheduling and CPU work of a step, milliseconds"),
    "sequence_s": (1.5e-5, 1e-7, 3e-4, "sampling, detokenising and sending a token"),
    "stream_s": (4e-5, 1e-7, 1e-3, "one chunk of an event stream, written by the server's event loop"),
    "product": (1.05, 0.85, 1.6, "clocks under sustained load, cold caches, kernels of their time"),
    "eager_layer_s": (2e-4, 1e-5, 2e-3, "a dozen launches of 5 to 20 us each"),
    "prefill_layer_s": (1.5e-4, 1e-6, 2e-3, "the same where prompts run without graphs, or in pieces of them"),
    "expert_layer_s": (2.5e-5, 1e-6, 3e-4, "top-k, sorting, quantising, adding up: some eight small kernels"),
    "fused": (0.6, 0.2, 1.2, "residual addition, norm, activation and rotary embedding are joined with their neighbours, or not"),
    "reduce_s": (8e-6, 2e-6, 30e-6, "one-shot all-reduce of a few KB over NVLink, 5 to 10 us (vLLM #2192)"),
    "link_share": (0.4, 0.1, 1.0, "one-shot and two-shot kernels reach less of the links than a ring"),
    "request_s": (4e-3, 1e-4, 5e-2, "HTTP, tokeniser and queue of an idle server"),
}
OWN_PRIORS = {
    # (family, name): (prior, source)
    ("vllm-v0", "stream_s"): (
        1e-4,
        "vLLM v0.6.0 blog (2024-09-05): the API server takes a third of the time of an 8B model's steps",
    ),
}
FAMILIES = ("vllm-2023", "vllm-v0", "vllm-v1", "tensorrt-llm-cpp", "tensorrt-llm-pytorch", "sglang", "lmdeploy")
RESERVED = ("rtx5090", "rtxpro6000-blackwell", "gb10-dgx-spark", "arc-pro-b60-24gb", "m1", "m1-max", "ascend-910b2")
"""Accelerators whose rows are not fitted on: of another generation or another kind."""
UNFINISHED = ("WIP experimental",)
"""What a source says of runs that it does not stand by yet: they are not fitted on."""
CAP = 120
FAR = 30.0
"""Ratio beyond which an error counts no more."""
FEW = 5
"""Errors from which on an interval is given."""
ELSEWHERE = 1.5
"""How much wider intervals are for engines and accelerators that no row was measured on."""
SCALE, PULL = 0.12, 0.35
NAMES = [("", name) for name in SHARED] + [(fam, name) for fam in FAMILIES for name in FAMILY]
BOX = [SHARED[name] if fam == "" else FAMILY[name] for fam, name in NAMES]
PRIOR = np.log([OWN_PRIORS.get(key, box)[0] for key, box in zip(NAMES, BOX, strict=True)])
LOW, HIGH = np.log([box[1] for box in BOX]) - 1e-9, np.log([box[2] for box in BOX]) + 1e-9
WIDTH = 1.2
FITTED = ("ttft_s", "itl_s", "output_tokens_per_s", "itl_slope_s_per_context_token")
TABLED = {"kernel_s", "fused", "product", "cache_share", "expert_share", "unpack", "reduce_s", "link_share", "expert_layer_s"}


def steady(ready: ServingRow) -> bool:
    """Whether arrivals leave a server half idle and last long enough for the closed form to be their mean."""
    demand = ready.demand
    if demand is None or demand.requests is None or demand.rate is None:
        return False
    forecast = serve(ready.deployment, demand)
    busy, each = forecast.utilization, forecast.request_s
    return bool(forecast.stable and busy is not None and busy < 0.5 and each and demand.requests / demand.rate > 3.0 * each)


def fitted(ready: ServingRow) -> list[str]:
    """Metrics of a row that constants are fitted to: the queue of a closed loop, which a first burst makes, is none."""
    closed = ready.demand is not None and ready.demand.kind == "closed"
    return [name for name in FITTED if name in ready.measured and not (closed and name.startswith("ttft"))]


class Rows:
    """Rows with their deployments, priced again and again."""

    def __init__(self, path: str) -> None:
        self.rows: list[tuple[dict[str, Any], ServingRow]] = []
        self.skipped: collections.Counter[str] = collections.Counter()
        start = constants(PRIOR)["vllm-v1"]
        for row in read_rows(path):
            try:
                ready = serving_row(row, start)
            except Skip as reason:
                self.skipped[str(reason)[:80]] += 1
                continue
            except ForetellError as error:
                self.skipped[f"not-modelled: {error}"[:80]] += 1
                continue
            if self.takes(row, ready):
                self.rows.append((row, ready))
        self.sources = sorted({self.source(row) for row, _ in self.rows})
        self.priced: dict[Any, Steps] = {}
        counts = collections.Counter(self.source(row) for row, _ in self.rows)
        self.weights = {name: math.sqrt(min(1.0, CAP / n)) for name, n in counts.items()}

    @staticmethod
    def source(row: dict[str, Any]) -> str:
        return str(row["source"]["title"])

    @staticmethod
    def takes(row: dict[str, Any], ready: ServingRow) -> bool:
        if ready.band or ready.demand is None or not ready.deployment.capacity.feasible:
            return False
        if ready.demand.kind == "open" and not steady(ready):
            return False
        if any(words in str(row.get("notes")) for words in UNFINISHED):
            return False
        return row["hardware"]["gpu"] not in RESERVED and "disaggregated" not in row["serving"] and not suspicious(ready)

    def steps(self, ready: ServingRow, engine: EngineTime) -> Steps:
        old = ready.deployment.steps
        used = [name for name in TABLED if old.arch.experts or not name.startswith("expert")]
        used = [name for name in used if old.layout.tp > 1 or name not in ("reduce_s", "link_share")]
        key = (
            id(old.arch),
            old.device,
            old.layout,
            old.formats,
            old.eager,
            old.online,
            *(getattr(engine, name) for name in sorted(used)),
        )
        found = self.priced.get(key)
        if found is None:
            if len(self.priced) > 8000:
                self.priced.clear()
            found = self.priced[key] = replace(old, engine=engine)
        found.engine = engine
        return found

    def errors(self, values: dict[str, EngineTime], only: set[str] | None = None) -> dict[str, list[float]]:
        """ln(predicted / measured) of each fitted metric, by row."""
        out = {}
        for row, ready in self.rows:
            fam = ready.deployment.family
            if only is not None and fam not in only:
                continue
            found = replace(ready.deployment, steps=self.steps(ready, values[fam]))
            got = predicted(ready, found)
            ratios = [got[name] / ready.measured[name] for name in fitted(ready) if got.get(name)]
            out[row["id"]] = [math.log(min(max(ratio, 1.0 / FAR), FAR)) for ratio in ratios]  # a full queue waits for ever
        return out


def constants(x: Any) -> dict[str, EngineTime]:
    """Return the constants of each family."""
    values = dict(zip(NAMES, np.exp(x), strict=True))
    return {
        fam: EngineTime(
            **{name: float(values["", name]) for name in SHARED}, **{name: float(values[fam, name]) for name in FAMILY}
        )
        for fam in FAMILIES
    }


def fit(rows: Rows, start: Any, rounds: int, without: str = "") -> Any:
    """Return the constants of all rows but one source's."""
    used = [row["id"] for row, _ in rows.rows if rows.source(row) != without]
    weight = {row["id"]: rows.weights[rows.source(row)] for row, _ in rows.rows}

    def residuals(found: dict[str, list[float]]) -> Any:
        return np.array([weight[i] * error for i in used for error in found[i]])

    def fun(x: Any) -> Any:
        return np.concatenate([residuals(rows.errors(constants(x))), PULL * (x - PRIOR) / WIDTH])

    def jac(x: Any) -> Any:
        base = rows.errors(constants(x))
        first = residuals(base)
        out = np.zeros((len(first) + len(x), len(x)))
        for j, (fam, _) in enumerate(NAMES):
            step = 0.04 if x[j] + 0.04 < HIGH[j] else -0.04
            moved = x.copy()
            moved[j] += step
            found = rows.errors(constants(moved), None if fam == "" else {fam})
            out[: len(first), j] = (residuals(base | found) - first) / step
            out[len(first) + j, j] = PULL / WIDTH
        return out

    return least_squares(fun, start, jac=jac, bounds=(LOW, HIGH), loss="cauchy", f_scale=SCALE, max_nfev=rounds).x


def table(rows: Rows, x: Any) -> dict[str, Any]:
    """Errors by load and kind of metric."""
    found = rows.errors(constants(x))
    out: dict[str, list[float]] = collections.defaultdict(list)
    for row, ready in rows.rows:
        assert ready.demand is not None  # noqa: S101  # takes() keeps no other
        names = fitted(ready)
        for name, error in zip(names, found[row["id"]], strict=False):
            out[f"{ready.demand.kind} {kind_of(name)}"].append(error)
            out[f"{rows.source(row)[:40]} | {ready.demand.kind} {kind_of(name)}"].append(error)
    return {
        name: {"n": len(v), "median_ape": float(np.median(np.abs(np.expm1(v)))), "bias": float(np.median(np.expm1(v)))}
        for name, v in sorted(out.items())
    }


def main() -> None:
    """Fit, leave sources out, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--left-out", type=int, default=3, help="rounds of each fit that leaves a source out; 0: none")
    parser.add_argument("--resume", action="store_true", help="start from the constants of the file that is there")
    parser.add_argument(
        "--errors", help="file that keeps the errors of sources left out: they are not fitted again if it is there"
    )
    given = parser.parse_args()
    began = time.time()
    rows = Rows(given.rows)
    print(f"{len(rows.rows)} rows, {dict(rows.skipped)}")
    x = fit(rows, known() if given.resume else PRIOR, given.rounds)
    print(f"fitted in {time.time() - began:.0f} s")
    for name, value in table(rows, x).items():
        print(f"  {name}: n {value['n']}, median {100 * value['median_ape']:.1f} %, bias {100 * value['bias']:+.1f} %")
    kept = pathlib.Path(given.errors) if given.errors else None
    seen: dict[str, dict[str, list[float]]] = json.loads(kept.read_text("utf-8")) if kept and kept.is_file() else {}
    for source in rows.sources if given.left_out and not seen else ():
        other = fit(rows, x, given.left_out, source)
        seen[source] = left(rows, other, source)
        errors = {name: round(float(np.median(np.abs(np.expm1(v)))), 3) for name, v in seen[source].items()}
        print(f"  without {source[:50]}: {errors}")
    if kept:
        kept.write_text(json.dumps(seen), "utf-8")
    write(rows, x, seen, given.rows)
    print(f"wrote {OUT} after {time.time() - began:.0f} s")


def known() -> Any:
    """Constants of the file that is there."""
    data = json.loads(OUT.read_text("utf-8"))
    found = [
        (data["shared"][name] if fam == "" else data["families"][fam].get(name, {"value": FAMILY[name][0]}))
        for fam, name in NAMES
    ]
    return np.clip(np.log([entry["value"] for entry in found]), LOW, HIGH)


def left(rows: Rows, x: Any, source: str) -> dict[str, list[float]]:
    """Errors of one source's rows under constants that did not see them."""
    found = rows.errors(constants(x))
    out: dict[str, list[float]] = collections.defaultdict(list)
    for row, ready in rows.rows:
        if rows.source(row) == source and ready.demand is not None:
            names = fitted(ready)
            for name, error in zip(names, found[row["id"]], strict=False):
                out[f"{load_of(ready)} {kind_of(name)}"].append(error)
    return out


def load_of(ready: ServingRow) -> str:
    """Name of a row's load, and whether its model routes tokens."""
    assert ready.demand is not None  # noqa: S101  # takes() keeps no other
    return ready.demand.kind + (" experts" if ready.deployment.steps.arch.experts else "")


def spread(errors: list[tuple[float, float]]) -> list[float]:
    """Interval of ln(measured / predicted) that holds nine of ten, wider where there are few; errors with their weights."""
    values, weights = np.array([-e for e, _ in errors]), np.array([w for _, w in errors])
    order = np.argsort(values)
    at = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp([0.05, 0.95], at, values[order])
    few = 1.0 + 2.0 / len(values)
    return [round(float(min(low, 0.0) * few), 3), round(float(max(high, 0.0) * few), 3)]


def measured_intervals(path: str, seen: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the interval of each metric by load: errors of constants that did not see the row's source where a fit left it out,
    else of the ones shipped (percentiles, and loads at a rate, are not fitted on).  A source counts as at most ``CAP`` rows."""
    found: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    unseen = ((source, name, errors) for source, by in seen.items() for name, errors in by.items())
    fitted_on = {(source, name): errors for source, name, errors in unseen if not name.startswith("open")}
    own: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for row in read_rows(path):
        for one in score(row):
            if one.error is None or one.band or one.error <= -1 or one.metric.startswith("kv"):
                continue
            name = f"{one.regime} {one.metric.removesuffix('_s') if one.metric in PLAYED else kind_of(one.metric)}"
            if (one.source, name) not in fitted_on:
                own[one.source, name].append(math.log1p(one.error))
    for (_, name), errors in (fitted_on | own).items():
        found[name] += [(error, min(1.0, CAP / len(errors))) for error in errors]
    pooled: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for name, pairs in found.items():
        load, *_, metric = name.split()
        for wider in {f"{load} {metric}", metric} - {name}:
            pooled[wider] += pairs
    for name, pairs in pooled.items():
        found.setdefault(name, pairs)  # for loads of which too little was measured
    return {name: spread(pairs) for name, pairs in sorted(found.items()) if len(pairs) >= FEW}


def write(rows: Rows, x: Any, seen: dict[str, dict[str, list[float]]], path: str) -> None:
    """Write the calibration file."""
    values = {key: float(value) for key, value in zip(NAMES, np.exp(x), strict=True)}

    def entry(fam: str, name: str, box: tuple[float, float, float, str]) -> dict[str, Any]:
        prior, source = OWN_PRIORS.get((fam, name), (box[0], box[3]))
        return {"value": float(f"{values[fam, name]:.4g}"), "prior": prior, "range": [box[1], box[2]], "source": source}

    data: dict[str, Any] = {
        "about": "Constants of serving engines; written by scripts/fit_serving.py. Seconds, or shares. intervals: ln(measured / "
        "predicted) that holds nine of ten rows, of sources that a fit did not see where one left them out. left_out: their "
        "errors.",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "shared": {name: entry("", name, box) for name, box in SHARED.items()},
        "families": {fam: {name: entry(fam, name, box) for name, box in FAMILY.items()} for fam in FAMILIES},
        "devices": sorted({row["hardware"]["gpu"] for row, _ in rows.rows}),
        "sources": {source: sorted(row["id"] for row, _ in rows.rows if rows.source(row) == source) for source in rows.sources},
        "elsewhere": ELSEWHERE,
        "intervals": {name: [-1.0, 1.0] for name in ("ttft", "itl", "throughput", "ttft_p99", "itl_p99")},
        "left_out": {
            source: {
                name: {
                    "rows": len(errors),
                    "median_ape_pct": round(100 * float(np.median(np.abs(np.expm1(errors)))), 1),
                    "bias_pct": round(100 * float(np.median(np.expm1(errors))), 1),
                }
                for name, errors in sorted(by.items())
            }
            for source, by in seen.items()
        },
    }
    OUT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    serving_host.calibration.cache_clear()
    serving_host.engine_time.cache_clear()
    data["intervals"] = measured_intervals(path, seen)
    OUT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
