"""YAML, JSON and TOML as trees of nodes that know their line: parsed event by event, nothing is ever constructed.

YAML is read as the frameworks' loaders read it, with numbers of YAML 1.2 (``2e-5`` is one) and the booleans of 1.1
(``yes``, ``off``).  Aliases share nodes, so that a bomb stays small; depth and size are bounded.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Node", "Scalar", "json_tree", "resolved", "toml_tree", "yaml_tree"]

Scalar = str | int | float | bool | None

_DEPTH: Final = 64
_NODES: Final = 200_000
_CORE: Final = "tag:yaml.org,2002:"
_KINDS: Final = frozenset(_CORE + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge", "timestamp"))
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_OCTAL: Final = re.compile(r"0[0-7]+")
_OTHER: Final = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null"), None),
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(eq=False, slots=True)
class Node:
    """A value of a document with its place."""

    value: Scalar | dict[str, Node] | list[Node]
    line: int
    """Of the value, from 1."""
    start: int
    end: int
    """Characters of the value in the document's text; equal where it has none of its own."""
    raw: str = ""
    """A scalar as it is written, without quotes."""
    quoted: bool = False
    flow: bool = False
    """A collection in brackets."""
    parent: Node | None = field(default=None, repr=False)

    def children(self) -> Iterator[tuple[str, Node]]:
        """Yield what a collection holds; of a list by its index in brackets."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from ((f"[{i}]", child) for i, child in enumerate(self.value))

    @property
    def scalar(self) -> bool:
        """Whether it is no collection."""
        return not isinstance(self.value, dict | list)

    def plain(self) -> Any:  # whatever the document holds
        """Return plain data; ConfigError where aliases make it too much."""
        return _plain(self, [0], 0)


def _plain(node: Node, made: list[int], depth: int) -> Any:  # whatever the document holds
    """Return plain data; ``made`` counts what aliases repeat."""
    made[0] += 1
    if made[0] > _NODES or depth > _DEPTH:
        raise ConfigError(f"is nested too deeply, or holds too many values (line {node.line})")
    if isinstance(node.value, dict):
        return {key: _plain(child, made, depth + 1) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child, made, depth + 1) for child in node.value]
    return node.value


def resolved(text: str) -> Scalar:
    """Return what an unquoted scalar means.

    >>> resolved("2e-5"), resolved("1_000"), resolved("off"), resolved("~"), resolved("1.2.3")
    (2e-05, 1000, False, None, '1.2.3')
    """
    word = _WORDS.get(text.lower(), text) if len(text) <= 5 else text
    if word is not text:
        return word
    if len(text) > 40 or text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _OTHER.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        made = float(text.replace("_", ""))
        return made if abs(made) != float("inf") else text
    return text


def yaml_tree(text: str, where: str) -> Node:
    """Return the tree of the one document that a YAML text holds; ConfigError says what is wrong, with its line."""
    import yaml  # noqa: PLC0415  # 20 ms, where a file is read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(where)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event, text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)[:120]
        at = f"{where}:{mark.line + 1}" if mark is not None else where
        raise ConfigError(f"is not valid YAML: {problem}", where=at) from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=where) from error
    if builder.root is None:
        raise ConfigError("is empty", where=where)
    return builder.root


class _Builder:
    """Puts events together, one after the other; no recursion."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: Node | None = None
        self.open: list[tuple[Node, list[Node]]] = []  # a collection and the children that wait
        self.anchors: dict[str, Node] = {}
        self.made = 0

    def take(self, event: Any, text: str) -> None:  # an event of PyYAML
        """Add an event."""
        kind = type(event).__name__
        if kind in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
            return
        if kind == "DocumentStartEvent":
            if self.root is not None:
                raise self._error("holds more than one document: give one run a file", event)
            return
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            node, children = self.open.pop()
            self._close(node, children, event)
            return
        self._counted(1, event.start_mark.line + 1)
        self._add(event, kind, text)

    def _counted(self, more: int, line: int) -> None:
        self.made += more
        if self.made > _NODES or len(self.open) > _DEPTH:
            raise ConfigError("is nested too deeply, or holds too many values", where=f"{self.where}:{line}")

    def _add(self, event: Any, kind: str, text: str) -> None:  # an event of PyYAML
        if kind == "AliasEvent":
            found = self.anchors.get(event.anchor)
            if found is None or any(found is node for node, _ in self.open):
                raise self._error(f"refers to *{event.anchor}, which is not known there", event)
            self._place(found)
            return
        tag = getattr(event, "tag", None)
        if tag not in (None, "!") and tag not in _KINDS:
            raise self._error(f"has the tag {tag!r}, which is not read", event)
        start, end = event.start_mark, event.end_mark
        node = Node(None, start.line + 1, start.index, end.index)
        if event.anchor:
            self.anchors[event.anchor] = node
        if kind == "ScalarEvent":
            node.raw, node.quoted = event.value, event.style in ("'", '"', "|", ">") or tag == _CORE + "str"
            node.value = event.value if node.quoted else resolved(event.value)
            if not text[node.start : node.end].strip():
                node.end = node.start
            self._place(node)
            return
        node.value = {} if kind == "MappingStartEvent" else []
        node.flow = bool(event.flow_style)
        self._place(node)
        self.open.append((node, []))

    def _place(self, node: Node) -> None:
        if self.open:
            parent, children = self.open[-1]
            children.append(node)
            if node.parent is None:
                node.parent = parent
        else:
            self.root = node

    def _close(self, node: Node, children: list[Node], event: Any) -> None:  # an event of PyYAML
        node.end = event.end_mark.index if node.flow or not children else children[-1].end
        if isinstance(node.value, list):
            node.value.extend(children)
            return
        assert isinstance(node.value, dict)  # noqa: S101  # made so above
        merged: dict[str, Node] = {}
        for key, value in zip(children[::2], children[1::2], strict=True):
            if not key.scalar:
                raise ConfigError("has a key that is no text", where=f"{self.where}:{key.line}")
            if key.raw == "<<" and not key.quoted:
                for part in value.value if isinstance(value.value, list) else [value]:
                    if not isinstance(part.value, dict):
                        raise ConfigError("merges something that is no mapping", where=f"{self.where}:{value.line}")
                    self._counted(len(part.value), value.line)
                    merged |= {name: child for name, child in part.value.items() if name not in merged}
                continue
            node.value[key.raw] = value
        for name, child in merged.items():
            node.value.setdefault(name, child)

    def _error(self, problem: str, event: Any) -> ConfigError:  # an event of PyYAML
        return ConfigError(problem, where=f"{self.where}:{event.start_mark.line + 1}")


