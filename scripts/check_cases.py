"""Ask foretell about runs that people described in public threads, and write what it said into docs/check-cases.md.

    python scripts/check_cases.py            # run all, freeze what was found in cases.json, write the page
    python scripts/check_cases.py T01 S07    # show the answers to some, write nothing
    python scripts/check_cases.py --check    # exit 1 when the page does not say what cases.json says (nothing is run)

tests/check_cases holds the runs: the files and commands are our own transcriptions of what each thread tells, written down
before they were first run; every value that a thread does not give is named in ``assumed``.  ``doubt`` says why a case is not
counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.cli import main as foretell

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "check_cases"
LIST = CASES / "cases.json"
PAGE = ROOT / "docs" / "check-cases.md"
CLOSE = 0.10
"""Share by which a number may be off."""
WORDS = {"fits": "fits", "does_not_fit": "does not fit", "uncertain": "uncertain", "starts": "starts", None: "no answer"}
WORDS |= {"does_not_start": "does not start", "unknown": "unknown", "answered": "answered", "refused": "refused"}
SCALES = {"bytes": (1e9, "GB"), "s": (1.0, "s"), "tokens": (1.0, "tokens"), "tokens/s": (1.0, "tokens/s")}
SCALES |= {"TFLOP/s": (1.0, "TFLOP/s")}

INTRO = """\
# Runs that people asked about

Threads of public repositories, from 2021 to 2026, in which somebody says what was run and what came of it. Each is
written down as a file or a command of the kind that its author used (`tests/check_cases`, in our own words), with every
value that the thread leaves out named as an assumption, before foretell was asked. A thread is an excerpt: where it
contradicts itself, or leaves out what decides, the case is asked and shown, and not counted.

