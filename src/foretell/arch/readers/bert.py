"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT and ALBERT.

Without ``architectures``: the ``...ForMaskedLM`` class.  ALBERT runs one group of layers many times: its
first pass owns the weights, the others are blocks marked ``shared``.
Source: transformers 5.24.0 ``modeling_bert``, ``modeling_roberta``, ``modeling_electra``,
``modeling_distilbert``, ``modeling_albert``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Dropout, Embedding, Head, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, ffn2, labels, layers, mha, post_norm, single, task
from foretell.arch.readers._registry import reader

_LM = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForPreTraining")
TASKS = (
    "Model",
    *_LM,
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
)
_ROBERTA = ("roberta", "xlm-roberta", "camembert")


@reader("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert")
def bert(cfg: Config) -> Architecture:
    """Post-norm encoder layers over token, position and segment embeddings."""
    family = cfg.model_type
    kind, notes = task(cfg, "ForMaskedLM", TASKS)
    distil = family == "distilbert"
    if cfg.bool("add_cross_attention", False):
        raise cfg.error("add_cross_attention", True, "false", "cross attention inside these encoders is not read")
    hidden = cfg.int("dim" if distil else "hidden_size", low=1)
    heads = cfg.int("n_heads" if distil else "num_attention_heads", low=1)
    depth = cfg.int("n_layers" if distil else "num_hidden_layers", low=1)
    ffn = cfg.int("hidden_dim" if distil else "intermediate_size", low=1)
    vocab, rows = cfg.int("vocab_size", low=1), cfg.int("max_position_embeddings", low=1)
    head_dim = cfg.divides("num_attention_heads", hidden, heads)
    narrow = cfg.int("embedding_size", default=hidden, low=1) if family in ("electra", "albert") else hidden
    drop = cfg.float("dropout" if distil else "hidden_dropout_prob", 0.1)
    attn_drop = cfg.float("attention_dropout" if distil else "attention_probs_dropout_prob", 0.1)
    fn = cfg.str("activation" if distil else "hidden_act", "gelu")
    tied = cfg.bool("tie_word_embeddings", True)

    looked: tuple[Literal["position", "token"], ...] = ("position",)
    if family in _ROBERTA:
        looked = "token", "token"
    elif distil:
        looked = ()  # a buffer's rows are not copied
    table = [(rows, narrow)] if distil else [(rows, narrow), (cfg.int("type_vocab_size", low=0), narrow)]
    embed: list[Operator] = [
        Embedding(name="embed_tokens", rows=vocab, dim=narrow),
        Parameters(name="tables", shapes=tuple(table), role="embedding", indices=looked),
        Add(name="embed_add", ins=("embed_tokens", "tables"), features=narrow),
        norm("embed_norm", narrow, "layer", bias=True),
    ]
    if drop:
        embed.append(Dropout(name="embed_drop", features=narrow, p=drop))
    if family == "albert" or narrow != hidden:
        embed.append(Linear(name="embed_proj", d_in=narrow, d_out=hidden, bias=True))

    layer = post_norm(
        [
            (lambda x: mha(x, hidden=hidden, heads=heads, dropout=attn_drop), 0.0 if distil else drop),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), drop),
        ],
        hidden=hidden,
    )
    trunk = _albert(cfg, layer, depth, hidden) if family == "albert" else layers("layers", layer, depth, width=hidden)
    return single(
        cfg,
        family="encoder",
        embed=embed,
        stacks=[trunk],
        head=_head(cfg, family, kind, hidden, narrow, vocab, tied),
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=rows,
        tied=tied,
        notes=notes,
    )


