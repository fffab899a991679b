"""Which matrices get an adapter, from a list of names or from a pattern over module paths, as PEFT reads both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foretell.readers._document import Found
    from foretell.readers._reading import Builder

__all__ = ["listed_targets", "spelled_out"]

_MOST: Final = 4096
"""Paths that a pattern is spelled out to."""
_ATTENTION: Final = ("self_attn", "attn", "attention", "self_attention")
"""What models call the module of attention; names of its matrices stand nowhere else."""
_NUMBER: Final = "\0"
"""Stands for any number, or any text."""


def listed_targets(b: Builder, found: Found) -> None:
    """Take ``target_modules``: names, "all-linear", or a pattern that whole paths match (peft ``check_target_module_exists``)."""
    if found.node.scalar:
        text = found.text().strip()
        if re.fullmatch(r"[\w.,\s-]+", text):
            _named(b, found, tuple(part for part in re.split(r"[,\s]+", text) if part))
            return
        paths = spelled_out(text)
        names = tuple(dict.fromkeys(path.rpartition(".")[2] for path in paths or ()))
        if not names or any(_NUMBER in name or not name for name in names):
            b.doubt(found, "memory", "a pattern that is not understood here says which matrices get an adapter: all are counted")
            b.set("lora_targets", ("all-linear",), found)
            return
        b.set("lora_targets", names, found, "the matrices that the pattern names")
        if any(part.isdecimal() for path in paths or () for part in path.split(".")):
            b.doubt(found, "less-memory", "only some layers get adapters: all are counted")
        return
    _named(b, found, found.listed())


def _named(b: Builder, found: Found, names: tuple[str, ...]) -> None:
    if any(name in ("all", "all-linear") for name in names):
        b.set("lora_targets", ("all-linear",), found)
    elif names:
        b.set("lora_targets", tuple(dict.fromkeys(map(_bare, names))), found)
    else:
        b.needs("lora_targets", f"{found.where} names no matrix")


def _bare(name: str) -> str:
    """Return a matrix of attention by its own name: "self_attn.q_proj" (PEFT compares the end of a path)."""
    inside, _, last = name.rpartition(".")
    return last if inside in _ATTENTION else name


def spelled_out(pattern: str) -> list[str] | None:
    """Return the paths that a simple pattern matches, with a mark for every number or wildcard; None where it is not simple."""
    if len(pattern) > _MOST:
        return None
    try:
        reader = _Pattern(pattern)
        made = reader.either()
    except ValueError:
        return None
    return made if reader.at == len(pattern) else None


class _Pattern:
    """Reads alternatives, groups, classes and repetitions; raises ValueError for the rest of what patterns can say."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def either(self, depth: int = 0) -> list[str]:
        """Read alternatives."""
        if depth > 20:
            raise ValueError
        out = self._sequence(depth)
        while self.text[self.at : self.at + 1] == "|":
            self.at += 1
            out += self._sequence(depth)
        return _bounded(out)

    def _sequence(self, depth: int) -> list[str]:
        out = [""]
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            part = self._repeated(self._one(depth))
            out = _bounded([head + tail for head in out for tail in part]) if len(out) * len(part) <= _MOST else _bounded(None)
        return out

    def _one(self, depth: int) -> list[str]:
        c = self.text[self.at]
        self.at += 1
        if c == "(":
            if self.text.startswith("?:", self.at):
                self.at += 2
            elif self.text.startswith("?", self.at):
                raise ValueError
            out = self.either(depth + 1)
            if self.text[self.at : self.at + 1] != ")":
                raise ValueError
            self.at += 1
            return out
        if c == "[":
            return self._class()
        if c == "\\":
            escaped = self.text[self.at : self.at + 1]
            self.at += 1
            return [_NUMBER] if escaped in ("d", "w") else [_plain(escaped)]
        if c in "^$":
            return [""]
        if c in "*+?{}":
            raise ValueError
        return [c]

    def _class(self) -> list[str]:
        end = self.text.find("]", self.at)
        inner = self.text[self.at : end]
        if end < 0 or not inner or inner.startswith("^"):
            raise ValueError
        self.at = end + 1
        return [*inner] if re.fullmatch(r"\w+", inner) else [_NUMBER]

    def _repeated(self, part: Sequence[str]) -> list[str]:
        found = re.match(r"[*+?]\??|\{\d+(?:,\d*)?\}", self.text[self.at :])
        if found is None:
            return [*part]
        self.at += found.end()
        if found[0][0] == "?":
            return ["", *part]
        if part in (["."], [_NUMBER]):
            return [_NUMBER]
        raise ValueError


def _plain(text: str) -> str:
    if not text or (text.isalnum() and text != "_"):
        raise ValueError
    return text


def _bounded(made: list[str] | None) -> list[str]:
    if made is None or len(made) > _MOST:
        raise ValueError
    return made
