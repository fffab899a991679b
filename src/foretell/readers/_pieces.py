"""Words of a shell in pieces, each with the place that wrote it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LONGEST", "Piece", "Word", "between", "cut", "joined", "split", "word_of"]

LONGEST: Final = 65_536
"""Characters of one expanded word."""
_PIECES: Final = 1024
"""Most pieces of one word that keep their places."""


class Piece(NamedTuple):
    """Characters of a word that stand together in the text."""

    text: str
    start: int
    """Where; negative: nowhere."""
    line: int
    opaque: bool = False
    """Only a shell could compute it."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, expanded as far as that is known."""

    text: str
    line: int
    start: int
    end: int
    """Characters of the text that wrote it; equal where it has no place of its own."""
    quoted: bool = False
    opaque: str = ""
    """What of it only a shell could compute."""
    pieces: tuple[Piece, ...] = field(default=(), repr=False, compare=False)
    """What it is made of, where that is not the plain characters from ``start`` to ``end``."""

    @property
    def parts(self) -> tuple[Piece, ...]:
        """Return its pieces."""
        placed = self.end - self.start == len(self.text)
        return self.pieces or (Piece(self.text, self.start if placed else -1, self.line, bool(self.opaque)),)


def split(word: Word) -> list[Word]:
    """Split the value of an unquoted variable at its blanks; what a shell would compute stays one word."""
    parts = word.parts
    text = "".join(re.sub(r"\s", "_", piece.text) if piece.opaque else piece.text for piece in parts)
    if not re.search(r"\s", text):
        return [word] if text else []
    offsets = _offsets(parts)
    found = [m for m in re.finditer(r"\S+", text) if m[0] != "\\"]
    return [_slice(word, parts, offsets, m.start(), m.end()) for m in found]


def cut(word: Word, start: int, end: int | None = None) -> Word:
    """Return characters of a word, with the place that they have themselves."""
    parts = word.parts
    return _slice(word, parts, _offsets(parts), start, len(word.text) if end is None else end)


def _offsets(parts: Sequence[Piece]) -> list[int]:
    """Return where each piece begins in the word's text."""
    return [0, *accumulate(len(piece.text) for piece in parts)][:-1]


def _slice(word: Word, parts: Sequence[Piece], offsets: Sequence[int], start: int, end: int) -> Word:
    pieces: list[Piece] = []
    first = max(bisect_right(offsets, start) - 1, 0)
    for offset, piece in zip(offsets[first:], parts[first:], strict=True):
        if offset >= end:
            break
        low, high = max(start - offset, 0), min(end - offset, len(piece.text))
        place = piece.start + low if piece.start >= 0 else -1
        pieces.append(Piece(piece.text[low:high], place, piece.line + piece.text.count("\n", 0, low), piece.opaque))
    return word_of([piece for piece in pieces if piece.text], word.line, word.start, quoted=False)


def joined(words: Sequence[Word], text: str = " ") -> Word:
    """Put words together into one."""
    return word_of(between(words, text), words[0].line, words[0].start, quoted=True)


def between(words: Iterable[Word], text: str) -> list[Piece]:
    """Return the pieces of words, with something between them."""
    return [*chain.from_iterable(((Piece(text, -1, word.line),) if i and text else ()) + word.parts
                                 for i, word in enumerate(words))]  # fmt: skip


def word_of(pieces: Sequence[Piece], line: int, start: int, *, quoted: bool) -> Word:
    """Return the word of pieces, whose place is theirs where they stand together; else it begins at ``start``."""
    text = "".join(piece.text for piece in pieces)
    kept: list[Piece] = []
    for piece in pieces:
        last = kept[-1] if kept else None
        if last and not (last.opaque or piece.opaque) and last.start >= 0 and last.start + len(last.text) == piece.start:
            kept[-1] = last._replace(text=last.text + piece.text)
        else:
            kept.append(piece)
    opaque = next((piece.text for piece in kept if piece.opaque), "")
    if len(kept) == 1 and kept[0].start >= 0:
        line, start = kept[0].line, kept[0].start
    end = start + len(text) if len(kept) == 1 and kept[0].start >= 0 and not opaque else start
    if len(kept) > _PIECES or len(text) > LONGEST:
        text = text[:LONGEST]
        kept = [Piece(text, -1, line, bool(opaque))]
    return Word(text, line, start, end, quoted, opaque, tuple(kept))
