"""``megatron-t5``: Megatron-Core's T5, encoder and decoder over one table of tokens and one of learned positions.

Keys: ``num_hidden_layers`` (encoder), ``num_decoder_layers``, ``hidden_size``, ``num_attention_heads``, ``head_dim``,
``intermediate_size``, ``vocab_size`` (padded), ``max_position_embeddings``, ``tie_word_embeddings``.
Source: NVIDIA/Megatron-LM ``megatron/core/models/T5/t5_model.py`` (the output projection has a bias where it shares the
table), ``t5_spec.py``; LayerNorm, biases, GELU and dropout 0.1 are its defaults.
"""

from __future__ import annotations

from collections.abc import Callable

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Add, Dropout, Embedding, Head, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, layers, mha, once, pre_norm, single
from foretell.arch.readers._registry import reader


@reader("megatron-t5")
def megatron_t5(cfg: Config) -> Architecture:
    """Pre-norm layers; the decoder's have a cross attention between self-attention and MLP."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth = cfg.int("num_hidden_layers", low=1)
    head_dim = cfg.int("head_dim", default=None) or cfg.divides("num_attention_heads", hidden, heads)
    ffn, vocab = cfg.int("intermediate_size", low=1), cfg.int("vocab_size", low=1)
    rows, tied = cfg.int("max_position_embeddings", low=1), cfg.bool("tie_word_embeddings", True)
    drop, attn_drop = cfg.float("hidden_dropout", 0.1), cfg.float("attention_dropout", 0.1)
    dropped = [Dropout(name="embed_drop", features=hidden, p=drop)] if drop else []

    def layer(decoder: bool) -> list[Operator]:
        def attend(x: str) -> list[Operator]:
            return mha(x, hidden=hidden, heads=heads, head_dim=head_dim, causal=decoder, dropout=attn_drop)

        def cross(x: str) -> list[Operator]:
            return mha(x, hidden=hidden, heads=heads, head_dim=head_dim, memory="memory", prefix="cross_", dropout=attn_drop)

        def feed(x: str) -> list[Operator]:
            return ffn2(x, hidden=hidden, ffn=ffn, fn=cfg.str("hidden_act", "gelu"))

        parts: list[tuple[Callable[[str], list[Operator]], float]] = [(attend, drop), (feed, drop)]
        return pre_norm([parts[0], (cross, drop), parts[1]] if decoder else parts, hidden=hidden)

    end = norm("norm", hidden, "layer", bias=True, ins="x")
    first = [Embedding(name="embed_tokens", rows=vocab, dim=hidden, tied=True), *dropped]
    stacks = [
        once("encoder_embed", first, width=0, stream="encoder"),
        layers("encoder", layer(decoder=False), depth, width=hidden, stream="encoder"),
        once("encoder_norm", [end], width=hidden, stream="encoder"),
        layers("decoder", layer(decoder=True), cfg.int("num_decoder_layers", default=None) or depth, width=hidden),
    ]
    embed: list[Operator] = [
        Embedding(name="embed_tokens", rows=vocab, dim=hidden),
        Parameters(name="positions", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("embed_tokens", "positions"), features=hidden),
        *dropped,
    ]
    head: list[Operator] = [end, Head(name="lm_head", dim=hidden, rows=vocab, tied=tied, bias=tied)]
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
        max_positions=rows,
        tied=tied,
    )
