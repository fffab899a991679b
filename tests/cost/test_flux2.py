"""FLUX.2 against a trace of diffusers' own modules, two steps of AdamW at 512 x 512 pixels, batch 2 (torch 2.13)."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.cost.training_memory import training_memory
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import Adapter, Recompute, TrainingRecipe

GIB = 2.0**30
KLEIN = {
    "_class_name": "Flux2Transformer2DModel", "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24,
    "joint_attention_dim": 7680, "guidance_embeds": False, "image_size": [512, 512],
}  # fmt: skip
TARGETS = (
    "to_out.0", "to_add_out", "to_qkv_mlp_proj", "add_k_proj", "add_q_proj", "add_v_proj", "to_k", "to_q", "to_v",
    "linear_in", "linear_out",
)  # fmt: skip
RECIPE = TrainingRecipe(micro_batch=2, framework="peft", precision="bf16", recompute=Recompute("full", "layer"), loss="mse")


def phases(recipe: TrainingRecipe) -> dict[str, float]:
    found = training_memory(read_config(KLEIN), resolve(recipe, Parallelism(), profile("peft")))[0]
    return {name: level.bytes / GIB for name, level in found.phases.items()}


def test_full_fine_tuning() -> None:
    found = phases(RECIPE)
    assert found["forward"] == pytest.approx(22.472, rel=0.01)
    assert found["backward"] == pytest.approx(28.891, rel=0.01)
    assert found["optimizer"] == pytest.approx(36.109, rel=0.01)


def test_lora() -> None:
    """38,338,560 trained elements; fp32 adapters beside bf16 matrices make the widest projection's result in fp32."""
    found = phases(RECIPE.with_(adapter=Adapter(rank=32, targets=TARGETS)))
    assert found["forward"] == pytest.approx(8.955, rel=0.02)
    assert found["backward"] == pytest.approx(8.966, rel=0.02)
    assert found["optimizer"] == pytest.approx(7.949, rel=0.01)


def test_rows_follow_the_image() -> None:
    arch = read_config(KLEIN)
    assert [b.positions for stack in arch.stacks for b in stack.blocks] == [1024, 1024 + 512]
    assert arch.parameters == 3_875_544_576
