"""The public solvers, one class each, with the signatures of the documentation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.core.solver.training_memory import TrainingMemoryModel, TrainingMemoryResult

_MODULE_OF = {
    "TrainingMemoryModel": "training_memory",
    "TrainingMemoryResult": "training_memory",
}

__all__ = ["TrainingMemoryModel", "TrainingMemoryResult"]


def __getattr__(name: str) -> object:
    """Import the module that holds the public `name`, and keep the name here."""
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
