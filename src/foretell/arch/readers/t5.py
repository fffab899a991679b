"""T5, mT5 and UMT5: encoder-decoder with relative position tables and no biases.

Without ``architectures``: ``...ForConditionalGeneration``.  transformers 5 always ties the output projection
and both token tables, whatever ``tie_word_embeddings`` says.  T5 and mT5 keep one position table in the first
layer of each stack, UMT5 one in every layer.
Source: transformers 5.24.0 ``modeling_t5``, ``modeling_mt5``, ``modeling_umt5``, ``configuration_t5``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Stack, Stream
from foretell.arch.builders import mlp, norm
from foretell.arch.operators import Act, Dropout, Embedding, Head, Linear, Operator, Pool, Weight
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import stack
from foretell.arch.readers._encoder import classifier, ffn2, labels, mha, once, pre_norm, single, task
from foretell.arch.readers._registry import reader

_TASKS = (
    "Model",
    "ForConditionalGeneration",
    "EncoderModel",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)


@reader("t5", "mt5", "umt5")
def t5(cfg: Config) -> Architecture:
    """Pre-norm (RMS) layers; the decoder's have a cross attention between self-attention and MLP."""
    kind, notes = task(cfg, "ForConditionalGeneration", _TASKS)
    hidden, heads, head_dim = cfg.int("d_model", low=1), cfg.int("num_heads", low=1), cfg.int("d_kv", low=1)
    ffn, depth, vocab = cfg.int("d_ff", low=1), cfg.int("num_layers", low=1), cfg.int("vocab_size", low=1)
    decoder_depth = cfg.int("num_decoder_layers", default=None) or depth
    drop = cfg.float("dropout_rate", 0.1)
    encoder_only = kind in ("EncoderModel", "ForTokenClassification")
    table = Embedding(name="embed_tokens", rows=vocab, dim=hidden)
    dropped = [Dropout(name="embed_drop", features=hidden, p=drop)] if drop else []
    final: list[Operator] = [norm("final_norm", hidden, ins="x"), *_drop("final_drop", hidden, drop)]

    if encoder_only:
        head: list[Operator] = list(final)
        if kind == "ForTokenClassification":
            head.append(classifier("classifier", hidden, labels(cfg)))
        return single(
            cfg,
            family="encoder",
            embed=[table, *dropped],
            stacks=[_stack(cfg, "layers", depth, False, "text")],
            head=head,
            hidden=hidden,
            vocab=vocab,
            heads=heads,
            head_dim=head_dim,
            ffn=ffn,
            tied=True,
            notes=notes,
        )
    encoder_embed: list[Operator] = [
        Embedding(name="embed_tokens", rows=vocab, dim=hidden, tied=True),
        *dropped,
    ]
    stacks = [
        once("encoder_embed", encoder_embed, width=0, stream="encoder"),
        _stack(cfg, "encoder", depth, False, "encoder"),
        once("encoder_norm", final, width=hidden, stream="encoder"),
        _stack(cfg, "decoder", decoder_depth, True, "text"),
    ]
    head = list(final)
    if kind == "ForConditionalGeneration":
        head.append(Head(name="lm_head", dim=hidden, rows=vocab, tied=True))
    elif kind == "ForQuestionAnswering":
        head.append(classifier("qa_outputs", hidden, labels(cfg)))
    elif kind == "ForSequenceClassification":
        head += [
            Pool(name="last", features=hidden, positions=1),
            Linear(name="dense", d_in=hidden, d_out=hidden, bias=True),
            Act(name="dense_act", fn="tanh", features=hidden, split=False),
            classifier("out_proj", hidden, labels(cfg)),
        ]
    return single(
        cfg,
        family="encoder-decoder",
        embed=[table, *dropped],
        stacks=stacks,
        head=head,
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        tied=True,
        notes=notes,
    )


def _drop(name: str, features: int, p: float) -> list[Operator]:
    return [Dropout(name=name, features=features, p=p)] if p else []


def _stack(cfg: Config, name: str, depth: int, decoder: bool, stream: Stream) -> Stack:
    hidden, heads, head_dim = cfg.int("d_model"), cfg.int("num_heads"), cfg.int("d_kv")
    ffn, drop = cfg.int("d_ff"), cfg.float("dropout_rate", 0.1)
    act = cfg.str("feed_forward_proj", "relu")
    gated, fn = act.startswith("gated-"), act.split("-")[-1]
    fn = "gelu_new" if act == "gated-gelu" else fn
    buckets = cfg.int("relative_attention_num_buckets", low=1)

    def layer(kind: str) -> list[Operator]:
        table = (Weight("relative_attention_bias", (buckets, heads), "tp"),) if kind == "table" else ()

        def attend(x: str) -> list[Operator]:
            return mha(
                x,
                hidden=hidden,
                heads=heads,
                head_dim=head_dim,
                bias=False,
                causal=decoder,
                extra=table,
                position="table",
                dropout=drop,
            )

        def cross(x: str) -> list[Operator]:
            return mha(
                x,
                hidden=hidden,
                heads=heads,
                head_dim=head_dim,
                bias=False,
                memory="memory",
                position="zeros",
                prefix="cross_",
                dropout=drop,
            )

        def feed(x: str) -> list[Operator]:
            if not gated:
                return ffn2(x, hidden=hidden, ffn=ffn, fn=fn, bias=False, dropout=drop)
            ops = mlp(x, hidden=hidden, ffn=ffn, fn=fn)
            return [
                *ops[:-1],
                *([Dropout(name="act_drop", features=ffn, p=drop, split=True)] if drop else []),
                ops[-1],
            ]

        parts = [(attend, drop), (cross, drop), (feed, drop)] if decoder else [(attend, drop), (feed, drop)]
        return pre_norm(parts, hidden=hidden, kind="rms", bias=False)

    every = cfg.model_type == "umt5"
    kinds = ["table" if every or i == 0 else "plain" for i in range(depth)]
    return stack(name, kinds, layer, width=hidden, stream=stream)
