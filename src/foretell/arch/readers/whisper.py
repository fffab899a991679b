"""Whisper: two convolutions over log-mel frames, an audio encoder, a text decoder.

Without ``architectures``: ``WhisperForConditionalGeneration``.  Encoder rows are ``max_source_positions`` per
sample (1,500 for 30 s), whatever the clip's length: the feature extractor pads to 30 s.
Source: transformers 5.24.0 ``modeling_whisper``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import (
    Act,
    Add,
    Attention,
    Conv,
    Dropout,
    Embedding,
    Head,
    Linear,
    Operator,
    Parameters,
    Pool,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, ffn2, labels, layers, mha, once, pre_norm, single, task
from foretell.arch.readers._registry import reader

_TASKS = ("Model", "ForConditionalGeneration", "ForAudioClassification")


@reader("whisper")
def whisper(cfg: Config) -> Architecture:
    """Pre-norm layers; key projections have no bias; the output projection is tied to the token table."""
    kind, notes = task(cfg, "ForConditionalGeneration", _TASKS)
    hidden, vocab = cfg.int("d_model", low=1), cfg.int("vocab_size", low=1)
    frames, targets = cfg.int("max_source_positions", low=1), cfg.int("max_target_positions", low=1)
    drop = cfg.float("dropout", 0.0)
    tied = cfg.bool("tie_word_embeddings", True)
    heads = cfg.int("decoder_attention_heads", low=1)
    encoder_heads = cfg.int("encoder_attention_heads", low=1)
    cfg.divides("encoder_attention_heads", hidden, encoder_heads)
    head_dim = cfg.divides("decoder_attention_heads", hidden, heads)
    depth = cfg.int("encoder_layers", low=1)
    front: list[Operator] = [
        Conv(
            name="conv1",
            c_in=cfg.int("num_mel_bins", low=1),
            c_out=hidden,
            kernel=(3,),
            positions=2 * frames,
            source=2 * frames,
        ),
        Act(name="act1", fn="gelu", features=hidden),
        Conv(name="conv2", c_in=hidden, c_out=hidden, kernel=(3,), positions=frames),
        Act(name="act2", fn="gelu", features=hidden),
        Parameters(name="pos_embed", shapes=((frames, hidden),), role="embedding", trained=False),
        Add(name="pos_add", ins=("act2", "pos_embed"), features=hidden),
    ]
    if drop:
        front.append(Dropout(name="embed_drop", features=hidden, p=drop))
    encoder = _layer(cfg, hidden, encoder_heads, cfg.int("encoder_ffn_dim", low=1), False)
    stacks = [
        once("encoder_embed", front, width=0, stream="sample", positions=frames),
        layers("encoder", encoder, depth, width=hidden, stream="sample", positions=frames),
    ]
    last = norm("encoder_norm", hidden, "layer", bias=True, ins="x")
    if kind == "ForAudioClassification":
        width = cfg.int("classifier_proj_size", low=1)
        head: list[Operator] = [last]
        if cfg.bool("use_weighted_layer_sum", False):
            head.append(Parameters(name="layer_weights", shapes=((depth + 1,),)))
        head += [
            Linear(name="projector", ins=("encoder_norm",), d_in=hidden, d_out=width, bias=True),
            Pool(name="mean", features=width, positions=1),
            classifier("classifier", width, labels(cfg)),
        ]
        return single(
            cfg,
            family="audio",
            embed=front,
            stacks=[stacks[1]],
            head=head,
            hidden=hidden,
            embed_stream="sample",
            embed_positions=frames,
            head_positions=frames,
            heads=encoder_heads,
            head_dim=hidden // encoder_heads,
            ffn=cfg.int("encoder_ffn_dim"),
            notes=notes,
        )
    stacks.append(once("encoder_norm", [last], width=hidden, stream="sample", positions=frames))
    ffn = cfg.int("decoder_ffn_dim", low=1)
    decoder = _layer(cfg, hidden, heads, ffn, True)
    stacks.append(layers("decoder", decoder, cfg.int("decoder_layers", low=1), width=hidden))
    embed: list[Operator] = [
        Embedding(name="embed_tokens", rows=vocab, dim=hidden),
        Parameters(name="pos_embed", shapes=((targets, hidden),), role="embedding", indices=("token",)),
        Add(name="pos_add", ins=("embed_tokens", "pos_embed"), features=hidden),
    ]
    if drop:
        embed.append(Dropout(name="embed_drop", features=hidden, p=drop))
    head = [norm("final_norm", hidden, "layer", bias=True, ins="x")]
    if kind == "ForConditionalGeneration":
        head.append(Head(name="lm_head", dim=hidden, rows=vocab, tied=tied))
    return single(
        cfg,
        family="encoder-decoder",
        embed=embed,
        stacks=stacks,
        head=head,
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=targets,
        tied=tied,
        notes=notes,
    )


def _layer(cfg: Config, hidden: int, heads: int, ffn: int, decoder: bool) -> list[Operator]:
    drop, attn_drop = cfg.float("dropout", 0.0), cfg.float("attention_dropout", 0.0)
    fn, act_drop = cfg.str("activation_function", "gelu"), cfg.float("activation_dropout", 0.0)

    def heads_first(ops: list[Operator]) -> list[Operator]:
        return [replace(op, heads_first=True) if isinstance(op, Attention) else op for op in ops]

    def attend(x: str) -> list[Operator]:
        return heads_first(mha(x, hidden=hidden, heads=heads, k_bias=False, causal=decoder, dropout=attn_drop))

    def cross(x: str) -> list[Operator]:
        ops = mha(x, hidden=hidden, heads=heads, k_bias=False, memory="memory", prefix="cross_", dropout=attn_drop)
        return heads_first(ops)

    def feed(x: str) -> list[Operator]:
        return ffn2(x, hidden=hidden, ffn=ffn, fn=fn, dropout=act_drop)

    return pre_norm(
        [(attend, drop), (cross, drop), (feed, drop)] if decoder else [(attend, drop), (feed, drop)],
        hidden=hidden,
    )
