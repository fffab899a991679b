"""Measure the memory of training runs on this machine's GPU, and compare with what foretell says.

    python tools/measure_memory.py --out DIR          # measure, then compare
    python tools/measure_memory.py --compare DIR      # compare only; needs no GPU

See tools/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
for _folder in (HERE, HERE.parent / "src"):  # neither is installed where this runs
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from _measure.comparison import COMPARISON, compare_folder, table  # noqa: E402
from _measure.configurations import CONFIGURATIONS, CONTEXT, Configuration  # noqa: E402
from _measure.dry import DRY as DRY_CONFIGURATIONS  # noqa: E402
from _measure.rows import write_rows  # noqa: E402
from _measure.supervisor import Record, Supervisor, load, peaks, process_bytes  # noqa: E402

BUDGET_SECONDS: Final = 460.0
"""Of measuring and comparing together: under eight minutes."""
_GIB: Final = 2**30


def _job(configuration: Configuration) -> dict[str, Any]:
    from _measure.jobs import job  # noqa: PLC0415  # imports torch

    return job(configuration)


JOBS: Final = SimpleNamespace(**{c.name: partial(_job, c) for c in CONFIGURATIONS})
"""What a trace names: ``tools/measure_memory.py:JOBS.llama-1b``."""
DRY: Final = SimpleNamespace(**{c.name: partial(_job, c) for c in DRY_CONFIGURATIONS})
"""The same with tiny shapes."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return 0, 1 where nothing was measured or compared, 2 where the command line is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--out", type=Path, metavar="DIR", help="measure into this folder; what it holds already is not measured again"
    )
    what.add_argument("--compare", type=Path, metavar="DIR", help="compare what was measured into this folder")
    what.add_argument("--list", action="store_true", help="name the configurations, in order")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this one (again); may be repeated")
    parser.add_argument(
        "--budget",
        type=float,
        default=None,
        metavar="SECONDS",
        help=f"in all (default: {BUDGET_SECONDS:.0f} to measure, no end to compare)",
    )
    parser.add_argument("--dry", action="store_true", help="rehearse on the CPU: tiny shapes, made-up numbers")
    given = parser.parse_args(arguments)
    configurations = DRY_CONFIGURATIONS if given.dry else CONFIGURATIONS
    known = [CONTEXT, *(c.name for c in configurations)]
    unknown = [name for name in given.only if name not in known]
    if unknown:
        parser.error(f"--only {unknown[0]}: there is no such configuration; there are {', '.join(known)}")
    if given.budget is not None and not given.budget > 0:
        parser.error(f"--budget {given.budget:g}: must be above 0 seconds")
    if given.list:
        print("\n".join(f"{c.name:28} {c.why}" for c in configurations))
        return 0
    try:
        return _compare(given.compare, given.budget) if given.compare is not None else _measure(given, configurations)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("stopped: what was measured is kept, and the same command goes on from there", file=sys.stderr)
        return 130


def _measure(given: argparse.Namespace, configurations: tuple[Configuration, ...]) -> int:
    budget = BUDGET_SECONDS if given.budget is None else given.budget
    begun = time.monotonic()
    before = _known(given.out)
    if any(r["dry"] != given.dry for r in before.values()):
        raise ValueError(f"{given.out}: holds a {'measurement' if given.dry else 'rehearsal'}; the two do not mix")
    done = {name for name, r in before.items() if r["outcome"] in ("measured", "oom")}
    wanted = [c for c in configurations if (c.name in given.only if given.only else c.name not in done and c.library != "dry")]
    context = CONTEXT in given.only if given.only else CONTEXT not in done

    def tell(record: Record) -> None:
        print(_told(record), flush=True)
        write_rows(given.out, load(given.out))

    Supervisor(given.out, budget, given.dry, tell).run(wanted, context=context)
    if not any(r["outcome"] in ("measured", "oom") for r in _known(given.out).values()):
        return 1
    _compare(given.out, max(1.0, budget - (time.monotonic() - begun)))
    return 0


def _known(folder: Path) -> dict[str, Record]:
    try:
        return {record["name"]: record for record in load(folder)}
    except ValueError:
        if (folder / "measurements.jsonl").exists():
            raise
        return {}


def _compare(folder: Path, seconds: float | None) -> int:
    try:
        made = compare_folder(folder, seconds=seconds, say=lambda text: print(text, file=sys.stderr, flush=True))
    except ImportError as error:
        print(f"not compared here ({error}): run --compare on a copy of {folder} where foretell[trace] is installed")
        return 1
    print(table(made))
    print(f"\nwritten: {folder / COMPARISON}")
    return 0


def _told(record: Record) -> str:
    """Return a record in one line."""
    line = f"{record['name']:28} {record['outcome']:9} {record['seconds']:6.1f} s"
    if record["outcome"] != "measured":
        return f"{line}  {record.get('reason', '')}"
    process = process_bytes(record)
    sizes = peaks(record) | ({"process": process[0]} if process else {})
    return line + "".join(f"  {level} {size / _GIB:.3f}" for level, size in sizes.items()) + ("  GiB" if sizes else "")


if __name__ == "__main__":
    raise SystemExit(main())
