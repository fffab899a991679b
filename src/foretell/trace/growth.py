"""How a sequence grows: the parts that stay and the blocks that come once more each time, from three sequences in a row.

    first   a b c d            a b c d
    second  a b b c d    ->    a (b)+ c d
    third   a b b b c d

Sequences are arrays of numbers that stand for what happens.  Where they part, one block is missing from the first that the
second has once and the third twice; which one is tried out, the one after which they agree longest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Numbers", "Piece", "Sequence3", "growth"]

Numbers = NDArray[np.int64]

_TRIES = 20_000
"""Most blocks that are tried before it is given up (about 0.1 s)."""
_COMPARED = 10**8
"""Most numbers that are compared before it is given up (about 0.1 s)."""
_AHEAD = 8
"""Numbers of a block that are compared for all its possible lengths at once."""
_WINDOW = 256
"""Numbers compared at once; doubled as long as they agree."""


class Piece(NamedTuple):
    """A part of the three sequences."""

    starts: tuple[int, int, int]
    """Where it begins in each of them."""
    length: int
    """In the first sequence."""
    period: int
    """By how much it is longer in each following one, where its numbers repeat at this distance; 0: it does not grow."""

    @property
    def places(self) -> int:
        """Return how many numbers come before one comes again."""
        return self.period or self.length

    def grown(self, more: int) -> int:
        """Return its length in the sequence that comes ``more`` after the first."""
        return self.length + more * self.period


@dataclass(slots=True)
class Sequence3:
    """Three sequences, and what of their numbers is enough to go on where they part."""

    exact: tuple[Numbers, Numbers, Numbers]
    loose: tuple[Numbers, Numbers, Numbers]
    """Numbers that say less (not how many bytes)."""
    sizes: tuple[Numbers, Numbers, Numbers] | None = None
    """What may grow by the same amount each time where only the loose numbers agree; below 0: may not."""

    def stretched(self, at: tuple[int, int, int]) -> bool:
        """Say whether the three differ at these places in a size alone that grows evenly."""
        if self.sizes is None or any(i >= len(s) for i, s in zip(at, self.loose, strict=True)):
            return False
        a, b, c = (int(s[i]) for i, s in zip(at, self.loose, strict=True))
        x, y, z = (int(s[i]) for i, s in zip(at, self.sizes, strict=True))
        return a == b == c and x >= 0 and y - x == z - y != 0


class _TooMuch(Exception):  # noqa: N818  # the work is
    """More work than a growth is worth."""


def growth(given: Sequence3) -> list[Piece] | None:
    """Return the pieces that make all three sequences; None: no such are found.

    >>> a, b, c = (np.array(list(map(ord, s))) for s in ("abcd", "abcbcd", "abcbcbcd"))
    >>> [(piece.length, piece.period) for piece in growth(Sequence3((a, b, c), (a, b, c))) or ()]
    [(1, 0), (2, 2), (1, 0)]
    """
    lengths = [len(s) for s in given.exact]
    if lengths[1] - lengths[0] != lengths[2] - lengths[1] or lengths[1] < lengths[0]:
        return None
    search = _Search(given)
    try:
        return search.run()
    except _TooMuch:
        return None


class _Choice(NamedTuple):
    """One way to go on: what was found up to where, and where all three agree again."""

    pieces: list[Piece]
    after: tuple[int, int, int]


class _Search:
    """Goes along the three sequences; where a choice turns out wrong, the next one is tried."""

    def __init__(self, given: Sequence3) -> None:
        self.given = given
        self.lengths = tuple(len(s) for s in given.exact)
        self.tries = self.compared = 0

    def run(self) -> list[Piece] | None:
        """Return the pieces of the first way that reaches the end."""
        chosen: list[Piece] = []
        depth: list[int] = []  # of `chosen` before each choice
        waiting: list[Iterator[_Choice]] = [iter([_Choice([], (0, 0, 0))])]
        depth.append(0)
        while waiting:
            choice = next(waiting[-1], None)
            del chosen[depth[-1] :]
            if choice is None:
                waiting.pop()
                depth.pop()
                continue
            self._work(1)
            chosen += choice.pieces
            same = self._common(choice.after)
            parted = tuple(i + same for i in choice.after)
            if parted == self.lengths:
                return [*chosen, Piece(choice.after, same, 0)]
            waiting.append(self._choices(choice.after, same))
            depth.append(len(chosen))
        return None

    def _work(self, tries: int = 0, compared: int = 0) -> None:
        self.tries += tries
        self.compared += compared
        if self.tries > _TRIES or self.compared > _COMPARED:
            raise _TooMuch

    def _common(self, starts: tuple[int, ...], limit: int | None = None) -> int:
        """Return how long the three agree from these places on."""
        a, b, c = self.given.exact
        i, j, k = starts
        most = min(len(a) - i, len(b) - j, len(c) - k)
        most = most if limit is None else min(most, limit)
        done, window = 0, _WINDOW
        while done < most:
            end = min(done + window, most)
            self._work(compared=end - done)
            x = a[i + done : i + end]
            differ = (x != b[j + done : j + end]) | (x != c[k + done : k + end])
            if differ.any():
                return done + int(differ.argmax())
            done, window = end, window * 2
        return done

    def _choices(self, since: tuple[int, int, int], same: int) -> Iterator[_Choice]:
        """Yield the ways to go on from where the three part, ``same`` numbers after ``since``."""
        at = since[0] + same, since[1] + same, since[2] + same
        found = []
        for period in self._periods(at):
            after = at[0], at[1] + period, at[2] + 2 * period
            found.append((-self._common(after, limit=4 * _WINDOW), period, after))
        if self.given.stretched(at):
            after = at[0] + 1, at[1] + 1, at[2] + 1
            found.append((-1 - self._common(after, limit=4 * _WINDOW), 0, after))
        for _, period, after in sorted(found):
            if not period:
                yield _Choice([Piece(since, same + 1, 0)], after)
                continue
            back = self._back(since[1], at[1], period)
            start = since[0] + same - back, since[1] + same - back, since[2] + same - back
            yield _Choice([Piece(since, same - back, 0), Piece(start, back, period)], after)

    def _periods(self, at: tuple[int, int, int]) -> list[int]:
        """Return the lengths of a block that is once in the second and twice in the third sequence, and after which all agree."""
        _, b, c = self.given.exact
        loose = self.given.loose
        i, j, k = at
        most = (len(b) - j) - (len(loose[0]) - i)  # by how much the second is still longer
        if most <= 0:
            return []
        if i == len(loose[0]):
            sizes = np.array([most])
        else:
            self._work(compared=2 * most)
            sizes = np.arange(1, most + 1)
            sizes = sizes[(loose[1][j + sizes] == loose[0][i]) & (loose[2][k + 2 * sizes] == loose[0][i])]
        for ahead in range(_AHEAD):  # few are left to be compared as a whole
            self._work(compared=len(sizes))
            at_most = np.minimum(ahead, sizes - 1)
            sizes = sizes[c[k + sizes + at_most] == b[j + at_most]]
        out = []
        for period in sizes.tolist():
            self._work(tries=1, compared=2 * period)
            block = b[j : j + period]
            if (block == c[k : k + period]).all() and (block == c[k + period : k + 2 * period]).all():
                out.append(period)
        return out

    def _back(self, since: int, at: int, period: int) -> int:
        """Return how far before ``at`` the second sequence already repeats itself at this distance."""
        b = self.given.exact[1]
        self._work(compared=at - since)
        differ = b[since:at] != b[since + period : at + period]
        return at - since if not differ.any() else int(differ[::-1].argmax())