def _albert(cfg: Config, layer: list[Operator], depth: int, hidden: int) -> Stack:
    """``num_hidden_groups`` groups of ``inner_group_num`` layers, visited in equal shares of the passes."""
    groups, inner = cfg.int("num_hidden_groups", low=1), cfg.int("inner_group_num", low=1)
    owner = Block(name="layer", ops=tuple(layer), width=hidden)
    again = replace(owner, name="repeat", shared=True)
    pattern: list[int] = []
    seen: set[int] = set()
    for i in range(depth):
        group = int(i / (depth / groups))
        pattern += [1 if group in seen else 0] * inner
        seen.add(group)
    unseen = groups - len(seen)
    if unseen > 0:
        raise cfg.error("num_hidden_groups", groups, f"at most num_hidden_layers ({depth})", "correct the value")
    return Stack("layers", (owner, again), tuple(pattern))


def _lm_head(family: str, hidden: int, narrow: int, vocab: int, tied: bool) -> list[Operator]:
    """Dense layer, activation, norm, projection onto the vocabulary.

    Untied BERT, RoBERTa and ALBERT heads keep two bias vectors: the decoder's and the head's own.
    """
    generator = family == "electra"
    ops: list[Operator] = [
        Linear(name="transform", ins=("x",), d_in=hidden, d_out=narrow, bias=True),
        Act(name="transform_act", fn="gelu", features=narrow, split=False),
        norm("transform_norm", narrow, "layer", bias=True),
        Head(name="lm_head", dim=narrow, rows=vocab, bias=True, tied=tied),
    ]
    if not tied and not generator and family != "distilbert":
        ops.append(Parameters(name="lm_head_own_bias", shapes=((vocab,),), shard="tp"))
    return ops


def _pooler(hidden: int, fn: str = "tanh") -> list[Operator]:
    return [
        Pool(name="first", ins=("x",), features=hidden, positions=1, kind="view"),
        Linear(name="pooler", d_in=hidden, d_out=hidden, bias=True),
        Act(name="pooler_act", fn=fn, features=hidden, split=False),
    ]


def _head(cfg: Config, family: str, kind: str, hidden: int, narrow: int, vocab: int, tied: bool) -> list[Operator]:
    """Operators after the last layer, by task."""
    pools = family in ("bert", "albert", *_ROBERTA)
    if kind == "ForPreTraining" and family == "electra":
        return [
            Linear(name="transform", ins=("x",), d_in=hidden, d_out=hidden, bias=True),
            Act(name="transform_act", fn=cfg.str("hidden_act", "gelu"), features=hidden, split=False),
            classifier("discriminator", hidden, 1),
        ]
    if kind in _LM:
        ops = _lm_head(family, hidden, narrow, vocab, tied)
        if kind == "ForPreTraining" and family in ("bert", "albert"):
            pairs = labels(cfg) if family == "albert" else 2
            ops += [*_pooler(hidden), classifier("seq_relationship", hidden, pairs)]
        return ops
    if kind == "Model":
        return _pooler(hidden) if pools else []
    return _classifier(cfg, family, kind, hidden)


def _classifier(cfg: Config, family: str, kind: str, hidden: int) -> list[Operator]:
    """Token classes read every row, sequence classes the first one through a dense layer."""
    if kind in ("ForTokenClassification", "ForQuestionAnswering"):
        return [classifier("classifier", hidden, labels(cfg))]
    if kind == "ForNextSentencePrediction":
        return [*_pooler(hidden), classifier("seq_relationship", hidden, 2)]
    if kind == "ForMultipleChoice" and family == "electra":
        named = cfg.raw.get("architectures")
        raise cfg.error("architectures", named, "another class", "its summary head is not read")
    rows = 1 if kind == "ForMultipleChoice" else labels(cfg)
    fn = {"electra": "gelu", "distilbert": "relu"}.get(family, "tanh")
    key = "seq_classif_dropout" if family == "distilbert" else "classifier_dropout"
    p = cfg.float(key if cfg.has(key) else "hidden_dropout_prob", 0.1)
    drop: list[Operator] = [Dropout(name="classifier_drop", features=hidden, p=p)] if p else []
    return [*_pooler(hidden, fn), *drop, classifier("classifier", hidden, rows)]
