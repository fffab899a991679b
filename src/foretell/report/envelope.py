"""The JSON object that every verb prints, and the schema that it keeps to."""

from __future__ import annotations

import json
import math
from typing import Any, Final

__all__ = ["SCHEMA", "dumps", "envelope", "schema"]

SCHEMA: Final = "foretell/1"


def envelope(
    command: str,
    inputs: dict[str, Any],
    result: dict[str, Any],
    *,
    notes: list[str] | tuple[str, ...] = (),
    sources: list[Any] | tuple[Any, ...] = (),
) -> dict[str, Any]:
    """Return the object: every value used, the answer, what to know about it, where its numbers come from."""
    return {
        "schema": SCHEMA,
        "command": command,
        "inputs": inputs,
        "result": result,
        "notes": list(notes),
        "sources": list(sources),
    }


def dumps(document: dict[str, Any]) -> str:
    """Return strict JSON: NaN and infinity, which JSON lacks, become null; keys keep their order."""
    return json.dumps(_plain(document), indent=2, allow_nan=False)


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a verb's output."""
    from importlib import resources  # noqa: PLC0415  # 25 ms, for a look-up that only checks make

    text = resources.files("foretell.report").joinpath("schemas", f"{command}.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _plain(value: Any) -> Any:  # a tree of anything
    """Return what JSON can hold."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return value.item() if hasattr(value, "item") else str(value)
