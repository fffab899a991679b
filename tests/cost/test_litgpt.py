"""LitGPT: what adapters and 4-bit bases keep, and what the loop still holds (litgpt/lora.py, model.py, utils.py)."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.arch.rewrite import litgpt
from foretell.errors import CombinationError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import Adapter, Quantization, TrainingRecipe
from small_llama import HEADS, LLAMA, SEQ, F, H, V, layer_bytes, memory

LORA = Adapter("lora", rank=8, targets=("q_proj", "v_proj"), dtype="bf16")
BASE = TrainingRecipe(micro_batch=2, seq_len=SEQ, framework="litgpt", precision="bf16", adapter=LORA, lengths="longest-first")
NF4 = Quantization("nf4")
ATTENTION = 4 * H + 6 * H + 2 * H + 4 * HEADS
"""Rotated q and k, the merged projection that v is a view of, output, log-sum-exp."""
NORMS, GATED = 2 * 4 * H, 6 * F
"""The fp32 copy of each norm's input (frozen weights keep no product); gate, activated gate, up."""


def test_merged_projection_names_its_parts() -> None:
    ops = {op.name: op for op in litgpt(read_config(LLAMA | {"num_key_value_heads": 2})).main.blocks[0].ops}
    assert ops["qkv"].parts == (("q_proj", 64), ("k_proj", 32), ("v_proj", 32))  # type: ignore[attr-defined]
    assert {"o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} <= set(ops)


def test_lora_on_two_of_three_parts() -> None:
    """Dropout mask, dropped input, A's output of both parts, and the narrow output that ``index_copy`` keeps."""
    lora = 1 * H + 2 * H + 2 * 8 + 2 * 2 * H
    assert layer_bytes(BASE) == pytest.approx(NORMS + 8 + ATTENTION + GATED + lora, abs=1)


def test_lora_without_dropout_keeps_the_input_itself() -> None:
    plain = BASE.with_(adapter=Adapter("lora", rank=8, targets=("q_proj", "v_proj"), dtype="bf16", dropout=0.0))
    assert layer_bytes(BASE) - layer_bytes(plain) == pytest.approx(1 * H)


@pytest.mark.parametrize(("date", "kept"), [("2024-09", 2 * (H + H + H + F)), ("2025-06", 0)])
def test_four_bit_matmul_kept_its_input_before_bitsandbytes_0_43_2(date: str, kept: int) -> None:
    """Inputs of qkv, of the output projection (a copy: heads come first), of gate and up together, and of down."""
    wide = layer_bytes(BASE.with_(quantization=NF4, optimizer="paged-adamw", date=date))
    assert wide - layer_bytes(BASE.with_(date=date)) == pytest.approx(kept)


def test_quantised_base_includes_the_head() -> None:
    """0.5 + 4/64 bytes for each matrix element, head included; 2 bytes for the embedding and the norms."""
    terms = memory(BASE.with_(quantization=NF4, optimizer="paged-adamw"))[0].peak.terms
    matrices = 4 * (4 * H * H + 3 * H * F) + V * H
    total = sum(terms.get(k, 0.0) for k in ("weights", "quantization_scales"))
    assert total == pytest.approx(matrices * 0.5625 + 2 * (V * H + 9 * H))


def test_list_loss_holds_fp32_logits_and_log_probabilities() -> None:
    """8 bytes for each logit and two chunks of 128 positions, in the backward pass of the first chunk."""
    level = memory(BASE)[0].phases["loss"]
    logits = sum(level.terms[k] for k in ("logits", "gradient_flow", "temporaries"))
    assert level.operator == "head.cross_entropy"
    assert logits == pytest.approx(8 * 2 * SEQ * V + 2 * 4 * 2 * 128 * V, rel=0.01)


def test_equal_lengths_still_hold_the_previous_logits() -> None:
    """While the output is converted: 4 of the previous micro-batch, 2 and 4 of this one."""
    level = memory(BASE.with_(lengths="equal", grad_accum=8, seq_len=2048))[0].phases["loss"]
    assert level.operator == "head.logits.convert"
    assert level.terms["logits"] == pytest.approx(10 * 2 * 2048 * V)


def test_adapter_v1_starts_at_the_third_layer() -> None:
    """The layers before it keep nothing; each later one keeps the second attention's output."""
    recipe = BASE.with_(adapter=Adapter("adapter", rank=0, targets=(), dtype="bf16"))
    assert layer_bytes(recipe) == pytest.approx(NORMS + 8 + ATTENTION + GATED + 2 * H, abs=1)
    two = memory(recipe, num_hidden_layers=2)[0].phases["loss"].terms["activations"]
    three = memory(recipe, num_hidden_layers=3)[0].phases["loss"].terms["activations"]
    four = memory(recipe, num_hidden_layers=4)[0].phases["loss"].terms["activations"]
    assert two < three - two < four - three


def test_adapter_v2_trains_scales_biases_and_norms() -> None:
    recipe = BASE.with_(adapter=Adapter("adapter-v2", rank=0, targets=(), dtype="bf16"))
    terms = memory(recipe)[0].phases["optimizer"].terms
    outputs = 3 * H + H + 2 * F + H
    trained = 4 * 2 * outputs + 2 * V + 9 * H + 2 * (10 * H + HEADS)
    assert terms["optimizer_state"] == pytest.approx(2 * 2 * trained)


def test_frozen_weights_are_cast_at_every_use_under_autocast() -> None:
    """bf16-mixed: the autocast cache holds copies of trained leaves only; the head is cast for each chunk.

    The first qkv projection reads the embedding, which needs no gradient: its copy is not kept.
    """
    terms = memory(BASE.with_(param_dtype="fp32"))[0].phases["loss"].terms
    matrices = 4 * (4 * H * H + 3 * H * F) - 3 * H * H
    assert terms["weight_copies"] == pytest.approx(2 * matrices + 2 * 2 * V * H)


def test_quantised_base_runs_on_one_device() -> None:
    """litgpt/finetune/lora.py refuses ``--quantize`` with several devices."""
    with pytest.raises(CombinationError, match="one device"):
        memory(BASE.with_(quantization=NF4), Parallelism(dp=2, zero=3))
