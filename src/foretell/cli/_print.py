"""Where a verb's answer goes: one JSON object, one line, or one screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from foretell.report.envelope import dumps

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json"]


def console() -> Console:
    """Return a console of 80 columns, coloured where it is a terminal."""
    from rich.console import Console  # noqa: PLC0415  # 50 ms

    return Console(file=sys.stdout, width=80, highlight=False, soft_wrap=False)


def print_json(document: dict[str, Any]) -> None:
    """Print the object."""
    sys.stdout.write(dumps(document) + "\n")
