"""What the screens of `reliability`, `checkpoint`, `cost` and `carbon` share: rows, bars, and what to know below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.screen import bar, digits, paragraph, plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["energy", "figure", "foot", "ledger", "per_cent", "row", "scaled", "spread", "tonnes", "usd", "volume", "where"]

_BAR: Final = 26
_NOTES: Final = 6
_NAME: Final = 24
_VALUE: Final = 14


def row(console: Console, name: str, value: str, about: str = "") -> None:
    """Print a name, a number and what is to be said of it, which goes on below its own column."""
    head = Text(f"  {name:<{_NAME}}").append(f"{value:>{_VALUE}}", style="bold").append("  ")
    start = len(head)
    parts = list(Text(about, style="dim").wrap(console, max(20, console.width - start))) if about else [Text("")]
    for number, part in enumerate(parts):
        part.rstrip()
        line = (head if number == 0 else Text(" " * start)) + part
        line.rstrip()
        console.print(line)


def ledger(console: Console, parts: Mapping[str, tuple[float, str]]) -> None:
    """Print parts of a whole, name -> (size, how it is written), each with its share and a bar."""
    total = sum(size for size, _ in parts.values()) or 1.0
    most = max((size for size, _ in parts.values()), default=0.0) or 1.0
    width = max(0, min(_BAR, console.width - 52))
    for name, (size, text) in parts.items():
        line = Text(f"  {name:<{_NAME}}{text:>{_VALUE}}{100 * size / total:>8.2f} %  ")
        line.append(bar(size / most, width, plain=plain(console)), style="cyan").rstrip()
        console.print(line)


def foot(console: Console, document: Mapping[str, Any]) -> None:
    """Print what was assumed and what to know."""
    console.print()
    if document["result"]["assumed"]:
        paragraph(console, "assumed", "; ".join(document["result"]["assumed"]))
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def where(inputs: Mapping[str, Any], result: Mapping[str, Any], console: Console, more: str = "") -> None:
    """Print which machines the answer is of, and for how long."""
    nodes, days = inputs["nodes"], inputs["days"]
    kind = f"{nodes:,} x {inputs['system']}" if inputs["system"] else f"{nodes:,} node{'s' if nodes > 1 else ''}"
    hours = 24 * days
    span = f"{days:,.6g} days" if days >= 2 else f"{hours:,.6g} hour{'' if hours == 1 else 's'}"
    text = f"{kind}, {result['gpus']:,} x {inputs['gpu']}, for {span}{more}"
    wrapped(console, Text(text, style="dim"))


def figure(value: float) -> str:
    """Write a number of three digits, small ones too.

    >>> figure(2.0634), figure(0.00123), figure(15870), figure(0)
    ('2.06', '0.00123', '15,870', '0')
    """
    return digits(value) if value >= 0.9995 else f"{value:.3g}"


def per_cent(share: float, ends: Sequence[float]) -> tuple[str, str]:
    """Write a share and its interval in per cent.

    >>> per_cent(0.97, (0.955, 0.979))
    ('97.0 %', '95.5 to 97.9 %')
    """
    low, high = (100 * end for end in ends)
    return f"{100 * share:.1f} %", f"{low:.1f} to {high:.1f} %"


def spread(ends: Sequence[float], write: Callable[[float], str]) -> str:
    """Write an interval, its unit once where both ends have it; nothing where they read alike.

    >>> spread((15528, 37422), tonnes), spread((417.8, 2822), tonnes), spread((3, 3), usd)
    ('15.5 to 37.4 t', '418 kg to 2.82 t', '')
    """
    low, high = (write(end) for end in ends)
    number, _, unit = low.rpartition(" ")
    return "" if low == high else f"{number if number and high.endswith(f' {unit}') else low} to {high}"


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Write a number in the largest unit that it holds, or in the last.

    >>> scaled(44649, ((1e3, "MWh"), (1.0, "kWh")))
    '44.6 MWh'
    """
    factor, unit = next((one for one in units if value >= 0.9995 * one[0]), units[-1])
    return f"{figure(value / factor)} {unit}"


def energy(kwh: float) -> str:
    """Write kWh.

    >>> energy(55802.9)
    '55.8 MWh'
    """
    return scaled(kwh, ((1e6, "GWh"), (1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh")))


def tonnes(kg: float) -> str:
    """Write kg of CO2-equivalent.

    >>> tonnes(24254), tonnes(87.5)
    ('24.3 t', '87.5 kg')
    """
    return scaled(kg, ((1e6, "kt"), (1e3, "t"), (1.0, "kg"), (1e-3, "g")))


def volume(litres: float) -> str:
    """Write litres.

    >>> volume(14811), volume(20.5)
    ('14.8 m3', '20.5 L')
    """
    return scaled(litres, ((1e3, "m3"), (1.0, "L"), (1e-3, "mL")))


def usd(value: float) -> str:
    """Write US dollars, cents where they count.

    >>> usd(82997.2), usd(2.5), usd(0.0123)
    ('82,997 USD', '2.50 USD', '0.0123 USD')
    """
    return f"{value:,.0f} USD" if value >= 999.5 else f"{value:,.2f} USD" if value >= 0.995 or not value else f"{value:.3g} USD"
