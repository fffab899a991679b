"""What the screens of answers share: headings, wrapped lines, bars.  Sizes are GiB (2^30 bytes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["BAR", "WIDTH", "bar", "digits", "gib", "heading", "paragraph", "plain", "wrapped"]

WIDTH: Final = 80
BAR: Final = 34
"""Columns of a bar, where there is room."""


def gib(size: float) -> str:
    """Write bytes as GiB.

    >>> gib(3 * 2**29), gib(5e12)
    ('1.50', '4656.61')
    """
    return f"{size / GIB:.2f}"


def digits(value: float) -> str:
    """Write a number of three digits, without an exponent.

    >>> digits(2.0634), digits(45.12), digits(312.4), digits(15870)
    ('2.06', '45.1', '312', '15,870')
    """
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def bar(share: float, width: int = BAR, *, plain: bool = False) -> str:
    """Draw a share of the width, in eighths of a character, or in plain ones.

    >>> bar(0.5, 4), bar(0.5, 4, plain=True)
    ('██', '##')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if plain:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]


def plain(console: Console) -> bool:
    """Whether the terminal lacks block characters."""
    return not console.encoding.startswith("utf")


def heading(console: Console, text: str) -> None:
    """Print a heading after an empty line."""
    console.print()
    wrapped(console, Text(text, style="bold"))


def paragraph(console: Console, label: str, text: str) -> None:
    """Print a label and wrapped text, indented."""
    wrapped(console, Text(f"  {label}: ").append(text, style="dim"))


def wrapped(console: Console, text: Text) -> None:
    """Print text on as many lines as it takes, all but the first indented."""
    parts: Sequence[Text] = list(text.wrap(console, console.width - 4)) if len(text) > console.width else [text]
    for number, part in enumerate(parts):
        part.rstrip()
        console.print(part if number == 0 else Text("    ").append(part))
