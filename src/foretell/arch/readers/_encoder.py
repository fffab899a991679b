"""What encoders, encoder-decoders and towers share: attention, layers, task heads, choice of the class.

The class whose parameters are counted is the one that ``architectures`` names.  Without that key (or with a
class that the family lacks) a reader takes the class its family is usually trained as and says so in its
docstring: the masked-LM class for text encoders, the conditional-generation class for encoder-decoders, the
classifier for image encoders, the model itself for dual encoders and towers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from foretell.arch.architecture import Architecture, Block, Stack, Stream
from foretell.arch.builders import norm, residual
from foretell.arch.operators import (
    Act,
    Attention,
    Dropout,
    Head,
    Linear,
    Norm,
    Operator,
    Rope,
    Weight,
)
from foretell.arch.readers._config import Config


def mha(
    x: str,
    *,
    hidden: int,
    heads: int,
    head_dim: int | None = None,
    kv_heads: int | None = None,
    out: int | None = None,
    bias: bool = True,
    k_bias: bool | None = None,
    v_bias: bool | None = None,
    o_bias: bool | None = None,
    packed: bool = False,
    packed_bias: bool | None = None,
    rotary: int = 0,
    qk_norm: Norm | None = None,
    causal: bool = False,
    window: int = 0,
    memory: str = "",
    memory_dim: int | None = None,
    extra: tuple[Weight, ...] = (),
    fused: bool = True,
    position: Literal["", "table", "zeros", "window", "shifted"] = "",
    dropout: float = 0.0,
    prefix: str = "",
) -> list[Operator]:
    """Multi-head attention with a bias flag for each projection; the last operator is ``{prefix}o_proj``.

    ``packed`` makes q, k and v one matrix (``{prefix}qkv``).  ``memory`` names the tensor keys and values are
    made from in a cross attention, ``memory_dim`` its width.  ``qk_norm`` is a per-head template.
    """
    p = prefix
    kv = kv_heads or heads
    d = head_dim or hidden // heads
    q_w, kv_w = heads * d, kv * d
    k_bias, v_bias, o_bias = (bias if b is None else b for b in (k_bias, v_bias, o_bias))
    ops: list[Operator] = []
    q, k, v = f"{p}q_proj", f"{p}k_proj", f"{p}v_proj"
    if packed:
        b = bias if packed_bias is None else packed_bias
        ops.append(Linear(name=f"{p}qkv", ins=(x,), d_in=hidden, d_out=q_w + 2 * kv_w, bias=b, split="col"))
        q = k = v = f"{p}qkv"
    else:
        source, width = memory or x, (memory_dim or hidden) if memory else hidden
        ops += [
            Linear(name=q, ins=(x,), d_in=hidden, d_out=q_w, bias=bias, split="col"),
            Linear(name=k, ins=(source,), d_in=width, d_out=kv_w, bias=k_bias, split="col"),
            Linear(name=v, ins=(source,), d_in=width, d_out=kv_w, bias=v_bias, split="col"),
        ]
    if qk_norm is not None:
        for which, src, n in (("q", q, heads), ("k", k, kv)):
            ops.append(
                Norm(
                    name=f"{p}{which}_norm",
                    ins=(src,),
                    dim=d,
                    groups=n,
                    kind=qk_norm.kind,
                    bias=qk_norm.bias,
                    affine=qk_norm.affine,
                    split=True,
                )
            )
        q, k = f"{p}q_norm", f"{p}k_norm"
    if rotary:
        ops.append(Rope(name=f"{p}q_rope", ins=(q,), heads=heads, dim=d, rotary=rotary))
        ops.append(Rope(name=f"{p}k_rope", ins=(k,), heads=kv, dim=d, rotary=rotary))
        q, k = f"{p}q_rope", f"{p}k_rope"
    ops.append(
        Attention(
            name=f"{p}attn",
            ins=(q, k, v),
            heads=heads,
            kv_heads=kv,
            head_dim=d,
            v_dim=d,
            causal=causal,
            window=window,
            memory="cross" if memory else "self",
            extra=extra,
            fused=fused,
            position=position,
            dropout=dropout,
        )
    )
    ops.append(Linear(name=f"{p}o_proj", d_in=q_w, d_out=out or hidden, bias=o_bias, split="row"))
    return ops


def ffn2(
    x: str,
    *,
    hidden: int,
    ffn: int,
    fn: str = "gelu",
    bias: bool = True,
    dropout: float = 0.0,
    prefix: str = "",
) -> list[Operator]:
    """The two-matrix feed-forward network ``fc2(fn(fc1(x)))``; ``dropout`` follows the activation."""
    p = prefix
    ops: list[Operator] = [
        Linear(name=f"{p}fc1", ins=(x,), d_in=hidden, d_out=ffn, bias=bias, split="col"),
        Act(name=f"{p}act", fn=fn, features=ffn),
    ]
    if dropout:
        ops.append(Dropout(name=f"{p}act_drop", features=ffn, p=dropout, split=True))
    ops.append(Linear(name=f"{p}fc2", d_in=ffn, d_out=hidden, bias=bias, split="row"))
    return ops


Sublayers = Sequence[tuple[Callable[[str], list[Operator]], float]]
"""Sub-layers ``(f, dropout)``; ``f`` makes the operators that read the tensor of the given name."""


def pre_norm(
    sublayers: Sublayers,
    *,
    hidden: int,
    kind: str = "layer",
    bias: bool = True,
) -> list[Operator]:
    """``x += f(norm(x))`` for each sub-layer."""
    ops: list[Operator] = []
    x = "x"
    for i, (make, drop) in enumerate(sublayers, 1):
        ops.append(norm(f"norm{i}", hidden, kind, bias=bias, ins=x))
        body = make(f"norm{i}")
        ops += body
        ops += residual(f"add{i}", x, body[-1].name, hidden, dropout=drop)
        x = f"add{i}"
    return ops


def post_norm(
    sublayers: Sublayers,
    *,
    hidden: int,
    kind: str = "layer",
    bias: bool = True,
) -> list[Operator]:
    """``x = norm(x + f(x))`` for each sub-layer."""
    ops: list[Operator] = []
    x = "x"
    for i, (make, drop) in enumerate(sublayers, 1):
        body = make(x)
        ops += body
        ops += residual(f"add{i}", x, body[-1].name, hidden, dropout=drop)
        ops.append(norm(f"norm{i}", hidden, kind, bias=bias, ins=f"add{i}"))
        x = f"norm{i}"
    return ops


def layers(
    name: str,
    block_ops: Sequence[Operator],
    n: int,
    *,
    width: int,
    stream: Stream = "text",
    positions: int = 0,
) -> Stack:
    """A stack of ``n`` equal layers."""
    block = Block(name="layer", ops=tuple(block_ops), width=width, stream=stream, positions=positions)
    return Stack(name=name, blocks=(block,), pattern=(0,) * n)


def once(name: str, ops: Sequence[Operator], *, width: int, stream: Stream = "text", positions: int = 0) -> Stack:
    """A stack of one block that runs once (an embedding, a projector)."""
    block = Block(name=name, ops=tuple(ops), width=width, stream=stream, positions=positions)
    return Stack(name=name, blocks=(block,), pattern=(0,))


def task(cfg: Config, default: str, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Task suffix of the class in ``architectures`` (``Model``, ``ForMaskedLM`` ...) and notes on the choice.

    A class without the suffixes in ``known`` falls back to ``default``, with a note.
    """
    named = cfg.raw.get("architectures")
    if named is None or named == []:
        return default, ()
    if not isinstance(named, list | tuple) or not isinstance(named[0], str):
        raise cfg.error("architectures", named, "a list of class names", "correct or delete the key")
    first = named[0]
    suffix = max((k for k in known if first.endswith(k)), key=len, default="")
    if suffix:
        return suffix, ()
    return default, (f"class {first} is not known for {cfg.model_type}: read as its {default} class",)


