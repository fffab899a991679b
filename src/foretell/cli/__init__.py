"""The command line: parses arguments, calls the rooms below, prints. No formula lives here.

May import everything. `main` is the console entry; a verb's module is imported when the verb is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 yes, 1 no or uncertain, 2 bad input, 3 our fault."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # before click is imported: 40 ms
        from foretell._version import __version__  # noqa: PLC0415

        sys.stdout.write(f"foretell {__version__}\n")
        return 0
    from foretell.cli._app import run  # noqa: PLC0415  # click: 35 ms

    return run(given)
