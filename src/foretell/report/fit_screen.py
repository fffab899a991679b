"""The answer of `fit` on one screen of 80 columns. Sizes are GiB (2^30 bytes) of one accelerator."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.fit import shares
from foretell.report.screen import BAR, WIDTH, bar, gib, heading, paragraph, plain, wrapped
from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WIDTH", "breakdown", "headline", "inverse_line", "levels", "show", "title"]

_COLOUR: Final = {"fits": "bold green", "does_not_fit": "bold red", "uncertain": "bold yellow"}
_WORD: Final = {"fits": "FITS", "does_not_fit": "DOES NOT FIT", "uncertain": "UNCERTAIN"}
_SAID: Final = {"fits": "fits", "does_not_fit": "does not fit", "uncertain": "uncertain", "refused": "not possible"}
_SUGGESTIONS: Final = 6
_STAGES: Final = 8
_TERMS: Final = 9
_FLAGS: Final = 36
_NOTES: Final = 5


def headline(document: Mapping[str, Any]) -> Text:
    """Return the verdict's line: whether it fits, and by how much."""
    result = document["result"]
    verdict = result["verdict"]
    line = Text(_WORD[verdict], style=_COLOUR[verdict])
    names = ("total_bytes", "available_bytes", "headroom_bytes")
    need, have, keep = (round(result[name] / GIB, 2) for name in names)  # so that differences of what is shown add up
    low, high = result["interval_bytes"]
    spare = have - keep - need
    text = f"  needs {need:.2f} of {have:.2f} GiB"
    if verdict == "fits":
        text += f", {spare:.2f} GiB to spare beyond the headroom"
    elif verdict == "does_not_fit":
        text += f", {need - have:.2f} GiB too much"
    elif spare < 0 <= have - need:
        text += f", {-spare:.2f} GiB into the headroom"
    else:
        text += f", but could be {gib(low)} to {gib(high)}"
    return line.append(text, style="bold")


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, headline(document))
    wrapped(console, Text(title(result, inputs), style="dim"))
    levels(result, console)
    breakdown(result, console)
    _phases(result, console)
    if len(result["per_stage"]) > 1:
        _stages(result, console)
    if result.get("inverse") is not None:
        console.print()
        wrapped(console, Text(inverse_line(result), style="bold"))
    _suggestions(result, console)
    console.print()
    if result["assumed"]:
        paragraph(console, "assumed", "; ".join(result["assumed"]))
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def title(result: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Name the run: model and its size, accelerators, degrees above one, framework, sizes."""
    degrees = [f"{name} {inputs[name]}" for name in ("dp", "tp", "pp", "vpp", "cp", "ep") if inputs[name] > 1]
    inside = f" ({', '.join(degrees)})" if degrees else ""
    layers = f", {result['layers']} layers" if result["layers"] else ""
    sizes = f"micro-batch {inputs['micro_batch']}"
    if inputs["grad_accum"] > 1:
        sizes += f" x {inputs['grad_accum']}"
    if inputs["seq_len"] is not None:
        sizes += f", sequence {inputs['seq_len']}"
    model = f"{result['model']} ({count(result['parameters'])} parameters{layers})"
    return f"{model} on {inputs['gpus']} x {inputs['gpu']}{inside}; {inputs['framework']}; {sizes}"


def count(number: float) -> str:
    """Write a number of parameters.

    >>> count(14_770_033_664), count(25_557_032)
    ('14.77 B', '25.6 M')
    """
    if number >= 1e9:
        return f"{number / 1e9:.2f} B"
    return f"{number / 1e6:.1f} M" if number >= 1e5 else f"{number:,}"


def place(operator: str) -> str:
    """Write where an operator stands in words: its part of the model and its name, without its inner steps.

    >>> place("layer.norm2.pow"), place("head.log_softmax")
    ('layer / norm2', 'head / log softmax')
    """
    return " / ".join(_human(part) for part in operator.split(".")[:2] if part)


def levels(result: Mapping[str, Any], console: Console) -> None:
    """Print the four levels of one accelerator's memory, what is available, and the chance of running out."""
    low, high = result["interval_bytes"]
    heading(console, "GiB of one GPU")
    rows = [
        ("allocated", result["allocated_bytes"], "tensors of the framework"),
        ("reserved", result["reserved_bytes"], "with the allocator's slack"),
        ("process", result["total_bytes"], f"with context and libraries; {gib(low)} to {gib(high)}"),
        ("available", result["available_bytes"], f"headroom {gib(result['headroom_bytes'])}"),
    ]
    for name, size, text in rows:
        wrapped(console, Text(f"  {name:<10}{gib(size):>9}  {text}"))
    odds = _percent(result["p_oom"])
    paragraph(console, "interval", f"{result['interval_basis']}; chance of running out: {odds}")
    if result["host_memory_bytes"]:
        console.print(Text(f"  host memory of a node: {gib(result['host_memory_bytes'])} GiB"))


def breakdown(result: Mapping[str, Any], console: Console) -> None:
    """Print the terms; in hundredths of a GiB they sum to the process's."""
    whole = round(100 * result["total_bytes"] / GIB)
    terms = sorted(result["breakdown"].items(), key=lambda term: -term[1])
    large = [term for term in terms if term[1] > 0.0005 * result["total_bytes"]][:_TERMS]
    shown = {name: round(100 * size / GIB) for name, size in large}
    rest = whole - sum(shown.values())
    if rest < 0:  # what rounding added is taken from where it added most
        shown = shares({name: 100 * size / GIB for name, size in large}, whole)
        rest = whole - sum(shown.values())
    most = max(shown.values(), default=1) or 1
    where = ", ".join(filter(None, (result["peak_phase"], place(result["peak_operator"]))))
    heading(console, f"at the peak: {where}")
    width = _bar_width(console, BAR, 37)
    for name, size in shown.items():
        line = Text(f"  {_human(name):<24}{size / 100:>9.2f}  ")
        line.append(bar(size / most, width, plain=plain(console)), style="cyan").rstrip()
        console.print(line)
    if rest > 0:
        console.print(Text(f"  {'other':<24}{rest / 100:>9.2f}"))


def _phases(result: Mapping[str, Any], console: Console) -> None:
    heading(console, "phases (allocated)")
    most = max((entry["allocated_bytes"] for entry in result["timeline"]), default=1.0) or 1.0
    joined: dict[tuple[float, str], list[str]] = {}
    for entry in result["timeline"]:
        where = "" if entry["operator"] in ("step", entry["phase"]) else place(entry["operator"])
        joined.setdefault((entry["allocated_bytes"], where), []).append(entry["phase"])
    for (size, where), phases in joined.items():
        style = "magenta" if result["peak_phase"] in phases else "blue"
        line = Text(f"  {_human(', '.join(phases)):<41}{gib(size):>8}  ")
        drawn = bar(size / most, 8, plain=plain(console))
        line.append(drawn if not where else f"{drawn:<9}", style=style).append(where, style="dim")
        wrapped(console, line)


def _stages(result: Mapping[str, Any], console: Console) -> None:
    heading(console, "pipeline stages      layers   process GiB   peak")
    rows = result["per_stage"]
    shown = rows if len(rows) <= _STAGES else [*rows[: _STAGES - 2], None, rows[-1]]
    for row in shown:
        if row is None:
            console.print(f"  ... {len(rows) - _STAGES + 1} more under --json")
            continue
        where = f"{row['peak_phase']}, {place(row['peak_operator'])}"
        line = f"  {row['stage']:<20}{row['layers']:>6}{gib(row['total_bytes']):>14}   {where}"
        wrapped(console, Text(line))


def inverse_line(result: Mapping[str, Any]) -> str:
    """Write the answer to an inverse question."""
    answer = result["inverse"]
    question, value, after = (answer[key] for key in ("question", "value", "next_value"))
    if value is None:
        near = f"at {answer['closest_value']} it is {_SAID[answer['closest_verdict']]}"
        line = f"{question}: none; {near.replace('is fits', 'fits').replace('is does', 'does')}"
        return line + (", and more GPUs change nothing" if question == "min gpus" else "")
    if answer["limited_by"] == "model":
        return f"{question}: {value}, the longest that the model takes; memory is not the limit"
    beyond = "" if after is None else f" (at {after}: {_SAID.get(answer['next_verdict'], 'not possible')})"
    return f"{question}: {value}{beyond}"


def _suggestions(result: Mapping[str, Any], console: Console) -> None:
    if not result["suggestions"]:
        return
    heading(console, "it could also" if result["fits"] else "what would help (each was tried; GiB)")
    for entry in result["suggestions"][:_SUGGESTIONS]:
        style = "green" if entry["fits"] else ""
        flags = Text(f"  {entry['flags']}", style=style)
        if len(flags) > _FLAGS:
            wrapped(console, flags)
            flags = Text()
        word = "not enough alone" if entry["verdict"] == "does_not_fit" else f"{_SAID[entry['verdict']]}; {entry['price']}"
        start = _FLAGS + 11
        lines = textwrap.wrap(word, max(20, console.width - start)) or [""]
        flags.append(f"{'':{_FLAGS - len(flags)}}{-entry['saved_bytes'] / GIB:>+9.2f}  {lines[0]}", style="default")
        console.print(flags)
        for line in lines[1:]:
            console.print(Text(f"{'':{start}}{line}"))
    more = len(result["suggestions"]) - _SUGGESTIONS
    if more > 0:
        console.print(Text(f"  {more} more under --json", style="dim"))


def _bar_width(console: Console, wanted: int, before: int) -> int:
    """Return the width that is left for a bar."""
    return max(4, min(wanted, console.width - before))


def _human(name: str) -> str:
    return re.sub(r"[_]+", " ", name)


def _percent(share: float) -> str:
    """Write a probability without more digits than it has."""
    if share < 0.005:
        return "under 1 %"
    if share > 0.995:
        return "over 99 %"
    return f"{100 * share:.0f} %"
