r"""Finding lines: a rule is looked for by a literal text, and its pattern is tried there alone, so that any text takes linear
time.  Patterns have bounded repeats only.

A builder keeps, of lines that repeat, the one that counts: a log of a million steps gives as many figures as one of ten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.readers.logs._log import LOWEST, Count, Counter, Figure, HostFailure, LogReading, Moment, Oom, Refusal, Retry, Told

__all__ = ["GAP", "NUMBER", "SIZE", "Builder", "Rule", "amount", "gauge", "mark", "number", "scan", "sentence", "tally"]

NUMBER: Final = r"-?[\d,]{1,19}(?:\.\d{1,12})?"
SIZE: Final = rf"({NUMBER})[ \n]?([Bb]ytes|B|[KMGT]i?B)\b"
"""An amount with its unit: two groups."""
GAP: Final = r"[\s#>│|*]{1,80}"
"""White space, as people wrap and quote it."""
REACH: Final = 600
"""Characters from the literal text on that a pattern may look at."""
KINDS: Final = 4000
"""Kinds of figures and counts that are kept."""
MESSAGES: Final = 400
"""Failures that are kept of each kind."""
MOST_HITS: Final = 200_000
"""Lines that one rule reads."""

_ANSI: Final = re.compile(r"(?:\x1b|#033|\\u001[bB]|\\x1b|\\033)\[[\d;]{0,16}[A-Za-z]")
_RANK: Final = re.compile(
    r"\[(rank ?\d{1,6})\]:?|\[default(\d{1,6})\]:|\(((?!pid\b)\w{1,40} pid=\d{1,9})[^)\n]{0,60}\)|\((pid=\d{1,9})[^)\n]{0,60}\)"
    r"|\[(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?) ((?:[A-Z]{2}\d{1,4} ?){1,5})\]|^(\d{1,5}): |^(\w[\w.-]{0,60}\s{0,9}\|) "
    r"|\[Rank (\d{1,6})\]"
)
"""Marks of a process at the head of a line: torchrun, vLLM and Ray, SGLang, srun --label, docker compose, Megatron."""
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "B": 1, "b": 1}
_DECIMAL: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BLOCK: Final = 4096


def number(text: str) -> float:
    """Return a printed number; what is none ("1.2.3") is 0.

    >>> number("1,234.5"), number("...")
    (1234.5, 0.0)
    """
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def amount(text: str, unit: str, *, decimal: bool = False) -> tuple[float, float]:
    """Return the bytes of a printed size, and half of its last digit.

    Frameworks write GB and mean 2^30 bytes; ``decimal``: this one means 10^9.

    >>> amount("2.00", "GiB"), amount("1.5", "GB", decimal=True), amount("512", "bytes")
    ((2147483648.0, 5368709.12), (1500000000.0, 50000000.0), (512.0, 0.5))
    """
    scale = _DECIMAL[unit[0]] if decimal and len(unit) == 2 and unit[0] in _DECIMAL else _BINARY[unit[0]]
    digits = len(text.partition(".")[2])
    return number(text) * scale, 0.5 * 10.0**-digits * scale


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of line: the literal text it has, a pattern that begins there (``back``: or so many characters before), and what
    to take of a match."""

    key: str
    pattern: re.Pattern[str]
    take: Callable[[Builder, re.Match[str]], None]
    back: int = 0
    reach: int = REACH
    most: int = MOST_HITS


@dataclass(slots=True)
class _Kept:
    """The line of its kind that counts, so far."""

    value: float
    within: float
    at: int
    said: str = ""
    times: int = 1


