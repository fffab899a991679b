"""What a block's works are: matrix products, fused attention, traffic, exchanges; shapes as linear forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foretell.arch.operators import Attention

__all__ = ["Core", "Exchange", "Product", "Stream"]

Place = str
"""A monomial of :mod:`foretell.cost.linear`."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product ``rows x k`` by ``k x n``, and its two gradients where they are wanted."""

    name: str
    rows: tuple[Place, float]
    """Rows as (monomial, coefficient)."""
    n: float
    k: float
    n_shard: str = "1"
    """What divides ``n`` (``tp``, ``etp``), and ``k``."""
    k_shard: str = "1"
    batch: tuple[Place, float] = ("1/1", 1.0)
    spread: bool = False
    """Rows are divided over the batch (routed tokens over the experts of a rank)."""
    trains: bool = True
    input_grad: bool = True
    low: bool = False
    """It may run in a low-precision format."""
    grouped: bool = False
    inner: tuple[Place, float] | None = None
    """``n`` as a form, where it grows with the sequence (scores)."""
    deep: tuple[Place, float] | None = None
    """``k`` as a form (scores times values)."""
    weighted: bool = True
    """One operand is a weight, whose gradient is written in the gradient's format."""
    causal: bool = False
    """Attention's scores or values, computed for the pairs too that a causal mask leaves out."""
    window: int | None = None
    """... and for those beyond so many keys."""
    unit: float = 2.0


@dataclass(frozen=True, slots=True)
class Core:
    """Fused attention."""

    name: str
    op: Attention
    rows: tuple[Place, float]
    keys: str
    """Rows of the keys: ``T`` (as the queries), ``E`` or ``B``."""
    per: float
    unit: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A node that moves bytes."""

    name: str
    forward: dict[str, float]
    backward: dict[str, float]
    launches: float = 1.0
    launches_backward: float = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes that ranks exchange: which group, how, and in which pass.

    ``whole``: bytes of the whole tensor of the group (what an all-gather makes, what a reduce-scatter takes), or, all to
    all, what one rank sends.
    """

    name: str
    group: Literal["tp", "ep", "cp"]
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ring"]
    whole: dict[str, float]
    choices: float = 1.0
    """Ranks that a routed token may be sent to."""
