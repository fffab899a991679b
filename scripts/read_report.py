"""Read every file of a folder as `foretell check` does, and write docs/read-files.md: how many of each family are read.

    python scripts/read_report.py FOLDER          # a folder with a sub-folder for each project
    python scripts/read_report.py FOLDER --list   # print each refusal and each unknown key instead

The files are other projects' and not part of this one.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from foretell.cli._check_request import Given, missing, serving_request, training_request
from foretell.errors import ForetellError
from foretell.readers import Reading
from foretell.readers.read import read

PAGE = Path(__file__).parents[1] / "docs" / "read-files.md"
GPU = {"gpu": "h100"}


@dataclass
class Tally:
    """What became of the files of one project."""

    files: int = 0
    read: int = 0
    keys: int = 0
    used: int = 0
    neutral: int = 0
    unmodelled: int = 0
    unknown: int = 0
    answered: int = 0
    needs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def answered(reading: Reading) -> str:
    """What stands between a reading and its answer; empty where nothing does."""
    given = Given(None, {**GPU, **({"seq_len": "2048"} if "seq_len" in reading.needs else {})})
    needs = missing(reading, given)
    if needs:
        return min(needs)
    try:
        if reading.verb == "serve":
            serving_request(reading, given)
        else:
            training_request(reading, given)[0].launch.forecast()
    except ForetellError as error:
        return "model" if getattr(error, "field", "") == "model" else "a run that cannot be"
    return ""


def one(path: Path, tally: Tally, listed: list[str]) -> None:
    """Read a file."""
    tally.files += 1
    start = time.perf_counter()
    try:
        found = read([str(path)])
    except ForetellError as error:
        text = re.sub(r"^.*?: ", "", str(error).replace(str(path.parent), "")).split("; ")[0].split(". ")[0]
        tally.refused[re.sub(r"'[^']{30,}'", "'...'", text)[:90]] += 1
        listed.append(f"{path}: REFUSED {error}")
        return
    finally:
        tally.seconds = max(tally.seconds, time.perf_counter() - start)
    tally.read += 1
    tally.used += sum(1 for s in found.settings.values() if s.origin.path)
    tally.neutral += len(found.neutral)
    tally.unmodelled += len(found.unmodelled)
    tally.unknown += len(found.unknown)
    listed += [f"{path}:{row.origin.line}: UNKNOWN {row.key}" for row in found.unknown]
    stands = answered(found)
    tally.needs[stands] += 1
    if stands:
        listed.append(f"{path}: NO ANSWER {stands}")


def page(tallies: dict[str, Tally]) -> str:
    """The page."""
    lines = [
        "# Files that were read",
        "",
        "Configurations found in the repositories of the projects themselves, read by `foretell check`; this page is written by",
        "`scripts/read_report.py`. *Read*: each value understood, known to change nothing, or listed as not modelled.",
        "*Answered*: with a GPU (and a sequence length, where the file leaves it to the data) given on the command line,",
        "and nothing else. *Unknown*: keys that are in no table of their project, which make an answer uncertain.",
        "*Slowest*: milliseconds for one file.",
        "",
        "| project | files | read | refused | answered | values used | neutral | not modelled | unknown | slowest, ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    total = Tally()
    for name, t in sorted(tallies.items()):
        cells = (
            name,
            t.files,
            t.read,
            t.files - t.read,
            t.needs[""],
            t.used,
            t.neutral,
            t.unmodelled,
            t.unknown,
            f"{1000 * t.seconds:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
        total.files, total.read = total.files + t.files, total.read + t.read
    lines += ["", f"In all {total.read} of {total.files} are read ({total.read / total.files:.1%}).", ""]
    for title, attribute in (("Why files are refused", "refused"), ("What stands between a reading and an answer", "needs")):
        lines += [f"## {title}", ""]
        for name, t in sorted(tallies.items()):
            rows = [(text, count) for text, count in getattr(t, attribute).most_common(12) if text]
            lines += [f"- {name}: " + "; ".join(f"{text} ({count})" for text, count in rows)] if rows else []
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Read the folder and write the page."""
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    if len(folders) != 1 or set(sys.argv[1:]) - {"--list", *map(str, folders)}:
        raise SystemExit(__doc__)
    tallies: dict[str, Tally] = defaultdict(Tally)
    listed: list[str] = []
    for path in sorted(folders[0].rglob("*")):
        if path.is_file():
            one(path, tallies[path.relative_to(folders[0]).parts[0]], listed)
    if "--list" in sys.argv:
        sys.stdout.write("\n".join(listed) + "\n")
    else:
        PAGE.write_text(page(tallies), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
