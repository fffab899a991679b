"""What the readers of plain decoder layers share: sizes under any of their names, layer kinds, a layer's style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from foretell.arch.architecture import Architecture
from foretell.arch.builders import PLACES, attention, layer, mlp
from foretell.arch.operators import Dropout, Norm, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack

RMS = Norm(name="", dim=1)
LAYER = Norm(name="", dim=1, kind="layer", bias=True)
"""Norm templates (dims are filled in where they stand)."""
_LEGACY_KINDS = {"attention": "full_attention", "mamba": "linear_attention", "global": "full_attention"}


@dataclass(frozen=True)
class Sizes:
    """The sizes every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    def facts(self) -> dict[str, Any]:
        """The keyword arguments of :func:`decoder` that repeat these sizes."""
        return {
            "hidden": self.hidden,
            "vocab": self.vocab,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
        }


def sizes(cfg: Config) -> Sizes:
    """Read the sizes; absent key/value heads are the heads, an absent head size is hidden / heads."""
    hidden = cfg.int("hidden_size", "n_embd", "d_model", low=1)
    heads = cfg.int("num_attention_heads", "n_head", "n_heads", low=1)
    kv_heads = cfg.int("num_key_value_heads", "num_kv_heads", default=None, low=1) or heads
    head_dim = cfg.int("head_dim", default=None, low=1)
    if heads % kv_heads:
        raise cfg.error("num_key_value_heads", kv_heads, f"a divisor of the {heads} heads", "correct the value")
    return Sizes(
        hidden=hidden,
        layers=cfg.int("num_hidden_layers", "n_layer", "n_layers", "num_layers", low=1),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads or 1,
        vocab=cfg.int("vocab_size", low=1),
    )


def ffn_size(cfg: Config, default: int | None = None) -> int:
    """Width of the dense feed-forward network."""
    keys = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    value: int = cfg.int(*keys, low=1) if default is None else cfg.int(*keys, default=default, low=1)
    return value


