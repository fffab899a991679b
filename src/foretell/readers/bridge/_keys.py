"""What the fields of Megatron-Bridge's and NeMo's configurations do, beside those that are used.

Fields that Megatron-LM has as arguments are in its tables; here are the others: NVIDIA/Megatron-LM core_v0.19.0
``megatron/core``, NVIDIA-NeMo/Megatron-Bridge ``src/megatron/bridge/training/config.py`` and ``models/*_provider.py`` (2026-08),
NVIDIA/NeMo v2.4 ``examples/nlp/language_modeling/conf``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from foretell.readers.megatron._keys import OFF, TRAINING
from foretell.readers.megatron._names import NEUTRAL, USED

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Builder, Effect, Sources

__all__ = ["account", "changed"]

_MADE: Final = frozenset(("_target_", "_call_", "_args_", "_partial_", "_name_", "_convert_", "_recursive_"))
"""Keys of what a mapping makes (hydra's ``instantiate``, Megatron-Bridge ``utils/instantiate_utils.py``)."""
_HEADS: Final = frozenset((
    "logger", "checkpoint", "scheduler", "rng", "profiling", "ft", "straggler", "nvrx_straggler", "rerun_state_machine",
    "inprocess_restart", "tensor_inspect", "tokenizer", "validation", "env_vars", "optimizer_config_override_provider",
    "exp_manager", "log", "resume", "name", "s3_checkpointing", "hydra", "defaults", "seed", "trainer", "data", "dataset", "run",
    "peft", "model_transform", "launcher", "results_dir", "job_name", "factory",
))  # fmt: skip
"""Sections that change neither memory nor speed, but for what stands in the tables below."""
_EMPTY: Final = frozenset(("model", "train", "optimizer", "ddp", "dist", "comm_overlap", "mixed_precision"))
"""Sections that say nothing where they are empty."""
_BELOW: Final = frozenset((
    "model.optim", "model.data", "model.peft", "model.tokenizer", "model.nsys_profile", "model.generation_config",
    "model.exp_manager", "model.megatron_timer_kwargs", "optim.lr_scheduler", "model.inference",
    "model.transformer_layer_spec", "model.hybrid_stack_spec", "model.mamba_stack_spec", "model.init_method",
    "model.output_layer_init_method", "model.embedding_init_method", "model.timers", "optimizer.timers",
    "model.hf_config", "model.pre_wrap_hooks", "model.post_wrap_hooks", "model.forward_step_fn", "model.data_step_fn",
    "model.gc_interval", "model.inference_config",
))  # fmt: skip
_MORE: Final[tuple[tuple[Effect, str, str], ...]] = (
    ("both", "other formats of attention or of weights",
     "fp8_dot_product_attention fp8_multi_head_attention use_kitchen quant_recipe restore_modelopt_state logit_dtype"),
    ("memory", "another part of a layer's tensors is stored, or stored smaller",
     ("activation_func_fp8_input_store disable_parameter_transpose_cache memory_efficient_layer_norm "
      "cpu_offloading_double_buffering")),
    ("both", "only some micro-batches or layers are recomputed",
     ("num_microbatches_with_partial_activation_checkpoints num_micro_batches_with_partial_activation_checkpoints "
      "activations_checkpoint_layers_per_pipeline")),
    ("speed", "how tensor-parallel exchanges overlap",
     "tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_overlap_disable_qkv tp_comm_overlap_disable_fc1 ub_tp_comm_overlap_cfg"),
    ("both", "layers of another make than Megatron-Core's usual ones",
     ("use_transformer_engine_full_layer_spec heterogeneous_block_specs use_arbitrary_attention_mask transformer_block_type "
      "headscale reduce_amax_scope")),
    ("speed", "fuses or groups products in another way", "dense_grouped_gemm fused_single_qkv_rope"),
    ("speed", "how gradients and weights are grouped and sent", "bucket_size num_buckets grad_allreduce_chunk_size_mb sharp"),
    ("memory", "gradients or weights lie in other buffers",
     "pad_buckets_for_high_nccl_busbw reduce_scatter_with_fp32_accumulation nccl_ub megatron_fsdp_cuda_graph_mode"),
    ("speed", "samples are packed",
     ("packed_sequence packed_sequence_specs packed_sequence_size enable_in_batch_packing pack_sequences_in_batch "
      "offline_packing_specs enable_offline_packing")),
    ("less", "a part of the model does not train",
     "freeze_language_model freeze_vision_model freeze_vision_projection freeze_audio_model freeze_modules"),
    ("both", "changes of a layer that its code makes", "mcore_customization_config"),
    ("both", "prediction layers in another format", "keep_mtp_spec_in_bf16"),
    ("more", "a second model, the teacher, runs beside the one that trains", "kd_config teacher"),
    ("memory", "FSDP of NeMo 1 shards in its own way", "fsdp fsdp_sharding_strategy fsdp_grad_reduce_dtype"),
)  # fmt: skip
_NAMES: Final = """
    _cpu_offloading_context _pg_collection _train_iters_from_num_epochs activation activations_checkpoint_recurrent
    adaptive_muon_beta2 adaptive_muon_eps adaptive_muon_moment2_method add_bias_linear add_lm_head add_pooler
    align_grad_reduce align_param_gather answer_only_loss apex_transformer_log_level apply_embedding_scaling
    apply_residual_connection_post_norm apply_rope_fusion attention_type autocast_dtype autocast_enabled average_in_collective
    barrier_with_L1_time barrier_with_level_1_timing batch_p2p_comm batch_p2p_sync bert_binary_head beta_fast beta_slow bias
    bias_activation_fusion bias_dropout_add_fusion bias_dropout_fusion builder check_for_nan_in_grad
    check_optimizer_step_success ckpt_async_save ckpt_load_optimizer ckpt_load_strictness ckpt_parallel_load
    ckpt_parallel_save ckpt_parallel_save_optim ckpt_save_optimizer clone_scatter_output_in_embedding cpu_offloading
    cpu_offloading_activations cpu_offloading_weights cuda_graph_retain_backward_graph cuda_graph_use_single_mempool
    data_parallel_size deallocate_pipeline_outputs decoupled_weight_decay dist_ckpt_assume_constant_structure
    dist_ckpt_load_on_device dist_ckpt_load_strictness dist_ckpt_parallel_dist_opt dist_ckpt_parallel_load
    dist_ckpt_parallel_save dist_ckpt_parallel_save_within_dp dist_ckpt_torch_dist_multiproc do_layer_norm_weight_decay
    drop_layers dsa_indexer_rotate_activation dsa_indexer_scoring_relu embedding_dropout enable_autocast
    enable_megatron_core_experimental enable_megatron_timers eval_context_parallel_size
    experimental_attention_variant_loss_scale_func expert_gtp_weight_remat_size external_gpu_device_mapping
    extra_checkpoint_metadata ffn_dropout finalize_model_grads_func find_unused_parameters finetune_lr
    flight_recorder_dump_on_timeout flight_recorder_extra_dump_on_exec flight_recorder_include_only_active fp32 fp4_param
    fp8_e4m3 fp8_hybrid fp8_param fp8_wgrad fsdp_all_gather_in_start_param_sync fsdp_sharded_checkpoint fsdp_use_orig_params
    gc_interval get_attention_mask_from_fusion grad_div_ar_fusion grad_norm_skip_threshold grad_reduce_in_fp32 grad_scale_func
    grad_sync_func gradient_accumulation_fusion gradient_as_bucket_view gradient_reduce_div_fusion gtp_weight_remat_size
    hetereogenous_dist_checkpoint hf_model_id hf_model_revision hysteresis inference_sampling_seed init_method_std
    init_model_parallel kind language_model_type layernorm_epsilon layernorm_zero_centered_gamma lazy_init lr_mult
    mamba_chunk_size mamba_ssm_ngroups manual_gc_eval masked_softmax_fusion mcore_bert mcore_gpt mcore_t5
    megatron_fsdp_use_decoupled_grad megatron_legacy megatron_log_level microbatch_group_size_per_vp_stage moe_grad_scale_func
    moe_per_layer_logging moe_router_topk_limited_devices mtp_enabled mtp_grad_scale_func muon_split_qkv name
    native_amp_growth_interval native_amp_init_scale no_sync_func no_weight_decay_cond normalize_attention_scores nsys_profile
    num_epochs onnx_safe optimizer original_max_position_embeddings overlap_p2p_comm overlap_p2p_comm_warmup_flush
    parallel_output param_name_patterns_for_fp32_local_accumulation param_sync_func params_dtype perform_initialization
    persist_layer_norm pin_cpu_grads pin_cpu_params pipeline_dtype post_process pre_process precision progress_interval
    reduce_amax replace_progress_bar reset_lr reset_lr_steps restore_from_ckpt restore_from_path resume_from_checkpoint
    rope_scaling rotary_percentage save_ckpt_format save_nemo_on_validation_end scale_lr_cond scale_positional_embedding
    scatter_embedding_sequence_parallel seed seq_len_interpolation_factor seq_length_dec setup_optimizers
    share_decoder_tokens_head_embeddings share_embeddings_and_output_weights share_input_output_embedding
    share_token_embeddings should_pad_vocab skip_sync_grad_norm_across_mp skip_train soap_shampoo_beta soap_use_kl_shampoo
    softmax_scale store_param_remainders sync_batch_comm tokens_head_bias tp_comm_bulk_dgrad tp_comm_bulk_wgrad
    tp_comm_overlap_ag tp_comm_overlap_rs tp_comm_split_ag tp_comm_split_rs tp_only_amax_red transformer_engine
    use_cpu_initialization use_decentralized_pg use_emha use_gloo_process_groups use_hf_vision_model
    use_inference_optimized_layers use_layer_wise_distributed_optimizer use_mamba_mem_eff_path use_scaled_init_method
    use_te_rng_tracker user_comm_overlap_cfg validation_param_sync_overlap variable_seq_lengths yarn_mscale
    yarn_mscale_all_dim yarn_rotary_scaling_factor
"""
_HARMLESS: Final = frozenset(_NAMES.split())
"""Fields that change neither memory nor speed, or that are read in another way."""
_TRUE: Final[dict[str, tuple[Effect, str]]] = {
    **dict.fromkeys(("tp_comm_bulk_dgrad", "tp_comm_bulk_wgrad", "tp_comm_overlap_ag", "tp_comm_overlap_rs", "tp_comm_split_ag",
                     "tp_comm_split_rs"), ("speed", "a part of the tensor-parallel exchanges does not overlap")),
    "fp8_wgrad": ("speed", "weight gradients stay in 16 bits"),
    "align_grad_reduce": ("speed", "stages exchange gradients at different times"),
    "gradient_reduce_div_fusion": ("speed", "gradients are divided in a pass of their own"),
    "use_mamba_mem_eff_path": ("more-memory", "Mamba keeps what its kernel would have made again"),
    "store_param_remainders": ("memory", "masters are stored whole"),
    "bias_activation_fusion": ("more", "bias and activation keep a tensor each"),
    "bias_dropout_fusion": ("more", "bias, dropout and residual run one after the other"),
    "bias_dropout_add_fusion": ("more", "bias, dropout and residual run one after the other"),
    "apply_rope_fusion": ("more", "rotary positions make copies of queries and keys"),
}  # fmt: skip
"""Fields that are usually true: what false means."""
_IDLE: Final[dict[str, tuple[Any, ...]]] = OFF | {
    "grad_allreduce_chunk_size_mb": (125,), "transformer_block_type": ("pre_ln",), "fsdp_sharding_strategy": ("full",),
    "fsdp_grad_reduce_dtype": (32, "fp32"), "reduce_amax_scope": (), "packed_sequence_size": (-1,), "seq_length_dec": (128,),
    "num_layers_at_start_in_bf16": (0, 1), "num_layers_at_end_in_bf16": (0, 1), "min_offloaded_tensor_size": (1024 * 1024,),
    "gdp_num_chunk_states_to_recompute": (2,), "dsa_indexer_topk_freq": (1,), "dsa_indexer_skip_topk_offset": (0,),
    "moe_paged_stash_buffer_size_factor_cpu": (0.0,), "moe_paged_stash_buffer_size_factor_cuda": (1.1,),
}  # fmt: skip
_TABLE: Final = {name: (effect, why) for effect, why, names in (*TRAINING, *_MORE) for name in names.split()}


def account(b: Builder, document: Document) -> None:
    """Account for what nobody looked at in a document."""
    neutral, unmodelled, idle = set[str](), dict[str, tuple["Effect", str]](), dict[str, tuple[Any, ...]]()
    for found in document.untouched():
        key = re.sub(r"\[\d+\]", "[]", found.key)
        parts = [part.lstrip("+~") for part in key.replace("[]", "").split(".")]
        name = parts[-1]
        if name in _TABLE and not _MADE & set(parts):
            unmodelled[key], idle[key] = _TABLE[name], _IDLE.get(name, ())
        elif any(part in _TABLE for part in parts[1:]) and not _MADE & set(parts):  # inside of what is not modelled
            unmodelled[key] = next(_TABLE[part] for part in parts[1:] if part in _TABLE)
        elif _known(parts) or (key in _EMPTY and found.node.value == {}):
            neutral.add(key)
    b.rest(document, frozenset(neutral), unmodelled, off=idle)


def _known(parts: list[str]) -> bool:
    """Whether a key changes neither memory nor speed."""
    if _MADE & set(parts) or parts[0] in _HEADS or any(".".join(parts[:n]) in _BELOW for n in (2, 3)):
        return True
    return any(part in NEUTRAL or part in USED or part in _HARMLESS for part in parts[-2:])


_PLACES: Final = ("comm_overlap", "mixed_precision", "model", "model.transformer", "model.config", "ddp", "optimizer", "dist")


def changed(b: Builder, sources: Sources) -> None:
    """Name fields that are false where they usually are true."""
    for name, about in _TRUE.items():
        found = sources.get(*(f"{place}.{name}" for place in _PLACES))
        if found is None or not isinstance(found.node.value, bool) or found.flag():
            continue
        if (name == "bias_activation_fusion" and _plain(sources)) or (name == "apply_rope_fusion" and not _rotary(sources)):
            continue
        b.doubt(found, *about)
    switch, weights = sources.get("model.cpu_offloading"), sources.get("model.cpu_offloading_weights")
    if weights is not None and weights.flag() and switch is not None and switch.flag():
        b.doubt(weights, "less", "weights wait in host memory, which is not counted")


def _plain(sources: Sources) -> bool:
    """Whether there is nothing to fuse: neither a gate nor a bias."""
    places = ("model", "model.transformer", "model.config")
    gated, bias = (sources.get(*(f"{place}.{name}" for place in places)) for name in ("gated_linear_unit", "add_bias_linear"))
    return (gated is None or not gated.flag()) and bias is not None and not bias.flag()


def _rotary(sources: Sources) -> bool:
    found = sources.get(*(f"{place}.position_embedding_type" for place in ("model", "model.transformer", "model.config")))
    return found is not None and found.text() == "rope"
