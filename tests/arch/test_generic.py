"""The descriptions by switches: ``gpt-generic`` and ``megatron-hybrid``, in what Megatron-Core's configurations need."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.arch import load_model
from foretell.errors import ConfigError

GPT: dict[str, Any] = {
    "model_type": "gpt-generic", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 100, "norm": "rmsnorm", "gated_mlp": True, "position_embedding": "rope",
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HYBRID: dict[str, Any] = {
    "model_type": "megatron-hybrid", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
    "norm": "rmsnorm", "position_embedding": "none", "mamba_state_dim": 16, "mamba_head_dim": 16, "mamba_num_groups": 2,
}  # fmt: skip


def arch(config: dict[str, Any], **more: Any) -> Any:
    """Read a configuration."""
    return load_model({**config, **more}).architecture


def test_layers_of_experts_by_list() -> None:
    """``mlp_layer_types`` says which layers have experts; without it, those after ``first_k_dense_replace``."""
    listed = arch(GPT, **EXPERTS, mlp_layer_types=["sparse", "dense", "sparse", "dense"])
    assert [listed.main.blocks[i].name for i in listed.main.pattern] == ["moe", "dense", "moe", "dense"]
    after = arch(GPT, **EXPERTS, first_k_dense_replace=1)
    every = arch(GPT, **EXPERTS)
    dense, sparse = 3 * 64 * 128, 8 * 3 * 64 * 32 + 8 * 64
    assert every.parameters - after.parameters == sparse - dense
    assert after.parameters - listed.parameters == sparse - dense


def test_gated_shared_expert_and_latent_experts() -> None:
    """A shared expert with its gate; experts that work on a narrower stream."""
    plain = arch(GPT, **EXPERTS).parameters
    shared = arch(GPT, **EXPERTS, shared_expert_intermediate_size=48, shared_expert_gate=True).parameters
    assert shared - plain == 4 * (3 * 64 * 48 + 64)
    narrow = arch(GPT, **EXPERTS, moe_latent_size=16).parameters
    assert plain - narrow == 4 * (8 * 3 * (64 - 16) * 32 - 2 * 64 * 16)


def test_mixers_by_layer() -> None:
    """Windows, gated delta nets and full attention in one model; a kind that is none is refused."""
    kinds = ["sliding_attention", "linear_attention", "full_attention", "full_attention"]
    sizes = {f"linear_{name}": value for name, value in (("num_key_heads", 2), ("num_value_heads", 4), ("key_head_dim", 16),
                                                         ("value_head_dim", 16), ("conv_kernel_dim", 4))}  # fmt: skip
    made = arch(GPT, layer_types=kinds, sliding_window=32, attention_sinks=True, attention_gate=True, **sizes)
    assert [made.main.blocks[i].name for i in made.main.pattern] == [
        "sliding-dense", "linear_attention-dense", "attention-dense", "attention-dense",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="layer_types"):
        arch(GPT, layer_types=["chunked_attention"] * 4)


def test_partial_rotation_changes_no_weight() -> None:
    """A share of each head turns."""
    assert arch(GPT, partial_rotary_factor=0.5).parameters == arch(GPT).parameters


def test_prediction_layers_are_beside_the_model() -> None:
    """They count only where training asks for them."""
    made = arch(GPT, num_nextn_predict_layers=2)
    assert made.parameters == arch(GPT).parameters
    assert len(made.unused) == 2


def test_hybrid_stack() -> None:
    """Experts, a network with a gate, heads of their own size, and prediction layers of two letters."""
    plain = arch(HYBRID, hybrid_layer_pattern="M*-M")
    gated = arch(HYBRID, hybrid_layer_pattern="M*-M", gated_mlp=True)
    assert gated.parameters - plain.parameters == 64 * 128
    wide = arch(HYBRID, hybrid_layer_pattern="M*-M", head_dim=32)
    assert wide.parameters - plain.parameters == 4 * 64 * 64
    sparse = arch(HYBRID, hybrid_layer_pattern="M*|EM", **EXPERTS, moe_shared_expert_intermediate_size=16)
    assert sparse.experts == 8
    assert sparse.layers == 4
    ahead = arch(HYBRID, hybrid_layer_pattern="M*-M", num_nextn_predict_layers=1, mtp_layer_pattern="*E", **EXPERTS)
    assert ahead.parameters == plain.parameters
    with pytest.raises(ConfigError, match="mtp_layer_pattern"):
        arch(HYBRID, hybrid_layer_pattern="M*-M", num_nextn_predict_layers=1, mtp_layer_pattern="MM")
    with pytest.raises(ConfigError, match="a string of M"):
        arch(HYBRID, hybrid_layer_pattern="MX")


def test_mamba_heads() -> None:
    """Their number decides the width of a Mamba layer; without it that is twice the hidden size."""
    assert (
        arch(HYBRID, hybrid_layer_pattern="MM", mamba_num_heads=8).parameters
        == arch(HYBRID, hybrid_layer_pattern="MM").parameters
    )
    assert (
        arch(HYBRID, hybrid_layer_pattern="MM", mamba_num_heads=4).parameters < arch(HYBRID, hybrid_layer_pattern="MM").parameters
    )
