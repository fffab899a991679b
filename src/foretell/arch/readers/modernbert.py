"""ModernBERT: pre-norm encoder layers with gated MLPs and sliding windows between full-attention layers.

Without ``architectures``: ``ModernBertForMaskedLM``.
Source: transformers 5.24.0 ``modeling_modernbert``, ``configuration_modernbert``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm, residual
from foretell.arch.operators import Act, Dropout, Embedding, Gate, Head, Linear, Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import stack
from foretell.arch.readers._encoder import classifier, labels, mha, single, task
from foretell.arch.readers._registry import reader

_TASKS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


@reader("modernbert")
def modernbert(cfg: Config) -> Architecture:
    """The first layer has no attention norm (the embeddings are normed already)."""
    kind, notes = task(cfg, "ForMaskedLM", _TASKS)
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth, ffn, vocab = (
        cfg.int("num_hidden_layers", low=1),
        cfg.int("intermediate_size", low=1),
        cfg.int("vocab_size", low=1),
    )
    head_dim = cfg.divides("num_attention_heads", hidden, heads)
    bias, mlp_bias, attn_bias = (cfg.bool(k, False) for k in ("norm_bias", "mlp_bias", "attention_bias"))
    window, fn = cfg.int("local_attention", default=128), cfg.str("hidden_activation", "gelu")
    mlp_drop, attn_drop = cfg.float("mlp_dropout", 0.0), cfg.float("attention_dropout", 0.0)
    kinds = _layer_kinds(cfg, depth)

    def layer(key: str) -> list[Operator]:
        first, full = key.startswith("first"), key in ("first", "full")
        ops: list[Operator] = [] if first else [norm("norm1", hidden, "layer", bias=bias, ins="x")]
        ops += mha(
            "x" if first else "norm1",
            hidden=hidden,
            heads=heads,
            packed=True,
            bias=attn_bias,
            rotary=head_dim,
            window=0 if full else window,
            dropout=attn_drop,
        )
        ops += residual("add1", "x", "o_proj", hidden, dropout=attn_drop)
        ops += [
            norm("norm2", hidden, "layer", bias=bias, ins="add1"),
            Linear(name="Wi", d_in=hidden, d_out=2 * ffn, bias=mlp_bias, split="col"),
            Gate(name="act", ins=("Wi", "Wi"), fn=fn, features=ffn),
        ]
        if mlp_drop:
            ops.append(Dropout(name="act_drop", features=ffn, p=mlp_drop, split=True))
        ops.append(Linear(name="Wo", d_in=ffn, d_out=hidden, bias=mlp_bias, split="row"))
        ops += residual("add2", "add1", "Wo", hidden)
        return ops

    names = ["full" if full else "window" for full in kinds]
    names[0] = "first" if kinds[0] else "first-window"
    tied = cfg.bool("tie_word_embeddings", True)
    head: list[Operator] = [norm("final_norm", hidden, "layer", bias=bias, ins="x")]
    if kind != "Model":
        head += [
            Linear(name="transform", d_in=hidden, d_out=hidden, bias=cfg.bool("classifier_bias", False)),
            Act(
                name="transform_act",
                fn=cfg.str("classifier_activation", "gelu"),
                features=hidden,
                split=False,
            ),
            norm("transform_norm", hidden, "layer", bias=bias),
        ]
        if kind == "ForMaskedLM":
            head.append(Head(name="lm_head", dim=hidden, rows=vocab, bias=cfg.bool("decoder_bias", True), tied=tied))
        else:
            head.append(classifier("classifier", hidden, 1 if kind == "ForMultipleChoice" else labels(cfg)))
    embed = (
        Embedding(name="embed_tokens", rows=vocab, dim=hidden),
        norm("embed_norm", hidden, "layer", bias=bias),
    )
    return single(
        cfg,
        family="encoder",
        embed=embed,
        stacks=[stack("layers", names, layer, width=hidden)],
        head=head,
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=cfg.int("max_position_embeddings", default=None),
        tied=tied,
        notes=notes,
    )


def _layer_kinds(cfg: Config, depth: int) -> list[bool]:
    """True for each layer of full attention: ``layer_types``, else one in ``global_attn_every_n_layers``."""
    every = cfg.raw.get("global_attn_every_n_layers")
    kinds = cfg.list("layer_types", default=None) if every is None or "layer_types" in cfg.raw else None
    if kinds is not None and (len(kinds) == depth or "layer_types" in cfg.raw):
        if len(kinds) != depth:
            raise cfg.error("layer_types", len(kinds), f"{depth} entries", "give one entry a layer")
        return [kind == "full_attention" for kind in kinds]
    step = cfg.check_int("global_attn_every_n_layers", 3 if every is None else every, 1)
    return [i % step == 0 for i in range(depth)]
