"""The answer of `fit` on one screen of 80 columns. Sizes are GiB (2^30 bytes) of one accelerator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WIDTH", "headline", "show"]

WIDTH: Final = 80
_GIB: Final = 2**30
_BAR: Final = 34
_COLOUR: Final = {"fits": "bold green", "does_not_fit": "bold red", "uncertain": "bold yellow"}
_WORD: Final = {"fits": "FITS", "does_not_fit": "DOES NOT FIT", "uncertain": "UNCERTAIN"}
_SUGGESTIONS: Final = 5
_STAGES: Final = 8
_TERMS: Final = 9
_FLAGS: Final = 36
_NOTES: Final = 4


def headline(document: Mapping[str, Any]) -> Text:
    """Return the verdict's line: whether it fits, and by how much."""
    result = document["result"]
    verdict = result["verdict"]
    line = Text(_WORD[verdict], style=_COLOUR[verdict])
    need, have, keep = (result[key] for key in ("total_bytes", "available_bytes", "headroom_bytes"))
    low, high = result["interval_bytes"]
    spare = have - keep - need
    text = f"  needs {gib(need)} of {gib(have)} GiB"
    if verdict == "fits":
        text += f", {gib(spare)} GiB to spare beyond the headroom"
    elif verdict == "does_not_fit":
        text += f", {gib(need - have)} GiB too much"
    elif spare < 0 <= have - need:
        text += f", {gib(-spare)} GiB into the headroom"
    else:
        text += f", but could be {gib(low)} to {gib(high)}"
    return line.append(text, style="bold")


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    console.print(headline(document))
    console.print(Text(_run(result, inputs), style="dim"), no_wrap=True, overflow="ellipsis")
    _levels(result, console)
    _breakdown(result, console)
    _phases(result, console)
    if len(result["per_stage"]) > 1:
        _stages(result, console)
    _inverse(result, console)
    _suggestions(result, console)
    console.print()
    if result["assumed"]:
        _paragraph(console, "assumed", "; ".join(result["assumed"]))
    for note in document["notes"][:_NOTES]:
        _paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        _paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def _run(result: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Name the run in one line: model, accelerators, degrees above one, framework, sizes."""
    degrees = [f"{name} {inputs[name]}" for name in ("dp", "tp", "pp", "cp", "ep") if inputs[name] > 1]
    inside = f" ({', '.join(degrees)})" if degrees else ""
    sizes = f"micro-batch {inputs['micro_batch']}"
    if inputs["seq_len"] is not None:
        sizes += f", sequence {inputs['seq_len']}"
    return f"{result['model']} on {inputs['gpus']} x {inputs['gpu']}{inside}; {inputs['framework']}; {sizes}"


def gib(size: float) -> str:
    """Write bytes as GiB.

    >>> gib(3 * 2**29), gib(5e12)
    ('1.50', '4657')
    """
    value = size / _GIB
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def bar(share: float, width: int = _BAR, *, plain: bool = False) -> str:
    """Draw a share of the width, in eighths of a character, or in plain ones.

    >>> bar(0.5, 4), bar(0.5, 4, plain=True)
    ('██', '##')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if plain:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]


def _plain(console: Console) -> bool:
    """Whether the terminal lacks block characters."""
    return not console.encoding.startswith("utf")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _levels(result: Mapping[str, Any], console: Console) -> None:
    low, high = result["interval_bytes"]
    _heading(console, "GiB of one GPU")
    rows = [
        ("allocated", result["allocated_bytes"], "tensors of the framework"),
        ("reserved", result["reserved_bytes"], "with the allocator's slack"),
        ("process", result["total_bytes"], f"with context and libraries; {gib(low)} to {gib(high)}"),
        ("available", result["available_bytes"], f"headroom {gib(result['headroom_bytes'])}"),
    ]
    for name, size, text in rows:
        console.print(Text(f"  {name:<10}{gib(size):>8}  {text}"))
    odds = _percent(result["p_oom"])
    _paragraph(console, "interval", f"{result['interval_basis']}; chance of running out: {odds}")
    if result["host_memory_bytes"]:
        console.print(Text(f"  host memory of a node: {gib(result['host_memory_bytes'])} GiB"))


