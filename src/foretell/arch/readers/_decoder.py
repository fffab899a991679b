"""What decoder-only readers share: a layer pattern becomes a stack, a trunk becomes an architecture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Attention, Embedding, Head, Operator
from foretell.arch.readers._config import Config


def stack(name: str, layers: Sequence[Hashable], make: Any, *, width: int, stream: str = "text", positions: int = 0) -> Stack:
    """A stack from one key per layer: layers with equal keys are one block, built once by ``make(key)``.

    ``make`` returns the operators of the layer.
    """
    keys = list(dict.fromkeys(layers))
    blocks = tuple(
        Block(
            name=str(key) if len(keys) > 1 else "layer",
            ops=tuple(make(key)),
            width=width,
            stream=stream,  # type: ignore[arg-type]
            positions=positions,
        )
        for key in keys
    )
    return Stack(name=name, blocks=blocks, pattern=tuple(keys.index(key) for key in layers))


def _capped(trunk: Stack) -> Stack:
    """The stack with a cap on its attention scores."""

    def capped(block: Block) -> Block:
        return replace(block, ops=tuple(replace(op, softcap=True) if isinstance(op, Attention) else op for op in block.ops))

    return replace(trunk, blocks=tuple(capped(b) for b in trunk.blocks))


def decoder(
    cfg: Config,
    trunk: Stack,
    *,
    hidden: int,
    vocab: int,
    tied: bool,
    final: Sequence[Operator],
    embed: Sequence[Operator] = (),
    head_bias: bool = False,
    head: bool = True,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    experts: int = 0,
    top_k: int = 0,
    max_positions: int | None = None,
    embed_dim: int | None = None,
    notes: Sequence[str] = (),
) -> Architecture:
    """A causal language model: token table (and ``embed`` operators), trunk, ``final`` norm, output head."""
    tail: list[Operator] = list(final)
    if head:
        capped = cfg.has("final_logit_softcapping")
        tail.append(Head(name="lm_head", dim=embed_dim or hidden, rows=vocab, tied=tied, bias=head_bias, softcap=capped))
    if cfg.has("attn_logit_softcapping"):
        trunk = _capped(trunk)
    return Architecture(
        name=cfg.model_type,
        model_type=cfg.model_type,
        family="decoder",
        embed=Block(name="embed", width=0, ops=(Embedding(name="embed_tokens", rows=vocab, dim=embed_dim or hidden), *embed)),
        stacks=(trunk,),
        head=Block(name="head", width=hidden, ops=tuple(tail)),
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=max_positions,
        tied=tied,
        experts=experts,
        top_k=top_k,
        notes=tuple(notes),
    )
