"""A document: values by dotted key, each with its line and marked once looked at, so that nothing is dropped in silence."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ConfigError, nearest
from foretell.readers._tree import Node, json_tree, toml_tree, yaml_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Document", "Found", "parse_document"]

_AMOUNT: Final = re.compile(r"[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?")
_MOST_LAYERS: Final = 10_000
"""More than any model has."""
_REFERENCE: Final = re.compile(r"\$[({A-Za-z_]|`")
_TRUE: Final = frozenset(("true", "yes", "on", "1", "t", "y"))
_FALSE: Final = frozenset(("false", "no", "off", "0", "f", "n"))


@dataclass(frozen=True, slots=True)
class Found:
    """A value that is there (never null), with its key and its place; its readings raise ConfigError."""

    document: Document
    key: str
    node: Node

    @property
    def where(self) -> str:
        """Return "path:line"."""
        return self.document.where(self.node)

    @property
    def value(self) -> Any:  # whatever the document holds
        """Return plain data; all of it counts as looked at."""
        self.document.mark(self.node, deep=True)
        return self.node.plain()

    @property
    def said(self) -> str:
        """Return the value as it is written, shortened."""
        start, end = self.node.start, self.node.end
        text = self.node.raw if self.node.scalar else self.document.text[start : min(end, start + 200)]
        text = " ".join((text or str(self.node.plain())[:200]).split())
        return text if len(text) <= 60 else text[:57] + "..."

    def error(self, problem: str, *, allowed: Any = None, hint: str | None = None) -> ConfigError:  # as InputError
        """Make the error about this value."""
        if hint is None and _REFERENCE.search(self.node.raw):
            hint = "A shell or the environment gives it, which is not run: write the value itself"
        value = self.node.value if self.node.scalar else self.said
        return ConfigError(problem, field=self.key, value=value, allowed=allowed, where=self.where, hint=hint)

    def whole(self, *, minimum: int = 1, maximum: int = 10**12) -> int:
        """Return a whole number; "5e8" and 8.0 are such.  Layers are bounded: readers spell each out."""
        value = self._number()
        maximum = min(maximum, _MOST_LAYERS) if self.key.replace("-", "_").endswith("layers") else maximum
        if value is None or not math.isfinite(value) or value != math.floor(value) or not minimum <= value <= maximum:
            raise self.error("must be a whole number", allowed=f"{minimum} to {maximum}")
        return int(value)

    def real(self, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
        """Return a finite number in the range."""
        value = self._number()
        if value is None or not math.isfinite(value) or not minimum <= value <= maximum:
            raise self.error("must be a number", allowed=f"{minimum:g} to {maximum:g}")
        return float(value)

    def _number(self) -> float | None:
        value = self.node.value
        if isinstance(value, bool):
            return None
        if isinstance(value, str):
            return float(value.replace("_", "")) if len(value) <= 40 and _AMOUNT.fullmatch(value.strip()) else None
        return value if isinstance(value, int | float) else None

    def flag(self) -> bool:
        """Return true or false, however it is written."""
        value = self.node.value
        if isinstance(value, bool):
            return value
        word = str(value).strip().casefold() if self.node.scalar else ""
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise self.error("must be true or false", allowed=("true", "false"))

    def text(self) -> str:
        """Return text as it is written ("2" for 2)."""
        if not self.node.scalar:
            raise self.error("must be text")
        return str(self.node.value) if self.node.quoted else self.node.raw

    def choice(self, table: Mapping[str, Any]) -> Any:  # what the table holds
        """Return what a table holds for this word, whatever its case."""
        word = self.text().strip().casefold()
        if word not in table:
            raise self.error("is not known here", allowed=nearest(word, table) or sorted(table))
        return table[word]

    def listed(self) -> tuple[str, ...]:
        """Return the words of a list, or of text with commas or blanks between them."""
        self.document.mark(self.node, deep=True)
        if isinstance(self.node.value, list):
            if not all(child.scalar for child in self.node.value):
                raise self.error("must be a list of words")
            return tuple(str(child.value) if child.quoted else child.raw for child in self.node.value)
        return tuple(re.split(r"[,\s]+", self.text().strip("[](){} ")))

    def mapping(self) -> dict[str, Node]:
        """Return a mapping's nodes."""
        if not isinstance(self.node.value, dict):
            raise self.error("must be a mapping")
        return self.node.value


