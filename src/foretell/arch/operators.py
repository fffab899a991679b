"""Operators: the atoms a model is made of.

An operator is a frozen record of shapes.  It names the weights it owns (:meth:`Operator.weights`) and the
tensors it reads and writes; *how* a framework runs it (which copies it keeps for the backward pass) is told
by :mod:`foretell.cost.saved`.  Nothing here depends on a run: batch, sequence and sharding come later.

Conventions
-----------
* Widths are elements per token (or per spatial position for images).
* ``ins`` names the tensors an operator reads: the name of an earlier operator of the same block, or ``"x"``
  for the block's input.  Left empty it reads the output of the operator before it.
* An operator's output carries the operator's name.
* ``"memory"`` is the output of the encoder (or vision tower) that a cross attention reads: a tensor made from
  it alone has the encoder's rows, not the block's.  ``"skip"`` is the output of an earlier block that a later
  one reads besides ``"x"`` (the long connections of a UNet).
* Rows change where an operator says so: ``positions`` of a :class:`Conv` or :class:`Pool` other than 0 is the
  number of rows per sample from there on.
* ``shard`` of a weight says how parallelism divides it: ``"1"`` (replicated on every rank), ``"tp"`` (tensor
  parallel) or ``"ep"`` (a routed expert: divided by expert parallelism times expert tensor parallelism).
"""

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
class Linear(Operator):
    """``y = x W^T (+ b)``.

    ``split``: ``"col"`` divides the output over tensor-parallel ranks, ``"row"`` the input (its output is then
    reduced), ``""`` keeps the matrix whole on each rank.
    """

    d_in: int
    d_out: int
    bias: bool = False
    split: Literal["", "col", "row"] = ""
    parts: tuple[tuple[str, int], ...] = ()
    """(name, width) of the projections that were merged into this one, where adapters can be put on some of them."""

    @property
    def width(self) -> int:
        return self.d_out

    def weights(self) -> Iterator[Weight]:
        shard: Shard = "tp" if self.split else "1"
        yield Weight(f"{self.name}.weight", (self.d_out, self.d_in), shard, "matrix")
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.d_out,), "tp" if self.split == "col" else "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Operator):
    """LayerNorm, RMSNorm and friends over ``dim`` features; ``groups`` equal slices share one weight.

    ``groups`` > 1 with ``dim`` = head size is a per-head query/key norm (weight of ``dim`` elements, output
    ``groups * dim`` wide).  ``shared_weight=False`` gives every group its own weight.
    """

    dim: int
    kind: Literal["rms", "layer", "batch", "group", "l2"] = "rms"
    bias: bool = False
    affine: bool = True
    groups: int = 1
    shared_weight: bool = True
    split: bool = False
    """True when it runs on tensor-parallel heads (query/key norms), False when on the residual stream."""
    fused: bool = False
    """PyTorch's own module (``nn.RMSNorm``) in model code that is otherwise eager."""

    @property
    def width(self) -> int:
        return self.dim * self.groups

    def weights(self) -> Iterator[Weight]:
        if not self.affine or self.kind == "l2":
            return
        n = self.dim if self.shared_weight else self.dim * self.groups
        shard: Shard = "tp" if self.split and not self.shared_weight else "1"
        yield Weight(f"{self.name}.weight", (n,), shard)
        if self.bias:
            yield Weight(f"{self.name}.bias", (n,), shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope(Operator):
    """Rotary position embedding of a query or key of ``heads * dim`` (``rotary`` of each head's features turn)."""

    heads: int
    dim: int
    rotary: int

    @property
    def width(self) -> int:
        return self.heads * self.dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Operator):
    """Scaled dot product of ``ins = (q, k, v)``; no projections.

    ``ins`` of one tensor, the query: keys and values are those of an earlier layer (KV sharing).
    ``window``: keys seen per query (0 = all).  ``memory``: ``"self"`` or ``"cross"`` (keys from the encoder).
    ``extra`` are small parameters the core owns (sinks, relative-position tables).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    causal: bool = True
    window: int = 0
    memory: Literal["self", "cross"] = "self"
    extra: tuple[Weight, ...] = ()
    fused: bool = True
    """False where the model's code can only run the eager form (scores stored), whatever the user asks."""
    dropout: float = 0.0
    """Probability with which attention weights are dropped in training (the model's own default)."""
    heads_first: bool = False
    """The model's code lays queries out heads first, so that the kernel's output is copied before its projection."""
    softcap: bool = False
    """Scores are capped with a tanh (Gemma 2): one more score tensor where scores are stored."""

    @property
    def width(self) -> int:
        return self.heads * self.v_dim

    def weights(self) -> Iterator[Weight]:
        return iter(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAttention(Operator):
    """LLaMA-Adapter (arXiv 2303.16199): the queries also attend to ``rows`` learned tokens, gated per head.

    ``ins = (q, attention output)``.  Its weights always train.
    """

    heads: int
    head_dim: int
    hidden: int
    rows: int = 10

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def weights(self) -> Iterator[Weight]:
        yield Weight(f"{self.name}.prompt", (self.rows, self.hidden))
        yield Weight(f"{self.name}.gate", (self.heads,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Act(Operator):
    """Pointwise activation ``fn`` of a tensor ``features`` wide."""

    fn: str
    features: int
    split: bool = True

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Operator):
    """``fn(gate) * up``, ``ins = (gate, up)``, each ``features`` wide."""

    fn: str
    features: int
    split: bool = True

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Operator):
    """Sum of ``ins`` (a residual connection), ``features`` wide."""

    features: int

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul(Operator):
    """Pointwise product of two tensors ``features`` wide (output gates, layer scales)."""

    features: int

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout(Operator):
    """Dropout of a tensor ``features`` wide; ``p`` is the model's own probability (a recipe may override)."""

    features: int
    p: float = 0.0
    split: bool = False

    @property
    def width(self) -> int:
        return self.features


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Operator):
    """A lookup table of ``rows x dim``; ``vocab=True`` for the token table (vocabulary parallel under TP).

    ``tied`` looks up a table that another operator owns (the decoder of T5 or BART).
    """

    rows: int
    dim: int
    vocab: bool = True
    tied: bool = False

    @property
    def width(self) -> int:
        return self.dim

    def weights(self) -> Iterator[Weight]:
        if not self.tied:
            yield Weight(f"{self.name}.weight", (self.rows, self.dim), "tp" if self.vocab else "1", "embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(Operator):
    """The output projection onto ``rows`` classes or vocabulary entries; ``tied`` shares the token table."""

    dim: int
    rows: int
    bias: bool = False
    tied: bool = False
    softcap: bool = False
    """Logits are capped with a tanh (Gemma 2), whose result is kept."""

    @property
    def width(self) -> int:
        return self.rows

    def weights(self) -> Iterator[Weight]:
        if not self.tied:
            yield Weight(f"{self.name}.weight", (self.rows, self.dim), "tp", "head")
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.rows,), "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Operator):
    """Scores of ``experts`` for each token, ``top_k`` of them chosen; ``extra`` adds correction biases etc."""

    dim: int
    experts: int
    top_k: int
    bias: bool = False
    score: Literal["softmax", "sigmoid"] = "softmax"
    extra: tuple[Weight, ...] = ()

    @property
    def width(self) -> int:
        return self.experts

    def weights(self) -> Iterator[Weight]:
        yield Weight(f"{self.name}.weight", (self.experts, self.dim), "1", "matrix")
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
class Slice(Operator):
    """``features`` of a wider tensor: a view where the framework's kernel takes strides, else a copy."""

    features: int
    split: bool = True

    @property
    def width(self) -> int:
        return self.features


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

    def weights(self) -> Iterator[Weight]:
        for i, shape in enumerate(self.shapes):
            yield Weight(f"{self.name}.{i}", shape, self.shard, self.role)