class Builder:
    """Collects what a log says."""

    def __init__(self, text: str, path: str, *, skipped: tuple[int, int] = (0, 0)) -> None:
        """Begin with nothing; ``skipped``: after so many lines of a large log, so many were left out."""
        self.text = _ANSI.sub("", text)
        self.path = path
        self.skipped = skipped
        self.ooms: list[Oom] = []
        self.notes: list[str] = []
        self._figures: dict[tuple[Counter, Moment, str, str, str], _Kept] = {}
        self._counts: dict[tuple[str, str, str], _Kept] = {}
        self._told: dict[str, Told] = {}
        self._messages: dict[type, dict[tuple[Any, ...], Any]] = {Retry: {}, HostFailure: {}, Refusal: {}}
        self._index: list[int] = [0]
        for start in range(0, len(self.text), _BLOCK):
            self._index.append(self._index[-1] + self.text.count("\n", start, start + _BLOCK))

    # -- places ---------------------------------------------------------------------------------------------
    def line(self, at: int) -> int:
        """Return the number of the line of a place, in the whole log."""
        block = at // _BLOCK
        found = self._index[block] + self.text.count("\n", block * _BLOCK, at) + 1
        return found + (self.skipped[1] if found > self.skipped[0] else 0)

    def head(self, at: int, most: int = 400) -> str:
        """Return the line of a place up to it."""
        left = max(0, at - most)
        start = max(self.text.rfind("\n", left, at), self.text.rfind("\r", left, at), left - 1) + 1
        return self.text[start:at]

    def rest(self, at: int, most: int = 400) -> str:
        """Return the line of a place from it on."""
        end = self.text.find("\n", at, at + most)
        return self.text[at : at + most if end < 0 else end]

    def before(self, at: int, most: int = 300) -> str:
        """Return the line above a place."""
        end = self.text.rfind("\n", max(0, at - most), at)
        if end < 0:
            return ""
        start = self.text.rfind("\n", max(0, end - most), end)
        return self.text[start + 1 if start >= 0 else max(0, end - most) : end]

    def rank(self, at: int) -> str:
        """Return the mark of the process whose line it is."""
        return mark(self.head(at))

    # -- what is found --------------------------------------------------------------------------------------
    def figure(
        self,
        at: int,
        counter: Counter,
        size: tuple[float, float],
        source: str,
        said: str,
        *,
        moment: Moment = "now",
        label: str = "",
    ) -> None:
        """Note an amount; of equal kinds the one that counts is kept."""
        key = (counter, moment, source, label, self.rank(at))
        old = self._figures.get(key)
        if old is None:
            if len(self._figures) < KINDS:
                self._figures[key] = _Kept(size[0], size[1], at, said)
            return
        old.times += 1
        if size[0] < old.value if counter in LOWEST else size[0] > old.value:
            old.value, old.within, old.at, old.said = size[0], size[1], at, said

    def count(self, at: int, name: str, value: float, source: str) -> None:
        """Note something that is not memory."""
        key = (name, source, self.rank(at))
        old = self._counts.get(key)
        if old is not None:
            old.value, old.at, old.times = value, at, old.times + 1
        elif len(self._counts) < KINDS:
            self._counts[key] = _Kept(value, 0.0, at)

    def tell(self, at: int, name: str, value: str, source: str) -> None:
        """Note a setting; the first one stays."""
        if name not in self._told and len(value) <= 200:
            self._told[name] = Told(name, value, self.line(at), source)

    def message(self, made: Retry | HostFailure | Refusal) -> None:
        """Note a failure; an equal one only counts."""
        kept = self._messages[type(made)]
        key = tuple(
            getattr(made, name) for name in ("kind", "tried", "free", "needed", "held_tokens", "share") if hasattr(made, name)
        )
        old = kept.get(key)
        if old is not None:
            kept[key] = replace(old, times=old.times + 1)
        elif len(kept) < MESSAGES:
            kept[key] = made

    def reading(self) -> LogReading:
        """Return the log, in the order of its lines."""
        text = self.text
        figures = [
            Figure(counter, one.value, one.within, moment, self.line(one.at), source, one.said, label, rank, one.times)
            for (counter, moment, source, label, rank), one in self._figures.items()
        ]
        counts = [
            Count(name, one.value, self.line(one.at), source, rank, one.times)
            for (name, source, rank), one in self._counts.items()
        ]
        return LogReading(
            path=self.path,
            lines=self._index[-1] + (1 if text and not text.endswith("\n") else 0) + self.skipped[1],
            figures=tuple(sorted(figures, key=_line)),
            counts=tuple(sorted(counts, key=_line)),
            ooms=tuple(sorted(self.ooms, key=_line)),
            retries=tuple(sorted(self._messages[Retry].values(), key=_line)),
            refusals=tuple(sorted(self._messages[Refusal].values(), key=_line)),
            hosts=tuple(sorted(self._messages[HostFailure].values(), key=_line)),
            told=tuple(sorted(self._told.values(), key=_line)),
            notes=tuple(dict.fromkeys(self.notes)),
        )