def json_tree(text: str, where: str) -> Node:
    """Return the tree of a JSON text, which is YAML but for its tabs."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not valid JSON: {error.msg} (column {error.colno})", where=f"{where}:{error.lineno}") from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=where) from error
    except ValueError as error:  # a number of more digits than Python converts
        raise ConfigError(f"is not valid JSON: {str(error)[:120]}", where=where) from error
    # PyYAML takes no halves of surrogate pairs: the pair's own escape has two characters less
    placed = _PAIRS.sub(lambda m: f"\\U{_joined(m[1], m[2]):08x}  ", text.replace("\t", " "))
    return yaml_tree(placed, where)


def _joined(high: str, low: str) -> int:
    return 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)


_HEADER: Final = re.compile(r"[ \t]*\[{1,2}([^\[\]]+)\]{1,2}[ \t]*(?:#.*)?")
_PAIR: Final = re.compile(r"""[ \t]*((?:[\w-]+|"[^"]*"|'[^']*')(?:[ \t]*\.[ \t]*(?:[\w-]+|"[^"]*"|'[^']*'))*)[ \t]*=[ \t]*""")
_PAIRS: Final = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_QUOTES: Final = ('"""', "'''")
_SIMPLE: Final = re.compile(r"""(?:"[^"\n\\]*"|'[^'\n]*'|[^\s#"'\[{,]+)(?=[ \t]*(?:#|$))""")


def toml_tree(text: str, where: str) -> Node:
    """Return the tree of a TOML text; lines are found by its headers and keys."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        raise ConfigError(f"is not valid TOML: {error}", where=f"{where}:{found[1]}" if found else where) from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"is not valid TOML: {str(error)[:120]}", where=where) from error
    return _toml_node(data, _toml_places(text), (), 1, None)


def _toml_places(text: str) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Return dotted key -> (line, start, end) of its value; tables have their header's line."""
    out: dict[tuple[str, ...], tuple[int, int, int]] = {}
    table: tuple[str, ...] = ()
    offset = 0
    inside = ""  # a string over several lines
    for number, line in enumerate(text.split("\n"), 1):
        within, inside = inside, _open_string(line, inside)
        header, pair = (None, None) if within else (_HEADER.fullmatch(line), _PAIR.match(line))
        if header:
            table = _toml_key(header[1])
            out[table] = (number, offset + len(line), offset + len(line))
        elif pair:
            value = _SIMPLE.match(line, pair.end())
            start = offset + pair.end()
            out[(*table, *_toml_key(pair[1]))] = (number, start, start + (len(value[0]) if value else 0))
        offset += len(line) + 1
    return out


def _open_string(line: str, inside: str) -> str:
    """Return the quotes of a string that is still open behind a line."""
    at = 0
    while at < len(line):
        found = line.find(inside, at) if inside else min((i for q in _QUOTES if (i := line.find(q, at)) >= 0), default=-1)
        if found < 0:
            break
        inside = "" if inside else line[found : found + 3]
        at = found + 3
    return inside


def _toml_key(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _toml_node(
    value: Any, places: dict[tuple[str, ...], tuple[int, int, int]], path: tuple[str, ...], line: int, parent: Node | None
) -> Node:  # whatever TOML holds
    if len(path) > _DEPTH:
        raise ConfigError("is nested too deeply", where=f"line {line}")
    line, start, end = places.get(path, (line, 0, 0))
    node = Node(None, line, start, end, parent=parent)
    if isinstance(value, dict):
        node.value = {key: _toml_node(item, places, (*path, key), line, node) for key, item in value.items()}
    elif isinstance(value, list):
        node.value = [_toml_node(item, places, (*path, str(i)), line, node) for i, item in enumerate(value)]
    else:
        node.value = value if isinstance(value, str | int | float | bool) else str(value)
        node.raw, node.quoted = str(value), isinstance(value, str)
    return node
