"""What every operator is: a frozen record of shapes with the parameters it owns (:mod:`foretell.arch.operators`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Shard = Literal["1", "tp", "ep"]
Role = Literal["matrix", "vector", "embedding", "head", "expert", "conv"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter tensor: its path inside the block, its shape, how it is divided and what it is for."""

    name: str
    shape: tuple[int, ...]
    shard: Shard = "1"
    role: Role = "vector"
    wide: bool = False
    """Kept in fp32 by transformers in a model of a narrower format (``_keep_in_fp32_modules_strict``)."""

    @property
    def elements(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Base of all operators."""

    name: str
    ins: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Elements of the output per token (0 where the operator has no output of its own)."""
        return 0

    def weights(self) -> Iterator[Weight]:
        """The parameters this operator owns, in module order."""
        return iter(())

    @property
    def parameters(self) -> int:
        return sum(w.elements for w in self.weights())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Operator):
    """Base of operators whose output is ``features`` wide."""

    features: int

    @property
    def width(self) -> int:
        return self.features