def _line(found: Any) -> int:  # anything with a line
    return int(found.line)


def mark(head: str) -> str:
    """Return the mark of the process at the head of a line.

    >>> mark("[rank3]: Traceback"), mark("(EngineCore_DP0 pid=18799) ERROR"), mark("plain")
    ('rank3', 'EngineCore_DP0 pid=18799', '')
    """
    found = _RANK.search(head[:160])
    if found is None:
        return ""
    which = next(i for i, part in enumerate(found.groups(), 1) if part is not None)
    part = str(found[which]).strip()
    return f"rank{part}" if which in (2, 6, 8) else part.replace("rank ", "rank")


def scan(builder: Builder, rules: Iterable[Rule]) -> None:
    """Apply rules to a log."""
    text = builder.text
    for rule in rules:
        at, left, done = text.find(rule.key), rule.most, 0
        while at >= 0 and left:
            start = max(done, at - rule.back)
            if rule.back:
                found = rule.pattern.search(text, start, at + rule.reach)
            else:
                found = rule.pattern.match(text, start, at + rule.reach)
            if found is not None:
                rule.take(builder, found)
                left, done = left - 1, found.end()
            at = text.find(rule.key, max(at + len(rule.key), done))


def sentence(template: str) -> re.Pattern[str]:
    r"""Return the pattern of a line: ``%`` is a number, ``@`` an amount with its unit, ``~`` any text of at most 90 characters.

    >>> sentence("took @ and % s").match("took 1.5 GiB and\n 3 s").groups()
    ('1.5', 'GiB', '3')
    """
    parts = {"%": f"({NUMBER})", "@": SIZE, " ": GAP, "~": r"[^\n]{0,90}?"}
    return re.compile("".join(parts.get(c) or re.escape(c) for c in template))


def key_of(template: str) -> str:
    """Return the literal text that a line of this kind has."""
    return re.split(r"[%@~]", template)[0].rstrip()


def gauge(
    source: str,
    template: str,
    *counters: Counter,
    moment: Moment = "now",
    unit: str = "",
    decimal: bool = False,
    whole: bool = False,
    label: Callable[[Builder, re.Match[str]], str] | str = "",
) -> Rule:
    """Make the rule of a line with amounts, one for each ``@`` (with ``unit``: for each ``%``) of its template.

    ``decimal``: its GB are 10^9 bytes.  ``whole``: it cuts decimals off.
    """
    step = 1 if unit else 2

    def take(builder: Builder, found: re.Match[str]) -> None:
        note = label if isinstance(label, str) else label(builder, found)
        for i, counter in enumerate(counters):
            text, named = found[1 + i * step], unit or found[2 + i * step]
            size = amount(text, named, decimal=decimal)
            if whole:
                size = (size[0] + size[1], size[1])
            builder.figure(found.start(), counter, size, source, f"{text} {named}", moment=moment, label=note)

    return Rule(key_of(template), sentence(template), take)


def tally(source: str, template: str, *names: str, key: str = "", back: int = 0) -> Rule:
    """Make the rule of a line with numbers, one for each ``%`` of its template; an empty name is left out."""

    def take(builder: Builder, found: re.Match[str]) -> None:
        for i, name in enumerate(names, 1):
            if name:
                builder.count(found.start(), name, number(found[i]), source)

    return Rule(key or key_of(template), sentence(template), take, back)
