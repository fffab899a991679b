"""foretell: what a machine-learning job will do before a GPU is touched.

    import foretell as ft
    ft.load_model("llama-3-8b")

Importing this package imports nothing else: each public name brings its own module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from foretell._version import __version__

if TYPE_CHECKING:
    from foretell.arch import (
        CNNWorkload,
        DiffusionWorkload,
        SparseTransformerWorkload,
        SSMWorkload,
        TransformerWorkload,
        Workload,
        load_model,
    )
    from foretell.catalog.loader import register
    from foretell.errors import (
        CatalogError,
        CombinationError,
        ConfigError,
        ExtraError,
        ForetellError,
        InfeasibleError,
        InputError,
        OOMError,
    )
    from foretell.machine import (
        Datacenter,
        Fleet,
        GridProfile,
        HardwareNode,
        NetworkFabric,
        Node,
        load_datacenter,
        load_fleet,
        load_hardware,
    )
    from foretell.recipe import Parallelism, TrainingRecipe
    from foretell.units import Quantity

_HOME = {
    "foretell.arch": (
        "CNNWorkload",
        "DiffusionWorkload",
        "SSMWorkload",
        "SparseTransformerWorkload",
        "TransformerWorkload",
        "Workload",
        "load_model",
    ),
    "foretell.catalog.loader": ("register",),
    "foretell.errors": (
        "CatalogError",
        "CombinationError",
        "ConfigError",
        "ExtraError",
        "ForetellError",
        "InfeasibleError",
        "InputError",
        "OOMError",
    ),
    "foretell.machine": (
        "Datacenter",
        "Fleet",
        "GridProfile",
        "HardwareNode",
        "NetworkFabric",
        "Node",
        "load_datacenter",
        "load_fleet",
        "load_hardware",
    ),
    "foretell.recipe": ("Parallelism", "TrainingRecipe"),
    "foretell.units": ("Quantity",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022  # grouped by the module that a name comes from, as above
    "__version__",
    "CNNWorkload",
    "DiffusionWorkload",
    "SSMWorkload",
    "SparseTransformerWorkload",
    "TransformerWorkload",
    "Workload",
    "load_model",
    "register",
    "CatalogError",
    "CombinationError",
    "ConfigError",
    "ExtraError",
    "ForetellError",
    "InfeasibleError",
    "InputError",
    "OOMError",
    "Datacenter",
    "Fleet",
    "GridProfile",
    "HardwareNode",
    "NetworkFabric",
    "Node",
    "load_datacenter",
    "load_fleet",
    "load_hardware",
    "Parallelism",
    "TrainingRecipe",
    "Quantity",
]


def __getattr__(name: str) -> object:
    """Import the module that holds the public `name`, and keep the name here."""
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return sorted({*globals(), *__all__})
