"""What readers of mixture-of-experts decoders share: which layers are sparse, and the decoder built from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.builders import layer
from foretell.arch.operators import Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Sizes, Style, attention_kinds, dense_ffn, layer_list, max_positions, mixer

EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k", "moe_topk", "num_experts_per_token")


def expert_counts(cfg: Config) -> tuple[int, int]:
    """Routed experts of a sparse layer, and how many of them each token visits."""
    experts = cfg.int(*EXPERT_KEYS, low=1)
    top_k = cfg.int(*TOP_K_KEYS, low=1)
    if top_k > experts:
        raise cfg.error("num_experts_per_tok", top_k, f"at most the {experts} experts", "correct the value")
    return experts, top_k


def sparse_layers(cfg: Config, layers: int) -> list[bool]:
    """Which layers have experts: ``mlp_layer_types``, ``first_k_dense_replace``, ``decoder_sparse_step`` ..."""
    listed = layer_list(cfg, "mlp_layer_types", layers)
    if listed is not None:
        return [kind != "dense" for kind in listed]
    freq = cfg.get("moe_layer_freq", default=None)
    if isinstance(freq, list):
        if len(freq) != layers:
            raise cfg.error("moe_layer_freq", freq, f"{layers} numbers, one a layer", "correct the list")
        return [bool(f) for f in freq]
    if cfg.has("first_k_dense_replace"):
        first = cfg.int("first_k_dense_replace")
        return [i >= first for i in range(layers)]
    step = cfg.int("decoder_sparse_step", default=1)
    dense = set(cfg.ints("mlp_only_layers", default=[]))
    return [i not in dense and step > 0 and (i + 1) % step == 0 for i in range(layers)]


def sparse_decoder(
    cfg: Config,
    style: Style,
    size: Sizes,
    *,
    sparse: Sequence[bool],
    dense: int,
    experts: Callable[[], list[Operator]],
    mixers: Callable[[str, int], list[Operator]] | None = None,
    kinds: Sequence[str] | None = None,
    window: int | None = None,
    **facts: Any,  # passed on to decoder()
) -> Architecture:
    """A decoder whose layers have a dense network (``dense`` wide) or ``experts()``, and a mixer of some kind.

    ``mixers(kind, window)`` gives the operators of a layer's mixer (the style's attention when not given).
    """
    listed, width = attention_kinds(cfg, size.layers, style.rule) if kinds is None else (list(kinds), window or 0)
    width = width if window is None else window
    p = cfg.float(style.dropout, 0.0) if style.dropout else 0.0
    mixed = len(set(sparse)) > 1
    keys = [f"{k}-{'moe' if s else 'dense'}" if mixed else k for k, s in zip(listed, sparse, strict=True)]
    if not mixed and len(set(listed)) == 1:
        keys = ["moe" if sparse[0] else "dense"] * size.layers
    of = dict(zip(keys, zip(listed, sparse, strict=True), strict=True))

    def make(key: str) -> list[Operator]:
        kind, is_sparse = of[key]
        seen = width if kind in ("sliding", "chunked") else 0
        mix = mixers(kind, seen) if mixers else mixer(cfg, style, size, window=seen)
        ffn = experts() if is_sparse else dense_ffn(cfg, style, size, dense)
        return layer(mix, ffn, hidden=size.hidden, place=style.place, kind=style.norm, dropout=p)

    trunk = stack("layers", keys, make, width=size.hidden)
    found = next((op for b in trunk.blocks for op in b.ops if hasattr(op, "experts") and hasattr(op, "ffn")), None)
    return decoder(
        cfg,
        trunk,
        final=[replace(style.norm, name="norm", dim=size.hidden)],
        head_bias=cfg.bool(style.head_bias, False) if isinstance(style.head_bias, str) else style.head_bias,
        ffn=facts.pop("ffn", dense),
        max_positions=max_positions(cfg),
        experts=getattr(found, "experts", 0),
        top_k=getattr(found, "top_k", 0),
        tied=facts.pop("tied", cfg.bool("tie_word_embeddings", False)),
        **size.facts(),
        **facts,
    )
