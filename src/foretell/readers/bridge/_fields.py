"""Fields of Megatron-Bridge's and NeMo's configurations, as the arguments of Megatron-LM that mean the same.

All of them fill Megatron-Core's configurations: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/core`` (transformer_config.py,
model_parallel_config.py, distributed_data_parallel_config.py, optimizer_config.py); NVIDIA-NeMo/Megatron-Bridge
``src/megatron/bridge/training/config.py`` (2026-08), NVIDIA/NeMo v2.4 ``nemo/lightning`` and
``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from foretell.readers._document import Found
from foretell.readers._tree import Node
from foretell.readers.megatron._args import Args

if TYPE_CHECKING:
    from foretell.readers._reading import Sources

__all__ = ["Fields", "fields", "made", "resolved", "short"]

SECTIONS: Final = (
    "comm_overlap", "mixed_precision", "model", "model.transformer", "model.config", "trainer.strategy", "ddp",
    "trainer.strategy.ddp", "optimizer", "optim.config", "train", "data", "dataset", "dist", "tokenizer", "model.tokenizer",
    "trainer.plugins", "validation",
)  # fmt: skip
"""Where a field may stand, in the order in which one overrides another."""
_SAME: Final = """
num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels num_query_groups normalization position_embedding_type
max_position_embeddings hidden_dropout attention_dropout qk_layernorm qk_l2_norm multi_latent_attention q_lora_rank kv_lora_rank
qk_head_dim qk_pos_emb_head_dim v_head_dim moe_router_topk moe_ffn_hidden_size moe_layer_freq
moe_shared_expert_intermediate_size moe_shared_expert_gate moe_latent_size moe_token_dispatcher_type moe_enable_deepep
moe_flex_dispatcher_backend moe_router_force_load_balancing moe_grouped_gemm moe_expert_capacity_factor moe_layer_recompute
recompute_granularity recompute_method recompute_num_layers recompute_modules tensor_model_parallel_size
pipeline_model_parallel_size context_parallel_size expert_model_parallel_size expert_tensor_parallel_size sequence_parallel
account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split cross_entropy_loss_fusion
cross_entropy_fusion_impl transformer_impl tp_comm_overlap cp_comm_type cuda_graph_impl cuda_graph_scope cuda_graph_modules
enable_cuda_graph external_cuda_graph window_attn_skip_freq softmax_type experimental_attention_variant linear_attention_freq
linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads
attention_output_gate hybrid_layer_pattern hybrid_override_pattern mtp_hybrid_override_pattern mamba_state_dim mamba_head_dim
mamba_num_groups mamba_num_heads is_hybrid_model mtp_num_layers make_vocab_size_divisible_by bf16 fp16 fp8_recipe seq_length
use_distributed_optimizer use_precision_aware_optimizer optimizer_cpu_offload optimizer_offload_fraction overlap_grad_reduce
overlap_param_gather use_megatron_fsdp use_custom_fsdp use_torch_fsdp2 data_parallel_sharding_strategy
num_distributed_optimizer_instances micro_batch_size global_batch_size rampup_batch_size tokenizer_type tokenizer_model
padded_vocab_size add_qkv_bias vocab_size optimizer
"""
"""Fields that are called as the arguments are."""
_RENAMED: Final = {
    "num_experts": "num_moe_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "gated_linear_unit": "gated_linear_unit",
    "activation_func": "activation_func",
    "cpu_offloading_num_layers": "cpu_offloading_num_layers",
}
_NOT: Final = {
    "disable_bias_linear": "add_bias_linear",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "grad_reduce_in_bf16": "grad_reduce_in_fp32",
}
"""Flags that say the opposite."""
_FORMATS: Final = (
    "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "megatron_fsdp_main_params_dtype",
    "megatron_fsdp_main_grads_dtype",
)  # fmt: skip
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8", "float": "fp32"}
_BACKENDS: Final = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
"""megatron/core/transformer/enums.py ``AttnBackend``."""
_LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_FUNCTIONS: Final = {
    "gelu": "gelu", "silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu", "squared_relu": "relu2", "relu": "relu",
    "fast_gelu": "gelu", "openai_gelu": "gelu",
}  # fmt: skip
_REFERENCE: Final = re.compile(r"\$\{(\.*)([\w.]+)\}")


@dataclass(frozen=True)
class Fields(Args):
    """Fields under the names of Megatron-LM's arguments."""

    found: Mapping[str, Found] = field(default_factory=dict)

    def get(self, *names: str) -> Found | None:
        """Return the first of the arguments that a field gives."""
        return next((self.found[name] for name in names if name in self.found), None)


