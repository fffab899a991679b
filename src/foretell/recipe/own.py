"""Optimizers and framework profiles that a user adds as data: files of the catalog's form, or `register`.

An entry of the kind `optimizer` holds fields of :class:`~foretell.recipe.optimizers.Optimizer`; one of the
kind `framework` names a `base` profile and what differs from it. Both may carry a name, a date and a source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_args

from foretell.catalog import loader
from foretell.dtypes import dtype
from foretell.errors import ConfigError
from foretell.recipe.optimizers import Optimizer
from foretell.recipe.parallelism import Sharding
from foretell.recipe.profile import Formats, Profile
from foretell.recipe.style import Style
from foretell.typed import check_values
from foretell.validation import choice, positive_int

__all__ = ["own_optimizer", "own_profile", "read_optimizer", "read_profile"]

_ABOUT: Final = frozenset({"id", "name", "date", "base"})
"""Keys that say what an entry is, not what it does."""
_NAMES: Final = {"sharding": get_args(Sharding), "optimizer_impl": ("fused", "foreach", "forloop")}
"""Fields of a profile that hold one of a few names."""
_MOST: Final = 2**20
_DEEP: Final = 8
"""Longest chain of bases."""


def own_optimizer(name: str) -> Optimizer | None:
    """Return the optimizer of that name that a user added, or None."""
    entry = loader.own_entry("optimizer", name)
    return None if entry is None else read_optimizer(entry)


def own_profile(name: str, depth: int = 0) -> Profile | None:
    """Return the framework profile of that name that a user added, or None."""
    entry = loader.own_entry("framework", name)
    return None if entry is None else read_profile(entry, depth)


def read_optimizer(entry: Mapping[str, Any]) -> Optimizer:
    """Make an optimizer of a catalog entry.

    >>> read_optimizer({"id": "mine", "states": 1, "bits": 8, "block": 128, "source": "our wiki"}).bits
    8
    """
    where = f"optimizer {entry['id']}"
    data = {key: value for key, value in entry.items() if key not in _ABOUT}
    data["aliases"] = tuple(data.get("aliases", ()))
    for key in ("states", "source"):
        if key not in data:
            raise ConfigError(f"lacks {key}", where=where)
    _known(Optimizer, data, where)
    for key in ("states", "bits", "block", "foreach_temp", "rank", "min_elements"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**40:
            raise ConfigError("must be a number, 0 or more", field=key, value=value, where=where)
    check_values(Optimizer, data, where=where)
    return Optimizer(name=entry["id"], **data)


def read_profile(entry: Mapping[str, Any], depth: int = 0) -> Profile:
    """Make a framework profile of a catalog entry: its base, and what differs."""
    from foretell.recipe.profiles import profile  # noqa: PLC0415  # profiles asks here for a user's own

    where = f"framework {entry['id']}"
    if depth >= _DEEP or entry.get("base") == entry["id"]:
        raise ConfigError("leads back to itself", field="base", value=entry.get("base"), where=where)
    if not isinstance(entry.get("base"), str):
        raise ConfigError("must name the profile that this one starts from", field="base", where=where)
    base = profile(entry["base"], depth + 1)
    data = {key: value for key, value in entry.items() if key not in _ABOUT}
    if "source" in data:
        data.setdefault("sources", (data.pop("source"),))
    changes: dict[str, Any] = {"name": entry["id"], "title": entry.get("name", base.title), "aliases": ()}
    if style := data.pop("style", None):
        _known(Style, _table(style, "style", where), where, "style.")
        for key, value in style.items():
            if isinstance(value, int | float) and not 0 <= value <= _MOST:
                raise ConfigError("is no number of bytes or layers", field=f"style.{key}", value=value, where=where)
        check_values(Style, style, prefix="style.", where=where)
        changes["style"] = dataclasses.replace(base.style, **style)
    if formats := data.pop("formats", None):
        changes["formats"] = base.formats | {
            precision: _formats(_table(given, f"formats.{precision}", where), where)
            for precision, given in _table(formats, "formats", where).items()
        }
    _known(Profile, data, where)
    for key, value in data.items():
        changes[key] = tuple(value) if isinstance(value, list) else value
    _check(changes, where)
    return dataclasses.replace(base, **changes)


def _check(changes: Mapping[str, Any], where: str) -> None:
    """Check the fields of a profile that an entry changes."""
    check_values(Profile, changes, where=where)
    for key, allowed in _NAMES.items():
        choice(changes.get(key, allowed[0]), key, allowed, where=where)
    for stage in (changes.get("default_zero", 0), *changes.get("zero", ())):
        positive_int(stage, "zero", minimum=0, maximum=3, where=where)
    if (degree := changes.get("default_expert_tp")) is not None:
        positive_int(degree, "default_expert_tp", where=where)


def _formats(given: Mapping[str, Any], where: str) -> Formats:
    """Make the number formats of one precision; "none" is a state that is not kept."""
    _known(Formats, given, where, "formats.")
    names = [spec.name for spec in dataclasses.fields(Formats)]
    if missing := [name for name in names if name not in given]:
        raise ConfigError(f"lacks {', '.join(missing)}", field="formats", where=where)
    made: dict[str, Any] = {key: None if value == "none" else value for key, value in given.items()}
    check_values(Formats, made, prefix="formats.", where=where)
    for key, value in made.items():
        if value is not None:
            dtype(value, f"formats.{key}")
    return Formats(**made)


def _known(cls: type, data: Mapping[str, Any], where: str, prefix: str = "") -> None:
    """Refuse a key that the dataclass lacks: a typing error would be silently ignored."""
    names = [spec.name for spec in dataclasses.fields(cls)]
    for key in data:
        if key not in names:
            raise ConfigError("is not a known key", field=f"{prefix}{key}", allowed=names, where=where)


def _table(data: object, key: str, where: str) -> Mapping[str, Any]:
    """Return the value of a key that must be a table."""
    if isinstance(data, Mapping):
        return data
    raise ConfigError("must be a table", field=key, value=data, where=where)
