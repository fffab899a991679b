"""Adapters and optimizers that train a part of the model: what trains, what is kept."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.cost.training_memory import listed_parts
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import Adapter, Recompute, TrainingRecipe
from small_llama import LLAMA, SEQ, F, H, V, layer_bytes, memory, run_of

BASE = TrainingRecipe(micro_batch=1, seq_len=SEQ, framework="litgpt", precision="bf16", lengths="longest-first")
LAYER = 4 * H * H + 3 * H * F + 2 * H


def with_adapter(kind: str, **changes: object) -> TrainingRecipe:
    options: dict[str, object] = {"rank": 8, "targets": ("o_proj",), "dtype": "bf16", "dropout": 0.0} | changes
    return BASE.with_(adapter=Adapter(kind, **options))  # type: ignore[arg-type]


def trained(recipe: TrainingRecipe) -> float:
    """Elements that have two bf16 states."""
    return float(memory(recipe)[0].phases["optimizer"].terms["optimizer_state"]) / 4


def test_lora_fa_freezes_a_and_keeps_only_what_b_reads() -> None:
    full, fixed = with_adapter("lora"), with_adapter("lora-fa")
    assert trained(full) == 4 * 8 * (H + H)
    assert trained(fixed) == 4 * 8 * H
    terms = memory(fixed)[0].peak.terms
    assert terms["adapters"] == pytest.approx(2 * 4 * 8 * (H + H))  # A is still there
    # the input of A was the attention's output copied side by side
    assert layer_bytes(full) - layer_bytes(fixed) == pytest.approx(2 * H)


def test_ia3_scales_outputs_and_the_input_of_the_last_matrix() -> None:
    assert trained(with_adapter("ia3", rank=0, targets=("o_proj",))) == 4 * H
    assert trained(with_adapter("ia3", rank=0, targets=("mlp.down_proj",))) == 4 * F


def test_layer_norm_tuning_trains_norms_alone() -> None:
    assert trained(with_adapter("ln-tuning", rank=0, targets=())) == 9 * H


def test_badam_keeps_fp32_copies_of_one_layer() -> None:
    """4 master, 8 Adam and 4 gradient bytes for each parameter of one layer."""
    terms = memory(TrainingRecipe(seq_len=SEQ, framework="generic", optimizer="badam"))[0].phases["optimizer"].terms
    assert terms["optimizer_state"] == pytest.approx(8 * LAYER)
    assert terms["master_weights"] == pytest.approx(4 * LAYER)
    assert terms["gradients"] == pytest.approx(4 * LAYER)


def test_fsdp1_keeps_whole_gradients_of_frozen_weights_while_accumulating() -> None:
    """One flat parameter a layer: its gradient spans the frozen base, and waits for the last micro-batch."""
    recipe = with_adapter("lora").with_(lengths="equal", grad_accum=4, recompute=Recompute("full"))
    par = Parallelism(dp=2, zero=3, sharding="fsdp1")
    terms = memory(recipe, par)[0].phases["optimizer"].terms
    assert terms["gradients"] == pytest.approx(2 * 4 * (LAYER + 8 * 2 * H))
    alone = memory(recipe.with_(grad_accum=1), par)[0].phases["optimizer"].terms
    assert alone["gradients"] == pytest.approx(2 * 4 * 8 * 2 * H / 2)


def test_embedding_output_needs_no_gradient_when_nothing_before_it_trains() -> None:
    """The first layer's norm and qkv projection keep nothing: 4h of the fp32 norm input and its statistic less."""
    recipe = with_adapter("lora")
    one, two, three = (memory(recipe, num_hidden_layers=n)[0].phases["loss"].terms["activations"] for n in (1, 2, 3))
    assert (three - two) - (two - one) == pytest.approx(0.0)
    head_and_first = two - 2 * (three - two)  # what the head keeps, less what the first layer does not
    assert head_and_first < 4 * H * SEQ


def test_listed_parts_of_lomo_have_no_optimizer() -> None:
    """fp16 weights, the largest single gradient, and activations at the end of the forward pass."""
    recipe = TrainingRecipe(
        micro_batch=1, seq_len=SEQ, framework="deepspeed", precision="fp16", optimizer="lomo", recompute=Recompute("full"),
        optimizer_in_backward=True, date="2023-06",
    )  # fmt: skip
    arch = read_config(LLAMA)
    total = listed_parts(arch, run_of(recipe, Parallelism(zero=0, sharding="none")))
    weights = 2 * arch.parameters
    activations = SEQ * (2 * H * 4 + 3 * 2 * V)
    assert weights < total < weights + 2 * V * H + 1.3 * activations
