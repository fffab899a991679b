"""Values of OmegaConf's files: ``${a.b}`` is the value of another key, in the documents that take precedence first.

Source: OmegaConf 2.3 ``grammar``, "Variable interpolation" and "Resolvers".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from foretell.readers._document import Document, Found, first
from foretell.readers._reading import Change
from foretell.readers._tree import Node, resolved

if TYPE_CHECKING:
    from foretell.readers._reading import Value

__all__ = ["Fields", "Values"]

_WHOLE: Final = re.compile(r"\$\{\s*([A-Za-z_][\w.\[\]-]*)\s*\}")
"""One reference, and nothing else."""
_ENVIRONMENT: Final = re.compile(r"\$\{\s*oc\.env:\s*[\w-]+\s*,\s*([^${}]*?)\s*\}")
"""A variable of the environment with a default, which is taken: the environment is not looked at."""
_DEEP: Final = 16


@dataclass(frozen=True)
class Values:
    """Documents in the order of precedence, read as one."""

    documents: tuple[Document, ...]
    prefix: str = ""
    """Of every key, where a file holds the configuration under a key of its own ("parameters.")."""

    def get(self, *keys: str) -> Found | None:
        """Return the first value of the keys, references followed; all of them count as looked at."""
        out = self.written(*keys)
        return None if out is None else self._followed(out)

    def written(self, *keys: str) -> Found | None:
        """Return the first value of the keys as it is written; all of them count as looked at."""
        return first(self.documents, *(self.prefix + key for key in keys))

    def has(self, key: str) -> bool:
        """Whether a document has the key, even as null."""
        return any(document.has(self.prefix + key) for document in self.documents)

    def place(self, key: str) -> Document:
        """Return the document that decides a key: where it stands first, or else the last of them."""
        return next((document for document in self.documents if document.has(self.prefix + key)), self.documents[-1])

    def below(self, key: str) -> tuple[str, ...]:
        """Return the names below a mapping, of all documents."""
        names: dict[str, None] = {}
        start = f"{self.prefix}{key}."
        for document in self.documents:
            node = document.at(self.prefix + key)
            if node is not None and isinstance(node.value, dict):
                names |= dict.fromkeys(node.value)
            flat = (name.removeprefix(start) for name in document.keys() if name.startswith(start))  # noqa: SIM118
            names |= {name.partition(".")[0]: None for name in flat}
        return tuple(names)

    def change(self, key: str, value: Value | None) -> Change:
        """Return the change of a key where it stands, or in the last document."""
        return Change(self.place(key), self.prefix + key, value)

    def _followed(self, found: Found) -> Found | None:
        """Return what a reference refers to; None where that is null."""
        for _ in range(_DEEP):
            raw = found.node.raw.strip() if found.node.scalar else ""
            given = _ENVIRONMENT.fullmatch(raw)
            if given is not None:
                return replace(found, node=_taken(found.node, given[1]))
            reference = _WHOLE.fullmatch(raw)
            if reference is None:
                return found
            target: Found | None = None
            there = False
            for document in self.documents:
                there = there or document.has(self.prefix + reference[1])
                target = target or document.get(self.prefix + reference[1])
            if not there:
                hint = f"Write {reference[1]} in the file, or the value itself"
                raise found.error("refers to a key that is not there", hint=hint)
            if target is None:
                return None
            found = target
        raise found.error("refers to itself")


def _taken(node: Node, text: str) -> Node:
    """Return a node with another value in its place."""
    return Node(resolved(text), node.line, node.start, node.end, raw=text, parent=node.parent)


@dataclass(frozen=True)
class Fields:
    """The values below one key."""

    values: Values
    below: str

    def get(self, key: str) -> Found | None:
        """Return a value, or None."""
        return self.values.get(f"{self.below}.{key}")

    def whole(self, key: str, default: int) -> int:
        """Return a whole number."""
        found = self.get(key)
        return default if found is None else found.whole()

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        found = self.get(key)
        return default if found is None else found.flag()
