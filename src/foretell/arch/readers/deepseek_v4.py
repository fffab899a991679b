"""DeepSeek-V4: hyper-connections around latent queries, one shared key/value head, compressed long-range keys.

Source: transformers 5.24.0 ``modeling_deepseek_v4`` (its attention has the eager form only); ``deepseek_ref`` is
the layout of DeepSeek's own inference code, with the same keys.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import moe, norm
from foretell.arch.operators import (
    Add,
    Attention,
    Gate,
    Linear,
    Mul,
    Norm,
    Operator,
    Parameters,
    Pool,
    Rope,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Sizes, max_positions, sizes
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts
from foretell.arch.readers.moe_gated import NO_GRADIENT

_RATIOS = {0: "sliding", 4: "csa", 128: "hca"}
_NAMES = {
    "sliding_attention": "sliding",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}


def _kinds(cfg: Config, layers: int) -> list[str]:
    """The attention of each layer; a longer list (next-token layers) is cut."""
    listed = cfg.list("layer_types", default=None)
    ratios = cfg.list("compress_ratios", default=None)
    found: list[str | None]
    if listed is not None:
        found = [_NAMES.get(str(v)) for v in listed]
    elif ratios is not None:
        found = [_RATIOS.get(v) if isinstance(v, int) else None for v in ratios]
    else:
        found = [*["hca"] * min(layers, 2), *("csa" if i % 2 else "hca" for i in range(max(layers - 2, 0)))]
    if len(found) < layers or None in found[:layers]:
        key = "layer_types" if listed is not None else "compress_ratios"
        allowed = f"{layers} values, each one of {', '.join(_NAMES)} (0, 4, 128)"
        raise cfg.error(key, listed or ratios, allowed, "correct the list")
    return [kind for kind in found[:layers] if kind]


def _rates(cfg: Config) -> dict[str, int]:
    """Tokens that one compressed key stands for."""
    table = cfg.get("compress_rates", default={})
    table = table if isinstance(table, dict) else {}
    csa = cfg.get("compress_rate_csa", default=table.get("compressed_sparse_attention", 4))
    hca = cfg.get("compress_rate_hca", default=table.get("heavily_compressed_attention", 128))
    return {"csa": cfg.check_int("compress_rate_csa", csa, 1), "hca": cfg.check_int("compress_rate_hca", hca, 1)}


def hyper(name: str, source: str, streams: int, hidden: int) -> list[Operator]:
    """Read one hidden state out of ``streams`` residual streams: weights from a small projection of all of them."""
    n = (2 + streams) * streams
    wide = streams * hidden
    return [
        Norm(name=f"{name}_norm", ins=(source,), dim=wide, affine=False),
        Linear(name=f"{name}_fn", d_in=wide, d_out=n),
        Parameters(name=f"{name}_base", shapes=((n,), (3,))),
        Pool(name=f"{name}_in", ins=(source, f"{name}_fn"), features=hidden),
    ]


def mix(name: str, source: str, out: str, streams: int, hidden: int) -> list[Operator]:
    """Write a sub-layer's output back: expanded to all streams and added to the mixed streams."""
    wide = streams * hidden
    return [
        Mul(name=f"{name}_expand", ins=(out, f"{name}_fn"), features=wide),
        Mul(name=f"{name}_mix", ins=(source, f"{name}_fn"), features=wide),
        Add(name=f"{name}_out", ins=(f"{name}_expand", f"{name}_mix"), features=wide),
    ]


