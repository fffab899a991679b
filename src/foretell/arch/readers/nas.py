"""Decoders whose layers differ one by one: Nemotron-NAS (DeciLM).

Source: ``modeling_decilm.py``, published beside nvidia/Llama-3_3-Nemotron-Super-49B-v1 (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.builders import layer, norm
from foretell.arch.operators import Linear, Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Sizes, Style, dense_ffn, max_positions, mixer, sizes
from foretell.arch.readers._registry import reader

_MULTIPLE = 256
"""A block's feed-forward width, 2/3 of its multiple of the hidden size, is rounded up to this."""


def _width(cfg: Config, part: Mapping[str, Any], hidden: int) -> int:
    """Width of a block's feed-forward network."""
    if isinstance(part.get("intermediate_size"), int):
        return cfg.check_int("block_configs.ffn.intermediate_size", part["intermediate_size"], 1)
    mult = part.get("ffn_mult")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult < 1000:
        raise cfg.error("block_configs.ffn.ffn_mult", mult, "a number above 0", "correct the block")
    return -(-int(2 * mult * hidden / 3) // _MULTIPLE) * _MULTIPLE


def _shape(cfg: Config, i: int, block: object, size: Sizes) -> tuple[int, int]:
    """(query heads a key head serves, feed-forward width) of a block; -1 = one matrix instead, 0 = nothing."""
    parts = [block.get(name) if isinstance(block, Mapping) else None for name in ("attention", "ffn")]
    attn, ffn = (part if isinstance(part, Mapping) else None for part in parts)
    if attn is None or ffn is None:
        raise cfg.error(f"block_configs[{i}]", block, "an object with attention and ffn", "correct the block")
    group, wide = -1 if attn.get("replace_with_linear") else 0, -1 if ffn.get("replace_with_linear") else 0
    if not group and not attn.get("no_op"):
        field = f"block_configs[{i}].attention.n_heads_in_group"
        group = cfg.check_int(field, attn.get("n_heads_in_group"), 1)
        cfg.divides(field, size.heads, group)
    if not wide and not ffn.get("no_op"):
        wide = _width(cfg, ffn, size.hidden)
    return group, wide


@reader("nemotron-nas", "deci")
def nemotron_nas(cfg: Config) -> Architecture:
    """Each layer has its own group size and feed-forward width, or lacks the sub-layer, or has a matrix instead."""
    size = sizes(cfg)
    hidden = size.hidden
    style = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
    blocks = cfg.list("block_configs")
    if len(blocks) != size.layers:
        raise cfg.error("block_configs", len(blocks), f"{size.layers} blocks", "give one block a layer")
    found = [_shape(cfg, i, block, size) for i, block in enumerate(blocks)]
    keys = [
        f"{'linear' if group < 0 else f'attention/{group}' if group else 'none'}-{'linear' if wide < 0 else wide or 'none'}"
        for group, wide in found
    ]
    shapes = dict(zip(keys, found, strict=True))

    def make(key: str) -> list[Operator]:
        group, wide = shapes[key]
        mix: list[Operator] = []
        if group > 0:
            mix = mixer(cfg, style, replace(size, kv_heads=size.heads // group))
        elif group < 0:
            mix = [Linear(name="linear_attn", ins=("norm1",), d_in=hidden, d_out=hidden)]
        feed: list[Operator] = []
        if wide > 0:
            feed = dense_ffn(cfg, style, size, wide)
        elif wide < 0:
            feed = [Linear(name="linear_mlp", ins=("norm2",), d_in=hidden, d_out=hidden)]
        return layer(mix, feed, hidden=hidden)

    return decoder(
        cfg,
        stack("layers", keys, make, width=hidden),
        final=[norm("norm", hidden)],
        tied=cfg.bool("tie_word_embeddings", False),
        max_positions=max_positions(cfg),
        **size.facts(),
    )
