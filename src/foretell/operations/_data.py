"""The data files of operations, read once."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from foretell.operations.ranges import Source, as_sources

__all__ = ["data", "sources"]


@functools.cache
def data(name: str) -> Mapping[str, Any]:
    """Return the file `catalog/data/operations/<name>.json`; treat it as read-only."""
    text = resources.files("foretell.catalog").joinpath(f"data/operations/{name}.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def sources(name: str, keys: Iterable[str]) -> tuple[Source, ...]:
    """Return sources of a file by their keys in it."""
    known = data(name)["sources"]
    return as_sources(known[key] for key in keys)
