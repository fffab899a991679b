"""Measured beside predicted, for everything in a folder: ``comparison.json`` and a table.

It needs no GPU: a folder that was measured elsewhere will do.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from _measure.configurations import CONFIGURATIONS, CONTEXT, Configuration, as_data
from _measure.dry import DRY
from _measure.rows import gpu_id
from _measure.supervisor import Record, load, peaks, process_bytes

__all__ = ["compare_folder", "table"]

COMPARISON: Final = "comparison.json"
LEVELS: Final = ("allocated", "reserved", "process")
_ALL_LEVELS: Final = ("allocated", "active", "reserved", "requested", "process")
_STAND_IN: Final = "h200-sxm"
"""GPU that a rehearsal is compared on."""
_TRACE_SECONDS: Final = 240.0
_GIB: Final = 2**30

Data = dict[str, Any]


def compare_folder(folder: Path, *, seconds: float | None = None, say: Callable[[str], None] = lambda _text: None) -> Data:
    """Compare what was measured into a folder with foretell, write ``comparison.json`` there, and return what it holds.

    ``seconds``: after so many no further trace is begun.

    Raises:
        ValueError: the folder holds no measurement.
        ImportError: foretell, or something that it needs, is not installed here.

    """
    from _measure import predictions  # noqa: PLC0415  # imports foretell, which a machine that measures may not have

    records = load(folder)
    runner = _Runner(folder, predictions, None if seconds is None else time.monotonic() + seconds, say)
    wanted = [r for r in records if r["name"] != CONTEXT]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:
        compared = list(pool.map(runner.one, wanted))
    made = {
        "schema": "foretell-measured/1",
        "foretell": _version(),
        "machine": next((r["machine"] for r in records if "machine" in r), None),
        "context": _context(next((r for r in records if r["name"] == CONTEXT), None), predictions),
        "configurations": compared,
        "summary": _summary(compared),
    }
    (folder / COMPARISON).write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    return made


@dataclass(frozen=True, slots=True)
class _Runner:
    """Compares one record after the other, also from several threads: a trace is a process of its own."""

    folder: Path
    predictions: Any
    """The module of that name."""
    deadline: float | None
    say: Callable[[str], None]

    def one(self, record: Record) -> Data:
        """Return a record beside both predictions; what could not be compared says why."""
        found: Data = {"name": record["name"], "outcome": record["outcome"]}
        if record["outcome"] not in ("measured", "oom") or "machine" not in record:
            return found | {"left_out": record.get("reason") or "nothing was measured"}
        c, reason = _configuration(record)
        if c is None:
            return found | {"left_out": reason}
        measured: Data = dict(peaks(record)) if record["outcome"] == "measured" else {}
        process = process_bytes(record)
        measured["process"] = process[0] if process is not None and measured else None
        found |= {"compiled": c.compiled, "limit": c.limit_bytes, "measured": measured}
        found["retries"] = record.get("end", {}).get("retries")
        hardware = self.predictions.hardware_of(_STAND_IN if record["dry"] else gpu_id(record["machine"]["gpu"]))
        found["trace"], traced = self._trace(c, record, hardware)
        found["analytic"] = self._analytic(c, hardware)
        for side in ("trace", "analytic"):
            found[side] |= _errors(found[side], measured)
        if record.get("snapshot"):
            path = self.folder / record["snapshot"]
            found["allocator"] = self._guarded(lambda: self.predictions.allocator(path, traced))
        self.say(f"compared {c.name}")
        return found

    def _trace(self, c: Configuration, record: Record, hardware: Any) -> tuple[Data, Any]:
        """Return what the trace says, and the trace; None: it could not be had."""
        missing = c.missing()
        if missing is not None:
            return _out(f"{missing} here"), None
        left = _TRACE_SECONDS if self.deadline is None else min(_TRACE_SECONDS, self.deadline - time.monotonic())
        if left <= 0:
            return _out("no time left: run --compare on this folder"), None
        kept: list[Any] = []

        def traced() -> Data:
            recording = self.predictions.trace(c, record["machine"], dry=record["dry"], seconds=left)
            said, played = self.predictions.levels(recording, c, hardware)
            kept.extend((recording, played))
            steps = [s for s in record.get("steps", []) if record["outcome"] == "measured"]
            said["steps"] = [_errors(ours, theirs) | ours for ours, theirs in zip(said["steps"], steps, strict=False)]
            return said  # type: ignore[no-any-return]

        said = self._guarded(traced)
        return said, tuple(kept) or None

    def _analytic(self, c: Configuration, hardware: Any) -> Data:
        if hardware is None:
            return _out("the GPU is not in the catalog")
        if c.limit_bytes is not None:
            return _out("a limit of the allocator's own is not modelled")
        return self._guarded(lambda: self.predictions.analytic(c, hardware))

    @staticmethod
    def _guarded(ask: Callable[[], Data]) -> Data:
        """Ask for a prediction; an error of one configuration must not cost the others theirs."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001
            return _out(f"{type(error).__name__}: {error}")


def _out(reason: str) -> Data:
    return {"left_out": reason}


def _configuration(record: Record) -> tuple[Configuration | None, str]:
    """Return the configuration that was measured, if it still stands as it was."""
    table: dict[str, Configuration] = {c.name: c for c in (DRY if record["dry"] else CONFIGURATIONS)}
    c = table.get(record["name"])
    if c is None:
        return None, "there is no such configuration any more"
    then, now = ({k: v for k, v in data.items() if k not in _WORDS} for data in (record["configuration"], as_data(c)))
    return (c, "") if then == now else (None, "the configuration is another one than was measured")