def labels(cfg: Config, default: int = 2) -> int:
    """Classes of a classification head: entries of ``id2label``, ``num_labels``, or the class's default."""
    named = cfg.raw.get("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    return int(cfg.int("num_labels", default=default, low=1))


def widened(cfg: Config, key: str, default: float, hidden: int) -> int:
    """``int(hidden * ratio)`` for a ratio above 0 that the file gives under ``key``."""
    ratio = cfg.float(key, default)
    if not 0 < ratio <= 1000 or hidden * ratio < 1:
        raise cfg.error(key, ratio, "a ratio above 0 and at most 1000", "correct the value")
    return int(hidden * ratio)


def classifier(name: str, dim: int, rows: int, *, bias: bool = True) -> Head:
    """A classification layer."""
    return Head(name=name, dim=dim, rows=rows, bias=bias, direct=True)


def single(
    cfg: Config,
    *,
    family: str,
    embed: Sequence[Operator],
    stacks: Sequence[Stack],
    head: Sequence[Operator],
    hidden: int,
    embed_stream: Stream = "text",
    embed_positions: int = 0,
    head_stream: Stream | None = None,
    head_positions: int = 0,
    vocab: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    max_positions: int | None = None,
    tied: bool = False,
    notes: Sequence[str] = (),
    name: str = "",
    head_width: int | None = None,
) -> Architecture:
    """An architecture without a separate text part; ``embed`` and ``head`` are its end blocks' operators."""
    return Architecture(
        name=name or cfg.model_type,
        model_type=cfg.model_type,
        family=family,  # type: ignore[arg-type]
        embed=Block(name="embed", ops=tuple(embed), width=0, stream=embed_stream, positions=embed_positions),
        stacks=tuple(stacks),
        head=Block(
            name="head",
            ops=tuple(head),
            width=head_width or hidden,
            stream=head_stream or embed_stream,
            positions=head_positions,
        ),
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=max_positions,
        tied=tied,
        notes=tuple(notes),
    )
