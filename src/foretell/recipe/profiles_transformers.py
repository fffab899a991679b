"""Profiles of frameworks that train the modules of transformers: PyTorch's own wrappers, the Trainer, PEFT, DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

from foretell.recipe.formats import AUTOCAST, BF16, DEEPSPEED, FSDP, HALF
from foretell.recipe.profile import ACTIVATIONS, STATES, Profile
from foretell.recipe.style import Style

_LOOP = Style(
    norm="eager",
    norm_pow=True,
    gate="eager",
    act="eager",
    rope="composite",
    attention="sdpa",
    scores="composite",
    loss="hf",
    logits_held="compute",
    frames=True,
    early_stop=True,
    outputs_in_step=True,
    quantized_stream=True,
)
"""A transformers model in a loop that keeps ``outputs`` until the step is over (transformers 5.24.0)."""

HF_TRAINER = Profile(
    name="hf-trainer",
    title="transformers Trainer / accelerate, DDP, autocast over fp32 parameters",
    aliases=("transformers", "trl", "accelerate", "hf"),
    sources=("transformers 5.24.0 trainer.py, loss/loss_utils.py",),
    formats=AUTOCAST,
    checkpoint_dtype=True,
    style=replace(_LOOP, autocast=True, residual=4.0, logits_held="", outputs_in_step=False, outputs_float=True, lora_clone=True),
    zero=(0,),
    optimizer_impl="fused",
    offloads=ACTIVATIONS,
    replays=True,
)
PEFT = Profile(
    name="peft",
    title="transformers + PEFT in a training loop of one's own, no autocast",
    sources=(
        "transformers 5.24.0 models/llama/modeling_llama.py, loss/loss_utils.py, modeling_utils.py (use_reentrant=False)",
        "peft 0.21.2 utils/other.py prepare_model_for_kbit_training, tuners/lora/layer.py, bnb.py",
        "bitsandbytes 0.50.2 nn/modules.py Linear4bit",
    ),
    formats=HALF,
    quantized_rest="fp32",
    style=replace(_LOOP, lora_clone=True),
    zero=(0,),
    offloads=ACTIVATIONS,
    replays=True,
)
FSDP2 = Profile(
    name="fsdp2",
    title="PyTorch FSDP2 (fully_shard), fp32 shards, bf16 compute",
    sources=(
        "pytorch torch/distributed/fsdp/_fully_shard",
        "accelerate utils/dataclasses.py ParallelismConfig (cp_size: torch context_parallel over FSDP2)",
    ),
    formats=FSDP,
    style=_LOOP,
    sharding="fsdp2",
    zero=(2, 3),
    default_zero=3,
    tensor=True,
    context=True,
    sequence_parallel=True,
    default_expert_tp=1,
    offloads=STATES | ACTIVATIONS,
    offloads_together=True,
)
FSDP1 = Profile(
    name="fsdp1",
    title="PyTorch FSDP1 (FullyShardedDataParallel, flat parameters)",
    sources=("pytorch torch/distributed/fsdp/_flat_param.py",),
    formats=FSDP,
    style=_LOOP,
    sharding="fsdp1",
    zero=(2, 3),
    default_zero=3,
    adapter_units=True,
    offloads=STATES | ACTIVATIONS,
    offloads_together=True,
    replays=True,
)
FSDP_QLORA = Profile(
    name="fsdp-qlora",
    title="AnswerDotAI/fsdp_qlora train.py: FSDP1 or DDP, LoRA on a 4-bit or bf16 base, all bf16",
    aliases=("fsdp_qlora",),
    sources=("AnswerDotAI/fsdp_qlora 02586ac train.py",),
    formats=BF16,
    style=_LOOP,
    sharding="fsdp1",
    zero=(0, 3),
    default_zero=3,
    adapter_units=True,
    lora_dropout=0.1,
    offloads=STATES,
    offloads_together=True,
    replays=True,
)
ZERO = Profile(
    name="deepspeed",
    title="DeepSpeed ZeRO",
    sources=("deepspeedai/DeepSpeed deepspeed/runtime/zero",),
    formats=DEEPSPEED,
    style=_LOOP,
    sharding="deepspeed",
    default_zero=1,
    optimizer_impl="fused",
    offloads=STATES,
    replays=True,
)
