"""From recordings with a few equal layers to the recording with all of them.

A longer model's events are those of a shorter one with blocks of events put in once more for each layer: one in a forward
pass, one in a backward pass, and in an optimizer that goes over all tensors at a time one in each of its sweeps.  Three
recordings, each with one repetition more than the one before, show the blocks (:mod:`foretell.trace.growth`).

Phase by phase, first the allocations alone are aligned.  That gives every storage an identity that does not depend on the
number of layers: its place among what stays, or its place in a block and the number of the block.  Then all events are aligned,
each told by the identity of its storage, and the block numbers in an event that comes back with every layer must go up or
down with it: the first layer's gradients are made last and freed first.

The continued recording has the module paths of the whole model where the number in a path goes with the number of the block,
and those of the recorded layers elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from foretell.trace.events import Phase, Recording, Storage
from foretell.trace.growth import Numbers, Piece, Sequence3, growth

__all__ = ["lengthen", "same_events"]

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's path that is a number."""
_FREE_SIZE = re.compile(r"empty|zeros|ones|full|rand|range|resize|^$")
"""Operators whose output has whatever size was asked for.  That of others (a ``cat`` of all layers) follows from their inputs."""
_TELLING = (True, False), (False, False), (True, True), (False, True)
"""What tells a storage beside its operator, bytes, stream and category, as it is tried out: its module (whose backward pass made
it is not always known for sure), and the frees around it (where one stretch of allocations looks like the next)."""
_GIVEN = 3
"""Recordings that are compared."""
Three = tuple[Recording, Recording, Recording]
Path = Callable[[int, int], str]
"""(recordings after the first, number of the block) -> path of a module."""


def lengthen(three: Recording, four: Recording, five: Recording, more: int) -> Recording | None:
    """Return the recording with ``more`` repetitions than ``three``; each of the others has one more than the one before.

    None: they do not grow evenly, event for event.  That they do is checked on all three; what the layers that were never
    recorded do is the caller's to know.
    """
    given = three, four, five
    kinds = [[(p.name, p.step, p.micro) for p in r.phases] for r in given]
    if not kinds[0] == kinds[1] == kinds[2]:
        return None
    for modules, frees in _TELLING:
        found = _Growth(given, modules=modules, frees=frees)
        if all(found.phase(i) for i in range(len(three.phases))):
            again = found.made(_GIVEN - 1)
            if again is not None and same_events(again, five):
                return found.made(more)
    return None


def same_events(one: Recording, other: Recording) -> bool:
    """Say whether two recordings are the same: operators, bytes, phases, streams, categories, and which storage goes when."""
    if len(one.order) != len(other.order) or len(one.storages) != len(other.storages):
        return False
    numbers: tuple[dict[int, int], dict[int, int]] = {}, {}
    for x, y in zip(one.order, other.order, strict=True):
        if (x >= 0) != (y >= 0):
            return False
        i, j = (x, y) if x >= 0 else (~x, ~y)
        if numbers[0].setdefault(i, len(numbers[0])) != numbers[1].setdefault(j, len(numbers[1])):
            return False
        if x >= 0 and _facts(one.storages[i]) != _facts(other.storages[j]):
            return False
    return [(p.name, p.step, p.micro, p.start) for p in one.phases] == [(p.name, p.step, p.micro, p.start) for p in other.phases]


def _facts(storage: Storage) -> tuple[int, str, int, int, str]:
    return storage.bytes, storage.op, storage.phase, storage.stream, storage.category


# -- identities ---------------------------------------------------------------------------------------------


class Who(NamedTuple):
    """A storage's identity in recordings of any length."""

    kind: int
    """Index into the kinds."""
    block: int
    """Number of the block; 0 for what does not come back with every layer."""


@dataclass(slots=True)
class Kind:
    """The storages that are made at one place: one, or one in each block."""

    count: int
    """In the first recording."""
    grows: bool
    """Whether each following recording has one more."""
    seen: tuple[dict[int, Storage], ...]
    """For each recording: number of the block -> storage."""
    path: Path | None
    """None: that of the storages that were seen."""

    def number(self, more: int) -> int:
        """Return how many there are in the recording that comes ``more`` after the first."""
        return self.count + more * self.grows

    def storage(self, more: int, block: int) -> Storage:
        """Return a storage of that recording."""
        first, second, last = self.seen
        like = last.get(block) or last[max(last)]
        size = like.bytes if self.grows else first[0].bytes + more * (second[0].bytes - first[0].bytes)
        module = self.path(more, block) if self.path else like.module
        return Storage(size, like.op, like.phase, module, like.line, like.stream, like.category)


