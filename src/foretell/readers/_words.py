"""Words of a shell: quotes, variables, ``${VAR:-default}``, arrays and plain arithmetic, with the place that wrote them.

What a shell would have to compute stays as it is written, and the word says so (``opaque``).
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, replace
from typing import Final

from foretell.errors import ConfigError

__all__ = ["MOST_WORDS", "Cursor", "Word", "joined"]

MOST_WORDS: Final = 20_000
_LENGTH: Final = 65_536
"""Characters of one expanded word."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_PLAIN: Final = re.compile(r"[^\s\\'\"$`;|&()<>]+")
_INSIDE: Final = re.compile(r'[^"\\$`]+')
_DEFAULTS: Final = 16
"""Most defaults inside of defaults."""
_ARITHMETIC: Final = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
                      ast.Div: operator.floordiv, ast.Mod: operator.mod}  # fmt: skip


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


class _Parts:
    """The parts of a word that is being read."""

    def __init__(self, start: int, line: int) -> None:
        self.start, self.line = start, line
        self.texts: list[str] = []
        self.length = 0
        self.opaque, self.quoted, self.literal = "", False, True
        self.several: list[Word] | None = None

    def add(self, text: str, opaque: str = "", *, literal: bool = True, several: list[Word] | None = None) -> None:
        """Add a part; ``several``: the words that it makes where it stands alone."""
        self.several = several if not self.texts else None
        self.texts.append(text)
        self.length += len(text)
        self.opaque, self.literal = self.opaque or opaque, self.literal and literal

    def words(self, end: int, *, assigned: bool) -> list[Word]:
        """Return the words that the parts make."""
        if len(self.texts) == 1 and self.several is not None and not (assigned and len(self.several) != 1):
            return self.several
        if not self.texts and not self.quoted:
            return []
        place = end if self.literal else self.start
        return [Word("".join(self.texts), self.line, self.start, place, self.quoted, self.opaque)]


