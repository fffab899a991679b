"""Run the commands of every ``console`` block of README.md and docs/, and write their real output below them.

    python scripts/examples.py           # write
    python scripts/examples.py --check   # exit 1 when a page shows something else than the command prints

A block is a line ``$ foretell ...`` (a trailing backslash continues it) and what it printed.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from foretell.cli import main as foretell

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def pages() -> list[Path]:
    """README and every page of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def output(command: str) -> str:
    """What a foretell command prints, in 80 columns without colours."""
    words = shlex.split(command.replace("\\\n", " "))
    if words[0] != "foretell":
        message = f"only foretell commands are run, not {words[0]}"
        raise SystemExit(message)
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), contextlib.suppress(SystemExit):
        old, sys.argv = sys.argv, words
        try:
            foretell()
        finally:
            sys.argv = old
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def renewed(block: str) -> str:
    """One block with its outputs made anew."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return "\n".join(f"$ {command}\n{output(command)}" for command in commands)


def main() -> int:
    """Write or check every page."""
    stale = []
    for page in pages():
        old = page.read_text("utf-8")
        new = BLOCK.sub(lambda m: f"```console\n{renewed(m.group(1))}```", old)
        if new != old:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, "utf-8")
    if stale and "--check" in sys.argv:
        print("out of date, run `python scripts/examples.py`:", ", ".join(stale))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