def _path(seen: tuple[dict[int, Storage], ...]) -> Path | None:
    """Return how the numbers in a module's path go with the number of the block; None: they do not, or there are none."""
    parts = {(r, block): _NUMBER.split(s.module) for r, blocks in enumerate(seen) for block, s in blocks.items()}
    numbers = {at: [int(n) for n in _NUMBER.findall(seen[at[0]][at[1]].module)] for at in parts}
    words = parts[_GIVEN - 1, 0]
    start, later = numbers[_GIVEN - 1, 0], numbers.get((_GIVEN - 1, 1), numbers[_GIVEN - 1, 0])
    before = numbers.get((_GIVEN - 2, 0), start)
    if any(p != words for p in parts.values()):
        return None
    by_block = [y - x for x, y in zip(start, later, strict=True)]
    by_more = [x - y for x, y in zip(start, before, strict=True)]

    def path(more: int, block: int) -> str:
        ahead = more - (_GIVEN - 1)
        made = [str(n + b * block + m * ahead) for n, b, m in zip(start, by_block, by_more, strict=True)]
        return "".join(word + number for word, number in zip(words, [*made, ""], strict=True))

    if any(path(r, block) != seen[r][block].module for r, block in parts):
        return None
    return path


class Rule(NamedTuple):
    """What an event does that may come back with every layer."""

    new: bool
    """It allocates."""
    kind: int
    upwards: bool
    """Each time with the next block's storage; else with that of the block before."""
    first: int
    """Number of the first one's block; counted from the last block where it is not upwards."""

    def block(self, time: int, count: int) -> int:
        """Return the number of the block at its ``time``-th coming, of ``count`` blocks."""
        return self.first + time if self.upwards else count - 1 - self.first - time


# -- growth -------------------------------------------------------------------------------------------------


