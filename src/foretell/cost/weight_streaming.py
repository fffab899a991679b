"""A pass whose weights come in layer by layer, while the layer before computes: from a host or a store of weights.

A layer takes as long as its injection or its arithmetic, whichever is longer; the device holds keys, values and activations, and
on a device that keeps weights at all two layers, the one that computes and the one that comes.  Wafers work on weights as they
arrive (Cerebras, "Weight streaming execution", 2023).  Of routed experts, those that the tokens visit come in.

Numbers or arrays of sequences and tokens.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Experts
from foretell.cost.arrays import Value, is_array, maximum, where
from foretell.cost.kv_layout import Stage
from foretell.cost.routing import visited
from foretell.cost.served_weights import Ranks, layer_bytes, outer_bytes, stored_bits, weight_format
from foretell.cost.serving_batch import kept_bytes
from foretell.cost.serving_load import Load
from foretell.cost.serving_step import Steps
from foretell.cost.works_kinds import Core, Product, Stream

__all__ = ["Pass", "Streamed", "streamed"]

UNIT: Final = 2.0
"""Bytes per element of an activation."""
LOGIT: Final = 4.0
_ROUNDS: Final = 60
_MOST: Final = 1e12


class _OneBlock(Steps):
    """Prices of one block alone, without the host's time: it goes on to the next layer meanwhile."""

    block: Block | None = None

    def _kernels(self) -> Iterator[tuple[Block, int, list[Product | Core | Stream]]]:
        for block, _, kernels in super()._kernels():
            if block is self.block:
                yield block, 1, kernels

    def _with_host(self, gpu: Value, load: Load, ways: Value) -> Value:  # noqa: ARG002  # as its base has it
        return gpu


@dataclass(frozen=True)
class _Layer:
    """Equal layers."""

    steps: Steps
    count: int
    dense: float
    """Bytes that come in for every pass."""
    experts: float
    """Bytes of all routed experts."""
    kinds: int
    """Experts; 0: none."""
    choices: int
    """Of them, those of a token."""

    def injected(self, tokens: Value) -> Value:
        """Bytes that come in for so many tokens."""
        if not self.kinds:
            return self.dense + 0.0 * tokens
        return self.dense + self.experts * visited(float(self.kinds), float(self.choices), tokens) / self.kinds


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over all layers, seconds and bytes."""

    compute: Value
    """Mean layer's."""
    injection: Value
    """Mean layer's."""
    total: Value
    """The whole pass, output projection included."""
    bound: Value
    """Where arithmetic takes longer than injection, over the pass."""


@dataclass(frozen=True)
class Streamed:
    """A model that streams through a device."""

    layers: tuple[_Layer, ...]
    outer: tuple[_Layer, ...]
    """Token table, whose rows come in, and output projection."""
    stage: Stage
    rate: float
    """Bytes/s at which weights come in."""
    keeps: bool
    """Whether the device holds the weights of two layers."""

    @property
    def depth(self) -> int:
        """Layers."""
        return sum(layer.count for layer in self.layers)

    def load(self, batch: Value, tokens: Value, *, decode: bool) -> Load:
        """Return the load of a pass: a token of each sequence, which sees ``tokens`` of them, or all tokens of each."""
        if decode:
            return Load(decode=batch * 1.0, context=batch * 1.0 * tokens)
        whole = batch * 1.0 * tokens
        return Load(prefill=whole, pairs=whole * (tokens + 1.0) / 2.0, prompts=batch * 1.0)

    def run(self, batch: Value, tokens: Value, *, decode: bool) -> Pass:
        """Return one pass."""
        load = self.load(batch, tokens, decode=decode)
        rows = batch * 1.0 if decode else batch * 1.0 * tokens
        total: Value = 0.0
        computes: Value = 0.0
        injections: Value = 0.0
        for layer in self.layers:
            compute, injection = layer.steps.seconds(load), layer.injected(rows) / self.rate
            total = total + layer.count * maximum(compute, injection)
            computes, injections = computes + layer.count * compute, injections + layer.count * injection
        for layer in self.outer:
            total = total + maximum(layer.steps.seconds(load), layer.injected(rows) / self.rate)
        return Pass(computes / self.depth, injections / self.depth, total, computes > injections)

    def kept(self, batch: Value, tokens: Value) -> Value:
        """Bytes of keys, values and states of all sequences."""
        return batch * kept_bytes(self.stage, tokens)

    def working(self, batch: Value, tokens: Value, *, decode: bool) -> Value:
        """Bytes of activations: the residual stream, its normalised copy and the widest tensors of a layer, and logits."""
        rows = batch * 1.0 if decode else batch * 1.0 * tokens
        return UNIT * rows * (2.0 * self.stage.hidden + self.stage.widest) + LOGIT * batch * self.stage.vocab

    @property
    def buffers(self) -> float:
        """Bytes of weights that are on the device at a time."""
        return 2.0 * max(layer.dense + layer.experts for layer in (*self.layers, self.outer[-1])) if self.keeps else 0.0

    def balanced(self, tokens: Value, *, decode: bool) -> Value:
        """Return the largest batch whose arithmetic takes no longer than the injection; 1 at least.

        Arithmetic is nearly in proportion to the batch, so that scaling it by their ratio comes to the balance in few rounds.
        """
        batch = tokens * 0.0 + 64.0
        for _ in range(_ROUNDS):
            one = self.run(batch, tokens, decode=decode)
            new = maximum(batch * one.injection / maximum(one.compute, 1e-300), 1.0)
            new = where(new > _MOST, _MOST, new)
            change = abs(new / batch - 1.0)
            batch = new
            if (change.max() if is_array(change) else change) < 1e-9:
                break
        return maximum(_floor(batch * (1.0 + 1e-7)), 1.0)


