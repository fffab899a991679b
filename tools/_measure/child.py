"""One run in a process of its own.

    python -m _measure.child NAME OUT [--dry] [--snapshot FILE --allowance BYTES]

It writes what was found to OUT as JSON; an error of the run is something found, too.
"""

from __future__ import annotations

import argparse
import json
import traceback
from pathlib import Path
from typing import Any

from _measure.configurations import CONFIGURATIONS, CONTEXT, Configuration
from _measure.dry import DRY, Stub, misbehave

_LINES = 12
"""Of a traceback that are kept."""


def main() -> int:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--snapshot", type=Path)
    parser.add_argument("--allowance", type=int, default=0)
    given = parser.parse_args()
    table: dict[str, Configuration] = {c.name: c for c in (DRY if given.dry else CONFIGURATIONS)}
    try:
        found = _found(given, table.get(given.name))
    except Exception as error:  # noqa: BLE001  # a model's code and its libraries may raise anything
        text = " ".join(str(error).split())[:600]
        lines = traceback.format_exc().splitlines()[-_LINES:]
        outcome = "oom" if type(error).__name__ == "OutOfMemoryError" else "failed"
        found = {"outcome": outcome, "reason": f"{type(error).__name__}: {text}", "traceback": lines}
    part = given.out.with_suffix(".part")
    part.write_text(json.dumps(found), "utf-8")
    part.replace(given.out)  # whole, or not at all
    return 0


def _found(given: argparse.Namespace, configuration: Configuration | None) -> dict[str, Any]:
    if given.name.startswith("dry-"):
        misbehave(given.name)
    counters: Any
    if given.dry:
        counters = Stub()
    else:
        from _measure.counters import Cuda  # noqa: PLC0415

        counters = Cuda()
    if given.name == CONTEXT:
        from _measure.context import context  # noqa: PLC0415

        return context(counters)
    assert configuration is not None  # noqa: S101  # the parent names what the tables hold
    from _measure.training import measure  # noqa: PLC0415

    return measure(configuration, counters, given.snapshot, given.allowance)


if __name__ == "__main__":
    raise SystemExit(main())
