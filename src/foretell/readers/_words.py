"""Words of a shell: quotes, variables, ``${VAR:-default}``, arrays and plain arithmetic, with the place that wrote them.

What a shell would have to compute stays as it is written, and the word says so (``opaque``).
"""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._pieces import LONGEST, Piece, Word, between, split, word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_WORDS", "Cursor"]

MOST_WORDS: Final = 20_000
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_PLAIN: Final = re.compile(r"[^\s\\'\"$`;|&()<>]+")
_INSIDE: Final = re.compile(r'[^"\\$`]+')
_DEFAULTS: Final = 16
"""Most defaults inside of defaults."""
_ARITHMETIC: Final = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
                      ast.Div: operator.floordiv, ast.Mod: operator.mod}  # fmt: skip


_Expanded = tuple[tuple[Piece, ...], "list[Word] | None"]
"""What an expansion comes to, and its words where it makes several."""


class _Parts:
    """The parts of a word that is being read."""

    def __init__(self, start: int, line: int) -> None:
        self.start, self.line = start, line
        self.pieces: list[Piece] = []
        self.length, self.count = 0, 0
        self.quoted, self.literal = False, True
        self.several: list[Word] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is none yet."""
        return self.count == 0 and not self.quoted

    def add(self, pieces: Sequence[Piece], *, literal: bool = True, several: list[Word] | None = None) -> None:
        """Add a part; ``several``: the words that it makes where it stands alone."""
        self.several = several if self.count == 0 else None
        self.pieces += pieces
        self.count += 1
        self.length += sum(len(piece.text) for piece in pieces)
        self.literal = self.literal and literal

    def words(self, end: int, *, assigned: bool) -> list[Word]:
        """Return the words that the parts make."""
        if self.count == 1 and self.several is not None and not (assigned and len(self.several) != 1):
            return self.several
        if self.empty:
            return []
        made = word_of(self.pieces, self.line, self.start, quoted=self.quoted)
        if not self.literal:
            return [made]
        return [Word(made.text, self.line, self.start, end, self.quoted, made.opaque, made.pieces)]


class Cursor:
    """A place in a text, and what its variables hold there."""

    def __init__(self, text: str, path: str, base: int = 0) -> None:
        """Stand at the beginning; ``base``: where the text stands in the whole one."""
        self.text, self.path, self.base = text, path, base
        self.at, self.line = 0, 1
        self.values: dict[str, list[Word]] = {}
        self.arrays: set[str] = set()

    def word(self, *, assigned: bool = False) -> list[Word]:
        """Read one word; a variable may make several, or none."""
        made = _Parts(self.base + self.at, self.line)
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\n;|&()<>":
                break
            if self.text.startswith("\\\n", self.at):
                if not made.empty:
                    break
                self.step(2)
                made = _Parts(self.base + self.at, self.line)
            elif c == "\\":
                made.add(self._taken(2, skip=1), literal=False)
            elif c == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("has a quote without its end")
                made.add(self._taken(end - self.at, skip=1))
                made.quoted = True
                self.step()
            elif c == '"':
                inner, plain, several = self._double()
                made.quoted = True
                made.add(inner, literal=plain, several=several)
            elif c in "$`":
                found, several = self._expansion(quoted=False)
                made.add(found, literal=False, several=several)
            else:
                plain_text = _PLAIN.match(self.text, self.at)
                made.add(self._taken(len(plain_text[0]) if plain_text else 1))
            if made.length > LONGEST:
                raise self.error("holds too long a word")
        return made.words(self.base + self.at, assigned=assigned)

    def _double(self) -> tuple[list[Piece], bool, list[Word] | None]:
        """Read a double-quoted part: (what it holds, whether it is literal, the words of "${A[@]}")."""
        self.step()
        pieces: list[Piece] = []
        literal, length = True, 0
        several: list[Word] | None = None
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.step()
                return (pieces if several is None else between(several, " ")), literal, several
            made: Sequence[Piece]
            if c == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                made = self._taken(2, skip=2 if self.text[self.at + 1] == "\n" else 1)
                literal = False
            elif c in "$`":
                made, words = self._expansion(quoted=True)
                literal = False
                if words is not None and not pieces and self.text.startswith('"', self.at):
                    several = words
                    made = ()
            else:
                plain = _INSIDE.match(self.text, self.at)
                made = self._taken(len(plain[0]) if plain else 1)
            pieces += made
            length += sum(len(piece.text) for piece in made)
            if length > LONGEST:
                raise self.error("holds too long a word")
        raise self.error("has a quote without its end")

    def _taken(self, count: int, *, skip: int = 0, opaque: bool = False) -> tuple[Piece, ...]:
        """Step over characters, and return them without the first ``skip``."""
        start, line = self.at + skip, self.line
        self.step(count)
        text = self.text[start : self.at]
        return (Piece(text, self.base + start, line, opaque),) if text else ()

    def _expansion(self, *, quoted: bool) -> _Expanded:
        """Expand at a ``$`` or a backtick."""
        text, start = self.text, self.at
        if text[start] == "`":
            end = text.find("`", start + 1)
            return self._taken((len(text) if end < 0 else end + 1) - start, opaque=True), None
        if text.startswith("$((", start):
            return self._arithmetic(), None
        if text.startswith("$(", start):
            return self._taken(self._closing(start + 1, "(", ")") - start, opaque=True), None
        if text.startswith("${", start):
            given = self._taken(self._closing(start + 1, "{", "}") - start, opaque=True)
            return self._braced(text[start + 2 : self.at - 1], given, quoted)
        name = _NAME.match(text, start + 1)
        if name is None:
            given = self._taken(
                2 if text[start + 1 : start + 2] in "@*#?$!-0123456789" and start + 1 < len(text) else 1, opaque=True
            )
            if given[0].text == "$":
                return (given[0]._replace(opaque=False),), None
            return given, [] if given[0].text in ("$@", "$*") else None
        return self._value(name[0], given=self._taken(name.end() - start, opaque=True), quoted=quoted)

    def _value(self, name: str, *, given: tuple[Piece, ...], quoted: bool) -> _Expanded:
        """Return what a variable holds, or the reference itself as opaque text."""
        if name not in self.values:
            return given, None
        words = self.values[name]
        if name in self.arrays:
            return (words[0].parts if words else ()), None
        word = words[0]
        return word.parts, [word] if quoted else split(word)

    def _braced(self, inner: str, given: tuple[Piece, ...], quoted: bool) -> _Expanded:  # passed on
        """Expand ``${...}``."""
        name = _NAME.match(inner)
        if name is None:
            return given, None
        rest, key = inner[name.end() :], name[0]
        known = self.values.get(key)
        if rest in ("[@]", "[*]"):
            if known is None:
                return given, None
            return tuple(between(known, " ")), [*known] if quoted else [part for word in known for part in split(word)]
        if not rest:
            return self._value(key, given=given, quoted=quoted)
        fallback = re.fullmatch(r":?([-=?+])(.*)", rest, re.DOTALL)
        if fallback is None:
            return given, None
        has = known is not None and (not rest.startswith(":") or bool(known and known[0].text))
        if fallback[1] == "+":
            return ((Piece(fallback[2], -1, self.line),), None) if has else ((), [])
        if has:
            return self._value(key, given=given, quoted=quoted)
        if fallback[1] == "?" or len(fallback[2]) > LONGEST or inner.count("${") > _DEFAULTS:
            return given, None
        sub = Cursor(fallback[2], self.path, self.base + self.at - 1 - len(fallback[2]))
        sub.values, sub.arrays, sub.line = self.values, self.arrays, given[0].line
        sub.line += inner.count("\n", 0, len(inner) - len(fallback[2]))
        return tuple(between(sub.words(), " ")), None

    def words(self) -> list[Word]:
        """Read the words of a default value."""
        out: list[Word] = []
        while self.at < len(self.text):
            before = self.at
            out += self.word()
            if self.at == before:
                self.step()
        return out

    def _arithmetic(self) -> tuple[Piece, ...]:
        end = self.text.find("))", self.at)
        given = self._taken((len(self.text) if end < 0 else end + 2) - self.at, opaque=True)
        body = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: self._number(m[1]), given[0].text[3:-2])
        value = _calculated(body)
        return given if value is None else (Piece(str(value), -1, given[0].line),)

    def _number(self, name: str) -> str:
        words = self.values.get(name)
        return words[0].text if words and re.fullmatch(r"\d{1,12}", words[0].text) else "x"

    def _closing(self, start: int, left: str, right: str) -> int:
        """Return the place behind the bracket that closes the one at ``start``."""
        depth, at = 0, start
        while at < len(self.text):
            c = self.text[at]
            depth += (c == left) - (c == right)
            at += 1
            if depth == 0:
                return at
        return at

    def step(self, count: int = 1) -> None:
        """Go on."""
        end = min(self.at + count, len(self.text))
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def error(self, problem: str) -> ConfigError:
        """Make the error of this place."""
        return ConfigError(problem, where=f"{self.path}:{self.line}")


def _calculated(text: str) -> int | None:
    """Return what plain arithmetic on whole numbers comes to, or None."""
    if len(text) > 200:  # nobody writes longer
        return None
    try:
        value = _folded(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError, KeyError, TypeError):
        return None
    return value if abs(value) < 10**15 else None


def _folded(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        value: int = _ARITHMETIC[type(node.op)](_folded(node.left), _folded(node.right))
        if abs(value) > 10**15:
            raise ValueError
        return value
    raise TypeError