def fields(sources: Sources, program: str, source: str, more: Mapping[str, Found] | None = None) -> Fields:
    """Return the fields of a configuration; ``more``: those that another dialect spells in its own way, which stand above."""

    def get(name: str) -> Found | None:
        found = sources.get(*(f"{section}.{name}" for section in SECTIONS))
        return None if found is None or found.node.raw.casefold() in ("null", "none", "???") else resolved(found)

    out = {name: found for name in _SAME.split() if (found := get(name)) is not None}
    out |= {name: found for name, key in _RENAMED.items() if (found := get(key)) is not None}
    for name, key in _NOT.items():
        found = get(key)
        if found is not None and not found.flag():
            out[name] = made(found, value=True)
    for name in _FORMATS:
        found = get(name)
        if found is not None:
            out[name] = made(found, _DTYPES.get(short(found), short(found)))
    _special(out, get)
    out |= more or {}
    if "num_query_groups" in out:
        out["group_query_attention"] = made(out["num_query_groups"], value=True)
    _settled(out)
    return Fields(sources.main, program, {name: name for name in out}, source, found=out)


def _special(out: dict[str, Found], get: Callable[[str], Found | None]) -> None:
    """Add fields whose values have another form than the arguments'."""
    backend, function, window = get("attention_backend"), out.get("activation_func"), get("window_size")
    layout, sparse = get("pipeline_model_parallel_layout"), out.get("cpu_offloading_num_layers")
    if backend is not None:
        number = next((n for n in _listed(backend) if isinstance(n, int)), 0)
        out["attention_backend"] = made(backend, _BACKENDS.get(number, short(backend)))
    if function is not None:
        name = short(function)
        if name not in _FUNCTIONS:
            raise function.error("is no activation function that is known here", allowed=sorted(_FUNCTIONS))
        out["activation_func"] = made(function, _FUNCTIONS[name])
    if window is not None:
        listed = _listed(window)
        out["window_size"] = made(window, ",".join(str(part) for part in listed)) if listed else window
    if layout is not None:
        out["pipeline_model_parallel_layout"] = _layout(layout)
    switch = get("cpu_offloading")
    if sparse is not None and (switch is None or not switch.flag()):
        del out["cpu_offloading_num_layers"]
    for name in ("cuda_graph_scope", "cuda_graph_modules", "recompute_modules"):
        if name in out and isinstance(out[name].node.value, list):
            words = [str(part.get("_name_", "")) if isinstance(part, dict) else str(part) for part in out[name].value]
            out[name] = made(out[name], " ".join(words))


def _settled(out: dict[str, Found]) -> None:
    """Leave out what stands for nothing: empty lists, false where a word is meant."""
    for name in ("fp8_format", "fp4_format", "cuda_graph_scope", "cuda_graph_modules", "recompute_modules", "rampup_batch_size"):
        if name in out and out[name].node.value in (False, [], "", "none"):
            del out[name]
    shape = out.get("num_virtual_stages_per_pipeline_rank")
    if shape is not None and shape.node.value == 1:
        del out["num_virtual_stages_per_pipeline_rank"]


def _layout(found: Found) -> Found:
    """Return a layout in letters, from lists of the names of layers."""
    plain = found.value
    if isinstance(plain, dict):
        plain = plain.get("layout", next(iter(_listed(found)), None))
    if isinstance(plain, str):
        return made(found, plain)
    if not isinstance(plain, list) or not all(isinstance(part, list) for part in plain):
        raise found.error("is not a layout", allowed="Et*3|t*4L, or a list of lists of embedding, decoder, mtp, loss")
    names = [[str(name.get("_name_", "")) if isinstance(name, dict) else str(name) for name in part] for part in plain]
    if strange := sorted({name for part in names for name in part} - set(_LETTERS)):
        raise found.error(f"has a layer {strange[0]!r}", allowed=sorted(_LETTERS))
    return made(found, "|".join("".join(_LETTERS[name] for name in part) for part in names))


def _listed(found: Found) -> list[object]:
    """Return a list, or the arguments of what a mapping makes (``_args_``)."""
    plain = found.value
    plain = plain.get("_args_") if isinstance(plain, dict) else plain
    return plain if isinstance(plain, list) else []


def made(found: Found, word: str = "", *, value: bool | float | None = None) -> Found:
    """Return a found value with another content at the same place."""
    found.document.mark(found.node, deep=True)
    node = found.node
    new: str | bool | float = word if value is None else value
    return replace(found, node=Node(new, node.line, node.start, node.end, raw=str(new), parent=node.parent))


def short(found: Found) -> str:
    """Return the last part of what a value names: a function, a format, a class (``_target_: torch.bfloat16``)."""
    plain = found.value
    if isinstance(plain, dict):
        plain = plain.get("_name_") or plain.get("_target_") or ""
    return str(plain).rpartition(".")[2].casefold()


def resolved(found: Found) -> Found:
    """Follow OmegaConf's ``${a.b}`` and ``${.b}`` to the value that they name; at most a few steps."""
    for _ in range(4):
        reference = _REFERENCE.fullmatch(found.node.raw.strip()) if found.node.scalar else None
        if reference is None:
            return found
        up, name = len(reference[1]), reference[2]
        base = found.key.split(".")[:-up] if up else []
        target = found.document.get(".".join([*base, name]))
        if target is None:
            return found
        found = replace(target, key=found.key)
    return found
