"""The arguments of a command as a document of flat keys: ``--a-b 3``, ``--a_b=3``, ``a.b=3``, ``+a.b=3``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from foretell.readers._document import Document
from foretell.readers._launch import Launcher, word_node
from foretell.readers._pieces import Word, cut
from foretell.readers._tree import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["POSITIONAL", "arguments"]

POSITIONAL = "(arguments)"
"""Key of the words that belong to no flag: a list."""


def arguments(
    launch: Launcher,
    words: Sequence[Word],
    booleans: frozenset[str] = frozenset(),
    aliases: Mapping[str, str] | None = None,
    many: frozenset[str] | None = None,
    *,
    pairs: bool = True,
) -> Document:
    """Return words of a command as a document: flags with their values, hydra's ``key=value``, and what stands alone.

    ``booleans``: flags that take no value.  ``aliases``: short spelling ("-tp") -> key.  ``many``: flags that take
    several words, where only those do (else every flag takes the words up to the next flag).  ``pairs``: whether the
    program knows hydra's form, so that a word with "=" is no value of the flag before it.

    A flag that is given twice has its last value; a flag with several words has a list.
    """
    short = aliases or {}
    root = Node({}, launch.line, launch.start, launch.start)
    alone = Node([], launch.line, launch.start, launch.start, parent=root)
    out = root.value
    assert isinstance(out, dict)  # noqa: S101  # made so above
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        name, _, rest = word.text.partition("=")
        if _flag(word.text):
            key = short.get(name) or name.lstrip("-").replace("-", "_")
            if "=" in word.text:
                out[key] = word_node(cut(word, len(word.text) - len(rest)), root)
                continue
            values = list[Word]()
            while (
                key not in booleans
                and i < len(words)
                and not _flag(words[i].text)
                and not (values and _single(key, words[i], many, pairs=pairs))
            ):
                values.append(words[i])
                i += 1
            out[key] = _of(values, word, root)
        elif pairs and _pair(word.text):
            out[name.lstrip("+~")] = word_node(cut(word, len(word.text) - len(rest)), root)
        else:
            assert isinstance(alone.value, list)  # noqa: S101
            alone.value.append(word_node(word, alone))
    if alone.value:
        out[POSITIONAL] = alone
    return Document(launch.path, launch.text, "arguments", root)


def _of(values: list[Word], flag: Word, root: Node) -> Node:
    if not values:
        return Node(True, flag.line, flag.start, flag.end, raw="true", flow=True, parent=root)
    if len(values) == 1:
        return word_node(values[0], root)
    node = Node([], values[0].line, values[0].start, values[-1].end, parent=root)
    node.value = [word_node(word, node) for word in values]
    return node


def _single(key: str, word: Word, many: frozenset[str] | None, *, pairs: bool) -> bool:
    """Whether a further word no longer belongs to a flag that has one."""
    return (pairs and _pair(word.text)) or (many is not None and key not in many)


def _flag(text: str) -> bool:
    return re.match(r"--?[A-Za-z_]", text) is not None


def _pair(text: str) -> bool:
    """Whether it is hydra's key=value."""
    return re.match(r"[+~]{0,2}[A-Za-z_][\w.@/-]*=", text) is not None
