"""A decoder from plain numbers, for those who have no ``config.json`` at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Parameters
from foretell.arch.readers import read_config
from foretell.errors import InputError
from foretell.validation import positive_int

__all__ = ["decoder_of", "positive"]

ASSUMED_VOCAB = 32_000
"""Entries of the token table where none are stated: Llama 1 and 2 (arXiv 2302.13971, 2307.09288)."""
_STEP = 64
"""A derived width is a multiple of this, so that tensor parallelism divides it."""
_AGREE = 0.02
"""Relative difference of a stated and a counted number of parameters that is worth a note."""


def positive(value: object, field: str, *, most: int = 2**50) -> int:
    """Return a count (8.03e9 is taken) as an int, or raise an InputError that names `field`."""
    return positive_int(value, field, maximum=most)


def decoder_of(
    name: str, stated: int | None, numbers: Mapping[str, int | None], *, tied: bool, gated: bool
) -> tuple[Architecture, tuple[str, ...]]:
    """Return the decoder of the given numbers, with notes on what was assumed.

    A width that is not given (`ffn_dim`, or `expert_ffn_dim` where there are experts) follows from `stated`.
    """
    given = {key: positive(value, key) for key, value in numbers.items() if value}
    missing = [key for key in ("layers", "hidden_dim", "heads") if key not in given]
    if missing:
        raise InputError(f"lacks {', '.join(missing)}", field="workload", value=name)
    notes = []
    if "vocab_size" not in given:
        given["vocab_size"] = ASSUMED_VOCAB
        notes.append(f"vocab_size is not given: {ASSUMED_VOCAB:,} entries are assumed")
    width = "expert_ffn_dim" if "experts" in given else "ffn_dim"
    if width in given:
        made = _read(name, given, tied, gated)
    else:
        made, note = _derived(name, stated, given, width, tied, gated)
        notes.append(note)
    if stated and abs(made.parameters / stated - 1) > _AGREE:
        notes.append(f"{stated:,} parameters are stated; the shapes give {made.parameters:,}, which is used")
    return made, tuple(notes)


def _derived(
    name: str, stated: int | None, given: dict[str, int], width: str, tied: bool, gated: bool
) -> tuple[Architecture, str]:
    """Choose the missing width from the count; what rounding leaves over becomes a parameter of its own."""
    if stated is None:
        raise InputError("is needed (or parameters, to derive it)", field=width)
    if width == "expert_ffn_dim":
        given.setdefault("ffn_dim", 4 * given["hidden_dim"])
    one, two = (_read(name, {**given, width: n * _STEP}, tied, gated).parameters for n in (1, 2))
    step, rest = two - one, 2 * one - two
    steps = (stated - rest) // step if step else 0
    if steps < 1:
        raise InputError(
            f"leaves nothing for {width}: without it the model has {rest:,} parameters",
            field="parameters",
            value=stated,
        )
    made = _read(name, {**given, width: steps * _STEP}, tied, gated)
    left = stated - made.parameters
    if left > 0:
        extra = Parameters(name="remainder", shapes=((left,),), shard="tp")
        made = replace(made, embed=replace(made.embed, ops=(*made.embed.ops, extra)))
    made = made if width == "expert_ffn_dim" else replace(made, ffn=steps * _STEP)
    return made, f"{width} is not given: {steps * _STEP:,} makes the count {stated:,}"


def _read(name: str, given: Mapping[str, int], tied: bool, gated: bool) -> Architecture:
    """Read the numbers as a generic GPT with RMSNorm and rotary positions."""
    keys = {
        "layers": "num_hidden_layers",
        "hidden_dim": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "ffn_dim": "intermediate_size",
        "vocab_size": "vocab_size",
        "context_length": "max_position_embeddings",
        "experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_ffn_dim": "moe_intermediate_size",
        "shared_experts": "n_shared_experts",
        "dense_layers": "first_k_dense_replace",
    }
    heads, kv = given["heads"], given.get("kv_heads", given["heads"])
    if heads % kv:
        raise InputError(f"must divide the {heads} query heads", field="kv_heads", value=kv)
    if "head_dim" not in given and given["hidden_dim"] % heads:
        raise InputError(f"must divide hidden_dim = {given['hidden_dim']} (or give head_dim)", field="heads", value=heads)
    config: dict[str, object] = {keys[key]: value for key, value in given.items()}
    config |= {
        "model_type": "gpt-generic",
        "norm": "rmsnorm",
        "position_embedding": "rope",
        "gated_mlp": gated,
        "hidden_act": "silu" if gated else "gelu",
        "tie_word_embeddings": tied,
    }
    return replace(read_config(config, where=f"workload {name}", name=name), model_type="")
