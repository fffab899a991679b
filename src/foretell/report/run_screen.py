"""A whole run on a screen of 80 columns: the chain from the step to the money, each link with its band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.screen import bar, digits, heading, paragraph, plain, wrapped
from foretell.units import GB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LINKS", "LOSSES", "in_unit", "number", "run_line", "show_run"]

LINKS: Final = (
    # quantity, what it is called, its unit on the screen, units in it
    ("step_s", "step", "s", 1.0),
    ("productive_days", "training alone", "days", 1.0),
    ("checkpoint_block_s", "a checkpoint blocks", "s", 1.0),
    ("checkpoint_interval_s", "between checkpoints", "min", 60.0),
    ("mtbf_hours", "between failures", "h", 1.0),
    ("goodput_ratio", "goodput", "%", 0.01),
    ("interruptions", "interruptions, mean", "", 1.0),
    ("wall_days", "wall clock", "days", 1.0),
    ("gpu_hours", "GPU-hours", "M", 1e6),
    ("it_energy_kwh", "energy of the nodes", "MWh", 1e3),
    ("total_energy_kwh", "... of the building", "MWh", 1e3),
    ("operational_carbon_kg", "CO2e of electricity", "t", 1e3),
    ("embodied_carbon_kg", "... of making, share", "t", 1e3),
    ("water_usage_liters", "water on the site", "m3", 1e3),
    ("cost_usd", "cost", "M USD", 1e6),
)
_SMALL: Final = {
    "days": ("h", 1 / 24),
    "M": ("", 1.0),
    "MWh": ("kWh", 1.0),
    "t": ("kg", 1.0),
    "m3": ("L", 1.0),
    "M USD": ("USD", 1.0),
}
"""Unit -> the smaller one of a small run, and what it is in base units."""
_BAR: Final = 24
LOSSES: Final = {"useful": "trains", "checkpoints": "checkpoints", "rework": "work done again", "restarts": "restarts"}


def show_run(result: Mapping[str, Any], batch: int, console: Console) -> None:
    """Print the chain of an answer of `train --tokens`, where the time goes, and what was assumed."""
    run = result["run"]
    nodes = f"{run['nodes']:,} node{'s' if run['nodes'] > 1 else ''}"
    heading(console, f"the whole run: {result['tokens']:.3g} tokens, {result['steps']:,} steps of {batch:,} samples, {nodes}")
    about = f"{'point':>12}  {'P10 to P90 of':>16} {run['samples']:,} samples"
    console.print(Text(f"  {'':<22}{'':>6}{about}", style="dim"))
    for name, title, unit, size in LINKS:
        band = run["quantities"].get(name)
        if band is None:
            continue
        shown, scale = in_unit(unit, size, band["p90"])
        point, low, high = (number(band[key] / scale) for key in ("point", "p10", "p90"))
        console.print(Text(f"  {title:<22}{shown:>6}{point:>12}  ").append(f"{low:>12} to {high}", style="dim"))
    if not run["feasible"]:
        wrapped(console, Text("  NO PROGRESS: it fails more often than it can save and start again", style="bold red"))
    heading(console, "where the wall clock goes")
    for name, share in run["losses"].items():
        line = Text(f"  {LOSSES[name]:<22}{100 * share:>8.2f} %  ")
        line.append(bar(share, _BAR, plain=plain(console)), style="cyan").rstrip()
        console.print(line)
    held = f"a checkpoint holds {number(run['checkpoint_size_bytes'] / GB)} GB (1e9 bytes)"
    wrapped(console, Text(f"  {held}; {run['region']}, {run['boundary']} grid factor; {run['mode']}", style="dim"))
    if run["feasible"] and "cost_usd" not in run["quantities"]:
        wrapped(console, Text("  cost: unknown, for no price is known: give --price", style="dim"))
    if run["assumed"]:
        paragraph(console, "assumed of the run", "; ".join(run["assumed"]))


def run_line(run: Mapping[str, Any]) -> str:
    """Return a whole run in some words: how long, how much, or that it gets nowhere."""
    if not run["feasible"]:
        return "NO PROGRESS: it fails more often than it can save and start again"
    days, hours, cost = (run["quantities"].get(name) for name in ("wall_days", "gpu_hours", "cost_usd"))
    unit, scale = in_unit("days", 1.0, days["p90"])
    words = f"{number(days['point'] / scale)} {unit} ({number(days['p10'] / scale)} to {number(days['p90'] / scale)})"
    words += f", {number(hours['point'])} GPU-hours"
    return words if cost is None else f"{words}, {number(cost['point'])} USD"


def in_unit(unit: str, size: float, largest: float) -> tuple[str, float]:
    """Return the unit that suits a quantity up to `largest`, and what it is in base units.

    >>> in_unit("MWh", 1e3, 5e6), in_unit("MWh", 1e3, 20.0)
    (('MWh', 1000.0), ('kWh', 1.0))
    """
    return _SMALL[unit] if unit in _SMALL and largest < size else (unit, size)


def number(value: float) -> str:
    """Write a number of three to five digits, without an exponent.

    >>> number(0.0123), number(2.0634), number(15870.0)
    ('0.0123', '2.06', '15,870')
    """
    return f"{value:.3g}" if value < 1 else digits(value)
