"""Kinds of evidence: which module reads and scores the rows of each, and what its report holds beside the errors.

A kind is one line of ``_MODULES`` and a module with a constant ``KIND``; nothing else names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import InputError
from foretell.evidence.summary import Scored

__all__ = ["KINDS", "Kind", "kind_of"]

_MODULES: Final = {
    "memory": "foretell.evidence.memory_replay",
    "collectives": "foretell.evidence.collective_replay",
    "kernels": "foretell.evidence.kernel_replay",
    "training": "foretell.evidence.training_replay",
    "serving": "foretell.evidence.serving_replay",
    "operations": "foretell.evidence.operations_replay",
}
KINDS: Final = tuple(_MODULES)
"""What can be replayed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How rows of one kind are scored and reported."""

    score: Callable[..., Scored | Sequence[Scored]]
    """From a row (a mapping) and the replay's options to what was predicted, or why nothing was; a list of them, where a row
    has several measured values."""
    groups: Mapping[str, Callable[[Scored], str]]
    """Name of a breakdown (``by_source``) -> the group of a row."""
    in_bars: Callable[[Scored], bool] = lambda _: True
    """Whether a row enters the summary; the others are reported apart."""
    extra: Callable[[Sequence[Scored]], dict[str, Any]] = lambda _: {}
    """What the summary holds beside errors and breakdowns."""


def kind_of(name: str) -> Kind:
    """Return a kind; only its own modules are imported.

    >>> kind_of("weather")
    Traceback (most recent call last):
    foretell.errors.InputError: kind='weather' is not a kind of evidence that can be replayed; allowed: memory, collectives,
    kernels, training, serving, operations
    """
    if name not in _MODULES:
        raise InputError("is not a kind of evidence that can be replayed", field="kind", value=name, allowed=KINDS)
    found: Kind = importlib.import_module(_MODULES[name]).KIND
    return found
