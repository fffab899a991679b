"""Operators beside the transformer's: experts, convolutions, scans, slices, and bare parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from foretell.arch._operator import Operator, Pointwise, Role, Shard, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Operator):
    """Scores of ``experts`` for each token, ``top_k`` of them chosen; ``extra`` adds correction biases etc."""

    dim: int
    experts: int
    top_k: int
    bias: bool = False
    score: Literal["softmax", "sigmoid"] = "softmax"
    extra: tuple[Weight, ...] = ()
    chosen_first: bool = False
    """transformers' code normalises the scores of the chosen experts alone (gpt-oss)."""
    normalised: bool = False
    """... divides the chosen scores by their sum (``norm_topk_prob``)."""
    wide: bool = False
    """... multiplies in fp32, with a matrix that is kept in fp32 (DeepSeek-V3)."""
    narrow: bool = False
    """... gives the chosen scores in the logits' format (Qwen)."""

    @property
    def width(self) -> int:
        return self.experts

    def weights(self) -> Iterator[Weight]:
        yield Weight(f"{self.name}.weight", (self.experts, self.dim), "1", "matrix", self.wide)
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.experts,), "1")
        yield from self.extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Operator):
    """``experts`` feed-forward networks of ``dim -> ffn -> dim``, each token visiting ``top_k`` of them.

    ``ins = (hidden, router)``.
    """

    dim: int
    ffn: int
    experts: int
    top_k: int
    gated: bool = True
    fn: str = "silu"
    bias: bool = False
    dense: bool = False
    """True where the model's code runs every expert on every token and only weighs the results (Llama 4)."""

    @property
    def width(self) -> int:
        return self.dim

    def weights(self) -> Iterator[Weight]:
        first = self.ffn * (2 if self.gated else 1)
        e = self.experts
        yield Weight(f"{self.name}.up.weight", (e, first, self.dim), "ep", "expert")
        if self.bias:
            yield Weight(f"{self.name}.up.bias", (e, first), "ep")
        yield Weight(f"{self.name}.down.weight", (e, self.dim, self.ffn), "ep", "expert")
        if self.bias:
            yield Weight(f"{self.name}.down.bias", (e, self.dim), "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Operator):
    """Convolution (1-, 2- or 3-d by the length of ``kernel``) giving ``positions`` outputs per sample.

    ``positions`` = 0 means one output per token of the block (a causal 1-d convolution over the sequence).
    """

    c_in: int
    c_out: int
    kernel: tuple[int, ...]
    groups: int = 1
    bias: bool = True
    positions: int = 0
    transposed: bool = False
    split: bool = False
    source: int = 0
    """Positions per sample of what it reads where it is a block's first operator (0: ``positions``)."""

    @property
    def width(self) -> int:
        return self.c_out

    def weights(self) -> Iterator[Weight]:
        shard: Shard = "tp" if self.split else "1"
        a, b = (self.c_in, self.c_out) if self.transposed else (self.c_out, self.c_in)
        yield Weight(f"{self.name}.weight", (a, b // self.groups, *self.kernel), shard, "conv")
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.c_out,), shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Operator):
    """A linear recurrence over the sequence (Mamba-1/2, gated delta net, RWKV, RG-LRU); ``d_inner`` wide.

    ``state`` elements are carried per sequence.  ``stored`` is what the fused kernel keeps for the backward
    pass besides its inputs, in elements per token (checkpointed chunk states).  ``extra`` are its own
    parameters (A_log, D, dt_bias ...).
    """

    kind: Literal["mamba1", "mamba2", "delta", "rwkv", "rglru", "kda", "lightning"]
    d_inner: int
    state: int
    stored: int = 0
    extra: tuple[Weight, ...] = ()

    @property
    def width(self) -> int:
        return self.d_inner

    def weights(self) -> Iterator[Weight]:
        return iter(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(Pointwise):
    """``features`` of a wider tensor: a view where the framework's kernel takes strides, else a copy."""

    split: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Operator):
    """Any parameter-free change of resolution (pooling, patch merging, up-sampling, reshape to a new width)."""

    features: int
    positions: int = 0
    kind: Literal["copy", "view", "max"] = "copy"
    """view: a slice that shares its source's storage; max: keeps its source and the indices of the maxima."""

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLoss(Operator):
    """Class scores resized to ``positions`` places of the sample (the image), and their cross entropy."""

    classes: int
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Operator):
    """Bare parameters without an operator of their own (class token, learned positions, layer scales)."""

    shapes: tuple[tuple[int, ...], ...]
    shard: Shard = "1"
    role: Role = "vector"
    trained: bool = True
    """False where no gradient ever reaches them: sinusoids, a mask token that no loss reads."""
    indices: tuple[Literal["position", "token"], ...] = ()
    """The look-ups in a table, of which each keeps its indices: one a position of the sequence, or one a token."""

    def weights(self) -> Iterator[Weight]:
        for i, shape in enumerate(self.shapes):
            yield Weight(f"{self.name}.{i}", shape, self.shard, self.role)