_WORDS: Final = frozenset({"why", "seconds", "snapshot"})
"""Fields that change nothing of a run."""


def _errors(said: Data, measured: Data) -> Data:
    """Return predicted over measured, in percent, of each level that both have."""
    pairs = {level: (said.get(level), measured.get(level)) for level in _ALL_LEVELS}
    return {"errors_pct": {level: round(100 * (a / b - 1), 3) for level, (a, b) in pairs.items() if a and b}}


# -- the context --------------------------------------------------------------------------------------------


def _context(record: Record | None, predictions: Any) -> Data | None:
    """Return what lies outside the allocator after each stage, what libraries keep inside, and what foretell takes for it."""
    if record is None or "stages" not in record:
        return None
    hardware = predictions.hardware_of(_STAND_IN if record["dry"] else gpu_id(record["machine"]["gpu"]))
    stages = []
    for stage in record["stages"]:
        process = process_bytes({"outside": stage})
        outside = None if process is None else process[0] - stage["cached"]
        who = None if process is None else process[1]
        stages.append({"stage": stage["stage"], "outside": outside, "kept": stage["held"], "from": who})
    assumed = None if hardware is None else round(predictions.context_bytes(hardware))
    return {"stages": stages, "assumed": assumed, "attention": record.get("attention", {})}


# -- summary and table --------------------------------------------------------------------------------------


def _summary(compared: Sequence[Data]) -> Data:
    """Return number, mean absolute and mean signed error (%) of each side and level, compiled runs apart."""
    out: Data = {}
    for group, compiled in (("eager", False), ("compiled", True)):
        chosen = [c for c in compared if c.get("compiled") is compiled]
        for side in ("trace", "analytic"):
            for level in LEVELS:
                errors = [e for c in chosen if (e := c[side].get("errors_pct", {}).get(level)) is not None]
                if errors:
                    mean, bias, worst = fmean(abs(e) for e in errors), fmean(errors), max(errors, key=abs)
                    out[f"{group} {side} {level}"] = {
                        "runs": len(errors), "mean_abs_pct": round(mean, 3), "bias_pct": round(bias, 3), "worst_pct": worst,
                    }  # fmt: skip
    return out


HEADS: Final = (
    "configuration", "alloc", "reserved", "process", "trace: alloc", "resv", "proc", "formulas: alloc", "resv", "proc", "",
)  # fmt: skip


def table(made: Data) -> str:
    """Return a comparison as text."""
    lines = [HEADS, *(_line(c) for c in made["configurations"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
    out = ["measured in GiB; errors in %: predicted over measured", ""]
    for name, *cells, remark in lines:
        shown = [cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True)]
        out.append(" ".join([name.ljust(widths[0]), *shown, remark]).rstrip())
    out.append("")
    for name, s in made["summary"].items():
        means = f"mean {s['mean_abs_pct']:.2f} %, bias {s['bias_pct']:+.2f} %, worst {s['worst_pct']:+.2f} %"
        out.append(f"{name}: {s['runs']} runs, {means}")
    return "\n".join([*out, *_context_lines(made["context"])])


def _line(c: Data) -> tuple[str, ...]:
    if "left_out" in c:
        return (c["name"], *[""] * 9, f"{c['outcome']}: {c['left_out']}"[:90])
    sizes = [f"{c['measured'][level] / _GIB:.3f}" if c["measured"].get(level) else "" for level in LEVELS]
    errors = [_percent(c[side].get("errors_pct", {}).get(level)) for side in ("trace", "analytic") for level in LEVELS]
    return (c["name"], *sizes, *errors, "; ".join(_remarks(c))[:120])


def _remarks(c: Data) -> Iterable[str]:
    if c["compiled"]:
        yield "compiled"
    if c["outcome"] == "oom" or c["limit"] is not None:
        ends = {"oom": "ran out", "measured": "ran"}
        said = c["trace"].get("outcome")
        yield f"{ends[c['outcome']]}, foretold: {ends.get(said, 'nothing')}"
    if c["limit"] is not None:
        yield f"retries {c['retries']}, foretold {c['trace'].get('retries')}"
    for side, name in (("trace", "trace"), ("analytic", "formulas"), ("allocator", "allocator")):
        if "left_out" in c.get(side, {}) and (side != "analytic" or c["limit"] is None):
            yield f"{name}: {c[side]['left_out']}"
    model = c.get("allocator", {}).get("peak_reserved", {}).get("error_pct")
    if model is not None:
        yield f"allocator's model {model:+.2f} %"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.2f}"


def _context_lines(context: Data | None) -> list[str]:
    if context is None:
        return []
    assumed = "unknown" if context["assumed"] is None else f"{context['assumed'] / 2**20:.0f} MiB"
    lines = ["", f"outside the allocator (foretell takes {assumed} for the context), and what libraries keep inside:"]
    for stage in context["stages"]:
        outside = "unknown" if stage["outside"] is None else f"{stage['outside'] / 2**20:.0f} MiB"
        lines.append(f"  after {stage['stage']}: {outside}, {stage['kept'] / 2**20:.3f} MiB")
    return lines


def _version() -> str | None:
    try:
        return importlib.metadata.version("foretell")
    except importlib.metadata.PackageNotFoundError:
        return None
