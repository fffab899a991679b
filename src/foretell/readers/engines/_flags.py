"""Flags of a serving engine: those of its command line above those of the file that the command names, one key a flag.

Words with dashes or underscores, unique beginnings of a flag, ``--no-x``, JSON in a value and ``--x.y value`` come to the same
keys; a mapping in a file is as JSON in a flag.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._arguments import POSITIONAL
from foretell.readers._document import Document, Found, first
from foretell.readers._environment import environment
from foretell.readers._reading import Origin, Setting
from foretell.readers._tree import Node, json_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from foretell.readers._reading import Builder, Effect, Sources

__all__ = ["Flags", "Grammar", "Tables", "alone", "command_flags", "engine_variables", "engine_version", "file_flags", "followed",
           "human", "variables_below", "words_of"]  # fmt: skip

_HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|[kKmMgGtT])")
_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_INVERSE: Final = (("enable_", "disable_"), ("disable_", "enable_"))


@dataclass(frozen=True)
class Grammar:
    """How an engine's parser reads words."""

    booleans: frozenset[str]
    """Flags that take no value."""
    many: frozenset[str]
    """Flags that take several."""
    short: Mapping[str, str]
    """Another spelling, with its dashes or as a key -> the key."""
    known: frozenset[str]
    """Every key."""
    inverse: bool = False
    """Whether ``--disable-x`` is the opposite of ``--enable-x`` (vLLM from 0.30 on)."""


@dataclass(frozen=True)
class Tables:
    """What the rest of the flags do."""

    neutral: frozenset[str]
    unmodelled: Mapping[str, tuple[Effect, str]]
    off: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass
class Flags:
    """Documents of flags in the order in which they take precedence."""

    documents: tuple[Document, ...]

    def get(self, *keys: str) -> Found | None:
        """Return the value of the first document that gives one of the keys; an empty one and "None" are none."""
        found = first(self.documents, *keys)
        return None if found is None or found.node.value in ("", "None", "none") else found

    def on(self, *keys: str) -> Found | None:
        """Return a flag that is set to true."""
        found = self.get(*keys)
        return found if found is not None and found.flag() else None

    def switch(self, b: Builder, name: str, *keys: str) -> None:
        """Take a flag that is true or false as an option."""
        found = self.get(*keys)
        if found is not None:
            b.set(name, found.flag(), found)

    def count(self, b: Builder, name: str, *keys: str) -> Found | None:
        """Take a whole number as an option."""
        found = self.get(*keys)
        if found is not None:
            b.set(name, human(found), found)
        return found

    def share(self, b: Builder, name: str, *keys: str) -> None:
        """Take a share of the memory as an option."""
        found = self.get(*keys)
        if found is not None:
            b.set(name, found.real(minimum=1e-6, maximum=1.0), found)

    def given(self, *keys: str) -> bool:
        """Whether one of the keys, or one below it, is there; it does not count as looked at."""
        return any(key.partition(".")[0] in keys for document in self.documents for key in document.keys())  # noqa: SIM118

    def rest(self, b: Builder, tables: Tables, grammar: Grammar, program: str) -> None:
        """Account for every flag that nobody looked at; the program refuses those that it does not have."""
        for document in self.documents:
            b.rest(document, tables.neutral, tables.unmodelled, off=tables.off, known=grammar.known, strict=program)

    def holder(self, key: str) -> Document:
        """Return the document that gives a key, or the first."""
        return next((document for document in self.documents if document.has(key)), self.documents[0])


def human(found: Found) -> int:
    """Return a whole number, also as "32k", "1M" or "128K" (k is 1,000, K is 1,024, as is Ki).

    Sources: vllm/utils/argparse_utils.py human_readable_int, sglang/srt/utils/common.py human_readable_int.
    """
    match = _HUMAN.fullmatch(found.text().strip()) if found.node.scalar else None
    if match is None:
        return found.whole()
    number, unit = match.groups()
    if unit in _DECIMAL:
        return round(float(number) * _DECIMAL[unit])
    if "." in number:
        raise found.error("must be a whole number before a unit of 1,024", hint=f"Write {number}{unit[0].lower()}")
    return int(number) * _BINARY[unit[0]]


def command_flags(sources: Sources, grammar: Grammar) -> Document:
    """Return the flags of the command; an empty document where there is none."""
    short = {name: key for name, key in grammar.short.items() if name.startswith("-")}
    made = sources.arguments(grammar.booleans, short, grammar.many, pairs=False)
    if made is None:
        return Document(sources.main.path, "", "arguments", Node({}, 1, 0, 0))
    made.root.end = max((found.node.end for found in words_of(made)), default=made.root.end)  # new flags go behind the words
    _spelled(made, grammar)
    _unfolded(made)
    return made


def file_flags(document: Document, grammar: Grammar) -> Document:
    """Bring the keys of a file into the form of flags, in place."""
    if not isinstance(document.root.value, dict):
        raise ConfigError("must be a mapping of flags", where=document.path)
    _spelled(document, grammar, whole=True)
    _unfolded(document)
    return document


