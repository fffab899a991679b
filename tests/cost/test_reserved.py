"""Replaying a rank's allocations: the levels agree with the linear forms, reserved memory with measurements."""

from __future__ import annotations

import time
from typing import Any

import pytest

from foretell.arch.readers import read_config
from foretell.cost.reserved import reserved
from foretell.cost.training_memory import training_memory
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import Run, resolve
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe

SMOL_135M = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
SMOL_1700M = SMOL_135M | {
    "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 8192,
}  # fmt: skip
FULL = Recompute("full")
LORA = Adapter(rank=32, targets=("q_proj", "k_proj", "v_proj", "o_proj"))


def run_of(par: Parallelism | None = None, **recipe: Any) -> Run:
    choices = TrainingRecipe(**recipe)
    return resolve(choices, par or Parallelism(), profile(choices.framework))


@pytest.mark.parametrize(
    ("par", "recipe"),
    [
        (Parallelism(), {"framework": "hf-trainer"}),
        (Parallelism(), {"framework": "hf-trainer", "recompute": FULL}),
        (Parallelism(), {"framework": "hf-trainer", "attention": "eager", "precision": "bf16-true"}),
        (Parallelism(), {"framework": "peft", "adapter": LORA}),
        (Parallelism(), {"framework": "peft", "adapter": LORA, "recompute": FULL, "quantization": Quantization()}),
        (Parallelism(dp=4), {"framework": "hf-trainer", "recompute": FULL}),
        (Parallelism(dp=4, zero=3), {"framework": "fsdp1", "recompute": FULL}),
        (Parallelism(pp=2, dp=2, zero=1), {"framework": "megatron-core", "grad_accum": 8}),
    ],
)
def test_replayed_levels_agree_with_the_linear_forms(par: Parallelism, recipe: dict[str, Any]) -> None:
    arch = read_config(SMOL_135M)
    run = run_of(par, micro_batch=4, seq_len=2048, **recipe)
    for stage in training_memory(arch, run):
        replay = reserved(arch, run, stage.stage, workspace=0)
        assert replay.allocated == pytest.approx(stage.peak.bytes, rel=0.012)
        assert replay.reserved >= replay.allocated


@pytest.mark.parametrize(
    ("config", "recipe", "load", "allocated", "held"),
    [
        # Tesla T4, 2026-09-15/16, torch 2.14.0+cu130 / 2.10.0+cu128, GiB (fitcheck-llm 0.3.1, MIT):
        # after load, max_memory_allocated, max_memory_reserved of the second step
        (SMOL_1700M, {"micro_batch": 4, "seq_len": 1024, "attention": "eager"}, 3.2346, 6.384, 7.553),
        (SMOL_1700M, {"micro_batch": 4, "seq_len": 1024, "attention": "mem-efficient"}, 3.2346, 6.376, 6.928),
        (SMOL_1700M, {"micro_batch": 1, "seq_len": 2048, "attention": "eager"}, 3.2346, 5.572, 6.979),
        (SMOL_135M, {"micro_batch": 1, "seq_len": 4096, "attention": "eager"}, 0.2643, 3.106, 4.371),
        (SMOL_135M, {"micro_batch": 1, "seq_len": 4096, "attention": "mem-efficient"}, 0.2643, 3.074, 3.207),
    ],
)
def test_measured_lora_steps(config: dict[str, Any], recipe: dict[str, Any], load: float, allocated: float, held: float) -> None:
    run = run_of(framework="peft", precision="fp16", adapter=LORA, recompute=FULL, dropout=0.0, **recipe)
    replay = reserved(read_config(config), run)
    gib = 2.0**30
    assert replay.loaded / gib == pytest.approx(load, rel=0.002)
    assert replay.allocated / gib == pytest.approx(allocated, rel=0.003)
    assert replay.reserved / gib == pytest.approx(held, rel=0.02)


def test_a_device_that_is_too_small_is_said_to_be() -> None:
    # Qwen2.5-Coder-1.5B on a Tesla T4 of 14.5625 GiB with a context of 0.1376 GiB (fitcheck-llm 0.3.1, MIT): batch 4 measured
    # 12.530 GiB of process memory, batch 5 ended out of memory
    qwen = SMOL_135M | {
        "model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
        "intermediate_size": 8960, "vocab_size": 151936,
    }  # fmt: skip
    base: dict[str, Any] = {
        "framework": "peft", "precision": "fp16", "recompute": FULL, "quantization": Quantization(), "seq_len": 1024,
        "attention": "mem-efficient", "adapter": Adapter(rank=16, targets=LORA.targets), "dropout": 0.0,
    }  # fmt: skip
    arch, gib = read_config(qwen), 2.0**30
    four = reserved(arch, run_of(micro_batch=4, **base), capacity=14.4249 * gib)
    five = reserved(arch, run_of(micro_batch=5, **base), capacity=14.4249 * gib)
    assert four.fits
    assert four.reserved / gib + 0.1376 == pytest.approx(12.530, rel=0.01)
    assert not five.fits


def test_expandable_segments_reserve_less() -> None:
    arch = read_config(SMOL_135M)
    run = run_of(framework="peft", adapter=LORA, recompute=FULL, micro_batch=4, seq_len=2048, attention="eager")
    expandable = run_of(
        framework="peft", adapter=LORA, recompute=FULL, micro_batch=4, seq_len=2048, attention="eager", expandable_segments=True
    )
    assert reserved(arch, expandable).reserved < reserved(arch, run).reserved


def test_a_32_layer_model_is_replayed_in_well_under_150_ms() -> None:
    arch = read_config(SMOL_1700M | {"num_hidden_layers": 32})
    run = run_of(framework="peft", adapter=LORA, recompute=FULL, micro_batch=4, seq_len=2048)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        reserved(arch, run)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3  # half of it on a quiet machine