class Cursor:
    """A place in a text, and what its variables hold there."""

    def __init__(self, text: str, path: str) -> None:
        """Stand at the beginning."""
        self.text, self.path = text, path
        self.at, self.line = 0, 1
        self.values: dict[str, list[Word]] = {}
        self.arrays: set[str] = set()

    def word(self, *, assigned: bool = False) -> list[Word]:
        """Read one word; a variable may make several, or none."""
        made = _Parts(self.at, self.line)
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\n;|&()<>":
                break
            if self.text.startswith("\\\n", self.at):
                self.step(2)
                if made.texts or made.quoted:
                    break
                made = _Parts(self.at, self.line)
            elif c == "\\":
                made.add(self.text[self.at + 1 : self.at + 2], literal=False)
                self.step(2)
            elif c == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise self.error("has a quote without its end")
                made.add(self.text[self.at + 1 : end])
                made.quoted = True
                self.step(end + 1 - self.at)
            elif c == '"':
                text, hidden, plain, several = self._double()
                made.quoted = True
                made.add(text, hidden, literal=plain, several=several)
            elif c in "$`":
                text, hidden, several = self._expansion(quoted=False)
                made.add(text, hidden, literal=False, several=several)
            else:
                found = _PLAIN.match(self.text, self.at)
                made.add(found[0] if found else c)
                self.step(len(found[0]) if found else 1)
            if made.length > _LENGTH:
                raise self.error("holds too long a word")
        return made.words(self.at, assigned=assigned)

    def _double(self) -> tuple[str, str, bool, list[Word] | None]:
        """Read a double-quoted part: (text, what is opaque, whether it is literal, the words of "${A[@]}")."""
        self.step()
        parts: list[str] = []
        opaque, literal = "", True
        several: list[Word] | None = None
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.step()
                text = "".join(parts) if several is None else " ".join(word.text for word in several)
                return text, opaque, literal, several
            if c == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                if self.text[self.at + 1] != "\n":
                    parts.append(self.text[self.at + 1])
                self.step(2)
                literal = False
            elif c in "$`":
                found, hidden, words = self._expansion(quoted=True)
                opaque, literal = opaque or hidden, False
                if words is not None and not parts and self.text.startswith('"', self.at):
                    several = words
                else:
                    parts.append(found)
            else:
                found_plain = _INSIDE.match(self.text, self.at)
                parts.append(found_plain[0] if found_plain else c)
                self.step(len(parts[-1]))
            if len(parts) > _LENGTH:
                raise self.error("holds too long a word")
        raise self.error("has a quote without its end")

    def _expansion(self, *, quoted: bool) -> tuple[str, str, list[Word] | None]:
        """Expand at a ``$`` or a backtick: (text, what is opaque, words where it makes several)."""
        text, start = self.text, self.at
        if text[start] == "`":
            end = text.find("`", start + 1)
            self.step((len(text) if end < 0 else end + 1) - start)
            return text[start : self.at], text[start : self.at], None
        if text.startswith("$((", start):
            return self._arithmetic()
        if text.startswith("$(", start):
            self.step(self._closing(start + 1, "(", ")") - start)
            return text[start : self.at], text[start : self.at], None
        if text.startswith("${", start):
            self.step(self._closing(start + 1, "{", "}") - start)
            return self._braced(text[start + 2 : self.at - 1], text[start : self.at], quoted)
        name = _NAME.match(text, start + 1)
        if name is None:
            self.step(2 if text[start + 1 : start + 2] in "@*#?$!-0123456789" and start + 1 < len(text) else 1)
            given = text[start : self.at]
            return ("$", "", None) if given == "$" else (given, given, [] if given in ("$@", "$*") else None)
        self.step(name.end() - start)
        return self._value(name[0], given=text[start : self.at], quoted=quoted)

    def _value(self, name: str, *, given: str, quoted: bool) -> tuple[str, str, list[Word] | None]:
        """Return what a variable holds, or the reference itself as opaque text."""
        if name not in self.values:
            return given, given, None
        words = self.values[name]
        if name in self.arrays:
            first = words[0] if words else Word("", self.line, self.at, self.at)
            return first.text, first.opaque, None
        word = words[0]
        return word.text, word.opaque, [word] if quoted else _split(word)

    def _braced(self, inner: str, given: str, quoted: bool) -> tuple[str, str, list[Word] | None]:  # passed on
        """Expand ``${...}``."""
        name = _NAME.match(inner)
        if name is None:
            return given, given, None
        rest, key = inner[name.end() :], name[0]
        if rest in ("[@]", "[*]"):
            words = self.values.get(key)
            if words is None:
                return given, given, None
            parts = [*words] if quoted else [part for word in words for part in _split(word)]
            return " ".join(w.text for w in words), "", parts
        if not rest:
            return self._value(key, given=given, quoted=quoted)
        known = self.values.get(key)
        fallback = re.fullmatch(r":?([-=?+])(.*)", rest, re.DOTALL)
        if fallback is None:
            return given, given, None
        has = known is not None and (not rest.startswith(":") or bool(known and known[0].text))
        if fallback[1] == "+":
            return (fallback[2], "", None) if has else ("", "", [])
        if has:
            return self._value(key, given=given, quoted=quoted)
        if fallback[1] == "?":
            return given, given, None
        sub = Cursor(fallback[2], self.path)
        sub.values, sub.arrays, sub.line = self.values, self.arrays, self.line
        if len(fallback[2]) > _LENGTH or inner.count("${") > _DEFAULTS:
            return given, given, None
        words = sub.words()
        return " ".join(w.text for w in words), next((w.opaque for w in words if w.opaque), ""), None

    def words(self) -> list[Word]:
        """Read the words of a default value; they have no place of their own."""
        out: list[Word] = []
        while self.at < len(self.text):
            before = self.at
            out += self.word()
            if self.at == before:
                self.step()
        return [replace(word, line=self.line, start=0, end=0) for word in out]

    def _arithmetic(self) -> tuple[str, str, list[Word] | None]:
        start = self.at
        end = self.text.find("))", start)
        end = len(self.text) if end < 0 else end + 2
        self.step(end - start)
        given = self.text[start:end]
        body = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: self._number(m[1]), given[3:-2])
        value = _calculated(body)
        return (given, given, None) if value is None else (str(value), "", None)

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


def _split(word: Word) -> list[Word]:
    """Split the value of an unquoted variable at its blanks; parts keep their places where it was written literally."""
    if word.opaque:  # what a shell would compute stays one word
        word = replace(word, text=word.text.replace(word.opaque, re.sub(r"\s+", "_", word.opaque)))
    if not re.search(r"\s", word.text):
        return [word] if word.text else []
    base = word.start if word.end - word.start in (len(word.text), len(word.text) + 2) else -1
    base += word.quoted and base >= 0
    found = [m for m in re.finditer(r"\S+", word.text) if m[0] != "\\"]
    if base < 0:
        return [replace(word, text=m[0], end=word.start, quoted=False) for m in found]
    return [replace(word, text=m[0], start=base + m.start(), end=base + m.end(), quoted=False) for m in found]


def joined(words: list[Word], between: str = " ") -> Word:
    """Put words together into one."""
    text = between.join(word.text for word in words)
    return Word(text[:_LENGTH], words[-1].line, 0, 0, quoted=True, opaque=next((w.opaque for w in words if w.opaque), ""))


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
