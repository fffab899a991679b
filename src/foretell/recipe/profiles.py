"""The named framework profiles.  Each statement cites where the framework does so."""

from __future__ import annotations

from dataclasses import replace

from foretell.catalog import loader
from foretell.errors import CatalogError
from foretell.recipe.profile import Formats, Profile
from foretell.recipe.style import Style


def _pure(kind: str) -> Formats:
    return Formats(param=kind, grad=kind, master=None, optim=kind, compute=kind, wgrad=kind)


FP32 = _pure("fp32")
_PURE = {"fp32": FP32, "bf16-true": _pure("bf16"), "fp16-true": _pure("fp16")}

_MIXED = {
    **_PURE,
    **{p: Formats(p, p, "fp32", "fp32", p, p) for p in ("bf16", "fp16")},
    **{p: Formats("bf16", "bf16", "fp32", "fp32", "bf16", "bf16") for p in ("fp8", "mxfp8", "nvfp4")},
    **{p: Formats(p, "bf16", "fp32", "fp32", "bf16", "bf16") for p in ("int8", "int4", "nf4")},
}
_AUTOCAST = {
    **_PURE,
    **{p: Formats("fp32", "fp32", None, "fp32", p, "fp32") for p in ("bf16", "fp16")},
}
_FSDP = {
    **_PURE,
    **{p: Formats("fp32", "fp32", None, "fp32", p, p) for p in ("bf16", "fp16")},
    **{p: Formats("fp32", "fp32", None, "fp32", "bf16", "bf16") for p in ("fp8", "mxfp8", "nvfp4")},
}
_MEGATRON = {
    **_PURE,
    **{p: Formats(p, "fp32", "fp32", "fp32", p, p) for p in ("bf16", "fp16")},
    **{p: Formats("bf16", "fp32", "fp32", "fp32", "bf16", "bf16") for p in ("fp8", "mxfp8", "nvfp4")},
}
_DEEPSPEED = {
    **_PURE,
    # engine.get_data_types: gradients accumulate in the model's format with ZeRO, in fp32 (bf16) without (resolve)
    **{p: Formats(p, p, "fp32", "fp32", p, p) for p in ("bf16", "fp16")},
}

_HF_LOOP = Style(
    norm="eager",
    gate="eager",
    rope="composite",
    act="eager",
    scores="composite",
    attention="flash",
    loss="hf",
    logits_held="compute",
    norm_pow=True,
    frames=True,
    early_stop=True,
    outputs_in_step=True,
    quantized_stream=True,
)
"""A transformers model in a loop that keeps ``outputs`` until the step is over (transformers 5.24.0)."""

_FUSED = Style(norm="fused", gate="fused", rope="fused", attention="flash", loss="eager", logits_upcast=True)

