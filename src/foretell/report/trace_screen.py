"""The answer of `trace` on one screen of 80 columns. Sizes are GiB (2^30 bytes) of one accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.fit_screen import headline
from foretell.report.screen import bar, gib, heading, paragraph, plain, wrapped
from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show"]

_WIDTH: Final = 76
_HEIGHT: Final = 7
_NOTES: Final = 8
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_NAMES: Final = {
    "forward": ("forward", "fwd", "f"),
    "backward": ("backward", "bwd", "b"),
    "optimizer": ("optimizer", "opt", "o"),
    "load": ("load",),
    "other": (),
}


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result = document["result"]
    wrapped(console, headline(document))
    wrapped(console, Text(_about(document), style="dim"))
    _levels(result, console)
    if result["peak"] is not None:
        _timeline(result, console)
        _peak(result, console)
        _owners(result, console)
    if result["comparison"] is not None:
        _comparison(result["comparison"], console)
    if result["oom"] is not None:
        heading(console, "what PyTorch would print")
        wrapped(console, Text(result["oom"]["message"]))
        wrapped(console, Text(f"in {_where(result['oom'])}", style="dim"))
    console.print()
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def _about(document: Mapping[str, Any]) -> str:
    """Say what was traced, where, and how."""
    inputs, traced = document["inputs"], document["result"]["traced"]
    ranks = f", rank 0 of {inputs['gpus']}" if inputs["gpus"] > 1 else ""
    steps = f"{traced.get('steps', inputs['steps'])} steps"
    events = f"{document['result']['events']:,} events"
    return f"{inputs['what']} on {inputs['gpu']}{ranks}; {steps}, {events}; torch {traced.get('torch', '?')}"


def _levels(result: Mapping[str, Any], console: Console) -> None:
    low, high = result["interval_bytes"]
    few, many = result["allocated_interval_bytes"]
    heading(console, "levels")
    unused = f"{gib(result['fragmentation_bytes'])} unused at the peak, largest free block {gib(result['largest_free_bytes'])}"
    waits = result["active_bytes"] > result["allocated_bytes"]
    rows = (
        ("asked for", result["requested_bytes"], ""),
        ("allocated", result["allocated_bytes"], f"90 % of measured runs: {gib(few)} to {gib(many)}"),
        *((("active", result["active_bytes"], "with what was freed while another stream used it"),) if waits else ()),
        ("reserved", result["reserved_bytes"], unused),
        ("process", result["total_bytes"], f"90 % of measured runs: {gib(low)} to {gib(high)}"),
    )
    for name, size, text in rows:
        wrapped(console, Text(f"  {name:<11}{size / GIB:>9.2f}  ") + Text(text, style="dim"))
    least = result["least_bytes"]
    if least is not None and least < result["total_bytes"]:
        text = "it still runs with this, giving cached memory back"
        wrapped(console, Text(f"  {'least':<11}{least / GIB:>9.2f}  ") + Text(text, style="dim"))


def _timeline(result: Mapping[str, Any], console: Console) -> None:
    """Draw allocated memory over the run, and name its phases below."""
    timeline = result["timeline"]
    ascii_only = plain(console)
    values = _columns(timeline["allocated_bytes"], _WIDTH)
    top = max(values)
    heading(console, f"allocated over the run (top {gib(top)} GiB; events, not time)")
    for row in range(_HEIGHT - 1, -1, -1):
        line = ""
        for value in values:
            filled = value / top * _HEIGHT - row
            line += ("#" if filled > 0.5 else " ") if ascii_only else _BLOCKS[max(0, min(8, round(filled * 8)))]
        wrapped(console, Text("  " + line.rstrip(), style="cyan"))
    names = [" "] * _WIDTH
    for phase in timeline["phases"]:
        begin, end = (round(phase[key] * _WIDTH) for key in ("begins", "ends"))
        name = next((n for n in _NAMES[phase["phase"]] if end - begin > len(n)), "")
        if name:
            names[begin : begin + len(name)] = name
            if begin and names[begin - 1] == " ":
                names[begin - 1] = "|" if ascii_only else "│"
    wrapped(console, Text("  " + "".join(names).rstrip(), style="dim"))


def _columns(values: list[int], width: int) -> list[int]:
    """Return the highest value of each of ``width`` columns."""
    count = len(values)
    return [max(values[count * i // width : max(count * i // width + 1, count * (i + 1) // width)]) for i in range(width)]


def _where(place: Mapping[str, Any]) -> str:
    parts = [f"{place['phase']} of step {place['step']}", place["operator"] or "an allocation"]
    if place["module"]:
        parts.append(place["module"])
    if place["line"]:
        parts.append(place["line"])
    return ", ".join(parts)


def _peak(result: Mapping[str, Any], console: Console) -> None:
    heading(console, f"the peak: {_where(result['peak'])}")
    ascii_only = plain(console)
    whole = sum(result["breakdown"].values())
    for name, size in sorted(result["breakdown"].items(), key=lambda item: -item[1]):
        wrapped(console, Text(f"  {name:<11}{size / GIB:>9.2f}  ") + Text(bar(size / whole, plain=ascii_only), style="cyan"))


def _owners(result: Mapping[str, Any], console: Console) -> None:
    heading(console, "who holds it")
    for owner in result["owners"]:
        where = owner["place"] if not owner["line"] else f"{owner['place']}  {owner['line'].rpartition('/')[2]}"
        text = f"  {owner['bytes'] / GIB:>9.2f}  {owner['count']:>5} x {owner['category']:<11} "
        room = 80 - len(text)
        wrapped(console, Text(text) + Text(where if len(where) <= room else "..." + where[3 - room :], style="dim"))


_ONE_SIDED: Final = 8


def _comparison(found: Mapping[str, Any], console: Console) -> None:
    """Show a real run beside the trace, and what each has that the other has not."""
    heading(console, "beside the real run")
    wrapped(console, Text(f"  {'':<11}{'measured':>9}{'traced':>9}{'':>9}", style="dim"))
    for name in ("requested", "allocated", "reserved"):
        level = found[f"peak_{name}"]
        measured, ours = level["measured"], level["model"]
        off = f"{(ours / measured - 1) * 100:+8.2f} %" if measured else ""
        wrapped(console, Text(f"  {name:<11}{measured / GIB:>9.2f}{ours / GIB:>9.2f}{off}"))
    own = found["allocator"]["peak_reserved"]
    text = f"  the allocator's model on the run's own requests: {gib(own['model'])} of {gib(own['measured'])} reserved"
    wrapped(console, Text(text, style="dim"))
    for block in found["one_sided"][:_ONE_SIDED]:
        size = block["size"] * block["count"]
        where = block["module"] or block["line"] or block["op"] or "(made before the history begins)"
        wrapped(console, Text(f"  only {block['side']:<10}{size / GIB:>8.2f}  {block['count']} x  ") + Text(where, style="dim"))
    for note in found["notes"]:
        paragraph(console, "note", note)
