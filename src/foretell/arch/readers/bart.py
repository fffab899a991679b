"""BART, mBART, Marian and Pegasus: encoder-decoder with absolute positions.

Without ``architectures``: ``...ForConditionalGeneration`` (``MarianMTModel``).  BART and Marian are
post-norm, mBART and Pegasus pre-norm; Marian's and Pegasus's sinusoidal tables are parameters of the module
(frozen).
Source: transformers 5.24.0 ``modeling_bart``, ``modeling_mbart``, ``modeling_marian``, ``modeling_pegasus``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from foretell.arch.architecture import Architecture, Stack, Stream
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Dropout, Embedding, Head, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import (
    classifier,
    ffn2,
    labels,
    layers,
    mha,
    once,
    post_norm,
    pre_norm,
    single,
    task,
)
from foretell.arch.readers._registry import reader

_TASKS = ("Model", "MTModel", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering")


@reader("bart", "mbart", "marian", "pegasus")
def bart(cfg: Config) -> Architecture:
    """Both stacks, their embeddings and the (tied) output projection."""
    family = cfg.model_type
    kind, notes = task(cfg, "MTModel" if family == "marian" else "ForConditionalGeneration", _TASKS)
    hidden, vocab = cfg.int("d_model", low=1), cfg.int("vocab_size", low=1)
    drop = cfg.float("dropout", 0.1)
    learned, pre = family in ("bart", "mbart"), family in ("mbart", "pegasus")
    rows = cfg.int("max_position_embeddings", low=1)
    tied = cfg.bool("tie_word_embeddings", True)
    shared = cfg.bool("share_encoder_decoder_embeddings", True) if family == "marian" else True
    target = vocab if shared else cfg.check_int("decoder_vocab_size", cfg.raw.get("decoder_vocab_size") or vocab, 1)

    def embed(n: int, tie: bool, looked: Literal["position", "token"]) -> list[Operator]:
        positions = Parameters(
            name="pos_embed",
            shapes=((rows + 2 if learned else rows, hidden),),
            role="embedding",
            trained=learned,
            indices=(looked,) if learned else (),
        )
        ops: list[Operator] = [
            Embedding(name="embed_tokens", rows=n, dim=hidden, tied=tie),
            positions,
            Add(name="pos_add", ins=("embed_tokens", "pos_embed"), features=hidden),
        ]
        if learned:
            ops.append(norm("embed_norm", hidden, "layer", bias=True))
        return [*ops, *([Dropout(name="embed_drop", features=hidden, p=drop)] if drop else [])]

    encoder_heads = cfg.int("encoder_attention_heads", low=1)
    cfg.divides("encoder_attention_heads", hidden, encoder_heads)
    heads = cfg.int("decoder_attention_heads", low=1)
    head_dim = cfg.divides("decoder_attention_heads", hidden, heads)
    ffn = cfg.int("decoder_ffn_dim", low=1)
    stacks = [
        once("encoder_embed", embed(vocab, shared and tied, "token"), width=0, stream="encoder"),
        layers(
            "encoder",
            _layer(cfg, hidden, encoder_heads, cfg.int("encoder_ffn_dim", low=1), False, pre),
            cfg.int("encoder_layers", low=1),
            width=hidden,
            stream="encoder",
        ),
    ]
    if pre:
        stacks.append(_norm("encoder_norm", hidden, "encoder"))
    decoder = _layer(cfg, hidden, heads, ffn, True, pre)
    stacks.append(layers("decoder", decoder, cfg.int("decoder_layers", low=1), width=hidden))
    head: list[Operator] = [norm("final_norm", hidden, "layer", bias=True, ins="x")] if pre else []
    if kind in ("ForConditionalGeneration", "MTModel"):
        head.append(Head(name="lm_head", dim=hidden, rows=target, tied=tied))
    elif kind == "ForQuestionAnswering":
        head.append(classifier("qa_outputs", hidden, 2))
    elif kind == "ForSequenceClassification":
        n = labels(cfg, 3 if family == "bart" else 2)
        head += [
            Pool(name="last", features=hidden, positions=1),
            Linear(name="dense", d_in=hidden, d_out=hidden, bias=True),
            Act(name="dense_act", fn="tanh", features=hidden, split=False),
            classifier("out_proj", hidden, n),
        ]
    body = embed(target, False, "position")
    if not tied and shared:
        extra = Parameters(name="shared_table", shapes=((vocab, hidden),), shard="tp", role="embedding")
        body.append(extra)
    return single(
        cfg,
        family="encoder-decoder",
        embed=body,
        stacks=stacks,
        head=head,
        hidden=hidden,
        vocab=target,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=rows,
        tied=tied,
        notes=notes,
    )


def _norm(name: str, hidden: int, stream: Stream) -> Stack:
    return once(name, [norm("norm", hidden, "layer", bias=True, ins="x")], width=hidden, stream=stream)


def _layer(cfg: Config, hidden: int, heads: int, ffn: int, decoder: bool, pre: bool) -> list[Operator]:
    drop, attn_drop = cfg.float("dropout", 0.1), cfg.float("attention_dropout", 0.0)
    fn, act_drop = cfg.str("activation_function", "gelu"), cfg.float("activation_dropout", 0.0)

    def attend(x: str) -> list[Operator]:
        return mha(x, hidden=hidden, heads=heads, causal=decoder, dropout=attn_drop)

    def cross(x: str) -> list[Operator]:
        return mha(x, hidden=hidden, heads=heads, memory="memory", prefix="cross_", dropout=attn_drop)

    def feed(x: str) -> list[Operator]:
        return ffn2(x, hidden=hidden, ffn=ffn, fn=fn, dropout=act_drop)

    parts: list[tuple[Callable[[str], list[Operator]], float]] = [(attend, drop)]
    if decoder:
        parts.append((cross, drop))
    parts.append((feed, drop))
    return (pre_norm if pre else post_norm)(parts, hidden=hidden)
