"""How the dataclasses of this package take quantities, and how they are read from a catalog entry.

A field with the metadata `unit(...)` holds a plain number in SI base units; the constructor also takes text
with a unit or a pint.Quantity for it. `read` makes an object of a mapping and refuses unknown keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from foretell.errors import ConfigError, InputError
from foretell.typed import check_fields
from foretell.units import parse
from foretell.validation import positive_int

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


COUNT: Final[Mapping[str, Any]] = {"count": True}
"""Metadata of a field that holds a positive whole number."""


LARGEST: Final = 2.0**70
"""No amount of anything here is larger in its base unit (2^70 bytes are a thousand exabytes)."""


def unit(name: str, *, each: bool = False, positive: bool = False) -> Mapping[str, Any]:
    """Return the metadata of a field in the base unit `name`; with `each`, of a dict of such values."""
    return {"unit": name, "each": each, "least": 1.0 if positive else 0.0}


def coerce(instance: DataclassInstance) -> None:
    """Turn what the constructor was given into plain numbers; call it in `__post_init__`."""
    for spec in dataclasses.fields(instance):
        if isinstance(given := getattr(instance, spec.name), list):
            object.__setattr__(instance, spec.name, tuple(given))
    for spec in dataclasses.fields(instance):
        value = getattr(instance, spec.name)
        if value is None and spec.default is None:
            continue  # unknown stays None
        if spec.metadata.get("count"):
            made: Any = positive_int(value, spec.name)
        elif spec.metadata.get("unit") is None:
            continue
        elif spec.metadata["each"]:
            if not isinstance(value, dict):
                raise InputError("must be a mapping", field=spec.name, value=value)
            made = {key: _number(item, spec, f"{spec.name}.{key}") for key, item in value.items()}
        else:
            made = _number(value, spec, spec.name)
        object.__setattr__(instance, spec.name, made)
    check_fields(instance)


def read(cls: type[T], data: Mapping[str, Any], where: str) -> T:
    """Make a `cls` of a catalog entry's keys; an unknown or missing key, or a bad value, is a ConfigError."""
    specs = {spec.name: spec for spec in dataclasses.fields(cls) if spec.init}
    if unknown := sorted(set(data) - set(specs)):
        raise ConfigError("is not a known key", field=unknown[0], allowed=list(specs), where=where)
    required = [
        name
        for name, spec in specs.items()
        if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in required if name not in data]:
        raise ConfigError(f"lacks {', '.join(missing)}", where=where)
    try:
        return cls(**data)
    except InputError as error:
        error.where = error.where or where
        raise


def gather_notes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's keys with its `<what>_note` keys gathered in one, `notes` (what -> text)."""
    notes = {key.removesuffix("_note"): text for key, text in data.items() if key.endswith("_note")}
    rest = {key: value for key, value in data.items() if not key.endswith("_note")}
    return rest | {"notes": notes} if notes else rest


def table(data: Any, key: str, where: str) -> Mapping[str, Any]:  # what a file holds
    """Return `data`, the value of `key`, if it is a table."""
    if isinstance(data, Mapping):
        return data
    raise ConfigError("must be a table", field=key, value=data, where=where)


def _number(value: object, spec: dataclasses.Field[Any], field: str) -> float:
    """Return a float, or for a size a whole number of bytes."""
    base, least = spec.metadata["unit"], spec.metadata["least"]
    parsed = parse(value, base, field)
    if not least <= parsed <= LARGEST:
        problem = f"is {'below the smallest' if parsed < least else 'above the largest'} amount taken"
        raise InputError(problem, field=field, value=value, allowed=f"{least:g} to {LARGEST:.2g} {base}")
    return round(parsed) if base == "byte" else parsed
