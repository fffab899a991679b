"""Keys of a MaxText file that are not looked at.

Source: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/base.yml`` (defaults), ``configs/types.py``,
``configs/post_train/*.yml``.
"""

from __future__ import annotations

from typing import Any, Final

from foretell.readers._reading import Effect
from foretell.readers.hf._common import Tables

__all__ = ["SHAPE", "TABLES"]

_RUN: Final = """
run_name base_config log_config debug_sharding base_output_directory override_model_config override_logical_axis_rules
sharding_strategy convert_checkpoint_if_possible load_parameters_path lora_input_adapters_path hf_lora_adapter_path
load_full_state_path enable_checkpointing load_checkpoint_only_once async_checkpointing checkpoint_period
max_num_checkpoints_to_keep enable_single_replica_ckpt_restoring checkpoint_todelete_subdir checkpoint_todelete_full_path
force_unroll checkpoint_is_quantized save_quantized_params_path enable_orbax_v1 checkpoint_conversion_fn
source_checkpoint_layout save_checkpoint_on_start save_checkpoint_on_completion enable_continuous_checkpointing
colocated_python_checkpointing enable_autocheckpoint checkpoint_storage_target_data_file_size_bytes
checkpoint_storage_use_ocdbt checkpoint_storage_use_zarr3 checkpoint_storage_concurrent_gb enable_multi_tier_checkpointing
local_checkpoint_directory local_checkpoint_period multi_tier_checkpointing_backup_interval_minutes
multi_tier_checkpointing_backup_interval_steps mtc_data_parallelism enable_emergency_checkpoint use_replicator_service
replicator_backup_interval_minutes
tokenizer_path tokenizer_type use_chat_template chat_template_path chat_template data_template_path tokenize_train_data
tokenize_eval_data add_bos add_eos use_truncation dataset_type eval_per_device_batch_size max_corpus_chars train_data_columns
train_image_column eval_data_columns eval_image_column default_prompt packing grain_packing_type max_segments_per_seq num_epoch
expansion_factor_real_data reuse_example_batch generate_padding_batch_train generate_padding_batch_eval
per_device_batch_size_start per_device_batch_size_increment global_rampup_samples colocated_python_data_input
dataset_path dataset_name eval_dataset_name train_split eval_split hf_path hf_name hf_data_dir hf_train_files hf_eval_split
hf_eval_files hf_access_token grain_train_files grain_eval_files grain_train_mixture_config_path grain_file_type
grain_use_elastic_iterator grain_worker_count grain_per_worker_buffer_size grain_worker_count_eval
grain_per_worker_buffer_size_eval grain_ram_budget_mb grain_num_threads grain_prefetch_buffer_size grain_num_threads_eval
grain_prefetch_buffer_size_eval grain_data_source_max_workers grain_index_storage_option grain_shuffle_buffer_size
olmo_index_path olmo_path_remap_from olmo_path_remap_to olmo_apply_ngram_filter
use_sft sft_train_on_completion_only formatting_func_path formatting_func_kwargs formatting_func_kwargs.*
use_tunix_gradient_accumulation dpo.* lora.lora_alpha lora.lora_restore_path lora.lora_tile_size
distill_alpha distill_temperature distill_feature_loss_type distill_alpha_end distill_alpha_schedule
distill_temperature_end distill_temperature_schedule distill_beta_end distill_beta_schedule distill_layer_indices
training_objective block_diffusion_mask_id block_diffusion_min_noise block_diffusion_logit_alignment
block_diffusion_canvas_policy steps log_period eval_start_step eval_interval eval_steps target_eval_loss abort_on_nan_loss
abort_on_inf_loss enable_data_shuffling data_shuffle_seed init_weights_seed max_inflight_computations
diloco_sync_period diloco_outer_lr diloco_outer_momentum dcn_bandwidth_burst dcn_bandwidth_latency dcn_bandwidth_interface
num_diloco_fragments num_communication_overlapping_steps communication_overlapping_alpha
skip_step_interval skip_step_scaling_factor gradient_clipping_threshold learning_rate lr_schedule_type
learning_rate_final_fraction wsd_decay_steps_fraction wsd_decay_style warmup_steps_fraction learning_rate_schedule_steps
adam_b1 adam_b2 adam_eps adam_eps_root adam_weight_decay adamw_mask muon_beta muon_weight_decay muon_consistent_rms
max_prefill_predict_length prompt system_prompt load_from_prefill_dir prefill_cache_dir autoregressive_decode_assert
model_call_mode use_chunked_prefill prefill_chunk_size enable_model_warmup enable_llm_inference_pool multi_sampling
return_log_prob decode_sampling_strategy decode_sampling_nucleus_p decode_sampling_top_k decode_sampling_temperature
stack_prefill_result_cache prefill_cache_axis_order ar_cache_axis_order compute_axis_order reshape_q inference_server
prefill_slice generate_slice inference_microbenchmark_prefill_lengths inference_microbenchmark_stages
inference_microbenchmark_loop_iters inference_microbenchmark_log_file_path inference_microbenchmark_num_samples
inference_metadata_file inference_benchmark_test enable_prefix_caching prefix_caching_hbm_byte prefix_caching_dram_byte
compiled_trainstep_file write_estimator_result constant_bound_config jax_cache_dir jax_distributed_initialization_timeout
jax_debug_log_modules skip_jax_distributed_system enable_single_controller subslice_shape max_checkify
profiler upload_all_profiler_results skip_first_n_steps_for_profiler profiler_steps profile_cleanly
profile_periodically_period hide_profiler_step_metric enable_jax_profiler jax_profiler_port enable_tpu_profiling_options
tpu_num_chips_to_profile_per_task tpu_num_sparse_cores_to_trace tpu_num_sparse_core_tiles_to_trace
xprof_tpu_power_trace_level xprof_e2e_enable_fw_throttle_event xprof_e2e_enable_fw_power_level_event
xprof_e2e_enable_fw_thermal_event profile_power_events dump_hlo dump_step dump_hlo_local_dir dump_hlo_delete_local_after
dump_hlo_gcs_dir dump_hlo_module_name dump_hlo_local_module_name dump_hlo_xla_flags dump_hlo_upload_all dump_jaxpr
dump_jaxpr_local_dir dump_jaxpr_delete_local_after dump_jaxpr_gcs_dir metrics_file gcs_metrics save_config_to_gcs
record_internal_nn_metrics prometheus_port enable_checkpoint_cloud_logger enable_wandb wandb_project_name wandb_run_name
managed_mldiagnostics managed_mldiagnostics_on_demand_profiling managed_mldiagnostics_run_group managed_mldiagnostics_region
managed_mldiagnostics_storage_path enable_goodput_recording monitor_goodput goodput_upload_interval_seconds
enable_pathways_goodput monitor_step_time_deviation step_deviation_interval_seconds enable_gcp_goodput_metrics
enable_gcp_step_deviation_metrics elastic_enabled elastic_backup_kind elastic_timeout_seconds elastic_max_retries
elastic_min_slice_count report_heartbeat_metric_for_gcp_monitoring heartbeat_reporting_interval_in_seconds
report_performance_metric_for_gcp_monitoring enable_tensorboard use_vertex_tensorboard vertex_tensorboard_project
vertex_tensorboard_region vllm_hf_config_path vllm_hf_overrides vllm_additional_config quantize_kvcache kv_quant_axis
kv_quant_dtype internal_compile internal_compile_num_devices custom_mesh_and_rule_for_eval logical_axis_rules_for_eval
enable_padding_causal_mask tensorboard_dir checkpoint_dir metrics_dir
enable_nnx pure_nnx pure_nnx_decoder (arguments) use_ragged_attention ragged_block_size
"""
_MODEL: Final = """
dense_init_scale normalization_layer_epsilon normalize_embedding_logits mlp_activations_limit mtp_loss_scaling_factor
mtp_eval_target_module causal_block_size moba_chunk_size moba_topk mla_naive_kvcache compressed_rope_max_timescale
indexer_loss_scaling_factor indexer_topk indexer_approx_top_k_recall indexer_mask_exact_topk qk_clip_threshold
load_balance_loss_weight float32_weight_sum norm_topk_prob routed_scaling_factor routed_bias routed_bias_update_rate
log_moe_bias_norms n_routing_groups topk_routing_group first_num_hash_layers gdn_chunk_size use_qk_norm_in_gdn
temperature_tuning sinkhorn_iterations use_iota_embed use_untrainable_positional_embedding rope_type rope_use_scale
rope_min_timescale rope_max_timescale rope_linear_scaling_factor local_rope_max_timescale global_rope_max_timescale
global_rope_proportion local_rope_proportion max_position_embeddings original_max_position_embeddings rope_factor beta_fast
beta_slow mscale rope_interleave rope_truncate rope_attention_scaling rope_pairwise qk_norm_with_scale v_norm_with_scale
engram_seed engram_num_heads engram_head_dim engram_vocab_bases engram_max_ngram_size engram_kernel_size
vision_encoder_block image_size_for_vit image_path image_placeholder posemb_type_for_vit max_num_images_per_example video_path
audio_path video_placeholder audio_placeholder use_audio_in_video use_mrope mrope_section position_id_per_seconds
video_max_grid_t video_max_grid_h video_max_grid_w freeze_vision_encoder_params freeze_audio_encoder_params attention_for_vit
remat_policy_for_vit dtype_mm batch_split_factor padded_base_moe_mlp_dim attention_type
"""
SHAPE: Final = """
decoder_block global_parameter_scale base_emb_dim base_num_query_heads base_num_kv_heads base_mlp_dim base_num_decoder_layers
head_dim global_head_dim global_num_kv_heads mlp_activations vocab_size logits_via_embedding num_experts num_experts_per_tok
base_moe_mlp_dim shared_experts first_num_dense_layers routed_score_func q_lora_rank kv_lora_rank qk_nope_head_dim
qk_rope_head_dim v_head_dim use_indexer indexer_n_heads indexer_head_dim sliding_window_size interleave_moe_layer_step
nope_layer_interval trainable_position_size use_qk_norm attention_bias attention_sink mlp_bias gdn_conv_kernel_dim
gdn_key_head_dim gdn_value_head_dim gdn_num_key_heads gdn_num_value_heads share_kv_projections num_kv_shared_layers
hidden_size_per_layer_input vocab_size_per_layer_input use_double_wide_mlp mhc_expansion_rate o_groups o_lora_rank
compress_ratios partial_rotary_factor use_post_attn_norm use_post_ffw_norm final_logits_soft_cap attn_logits_soft_cap
"""
"""Keys of a model's shape; each decoder block looks at some."""
_VISION: Final = """
hidden_size intermediate_size num_attention_heads num_channels tile_size patch_size conv_stride num_hidden_layers rope_theta
vision_output_dim spatial_merge_size out_hidden_size temporal_patch_size num_position_embeddings deepstack_visual_indexes
projector_input_dim projector_output_dim pixel_shuffle_ratio projector_dropout
"""
_AUDIO: Final = """
d_model encoder_attention_heads encoder_ffn_dim encoder_layers attention_dropout activation_dropout activation_function
num_mel_bins max_source_positions scale_embedding n_window n_window_infer conv_chunksize downsample_hidden_size output_dim
num_conv_layers max_timescale max_sample_len
"""
_BLOCKS: Final = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
_KERNELS: Final[dict[str, tuple[Any, ...]]] = {
    **{f"sa_block_{c}": (512,) for c in _BLOCKS},
    **{f"{a}_tile_{b}_batch_seq": (512,) for a in ("wi", "wo") for b in ("fwd", "dlhs", "drhs")},
    **{f"{a}_tile_{b}_{c}_dim": (1024,) for a in ("wi", "wo") for b in ("fwd", "dlhs", "drhs") for c in ("embed", "mlp")},
    **{f"local_sa_block_{c}": ("None",) for c in _BLOCKS},
    **{f"{a}sa_{c}_layout": ("HEAD_DIM_MINOR", "None") for a in ("", "local_") for c in ("q", "k", "v")},
    **{f"{a}sa_{c}": (True, "None") for a in ("", "local_") for c in ("fuse_reciprocal", "use_base2_exp")},
    **dict.fromkeys(("sa_use_fused_bwd_kernel", "sa_bwd_dkv_megacore", "local_sa_use_fused_bwd_kernel"), ("None",)),
    **dict.fromkeys(("use_splash_scheduler", "local_use_splash_scheduler", "use_tokamax_splash", "use_jax_splash"), ("None",)),
    **dict.fromkeys(("experimental_sa_quant_q_fp8", "experimental_sa_quant_k_fp8", "force_q_layout"), ()),
    **dict.fromkeys(("cost_estimate_flops_fwd", "cost_estimate_flops_bwd", "use_max_logit_estimate"), (-1,)),
    **{f"ragged_gather{a}_cost_estimate_{b}": (-1,) for a in ("", "_reduce") for b in ("flops", "bytes_accessed")},
    **dict.fromkeys(
        ("ragged_gather_fallback", "ragged_gather_reduce_fallback", "use_gather_mosaic_kernel", "use_ragged_sort"), ()
    ),
    **dict.fromkeys(("merge_gating_gmm", "use_tokamax_gmm", "use_gmm_v2", "ragged_sort_use_single_sparsecore"), ()),
    **dict.fromkeys(("use_mhc_pallas_kernel", "enable_mhc_lite", "use_sliced_mla_proj", "indexer_use_approx_top_k"), ()),
    **{f"mhc_pallas_kernel_{a}_block_size": (b,) for a, b in (("fwd", 256), ("bwd", 128))},
    "dq_reduction_steps": (0,),
    "ring_scan_unroll": (1, 0),
    "use_custom_sort_vjp": (True,),
    "prefuse_moe_weights": (),
    "fuse_expert_scales": (),
    "te_comm_gemm_overlap": ("disabled",),
    "compile_xla_flags": (),
}
"""Choices of kernels, their tiles and XLA's flags, with their defaults."""
_OTHER: Final[dict[str, tuple[Effect, str, tuple[Any, ...]]]] = {
    # -- numbers --------------------------------------------------------------------------------------------
    "matmul_precision": ("speed", "products in more than one pass", ("default",)),
    "activations_in_float32": ("more-memory", "activation functions run in fp32", ()),
    "logits_dot_in_fp32": ("more", "logits are made in fp32", ()),
    "cast_logits_to_fp32": ("less-memory", "logits stay in 16 bits", (True,)),
    "float32_qk_product": ("more", "scores are made in fp32", ()),
    "float32_logits": ("more-memory", "scores are fp32", ()),
    "float32_gate_logits": ("more-memory", "the router runs in fp32", ()),
    "replicate_quant_scale": ("both", "scales of quantisation are replicated", ()),
    "use_qwix_quantization": ("both", "Qwix quantises", ()),
    "use_manual_quantization": ("both", "quantisation by hand", ()),
    "quantization_local_shard_count": ("speed", "how ranges are found", (-1,)),
    "quant_cfg_path": ("both", "a file says how products are quantised", ()),
    **{f"{a}_quantization_calibration_method": ("speed", "how ranges are found", ("absmax",)) for a in ("weight", "act", "bwd")},
    "weight_sparsity_n": ("both", "weights are sparse", ()),
    "weight_sparsity_m": ("both", "weights are sparse", ()),
    "weight_sparsity_update_step": ("speed", "masks of sparse weights", (10,)),
    "weight_sparsity_start_step": ("speed", "masks of sparse weights", (50,)),
    # -- the model ------------------------------------------------------------------------------------------
    "attention_output_dim": ("both", "attention's output has a width of its own", (-1,)),
    "moe_expert_input_dim": ("both", "experts read tokens of a width of their own", (-1,)),
    "fused_qkv": ("both", "q, k and v are one product", ()),
    "fused_mlp": ("both", "gate and up are one product", ()),
    "z_loss_multiplier": ("more-memory", "the loss has a second term over the logits", (0, 0.0)),
    "vocab_tiling_ag_once": ("more-memory", "the gathered head is kept", ()),
    "chunk_attn_window_size": ("speed", "attention sees chunks", (0,)),
    "moba": ("both", "mixture of block attention", ()),
    "use_qk_clip": ("both", "scores are watched and weights clipped", ()),
    "mla_qk_head_chunk_size": ("less", "heads are taken in chunks", (0,)),
    "indexer_sparse_training": ("both", "the indexer trains", ()),
    "use_multimodal": ("more", "an image encoder is part of the model", ()),
    "use_audio": ("more", "an audio encoder is part of the model", ()),
    "engram_layers": ("more", "tables of n-grams in some layers", ()),
    "mtp_num_layers": ("more", "layers that predict further tokens", (0,)),
    "qk_norm_in_fp32": ("more-memory", "norms of queries and keys in fp32", ()),
    # -- experts --------------------------------------------------------------------------------------------
    "capacity_factor": ("both", "experts take a fixed number of tokens", (-1, -1.0)),
    "ragged_buffer_factor": ("both", "the buffer of routed tokens", (-1, -1.0)),
    "num_moe_token_chunks": ("both", "tokens of experts are taken in chunks", (1,)),
    "num_moe_emb_chunks": ("speed", "exchanges of experts overlap", (0,)),
    "moe_chunk_barrier": ("speed", "chunks of experts do not overlap", ()),
    "use_random_routing": ("speed", "tokens are routed at random", ()),
    "use_ring_of_experts": ("both", "experts exchange in a ring", ()),
    "moe_dispatch_no_expert_sharding": ("speed", "how tokens travel to experts", ()),
    "megablox": ("both", "chooses the kernel of experts", (True,)),
    "sparse_matmul": ("both", "experts are a dense product", (True,)),
    "use_batch_split_schedule": ("both", "the batch is split to hide exchanges", ()),
    "moe_fsdp_use_two_stage_all_gather": ("speed", "weights are gathered in two steps", ()),
    "dense_fsdp_use_two_stage_all_gather": ("speed", "weights are gathered in two steps", ()),
    "shard_exp_on_fsdp": ("memory", "experts are sharded by another axis", ()),
    "use_2d_fsdp_sharding": ("memory", "experts are sharded over two axes", ()),
    # -- the mesh -------------------------------------------------------------------------------------------
    "shard_mode": ("both", "shardings are written out", ("auto",)),
    "check_vma": ("speed", "fewer exchanges", ()),
    "shardy": ("both", "another partitioner of XLA's", (True,)),
    "custom_mesh": ("speed", "how the mesh lies on the hardware", ()),
    "custom_mesh_and_rule": ("both", "rules of sharding of its own", ()),
    "context_sharding": ("both", "which axis divides sequences", ("context",)),
    "ulysses_context_sharding": ("both", "which axis divides heads", ("context_usp_ulysses",)),
    "sharding_tolerance": ("memory", "parameters may stay whole", (0.02,)),
    "shard_optimizer_over_data": ("less-memory", "the optimizer's states are sharded over data as well", ()),
    "allow_split_physical_axes": ("speed", "how the mesh lies on the hardware", ()),
    "optimize_mesh_for_tpu_v6e": ("speed", "how the mesh lies on the hardware", ()),
    "remove_size_one_mesh_axis_from_type": ("speed", "the mesh without axes of one", (True,)),
    "context_parallel_load_balance": ("speed", "how sequences are divided", (True,)),
    "context_parallel_strategy": ("speed", "how sequences are divided", ("all_gather",)),
    "context_parallel_reorder_strategy": ("speed", "how sequences are divided", ("auto",)),
    "scan_layers": ("both", "layers are written out, not scanned", (True,)),
    "param_scan_axis": ("speed", "the layout of scanned layers", (1,)),
    "inhomogeneous_layer_cycle_interval": ("speed", "layers that are scanned together", (1,)),
    "pipeline_fsdp_ag_once": ("more", "all weights of a stage are gathered once", ()),
    "pipeline_fsdp_ag_per_repeat": ("more", "weights are gathered a repeat ahead", ()),
    "scan_pipeline_iterations": ("both", "the pipeline is written out", (True,)),
    "scan_pipeline_repeats": ("both", "repeats of the pipeline are scanned", ()),
    "scan_layers_per_stage": ("both", "layers of a stage are scanned", ()),
    "set_remat_policy_on_pipeline_iterations": ("memory", "what is recomputed in a pipeline", (True,)),
    "set_remat_policy_on_layers_per_stage": ("memory", "what is recomputed in a pipeline", ()),
    "dcn_bandwidth_limit": ("speed", "the network is slowed down", ()),
    # -- the method -----------------------------------------------------------------------------------------
    "enable_rampup_batch_size": ("both", "the batch grows during the run: its end is counted", ()),
    "skip_step_on_spikes": ("speed", "steps are skipped", ()),
    "trainable_parameters_mask": ("less-memory", "only some parameters train", ()),
    "use_dpo": ("more", "a reference model runs beside", ()),
    "use_grpo": ("more", "answers are generated during training", ()),
    "enable_diloco": ("more-memory", "an outer optimizer", ()),
    "enable_streaming_diloco": ("more-memory", "an outer optimizer", ()),
    "use_sequential_layers": ("speed", "fragments of the outer optimizer", ()),
    "distill_beta": ("more-memory", "features of both models are compared", (0, 0.0)),
    "student_overrides.*": ("both", "the student has settings of its own", ()),
    "teacher_overrides.*": ("more", "a teacher model runs beside", ()),
    "lora.lora_module_path": ("memory", "a pattern says which matrices get an adapter: all are counted", ()),
}
_CHOICE: Final[dict[str, tuple[Effect, str]]] = dict.fromkeys(_KERNELS, ("speed", "chooses kernels, their tiles or XLA's flags"))
TABLES: Final = Tables(
    neutral=frozenset(
        (
            *_RUN.split(),
            *_MODEL.split(),
            *SHAPE.split(),
            *(f"{key}_for_vit" for key in _VISION.split()),
            *(f"{key}_for_audio" for key in _AUDIO.split()),
        )
    )
    | {"vision_output_length", "image_size_for_vit", "vision_projector_type", "vision_connector_num_layers"}
    | {"vision_connector_hidden_size", "vision_connector_activation", "vision_connector_use_bias"},
    unmodelled=_CHOICE | {key: (effect, why) for key, (effect, why, _) in _OTHER.items()},
    off={**_KERNELS, **{key: (*values, "None", "none") for key, (_, _, values) in _OTHER.items()}},
)