class _Growth:
    """What is known of three recordings, phase by phase."""

    def __init__(self, given: Three, *, modules: bool, frees: bool) -> None:
        self.given, self.modules, self.frees = given, modules, frees
        self.bounds = [[*(p.start for p in r.phases), len(r.order)] for r in given]
        self.kinds: list[Kind] = []
        self.who: tuple[dict[int, Who], ...] = ({}, {}, {})
        """For each recording: index of a storage -> its identity."""
        self.phases: list[list[tuple[Piece, list[Rule]]]] = []
        self.words: dict[object, int] = {}

    def phase(self, index: int) -> bool:
        """Take in a phase; False: it does not grow evenly."""
        events = [r.order[b[index] : b[index + 1]] for r, b in zip(self.given, self.bounds, strict=True)]
        return self._identify(events) and self._follow(events)

    def _identify(self, events: list[list[int]]) -> bool:
        """Give what a phase allocates its identity."""
        exact, loose, sizes = [], [], []
        told = [[e for e in part if e >= 0 or self.frees] for part in events]
        for recording, part in zip(self.given, told, strict=True):
            storages = [recording.storages[e if e >= 0 else ~e] for e in part]
            about = [
                self._word((e >= 0, s.op, s.stream, s.category, self._module(s))) for e, s in zip(part, storages, strict=True)
            ]
            loose.append(about)
            exact.append([self._word((a, s.bytes)) for a, s in zip(about, storages, strict=True)])
            sizes.append([-1 if _FREE_SIZE.search(s.op) else s.bytes for s in storages])
        pieces = growth(Sequence3(_arrays(exact), _arrays(loose), _arrays(sizes)))
        for piece in pieces or ():
            self._kinds_of(piece, told)
        return pieces is not None

    def _module(self, storage: Storage) -> str:
        return _NUMBER.sub("*", storage.module) if self.modules else ""

    def _word(self, what: object) -> int:
        return self.words.setdefault(what, len(self.words))

    def _kinds_of(self, piece: Piece, told: list[list[int]]) -> None:
        """Make the kinds of a piece, and tell the storages which is theirs."""
        last = told[-1][piece.starts[-1] :]
        for place in range(piece.places):
            if last[place] < 0:
                continue
            seen: tuple[dict[int, Storage], ...] = ({}, {}, {})
            for r, (recording, part) in enumerate(zip(self.given, told, strict=True)):
                for block, at in enumerate(range(place, piece.grown(r), piece.places)):
                    index = part[piece.starts[r] + at]
                    self.who[r][index] = Who(len(self.kinds), block)
                    seen[r][block] = recording.storages[index]
            self.kinds.append(Kind(len(seen[0]), piece.period > 0, seen, _path(seen)))

    def _follow(self, events: list[list[int]]) -> bool:
        """Align all events of a phase, and find which storages come in each."""
        told = [[(e >= 0, self.who[r][e if e >= 0 else ~e]) for e in part] for r, part in enumerate(events)]
        words = _arrays([[2 * who.kind + new for new, who in part] for part in told])
        pieces = growth(Sequence3(words, words))
        if pieces is None:
            return False
        out: list[tuple[Piece, list[Rule]]] = []
        for piece in pieces:
            rules = [self._rule(piece, place, told) for place in range(piece.places)]
            known = [rule for rule in rules if rule is not None]
            if len(known) < len(rules):
                return False
            out.append((piece, known))
        self.phases.append(out)
        return True

    def _rule(self, piece: Piece, place: int, told: list[list[tuple[bool, Who]]]) -> Rule | None:
        """Return what an event at a place of a piece does; None: no rule tells the block."""
        seen = [[told[r][piece.starts[r] + at] for at in range(place, piece.grown(r), piece.places)] for r in range(_GIVEN)]
        new, who = seen[-1][0]
        counts = [self.kinds[who.kind].number(r) for r in range(_GIVEN)]
        for rule in (Rule(new, who.kind, True, who.block), Rule(new, who.kind, False, counts[-1] - 1 - who.block)):
            if all(rule.block(t, counts[r]) == w.block for r in range(_GIVEN) for t, (_, w) in enumerate(seen[r])):
                return rule
        return None

    # -- any number of repetitions --------------------------------------------------------------------------

    def made(self, more: int) -> Recording | None:
        """Return the recording that comes ``more`` after the first; None where it frees what is not there."""
        storages: list[Storage] = []
        order: list[int] = []
        phases: list[Phase] = []
        index: dict[Who, int] = {}
        freed: set[int] = set()
        for phase, pieces in zip(self.given[0].phases, self.phases, strict=True):
            phases.append(Phase(phase.name, phase.step, phase.micro, len(order)))
            for new, who in self._events(pieces, more):
                at = index.get(who)
                if new and at is None:
                    index[who] = len(storages)
                    order.append(len(storages))
                    storages.append(self.kinds[who.kind].storage(more, who.block))
                elif not new and at is not None and at not in freed:
                    freed.add(at)
                    order.append(~at)
                else:
                    return None
        return Recording(storages, order, phases, self._about(more))

    def _events(self, pieces: list[tuple[Piece, list[Rule]]], more: int) -> Iterator[tuple[bool, Who]]:
        """Yield a phase's events: is it an allocation, and whose."""
        for piece, rules in pieces:
            counts = [self.kinds[rule.kind].number(more) for rule in rules]
            for at in range(piece.grown(more)):
                time, place = divmod(at, piece.places)
                rule = rules[place]
                yield rule.new, Who(rule.kind, rule.block(time, counts[place]))

    def _about(self, more: int) -> dict[str, Any]:
        """Return what is said of the recordings; counts grow as they did."""
        a, b, c = (r.about for r in self.given)
        return {key: _counted(a.get(key), b.get(key), value, more) for key, value in c.items()}


def _counted(a: Any, b: Any, c: Any, more: int) -> Any:
    """Return a count, or a table of counts, that grows evenly; anything else as it was last."""
    if isinstance(c, dict) and isinstance(a, dict) and isinstance(b, dict):
        return {key: _counted(a.get(key), b.get(key), value, more) for key, value in c.items()}
    counts = all(isinstance(x, int) and not isinstance(x, bool) for x in (a, b, c))
    return a + more * (b - a) if counts and b - a == c - b else c


def _arrays(made: list[list[int]]) -> tuple[Numbers, Numbers, Numbers]:
    first, second, third = (np.array(part, dtype=np.int64) for part in made)
    return first, second, third
