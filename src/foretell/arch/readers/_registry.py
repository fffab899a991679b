"""Which module reads which model type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TypeVar

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config
from foretell.arch.readers._index import MODULES
from foretell.arch.readers._written import as_written
from foretell.errors import InputError

Reader = Callable[[Config], Architecture]
_READERS: dict[str, Reader] = {}
PLUGINS = "foretell.operators"
"""Entry point group of packages that add operators and readers."""
F = TypeVar("F", bound=Reader)


def reader(*model_types: str) -> Callable[[F], F]:
    """Register a reader for ``model_types`` (a later registration replaces an earlier one)."""

    def register(function: F) -> F:
        for model_type in model_types:
            _READERS[model_type] = function
        return function

    return register


def find_reader(model_type: str) -> Reader | None:
    """The reader of a model type, importing its module on first use."""
    if model_type not in _READERS and model_type in MODULES:
        import_module(f"foretell.arch.readers.{MODULES[model_type]}")
    if model_type not in _READERS and model_type:
        load_plugins()
    found = _READERS.get(model_type)
    return None if found is None else lambda cfg: as_written(found(cfg), cfg)


@lru_cache(maxsize=1)
def load_plugins() -> tuple[str, ...]:
    """Import what other packages offer under the entry point group ``foretell.operators``; return the names.

    Such a module registers readers (:func:`reader`) and defines operators of its own.  It is looked for only
    when a model type is not known otherwise: searching the installed packages costs 20 ms.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  # 20 ms, for model types of other packages

    loaded = []
    for point in entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as error:
            why = f"fails to load: {type(error).__name__}: {error}"
            raise InputError(why, field=f"entry point {PLUGINS}", value=point.name, where=point.value) from error
        loaded.append(point.name)
    return tuple(loaded)


def known_model_types() -> list[str]:
    """Every model type that can be read, sorted."""
    return sorted({*_READERS, *MODULES})
