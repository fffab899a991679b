"""Tables of Megatron-LM's arguments: what changes neither memory nor speed, and what does and is not modelled.

All arguments of NVIDIA/Megatron-LM core_v0.6.0 to core_v0.19.0 and main of 2026-08 (``megatron/training/arguments.py`` with the
fields of Megatron-Core's configurations, ``megatron/post_training``, ``megatron/elastification``, ``megatron/inference``,
``examples/multimodal``, ``examples/mimo``), by their name in underscores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foretell.readers.megatron._names import NEUTRAL, USED

if TYPE_CHECKING:
    from foretell.readers._reading import Effect
    from foretell.readers.megatron._args import Args

__all__ = ["OFF", "TRAINING", "off", "serving", "training"]

Table = tuple[frozenset[str], dict[str, tuple["Effect", str]]]
"""(neutral keys, unmodelled keys), as a document spells them."""

# fmt: off
TRAINING: Final[tuple[tuple[Effect, str, str], ...]] = (
    ("both", "weights are sharded further over tensor-parallel ranks and gathered where they are used (GTP)",
     """
     expert_tensor_parallel_num_weight_shards gtp_expert_remat_nccl_ub gtp_remat_nccl_ub gtp_remat_opt_in_modules
     gtp_remat_reduce_scatter_with_fp32_accumulation tensor_parallel_num_weight_shards
     """),
    ("both", "samples of a batch are spread over context-parallel ranks by their length",
     "hybrid_context_parallel max_seqlen_per_dp_cp_rank"),
    ("speed", "how context-parallel groups exchange", "hierarchical_context_parallel_sizes"),
    ("speed", "what of tensor-parallel exchanges overlaps with products",
     """
     decoder_tp_comm_overlap disable_async_tensor_model_parallel_allreduce disable_tp_comm_bulk_dgrad
     disable_tp_comm_bulk_wgrad disable_tp_comm_overlap_ag disable_tp_comm_overlap_rs disable_tp_comm_split_ag
     disable_tp_comm_split_rs no_async_tensor_model_parallel_allreduce no_tp_comm_bulk_dgrad no_tp_comm_bulk_wgrad
     no_tp_comm_overlap_ag no_tp_comm_overlap_rs no_tp_comm_split_ag no_tp_comm_split_rs tp_comm_overlap_cfg
     tp_comm_overlap_rs_dgrad
     """),
    ("both", "exchanges of one micro-batch's experts run beside another's products",
     "ep_overlap_early_attn_memory_release overlap_dispatch_backward_with_experts_wgrad overlap_moe_expert_parallel_comm"),
    ("both", "weight gradients are made later than the forecast takes",
     "defer_embedding_wgrad_compute delay_wgrad_compute wgrad_deferral_limit"),
    ("speed", "how pipeline stages exchange",
     """
     no_overlap_p2p_communication no_scatter_gather_tensors_in_pipeline overlap_p2p_communication_warmup_flush
     pipeline_model_parallel_comm_backend use_ring_exchange_p2p
     """),
    ("both", "more or fewer chunks of the pipeline are in flight", "microbatch_group_size_per_virtual_pipeline_stage"),
    ("both", "how prediction layers are placed, shared or trained",
     "freeze_base_for_mtp mtp_detach_heads mtp_hsm mtp_standalone mtp_use_repeated_layer qad_train_target"),
    ("both", "embedding or encoder have pipeline stages, or tensor parallelism, of their own",
     """
     encoder_pipeline_model_parallel_size encoder_tensor_model_parallel_size pipeline_model_parallel_split_rank
     standalone_embedding_stage
     """),
    ("speed", "another kernel of attention", "flash_attention_version kitchen_attention_backend use_kitchen_attention"),
    ("both", "the residual stream, or the logits, have another format",
     "fp16_lm_cross_entropy fp32_residual_connection output_logit_dtype"),
    ("speed", "attention scores are watched and clipped", "qk_clip"),
    ("both", "sizes of a sparse-attention indexer",
     """
     dsa_indexer_head_dim dsa_indexer_loss_coeff dsa_indexer_n_heads dsa_indexer_skip_topk_offset dsa_indexer_topk
     dsa_indexer_topk_freq dsa_indexer_use_sparse_loss dsa_kernel_backend
     """),
    ("speed", "kernels that are slower, for exact results",
     "batch_invariant_mode deterministic_mode disable_bf16_reduced_precision_matmul"),
    ("both", "fuses operators that the forecast takes apart",
     """
     fused_residual_rmsnorm mla_down_proj_fusion moe_permute_fusion use_fused_weighted_squared_relu use_te_activation_func
     use_transformer_engine_op_fuser
     """),
    ("more", "operators run one after the other instead of fused", "disable_jit_fuser no_bias_dropout_fusion"),
    ("memory", "recomputed inputs are divided over tensor-parallel ranks",
     "distribute_checkpointed_activations distribute_saved_activations"),
    ("speed", "some layers or products stay in 16 bits",
     """
     disable_fp8_wgrad first_last_layers_bf16 fp8_output_proj no_fp8_wgrad num_layers_at_end_in_bf16
     num_layers_at_start_in_bf16
     """),
    ("both", "which products run in which format is in a file, or in code",
     """
     fp4_quantizer_factory fp4_recipe fp8_quantizer_factory kitchen_config_file kitchen_recipe_number te_precision_config_file
     """),
    ("memory", "weights are kept and gathered in 8 or 4 bits",
     """
     fp4_param_gather fp8_param_gather keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp
     reuse_grad_buf_for_mxfp8_param_ag
     """),
    ("speed", "streams and groups of communication",
     """
     create_all_gather_group high_priority_a2a_comm_stream high_priority_stream_groups nccl_communicator_config_path
     sharp_enabled_group symmetric_ar_type use_sharp use_tp_pp_dp_mapping
     """),
    ("speed", "how experts' products and exchanges are done",
     """
     moe_deepep_num_sms moe_flex_dispatcher_num_sms moe_hybridep_num_blocks_permute moe_hybridep_num_blocks_unpermute
     moe_hybridep_num_sms moe_hybridep_num_sms_preprocessing moe_router_fusion moe_shared_expert_overlap
     moe_use_legacy_grouped_gemm use_grouped_gemm_for_dense_mlp use_grouped_gemm_for_shared_expert
     """),
    ("both", "routed tokens are padded, kept or sent in another way",
     """
     moe_apply_probs_on_input moe_combine_bwd_dtype moe_dispatch_fwd_dtype moe_enable_routing_replay
     moe_expert_rank_capacity_factor moe_extended_tp moe_hybridep_pad_uneven_dispatch_inputs moe_ncclep_static_shape
     moe_ncclep_zero_copy moe_pad_expert_input_to_capacity moe_paged_stash moe_paged_stash_buffer_size_factor_cpu
     moe_paged_stash_buffer_size_factor_cuda moe_paged_stash_page_size moe_permute_fusion_into_hybridep
     moe_router_padding_for_fp8 moe_router_padding_for_quantization
     """),
    ("memory", "how experts' weights are stored", "moe_single_grouped_bias moe_single_grouped_weight moe_use_grouped_tensor"),
    ("speed", "the router sends more tokens to some experts", "moe_router_force_biased"),
    ("more", "hyper-connections keep several residual streams",
     "enable_mhc_connections mhc_num_residual_streams mhc_recompute_layer_num"),
    ("more-memory", "Mamba keeps what its kernel would have made again", "disable_mamba_mem_eff_path"),
    ("both", "the Mamba or delta-product layers run in another way",
     "gdp_cutedsl_kernel gdp_num_chunk_states_to_recompute gdp_num_householder mamba_training_ssm_states_dtype"),
    ("memory", "MLPs run in parts", "mlp_chunks_for_training"),
    ("less", "activations of some modules wait in host memory",
     """
     activation_offload_fraction delay_offload_until_cuda_graph delta_offload_bytes_across_pp_ranks
     fine_grained_activation_offloading fine_grained_offloading_max_inflight_offloads min_offloaded_tensor_size
     offload_modules
     """),
    ("both", "the allocator's cache is emptied in every step", "empty_unused_memory_level"),
    ("speed", "how states travel between host and GPU",
     "no_pin_cpu_grads no_pin_cpu_params overlap_cpu_optimizer_d2h_h2d use_torch_optimizer_for_cpu_offload"),
    ("both", "the optimizer's step is captured", "optimizer_cuda_graph"),
    ("speed", "an unfused, or another, norm kernel", "no_persist_layer_norm"),
    ("more", "samples are drawn in the same processes between the steps of training",
     """
     perform_rl_step rl_inference_expert_model_parallel_size rl_inference_expert_tensor_model_parallel_size
     rl_inference_model_unified_memory_level rl_inference_pipeline_model_parallel_size rl_inference_tensor_model_parallel_size
     rl_kv_cache_management_mode rl_offload_inference_model_weights_when_idle rl_offload_kv_cache_during_training
     rl_offload_optimizer_during_inference rl_persist_cuda_graphs rl_remove_kv_cache_during_training rl_reset_cuda_graphs
     """),
    ("speed", "samples are packed for training", "rl_use_sequence_packing use_packed_sequence"),
    ("less", "a part of the model does not train",
     """
     freeze_LM freeze_ViT freeze_all_layers freeze_lm freeze_model freeze_projection freeze_router freeze_sound_model
     freeze_sound_projection freeze_vision_projection freeze_vit
     """),
    ("speed", "how gradients and weights are grouped and sent",
     """
     ddp_bucket_size ddp_num_buckets delay_param_gather disable_align_grad_reduce disable_symmetric_registration
     megatron_fsdp_grad_comm_dtype no_align_grad_reduce no_align_param_gather no_delay_grad_reduce
     no_gradient_reduce_div_fusion overlap_param_gather_with_optimizer_step
     """),
    ("memory", "gradients or weights lie in other buffers",
     """
     ddp_pad_buckets_for_high_nccl_busbw ddp_param_name_patterns_for_fp32_local_accumulation
     ddp_reduce_scatter_with_fp32_accumulation enable_full_sharding_in_hsdp fsdp_db_use_persist_buf_on_alloc_fail
     fsdp_double_buffer fsdp_manual_registration megatron_fsdp_enable_fine_grained_param_gather
     megatron_fsdp_max_pool_double_buffer megatron_fsdp_version no_contiguous_buffers_in_local_ddp
     no_use_layer_wise_param_layout outer_dp_sharding_strategy suggested_communication_unit_size
     torch_fsdp2_no_reshard_after_forward use_nccl_ub
     """),
    ("both", "the model's own, older modules instead of Megatron-Core's", "DDP_impl use_legacy_models"),
    ("speed", "attention does not cross documents", "dataloader_inter_document_masking"),
    ("more", "logits of another model are written or read beside training",
     "logits_load_dir logits_save_dir logits_save_top_k logits_save_top_p"),
    ("more", "a second model, the teacher, runs beside the one that trains",
     "distill_only distillation export_kd_teacher_load"),
    ("both", "weights are quantised for, or while, training (ModelOpt)",
     "export_force_local_attention export_legacy_megatron export_quant_cfg export_real_quant_cfg modelopt_enabled"),
    ("both", "a router chooses sub-networks of many widths (Flextron)",
     "add_skipping enable_router flex_hetero_ffn flex_hetero_mamba flex_hetero_moe_expert flextron slice soft_mask"),
    ("both", "how encoders that run beside are laid out and recomputed",
     """
     encoder_dp encoder_tp llm_cp llm_dp llm_ep llm_expt_tp llm_pp llm_tp recompute_granularity_vision recompute_method_vision
     recompute_sound recompute_sound_projection recompute_vision recompute_vision_num_layers recompute_vision_projection
     """),
    ("more-memory", "validation runs other batches than training", "eval_micro_batch_size"),
)
"""Effect, why, arguments."""
_SERVING: Final[tuple[tuple[Effect, str, str], ...]] = (
    ("memory", "memory for keys and values is given in GB, or lies on the host: the forecast takes a share of the GPU",
     """
     inference_dynamic_batching_buffer_guaranteed_fraction inference_dynamic_batching_buffer_overflow_factor
     inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_mamba_memory_ratio
     inference_dynamic_batching_max_requests_override inference_dynamic_batching_max_tokens_override
     inference_dynamic_batching_paused_buffer_size_gb inference_dynamic_batching_prefix_caching_mamba_gb
     inference_dynamic_batching_unified_memory_level
     """),
    ("speed", "prompts that begin alike are found again",
     """
     inference_dynamic_batching_prefix_caching inference_dynamic_batching_prefix_caching_coordinator_policy
     inference_dynamic_batching_prefix_caching_eviction_policy inference_dynamic_batching_prefix_caching_routing_alpha
     """),
    ("speed", "how steps are scheduled, captured and sampled",
     """
     decode_only_cuda_graphs inference_batch_times_seqlen_threshold inference_cuda_graph_all_prefills
     inference_cuda_graph_max_tokens inference_cuda_graph_scope inference_dynamic_batching_async_sched_mode
     inference_dynamic_batching_chunk_size inference_dynamic_batching_cuda_graph_max_tokens
     inference_dynamic_batching_cuda_graph_mixed_prefill_count inference_dynamic_batching_cuda_graph_sizing_distribution
     inference_dynamic_batching_num_cuda_graphs inference_dynamic_batching_sampling_backend inference_shards
     """),
    ("speed", "which kernels and collectives run",
     """
     apply_query_key_layer_scaling attention_backend batch_invariant_backend batch_invariant_mode deterministic_mode
     flash_decode inference_disable_triton_nvls_kernels inference_fuse_tp_communication inference_grouped_gemm_backend
     inference_moe_disable_fused_quant_kernels inference_moe_token_dispatcher_type mlp_chunks_for_prefill
     moe_pad_experts_for_cuda_graph_inference nccl_all_reduce_for_prefill no_bias_gelu_fusion no_bias_swiglu_fusion
     no_masked_softmax_fusion no_rope_fusion symmetric_ar_type transformer_impl use_flash_attn use_flashinfer_fused_rope
     """),
    ("speed", "tokens are proposed ahead", "num_speculative_tokens"),
    ("memory", "formats of Mamba's states", "mamba_inference_conv_states_dtype mamba_inference_ssm_states_dtype"),
    ("memory", "keeps latents instead of keys and values", "cache_mla_latents"),
    ("both", "weights or keys and values are quantised (ModelOpt)",
     "export_kv_cache_quant export_quant_cfg export_real_quant_cfg fp8_param_gather"),
)
# fmt: on
OFF: Final[dict[str, tuple[Any, ...]]] = {
    "DDP_impl": ("local",),
    "activation_offload_fraction": (1.0,),
    "attention_backend": ("auto",),
    "delta_offload_bytes_across_pp_ranks": (0,),
    "dsa_indexer_skip_topk_offset": (0,),
    "dsa_indexer_topk_freq": (1,),
    "dsa_kernel_backend": ("none",),
    "empty_unused_memory_level": (0,),
    "encoder_pipeline_model_parallel_size": (0,),
    "encoder_tensor_model_parallel_size": (0,),
    "expert_tensor_parallel_num_weight_shards": (1,),
    "export_kv_cache_quant": ("none",),
    "export_quant_cfg": ("None", "none"),
    "export_real_quant_cfg": ("None", "none"),
    "fp4_recipe": ("nvfp4",),
    "gdp_num_chunk_states_to_recompute": (2,),
    "gdp_num_householder": (3,),
    "inference_batch_times_seqlen_threshold": (-1,),
    "inference_cuda_graph_scope": ("none",),
    "inference_dynamic_batching_async_sched_mode": ("legacy",),
    "inference_dynamic_batching_sampling_backend": ("torch",),
    "inference_dynamic_batching_unified_memory_level": (0,),
    "kitchen_attention_backend": ("sdpa",),
    "mamba_inference_conv_states_dtype": ("bf16",),
    "mamba_inference_ssm_states_dtype": ("bf16",),
    "megatron_fsdp_grad_comm_dtype": ("auto",),
    "megatron_fsdp_version": (1,),
    "mhc_num_residual_streams": (4,),
    "min_offloaded_tensor_size": (1048576,),
    "mlp_chunks_for_training": (1,),
    "moe_combine_bwd_dtype": ("bf16",),
    "moe_dispatch_fwd_dtype": ("bf16",),
    "moe_hybridep_num_sms_preprocessing": (108,),
    "moe_paged_stash_buffer_size_factor_cpu": (0.0,),
    "moe_paged_stash_buffer_size_factor_cuda": (1.1,),
    "moe_paged_stash_page_size": (64,),
    "num_layers_at_end_in_bf16": (0, 1),
    "num_layers_at_start_in_bf16": (0, 1),
    "num_speculative_tokens": (0,),
    "outer_dp_sharding_strategy": ("no_shard",),
    "rl_inference_model_unified_memory_level": (0,),
    "rl_kv_cache_management_mode": ("persist",),
    "tensor_parallel_num_weight_shards": (1,),
    "transformer_impl": ("transformer_engine",),
    "wgrad_deferral_limit": (0,),
}
"""Values that switch nothing on: the defaults."""


def training(args: Args) -> Table:
    """Return what the arguments of a training run are, beside those that are used."""
    return _spelled(args, NEUTRAL, TRAINING)


def serving(args: Args) -> Table:
    """Return what the arguments of a server are: those of training alone do nothing."""
    named = frozenset(name for _, _, names in TRAINING for name in names.split())
    return _spelled(args, NEUTRAL | USED | named, _SERVING)


def off(args: Args) -> dict[str, tuple[Any, ...]]:
    """Return the values that switch nothing on."""
    return {args.spelled[name]: values for name, values in OFF.items() if name in args.spelled}


def _spelled(args: Args, neutral: frozenset[str], groups: tuple[tuple[Effect, str, str], ...]) -> Table:
    spelled = args.spelled
    table = {spelled[n]: (effect, why) for effect, why, names in groups for n in names.split() if n in spelled}
    return frozenset(key for name, key in spelled.items() if name in neutral and key not in table), table