def _breakdown(result: Mapping[str, Any], console: Console) -> None:
    terms = sorted(result["breakdown"].items(), key=lambda term: -term[1])
    whole = sum(size for _, size in terms) or 1.0
    most = max((size for _, size in terms), default=1.0) or 1.0
    where = ", ".join(filter(None, (result["peak_phase"], result["peak_operator"])))
    _heading(console, f"at the peak: {where}")
    shown = [term for term in terms if term[1] > 0.0005 * whole][:_TERMS]
    for name, size in shown:
        console.print(Text(f"  {_human(name):<24}{gib(size):>8}  ").append(bar(size / most, plain=_plain(console)), style="cyan"))
    rest = whole - sum(size for _, size in shown)
    if rest > 0.005 * whole:
        console.print(Text(f"  {'other':<24}{gib(rest):>8}"))


def _phases(result: Mapping[str, Any], console: Console) -> None:
    _heading(console, "phases (allocated)")
    most = max((entry["allocated_bytes"] for entry in result["timeline"]), default=1.0) or 1.0
    joined: dict[tuple[float, str], list[str]] = {}
    for entry in result["timeline"]:
        place = "" if entry["operator"] in ("step", entry["phase"]) else entry["operator"]
        joined.setdefault((entry["allocated_bytes"], place), []).append(entry["phase"])
    for (size, place), phases in joined.items():
        style = "magenta" if result["peak_phase"] in phases else "blue"
        line = Text(f"  {_human(', '.join(phases)):<41}{gib(size):>8}  ")
        line.append(f"{bar(size / most, 12, plain=_plain(console)):<13}", style=style).append(place, style="dim")
        console.print(line, no_wrap=True, overflow="ellipsis")


def _stages(result: Mapping[str, Any], console: Console) -> None:
    _heading(console, "pipeline stages      layers   process GiB   peak")
    rows = result["per_stage"]
    shown = rows if len(rows) <= _STAGES else [*rows[: _STAGES - 2], None, rows[-1]]
    for row in shown:
        if row is None:
            console.print(f"  ... {len(rows) - _STAGES + 1} more under --json")
            continue
        where = f"{row['peak_phase']}, {row['peak_operator']}"
        line = f"  {row['stage']:<20}{row['layers']:>6}{gib(row['total_bytes']):>14}   {where}"
        console.print(Text(line), no_wrap=True, overflow="ellipsis")


def _inverse(result: Mapping[str, Any], console: Console) -> None:
    answer = result.get("inverse")
    if answer is None:
        return
    console.print()
    console.print(Text(inverse_line(answer), style="bold"))


def inverse_line(answer: Mapping[str, Any]) -> str:
    """Write the answer to an inverse question."""
    value, after = answer["value"], answer["next_value"]
    if value is None:
        return f"{answer['question']}: none fits"
    beyond = "" if after is None else f" ({after}: {_WORD.get(answer['next_verdict'], 'not possible')})"
    return f"{answer['question']}: {value}{beyond}"


def _suggestions(result: Mapping[str, Any], console: Console) -> None:
    if not result["suggestions"]:
        return
    _heading(console, "it could also" if result["fits"] else "what would help (each was tried)")
    for entry in result["suggestions"][:_SUGGESTIONS]:
        flags = Text(f"  {entry['flags']}", style="green" if entry["fits"] else "")
        if len(flags) > _FLAGS:
            _wrapped(console, flags)
            flags = Text()
        word = _WORD[entry["verdict"]].lower()
        word = "not enough alone" if entry["verdict"] == "does_not_fit" else f"{word}; {entry['price']}"
        flags.append(f"{'':{_FLAGS - len(flags)}}{-entry['saved_bytes'] / _GIB:>+8.2f}  {word}", style="default")
        console.print(flags, no_wrap=True, overflow="ellipsis")


def _paragraph(console: Console, label: str, text: str) -> None:
    """Print a label and wrapped text, indented."""
    _wrapped(console, Text(f"  {label}: ").append(text, style="dim"))


def _wrapped(console: Console, text: Text) -> None:
    """Print text on as many lines as it takes, all but the first indented."""
    for number, part in enumerate(text.wrap(console, WIDTH - 4)):
        part.rstrip()
        console.print(part if number == 0 else Text("    ").append(part))


def _human(name: str) -> str:
    return re.sub(r"[_]+", " ", name)


def _percent(share: float) -> str:
    """Write a probability without more digits than it has."""
    if share < 0.005:
        return "under 1 %"
    if share > 0.995:
        return "over 99 %"
    return f"{100 * share:.0f} %"
