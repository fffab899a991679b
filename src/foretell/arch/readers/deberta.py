"""DeBERTa-v2 and v3: encoder layers with disentangled (content and relative position) attention.

Without ``architectures``: ``DebertaV2ForMaskedLM``.  Its attention only runs in the eager form.
Source: transformers 5.24.0 ``modeling_deberta_v2``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import norm
from foretell.arch.operators import (
    Act,
    Add,
    Conv,
    Dropout,
    Embedding,
    Head,
    Linear,
    Operator,
    Parameters,
    Pool,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, ffn2, labels, mha, post_norm, single, task
from foretell.arch.readers._registry import reader
from foretell.arch.readers.bert import TASKS


@reader("deberta-v2")
def deberta(cfg: Config) -> Architecture:
    """DeBERTa-v2; the legacy masked-LM head unless ``legacy`` is false."""
    kind, notes = task(cfg, "ForMaskedLM", [t for t in TASKS if t not in ("ForPreTraining", "ForCausalLM")])
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth, ffn = cfg.int("num_hidden_layers", low=1), cfg.int("intermediate_size", low=1)
    vocab, rows = cfg.int("vocab_size", low=1), cfg.int("max_position_embeddings", low=1)
    head_dim = cfg.int("attention_head_size", default=cfg.divides("num_attention_heads", hidden, heads), low=1)
    narrow = cfg.int("embedding_size", default=hidden, low=1)
    drop, fn = cfg.float("hidden_dropout_prob", 0.1), cfg.str("hidden_act", "gelu")
    relative = cfg.bool("relative_attention", False)
    inner = heads * head_dim

    embed: list[Operator] = [Embedding(name="embed_tokens", rows=vocab, dim=narrow)]
    tables = [(rows, narrow)] if cfg.bool("position_biased_input", True) else []
    types = cfg.int("type_vocab_size", default=0)
    tables += [(types, narrow)] if types else []
    if tables:
        embed += [
            Parameters(name="tables", shapes=tuple(tables), role="embedding"),
            Add(name="embed_add", ins=("embed_tokens", "tables"), features=narrow),
        ]
    if narrow != hidden:
        embed.append(Linear(name="embed_proj", d_in=narrow, d_out=hidden))
    embed.append(norm("embed_norm", hidden, "layer", bias=True))
    if drop:
        embed.append(Dropout(name="embed_drop", features=hidden, p=drop))
    relative_ops: list[Operator] = []
    if relative:
        span = cfg.get("max_relative_positions", default=-1)
        span = rows if not isinstance(span, int) or span < 1 else span
        buckets = cfg.get("position_buckets", default=-1)
        size = 2 * (cfg.check_int("position_buckets", buckets) if isinstance(buckets, int) and buckets > 0 else span)
        relative_ops.append(Parameters(name="rel_embeddings", shapes=((size, hidden),), role="embedding"))
    norms = cfg.get("norm_rel_ebd", default="none")
    if "layer_norm" in str(norms):
        relative_ops.append(norm("rel_norm", hidden, "layer", bias=True, ins="rel_embeddings" if relative else ""))

    extra: list[Weight] = []
    kinds = cfg.get("pos_att_type", default=[])
    kinds = kinds.split("|") if isinstance(kinds, str) else cfg.list("pos_att_type", default=[])
    if relative and not cfg.bool("share_att_key", False):
        for tag, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
            if tag in kinds:
                extra += [
                    Weight(f"{name}.weight", (inner, hidden), "tp", "matrix"),
                    Weight(f"{name}.bias", (inner,), "tp"),
                ]

    ops = post_norm(
        [
            (
                lambda x: mha(
                    x,
                    hidden=hidden,
                    heads=heads,
                    head_dim=head_dim,
                    fused=False,
                    extra=tuple(extra),
                    dropout=cfg.float("attention_probs_dropout_prob", 0.1),
                ),
                drop,
            ),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), drop),
        ],
        hidden=hidden,
    )
    block = Block(name="layer", ops=tuple(ops), width=hidden)
    kernel = cfg.int("conv_kernel_size", default=0)
    trunk = Stack("layers", (block,), (0,) * depth)
    if kernel:
        conv: list[Operator] = [
            Conv(
                name="conv",
                ins=("x",),
                c_in=hidden,
                c_out=hidden,
                kernel=(kernel,),
                groups=cfg.int("conv_groups", default=1, low=1),
            ),
            Act(name="conv_act", fn=cfg.str("conv_act", "tanh"), features=hidden, split=False),
            Add(name="conv_add", ins=(ops[-1].name, "conv_act"), features=hidden),
            norm("conv_norm", hidden, "layer", bias=True),
        ]
        first = Block(name="conv_layer", ops=(*ops, *conv), width=hidden)
        trunk = Stack("layers", (first, block), (0, *(1,) * (depth - 1)))
    return single(
        cfg,
        family="encoder",
        embed=(*embed, *relative_ops),
        stacks=[trunk],
        head=_head(cfg, kind, hidden, narrow, vocab),
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=rows,
        tied=cfg.bool("tie_word_embeddings", True),
        notes=notes,
    )


def _head(cfg: Config, kind: str, hidden: int, narrow: int, vocab: int) -> list[Operator]:
    tied = cfg.bool("tie_word_embeddings", True)
    if kind == "Model":
        return []
    if kind == "ForMaskedLM":
        legacy = cfg.bool("legacy", True)
        width = narrow if legacy else hidden
        ops: list[Operator] = [
            Linear(name="transform", ins=("x",), d_in=hidden, d_out=width, bias=True),
            Act(name="transform_act", fn=cfg.str("hidden_act", "gelu"), features=width, split=False),
            norm("transform_norm", width, "layer", bias=True),
            Head(name="lm_head", dim=width, rows=vocab, bias=True, tied=tied or not legacy),
        ]
        if legacy and not tied:
            ops.append(Parameters(name="lm_head_own_bias", shapes=((vocab,),), shard="tp"))
        return ops
    rows = 1 if kind == "ForMultipleChoice" else labels(cfg)
    if kind in ("ForSequenceClassification", "ForMultipleChoice"):
        width = cfg.int("pooler_hidden_size", low=1) if "pooler_hidden_size" in cfg.raw else hidden
        return [
            Pool(name="first", ins=("x",), features=width, positions=1),
            Linear(name="pooler", d_in=width, d_out=width, bias=True),
            Act(name="pooler_act", fn=cfg.str("pooler_hidden_act", "gelu"), features=width, split=False),
            classifier("classifier", width, rows),
        ]
    return [classifier("classifier", hidden, rows)]
