"""Nemotron-H (one sub-layer a block) and Zamba 2 (a transformer shared by several layers).

Source: transformers 5.24.0 ``modeling_nemotron_h``, ``modeling_zamba2``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import attention, layer, mlp, moe, norm
from foretell.arch.operators import Add, Linear, Norm, Operator, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Sizes, Style, activation, flag, max_positions, mixer
from foretell.arch.readers._mixers import mamba2
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts

_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_WORDS = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "moe": "moe",
    "mlp": "mlp",
    "full_attention": "attention",
    "attention": "attention",
    "hybrid": "hybrid",
}


def block_list(cfg: Config, default: list[str]) -> list[str]:
    """One kind a layer, from a pattern of letters (``M-M*-E``) or a list of words."""
    pattern = cfg.get("hybrid_override_pattern", default=None)
    listed = cfg.list("layer_types", default=None) or cfg.list("layers_block_type", default=None)
    if listed is None and isinstance(pattern, str):
        found = [_LETTERS.get(letter) for letter in pattern]
        key, allowed = "hybrid_override_pattern", ", ".join(_LETTERS)
    else:
        listed = default if listed is None else listed
        found = [_WORDS.get(word) if isinstance(word, str) else None for word in listed]
        key, allowed = "layers_block_type", ", ".join(_WORDS)
    if not found or None in found:
        raise cfg.error(key, pattern if listed is None else listed, f"layers out of {allowed}", "correct the list")
    return [kind for kind in found if kind]


@reader("nemotron_h")
def nemotron_h(cfg: Config) -> Architecture:
    """Nemotron-H: each block is a norm and one of Mamba 2, attention without rope, an MLP or experts.

    The number of layers is the length of the list; ``num_hidden_layers`` may be missing.
    """
    kinds = block_list(cfg, ["linear_attention", "moe", "full_attention", "mlp"])
    heads = cfg.int("num_attention_heads", low=1)
    hidden = cfg.int("hidden_size", low=1)
    size = Sizes(
        hidden=hidden,
        layers=len(kinds),
        heads=heads,
        kv_heads=cfg.int("num_key_value_heads", default=heads, low=1),
        head_dim=cfg.int("head_dim", "attention_head_dim", default=hidden // heads, low=1),
        vocab=cfg.int("vocab_size", low=1),
    )
    style = Style()  # the code has no attention bias, whatever ``attention_bias`` says, and never ties its head
    fn = cfg.str("mlp_hidden_act", "relu2")
    bias = flag(cfg, "mlp_bias")
    experts, top_k = expert_counts(cfg) if "moe" in kinds else (0, 0)

    def part(kind: str) -> list[Operator]:
        if kind == "attention":
            return mixer(cfg, style, size, rotary=0)
        if kind == "mlp":
            width = cfg.int("intermediate_size", low=1)
            return mlp("norm1", hidden=hidden, ffn=width, fn=fn, gated=False, bias=bias)
        if kind == "moe":
            return moe(
                "norm1",
                hidden=hidden,
                ffn=cfg.int("moe_intermediate_size", low=1),
                experts=experts,
                top_k=top_k,
                fn=fn,
                gated=False,
                score="sigmoid",
                latent=cfg.int("moe_latent_size", default=0),
                latent_bias=bias,
                shared_ffn=cfg.int("moe_shared_expert_intermediate_size", default=0),
                shared_bias=bias,
            )
        n = cfg.int("mamba_num_heads", low=1)
        return mamba2(
            "norm1",
            hidden=hidden,
            inner=n * cfg.int("mamba_head_dim", low=1),
            heads=n,
            groups=cfg.int("mamba_n_groups", "n_groups", low=1),
            state=cfg.int("ssm_state_size", low=1),
            kernel=cfg.int("mamba_d_conv", "conv_kernel", low=1),
            proj_bias=flag(cfg, "use_bias"),
            conv_bias=flag(cfg, "mamba_conv_bias" if cfg.has("mamba_conv_bias") else "use_conv_bias"),
        )

    trunk = stack("layers", kinds, lambda kind: layer(part(kind), [], hidden=hidden), width=hidden)
    notes = []
    if cfg.int("num_nextn_predict_layers", default=0):
        notes.append("next-token-prediction layers of the checkpoint are not described")
    return decoder(
        cfg,
        trunk,
        final=[norm("norm", hidden)],
        ffn=cfg.int("intermediate_size", default=None),
        experts=experts,
        top_k=top_k,
        tied=False,
        max_positions=max_positions(cfg),
        notes=notes,
        **size.facts(),
    )


_ZAMBA2 = (
    ["linear_attention", *((["linear_attention"] * 5 + ["hybrid"]) * 7), *(["linear_attention"] * 4), "hybrid"]
    + ["linear_attention"] * 3
    + ["hybrid"]
    + ["linear_attention"] * 2
)
"""Layers of a Zamba 2 whose configuration lists none."""


@reader("zamba2")
def zamba2(cfg: Config) -> Architecture:
    """Zamba 2: Mamba 2 layers; hybrid ones first run one of ``num_mem_blocks`` shared transformers on [x, embedding].

    A shared transformer's weights belong to the first layer that runs it; adapters and ``linear`` to each layer.
    """
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    kinds = block_list(cfg, _ZAMBA2)
    if len(kinds) != cfg.int("num_hidden_layers", default=len(kinds)):
        raise cfg.error("layers_block_type", kinds, "as many entries as num_hidden_layers", "correct the list")
    wide = 2 * hidden
    head_dim = cfg.divides("num_attention_heads", wide, heads)
    kv_heads = cfg.int("num_key_value_heads", default=heads, low=1)
    ffn = cfg.int("intermediate_size", default=4 * hidden, low=1)
    inner = cfg.check_int("mamba_expand", int(cfg.float("mamba_expand", 2.0) * hidden), 1)
    mem_blocks, rank = cfg.int("num_mem_blocks", default=1, low=1), cfg.int("adapter_rank", default=128, low=1)
    bias = flag(cfg, "add_bias_linear")

    def adapter(name: str, source: str, d_in: int, d_out: int) -> list[Operator]:
        return [
            Linear(name=f"{name}_a", ins=(source,), d_in=d_in, d_out=rank),
            Linear(name=f"{name}_b", d_in=rank, d_out=d_out, split="col"),
        ]

    def transformer() -> tuple[list[Operator], list[Operator]]:
        *core, _ = attention(
            "shared_norm1",
            hidden=wide,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            prefix="shared_",
            rotary=head_dim if flag(cfg, "use_mem_rope") else 0,
            dropout=cfg.float("attention_dropout", 0.0),
        )
        shared: list[Operator] = [
            Norm(name="shared_norm1", ins=("concat",), dim=wide),
            *core,
            Linear(name="shared_o_proj", ins=("shared_attn",), d_in=heads * head_dim, d_out=hidden, split="row"),
            Norm(name="shared_norm2", dim=hidden),
            *mlp(
                "shared_norm2",
                hidden=hidden,
                ffn=ffn,
                fn=activation(cfg, "gelu"),
                bias=bias,
                fused="gate_up_proj",
                prefix="shared_",
            ),
        ]
        own = adapter("mlp_adapter", "shared_norm2", hidden, 2 * ffn)
        if flag(cfg, "use_shared_attention_adapter"):
            for which in "qkv":
                own += adapter(f"{which}_adapter", "shared_norm1", wide, wide)
        return shared, own

    def space(source: str) -> list[Operator]:
        mix = mamba2(
            "norm1",
            hidden=hidden,
            inner=inner,
            heads=cfg.int("n_mamba_heads", low=1),
            groups=cfg.int("mamba_ngroups", low=1),
            state=cfg.int("mamba_d_state", low=1),
            kernel=cfg.int("mamba_d_conv", low=1),
            proj_bias=bias,
            conv_bias=True,
        )
        return [norm("norm1", hidden, ins=source), *mix, Add(name="add1", ins=("x", mix[-1].name), features=hidden)]

    shared, own = transformer()
    linear = Linear(name="linear", ins=("shared_down_proj",), d_in=hidden, d_out=hidden)
    hybrid = (
        Pool(name="concat", ins=("x",), features=wide),
        *shared,
        *own,
        linear,
        Add(name="mixed", ins=("x", "linear"), features=hidden),
        *space("mixed"),
    )
    plain = Block(name="mamba", ops=tuple(space("x")), width=hidden)
    first = Block(name="hybrid", ops=hybrid, width=hidden)
    again = replace(first, name="hybrid-again", borrowed=tuple(op.name for op in shared))
    seen, pattern = 0, []
    for kind in kinds:
        pattern.append(0 if kind != "hybrid" else 1 if seen < mem_blocks else 2)
        seen += kind == "hybrid"
    return decoder(
        cfg,
        Stack(name="layers", blocks=(plain, first, again), pattern=tuple(pattern)),
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings", True),
        final=[norm("norm", hidden)],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=max_positions(cfg),
    )
