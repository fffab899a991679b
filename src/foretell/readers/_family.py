"""A family of files: what claims them, and what reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Reading, Sources

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """Files of one framework."""

    name: str
    title: str
    claims: Callable[[Document], float]
    """How surely a document is a run of this framework by its keys: 0 no, 1 certain.  Reads nothing else and marks nothing."""
    read: Callable[[Sources], Reading]
    """Reads a document that it claims, or (``sources.main`` is then the arguments) a command that it starts."""
    starts: Callable[[Launcher], bool] | None = None
    """Whether a command starts a run of this framework."""
    beside: bool = False
    """Describes how runs are launched and sharded, not a run (an accelerate file, a DeepSpeed JSON): read with another, or alone
    where no other is given."""
