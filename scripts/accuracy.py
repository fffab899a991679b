"""Replay the shipped rows and write what was found into README.md and docs/accuracy.md.

    python scripts/accuracy.py           # write
    python scripts/accuracy.py --check   # exit 1 when the files do not say what the replay says

The tables stand between ``<!-- accuracy -->`` and ``<!-- /accuracy -->``; nobody types them.  Errors on sources that a fit
did not see are read from the calibration files, where the fits wrote them.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretell.cost.collectives import calibration as of_collectives
from foretell.cost.kernel_shares import calibration as of_kernels
from foretell.cost.software import calibration as of_training
from foretell.evidence.replay import replay, shipped

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!-- accuracy -->\n).*?(<!-- /accuracy -->)", re.DOTALL)
KINDS = ("memory", "training", "serving", "kernels", "collectives", "operations")
LOADS = {
    "single": "one request at a time",
    "static": "one batch, started together",
    "closed": "a constant number in flight",
    "open": "arrivals at a rate (simulated)",
    "offline": "everything queued at the start",
}
METRICS = {
    "ttft_s": "time to first token",
    "itl_s": "time between tokens",
    "output_tokens_per_s": "output tokens a second",
    "ttft_p99_s": "time to first token, p99",
    "itl_p99_s": "time between tokens, p99",
}
MANY = 5
"""Rows from which on a line is written."""
ANSWERS = {
    "constant_mfu_fitted": "a constant share of the peak, fitted to the same rows",
    "constant_mfu": "a constant share of the peak, of other sources",
    "reference_formula": "the plain formula at half the peak",
}


def main() -> int:
    """Write or check both files."""
    reports = {kind: replay(kind, shipped(kind)) for kind in KINDS}
    brief = memory(reports["memory"]) + "\n" + times(reports) + "\n" + serving(reports["serving"])
    brief += "\n" + operations(reports["operations"])
    pages = {
        ROOT / "README.md": brief,
        ROOT / "docs/accuracy.md": brief + "\n" + long(reports),
        ROOT / "docs/serving.md": serving(reports["serving"]),
    }
    stale = []
    for path, text in pages.items():
        old = path.read_text("utf-8")
        if not MARK.search(old):
            print(f"{path.name}: no accuracy marks")
            return 1
        new = MARK.sub(lambda m, text=text: m.group(1) + text + m.group(2), old)
        if new != old:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    if "--check" in sys.argv and stale:
        print("out of date, run `python scripts/accuracy.py`:", ", ".join(stale))
        return 1
    return 0


def memory(report: dict[str, Any]) -> str:
    """Memory by level and confidence."""
    rows = [
        "| what was measured | confidence of the row | rows | MAPE | p90 | bias | inside the 90 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, s in report["summary"]["by_confidence"].items():
        confidence, metric = key.split(" ", 1)
        if s["n"]:
            rows.append(f"| {metric} | {confidence} | {s['n']} | {figures(s)} |")
    total = report["summary"]
    all_rows = len(report["rows"])
    skipped = sum(1 for r in report["rows"] if r["skipped"])
    rows.append("")
    rows.append(
        f"{all_rows} measured values of {len(total['by_source'])} sources, {skipped} left out with a reason; "
        f'{total["verdicts"]} boundary runs, {total.get("false_fits", 0)} false "fits".'
    )
    return "\n".join(rows) + "\n"


def times(reports: Mapping[str, dict[str, Any]]) -> str:
    """Seconds: training steps, kernels and collectives; what a fit did not see; simpler answers to the same rows."""
    training = reports["training"]["summary"]
    unseen = of_training().get("left_out", {})
    steps = training["by_kind"]
    lines = (
        ("seconds of a step, dense models", steps["dense"], unseen.get("dense", {}).get("mape_pct")),
        ("seconds of a step, models with experts", steps["experts"], unseen.get("experts", {}).get("mape_pct")),
        ("time of a kernel", reports["kernels"]["summary"], weighted(of_kernels()["left_out"]["source"])),
        (
            "time or bandwidth of a collective",
            reports["collectives"]["summary"],
            weighted(of_collectives()["left_out"]["source"]),
        ),
    )
    unseen_ones = "MAPE on sources that the fit did not see"
    rows = [
        f"| what was measured | rows | left out | MAPE | p90 | bias | inside the 90 % interval | {unseen_ones} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [f"| {name} | {s['n']} | {s['skipped']} | {figures(s)} | {number(far)} |" for name, s, far in lines]
    rows += ["", *choosing(training)]
    return "\n".join(rows) + "\n"


def operations(report: dict[str, Any]) -> str:
    """Questions with a known answer: how many are answered within their rows' tolerance, by topic and what the value is."""
    rows = [
        "| questions of | the value is | rows | left out | within the row's tolerance | largest error |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["framework"], row["basis"]), []).append(row)
    for (topic, basis), members in sorted(groups.items()):
        judged = [row for row in members if row["within_tolerance"] is not None]
        good = sum(row["within_tolerance"] for row in judged)
        worst = max(
            (abs(row["error_pct"]) for row in judged if row["error_pct"] is not None and "bound" not in row), default=None
        )
        cells = (topic, basis, len(members), len(members) - len(judged), f"{good} of {len(judged)}", _tiny(worst))
        rows.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _tiny(pct: float | None) -> str:
    """Write a largest error: those of closed forms are below a millionth."""
    if pct is None:
        return ""
    return "below 1e-6 %" if pct < 1e-6 else f"{pct:.2g} %"


def choosing(training: dict[str, Any]) -> list[str]:
    """Forecasts of steps beside simpler answers, and whether they choose well."""
    apart = " and ".join(f"{s['n']} ({name}, {number(s['mape_pct'])})" for name, s in training["apart"].items())
    ours = training["ranking"]["all"] | {key: training[key] for key in ("mape_pct", "p90_ape_pct", "bias_pct")}
    said = (
        f"Not among the steps: rows that repeat one of them, {apart}. The same {training['n']} steps by simpler answers, and "
        f"how well each chooses among runs of the same work ({ours['pairs']} pairs in {ours['groups']} groups; regret: step of "
        "the predicted best over the best):"
    )
    rows = [
        said,
        "",
        "| answer | MAPE | p90 | bias | pairs in the right order | mean regret |",
        "|---|---|---|---|---|---|",
    ]
    for name, s in ({"foretell": ours} | {ANSWERS[key]: found for key, found in training["baselines"].items()}).items():
        cells = (number(s["mape_pct"]), number(s["p90_ape_pct"]), number(s["bias_pct"], sign=True))
        rows.append(f"| {name} | {' | '.join(cells)} | {number(s['ranking_pct'])} | {number(s['regret_pct'])} |")
    return rows


def serving(report: dict[str, Any]) -> str:
    """Medians by load and metric, with simpler answers to the same rows and what sources left out of the fit see."""
    found = report["summary"]
    unseen = unseen_loads(found["left_out"])
    head = "| of a server, under | what was measured | rows | median error | bias | inside the 90 % interval"
    head += " | two roofs | plain formula | median on sources that the fit did not see |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for load, what in LOADS.items():
        for metric, name in METRICS.items():
            s = found["by_load"].get(f"{load} {metric}")
            if not s or s["n"] < MANY:
                continue
            simple = (found["baselines"][key]["by_load"] for key in ("naive_roofline", "reference_formula"))
            others = (other.get(f"{load} {metric}", {}) for other in simple)
            cells = " | ".join(number(other.get("median_ape_pct")) for other in others)
            errors = f"{number(s['median_ape_pct'])} | {number(s['bias_pct'], sign=True)} | {s['coverage_pct']:.0f} %"
            rows.append(f"| {what} | {name} | {s['n']} | {errors} | {cells} | {number(unseen.get((load, metric)))} |")
    kv = found["by_metric"]
    for metric, name in (("kv_tokens", "KV capacity, tokens"), ("kv_bytes", "KV capacity, bytes")):
        s = kv[metric]
        errors = f"{number(s['median_ape_pct'])} | {number(s['bias_pct'], sign=True)} | {s['coverage_pct']:.0f} %"
        rows.append(f"| start-up | {name} | {s['n']} | {errors} | | | |")
    odd, apart = len(found["without_suspicious"]["rows"]), found["apart"]["mlperf"]
    said = (
        f"{found['skipped']} values are left out with a reason. {odd} rows cannot be what they say (more than the memory or the "
        "peak allows) and are counted all the same. Whole systems of MLPerf, which state neither lengths nor layout, are no part "
    )
    rows += ["", unfinished(report["rows"])]
    rows += ["", f"{said}of it: {apart['n']} values, median error {number(apart['median_ape_pct'])}."]
    return "\n".join(rows) + "\n"


def unfinished(rows: list[dict[str, Any]]) -> str:
    """Medians without the runs that their own source calls work in progress."""
    closed = [row for row in rows if row["load"] == "closed" and row["error_pct"] is not None]
    rest = [row for row in closed if "WIP experimental" not in row.get("note", "")]
    itl, rate = (
        statistics.median(abs(row["error_pct"]) for row in rest if row["metric"] == metric)
        for metric in ("itl_s", "output_tokens_per_s")
    )
    return (
        f"Of the values with a constant number in flight, {len(closed) - len(rest)} are of runs that their source calls work in "
        f"progress; no constant was fitted on them. Without them the median is {number(itl)} (time between tokens) and "
        f"{number(rate)} (output tokens a second)."
    )


def unseen_loads(left: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[tuple[str, str], float]:
    """Median error of each load and metric over sources, each by constants that did not see it, weighted by rows."""
    names = {"ttft": "ttft_s", "itl": "itl_s", "throughput": "output_tokens_per_s"}
    sums: dict[tuple[str, str], list[float]] = {}
    for by in left.values():
        for name, found in by.items():
            load, *_, metric = name.split()
            total = sums.setdefault((load, names[metric]), [0.0, 0.0])
            total[0] += found["rows"] * found["median_ape_pct"]
            total[1] += found["rows"]
    return {key: total / rows for key, (total, rows) in sums.items()}


def long(reports: Mapping[str, dict[str, Any]]) -> str:
    """Everything by source, and what was left out."""
    report = reports["memory"]
    rows = ["## Memory by source", "", *by_source(report)]
    rows += ["", "Rows whose counter is not stated, scored against the nearer of allocated and reserved:", ""]
    rows += ["| source | rows | MAPE | bias |", "|---|---|---|---|"]
    for source, s in report["summary"]["unknown_counter"].items():
        if s["n"]:
            rows.append(f"| {source} | {s['n']} | {number(s['mape_pct'])} | {number(s['bias_pct'], sign=True)} |")
    rows += left_out(report)
    rows += ["", "## Training steps by source", "", *steps(reports["training"]["summary"])]
    rows += left_out(reports["training"])
    rows += ["", "## Servers by source", "", *by_source(reports["serving"])]
    rows += left_out(reports["serving"])
    for kind in ("kernels", "collectives"):
        rows += ["", f"## {kind.capitalize()} by source", "", *by_source(reports[kind])]
        rows += left_out(reports[kind])
    return "\n".join(rows) + "\n"


def by_source(report: dict[str, Any]) -> list[str]:
    """One line a source."""
    rows = ["| source | rows | left out | MAPE | p90 | bias | inside |", "|---|---|---|---|---|---|---|"]
    found = report["summary"]["by_source"].items()
    return rows + [f"| {source} | {s['n']} | {s['skipped']} | {figures(s)} |" for source, s in found if s["n"]]


def steps(training: dict[str, Any]) -> list[str]:
    """One line a source, with the baselines' errors and how well forecasts choose within it."""
    rows = [
        "| source | rows | MAPE | p90 | bias | inside | constant share | plain formula | pairs | in order | regret |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for source, s in training["by_source"].items():
        if not s["n"]:
            continue
        others = (training["baselines"][key]["by_source"].get(source, {}).get("mape_pct") for key in ANSWERS)
        pick = training["ranking"].get(source, {})
        cells = " | ".join(number(value) for value in others)
        order = f"{pick.get('pairs', 0)} | {number(pick.get('ranking_pct'))} | {number(pick.get('regret_pct'))}"
        rows.append(f"| {source} | {s['n']} | {figures(s)} | {cells} | {order} |")
    notes = [f"{ANSWERS[key].capitalize()}: {found['basis']}." for key, found in training["baselines"].items()]
    return [*rows, "", *notes]


def left_out(report: dict[str, Any]) -> list[str]:
    """Reasons, with how many rows have each."""
    reasons = report["summary"]["reasons"]
    return ["", "Left out:", "", *(f"- {n} x {reason}" for reason, n in reasons.items())] if reasons else []


def weighted(sources: Mapping[str, Mapping[str, float]]) -> float | None:
    """Mean error over sources, each without itself, by its rows."""
    rows = sum(found["rows"] for found in sources.values())
    return sum(found["rows"] * found["mape_pct"] for found in sources.values()) / rows if rows else None


def figures(s: Mapping[str, Any]) -> str:
    """Cells that every table has."""
    errors = f"{number(s['mape_pct'])} | {number(s['p90_ape_pct'])} | {number(s['bias_pct'], sign=True)}"
    return f"{errors} | {s['coverage_pct']:.0f} %"


def number(value: float | None, *, sign: bool = False) -> str:
    """One decimal and a per cent sign."""
    if value is None:
        return ""
    return f"{value:+.1f} %" if sign else f"{value:.1f} %"


if __name__ == "__main__":
    raise SystemExit(main())