def _floor(value: Value) -> Value:
    if is_array(value):
        import numpy as np  # noqa: PLC0415

        return np.floor(value)
    return float(math.floor(value))


class _Key:
    """Prices of steps, the same where they are one object, and how weights are stored."""

    __slots__ = ("steps", "weights")

    def __init__(self, steps: Steps, weights: str) -> None:
        self.steps, self.weights = steps, weights

    def __hash__(self) -> int:
        return hash((id(self.steps), self.weights))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.steps is other.steps and self.weights == other.weights


def streamed(steps: Steps, weights: str, stage: Stage, rate: float, *, keeps: bool) -> Streamed:
    """Return a model that streams through a device: its ``steps`` on one device, weights as they are stored, ``rate`` bytes/s."""
    layers, outer = _layers(_Key(steps, weights))
    return Streamed(layers, outer, stage, rate, keeps)


@functools.lru_cache(maxsize=64)
def _layers(key: _Key) -> tuple[tuple[_Layer, ...], tuple[_Layer, ...]]:
    """Layers of the trunk, and what stands before and after it."""
    arch, kind = key.steps.arch, weight_format(key.weights)
    bits = stored_bits(arch, kind)
    counts = Counter((which, id(bits[i])) for i, which in enumerate(arch.main.pattern))
    own = {(which, id(bits[i])): bits[i] for i, which in enumerate(arch.main.pattern)}
    trunk = []
    for (which, number), count in counts.items():
        block = arch.main.blocks[which]
        size = layer_bytes(block, own[which, number], Ranks())
        experts = next((op for op in block.ops if isinstance(op, Experts)), None)
        kinds, choices = (experts.experts, experts.top_k) if experts is not None else (0, 0)
        trunk.append(_Layer(_of_block(key.steps, block), count, size.dense, size.experts, kinds, choices))
    head = _Layer(_of_block(key.steps, arch.head), 1, _projection(arch, key.weights), 0.0, 0, 0)
    rows = _Layer(_of_block(key.steps, arch.embed), 1, 0.0, 0.0, 0, 0)  # a token's row is as wide as one activation
    return tuple(trunk), (rows, head)


def _projection(arch: Architecture, weights: str) -> float:
    """Bytes of the output projection, which may be the token table."""
    kind = weight_format(weights)
    own = outer_bytes(arch.head, kind, 1)
    return own + (outer_bytes(arch.embed, kind, 1) if arch.tied else 0.0)


def _of_block(steps: Steps, block: Block) -> Steps:
    public = {f.name: getattr(steps, f.name) for f in fields(Steps) if not f.name.startswith("_")}
    made = _OneBlock(**public)
    made.block = block
    return made
