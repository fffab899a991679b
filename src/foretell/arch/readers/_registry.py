"""Which module reads which model type."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config
from foretell.arch.readers._index import MODULES

Reader = Callable[[Config], Architecture]
_READERS: dict[str, Reader] = {}
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
    return _READERS.get(model_type)


def known_model_types() -> list[str]:
    """Every model type that can be read, sorted."""
    return sorted({*_READERS, *MODULES})
