"""Gemma 3n: alternating updates of several residual streams, low-rank residuals, per-layer embeddings, KV sharing.

Source: transformers 5.24.0 ``modeling_gemma3n``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, mlp, norm
from foretell.arch.operators import Act, Add, Linear, Mul, Norm, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import RMS, activation, layer_list, max_positions, sizes
from foretell.arch.readers._registry import reader
from foretell.arch.readers.gemma import ACT, BARE, per_layer_embedding, per_layer_input, shared_keys


def _widths(cfg: Config, layers: int) -> list[int]:
    """Feed-forward width of each layer (one number may stand for all)."""
    value = cfg.get("intermediate_size")
    if not isinstance(value, list):
        return [cfg.int("intermediate_size", low=1)] * layers
    if len(value) != layers:
        raise cfg.error("intermediate_size", value, f"one number or {layers}", "make it as long as the model")
    return [cfg.check_int(f"intermediate_size[{i}]", v, 1) for i, v in enumerate(value)]


@reader("gemma3n_text")
def gemma3n(cfg: Config) -> Architecture:
    """Gemma 3n text model; the residual stream is ``altup_num_inputs`` times as wide as the hidden size."""
    size = sizes(cfg)
    hidden, n = size.hidden, cfg.int("altup_num_inputs", low=1)
    listed = layer_list(cfg, "layer_types", size.layers)
    if listed is None:
        listed = ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(size.layers)]
    kinds = ["sliding" if kind == "sliding_attention" else "attention" for kind in listed]
    foreign, widths = shared_keys(cfg, kinds), _widths(cfg, size.layers)
    pattern = cfg.list("activation_sparsity_pattern", default=None)
    if pattern is None:
        pattern = [0.95 if size.layers > 10 and i < 10 else 0.0 for i in range(size.layers)]
    if len(pattern) != size.layers:
        raise cfg.error("activation_sparsity_pattern", pattern, f"{size.layers} numbers", "make it as long as the model")
    window = cfg.int("sliding_window", default=0)
    extra, fn = cfg.int("hidden_size_per_layer_input", low=1), activation(cfg, ACT)
    keys = [
        f"{k}{'-shared-kv' if f else ''}{'-sparse' if s else ''}-{w}"
        for k, f, s, w in zip(kinds, foreign, pattern, widths, strict=True)
    ]
    of = dict(zip(keys, zip(kinds, foreign, pattern, widths, strict=True), strict=True))
    rank, wide = cfg.int("laurel_rank", low=1), n * hidden
    bias = cfg.bool("attention_bias", False)

    def make(key: str) -> list[Operator]:
        kind, other, sparse, ffn = of[key]
        feed = mlp("norm2", hidden=hidden, ffn=ffn, fn=fn)
        if sparse:  # keeps the largest gate values only: one more tensor as wide as the network
            gate, rest = feed[0], feed[1:]
            feed = [gate, Act(name="gate_topk", ins=("gate_proj",), fn="relu", features=ffn), *rest]
        return [
            Pool(name="active", ins=("x",), features=hidden),
            norm("router_norm", hidden),
            Linear(name="modality_router", d_in=hidden, d_out=n),
            Act(name="modalities", fn="tanh", features=n, split=False),
            Linear(name="prediction_coefs", d_in=n, d_out=n * n),
            Mul(name="mixed", ins=("x", "prediction_coefs"), features=wide),
            Add(name="predictions", ins=("x", "mixed"), features=wide),
            Pool(name="prediction", ins=("predictions",), features=hidden),
            norm("norm1", hidden),
            Linear(name="laurel_left", ins=("norm1",), d_in=hidden, d_out=rank),
            Linear(name="laurel_right", d_in=rank, d_out=hidden),
            norm("post_laurel_norm", hidden),
            Add(name="laurel", ins=("norm1", "post_laurel_norm"), features=hidden),
            *attention(
                "norm1",
                hidden=hidden,
                heads=size.heads,
                kv_heads=size.kv_heads,
                head_dim=size.head_dim,
                qkv_bias=bias,
                o_bias=bias,
                qk_norm=RMS,
                v_norm=BARE,
                foreign_kv=other,
                window=window if kind == "sliding" else 0,
                dropout=cfg.float("attention_dropout", 0.0),
            ),
            norm("post_norm1", hidden),
            Add(name="add1", ins=("prediction", "post_norm1"), features=hidden),
            Add(name="add_laurel", ins=("add1", "laurel"), features=hidden),
            norm("norm2", hidden),
            *feed,
            norm("post_norm2", hidden),
            Add(name="add2", ins=("add_laurel", "post_norm2"), features=hidden),
            Norm(name="router_norm_again", ins=("add2",), dim=hidden, affine=False),
            Pool(name="modalities_again", features=n),
            Linear(name="correction_coefs", d_in=n, d_out=n),
            Mul(name="innovation", ins=("add2", "correction_coefs"), features=wide),
            Add(name="corrected", ins=("predictions", "innovation"), features=wide),
            Parameters(name="correct_output_scale", shapes=((hidden,),)),
            Mul(name="scaled", ins=("corrected",), features=hidden),
            *per_layer_input("scaled", hidden, extra, fn),
            Add(name="out", ins=("corrected", "post_per_layer_input_norm"), features=wide),
        ]

    embed: list[Operator] = per_layer_embedding(cfg, size.layers, hidden, extra)
    embed += [Linear(name=f"altup_projections.{i}", ins=("embed_tokens",), d_in=hidden, d_out=hidden) for i in range(n - 1)]
    embed.append(Pool(name="streams", ins=("embed_tokens",), features=wide))
    final: list[Operator] = [
        Linear(name=f"altup_unembed_projections.{i}", ins=("x",), d_in=hidden, d_out=hidden) for i in range(n - 1)
    ]
    final += [Pool(name="mean", ins=("x",), features=hidden), norm("norm", hidden)]
    return decoder(
        cfg,
        stack("layers", keys, make, width=wide),
        embed=embed,
        final=final,
        ffn=max(widths),
        tied=cfg.bool("tie_word_embeddings", True),
        max_positions=max_positions(cfg),
        **size.facts(),
    )
