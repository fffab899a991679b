"""Where a verb's answer goes: one JSON object, one line, or one screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from foretell.errors import printable
from foretell.report.envelope import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

__all__ = ["console", "print_json", "print_lines", "shown"]


def console() -> Console:
    """Return a console of 80 columns, coloured where it is a terminal."""
    from rich.console import Console  # noqa: PLC0415  # 50 ms

    return Console(file=sys.stdout, width=80, highlight=False, soft_wrap=False)


def print_json(document: dict[str, Any]) -> None:
    """Print the object."""
    sys.stdout.write(dumps(document) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines; what in them would steer a terminal is printed as an escape."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def shown(value: Any) -> Any:  # noqa: ANN401  # a tree of anything
    """Return a tree whose texts can be printed on any terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list | tuple) else value
