"""What a picture of a traced run shows, and how it looks: nothing here draws.

Sizes are bytes until they are written, as GiB (2^30 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import printable
from foretell.trace.events import Category, Phase
from foretell.trace.levels import Indices, Owner
from foretell.units import GIB

STACK: Final[tuple[Category, ...]] = (
    "parameter",
    "optimizer",
    "gradient",
    "input",
    "activation",
    "collective",
    "workspace",
    "temporary",
)
"""From below: what stays longest first, so that the areas on it do not jump."""
COLOUR: Final[dict[Category, str]] = {
    "parameter": "#0072B2",
    "optimizer": "#56B4E9",
    "gradient": "#009E73",
    "input": "#8C8C8C",
    "activation": "#E69F00",
    "collective": "#CC79A7",
    "workspace": "#A34A00",
    "temporary": "#F0E442",
}
"""After Okabe and Ito, Color Universal Design (2008): distinct with every common kind of colour vision."""
LIGHT: Final = frozenset({"optimizer", "activation", "temporary", "collective"})
"""Areas that carry dark letters."""
INK, SOFT, FAINT, ALARM = "#1A1A1A", "#5F6368", "#D5D8DC", "#B3261E"
HAIR: Final = "#6B6F75"
PHASE: Final = {"load": "#E4E7EB", "forward": "#D3DEE9", "backward": "#B4C4D4", "optimizer": "#E6DCC8", "other": "#EEEEEE"}
SIZE: Final = (12.0, 6.4)
DPI: Final = 200
AXES: Final = (0.062, 0.105, 0.742, 0.68)
STYLE: Final[Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "svg.hashsalt": "foretell",
    "text.parse_math": False,  # a dollar in a module's name is a dollar
    "path.simplify": False,  # simplified paths lose single-event peaks
}
COLUMNS: Final = 800
"""Of the grid in which room for a name is sought."""
LINES: Final = 24
"""Phases whose borders are drawn; more would be a hatching."""
PLACE: Final = 54
"""Characters of a module path or a line."""
TITLE: Final = 150
"""Characters of the title."""
DURING: Final = {
    "load": "while the model is loaded",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
    "other": "outside the passes",
}
BRIEF: Final = {"load": "load", "forward": "fwd", "backward": "bwd", "optimizer": "opt", "other": "other"}


@dataclass(frozen=True)
class Scene:
    """What is drawn."""

    title: str
    events: int
    at: Indices
    """Events that are drawn."""
    levels: Indices
    """Bytes of each of ``CATEGORIES`` after each event of ``at``."""
    reserved: Indices
    """Bytes after each event of ``at``."""
    phases: tuple[tuple[Phase, int], ...]
    """And where each ends."""
    peak: int
    """Event of the highest allocated level."""
    peak_phase: Phase
    peak_allocated: int
    peak_reserved: int
    """Highest of the run; it need not be at ``peak``."""
    owner: Owner | None
    """The largest at the peak."""
    capacity: float | None
    tried: int | None
    """Bytes that were asked of the device in vain at the end; None: the run survives."""


def gib(size: float) -> str:
    """Write bytes as GiB with as many digits as say something.

    >>> gib(3 * 2**30), gib(5 * 2**20)
    ('3.00 GiB', '0.0049 GiB')
    """
    value = size / GIB
    return f"{value:.2f} GiB" if value >= 0.1 or value == 0 else f"{value:.2g} GiB"


def short(text: str, most: int = PLACE) -> str:
    """Cut out a long text's middle, and what cannot be printed."""
    text = printable(text)
    if len(text) <= most:
        return text
    tail = most * 2 // 3
    return f"{text[: most - tail - 1]}\N{HORIZONTAL ELLIPSIS}{text[-tail:]}"