_ALL = (
    Profile(
        name="generic", title="reference accounting: 2 + 2 + 12 bytes a parameter, fused operators",
        style=replace(_FUSED, main_grad_fusion=True), formats=_MIXED, gradients="buffer",
        sources=("arXiv 1910.02054 section 3", "arXiv 2205.05198"),
        pipeline=True, tensor=True, context=True, expert=True, sequence_parallel=False, ddp_bucket=False,
        optimizer_impl="fused",
    ),
    Profile(
        name="hf-trainer", title="transformers Trainer / accelerate, DDP, autocast over fp32 parameters",
        replays=True, offloads=frozenset({"activations"}), checkpoint_dtype=True,
        style=replace(
            _HF_LOOP, autocast=True, residual=4.0, logits_held="", outputs_in_step=False, lora_clone=True,
        ),
        formats=_AUTOCAST, sources=("transformers 5.24.0 trainer.py, loss/loss_utils.py",), aliases=("transformers", "trl", "accelerate", "hf"),
        zero=(0,), optimizer_impl="fused",
    ),
    Profile(
        name="peft", title="transformers + PEFT in a training loop of one's own, no autocast",
        replays=True, offloads=frozenset({"activations"}),
        style=replace(_HF_LOOP, lora_clone=True),
        formats={**_PURE, "bf16": _pure("bf16"), "fp16": _pure("fp16")}, zero=(0,), quantized_rest="fp32", optimizer_impl="foreach",
        sources=(
            "transformers 5.24.0 models/llama/modeling_llama.py, loss/loss_utils.py, modeling_utils.py (use_reentrant=False)",
            "peft 0.21.2 utils/other.py prepare_model_for_kbit_training, tuners/lora/layer.py, bnb.py",
            "bitsandbytes 0.50.2 nn/modules.py Linear4bit",
        ),
    ),
    Profile(
        name="fsdp2", title="PyTorch FSDP2 (fully_shard), fp32 shards, bf16 compute",
        offloads=frozenset({"params", "grads", "optimizer"}), offloads_together=True,
        style=_HF_LOOP,
        formats=_FSDP, sources=("pytorch torch/distributed/fsdp/_fully_shard",), sharding="fsdp2", zero=(2, 3), default_zero=3,
        tensor=True, sequence_parallel=True, expandable=False, default_expert_tp=1,
    ),
    Profile(
        name="torchtitan", title="torchtitan (FSDP2, TP with SP, PP)", adapters_4bit=False,
        offloads=frozenset({"params", "grads", "optimizer"}), offloads_together=True,
        style=Style(
            norm="fused", gate="eager", rope="complex", attention="flash", loss="eager", gqa_expand=True, fsdp_units="split",
            fused_qkv=True, chunked_head=True,
        ),
        formats=_FSDP, sources=("pytorch/torchtitan torchtitan/models/llama3, torchtitan/distributed",), sharding="fsdp2", zero=(0, 2, 3), default_zero=3,
        pipeline=True, tensor=True, context=True, expert=True, sequence_parallel=True, expandable=True, default_expert_tp=1,
        optimizer_impl="foreach", losses=(("vocab-parallel", "loss-parallel"),),
    ),
    Profile(
        name="fsdp1", title="PyTorch FSDP1 (FullyShardedDataParallel, flat parameters)",
        replays=True, offloads=frozenset({"params", "grads", "optimizer"}), offloads_together=True,
        style=_HF_LOOP,
        formats=_FSDP, sources=("pytorch torch/distributed/fsdp/_flat_param.py",), sharding="fsdp1", zero=(2, 3), default_zero=3,
        adapter_units=True,
    ),
    Profile(
        name="fsdp-qlora", title="AnswerDotAI/fsdp_qlora train.py: FSDP1 or DDP, LoRA on a 4-bit or bf16 base, all bf16",
        replays=True, offloads=frozenset({"params", "grads", "optimizer"}), offloads_together=True,
        style=_HF_LOOP, formats={**_PURE, "bf16": _pure("bf16")}, sources=("AnswerDotAI/fsdp_qlora 02586ac train.py",), sharding="fsdp1",
        zero=(0, 3), default_zero=3, adapter_units=True, lora_dropout=0.1, aliases=("fsdp_qlora",),
    ),
    Profile(
        name="deepspeed", title="DeepSpeed ZeRO", replays=True,
        offloads=frozenset({"params", "grads", "optimizer"}),
        style=_HF_LOOP,
        formats=_DEEPSPEED, sources=("deepspeedai/DeepSpeed deepspeed/runtime/zero",), sharding="deepspeed", default_zero=1, optimizer_impl="fused",
    ),
    Profile(
        # megatron/model (fused LayerNorm, scores masked in place), core/tensor_parallel/cross_entropy.py; DeepSpeed
        # runtime/pipe/engine.py (pipe buffers); sailor's OPTModelPipe (third_party/Megatron-DeepSpeed model/opt_model.py)
        name="megatron-deepspeed", title="Megatron-DeepSpeed (DeepSpeed pipeline engine)",
        offloads=frozenset({"optimizer"}), supports_adapters=False,
        style=Style(norm="fused", gate="eager", rope="eager", attention="eager", loss="vocab-parallel-copies", logits_held="compute"),
        formats=_DEEPSPEED, sources=("deepspeedai/Megatron-DeepSpeed", "eth-easl/sailor cf2c8e3"), sharding="deepspeed",
        zero=(0, 1, 2, 3), pipeline=True, tensor=True, losses=(("vocab-parallel", "vocab-parallel-copies"),),
        gradients="buffer", ddp_bucket=False, optimizer_impl="fused", rewrite="megatron-deepspeed", pipe_buffers=True,
        no_dropout=("opt",),
    ),
    Profile(
        name="megatron-core", title="Megatron-Core with Transformer Engine",
        offloads=frozenset({"optimizer", "activations"}), supports_adapters=False,
        style=Style(
            norm="fused", gate="fused", rope="fused", attention="te", softmax=2.0, loss="vocab-parallel", main_grad_fusion=True,
            experts="alltoall", slices="copy",
        ),
        megatron=True, losses=(("fused", "native-fused"),), formats=_MEGATRON, sources=("NVIDIA/Megatron-LM megatron/core",), aliases=("megatron", "mcore", "megatron-lm"),
        sharding="distopt", zero=(0, 1, 2, 3), default_zero=1, pipeline=True, tensor=True, context=True, expert=True,
        gradients="buffer", ddp_bucket=False, optimizer_impl="fused",
    ),
    Profile(
        name="megatron-bridge", title="Megatron-Bridge / NeMo on Megatron-Core",
        offloads=frozenset({"optimizer", "activations"}), adapters_4bit=False,
        style=Style(
            norm="fused", gate="fused", rope="fused", attention="te", softmax=2.0, loss="te-fused", main_grad_fusion=True,
            experts="alltoall", slices="copy",
        ),
        megatron=True, losses=(("fused", "te-fused"),), formats=_MEGATRON, sources=("NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge",), aliases=("nemo", "bridge"),
        sharding="distopt", zero=(0, 1, 2, 3), default_zero=1, pipeline=True, tensor=True, context=True, expert=True, sequence_parallel=True,
        gradients="buffer", ddp_bucket=False, optimizer_impl="fused",
    ),
    Profile(
        # torchtune/modules: rms_norm.py (fp32, type_as), attention.py (keys and values expanded), transformer.py
        # (output(h).float(), chunked_output), loss/ce_chunked_output_loss.py; recipes/configs: fused AdamW
        name="torchtune", title="torchtune recipes, all-bf16",
        style=Style(
            norm="eager", gate="eager", rope="eager", attention="flash", gqa_expand=True, loss="output-chunked", logits_float=True,
            fsdp_units="layers",  # 70B_full.yaml custom_sharded_layers; the LoRA configurations leave it out
        ),
        formats={**_PURE, "bf16": _pure("bf16")}, sources=("pytorch/torchtune 1814feb17",), sharding="fsdp2", zero=(0, 3),
        losses=(("eager", "eager"), ("chunked", "output-chunked")), optimizer_impl="fused",
        adapter_fsdp_units="root",
    ),
    Profile(
        # thunder/benchmarks/benchmark_litgpt.py: LitGPT's model, one fused graph whose saved tensors are eager code's
        name="thunder", title="lightning-thunder on LitGPT models, bf16-true",
        offloads=frozenset(), supports_adapters=False,
        style=Style(norm="eager", gate="eager", rope="eager", attention="flash", gqa_expand=True, loss="eager"),
        formats={**_PURE, "bf16": _pure("bf16")}, sources=("Lightning-AI/lightning-thunder benchmark_litgpt.py",),
        aliases=("lightning-thunder",), sharding="fsdp2", zero=(0, 2, 3), optimizer_impl="fused", compiles="kernels",
    ),
    Profile(
        # litgpt/finetune/lora.py: lora_dropout, no_backward_sync, `logits` held by the loop; utils.chunked_cross_entropy;
        # lightning fabric/plugins/precision: bitsandbytes.py quantises every nn.Linear from fp16, convert_output to fp32
        name="litgpt", title="LitGPT (Lightning Fabric), bf16-true",
        offloads=frozenset(),
        style=Style(
            autocast=True, residual=4.0, norm="eager", norm_scale_wide=True, gate="eager", rope="eager", attention="flash",
            heads_first=True, gqa_expand=True, loss="list-chunked", logits_carried=True,
        ),
        formats={**_AUTOCAST, "bf16": _pure("bf16")}, sources=("Lightning-AI/litgpt 26857050",), sharding="fsdp1", zero=(0, 3),
        losses=(("chunked", "list-chunked"),), rewrite="litgpt", lora_dropout=0.05, quantizes_head=True, dequantized="fp16",
        no_sync=True, quantizes_many=False,
    ),
    Profile(
        name="torchao", title="torchao benchmark scripts: autocast over fp32 parameters",
        style=Style(autocast=True, residual=4.0, norm="fused", gate="eager", attention="flash", loss="eager"),
        formats=_AUTOCAST, sources=("pytorch/ao benchmarks/benchmark_low_bit_adam.py",), zero=(0,), optimizer_impl="fused",
    ),
    Profile(
        # MMDistributedDataParallel; mmcv/runner/hooks/optimizer.py Fp16OptimizerHook: a half model, fp32 copies for the update
        name="mmseg", title="MMSegmentation on MMCV, DDP, fp32",
        offloads=frozenset(), supports_adapters=False,
        style=Style(norm="fused", gate="eager", act="eager", attention="eager", scores="composite", loss="eager"),
        formats={"fp32": FP32, "fp16": Formats("fp16", "fp16", "fp32", "fp32", "fp16", "fp16")}, zero=(0,),
        sources=("open-mmlab/mmsegmentation v0.5 docs/model_zoo.md",), aliases=("mmsegmentation", "openmmlab"),
    ),
    Profile(
        name="nanotron", title="nanotron",
        # src/nanotron/models/llama.py (qkv_proj, flash_rotary in place, kv concatenated), nn/layer_norm.py (fused),
        # parallel/tensor_parallel (gathers into MemoryBuffer, sharded_cross_entropy), optim/gradient_accumulator.py (fp32),
        # models/base.py build_model (stages by cost); scripts/scaling_benchmarks.py: REDUCE_SCATTER, fused AdamW
        offloads=frozenset(), supports_adapters=False,
        style=Style(
            norm="fused", gate="eager", rope="inplace", packed_kv=True, attention="flash", loss="vocab-parallel-copies",
            gather_buffers=True,
        ),
        formats=_MEGATRON, sources=("huggingface/nanotron e24d2483",), sharding="distopt", zero=(0, 1), default_zero=1,
        pipeline=True, tensor=True, sequence_parallel=True, gradients="buffer", autograd_gradients=True, optimizer_impl="fused",
        losses=(("vocab-parallel", "vocab-parallel-copies"),), rewrite="merged-qkv", split="cost",
        step_gather=True,
    ),
)  # fmt: skip
PROFILES: dict[str, Profile] = {p.name: p for p in _ALL}
_BY_NAME = {key: p for p in _ALL for key in (p.name, *p.aliases)}


def profile(name: str, depth: int = 0) -> Profile:
    """The profile of that name or alias; ``depth`` counts the bases of a user's own profile."""
    key = name.strip().lower() if isinstance(name, str) else ""
    if loader.has_own("framework"):
        from foretell.recipe.own import own_profile  # noqa: PLC0415  # only who adds entries pays for reading them

        own = own_profile(key, depth)
        if own is not None:
            return own
    if key not in _BY_NAME:
        raise CatalogError.unknown("framework", str(name), PROFILES)
    return _BY_NAME[key]
