"""The answer of `check` on one screen: verdict, what was understood, what is not modelled, edits.  Sizes are GiB."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report import fit_screen
from foretell.report.screen import digits, heading, paragraph, wrapped
from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["assertions", "headline", "show"]

_STYLE: Final = {"fits": "bold green", "does_not_fit": "bold red", "uncertain": "bold yellow", "unknown": "bold yellow"}
_DOUBTS: Final = 12
_EDITS: Final = 5
_NOTES: Final = 6
_OWN: Final = ("gpu", "gpus", "model", "seq_len")
"""Options of check itself."""
_WORD: Final = {"died": "RAN OUT", "healthy": "RAN", "nothing": "SAYS NOTHING OF MEMORY"}
_HOLDS: Final = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("UNKNOWN", "bold red")}


def headline(document: Mapping[str, Any]) -> Text:
    """Return the verdict's line."""
    result = document["result"]
    verdict = result["verdict"]
    if result["verb"] is None:
        return Text(_WORD[result["log"]["verdict"]], style=_STYLE[verdict]).append(f"  {result['log']['headline']}", style="bold")
    if verdict == "unknown":
        needs = ", ".join(_option(name) for name in result["needs"])
        return Text("NO ANSWER YET", style=_STYLE[verdict]).append(f"  give {needs}" if needs else "", style="bold")
    if result["verb"] == "serve":
        from foretell.report import serve_screen  # noqa: PLC0415  # 20 ms

        line = serve_screen.headline(document)
    elif result["memory_verdict"] is None:
        return Text(verdict.upper(), style=_STYLE[verdict])
    else:
        line = fit_screen.headline({"result": result | {"verdict": result["memory_verdict"]}})
    if verdict == "does_not_fit" and result["log"] is not None and result["log"]["verdict"] == "died":
        line = Text("RAN OUT, as its log says; the forecast alone: ", style=_STYLE[verdict]).append(line)
    if verdict == "uncertain" and result["reasons"]:
        what = "the memory" if result["memory_reasons"] else "the speed"
        line = Text(f"UNCERTAIN: not all that changes {what} is modelled; without that ", style=_STYLE[verdict]).append(line)
    return line


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result = document["result"]
    wrapped(console, headline(document))
    if result["verb"] is None:
        _log(result["log"]["explanation"][1:], console)
        _closing(document, console)
        return
    wrapped(console, Text(_title(document), style="dim"))
    _understood(result["understood"], console)
    _doubts(result, console)
    if result["needs"]:
        heading(console, "to be given before there is an answer")
        for name, why in result["needs"].items():
            wrapped(console, Text(f"  {_option(name)}  ").append(why, style="dim"))
    if result["memory_verdict"] is not None:
        fit_screen.levels(result, console)
        fit_screen.breakdown(result, console)
        _speed(result["speed"], console)
    elif result["verb"] == "serve" and result["verdict"] != "unknown":
        from foretell.report import serve_screen  # noqa: PLC0415  # 20 ms

        serve_screen.body(document, console)
    if result["log"] is not None:
        heading(console, "what the log says")
        _log(result["log"]["explanation"], console)
    _suggestions(result["suggestions"], console)
    if result["asserts"]:
        heading(console, "asserted")
        for line in assertions(result):
            wrapped(console, line)
    _closing(document, console)


def _closing(document: Mapping[str, Any], console: Console) -> None:
    result = document["result"]
    console.print()
    if result["assumed"]:
        paragraph(console, "assumed", "; ".join(result["assumed"]))
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def assertions(result: Mapping[str, Any], *, failed: bool = False) -> list[Text]:
    """Return a line for each assertion, or for those alone that do not hold."""
    rows = [row for row in result["asserts"] if not (failed and row["holds"])]
    made = [(*_HOLDS[row["holds"]], row) for row in rows]
    return [Text(f"  {word:<8}{row['assert']}  (is {row['value']})", style=style) for word, style, row in made]


def _option(name: str) -> str:
    """Return how an option is given: by itself, or with --set."""
    return f"--{name.replace('_', '-')}" if name in _OWN else f"--set {name.replace('_', '-')}=..."


