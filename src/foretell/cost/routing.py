"""Routed experts: which of them a batch visits, and what its tokens send to get there and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Experts
from foretell.cost.arrays import Value, minimum, power
from foretell.cost.pass_time import Network
from foretell.cost.topology import Group

__all__ = [
    "PASSES",
    "ExpertLayers",
    "busiest_experts",
    "busiest_parameters",
    "busiest_rank",
    "exchanged_bytes",
    "exchanged_seconds",
    "expert_layers",
    "unvisited_parameters",
    "visited",
]

PASSES = 2
"""Forward and backward: each sends tokens to their experts (dispatch) and results back (combine) once a layer."""


def visited(experts: Value, choices: Value, tokens: Value) -> Value:
    """Return how many of the experts so many tokens visit on average, each choosing evenly: ``E (1 - (1 - k/E)^T)``.

    >>> visited(8.0, 2.0, 1.0), round(visited(8.0, 2.0, 4.0), 3)
    (2.0, 5.469)
    """
    return experts * (1.0 - power(1.0 - minimum(choices / experts, 1.0), tokens))


def busiest_rank(spread: float, experts: int, ranks: int) -> float:
    """Return the expected load of the busiest of so many ranks over the mean, where the load of one expert has a coefficient of
    variation of ``spread``.

    A rank holds ``experts / ranks`` of them, whose loads add up, so its own varies by ``spread`` over the root of that; the
    largest of ``ranks`` normal loads lies at Blom's score (Blom 1958; Harter 1961), and no rank gets more than everything.

    >>> round(busiest_rank(0.5, 64, 8), 3), busiest_rank(0.5, 64, 1), busiest_rank(9.0, 8, 8)
    (1.254, 1.0, 8.0)
    """
    if ranks < 2 or not spread or not experts:
        return 1.0
    own = spread / math.sqrt(max(1.0, experts / ranks))
    return min(1.0 + own * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)), float(ranks))


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """Equal layers with routed experts."""

    layers: int
    experts: int
    top_k: int
    """Experts that a token visits (all, where the model's code runs every expert on every token)."""
    width: int
    """Elements of a token that travel."""
    parameters: float
    """Of one expert of one layer."""


def expert_layers(arch: Architecture) -> tuple[ExpertLayers, ...]:
    """Return a model's layers with routed experts; none for a dense model."""
    out = []
    for block, count in arch.blocks():
        for op in block.ops:
            if isinstance(op, Experts):
                own = sum(w.elements for w in op.weights()) / op.experts
                out.append(ExpertLayers(count, op.experts, op.experts if op.dense else op.top_k, op.dim, own))
    return tuple(out)


def busiest_experts(layer: ExpertLayers, imbalance: Value) -> Value:
    """Experts' work for a token on the busiest rank; a rank cannot have more than all of it.

    >>> busiest_experts(ExpertLayers(1, 8, 2, 4096, 0.0), 1.5)
    3.0
    """
    return minimum(layer.top_k * imbalance, float(layer.experts))


def busiest_parameters(layers: tuple[ExpertLayers, ...], active: float, imbalance: Value) -> Value:
    """Parameters' work for a token on the busiest rank, of a model whose tokens visit ``active`` parameters."""
    return active + sum(one.layers * one.parameters * (busiest_experts(one, imbalance) - one.top_k) for one in layers)


def unvisited_parameters(layers: tuple[ExpertLayers, ...], tokens: Value) -> Value:
    """Parameters of experts that no token of a batch visits, on average."""
    return sum(
        one.layers * one.parameters * (one.experts - visited(float(one.experts), float(one.top_k), tokens)) for one in layers
    )


def _sent(layer: ExpertLayers, tokens: Value, imbalance: Value) -> Value:
    """Elements that a rank sends in one exchange, its own part included; the busiest rank has more than its share."""
    return tokens * layer.top_k * layer.width * imbalance


def exchanged_bytes(
    layers: tuple[ExpertLayers, ...], tokens: Value, ep: Value, imbalance: Value, dispatch: float, combine: float
) -> Value:
    """Return the bytes that a rank of ``ep`` sends to other ranks in a step, dispatch and combine, forward and backward.

    ``tokens``: of one rank; ``dispatch`` and ``combine``: bytes per element.

    >>> one = ExpertLayers(layers=1, experts=8, top_k=2, width=4096, parameters=0.0)
    >>> exchanged_bytes((one,), 1000, 8, 1.0, 2.0, 2.0) == 4 * 1000 * 2 * 4096 * 2 * 7 / 8
    True
    """
    each = sum(layer.layers * _sent(layer, tokens, imbalance) for layer in layers)
    return PASSES * each * (dispatch + combine) * (ep - 1) / ep


def exchanged_seconds(
    layers: tuple[ExpertLayers, ...],
    tokens: Value,
    imbalance: Value,
    dispatch: float,
    combine: float,
    network: Network,
    group: Group,
) -> Value:
    """Return the seconds of all exchanges of a step over a group's ranks, one after the other."""
    out: Value = 0.0
    for layer in layers:
        sent = _sent(layer, tokens, imbalance)
        there, back = (network.routed(sent * unit, float(layer.top_k), group) for unit in (dispatch, combine))
        out = out + PASSES * layer.layers * (there + back)
    return out
