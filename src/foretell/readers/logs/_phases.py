"""What functions of PyTorch, transformers, DeepSpeed, Megatron, vLLM and SGLang say of the phase that a run was in.

The names are those of the projects' own sources.  A frame is matched as ``path:function code``.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["DOING", "PHASES"]


def _any(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(names))


PHASES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "graphs",
        _any(
            r":capture_model\b",
            r":capture_one_batch_size\b",
            r":init_(?:cuda|device)_graphs\b",
            r"cuda_graph_runner",
            r":capture_graph",
            r"cudagraph_utils",
        ),
    ),
    (
        "profile",
        _any(
            r":profile_run\b",
            r":_dummy_(?:run|sampler_run|pooler_run)\b",
            r":determine_available_memory\b",
            r":determine_num_available_blocks\b",
            r":profile_num_available_blocks\b",
            r":compile_or_warm_up_model\b",
        ),
    ),
    (
        "kv",
        _any(
            r":_?initialize_kv_cache",
            r":_allocate_kv_cache",
            r"cache_engine\.py",
            r":init_memory_pool\b",
            r"mem_cache/memory_pool\.py",
            r":_create_buffers\b",
        ),
    ),
    ("engine-load", _any(r"(?:vllm|sglang)\S{0,200}:(?:load_model|load_weights|process_weights_after_loading|create_weights)\b")),
    ("serving", _any(r"(?:vllm|sglang)\S{0,200}:(?:execute_model|forward_batch_generation|run_batch|sample_tokens)\b")),
    (
        "optimizer",
        _any(
            r"torch/optim/",
            r"_multi_tensor_",
            r"optimizer\.step",
            r":optimizer_step\b",
            r"bitsandbytes/optim",
            r"apex/optimizers",
            r"ops/adam/",
            r":_take_model_step\b",
            r":initialize_optimizer_states\b",
            r":clip_grad_norm_?\b",
            r":unscale_\b",
            r"/optimizer\.py:step\b",
            r"distrib_optimizer\.py",
            r"stage3\.py:step\b",
            r"stage_1_and_2\.py:step\b",
        ),
    ),
    (
        "checkpoint_save",
        _any(
            r":_?(?:get_)?(?:model_|full_|gather_|optim_|optimizer_|full_optim_)?state_dict\b",
            r":_?save_(?:checkpoint|model|pretrained|fsdp_model|16bit_model|to_state_dict|optimizer_and_scheduler)\b",
            r":_?maybe_log_save",
            r":_zero3_consolidated",
            r":_?consolidate",
            r":full_tensor\b",
        ),
    ),
    (
        "evaluation",
        _any(
            r":evaluation_loop\b",
            r":prediction_(?:step|loop)\b",
            r":evaluate\b",
            r":_?maybe_log_save_evaluate\b",
            r":validat(?:e|ion_step)\b",
            r":nested_(?:concat|gather)\b",
            r":gather_for_metrics\b",
            r":pad_across_processes\b",
            r":eval_step\b",
        ),
    ),
    ("generation", _any(r"transformers/generation/", r":generate\b", r":_generate_and_score")),
    (
        "backward",
        _any(
            r"torch/autograd/__init__\.py",
            r":_engine_run_backward\b",
            r":backward\b",
            r"\.backward\(",
            r":backward_step\b",
            r":_?post_backward",
            r":reduce_gradients\b",
        ),
    ),
    (
        "loss",
        _any(
            r"cross_entropy",
            r"ForCausalLMLoss",
            r"log_softmax",
            r"logsumexp",
            r":nll_loss\b",
            r":kl_div\b",
            r":loss_fn\b",
            r":loss_function\b",
            r":get_batch_logps\b",
            r":_get_(?:per_token|batch)_logps",
            r"logits\.float\(",
            r"logits = .{0,60}float",
            r"self\.lm_head\(",
            r"self\.output\(",
            r"masked_ce",
            r"linear_ce",
        ),
    ),
    (
        "load",
        _any(
            r":from_pretrained\b",
            r":_load_",
            r":load_(?:state_dict|checkpoint|model|pretrained_model|weights)\b",
            r":set_module_tensor_to_device\b",
            r":dispatch_model\b",
            r":fully_shard\b",
            r":_init_param_handle",
            r"partition_parameters\.py:(?!.{0,40}all_gather)",
            r":prepare_model\b",
            r":_materialize",
            r":get_peft_model\b",
            r":init_weights\b",
            r":_apply\b",
            r":convert\b",
            r":cuda\b",
            r"model\.to\(",
        ),
    ),
    ("forward", _any(r":forward\b", r"_call_impl\b", r":forward_step\b", r":_compute_loss\b", r":training_step\b")),
)
"""Phases in the order in which they are asked for: the first that any frame belongs to."""

_TRAINING: Final = frozenset(("forward", "backward", "loss", "evaluation", "generation"))

DOING: Final[tuple[tuple[re.Pattern[str], frozenset[str], str, str], ...]] = (
    (
        _any(r"_foreach_", r"_multi_tensor_"),
        frozenset(("optimizer",)),
        "temporaries of the optimizer's foreach step",
        "optimizer_workspace",
    ),
    (
        _any(r":_init_group\b", r"initialize_optimizer_states", r":_?init_states?\b", r"zeros_like\("),
        frozenset(("optimizer",)),
        "making the optimizer's states, which the first step does",
        "optimizer_state",
    ),
    (_any(r"clip_grad", r"get_total_norm", r"_grad_norm"), frozenset(("optimizer",)), "clipping gradients", "temporaries"),
    (
        _any(r"nested_concat", r"pad_across_processes", r"nested_gather", r"gather_for_metrics"),
        frozenset(("evaluation",)),
        "collecting the predictions of the whole evaluation",
        "logits_and_loss",
    ),
    (
        _any(
            r":all_gather",
            r"_unshard",
            r":unshard\b",
            r"fetch_sub_module",
            r"all_gather_params",
            r"_alloc_storage",
            r"_all_gather_base",
        ),
        frozenset(),
        "gathering weights from their shards",
        "gathered_weights",
    ),
    (
        _any(
            r"reduce_scatter",
            r"foreach_reduce",
            r"allreduce_bucket",
            r"reduce_independent_p_g",
            r"average_tensor",
            r"flatten_dense_tensors",
            r"_rebuild_buckets",
            r"reduce_ipg",
        ),
        frozenset(),
        "reducing gradients",
        "communication_buffers",
    ),
    (_any(r"logits\.float\(", r"logits = .{0,60}float"), frozenset(), "copying the logits to fp32", "logits_and_loss"),
    (
        _any(
            r"cross_entropy",
            r"ForCausalLMLoss",
            r"log_softmax",
            r"logsumexp",
            r"nll_loss",
            r"kl_div",
            r"_logps",
            r"masked_ce",
            r"linear_ce",
        ),
        frozenset(),
        "the loss, over tokens x vocabulary",
        "logits_and_loss",
    ),
    (
        _any(r"self\.lm_head\(", r"self\.output\(", r":compute_logits\b", r":_get_logits\b"),
        frozenset(),
        "the logits",
        "logits_and_loss",
    ),
    (
        _any(r"sampler", r":_?apply_top_k_top_p", r"topk_topp"),
        frozenset(("profile", "serving", "graphs")),
        "sampling: sorting the probabilities of all sequences",
        "activation",
    ),
    (
        _any(
            r"eager_attention",
            r"attn_weights",
            r"baddbmm",
            r"\bsoftmax",
            r"attention_scores",
            r"core_attention",
            r"torch\.matmul\(q",
        ),
        frozenset(),
        "attention scores, which grow with the square of the sequence",
        "activations",
    ),
    (_any(r"dequantize", r"[Mm]at[Mm]ul_?4[Bb]it", r"MatMul8bitLt"), frozenset(), "unpacking quantised weights", "temporaries"),
    (_any(r"scaled_dot_product", r"flash_attn", r"attention", r"attn"), frozenset(), "attention", "activations"),
    (_any(r"fused_moe", r"experts", r"grouped_gemm", r"/moe"), frozenset(), "the experts", "activations"),
    (
        _any(r"\bmlp\b", r"MLP", r"act_fn", r"(?:gate|up|down)_proj", r"swiglu", r"silu", r"gelu"),
        frozenset(),
        "a feed-forward layer",
        "activations",
    ),
    (_any(r"vision", r"visual", r"image_", r"/vit"), frozenset(), "the image encoder", "activations"),
    (_any(r"peft/tuners", r"lora_[AB]"), _TRAINING, "an adapter", "activations"),
    (_any(r"[Nn]orm\b", r"rms_norm", r"layer_norm"), _TRAINING, "a norm", "activations"),
    (_any(r"utils/checkpoint\.py"), frozenset(("backward",)), "computing a layer again (recomputation)", "activations"),
    (_any(r"embed"), _TRAINING, "the embedding", "activations"),
)
"""(pattern, phases that it counts in (none: all), words, term of a memory forecast), asked frame by frame from the innermost."""