def _attention(cfg: Config, size: Sizes, kind: str) -> list[Operator]:
    h, d, hidden = size.heads, size.head_dim, size.hidden
    rank, out_rank = cfg.int("q_lora_rank", low=1), cfg.int("o_lora_rank", low=1)
    groups = cfg.int("o_groups", low=1)
    turn = cfg.int("qk_rope_head_dim", default=None)
    turn = int(d * cfg.float("partial_rotary_factor", 64 / 512)) if turn is None else turn
    per_group = cfg.divides("o_groups", h * d, groups)
    ops: list[Operator] = [
        Linear(name="q_a_proj", ins=("norm1",), d_in=hidden, d_out=rank),
        Norm(name="q_a_norm", dim=rank),
        Linear(name="q_b_proj", d_in=rank, d_out=h * d, split="col"),
        Norm(name="q_b_norm", dim=d, groups=h, affine=False, split=True),
        Rope(name="q_rope", heads=h, dim=d, rotary=turn),
        Linear(name="kv_proj", ins=("norm1",), d_in=hidden, d_out=d),
        Norm(name="kv_norm", dim=d),
        Rope(name="kv_rope", heads=1, dim=d, rotary=turn),
    ]
    if kind != "sliding":
        wide, rate = d * (2 if kind == "csa" else 1), _rates(cfg)[kind]
        ops += [
            Linear(name="compressor_kv_proj", ins=("norm1",), d_in=hidden, d_out=wide),
            Linear(name="compressor_gate_proj", ins=("norm1",), d_in=hidden, d_out=wide),
            Parameters(name="compressor_position_bias", shapes=((rate, wide), (d,))),
            Gate(
                name="compressed",
                ins=("compressor_gate_proj", "compressor_kv_proj"),
                fn="softmax",
                features=wide,
                split=False,
            ),
        ]
    if kind == "csa":
        n, dim = cfg.int("index_n_heads", low=1), cfg.int("index_head_dim", low=1)
        two = 2 * dim
        shapes = ((two, hidden), (two, hidden), (rate, two), (dim,), (n * dim, rank), (n, hidden))
        ops.append(Parameters(name="indexer", shapes=shapes, role="matrix"))
    ops += [
        Attention(
            name="attn",
            ins=("q_rope", "kv_rope", "kv_rope"),
            heads=h,
            kv_heads=1,
            head_dim=d,
            v_dim=d,
            window=cfg.int("sliding_window", default=0),
            extra=(Weight("sinks", (h,), "tp"),),
            fused=False,
            dropout=cfg.float("attention_dropout", 0.0),
        ),
        Rope(name="attn_rope", heads=h, dim=d, rotary=turn),
        Linear(name="o_a_proj", d_in=per_group, d_out=groups * out_rank, split="col"),
        Linear(name="o_b_proj", d_in=groups * out_rank, d_out=hidden, split="row"),
    ]
    return ops


@reader("deepseek_v4", "deepseek_ref")
def deepseek_v4(cfg: Config) -> Architecture:
    """DeepSeek-V4: experts in every layer, ``hc_mult`` residual streams."""
    family = cfg.model_type
    cfg = cfg.like("deepseek_v4") if family != "deepseek_v4" else cfg
    size = sizes(cfg)
    hidden, streams = size.hidden, cfg.int("hc_mult", low=1)
    experts, top_k = expert_counts(cfg)
    ffn = cfg.int("moe_intermediate_size", low=1)
    kinds = _kinds(cfg, size.layers)

    def make(kind: str) -> list[Operator]:
        feed = moe(
            "norm2",
            hidden=hidden,
            ffn=ffn,
            experts=experts,
            top_k=top_k,
            fn=cfg.str("hidden_act", "silu"),
            score="sigmoid",
            shared_ffn=ffn,
            shared_bias=cfg.bool("mlp_bias", False),
        )
        return [
            *hyper("attn_hc", "x", streams, hidden),
            norm("norm1", hidden),
            *_attention(cfg, size, kind),
            *mix("attn_hc", "x", "o_b_proj", streams, hidden),
            *hyper("ffn_hc", "attn_hc_out", streams, hidden),
            norm("norm2", hidden),
            *feed,
            *mix("ffn_hc", "attn_hc_out", feed[-1].name, streams, hidden),
        ]

    trunk = stack("layers", kinds, make, width=streams * hidden)
    final: list[Operator] = [
        Parameters(name="hc_head", shapes=((streams, streams * hidden), (streams,), (1,))),
        Pool(name="hc_collapse", ins=("x",), features=hidden),
        norm("norm", hidden),
    ]
    notes = [NO_GRADIENT] if "csa" in kinds else []
    if cfg.int("num_nextn_predict_layers", default=0):
        notes.append("next-token-prediction layers of the checkpoint are not described")
    arch = decoder(
        cfg,
        trunk,
        final=final,
        embed=[Pool(name="streams", features=streams * hidden)],
        ffn=ffn,
        notes=notes,
        tied=cfg.bool("tie_word_embeddings", False),
        experts=experts,
        top_k=top_k,
        max_positions=max_positions(cfg),
        **size.facts(),
    )
    return replace(arch, model_type=family, name=family)
