"""From the text of a file to plain data: TOML, JSON and YAML, each refused where it says less than it seems to.

A key that comes twice, a YAML alias (a few lines of them can stand for gigabytes) and a YAML key that is no text
are refused. Imports nothing of foretell.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any, Final

__all__ = ["decode", "unique"]

MAX_YAML: Final = 2**15
"""Characters of the longest YAML text read (PyYAML reads some 100 KiB a second)."""
MAX_DEPTH: Final = 50


def decode(text: str, suffix: str) -> object:
    """Decode text; raise ValueError where it is not what the suffix (".toml", ".json", ".yaml") says."""
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text, object_pairs_hook=unique)
    return _yaml(text)


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of pairs, for decoders; ValueError where a key comes twice with two values.

    >>> unique([("a", 1), ("a", 1)])
    {'a': 1}
    """
    made = dict(pairs)
    if len(made) < len(pairs):
        for key, value in pairs:
            if made[key] != value and value == value:  # noqa: PLR0124  # NaN is not equal to itself
                message = f"the key {str(key)[:80]!r} comes twice with different values"
                raise ValueError(message)
    return made


def _yaml(text: str) -> object:
    """Decode YAML that is plain data."""
    import yaml  # noqa: PLC0415  # 15 ms, for the few who write YAML

    class Loader(yaml.SafeLoader):
        """Reads mappings whose keys are text and come once."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            del deep
            pairs = [(self.construct_object(key, deep=True), self.construct_object(item, deep=True)) for key, item in node.value]
            if not all(isinstance(key, str) for key, _ in pairs):
                message = "a key is no text (quote it)"
                raise ValueError(message)
            return unique(pairs)

    try:
        if problem := _unwanted(yaml, text):
            raise ValueError(problem)
        return yaml.load(text, Loader=Loader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _unwanted(yaml: Any, text: str) -> str:  # the module
    """Return why YAML text is not to be loaded, or nothing; events are looked at one by one."""
    if len(text) > MAX_YAML:
        return f"it is longer than {MAX_YAML} characters"
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return "aliases (*name) are not taken"
        if depth > MAX_DEPTH:
            return "it is nested too deeply"
    return ""