An outcome is right where the verdict is the outcome (for training, that of memory; a server starts or does not).
"Uncertain" is never right; what a file holds and foretell does not model can make the whole answer uncertain besides, and
is counted apart. A number is right within 10 %. This page is written by `scripts/check_cases.py`.
"""


def main() -> int:
    """Run, show or check."""
    content = json.loads(LIST.read_text("utf-8"))
    if "--check" in sys.argv:
        if PAGE.is_file() and page(content) == PAGE.read_text("utf-8"):
            return 0
        print("out of date, run `python scripts/check_cases.py`:", PAGE.name)
        return 1
    wanted = sys.argv[1:]
    if any(name.startswith("-") for name in wanted):
        raise SystemExit(__doc__)
    for case in content["runs"]:
        if not wanted or any(case["id"].startswith(name) for name in wanted):
            case["found"] = found(case)
            print(line(case))
    if not wanted:
        LIST.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        PAGE.write_text(page(content), "utf-8")
    return 0


# -- asking -------------------------------------------------------------------------------------------------------
def asked(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that foretell prints for a case, or {"error": ...}."""
    words = list(case["run"])
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = ["--no-advice", "--json"] if words[0] in ("check", "fit", "serve") else ["--json"]
    out, err = io.StringIO(), io.StringIO()
    with _inside(CASES / case["id"].split("-")[0]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        foretell(words)
    made: dict[str, Any] = json.loads(out.getvalue() or err.getvalue())
    return made


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    old = Path.cwd()
    os.chdir(folder if folder.is_dir() else CASES)
    try:
        yield
    finally:
        os.chdir(old)


def found(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return what foretell says to a case: a verdict, and a value for each measured number."""
    document = asked(case)
    if "error" in document:
        return {"verdict": "refused", "values": [], "why": document["error"]["message"].splitlines()[0]}
    result = document["result"]
    out = {"verdict": verdict(result), "values": [value(row, result) for row in case["measured"]]}
    expected = case["expected"]
    if isinstance(expected, dict):
        out["host_bytes" if "host_above" in expected else "log"] = (
            rounded(result.get("host_memory_bytes")) if "host_above" in expected else logged(result, expected["log"])
        )
    if result.get("verdict") == "uncertain" and out["verdict"] != "uncertain":
        out["whole"] = "uncertain"
    if result.get("needs"):
        out["why"] = "needs " + ", ".join(result["needs"])
    return out


def verdict(result: Mapping[str, Any]) -> str:
    """Return the outcome that a result foretells."""
    if result.get("verb", "train") == "serve" or "starts" in result:
        return "unknown" if result.get("starts") is None else ("starts" if result["starts"] else "does_not_start")
    return str(result.get("memory_verdict") or result.get("verdict") or "answered")


def value(row: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """Return the sum of the keys of a measured number, rounded; None where one has no value."""
    parts = [looked_up(result, key) for key in row["keys"]]
    return None if any(part is None for part in parts) else rounded(row.get("times", 1) * sum(parts))


def looked_up(result: Any, key: str) -> Any:
    """Follow a dotted key; an element of a list is found by its "name", "phase" or "kind"."""
    for name in key.split("."):
        if isinstance(result, list):
            result = next((row for row in result if name in (row.get("name"), row.get("phase"), row.get("kind"))), None)
        else:
            result = (result or {}).get(name)
    return result


def logged(result: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures, and the words, that were read from a log."""
    read = {key: looked_up(result["log"], key) for key in wanted}
    return {key: rounded(one) if isinstance(one, float) else one for key, one in read.items()}


def rounded(number: float | None) -> float | None:
    """Keep five digits."""
    return None if number is None else float(f"{number:.5g}")


# -- judging ------------------------------------------------------------------------------------------------------
def right(case: Mapping[str, Any]) -> bool | None:
    """Whether the verdict is the outcome; None where none is expected."""
    expected, said = case["expected"], case["found"]
    if expected is None:
        return None
    if isinstance(expected, str):
        return bool(said["verdict"] == expected)
    if "host_above" in expected:
        return bool((said.get("host_bytes") or 0) > expected["host_above"])
    return agreed(case) == len(expected["log"])


def agreed(case: Mapping[str, Any]) -> int:
    """Return how many figures and words of a log were read as they are."""
    said = case["found"].get("log", {})
    wanted = case["expected"]["log"]
    return sum(said.get(key) == one if isinstance(one, str) else close(said.get(key), one, 0.002) for key, one in wanted.items())


def numbers(case: Mapping[str, Any]) -> list[bool]:
    """Return, for each measured number, whether it is within 10 %."""
    said = case["found"]["values"] or [None] * len(case["measured"])
    return [close(one, row["value"], CLOSE) for one, row in zip(said, case["measured"], strict=True)]


def close(one: float | None, other: float, share: float) -> bool:
    """Whether a number is within a share of another."""
    return one is not None and abs(one - other) <= share * abs(other)


# -- showing ------------------------------------------------------------------------------------------------------
def line(case: Mapping[str, Any]) -> str:
    """One case in one line."""
    return f"{case['id']:18} {expectation(case)} | {answer(case)} | {mark(case)} {case['found'].get('why', '')}"


def expectation(case: Mapping[str, Any]) -> str:
    """What the thread says came of it."""
    expected = case["expected"]
    said = []
    if isinstance(expected, str):
        said.append(WORDS[expected])
    elif isinstance(expected, dict) and "host_above" in expected:
        said.append(f"does not fit {expected['host_above'] / 1e9:.0f} GB of host memory")
    elif expected is not None:
        said.append(f"{len(expected['log'])} figures")
    said += [f"{row['counter']}: {shown(row['value'], row['unit'])}" for row in case["measured"]]
    return "; ".join(said) or "-"


def answer(case: Mapping[str, Any]) -> str:
    """What foretell says."""
    expected, said = case["expected"], case["found"]
    if isinstance(expected, dict) and "host_above" in expected:
        words = ["no answer" if said.get("host_bytes") is None else f"{said['host_bytes'] / 1e9:.0f} GB of host memory"]
    elif isinstance(expected, dict):
        words = [f"{agreed(case)} of them"]
    else:
        words = [] if expected is None else [WORDS[said["verdict"]]]
    for one, row in zip(said["values"] or [None] * len(case["measured"]), case["measured"], strict=True):
        off = "" if one is None else f" ({100 * (one / row['value'] - 1):+.0f} %)"
        words.append("no number" if one is None else shown(one, row["unit"]) + off)
    return "; ".join(words) or WORDS[said["verdict"]]


def shown(number: float, unit: str) -> str:
    """Return a number with its unit."""
    scale, name = SCALES[unit]
    return f"{number / scale:,.3g} {name}" if abs(number / scale) < 1000 else f"{number / scale:,.0f} {name}"


def mark(case: Mapping[str, Any]) -> str:
    """Return yes, no or uncertain; for numbers how many are within 10 %."""
    whole, parts = right(case), numbers(case)
    words = []
    if whole is not None:
        words.append("yes" if whole else ("uncertain" if case["found"]["verdict"] == "uncertain" else "no"))
    if parts:
        words.append(f"{sum(parts)} of {len(parts)} numbers")
    return ", ".join(words) or "-"


def page(content: Mapping[str, Any]) -> str:
    """Return docs/check-cases.md."""
    runs = content["runs"]
    counted = [case for case in runs if not case["doubt"]]
    doubted = [case for case in runs if case["doubt"]]
    parts = [
        INTRO,
        summary(counted),
        "## Counted\n",
        table(counted),
        "## Asked, and not counted\n",
        table(doubted),
        "## Not a question of a plan, or not enough said\n",
        "| thread | why |\n|---|---|",
        "\n".join(f"| {link(row)} | {cell(row['why'])} |" for row in content["not_asked"]),
        "\n## What was assumed\n",
        "\n".join(f"- {case['id']}: {'; '.join(case['assumed'])}." for case in runs if case["assumed"]),
    ]
    return "\n".join(parts) + "\n"


def summary(counted: Sequence[Mapping[str, Any]]) -> str:
    """Return how many are right."""
    rows = ["| what | asked | right | uncertain | wrong | share right |", "|---|---|---|---|---|---|"]
    groups = {
        "training: fits or does not": ("fits", "does_not_fit"),
        "server: starts or does not": ("starts", "does_not_start"),
    }
    every: list[Mapping[str, Any]] = []
    for name, words in groups.items():
        members = [case for case in counted if case["expected"] in words]
        every += members
        rows.append(count(name, members))
    hosts = [case for case in counted if isinstance(case["expected"], dict) and "host_above" in case["expected"]]
    rows.append(count("host memory: does not fit", hosts))
    rows.append(count("all outcomes", [*every, *hosts]))
    logs = [case for case in counted if isinstance(case["expected"], dict) and "log" in case["expected"]]
    rows.append(count("logs: every figure read", logs))
    flags = [flag for case in counted for flag in numbers(case)]
    rows.append(
        f"| numbers within 10 % | {len(flags)} | {sum(flags)} | | {len(flags) - sum(flags)} | {share(sum(flags), len(flags))} |"
    )
    unsure = sum("whole" in case["found"] for case in counted)
    rows += ["", f"In {unsure} of the cases the whole answer is uncertain: a file holds something that is not modelled."]
    return "\n".join(rows) + "\n"


def count(name: str, members: Sequence[Mapping[str, Any]]) -> str:
    """Return one line of the summary."""
    good = sum(bool(right(case)) for case in members)
    unsure = sum(mark(case).startswith("uncertain") for case in members)
    return f"| {name} | {len(members)} | {good} | {unsure} | {len(members) - good - unsure} | {share(good, len(members))} |"


def share(part: int, whole: int) -> str:
    """Return a percentage."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return cases as a table."""
    rows = ["| thread | what | the thread says | foretell says | right | why |", "|---|---|---|---|---|---|"]
    for case in cases:
        why = " ".join(part for part in (case["doubt"], case["explanation"]) if part)
        cells = (case["what"], expectation(case), answer(case), mark(case), why)
        rows.append(f"| {link(case)} | {' | '.join(cell(text) for text in cells)} |")
    return "\n".join(rows) + "\n"


def link(row: Mapping[str, Any]) -> str:
    """Return the id of a case as a link to its thread."""
    return f"[{row['id']}]({row['source']})" + (f" {row['date']}" if row["date"] else "")


def cell(text: str) -> str:
    """Return text as it stands in a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