@dataclass(eq=False)
class Document:
    """One file, or the arguments of one command."""

    path: str
    text: str
    form: str
    """yaml, json, toml or arguments."""
    root: Node
    seen: set[int] = field(default_factory=set, repr=False)

    def where(self, node: Node) -> str:
        """Return "path:line"."""
        return f"{self.path}:{node.line}"

    def mark(self, node: Node, *, deep: bool = False) -> None:
        """Count a value as looked at."""
        self.seen.add(id(node))
        if deep:
            for _, child in node.children():
                if id(child) not in self.seen:
                    self.mark(child, deep=True)

    def at(self, key: str) -> Node | None:
        """Return the node at a dotted key ("a.b[0].c"), null or not, and count nothing."""
        node: Node | None = self.root
        if isinstance(self.root.value, dict) and key in self.root.value:
            return self.root.value[key]  # a key with dots of its own
        for part in re.findall(r"\[\d+\]|[^.\[]+", key):
            if node is None:
                return None
            value = node.value
            if part.startswith("["):
                i = int(part[1:-1])
                node = value[i] if isinstance(value, list) and i < len(value) else None
            else:
                node = value.get(part) if isinstance(value, dict) else None
        return node

    def get(self, *keys: str) -> Found | None:
        """Return the first of the keys that has a value; all of them count as looked at, nulls too."""
        out: Found | None = None
        for key in keys:
            node = self.at(key)
            if node is None:
                continue
            self.mark(node)
            if node.value is not None and out is None:
                out = Found(self, key, node)
        return out

    def has(self, key: str) -> bool:
        """Whether the key is there, even as null."""
        return self.at(key) is not None

    def keys(self) -> tuple[str, ...]:
        """Return the keys of the top level."""
        return tuple(self.root.value) if isinstance(self.root.value, dict) else ()

    def entries(self, key: str) -> Iterator[str]:
        """Yield "key[0]", "key[1]" ... of a list."""
        node = self.at(key)
        if node is not None and isinstance(node.value, list):
            yield from (f"{key}[{i}]" for i in range(len(node.value)))

    def untouched(self) -> Iterator[Found]:
        """Yield every value that nobody looked at: scalars, lists of scalars, empty collections; nulls too."""
        done: set[int] = set()
        stack: list[tuple[str, Node]] = [("", self.root)]
        while stack:
            key, node = stack.pop()
            if id(node) in done:
                continue
            done.add(id(node))
            leaf = node.scalar or not node.value or (isinstance(node.value, list) and all(c.scalar for c in node.value))
            if leaf:
                if id(node) not in self.seen:
                    yield Found(self, key, node)
                continue
            stack.extend(
                (f"{key}{name}" if name.startswith("[") else f"{key}.{name}" if key else name, child)
                for name, child in reversed([*node.children()])
            )


def parse_document(text: str, path: str) -> Document:
    """Return the document of a text, by the ending of its path; files without a known one are tried as YAML."""
    lower = path.casefold()
    form = "json" if lower.endswith((".json", ".jsonc")) else "toml" if lower.endswith(".toml") else "yaml"
    tree = {"json": json_tree, "toml": toml_tree, "yaml": yaml_tree}[form](text, path)
    return Document(path, text, form, tree)


def first(documents: Iterable[Document], *keys: str) -> Found | None:
    """Return what the first document that gives one of the keys holds; all of them count as looked at."""
    out: Found | None = None
    for document in documents:
        found = document.get(*keys)
        out = out or found
    return out