def max_positions(cfg: Config) -> int | None:
    """Longest sequence the model was made for, where the file says."""
    value: int | None = cfg.int("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=None)
    return value


def rotary_dim(cfg: Config, head_dim: int, default: float = 1.0) -> int:
    """How many features of each head turn (``partial_rotary_factor``, also inside ``rope_parameters``)."""
    for place in (cfg.raw, cfg.raw.get("rope_parameters"), cfg.raw.get("rope_scaling")):
        if isinstance(place, dict):
            for key in ("partial_rotary_factor", "rotary_pct", "rope_pct"):
                share = place.get(key)
                if isinstance(share, int | float) and not isinstance(share, bool):
                    if not 0 <= share <= 1:
                        raise cfg.error(key, share, "a share of a head, 0 to 1", "correct the value")
                    return int(head_dim * share)
    return int(head_dim * default)


def layer_list(cfg: Config, key: str, layers: int) -> list[str] | None:
    """A per-layer list of names, checked for its length, old names of kinds replaced; None when absent."""
    value = cfg.list(key, default=None)
    if value is None:
        return None
    if len(value) != layers or not all(isinstance(v, str) for v in value):
        raise cfg.error(key, value, f"a list of {layers} strings, one a layer", "make the list as long as the model")
    return [_LEGACY_KINDS.get(v, v) for v in value]


Rule = Callable[[Config, int], bool]
"""Says whether layer ``i`` is a sliding-window layer, where ``layer_types`` is absent."""


def every(n: int, key: str = "") -> Rule:
    """Each ``n``-th layer sees everything, the others a window (``n`` may be given by ``key``)."""

    def rule(cfg: Config, i: int) -> bool:
        period = cfg.int(key, default=n) if key else n
        return bool(period) and bool((i + 1) % period)

    return rule


def always(_cfg: Config, _i: int) -> bool:
    """Every layer has the window (where one is set)."""
    return True


def from_max_window_layers(cfg: Config, i: int) -> bool:
    """Qwen: layers from ``max_window_layers`` on, when ``use_sliding_window``."""
    return cfg.bool("use_sliding_window", False) and i >= cfg.int("max_window_layers", default=0)


def attention_kinds(cfg: Config, layers: int, rule: Rule | None = None) -> tuple[list[str], int]:
    """``("attention" | "sliding" | <other kind>) * layers`` and the window's width in tokens (0 = none)."""
    window = cfg.int("sliding_window", default=0)
    listed = layer_list(cfg, "layer_types", layers)
    if listed is not None:
        names = {"full_attention": "attention", "sliding_attention": "sliding", "chunked_attention": "chunked"}
        return [names.get(v, v) for v in listed], window
    if rule is None or not window:
        return ["attention"] * layers, window
    return ["sliding" if rule(cfg, i) else "attention" for i in range(layers)], window


@dataclass(frozen=True)
class Style:
    """How one model type's layer differs from Llama's.  A string stands for the key that holds the flag."""

    place: str = "pre"
    norm: Norm = RMS
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: str = ""
    """``head``: one weight for all heads; ``own``: a weight a head; ``full``: over the whole projection."""
    qk_kind: Norm = RMS
    norm_after_rope: bool = False
    gated: bool = True
    fused_qkv: str = ""
    fused_mlp: str = ""
    out: str = "o_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    rule: Rule | None = None
    rotary: float = 1.0
    dropout: str = ""
    mlp_dropout: str = ""
    act: str = "silu"
    head_bias: bool | str = False
    eager: bool = False


def flag(cfg: Config, value: bool | str) -> bool:
    """A flag of a style: itself, or the configuration's value of the key it names."""
    return cfg.bool(value, False) if isinstance(value, str) else value


def activation(cfg: Config, default: str = "silu") -> str:
    """Name of the feed-forward's activation function."""
    value = cfg.get("hidden_activation", "hidden_act", "activation_function", "activation", default=default)
    return value if isinstance(value, str) else default


def mixer(
    cfg: Config, style: Style, size: Sizes, *, window: int = 0, rotary: int | None = None, sinks: bool = False
) -> list[Operator]:
    """The attention sub-layer of a style."""
    turn = rotary_dim(cfg, size.head_dim, style.rotary) if rotary is None else rotary
    return attention(
        PLACES[style.place][0],
        hidden=size.hidden,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        qkv_bias=flag(cfg, style.qkv_bias),
        o_bias=flag(cfg, style.o_bias),
        rotary=turn,
        window=window,
        sinks=sinks,
        fused=style.fused_qkv,
        out=style.out,
        eager=style.eager,
        qk_norm=replace(style.qk_kind, shared_weight=style.qk_norm != "own") if style.qk_norm else None,
        qk_norm_per_head=style.qk_norm != "full",
        norm_after_rope=style.norm_after_rope,
        dropout=cfg.float("attn_pdrop" if cfg.has("attn_pdrop") else "attention_dropout", 0.0),
    )


def dense_ffn(cfg: Config, style: Style, size: Sizes, ffn: int) -> list[Operator]:
    """The dense feed-forward sub-layer of a style."""
    return mlp(
        PLACES[style.place][1],
        hidden=size.hidden,
        ffn=ffn,
        fn=activation(cfg, style.act),
        gated=style.gated,
        bias=flag(cfg, style.mlp_bias),
        up=style.up,
        down=style.down,
        fused=style.fused_mlp,
    )


def dense_decoder(
    cfg: Config,
    style: Style,
    size: Sizes,
    *,
    ffn: int,
    embed: Sequence[Operator] = (),
    no_rope: Sequence[bool] = (),
    make_ffn: Callable[[], list[Operator]] | None = None,
    final: Sequence[Operator] | None = None,
    **facts: Any,  # passed on to decoder()
) -> Architecture:
    """A decoder whose layers differ only in their window and rope (``no_rope[i]``: layer ``i`` has none)."""
    kinds, window = attention_kinds(cfg, size.layers, style.rule)
    p = cfg.float(style.dropout, 0.0) if style.dropout else 0.0
    p_mlp = cfg.float(style.mlp_dropout, 0.0) if style.mlp_dropout else p
    keys = [f"{k}-norope" if no_rope and no_rope[i] else k for i, k in enumerate(kinds)]

    def make(key: str) -> list[Operator]:
        mix = mixer(
            cfg, style, size, window=window if key.startswith("sliding") else 0, rotary=0 if key.endswith("-norope") else None
        )
        ffn_ops = make_ffn() if make_ffn else dense_ffn(cfg, style, size, ffn)
        return layer(mix, ffn_ops, hidden=size.hidden, place=style.place, kind=style.norm, dropout=p_mlp, mixer_dropout=p)

    return decoder(
        cfg,
        stack("layers", keys, make, width=size.hidden),
        embed=embed,
        final=[replace(style.norm, name="norm", dim=size.hidden)] if final is None else final,
        head_bias=flag(cfg, style.head_bias),
        ffn=ffn,
        max_positions=max_positions(cfg),
        tied=facts.pop("tied", cfg.bool("tie_word_embeddings", False)),
        **size.facts(),
        **facts,
    )


def embed_dropout(cfg: Config, hidden: int, *keys: str) -> list[Operator]:
    """Dropout after the embeddings, where the model has one."""
    p = cfg.float(next((k for k in keys if cfg.has(k)), keys[0]), 0.0)
    return [Dropout(name="embed_drop", features=hidden, p=p)] if p else []


def learned_positions(rows: int, hidden: int, *, by_token: bool = False) -> list[Operator]:
    """A learned position table added to the token embeddings; ``by_token``: each sample counts its own positions."""
    indices: tuple[Literal["position", "token"], ...] = ("token",) if by_token else ("position",)
    return [Parameters(name="positions", shapes=((rows, hidden),), role="embedding", indices=indices)]