def _title(document: Mapping[str, Any]) -> str:
    result = document["result"]
    whose = f"{result['family']}" + (f" {result['version']}" if result["version"] else "")
    files = ", ".join(document["inputs"]["files"]) or "command line"
    if result["memory_verdict"] is None:
        return f"{whose}: {files}"
    return f"{fit_screen.title(result, document['inputs'])} ({whose}: {files})"


def _understood(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    heading(console, "what was understood")
    several = len({row["path"] for row in rows if row["path"]}) > 1
    for row in rows:
        value = str(row["value"]) if not isinstance(row["value"], bool) else "yes" if row["value"] else "no"
        place = row["why"] or row["said"]
        if row["path"]:
            about = f" ({row['why']})" if row["why"] else ""
            place = f"{PurePath(row['path']).name if several else 'line '}{':' * several}{row['line']}  {row['key']}{about}"
        wrapped(console, Text(f"  {row['name'].replace('_', '-'):<20}{value:<14}  ").append(place, style="dim"))


def _doubts(result: Mapping[str, Any], console: Console) -> None:
    rows = [*result["unmodelled"], *result["unknown"]]
    if not rows:
        return
    heading(console, "what is not modelled")
    for row in rows[:_DOUBTS]:
        place = f"  {row['path']}:{row['line']}" if row["path"] else f"  ({result['family']} does so by itself)"
        effect = "what it changes is not known" if row["effect"] == "unknown" else _EFFECT[row["effect"]]
        text = Text(f"  {row['key']}", style="yellow").append(f"  {effect}: {row['why']}", style="default")
        wrapped(console, text.append(place, style="dim"))
    if len(rows) > _DOUBTS:
        console.print(Text(f"  {len(rows) - _DOUBTS} more under --json", style="dim"))


_EFFECT: Final = {
    "memory": "changes memory",
    "more-memory": "takes more memory",
    "less-memory": "takes less memory",
    "more": "takes more memory and changes speed",
    "less": "takes less memory and changes speed",
    "speed": "changes speed",
    "both": "changes memory and speed",
}


def _speed(speed: Mapping[str, Any] | None, console: Console) -> None:
    if speed is None:
        return
    heading(console, "speed")
    low, high = speed["interval_s"]
    tokens = speed["tokens_per_second_per_device"]
    rate = f"; {tokens:,.0f} tokens/s a GPU" if tokens else ""
    mfu = f"; MFU {100 * speed['mfu']:.1f} %" if speed["mfu"] else ""
    step = f"  {digits(speed['step_s'])} s a step ({digits(low)} to {digits(high)})"
    wrapped(console, Text(f"{step}{rate}{mfu}; bound by {speed['bottleneck']}"))
    paragraph(console, "interval", speed["interval_basis"])


def _suggestions(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not rows:
        return
    heading(console, "what to edit (each was tried, and the edited file read again)")
    for row in rows[:_EDITS]:
        about = row["change"]
        if row["saved_bytes"] is not None:
            about += f": {-row['saved_bytes'] / GIB:+.2f} GiB, {row['verdict'].replace('_', ' ')}"
        wrapped(console, Text(f"  {about}", style="green" if row["fits"] else "").append(f"  {row['price']}", style="dim"))
        for edit in row["edits"]:
            console.print(Text(f"    {edit['path']}:{edit['line']}", style="dim"))
            for sign, style, lines in (("-", "red", edit["old"]), ("+", "green", edit["new"])):
                for line in lines:
                    for part in textwrap.wrap(line, max(20, console.width - 6), drop_whitespace=False) or [""]:
                        console.print(Text(f"    {sign} {part}", style=style))
        if not row["edits"]:
            console.print(Text(f"    not to be said in these files: {row['flags']}", style="dim"))
    if len(rows) > _EDITS:
        console.print(Text(f"  {len(rows) - _EDITS} more under --json", style="dim"))


def _log(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        wrapped(console, Text(f"  {line}"))