def engine_version(b: Builder, name: str) -> None:
    """Take the engine's version: of the tag of the image that it runs in ("vllm/vllm-openai:v0.11.0"), or the newest known."""
    from foretell.recipe.engine_versions import CHECKED  # noqa: PLC0415  # 30 ms, which claims do without

    b.version = CHECKED[name]
    launch = b.sources.launch
    image = None if launch is None else next(iter(launch.wrappers.get("container", ())), None)
    tag = None if image is None else re.search(r":v?(\d+\.\d+\.\d+)(?![\d.])", image.text)
    if launch is not None and image is not None and tag is not None:
        place = Origin(launch.path, image.line, "image")
        b.settings["engine_version"] = Setting("engine_version", tag[1], place, image.text)
        b.version = tag[1]


def engine_variables(
    b: Builder,
    prefixes: tuple[str, ...],
    about: Callable[[str], tuple[Effect, str] | None],
    plain: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Account for the environment of the command: the engine's own variables, and then all others."""
    if b.sources.launch is not None:
        variables_below(b, b.sources.launch.document, "", prefixes, about, plain)
    environment(b)


def variables_below(
    b: Builder,
    document: Document,
    place: str,
    prefixes: tuple[str, ...],
    about: Callable[[str], tuple[Effect, str] | None],
    plain: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Account for an engine's variables in a document, below ``place``; ``plain``: their defaults, where those are not 0."""
    for found in [*document.untouched()]:
        name = found.key.removeprefix(place)
        if not found.key.startswith(place) or not name.startswith(prefixes) or not found.node.scalar:
            continue
        does = about(name)
        if does is None or found.text().strip() in ("", *(plain or {}).get(name, ("0", "false", "False"))):
            b.harmless(found)
        else:
            b.doubt(found, *does)


def alone(words: list[Found]) -> Found | None:
    """Return the first word that belongs to no flag as what it is: the model."""
    return Found(words[0].document, "model", words[0].node) if words else None


def words_of(document: Document) -> list[Found]:
    """Return the words of a command that belong to no flag."""
    return [found for key in document.entries(POSITIONAL) if (found := document.get(key)) is not None]


def _spelled(document: Document, grammar: Grammar, *, whole: bool = False) -> None:
    """Give every key its full name; ``--no-x`` (and, where it is so, ``--disable-x``) becomes x: false."""
    root = document.root.value
    assert isinstance(root, dict)  # noqa: S101  # checked, or made so
    for given, node in [*root.items()]:
        head, dot, tail = given.partition(".")
        key = head.replace("-", "_")
        key = grammar.short.get(key, key)
        if key not in grammar.known and not whole:
            key = _completed(key, grammar.known)
        full = f"{key}{dot}{tail.removesuffix('+')}"
        negated = None if full in grammar.known else _negated(full, grammar)
        if negated is not None and (node.value is True or node.value is False):
            document.mark(node)
            value = not node.value
            root.setdefault(
                negated, Node(value, node.line, node.start, node.end, raw=str(value).lower(), flow=True, parent=node.parent)
            )
        elif full != given and full not in root:
            root[full] = root.pop(given)


def _completed(key: str, known: frozenset[str]) -> str:
    """Return the one flag that begins so, as argparse completes it; else the key itself."""
    found = [name for name in known if name.startswith(key)] if len(key) > 2 else []  # too short to be meant
    return found[0] if len(found) == 1 else key


def _negated(key: str, grammar: Grammar) -> str | None:
    """Return the flag of which a key is the opposite."""
    plain = key.removeprefix("no_")
    if plain != key and plain in grammar.known:
        return plain
    for prefix, other in _INVERSE:
        if grammar.inverse and key.startswith(prefix) and f"{other}{key.removeprefix(prefix)}" in grammar.booleans:
            return f"{other}{key.removeprefix(prefix)}"
    return None


def _unfolded(document: Document) -> None:
    """Take values that are JSON apart, so that each of their keys is accounted for."""
    root = document.root.value
    assert isinstance(root, dict)  # noqa: S101
    for key, node in root.items():
        if key == POSITIONAL or not isinstance(node.value, str) or not re.match(r"\s*\{", node.raw):
            continue
        try:
            tree = json_tree(node.raw, document.path)
        except ConfigError as error:
            try:
                json.loads(node.raw)
            except (ValueError, RecursionError):
                raise Found(document, key, node).error("is no valid JSON", hint=error.problem[:120]) from error
            raise
        _moved(tree, node)
        node.value, node.flow = tree.value, True


def _moved(tree: Node, place: Node) -> None:
    """Give nodes of a value's own tree the place of the value."""
    stack = [tree]
    while stack:
        node = stack.pop()
        stack += [child for _, child in node.children()]
        node.line, node.start, node.end = place.line + node.line - 1, place.start, place.start


def followed(sources: Sources, given: Document, grammar: Grammar, claims: Callable[[Document], float]) -> list[Document]:
    """Return the files of flags beside a command's own: the one that ``--config`` names, and those that were given."""
    documents = []
    config = given.get("config")
    if config is not None:
        document = sources.follow(config)
        if document is None:
            hint = "Give the folder that it is named from: --root DIR"
            raise ConfigError("is not here", field="config", value=config.text(), where=config.where, hint=hint)
        documents.append(file_flags(document, grammar))
    return documents + [file_flags(other, grammar) for other in sources.others if claims(other) > 0]
