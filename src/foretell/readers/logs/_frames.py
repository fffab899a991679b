"""Tracebacks above an error, in the forms of Python, IPython and rich, and what the run was doing there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from foretell.readers.logs._log import Frame
from foretell.readers.logs._phases import DOING, PHASES
from foretell.readers.logs._scan import Builder, mark

__all__ = ["Doing", "doing", "frames_above", "step_before"]

WINDOW: Final = 24_000
"""Characters above an error in which its traceback is looked for (80 frames of 300 characters)."""
MOST: Final = 100
"""Frames that are kept."""
NEAR: Final = 30
"""Lines below its last frame within which a traceback's error stands (rich shows code and local values there)."""
_WIDE: Final = 400
"""Characters of a line that are looked at."""

_PYTHON: Final = re.compile(r'File \\?"([^"\\\n]{1,300})\\?", line (\d{1,7})(?:, in ([^\s\\]{1,120}))?')
_IPYTHON: Final = re.compile(r"File (\S{1,300}\.py):(\d{1,7}),? in (\w{1,120})")
_IPYTHON_OLD: Final = re.compile(r"^\s{0,8}(\S{1,300}\.py) in (\w{1,120})\(")
_RICH: Final = re.compile(r"[│|]\s{0,8}(\S{1,300}\.py):(\d{1,7}) in (\w{1,120})")
_ARROW: Final = re.compile(r"(?:-{2,6}>|❱)\s{0,4}(\d{1,7})(?:\s|│){1,40}(\S[^\n]{0,300})")
_UNDERLINE: Final = re.compile(r"^[\s^~]{0,400}$")
_PREFIX: Final = re.compile(r"^(?:\[[^\]\n]{1,60}\]:?|\([^)\n]{1,60}\)|(?:ERROR|INFO|WARNING)\b[^\]\n]{0,80}\]|\s){1,6}")
_STEP: Final = re.compile(r"(?:\bstep|\biteration|\biter)[ =:#]{1,4}(\d{1,9})|[|▏▎▍▌▋▊▉█] ?(\d{1,9})/\d{1,9} \[", re.IGNORECASE)
_NO_STEP: Final = re.compile(r"shard|\bmap\b|tokeniz|generating|download|capturing|num_proc", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Doing:
    """What a traceback says of the moment."""

    phase: str = ""
    words: str = ""
    term: str = ""
    frame: Frame | None = None


def frames_above(builder: Builder, at: int) -> tuple[Frame, ...]:
    """Return the frames of the traceback that ends in an error at a place; lines of other processes are left out."""
    text = builder.text
    window = text[max(0, at - WINDOW) : at].replace("\\n", "\n")
    cut = window.rfind("Traceback (most recent call last)")
    own = mark(builder.head(at))
    if own:  # several processes write: the last beginning may be another one's
        lines = [line for line in window.split("\n") if mark(line[:_WIDE]) == own]
        begins = max((i for i, line in enumerate(lines) if "Traceback (most recent" in line), default=0)
        lines = lines[begins:]
    else:
        lines = window[max(cut, 0) :].split("\n")
    return tuple(_frames([line[:_WIDE] for line in lines]))[-MOST:]


def _frames(lines: list[str]) -> list[Frame]:
    """Return the frames in lines, outermost first."""
    out: list[Frame] = []
    last_at = 0
    for i, line in enumerate(lines):
        python = False
        if found := _PYTHON.search(line):
            made = Frame(found[1], int(found[2]), found[3] or "")
            python = True
        elif found := _IPYTHON.search(line) or _RICH.search(line):
            made = Frame(found[1], int(found[2]), found[3])
        elif found := _IPYTHON_OLD.search(line):
            made = Frame(found[1], 0, found[2])
        elif (found := _ARROW.search(line)) and out and not out[-1].code:
            last = out[-1]
            out[-1] = Frame(last.path, last.number or int(found[1]), last.function, _code(found[2]))
            last_at = i
            continue
        else:
            continue
        if python and i + 1 < len(lines):
            next_line = lines[i + 1]
            if not _PYTHON.search(next_line) and "Error" not in next_line and not _UNDERLINE.match(next_line):
                made = Frame(made.path, made.number, made.function, _code(next_line))
        out.append(made)
        last_at = i
    below = lines[last_at + 1 :]
    # an error between belongs to the traceback, and this one has none of its own
    return out if len(below) <= NEAR and not any("ut of memory" in line for line in below[:-1]) else []


def _code(line: str) -> str:
    """Return a source line without the marks around it."""
    return _PREFIX.sub("", line).strip(" │|\t")[:160]


def doing(frames: tuple[Frame, ...]) -> Doing:
    """Say what a run was doing: the phase by the first of the table that any frame is in, the rest by the innermost frame.

    >>> doing((Frame("train.py", 9, "step", "loss.backward()"), Frame("torch/autograd/graph.py", 8, "run"))).phase
    'backward'
    """
    texts = [f"{frame.path.replace(chr(92), '/')}:{frame.function} {frame.code}" for frame in frames]
    phase = next((name for name, pattern in PHASES if any(pattern.search(text) for text in texts)), "")
    for frame, text in zip(reversed(frames), reversed(texts), strict=True):
        for pattern, phases, words, term in DOING:
            if (not phases or phase in phases) and pattern.search(text):
                return Doing(phase, words, term, frame)
    return Doing(phase, "", "", frames[-1] if frames and phase else None)


def step_before(builder: Builder, at: int) -> int | None:
    """Return the last step that was logged above a place; bars of loading and preparing data count nothing."""
    window = builder.text[max(0, at - WINDOW) : at]
    best: int | None = None
    for found in _STEP.finditer(window):
        start = max(window.rfind("\n", 0, found.start()), window.rfind("\r", 0, found.start()), found.start() - 120) + 1
        if not _NO_STEP.search(window[start : found.start()]):
            best = int(found[1] or found[2])
    return best
