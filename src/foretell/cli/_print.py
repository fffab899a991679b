"""Where a verb's answer goes: one JSON object, one line, or one screen."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from foretell.errors import printable
from foretell.report.envelope import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

__all__ = ["console", "print_json", "print_lines", "shown", "width"]


def console() -> Console:
    """Return a console of 80 columns, or of COLUMNS, coloured where it is a terminal."""
    from rich.console import Console  # noqa: PLC0415  # 50 ms

    return Console(file=sys.stdout, width=width(), highlight=False, soft_wrap=False)


def width() -> int:
    """Return the columns to fill: COLUMNS where it is set to a sensible number, else 80."""
    given = os.environ.get("COLUMNS", "")
    return max(40, min(int(given), 400)) if given.isascii() and given.isdigit() and len(given) < 6 and int(given) else 80


def print_json(document: dict[str, Any]) -> None:
    """Print the object."""
    sys.stdout.write(dumps(document) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, long ones wrapped; what in them would steer a terminal is printed as an escape."""
    columns = width()
    for line in lines:
        text = printable(line)
        parts = [text]
        if len(text) > columns:
            import textwrap  # noqa: PLC0415  # for the few that are too long

            pad = " " * (len(text) - len(text.lstrip()) + 4)
            parts = textwrap.wrap(
                text,
                columns,
                subsequent_indent=pad,
                break_long_words=False,
                break_on_hyphens=False,
                drop_whitespace=True,
            )
        sys.stdout.writelines(f"{part}\n" for part in parts)


def shown(value: Any) -> Any:  # a tree of anything
    """Return a tree whose texts can be printed on any terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value
