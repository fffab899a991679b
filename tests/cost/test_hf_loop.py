"""Transformers, PEFT and Trainer: whole-run peaks against traces of the real code, and single rules by hand.

The references in bytes were traced once with the real modules (transformers 5.24.0, peft 0.21.2, torch 2.13.0) on fake
tensors, 2026-11-30; the three published ones are PyTorch's own memory trackers on the same code.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from foretell.arch.readers import read_config
from foretell.cost.training_memory import StageMemory, training_memory, worst
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_2_13B = {
    "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 40, "intermediate_size": 13824, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_2_7B = LLAMA_2_13B | {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 11008,
}  # fmt: skip
SMALL = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 4096, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
FULL = Recompute("full")
LORA = Adapter(rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj"))


def memory(config: dict[str, Any], par: Parallelism | None = None, **recipe: Any) -> StageMemory:
    choices = TrainingRecipe(**recipe)
    run = resolve(choices, par or Parallelism(), profile(choices.framework))
    return worst(training_memory(read_config(config), run))


def peak(config: dict[str, Any], par: Parallelism | None = None, **recipe: Any) -> float:
    return memory(config, par, **recipe).peak.bytes


@pytest.mark.parametrize(
    ("config", "recipe", "zero", "gigabytes"),
    [
        # FSDPMemTracker, 8 ranks: sharded weights 4.02, gathered root 2.10, Adam 8.03, activations 8.79, gradients of loss 8.41
        (LLAMA_3_8B, {"framework": "fsdp2", "seq_len": 8192, "recompute": FULL}, 3, 31.78),
        (LLAMA_2_13B, {"framework": "fsdp2", "micro_batch": 4, "recompute": FULL}, 3, 36.04),
        # MemTracker: weights 13.54, activations 13.61, temporaries 0.52, Adam 0.13
        (LLAMA_2_7B, {"framework": "peft", "seq_len": 2048, "adapter": LORA}, 0, 27.81),
        (LLAMA_2_7B, {"framework": "peft", "seq_len": 2048, "adapter": LORA, "recompute": FULL}, 0, 15.21),
    ],
)
def test_peaks_of_pytorchs_own_trackers(config: dict[str, Any], recipe: dict[str, Any], zero: int, gigabytes: float) -> None:
    par = Parallelism(dp=8, zero=3) if zero else Parallelism()
    assert peak(config, par, **recipe) / 1e9 == pytest.approx(gigabytes, rel=0.03)


@pytest.mark.parametrize(
    ("recipe", "megabytes"),
    [
        ({}, 2040.15),
        ({"recompute": FULL}, 1329.41),
        ({"adapter": LORA, "param_dtype": "fp32"}, 1227.47),
        ({"adapter": LORA, "param_dtype": "bf16"}, 982.70),
        ({"adapter": LORA, "param_dtype": "bf16", "recompute": FULL}, 463.84),
        ({"precision": "bf16-true"}, 1370.92),
        ({"grad_accum": 2}, 2287.54),
        ({"grad_accum": 2, "recompute": FULL}, 1427.89),
    ],
)
def test_trainer_step_matches_the_trace_of_the_real_code(recipe: dict[str, Any], megabytes: float) -> None:
    got = peak(SMALL, framework="hf-trainer", micro_batch=2, seq_len=2048, **recipe)
    assert got / 1e6 == pytest.approx(megabytes, rel=0.02)


def test_autocast_keeps_a_half_copy_of_every_trained_matrix() -> None:
    terms = memory(SMALL, framework="hf-trainer", seq_len=2048).phases["loss"].terms
    layer = 1024 * (1024 * 2 + 256 * 2 + 3 * 4096)  # elements of q, o, k, v and the MLP
    assert terms["weight_copies"] == 2 * 4 * layer  # the head's copy has died by the final norm's backward


def test_half_weights_need_no_copies() -> None:
    terms = memory(SMALL, framework="hf-trainer", seq_len=2048, precision="bf16-true").phases["loss"].terms
    assert "weight_copies" not in terms


def qlora(**more: Any) -> StageMemory:
    fields: dict[str, Any] = {
        "framework": "peft",
        "seq_len": 512,
        "adapter": LORA,
        "quantization": Quantization(),
        "recompute": FULL,
    }
    return memory(SMALL, **(fields | more))


def test_prepared_4bit_model_has_an_fp32_stream_and_fp32_logits() -> None:
    held = qlora().phases["optimizer"].terms["logits"]
    assert held == 512 * 1000 * 4


def test_4bit_model_with_a_half_rest_has_a_half_stream() -> None:
    held = qlora(quantization=Quantization(rest="bf16")).phases["optimizer"].terms["logits"]
    assert held == 512 * 1000 * 2


def test_outputs_live_through_the_optimizer_step_with_the_embedding_and_its_gradient() -> None:
    terms = qlora().phases["optimizer"].terms
    assert terms["activations"] == 2 * 512 * 1024 * 4


def test_trainer_lets_the_outputs_go_before_the_backward_pass() -> None:
    trainer = memory(SMALL, framework="hf-trainer", seq_len=512, recompute=FULL, precision="bf16-true")
    assert "logits" not in trainer.phases["optimizer"].terms
    assert "logits" not in trainer.phases["backward"].terms


def test_softmax_backward_makes_one_more_tensor_of_its_gradients_size() -> None:
    level = memory(SMALL, framework="peft", seq_len=4096, attention="eager", recompute=FULL, precision="fp16").phases["backward"]
    assert level.operator.endswith("attn.softmax")
    assert level.terms["temporaries"] == 16 * 4096 * 4096 * 4


@pytest.mark.parametrize(("precision", "bytes_per_score"), [("fp16", 14.0), ("bf16", 16.0)])
def test_eager_scores_cost_more_in_bf16_than_in_fp16(precision: str, bytes_per_score: float) -> None:
    # fp16: softmax 4, its gradient 4, product 4, gradient of the scores 2; bf16: that gradient is fp32 (4)
    level = memory(SMALL, framework="peft", seq_len=4096, attention="eager", recompute=FULL, precision=precision)
    other = memory(SMALL, framework="peft", seq_len=4096, recompute=FULL, precision=precision)
    scores = 16 * 4096 * 4096
    difference = (level.phases["backward"].bytes - other.phases["loss"].bytes) / scores
    assert difference == pytest.approx(bytes_per_score, abs=0.35)


def test_logits_were_fp32_in_the_outputs_until_transformers_4_46() -> None:
    def held(date: str) -> float:
        return memory(SMALL, framework="peft", seq_len=512, date=date).phases["optimizer"].terms["logits"]

    assert held("2024-03-01") == 2 * held("2026-01-01")


def test_block_scales_of_a_4bit_base_are_not_sharded() -> None:
    par = Parallelism(dp=4, zero=3)
    run: dict[str, Any] = {"framework": "fsdp-qlora", "seq_len": 512, "adapter": Adapter(rank=8, dtype="bf16"), "recompute": FULL}
    terms = memory(LLAMA_2_7B, par, quantization=Quantization(), **run).peak.terms
    matrices = 32 * 4096 * (4 * 4096 + 3 * 11008)
    assert terms["quantization_scales"] == matrices * 4 / 64


@pytest.mark.parametrize(("kind", "megabytes"), [("lora", 1118.27), ("dora", 1370.17)])
def test_dora_keeps_both_results_it_scales(kind: Literal["lora", "dora"], megabytes: float) -> None:
    adapter = Adapter(kind=kind, rank=16, targets=LORA.targets)
    loss = memory(SMALL, framework="peft", micro_batch=2, seq_len=2048, precision="bf16", adapter=adapter).phases["loss"]
    assert loss.bytes / 1e6 == pytest.approx(megabytes, rel=0.005)
