"""A ``config.json`` seen through its model type's defaults, with errors that name the field.

Lookup order of a key: the file, the file under an alias of the class, the class default, the caller's default.
A key that is present with ``null`` is ``None``, as transformers takes it.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from foretell.errors import ConfigError

_MISSING = object()
MAX_SIZE = 2**40
"""Largest integer accepted for a shape; anything above is a typing error or an attack."""
MAX_COUNT = 10_000
"""Largest number of layers (of anything that becomes a list as long as the number)."""
MAX_EACH = 64
"""Largest number of layers in each block of a U-Net, whose skips make every one different."""
_EACH = re.compile(r"(^|_)layers_per_block(\[\d+\])?$")
_COUNT = re.compile(r"(^|_)(layers?|depths?|groups|group_num|outputs|point_embeddings)(\[\d+\])?$")


@lru_cache(maxsize=1)
def _table() -> bytes:
    return resources.files("foretell.arch").joinpath("data/class_defaults.json").read_bytes()


@lru_cache(maxsize=64)
def class_defaults(model_type: str) -> dict[str, Any]:
    """Structural defaults of a model type's configuration class; empty for a type that transformers lacks.

    The table holds one model type a line, so only that line is parsed.
    """
    raw = _table()
    start = raw.find(b"\n" + json.dumps(model_type).encode() + b": ")
    if start < 0:
        return {}
    start = raw.index(b": ", start) + 2
    end = raw.index(b"\n", start)
    value: dict[str, Any] = json.loads(raw[start:end].rstrip(b","))
    return value


class Config:
    """Typed, defaulted, error-reporting view of one configuration object (nested ones through :meth:`sub`)."""

    def __init__(
        self, raw: Mapping[str, Any], *, where: builtins.str, model_type: builtins.str | None = None, prefix: builtins.str = ""
    ) -> None:
        self.raw = raw
        self.where = where
        self.prefix = prefix
        declared = raw.get("model_type", model_type)
        self.model_type: str = declared if isinstance(declared, str) else ""
        self.defaults = class_defaults(self.model_type)
        self.aliases: Mapping[str, str] = self.defaults.get("__aliases__", {})
        self.read: set[str] = set()

    # -- lookup ---------------------------------------------------------------------------------------------

    def _lookup(self, key: builtins.str) -> Any:
        self.read.add(key)
        if key in self.raw:
            return self.raw[key]
        for alias, named in self.aliases.items():
            if named == key and alias in self.raw:
                self.read.add(alias)
                return self.raw[alias]
        target = self.aliases.get(key)
        if target is not None:
            return self._lookup(target)
        return self.defaults.get(key, _MISSING)

    def has(self, key: builtins.str) -> builtins.bool:
        """Whether the file or the class gives ``key`` a value other than null."""
        return self._lookup(key) not in (_MISSING, None)

    def get(self, *keys: builtins.str, default: Any = _MISSING) -> Any:
        """First of ``keys`` that is present and not null; ``default``; or an error naming the keys."""
        for key in keys:
            value = self._lookup(key)
            if value is not _MISSING and value is not None:
                return value
        if default is _MISSING:
            raise self.error(keys[0], None, f"a value ({' or '.join(keys)} is missing)", "add the key to the file")
        return default

    # -- typed ----------------------------------------------------------------------------------------------

    def int(self, *keys: builtins.str, default: Any = _MISSING, low: builtins.int = 0) -> Any:
        """An integer >= ``low`` (``default`` may be None)."""
        value = self.get(*keys, default=default)
        if value is default and default is not _MISSING:
            return value
        return self.check_int(keys[0], value, low)

    def check_int(self, key: builtins.str, value: Any, low: builtins.int = 0) -> builtins.int:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        high = MAX_EACH if _EACH.search(key) else MAX_COUNT if _COUNT.search(key) else MAX_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            top = "2^40" if high == MAX_SIZE else str(high)
            raise self.error(key, value, f"an integer between {low} and {top}", "correct the value")
        return value

    def ints(self, key: builtins.str, *, default: Any = _MISSING) -> Any:
        """A list of integers, each >= 0."""
        value = self.get(key, default=default)
        if value is default and default is not _MISSING:
            return value
        if not isinstance(value, list | tuple) or len(value) > 100_000:
            raise self.error(key, value, "a list of integers", "correct the value")
        return [self.check_int(f"{key}[{i}]", v) for i, v in enumerate(value)]

    def float(self, key: builtins.str, default: builtins.float) -> builtins.float:
        value = self.get(key, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, value, "a finite number", "correct the value")
        return float(value)

    def bool(self, key: builtins.str, default: builtins.bool = False) -> builtins.bool:
        value = self.get(key, default=default)
        if not isinstance(value, bool):
            if value in (0, 1):
                return bool(value)
            raise self.error(key, value, "true or false", "correct the value")
        return value

    def str(self, key: builtins.str, default: builtins.str = "") -> builtins.str:
        value = self.get(key, default=default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string", "correct the value")
        return value

    def list(self, key: builtins.str, default: Any = _MISSING) -> Any:
        value = self.get(key, default=default)
        if value is default and default is not _MISSING:
            return value
        if not isinstance(value, list | tuple) or len(value) > 100_000:
            raise self.error(key, value, "a list", "correct the value")
        return list(value)

    def sub(self, *keys: builtins.str, model_type: builtins.str | None = None) -> Config:
        """A nested configuration; the class default's keys fill the gaps of the file's."""
        value: Any = {}
        key = keys[0]
        for candidate in keys:
            self.read.add(candidate)
            if candidate in self.raw and self.raw[candidate] is not None:
                value, key = self.raw[candidate], candidate
                break
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object", "give a nested configuration")
        own: dict[builtins.str, Any] = next((self.defaults[k] for k in keys if isinstance(self.defaults.get(k), dict)), {})
        nested_type = value.get("model_type", model_type or own.get("model_type"))
        child = Config(value, where=self.where, model_type=nested_type, prefix=f"{self.prefix}{key}.")
        if not child.defaults and own:
            child.defaults = own
        return child

    def like(self, model_type: builtins.str) -> Config:
        """The same content with the class defaults of another model type."""
        return Config({**self.raw, "model_type": model_type}, where=self.where, prefix=self.prefix)

    # -- errors ---------------------------------------------------------------------------------------------

    def error(self, field: builtins.str, value: Any, allowed: builtins.str, hint: builtins.str) -> ConfigError:
        """A :class:`ConfigError` that repeats the field, its value and where it stood."""
        return ConfigError(
            "cannot be used", field=f"{self.prefix}{field}", value=value, allowed=allowed, where=self.where, hint=hint
        )

    def divides(self, field: builtins.str, whole: builtins.int, part: builtins.int) -> builtins.int:
        """``whole / part``, or an error when it is not whole."""
        if part <= 0 or whole % part:
            raise self.error(field, part, f"a divisor of {whole}", "correct the value")
        return whole // part
