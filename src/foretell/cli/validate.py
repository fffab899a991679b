"""`foretell validate`: replay measured rows through the solvers and report the errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, add
from foretell.cli._values import one_of, real
from foretell.errors import InputError
from foretell.evidence.kinds import KINDS

__all__ = ["command"]

_WORST: Final = 10
_FAR: Final = 20
"""Per cent from which on a row's assumptions are printed."""
_MOST: Final = 60
"""Rows that are printed of those that are further off."""
_NAME: Final = 30
"""Columns of a summary's name."""


def _validate(kind: str, **options: Any) -> int:  # text or flags
    """Replay measured rows of a KIND and report how far off predictions are.

    KIND is one of memory, training, serving, operations, collectives and kernels.

    Each line of FILE is one measured run. The answer is no (exit code 1) if --max-mape is given and not kept.
    """
    from foretell.cli._print import print_json, print_lines  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    kind = one_of(kind, "kind", KINDS) or kind
    if options["data"] is None:
        raise InputError("names no file of measured rows", field="data", hint="For instance --data rows.jsonl")
    limit = real(options["max_mape"], "max_mape")
    path = Path(options["data"])
    if not path.is_file():
        raise InputError("is not a file that can be read", field="data", value=str(path))
    from foretell.evidence.replay import replay  # noqa: PLC0415  # the folds: 150 ms

    report: dict[str, Any] = replay(kind, path)
    summary = report["summary"]
    if options["json"]:
        inputs = {"kind": kind, "data": str(path), "max_mape": limit}
        notes = report.get("notes", [])
        result = {key: value for key, value in report.items() if key not in ("notes", "sources")}
        print_json(envelope("validate", inputs, result, notes=notes, sources=report.get("sources", [])))
    elif options["quiet"]:
        print_lines(_lines("all", summary))
    else:
        print_lines(_screen(report))
    mape = summary.get("mape_pct")
    return 1 if not summary.get("n") or (limit is not None and (mape is None or mape > limit)) else 0


