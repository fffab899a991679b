"""Profiles of Megatron-Core and of code that descends from Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

from foretell.recipe.formats import DEEPSPEED, MEGATRON
from foretell.recipe.profile import Profile
from foretell.recipe.style import Style

CORE = Profile(
    name="megatron-core",
    title="Megatron-Core with Transformer Engine",
    aliases=("megatron", "mcore", "megatron-lm"),
    sources=("NVIDIA/Megatron-LM megatron/core",),
    formats=MEGATRON,
    style=Style(
        norm="fused",
        gate="fused",
        rope="fused",
        attention="te",
        softmax=2.0,
        slices="copy",
        loss="vocab-parallel",
        experts="alltoall",
        main_grad_fusion=True,
    ),
    losses=(("fused", "native-fused"),),
    megatron=True,
    sharding="distopt",
    default_zero=1,
    pipeline=True,
    tensor=True,
    context=True,
    expert=True,
    gradients="buffer",
    ddp_bucket=False,
    optimizer_impl="fused",
    offloads=frozenset({"optimizer", "activations"}),
    supports_adapters=False,
)
BRIDGE = replace(
    CORE,
    name="megatron-bridge",
    title="Megatron-Bridge / NeMo on Megatron-Core",
    aliases=("nemo", "bridge"),
    sources=("NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge",),
    style=replace(CORE.style, loss="te-fused"),
    losses=(("fused", "te-fused"),),
    sequence_parallel=True,
    tp_comm_overlap=True,  # training/comm_overlap.py: on with tp > 1 and sequence parallelism
    supports_adapters=True,
    adapters_4bit=False,
)
DEEPSPEED_PIPELINE = Profile(
    # megatron/model (fused LayerNorm, scores masked in place), core/tensor_parallel/cross_entropy.py; DeepSpeed
    # runtime/pipe/engine.py (pipe buffers); sailor's OPTModelPipe (third_party/Megatron-DeepSpeed model/opt_model.py)
    name="megatron-deepspeed",
    title="Megatron-DeepSpeed (DeepSpeed pipeline engine)",
    sources=("deepspeedai/Megatron-DeepSpeed", "eth-easl/sailor cf2c8e3"),
    formats=DEEPSPEED,
    style=Style(norm="fused", gate="eager", rope="eager", attention="eager", loss="vocab-parallel-copies", logits_held="compute"),
    losses=(("vocab-parallel", "vocab-parallel-copies"),),
    rewrite="megatron-deepspeed",
    no_dropout=("opt",),
    sharding="deepspeed",
    pipeline=True,
    tensor=True,
    pipe_buffers=True,
    gradients="buffer",
    ddp_bucket=False,
    optimizer_impl="fused",
    offloads=frozenset({"optimizer"}),
    supports_adapters=False,
)
NANOTRON = Profile(
    # src/nanotron/models/llama.py (qkv_proj, flash_rotary in place, kv concatenated), nn/layer_norm.py (fused),
    # parallel/tensor_parallel (gathers into MemoryBuffer, sharded_cross_entropy), optim/gradient_accumulator.py (fp32),
    # models/base.py build_model (stages by cost); scripts/scaling_benchmarks.py: REDUCE_SCATTER, fused AdamW
    name="nanotron",
    title="nanotron",
    sources=("huggingface/nanotron e24d2483",),
    formats=MEGATRON,
    style=Style(
        norm="fused",
        gate="eager",
        rope="inplace",
        attention="flash",
        packed_kv=True,
        loss="vocab-parallel-copies",
        gather_buffers=True,
    ),
    losses=(("vocab-parallel", "vocab-parallel-copies"),),
    rewrite="merged-qkv",
    sharding="distopt",
    zero=(0, 1),
    default_zero=1,
    pipeline=True,
    split="cost",
    tensor=True,
    sequence_parallel=True,
    gradients="buffer",
    autograd_gradients=True,
    optimizer_impl="fused",
    step_gather=True,
    offloads=frozenset(),
    supports_adapters=False,
)
