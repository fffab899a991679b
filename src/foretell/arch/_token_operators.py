"""Operators of transformer layers: projections, norms, attention, activations, embedding and head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from foretell.arch._operator import Operator, Pointwise, Shard, Weight


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
    written: Literal["", "wide", "offset", "centred", "apart"] = ""
    """How transformers writes it out: the fp32 result is cast and then scaled, or it is scaled in fp32 and cast last
    (``wide``), by one more than the weight (``offset``, Gemma), after its mean was subtracted (``centred``, Cohere); the
    fp32 copy serves the variance alone (``apart``, T5)."""

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
    joined: bool = False
    """transformers' code joins what turns and what does not in a new tensor, heads first, even where nothing is left over."""
    wide: Literal["", "tables", "operands"] = ""
    """transformers' code turns in fp32 and casts last: its tables are fp32 (OLMo), or it widens q and k first (Cohere)."""
    tables: str = ""
    """Layers with equal names share their tables of sines and cosines; with ``own`` each makes copies of its own, with
    ``half`` they hold one angle a pair of features."""

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
    position: Literal["", "table", "zeros", "window", "shifted"] = ""
    """Biases by position that are added to scores, and that a fused kernel takes as its mask: trained ones of all pairs of
    positions (T5; ``zeros`` in its cross attention) or of those in a window (Swin; ``shifted``: with what must not be seen)."""
    broadcast: bool = False
    """transformers' code leaves the one key head to be broadcast by the kernel (Falcon), which no fused one does."""
    masked: bool = False
    """transformers' code always makes a mask, also where a kernel could do without (Falcon)."""
    unfused: bool = False
    """transformers' class has no SDPA: it runs eager code unless another kernel is asked for by name."""
    narrow: Literal["", "kept", "cast"] = ""
    """transformers' eager code normalises scores in their own format, not in fp32; what autocast makes of that is kept
    (BERT) or cast to the format of the values (GPT-2)."""

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
class Act(Pointwise):
    """Pointwise activation ``fn`` of a tensor ``features`` wide."""

    fn: str
    split: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Pointwise):
    """``fn(gate) * up``, ``ins = (gate, up)``, each ``features`` wide."""

    fn: str
    split: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Pointwise):
    """Sum of ``ins`` (a residual connection), ``features`` wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mul(Pointwise):
    """Pointwise product of two tensors ``features`` wide (output gates, layer scales)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout(Pointwise):
    """Dropout of a tensor ``features`` wide; ``p`` is the model's own probability (a recipe may override)."""

    p: float = 0.0
    split: bool = False


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
    buffer: bool = False
    """transformers' code adds a bias that does not train, a buffer (BART): under autocast it makes logits fp32."""
    direct: bool = False
    """transformers' code gives logits to the loss as they are (BERT, T5), without an fp32 copy."""

    @property
    def width(self) -> int:
        return self.rows

    def weights(self) -> Iterator[Weight]:
        if not self.tied:
            yield Weight(f"{self.name}.weight", (self.rows, self.dim), "tp", "head")
        if self.bias:
            yield Weight(f"{self.name}.bias", (self.rows,), "tp")