def _screen(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables that people read."""
    yield f"{'':<{_NAME}}{'rows':>6}{'MAPE %':>9}{'median %':>10}{'p90 %':>8}{'bias %':>8}{'in 90 %':>9}"
    yield from _lines("all", report["summary"])
    for part in ("by_metric", "by_load", "by_kind", "by_framework", "by_gpu", "by_source", "by_confidence"):
        for name, summary in (report.get(part) or report["summary"].get(part) or {}).items():
            yield from _lines(f"{part.removeprefix('by_')} {name}", summary)
    left_out = report["summary"].get("left_out")
    if left_out:
        yield "fitted without it (shipped rows):"
        for name, found in left_out.items():
            error = f"  MAPE of reserved {found['reserved_mape_pct']:.1f} %" if "reserved_mape_pct" in found else ""
            error = f"  MAPE {found['mape_pct']:.1f} %" if "mape_pct" in found else error
            cover = f"  in 90 %: {found['coverage_pct']:.1f} %" if "coverage_pct" in found else ""
            yield f"  {name:<14}{cover}{error}"
        covered = report["summary"].get("coverage_left_out_pct")
        if covered is not None:
            yield f"  all: in 90 %: {covered:.1f} %"
    yield "MAPE: mean of the absolute errors; bias: mean error; in 90 %: in the interval"
    yield from _choices(report["summary"])
    yield from _simpler(report["summary"])
    yield from _suspicious(report["summary"])
    yield from _tolerated(report["summary"])
    verdicts = report["summary"].get("verdict_accuracy_pct", report.get("verdict_accuracy_pct"))
    if verdicts is not None:
        false = report["summary"].get("false_fits", report.get("false_fits"))
        yield f"verdicts right: {verdicts:.0f} % of the runs known to have fitted or run out"
        yield f"false fits: {false} (said to fit, but ran out)"
    scored = [row for row in report["rows"] if row.get("error_pct") is not None]
    scored.sort(key=lambda row: -abs(row["error_pct"]))
    if scored:
        yield f"furthest off (of {len(scored)}):"
        far = max(_WORST, sum(abs(row["error_pct"]) > _FAR for row in scored))
        for row in scored[: min(far, _MOST)]:
            yield f"  {row['error_pct']:+7.1f} %  {row['metric']:<12} {row['id']}"
            if abs(row["error_pct"]) > _FAR and row.get("note"):
                yield f"             its row says: {row['note']}"
        if far > _MOST:
            yield f"  and {far - _MOST} more beyond {_FAR} %, under --json"
    reasons: dict[str, int] = {}
    for row in report["rows"]:
        if row.get("skipped"):
            reasons[row["skipped"]] = reasons.get(row["skipped"], 0) + 1
    if reasons:
        yield "skipped:"
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
            yield f"  {count:>4}  {reason}"


def _tolerated(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many answers are within what their rows allow, and those that are not."""
    if "within_tolerance" in summary:
        yield f"within their rows' tolerance: {summary['within_tolerance']} of {summary['judged']}"
        yield from (f"  not: {said}" for said in summary["outside"][:_MOST])


def _choices(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows that are reported apart, how well forecasts choose, and what simpler answers say of the same rows."""
    for name, apart in summary.get("apart", {}).items():
        yield from _lines(f"apart: {name}", apart)
    ranking, others = summary.get("ranking"), summary.get("baselines")
    if not ranking or not others:
        return
    yield f"{'choosing among runs of one work':<{_NAME}}{'groups':>8}{'pairs':>7}{'right %':>9}{'regret %':>10}{'worst %':>9}"
    for name, found in (ranking | others).items():
        yield _row(name, found, (("groups", 8), ("pairs", 7), ("ranking_pct", 9), ("regret_pct", 10), ("regret_max_pct", 9)))
    yield "right: pairs in the right order; regret: step of the predicted best over the best"
    yield f"{'MAPE % of':<{_NAME}}{'forecast':>10}{'constant':>10}{'fitted':>10}{'formula':>10}"
    answers = [summary, *others.values()]
    names = ["all", *(f"{part}/{name}" for part in ("by_kind", "by_source") for name in summary[part])]
    for name in names:
        part, _, group = name.partition("/")
        found = [answer if part == "all" else answer[part].get(group, {}) for answer in answers]
        cells = {str(i): one.get("mape_pct") for i, one in enumerate(found)}
        yield _row(group or part, cells, tuple((key, 10) for key in cells))
    short = {"constant_mfu": "constant", "constant_mfu_fitted": "fitted", "reference_formula": "formula"}
    yield from (f"{short[name]}: {other['basis']}" for name, other in others.items())


_ANSWERS: Final = {"naive_roofline": "roofline", "reference_formula": "formula"}


def _simpler(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the medians of served rows beside those of simpler answers to the same rows."""
    others = {short: summary.get("baselines", {}).get(name) for name, short in _ANSWERS.items()}
    if summary.get("ranking") or None in others.values():
        return
    yield f"{'median error %':<{_NAME}}{'rows':>6}{'forecast':>10}" + "".join(f"{short:>10}" for short in others)
    for part in ("by_metric", "by_load"):
        for name, found in summary[part].items():
            beside = {short: other[part].get(name, {}).get("median_ape_pct") for short, other in others.items() if other}
            cells = {"n": found["n"], "forecast": found.get("median_ape_pct")} | beside
            yield _row(f"{part.removeprefix('by_')} {name}", cells, (("n", 6), *((key, 10) for key in list(cells)[1:])))
    yield from (f"{short}: {other['basis']}" for short, other in others.items() if other)


def _suspicious(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows that no server can have measured, and what is left without them."""
    found = summary.get("without_suspicious")
    if not found or not found["rows"]:
        return
    yield f"suspicious, and counted above ({len(found['rows'])} rows):"
    yield from (f"  {said}" for said in found["rows"][:_WORST])
    if len(found["rows"]) > _WORST:
        yield f"  and {len(found['rows']) - _WORST} more under --json"
    yield "without them:"
    for name, without in found.items():
        if name != "rows" and without["n"] != summary["by_load"].get(name, {}).get("n"):
            yield from _lines(f"load {name}", without)


def _row(name: str, values: Mapping[str, Any], columns: tuple[tuple[str, int], ...]) -> str:
    """Write one line of a table; the columns are keys and widths."""

    def cell(key: str, width: int) -> str:
        value = values.get(key)
        return f"{'-' if value is None else format(value, 'd' if isinstance(value, int) else '.1f'):>{width}}"

    short = name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
    return f"{short:<{_NAME}}" + "".join(cell(key, width) for key, width in columns)


def _lines(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Write one summary as a line, or as two where its name is long."""

    def number(key: str, width: int) -> str:
        value = summary.get(key)
        return f"{'-' if value is None else format(value, '.1f'):>{width}}"

    count = summary.get("n", 0)
    cells = number("mape_pct", 9) + number("median_ape_pct", 10) + number("p90_ape_pct", 8)
    values = f"{count:>6}{cells}{number('bias_pct', 8)}{number('coverage_pct', 9)}"
    return [f"{name:<{_NAME}}{values}"] if len(name) < _NAME else [name, f"{'':<{_NAME}}{values}"]


command = Verb(
    "validate",
    callback=_validate,
    help=_validate.__doc__,
    params=[click.Argument(["kind"])],
    examples=(
        "foretell validate memory --data rows.jsonl",
        "foretell validate serving --data rows.jsonl",
        "foretell validate operations --data rows.jsonl",
        "foretell validate collectives --data rows.jsonl --json",
    ),
)
add(
    command,
    (
        ("--data", "FILE", "Measured rows, one JSON object a line."),
        ("--max-mape", "PCT", "Exit with 1 if the mean error is above this."),
    ),
)
add(command, OUTPUT, "Output")
