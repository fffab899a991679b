"""What a model is: operators, blocks of them, readers of ``config.json``, and the workloads that users hold.

May import: errors, units, dtypes, validation, catalog.  Importing this package imports none of its modules:
each name brings its own when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.arch._load import config_of, load_model
    from foretell.arch.architecture import Architecture
    from foretell.arch.workload import (
        CNNWorkload,
        DiffusionWorkload,
        SparseTransformerWorkload,
        SSMWorkload,
        TransformerWorkload,
        Workload,
    )

_WORKLOADS = (
    "CNNWorkload",
    "DiffusionWorkload",
    "SSMWorkload",
    "SparseTransformerWorkload",
    "TransformerWorkload",
    "Workload",
)
_MODULE_OF = {
    "Architecture": "foretell.arch.architecture",
    "config_of": "foretell.arch._load",
    "load_model": "foretell.arch._load",
    **dict.fromkeys(_WORKLOADS, "foretell.arch.workload"),
}

__all__ = [
    "Architecture",
    "CNNWorkload",
    "DiffusionWorkload",
    "SSMWorkload",
    "SparseTransformerWorkload",
    "TransformerWorkload",
    "Workload",
    "config_of",
    "load_model",
]


def __getattr__(name: str) -> object:
    """Import the module that holds the public `name`, and keep the name here."""
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
