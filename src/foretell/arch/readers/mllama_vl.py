"""Llama 3.2 Vision (Mllama): tiled ViT with local and gated global layers; text trunk with cross attention.

The class is ``MllamaForConditionalGeneration`` unless ``architectures`` names ``MllamaForCausalLM``.  Rows
per image: every tile of ``max_num_tiles`` (images are padded to that many).
Source: transformers 5.24.0 ``modeling_mllama``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import mlp, norm
from foretell.arch.operators import Add, Linear, Mul, Norm, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._encoder import ffn2, mha
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, nested, patches, text_model, text_only, tower, wrap


def _layer(hidden: int, heads: int, ffn: int, fn: str, gated: bool) -> list[Operator]:
    """Pre-norm layer without attention biases; global layers scale both branches by a learned scalar."""
    mixer = mha("norm1", hidden=hidden, heads=heads, bias=False)
    feed = ffn2("norm2", hidden=hidden, ffn=ffn, fn=fn)
    return _branches((mixer, feed), hidden=hidden, kind="layer", bias=True, gated=gated)


def _branches(
    bodies: Sequence[list[Operator]], *, hidden: int, kind: str = "rms", bias: bool = False, gated: bool
) -> list[Operator]:
    """``x += f(norm(x))`` for each body, or ``x += gate * f(norm(x))`` with a learned scalar."""
    ops: list[Operator] = []
    x = "x"
    for i, body in enumerate(bodies, 1):
        ops += [norm(f"norm{i}", hidden, kind, bias=bias, ins=x), *body]
        branch = body[-1].name
        if gated:
            ops += [
                Parameters(name=f"gate{i}", shapes=((1,),)),
                Mul(name=f"gated{i}", ins=(branch, f"gate{i}"), features=hidden),
            ]
            branch = f"gated{i}"
        ops.append(Add(name=f"add{i}", ins=(x, branch), features=hidden))
        x = f"add{i}"
    return ops


@reader("mllama")
def mllama(cfg: Config) -> Architecture:
    """The vision output concatenates the last hidden state with those of ``intermediate_layers_indices``."""
    text = text_model(nested(cfg, "text_config", model_type="mllama_text_model", force=True))
    if text_only(cfg):
        return replace(text, model_type="mllama")
    v = nested(cfg, "vision_config", model_type="mllama_vision_model", force=True)
    hidden, heads = v.int("hidden_size", low=1), v.int("attention_heads", "num_attention_heads", low=1)
    ffn, fn = v.int("intermediate_size", low=1), v.str("hidden_act", "gelu")
    v.divides("attention_heads", hidden, heads)
    tiles, ratios = v.int("max_num_tiles", low=1), len(v.list("supported_aspect_ratios")) + 1
    gh, gw = grid(v)
    cells = gh * gw + 1
    rows = tiles * cells
    embed: list[Operator] = [
        patches(
            "patch_embed",
            v,
            channels=v.int("num_channels", low=1),
            hidden=hidden,
            positions=tiles * gh * gw,
            bias=False,
        ),
        Parameters(name="pre_tile", shapes=((ratios, tiles * hidden), (1,)), role="embedding"),
        Add(name="pre_tile_add", ins=("patch_embed", "pre_tile"), features=hidden),
        Parameters(name="class_embedding", shapes=((hidden,),)),
        Pool(name="tokens", ins=("pre_tile_add", "class_embedding"), features=hidden, positions=rows),
        Parameters(
            name="positions",
            shapes=((1,), (cells, hidden), (ratios, tiles * cells * hidden)),
            role="embedding",
        ),
        Add(name="pos_add", ins=("tokens", "positions"), features=hidden),
        norm("pre_norm", hidden, "layer", bias=True),
    ]
    between: list[Operator] = [
        norm("post_norm", hidden, "layer", bias=True, ins="x"),
        Parameters(name="post_tile", shapes=((ratios, tiles * hidden), (1,)), role="embedding"),
        Add(name="post_tile_add", ins=("post_norm", "post_tile"), features=hidden),
    ]
    wide = v.int("vision_output_dim", low=1)
    projector: list[Operator] = [
        Pool(name="concat", ins=("x",), features=wide, positions=rows),
        Linear(name="projector", d_in=wide, d_out=text.hidden, bias=True),
    ]
    towers = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower(
            "vision",
            _layer(hidden, heads, ffn, fn, False),
            v.int("num_hidden_layers", low=1),
            width=hidden,
            positions=rows,
        ),
        tower("vision_between", between, 1, width=hidden, positions=rows, label="between"),
        tower(
            "vision_global",
            _layer(hidden, heads, ffn, fn, True),
            v.int("num_global_layers", low=1),
            width=hidden,
            positions=rows,
        ),
        tower("projector", projector, 1, width=hidden, positions=rows, label="projector"),
    ]
    return wrap(cfg, text, towers)


@reader("mllama_text_model")
def mllama_text(cfg: Config) -> Architecture:
    """Llama layers; those of ``cross_attention_layers`` attend to the vision output instead of the text.

    The token table has 8 more rows than the vocabulary and is never tied.
    """
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth, ffn, vocab = (
        cfg.int("num_hidden_layers", low=1),
        cfg.int("intermediate_size", low=1),
        cfg.int("vocab_size", low=1),
    )
    kv_heads = cfg.int("num_key_value_heads", default=heads, low=1)
    head_dim, fn = cfg.divides("num_attention_heads", hidden, heads), cfg.str("hidden_act", "silu")
    crossing = set(cfg.ints("cross_attention_layers", default=[]))

    def layer(kind: str) -> list[Operator]:
        cross = kind == "cross"
        feed = mlp("norm2", hidden=hidden, ffn=ffn, fn=fn)
        mixer = mha(
            "norm1",
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            bias=False,
            causal=not cross,
            rotary=0 if cross else head_dim,
            memory="memory" if cross else "",
            qk_norm=Norm(name="", dim=head_dim) if cross else None,
        )
        return _branches((mixer, feed), hidden=hidden, gated=cross)

    trunk = stack("layers", ["cross" if i in crossing else "self" for i in range(depth)], layer, width=hidden)
    arch = decoder(
        cfg,
        trunk,
        hidden=hidden,
        vocab=vocab,
        tied=False,
        final=[norm("norm", hidden)],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=cfg.int("max_position_embeddings", default=None),
    )
    table = replace(arch.embed.ops[0], rows=vocab + 8)  # type: ignore[call-arg]
    return replace(arch, embed=replace(arch.embed, ops=(table, *arch.embed.ops[1:])))
