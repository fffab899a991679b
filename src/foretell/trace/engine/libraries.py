"""The libraries that models come from: imported when one is asked for."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import torch

from foretell.errors import ExtraError

__all__ = ["library", "torchvision"]


def library(name: str) -> Any:
    """Return a library's module.

    Raises:
        ExtraError: it is not installed; the extra that brings it is named.

    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExtraError.missing("trace" if name == "transformers" else "models", name) from error


def torchvision() -> None:
    """Import torchvision where it is installed; timm needs it.

    A CPU build of torch cannot load the operators of a torchvision built for CUDA; those that must exist by name are given one.
    """
    for _ in range(8):
        try:
            importlib.import_module("torchvision")
        except ImportError:  # timm will say so
            return
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            operators = torch.library.Library("torchvision", "FRAGMENT")
            operators.define(f"{missing[1]}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            _kept.append(operators)
            for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
        else:
            return


_kept: list[Any] = []
"""Libraries of operators, which end with the object that holds them."""
