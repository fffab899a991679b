"""Changes written into the text of a document: what an edit is, line by line."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._tree import resolved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foretell.readers._document import Document
    from foretell.readers._reading import Change, Value
    from foretell.readers._tree import Node

__all__ = ["Edit", "edited", "edits"]

_STEP: Final = 2
"""Blanks by which a nested key is indented."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of a file that become others; no old lines: they are added behind ``line``."""

    path: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def edited(document: Document, changes: Sequence[Change]) -> str:
    """Return the document's text with the changes; ConfigError where it has no place for one."""
    pieces: list[tuple[int, int, str]] = []
    for change in changes:
        node = document.at(change.key)
        if document.form == "arguments":
            pieces.append(_argument(document, change, node))
        elif node is not None and change.value is None and _own_line(document, node):
            pieces.append(_line(document.text, node))
        elif node is not None and node.start < node.end:
            pieces.append((node.start, node.end, _written(change.value, document.form)))
        elif node is not None and node.scalar:
            pieces.append((node.start, node.end, ("" if document.text[node.start - 1 : node.start].isspace() else " ")
                           + _written(change.value, document.form)))  # fmt: skip
        elif change.value is not None:
            pieces.append(_inserted(document, change))
    text = document.text
    for start, end, new in sorted((p for p in pieces if p[0] >= 0), key=lambda p: (p[0], p[1]), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def edits(path: str, before: str, after: str) -> list[Edit]:
    """Return what differs between two texts, as lines."""
    old, new = before.split("\n"), after.split("\n")
    most = min(len(old), len(new))
    head = next((i for i in range(most) if old[i] != new[i]), most)
    tail = next((i for i in range(most - head) if old[-1 - i] != new[-1 - i]), most - head)
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        Edit(path, head + i1 + (i1 < i2), tuple(old[i1:i2]), tuple(new[j1:j2])) for tag, i1, i2, j1, j2 in found if tag != "equal"
    ]


