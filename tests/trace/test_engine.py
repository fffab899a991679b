"""The engine on fake CUDA tensors: what sharding, adapters, checkpoints and attention kernels do to a small model."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import pytest

from foretell.trace import ModelRequest, Recording, TraceRequest, record
from foretell.trace.replay import replay

pytest.importorskip("torch")
pytest.importorskip("transformers")

LAYERS, WIDTH, WORLD = 4, 256, 8
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
PARAMETERS = 2 * 4096 * WIDTH + WIDTH + LAYERS * (4 * WIDTH**2 + 3 * WIDTH * 1024 + 2 * WIDTH)

BUFFERS = 2 * 4 * (WIDTH // 8 // 2)
"""Frequencies of the rotary embedding, twice."""


@cache
def traced(world: int = 1, capability: tuple[int, int] = (8, 0), evaluate: bool = False, **model: Any) -> Recording:
    """Trace the small model; equal questions are asked once."""
    asked = ModelRequest(content=LLAMA, where="here", seq_len=512, **{"precision": "fp32"} | model)
    return record(TraceRequest(model=asked, world=world, capability=capability, evaluate=evaluate))


def bytes_of(recording: Recording, category: str) -> int:
    """Bytes of the storages of a category that live when the run ends."""
    live = set()
    for entry in recording.order:
        if entry >= 0:
            live.add(entry)
        else:
            live.discard(~entry)
    return sum(recording.storages[i].bytes for i in live if recording.storages[i].category == category)


def peak(recording: Recording) -> int:
    return replay(recording).peak_allocated.bytes


def phases(recording: Recording) -> list[tuple[str, int, int]]:
    return [(p.name, p.step, p.micro) for p in recording.phases if p.name in ("forward", "backward", "optimizer")]


def test_a_plain_run_has_its_states_and_phases() -> None:
    made = traced()
    assert bytes_of(made, "optimizer") == 2 * 4 * PARAMETERS
    assert phases(made) == [(name, step, 0) for step in (0, 1) for name in ("forward", "backward", "optimizer")]
    assert made.about["attention"] == {"efficient": 2 * LAYERS}  # fp32: flash takes half types only
    assert made.about["device"] == "cuda"


def test_autocast_keeps_fp32_weights_and_takes_flash() -> None:
    made = traced(precision="bf16")
    assert made.about["attention"] == {"flash": 2 * LAYERS}
    assert bytes_of(made, "optimizer") == 2 * 4 * PARAMETERS


def test_attention_kernels_are_those_of_the_gpu() -> None:
    assert traced(precision="bf16", capability=(9, 0)).about["attention"] == {"cudnn": 2 * LAYERS}
    assert traced(precision="fp16", capability=(7, 5)).about["attention"] == {"efficient": 2 * LAYERS}


@pytest.mark.parametrize("recompute", ["full", "full-reentrant"])
def test_checkpoints_lower_the_peak_and_run_attention_twice(recompute: str) -> None:
    made = traced(precision="bf16", recompute=recompute)
    assert made.about["attention"] == {"flash": 4 * LAYERS}
    assert peak(made) < peak(traced(precision="bf16"))


def test_micro_steps_are_told_apart_and_gradients_stay() -> None:
    made = traced(accumulate=2, clip=1.0)
    assert phases(made)[:5] == [("forward", 0, 0), ("backward", 0, 0), ("forward", 0, 1), ("backward", 0, 1), ("optimizer", 0, 0)]


def test_an_evaluation_keeps_nothing_for_backward() -> None:
    made = traced(evaluate=True)
    last = replay(made).phases[-1]
    assert last.phase.name == "forward"
    assert last.allocated < max(p.allocated for p in replay(made).phases if p.phase.name == "forward" and p.phase.step == 1)


def test_fully_sharded_states_are_a_share() -> None:
    made = traced(world=WORLD, sharding="fsdp2", precision="bf16")
    assert bytes_of(made, "parameter") == 4 * PARAMETERS // WORLD + BUFFERS
    assert bytes_of(made, "optimizer") == 2 * 4 * PARAMETERS // WORLD
    assert any(s.category == "collective" and s.stream for s in made.storages)
    assert peak(made) < peak(traced(world=WORLD, sharding="zero2", precision="bf16"))


def test_data_parallel_copies_every_gradient_into_buckets() -> None:
    made, alone = traced(world=WORLD, sharding="ddp"), traced()
    buckets = peak(made) - peak(alone)
    assert abs(buckets / (4 * PARAMETERS) - 1) < 0.01
    assert bytes_of(made, "optimizer") == 2 * 4 * PARAMETERS
    divided = bytes_of(traced(world=WORLD, sharding="zero1"), "optimizer")
    assert 2 * 4 * PARAMETERS / WORLD <= divided < 2 * 4 * PARAMETERS / 2


def test_adapters_train_alone_on_a_base_in_four_bits() -> None:
    rank, matrices = 8, LAYERS * (4 * 2 * WIDTH + 3 * (WIDTH + 1024))
    made = traced(precision="bf16", lora_rank=rank)
    assert bytes_of(made, "optimizer") == 2 * 4 * rank * matrices
    small = traced(precision="bf16", lora_rank=rank, quantization="nf4")
    packed = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * 1024)
    assert bytes_of(made, "parameter") - bytes_of(small, "parameter") == packed * 4 - packed // 2 - packed // 64 * 4


UNET = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "cross_attention_dim": 64,
    "block_out_channels": [32, 64],
    "attention_head_dim": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}


@pytest.mark.parametrize(("library", "content"), [("torchvision", {"timm": "resnet18"}), ("diffusers", UNET)])
def test_models_of_other_libraries_are_traced_by_name(library: str, content: dict[str, Any]) -> None:
    if importlib.util.find_spec(library) is None:  # timm needs torchvision, of which there is no build for a CPU's torch
        pytest.skip(f"needs {library}")
    made = record(TraceRequest(model=ModelRequest(content=content, where="here", precision="fp32")))
    learnt = sum(s.bytes for s in made.storages if s.category == "gradient") // 2
    assert bytes_of(made, "optimizer") == 2 * learnt
    assert any("convolution" in op for op in made.about["unknown_workspaces"])


@pytest.mark.skipif(importlib.util.find_spec("mamba_ssm") is not None, reason="its kernels are here")
def test_a_recurrence_without_its_kernel_is_said() -> None:
    content = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 64}
    made = record(TraceRequest(model=ModelRequest(content=content, where="here", seq_len=4)))
    assert any("mamba_ssm is not installed" in note and "mamba_inner_fn" in note for note in made.about["notes"])
    assert not any("is not installed" in note for note in traced().about["notes"])


def test_every_optimizer_that_can_be_asked_for_can_be_made() -> None:
    from foretell.trace import request
    from foretell.trace.engine.models import DTYPES, OPTIMIZERS

    assert tuple(OPTIMIZERS) == request.OPTIMIZERS
    assert tuple(DTYPES) == request.PRECISIONS
