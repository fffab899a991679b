"""LLaMA-Factory on Megatron-Core: ``USE_MEGATRON_BRIDGE=1`` (Megatron Bridge) or ``USE_MCA=1`` (mcore_adapter), with flat keys.

Sources: LLaMA-Factory 0.9.6.dev0 (``hparams/megatron_bridge_args.py``, ``train/megatron_bridge/config_builder.py``,
``train/mca``); alibaba/ROLL mcore_adapter/training_args.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.llamafactory._run import DEFAULT

if TYPE_CHECKING:
    from foretell.readers._reading import Builder
    from foretell.readers.hf._common import Section

__all__ = ["BRIDGE_KEYS", "MEGATRON_KEYS", "megatron_settings"]

MEGATRON_KEYS: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
"""Keys that only a run on Megatron-Core has."""
BRIDGE_KEYS: Final = (
    "mixed_precision",
    "export_hf_on_finish",
    "use_packed_sequences",
    "extra_config",
    "cross_entropy_loss_fusion",
)
"""Keys that only Megatron Bridge has (``hparams/megatron_bridge_args.py``)."""
_DEGREES: Final = (
    ("tp", "tensor_model_parallel_size"),
    ("pp", "pipeline_model_parallel_size"),
    ("ep", "expert_model_parallel_size"),
    ("cp", "context_parallel_size"),
    ("vpp", "virtual_pipeline_model_parallel_size"),
)
_MIXED: Final = {
    "bf16_mixed": "bf16",
    "fp16_mixed": "fp16",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
    "fp8": "fp8",
}
"""NVIDIA-NeMo/Megatron-Bridge training/mixed_precision.py."""
_DISPATCHERS: Final = {"alltoall": "alltoall", "flex": "flex", "allgather": None}


def megatron_settings(b: Builder, section: Section, *, bridge: bool) -> None:
    """Take Megatron-Core's arguments; the batch, the length and the precision are taken before."""
    whose = "Megatron Bridge" if bridge else "mcore_adapter"
    b.settings.pop("framework", None)
    b.default("framework", "megatron-bridge" if bridge else "megatron-core", f"{whose} trains with Megatron-Core")
    for name, key in _DEGREES:
        found = section.get(key)
        if found is not None:
            b.set(name, found.whole(), found)
    parallel = section.get("sequence_parallel")
    if parallel is not None:
        b.set("sp", parallel.flag(), parallel)
    b.default("sp", value=False, why=f"default of {whose} ({DEFAULT.removeprefix('default of ')} hparams)")
    shared = section.get("use_distributed_optimizer")
    if shared is not None:
        b.set("zero", int(shared.flag()), shared, "the distributed optimizer is ZeRO stage 1")
    b.default("zero", int(bridge), f"default of {whose}: use_distributed_optimizer {str(bridge).lower()}")
    mixed = section.get("mixed_precision") if bridge else None
    if mixed is not None:
        b.set("precision", mixed.choice(_MIXED), mixed)
    elif b.given("precision") not in ("bf16", "fp16"):
        b.settings.pop("precision", None)
        b.default("precision", "bf16" if bridge else "fp32", f"default of {whose}")
    attended = b.settings.get("attention")
    if attended is not None and not attended.origin.path:
        b.settings.pop("attention")  # Transformer Engine's, not transformers'
    for name in ("weights", "autocast", "param_dtype"):
        b.settings.pop(name, None)
    _recompute(b, section)
    sent = section.get("moe_token_dispatcher_type")
    if sent is not None:
        kind = sent.choice(_DISPATCHERS)
        if kind is None:
            b.doubt(sent, "speed", "tokens are gathered by all ranks")
        else:
            b.set("dispatcher", kind, sent)
    if b.given("lora_rank") is not None and not bridge:
        b.doubt_default(
            "finetuning_type", "both", "mcore_adapter's adapters are not modelled: the whole model is counted as training"
        )
        for name in ("lora_rank", "lora_targets", "lora_dropout", "lora_kind", "modules_to_save"):
            b.settings.pop(name, None)


def _recompute(b: Builder, section: Section) -> None:
    """Take activation recomputation: Megatron's own, in place of transformers'."""
    b.settings.pop("recompute", None)
    b.settings.pop("offload", None)
    mode, way, count = (section.get(key) for key in ("recompute_granularity", "recompute_method", "recompute_num_layers"))
    if mode is None:
        b.default("recompute", "none", "default of Megatron-Core: recompute_granularity null")
        for unused in (way, count):
            if unused is not None:
                b.harmless(unused)
        return
    kind: str = mode.choice({"full": "full", "selective": "selective"})
    b.set("recompute", kind, mode)
    if kind == "full" and way is not None:
        b.set("recompute_scope", way.choice({"uniform": "uniform", "block": "block"}), way)
        if count is not None:
            b.set("recompute_layers", count.whole(), count)
    else:
        for unused in (way, count):
            if unused is not None:
                b.harmless(unused)