def _written(value: Value | None, form: str) -> str:
    """Return a value as the format writes it."""
    if value is None:
        return '""' if form == "toml" else "null"
    if isinstance(value, tuple):
        return "[" + ", ".join(_written(part, form) for part in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if form in ("json", "toml"):
        return json.dumps(value)
    plain = re.fullmatch(r"[A-Za-z_][\w./+-]*", value) is not None and resolved(value) == value
    return value if plain else json.dumps(value)


def _own_line(document: Document, node: Node) -> bool:
    """Whether a scalar stands alone with its key on a line of a block mapping, beside others."""
    parent = node.parent
    beside = parent is not None and isinstance(parent.value, dict) and not parent.flow and len(parent.value) > 1
    start, end, _ = _line(document.text, node)
    return document.form == "yaml" and beside and node.scalar and "\n" not in document.text[start : end - 1]


def _line(text: str, node: Node) -> tuple[int, int, str]:
    """Return the line of a node, to be taken out."""
    end = text.find("\n", node.end)
    return text.rfind("\n", 0, node.start) + 1, len(text) if end < 0 else end + 1, ""


def _inserted(document: Document, change: Change) -> tuple[int, int, str]:
    """Return where a key that is not there goes, and its text."""
    parent, rest = _parent(document, change.key)
    value = change.value
    assert value is not None  # noqa: S101  # nothing to take out
    if document.form == "toml":
        return _toml(document, change.key, value)
    if not isinstance(parent.value, dict):
        raise ConfigError("is no mapping, so that nothing can be added to it", field=change.key, where=document.where(parent))
    if parent.flow or document.form == "json":
        at = parent.start + 1
        nested = _written(value, document.form)
        for part in reversed(rest[1:]):
            nested = f"{{{json.dumps(part)}: {nested}}}"
        more = ", " if parent.value else ""
        return at, at, f"{json.dumps(rest[0])}: {nested}{more}"
    # block mapping: in front of the line of its first key, or at the end of the file
    first = next(iter(parent.value.values()), None)
    at, indent = (len(document.text), "") if first is None or parent is document.root else _line_of_key(document, parent)
    lines = [f"{indent}{' ' * _STEP * i}{part}:" for i, part in enumerate(rest)]
    lines[-1] += f" {_written(value, document.form)}"
    text = "\n".join(lines) + "\n"
    if parent is document.root:
        last = document.root.end
        at = document.text.find("\n", last - (document.text[last - 1 : last] == "\n"))
        return (len(document.text), len(document.text), "\n" + text) if at < 0 else (at + 1, at + 1, text)
    return at, at, text


def _parent(document: Document, key: str) -> tuple[Node, list[str]]:
    """Return the deepest mapping of a dotted key that is there, and the parts that are not."""
    parts = re.findall(r"\[\d+\]|[^.\[]+", key)
    for count in range(len(parts) - 1, 0, -1):
        head = "".join(p if p.startswith("[") else f".{p}" for p in parts[:count]).lstrip(".")
        node = document.at(head)
        if node is not None and node.value is not None:
            return node, parts[count:]
    return document.root, parts


def _line_of_key(document: Document, parent: Node) -> tuple[int, str]:
    """Return the start of the line on which a block mapping begins, and its indentation."""
    start = document.text.rfind("\n", 0, parent.start) + 1
    lead = document.text[start : parent.start]
    if lead.strip():  # "- key: value": the mapping begins inside of a list's line
        return parent.start, ""
    return start, lead


def _toml(document: Document, key: str, value: Value) -> tuple[int, int, str]:
    """A key goes behind its table's header; a table that is not there, to the end of the file."""
    table, _, name = key.rpartition(".")
    node = document.at(table) if table else None
    line = f"{name} = {_written(value, 'toml')}\n"
    if not table:
        return 0, 0, line
    if node is None or node.start == 0:
        body = "" if document.text.endswith("\n") or not document.text else "\n"
        return len(document.text), len(document.text), f"{body}\n[{table}]\n{line}"
    at = document.text.find("\n", node.start)
    return (len(document.text), len(document.text), "\n" + line) if at < 0 else (at + 1, at + 1, line)


def _argument(document: Document, change: Change, node: Node | None) -> tuple[int, int, str]:
    """Change a value on a command line, add a flag behind the last one, or take one out."""
    text, gone = document.text, change.value is None or change.value is False
    spelled = _word(change.value)
    if node is None:
        places = [child.end for _, child in document.root.children() if child.end > child.start]
        last = max(places, default=max(document.root.end, document.root.start))
        flag = change.key if change.key.startswith("-") else f"--{change.key}"
        after = "" if text[last : last + 1].isspace() or last >= len(text) else " "
        return (-1, -1, "") if gone else (last, last, f" {flag}{after}" if change.flag else f" {flag} {spelled}{after}")
    if node.start >= node.end:
        raise ConfigError("is put together by the shell: change it where it is", field=change.key, where=document.where(node))
    if change.flag or node.flow:  # a flag without a value
        if gone:
            return node.start - (text[node.start - 1 : node.start] == " "), node.end, ""
        return (-1, -1, "") if change.value is True else (node.end, node.end, f" {spelled}")
    return _without(text, node, document, change.key) if gone else (node.start, node.end, spelled)


def _word(value: Value | None) -> str:
    """Return a value as a word of a command line; several words for several values."""
    if isinstance(value, tuple):
        return " ".join(shlex.quote(part) for part in value)
    return shlex.quote(value if isinstance(value, str) else _written(value, "yaml"))


def _without(text: str, node: Node, document: Document, key: str) -> tuple[int, int, str]:
    """Take a flag and its value out."""
    before = text[: node.start]
    found = re.search(r"(?:\\\n|\s)*--?[\w-]+(?:=|\s+)[\"']?$", before)
    if found is None:
        raise ConfigError("stands where it cannot be taken out", field=key, where=document.where(node))
    return found.start(), node.end + (text[node.end : node.end + 1] in ("'", '"') and text[node.start - 1] in ("'", '"')), ""
