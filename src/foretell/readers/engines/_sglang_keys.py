"""SGLang's flags, by what they do.

Sources: SGLang 0.5.23 python/sglang/srt/arg_groups/fields/*.py, srt/server_args.py, srt/environ.py; flags that are gone since:
srt/server_args.py of 0.4.7 to 0.5.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.engines._flags import Grammar, Tables

if TYPE_CHECKING:
    from foretell.readers._reading import Effect

__all__ = ["GRAMMAR", "LORA", "TABLES"]

_SETTINGS = """
model_path model_type context_length is_embedding dtype quantization kv_cache_dtype tp_size pp_size dp_size attn_dp_size
enable_dp_attention ep_size nnodes mem_fraction_static max_running_requests chunked_prefill_size page_size disable_cuda_graph
cuda_graph_backend_decode disable_decode_cuda_graph speculative_algorithm speculative_draft_model_path speculative_num_steps
speculative_num_draft_tokens speculative_eagle_topk enable_lora lora_paths config moe_a2a_backend load_format
"""
_NEUTRAL = """
tokenizer_path tokenizer_mode tokenizer_backend tokenizer_worker_num detokenizer_worker_num skip_tokenizer_init load_format
model_loader_extra_config trust_remote_code revision model_impl model_config_parser quantization_param_path
modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path startup_weight_load_mode
custom_weight_loader weight_loader_disable_mmap weight_loader_prefetch_checkpoints weight_loader_prefetch_num_threads
weight_loader_drop_cache_after_load remote_instance_weight_loader_seed_instance_ip
remote_instance_weight_loader_seed_instance_service_port remote_instance_weight_loader_send_weights_group_ports
remote_instance_weight_loader_backend remote_instance_weight_loader_start_seed_via_transfer_engine
engine_info_bootstrap_port modelexpress_config download_dir model_checksum delete_ckpt_after_loading decrypted_config_file
decrypted_draft_config_file checkpoint_engine_wait_weights_before_ready weight_cache_mode weight_cache_socket
weight_cache_timeout device base_gpu_id gpu_id_step random_seed watchdog_timeout soft_watchdog_timeout use_ray
custom_sigquit_handler numa_node gc_threshold mlx_enable_sampling log_level log_level_http log_requests log_requests_level
log_requests_format log_requests_target uvicorn_access_log_exclude_prefixes crash_dump_folder show_time_cost enable_metrics
smg_http_sidecar_port enable_mfu_metrics enable_metrics_for_all_schedulers load_snapshot_publish_interval
tokenizer_metrics_custom_labels_header tokenizer_metrics_allowed_custom_labels extra_metric_labels
bucket_time_to_first_token bucket_inter_token_latency bucket_e2e_request_latency prompt_tokens_buckets
generation_tokens_buckets gc_warning_threshold_secs decode_log_interval enable_request_time_stats_logging kv_events_config
load_publish_endpoint enable_forward_pass_metrics forward_pass_metrics_worker_id forward_pass_metrics_ipc_name enable_trace
trace_modules otlp_traces_endpoint otlp_service_name export_metrics_to_file export_metrics_to_file_dir stat_loggers kv_canary
kv_canary_real_data kv_canary_sweep_interval debug_tensor_dump_output_folder debug_tensor_dump_layers
debug_tensor_dump_input_file debug_tensor_dump_inject forward_hooks msprobe_dump_config nccl_port dist_timeout dist_init_addr
gated_launch_port node_rank enable_p2p_check enable_response_store host port fastapi_root_path enable_http_worker_reuseport
smg_grpc_mode grpc_mode grpc_port grpc_response_timeout_secs sidecar sidecar_args skip_server_warmup warmups enable_http2
http2_max_concurrent_streams http2_initial_connection_window_size ssl_keyfile ssl_certfile ssl_ca_certs ssl_keyfile_password
enable_ssl_refresh api_key admin_api_key served_model_name weight_version chat_template trust_request_chat_template
hf_chat_template_name completion_template file_storage_path enable_cache_report return_input_ids return_output_ids
reasoning_parser default_chat_template_kwargs strip_thinking_cache enable_strict_thinking tool_call_parser tool_server
sampling_defaults asr_max_buffer_seconds asr_max_concurrent_sessions preferred_sampling_params allow_auto_truncate
batch_notify_size stream_response_default_include_usage incremental_streaming_output enable_streaming_session
constrained_json_whitespace_pattern constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
enable_dynamic_batch_tokenizer dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
enable_tokenizer_batch_encode disable_tokenizer_batch_decode grammar_backend disable_outlines_disk_cache
enable_custom_logit_processor enable_layerwise_nvtx_marker max_queued_requests allowed_media_domains
media_url_max_file_size_mb mm_processor_worker_num mm_io_worker_num mm_preprocess_cache_size_mb trust_mm_content_hashes
disable_fast_image_processor image_processor_backend speculative_draft_model_revision speculative_draft_load_format
spec_trace_dir expert_distribution_recorder_mode expert_distribution_recorder_buffer_size expert_balancedness_report_mode
disaggregation_bootstrap_port disaggregation_ib_device mooncake_ib_device encoder_urls encoder_bootstrap_port
encoder_register_urls elastic_ep_scale_timeout enable_expert_distribution_metrics debug_cuda_graph enable_cudagraph_gc
enable_profile_cuda_graph default_priority_value abort_on_priority_when_disabled pre_warm_nccl sleep_on_idle
file_storage_pth config kv_events_config.* default_chat_template_kwargs.*
preferred_sampling_params.* model_loader_extra_config.* extra_metric_labels.* modelexpress_config.* log_requests_target.*
"""
LORA: Final = (
    "enable_lora_overlap_loading", "max_lora_rank", "lora_target_modules", "max_loaded_loras", "max_loras_per_batch",
    "lora_eviction_policy", "lora_backend", "max_lora_chunk_size", "experts_shared_outer_loras", "lora_use_virtual_experts",
    "lora_strict_loading", "lora_drain_wait_threshold",
)  # fmt: skip
"""Flags that count where adapters are served."""

_KERNELS: Final = ("speed", "chooses kernels")
_ORDER: Final = ("speed", "changes the order or the number of the requests and tokens of a step")
_COPIES: Final = ("more", "busy experts get copies, and are moved")
_OFFLOADED: Final = ("less", "weights that stay in host memory and are read from there in each step")
_HOST: Final = ("speed", "keys and values that leave the GPU are kept in host memory or on storage")
_STATES: Final = ("memory", "changes the format or the number of recurrent states")
_APART: Final = ("both", "prompts are read, or images encoded, by another server")
_ENCODER: Final = ("both", "changes what the encoder of images, video or audio takes, which is not modelled")
_PROPOSED: Final = ("speed", "changes how often proposed tokens are accepted, or what proposing costs")
_GRAPHS: Final = ("both", "which batches have CUDA graphs, and of what kind")
_PARALLEL: Final = ("both", "a layout that is not modelled")
_RETURNED: Final = ("speed", "more is returned of each token")
_KT: Final = ("both", "experts run on the CPU")


def _each(names: str, about: tuple[Effect, str]) -> dict[str, tuple[Effect, str]]:
    return dict.fromkeys(names.split(), about)


_UNMODELLED: Final[dict[str, tuple[Effect, str]]] = {
    **_each(
        """attention_backend decode_attention_backend prefill_attention_backend enable_lean_attention enable_nvidia_megakernel
        enable_amd_monokernel monokernel_backend sampling_backend fp8_gemm_runner_backend fp4_gemm_runner_backend
        bf16_gemm_backend fp8_gemm_backend fp4_gemm_backend dsa_prefill_backend dsv4_prefill_backend dsa_triton_union
        dsa_decode_backend dsv4_attn_backend dsa_paged_mqa_logits_backend dsa_topk_backend nsa_prefill_backend
        nsa_decode_backend disable_flashinfer_autotune flashinfer_autotune_skip_ops triton_attention_reduce_in_fp32
        triton_attention_num_kv_splits triton_attention_split_tile_size flashinfer_mla_disable_ragged enable_flashinfer_mla
        enable_flashmla enable_fused_qk_norm_rope enable_precise_embedding_interpolation enable_dsa_fused_indexer mamba_backend
        linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend enable_nccl_nvls
        enable_symm_mem disable_custom_all_reduce enable_mscclpp enable_torch_symm_mem enable_scattered_sconv boundary_reduction
        enable_quant_communications enable_flashinfer_allreduce_fusion enforce_disable_flashinfer_allreduce_fusion
        flashinfer_allreduce_fusion_backend enable_aiter_allreduce_fusion disable_aiter_allreduce_fusion_in_prefill
        disable_aiter_allreduce_fusion_in_decode enable_fused_moe_sum_all_reduce moe_runner_backend
        flashinfer_mxfp4_moe_precision disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion
        enforce_shared_experts_fusion enable_flashinfer_cutlass_moe enable_flashinfer_trtllm_moe enable_flashinfer_cutedsl_moe
        enable_tf32_matmul enable_deterministic_inference rl_on_policy_target enable_two_batch_overlap
        enable_single_batch_overlap tbo_token_distribution_threshold enable_torch_compile enable_torch_compile_debug_mode
        torch_compile_max_bs disable_chunked_prefix_cache prefill_kv_cache_dequant_dtype
        mm_attention_backend enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds
        qsa_indexer_dtype enable_cp_decode_attn_tp""",
        _KERNELS,
    ),
    **_each(
        """max_prefill_tokens prefill_max_requests schedule_policy enable_priority_scheduling disable_priority_preemption
        schedule_low_priority_values_first priority_scheduling_preemption_threshold retraction_policy schedule_conservativeness
        disable_overlap_schedule num_continuous_decode_steps scheduler_recv_interval enable_mixed_chunk enable_dynamic_chunking
        prefill_decode_interval prefill_decode_interval_min_bs enable_prefill_delayer prefill_delayer_max_delay_passes
        prefill_delayer_token_usage_low_watermark prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets
        prefill_delayer_queue_min_ratio prefill_delayer_max_delay_ms min_free_slots_delay stream_interval load_balance_method
        pp_max_micro_batch_size pp_async_batch_depth stream_output enable_dp_attention_local_control_broadcast""",
        _ORDER,
    ),
    **_each(
        """ep_num_redundant_experts ep_dispatch_algorithm init_expert_location enable_eplb eplb_algorithm
        eplb_rebalance_num_iterations eplb_rebalance_layers_per_chunk eplb_min_rebalancing_utilization_threshold
        elastic_ep_backend enable_elastic_expert_backup enable_waterfill ep_join_mode max_ep_size elastic_ep_initial_size
        ep_join_rank_offset""",
        _COPIES,
    ),
    **_each(
        "cpu_offload_gb offload_group_size offload_num_in_group offload_prefetch_step offload_mode ple_offload_embedding "
        "ple_offload_backend ple_offload_dir enable_paged_experts paged_experts_num_resident",
        _OFFLOADED,
    ),
    **_each(
        """enable_hierarchical_cache hicache_host_memory_mode hicache_ratio hicache_size hicache_host_memory_fraction
        hicache_write_policy hicache_io_backend hicache_mem_layout hicache_storage_backend hicache_storage_prefetch_policy
        hicache_storage_backend_extra_config hicache_storage_backend_extra_config.* hicache_storage_prefetch_retry_poll_interval
        hicache_storage_prefetch_retry_max_attempts enable_unified_cache_external_linker unified_cache_external_linker_backend
        unified_cache_external_linker_config enable_linker_mla_dedup enable_lmcache lmcache_config_file enable_flexkv
        flexkv_config_file radix_eviction_policy radix_eviction_policy_config radix_cache_backend disable_radix_cache
        enable_session_radix_cache""",
        _HOST,
    ),
    "disable_radix_cache": ("speed", "beginnings of prompts that were read before are read again"),
    "enable_hisparse": ("less", "sparse attention's keys and values lie in host memory"),
    "hisparse_config": ("less", "sparse attention's keys and values lie in host memory"),
    "hisparse_config.*": ("less", "sparse attention's keys and values lie in host memory"),
    **_each(
        """mamba_ssm_dtype mamba_max_states_per_path mamba_radix_cache_strategy mamba_track_interval enable_int8_mamba_checkpoint
        int8_mamba_ckpt_size enable_linear_replayssm linear_replayssm_cache_len enable_linear_replayssm_spec
        max_mamba_cache_size mamba_full_memory_ratio mamba_scheduler_strategy""",
        _STATES,
    ),
    **_each(
        """decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank decoupled_spec_role
        disaggregation_mode disaggregation_decode_allocation_policy disaggregation_transfer_backend
        disaggregation_enable_kv_checksum disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_retraction_backup num_reserved_decode_tokens disaggregation_decode_extra_slots
        disaggregation_decode_polling_interval enable_pd_role_switch optimistic_prefill_attempts encoder_only language_only
        encoder_transfer_backend enable_adaptive_dispatch_to_encoder enable_pdmux pdmux_config_path sm_group_num
        disaggregation_decode_host_receive_threshold disaggregation_decode_tp disaggregation_decode_dp
        disaggregation_prefill_pp""",
        _APART,
    ),
    "language_model_only": ("less-memory", "encoders of images, video and audio are not loaded"),
    **_each(
        """enable_multimodal enable_broadcast_mm_inputs_process enable_prefix_mm_cache mm_process_config mm_process_config.*
        limit_mm_data_per_request limit_mm_data_per_request.* enable_mm_global_cache mm_global_cache_backend
        mm_feature_transport mm_max_concurrent_calls keep_mm_feature_on_device""",
        _ENCODER,
    ),
    "mm_enable_dp_encoder": ("more", "each rank holds the whole encoder and works on its own images"),
    **_each(
        """uno_lora_path speculative_dflash_block_size speculative_domino_candidate_pool_size speculative_dspark_block_size
        speculative_dspark_sps_table_path speculative_dspark_confidence_sts_path
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_accept_threshold_single
        speculative_accept_threshold_acc speculative_use_rejection_sampling speculative_use_block_verification
        speculative_token_map speculative_attention_mode speculative_draft_attention_backend speculative_dsa_topk_backend
        speculative_draft_kv_cache_dtype speculative_draft_window_size speculative_draft_sink_size
        speculative_moe_runner_backend speculative_moe_a2a_backend speculative_enable_w4a4_mxfp4_megamoe
        speculative_draft_model_quantization enable_multi_layer_eagle speculative_adaptive speculative_adaptive_config
        speculative_adaptive_config.* speculative_ngram_min_bfs_breadth speculative_ngram_max_bfs_breadth
        speculative_ngram_match_type speculative_ngram_max_trie_depth speculative_ngram_capacity
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_external_corpus_max_tokens speculative_ngram_branch_length
        speculative_ngram_max_match_window_size speculative_ngram_min_match_window_size""",
        _PROPOSED,
    ),
    **_each(
        """cuda_graph_config cuda_graph_config.* cuda_graph_backend_prefill cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
        cuda_graph_max_seq_len_prefill cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_prefill_max_context
        disable_prefill_cuda_graph disable_cuda_graph_padding cuda_graph_max_bs cuda_graph_bs enable_piecewise_cuda_graph
        piecewise_cuda_graph_max_tokens piecewise_cuda_graph_tokens piecewise_cuda_graph_compiler disable_piecewise_cuda_graph
        enable_breakable_cuda_graph""",
        _GRAPHS,
    ),
    **_each(
        """dcp_size attn_cp_size moe_dp_size dwdp_size dcp_comm_backend dcp_replicate_q_proj enable_prefill_cp cp_strategy
        enable_dsa_cache_layer_split enable_kv_cache_sharding enable_dp_lm_head enable_tp_lm_head_all_to_all
        enable_attn_tp_input_scattered enable_shared_experts_attn_tp shared_experts_tp_size enable_dense_mlp_attn_tp
        enable_layernorm_sp enable_megamoe_for_layernorm_sp disable_attn_tp_gather moe_dense_tp_size
        enable_dsa_prefill_context_parallel enable_nsa_prefill_context_parallel enable_prefill_context_parallel
        nsa_prefill_cp_mode""",
        _PARALLEL,
    ),
    **_each(
        """enable_return_hidden_states return_hidden_states_mode enable_return_aux_hidden_states
        return_aux_hidden_state_layer_ids enable_return_routed_experts enable_return_indexer_topk sampling_mask_max_tokens
        enable_watermark watermark_config watermark_config.* enable_mis multi_item_scoring_delimiter""",
        _RETURNED,
    ),
    **_each(
        "deepep_v2_mode deepep_mode fuseep_mode deepep_dispatcher_output_dtype flashinfer_a2a_dispatch_type deepep_config "
        "enable_w4a4_mxfp4_megamoe",
        ("both", "how routed tokens travel, with buffers of its own"),
    ),
    **_each("kt_weight_path kt_method kt_cpuinfer kt_threadpool_count kt_num_gpu_experts kt_max_deferred_experts_per_token", _KT),
    **_each("dllm_algorithm dllm_algorithm_config dllm_fdfo", ("both", "tokens are made in blocks")),
    "json_model_override_args": ("both", "changes the model's file"),
    "json_model_override_args.*": ("both", "changes the model's file"),
    "modelopt_quant": ("memory", "quantises while it loads"),
    "quantize_and_serve": ("memory", "quantises while it loads"),
    "rl_quant_profile": ("memory", "quantises while it loads"),
    "torchao_config": ("memory", "quantises while it loads"),
    "enable_fp32_lm_head": ("more", "the output projection runs in fp32"),
    "enable_memory_saver": ("memory", "an allocator that can let go of weights and pool"),
    "enable_weights_cpu_backup": ("speed", "weights are kept in host memory as well"),
    "enable_draft_weights_cpu_backup": ("speed", "weights are kept in host memory as well"),
    "max_total_tokens": ("memory", "says how many tokens the pool has, in place of the memory flag"),
    "swa_full_tokens_ratio": ("memory", "how the pool is divided between layers with a window and the others"),
    "swa_prefix_tails": ("memory", "what is kept of layers with a window for later requests"),
    "disable_hybrid_swa_memory": ("more-memory", "layers with a window keep all tokens"),
    "c128_page_size": ("memory", "pages of compressed keys and values"),
    "prefill_only_disable_kv_cache": ("less", "nothing is kept"),
    "enable_page_major_kv_layout": ("speed", "how the pool lies in memory"),
    "enable_unified_memory": ("memory", "one pool for all layers"),
    "enable_encoder_swa_bounded_replay": ("speed", "what is read again at a window's edge"),
    "enable_decoder_swa_bounded_replay": ("speed", "what is read again at a window's edge"),
    "enable_deepseek_v4_fp4_indexer": ("less", "the index of sparse attention is kept in 4 bits"),
    "enable_double_sparsity": ("both", "another attention"),
    "enable_ep_moe": ("speed", "experts whole on ranks, as ep_size says"),
    "enable_deepep_moe": ("both", "how routed tokens travel, with buffers of its own"),
}

_OFF: Final[dict[str, tuple[object, ...]]] = {
    "disaggregation_mode": ("null",), "decoupled_spec_role": ("null",), "cpu_offload_gb": (0,), "offload_group_size": (-1,),
    "max_prefill_tokens": (16384,), "schedule_policy": ("fcfs",), "schedule_conservativeness": (1, 1.0), "stream_interval": (1,),
    "num_continuous_decode_steps": (1,), "scheduler_recv_interval": (1,), "moe_runner_backend": ("auto",),
    "load_balance_method": ("auto",), "ep_num_redundant_experts": (0,), "dcp_size": (1,), "attn_cp_size": (1,),
    "moe_dp_size": (1,),
    "dwdp_size": (1,), "init_expert_location": ("trivial",), "deepep_mode": ("auto",), "radix_eviction_policy": ("lru",),
    "retraction_policy": ("length",), "fp8_gemm_runner_backend": ("auto",), "fp4_gemm_runner_backend": ("auto",),
    "triton_attention_num_kv_splits": (8,), "mamba_backend": ("triton",), "linear_attn_backend": ("triton",),
    "speculative_accept_threshold_single": (1, 1.0), "speculative_accept_threshold_acc": (1, 1.0),
    "speculative_attention_mode": ("prefill",), "eplb_algorithm": ("auto",), "moe_dense_tp_size": (0,),
}  # fmt: skip
"""Values that are SGLang's defaults."""

_FLAGS: Final = """
debug_cuda_graph delete_ckpt_after_loading is_embedding language_model_only language_only encoder_only log_requests
skip_server_warmup skip_tokenizer_init trust_remote_code use_ray grpc_mode smg_grpc_mode sleep_on_idle show_time_cost
export_metrics_to_file return_input_ids return_output_ids allow_auto_truncate incremental_streaming_output
stream_response_default_include_usage strip_thinking_cache trust_request_chat_template trust_mm_content_hashes
constrained_json_disable_any_whitespace abort_on_priority_when_disabled schedule_low_priority_values_first
prefill_only_disable_kv_cache pre_warm_nccl quantize_and_serve ple_offload_embedding mm_enable_dp_encoder
lora_strict_loading lora_use_virtual_experts experts_shared_outer_loras flashinfer_mla_disable_ragged
triton_attention_reduce_in_fp32 speculative_adaptive speculative_use_rejection_sampling speculative_use_block_verification
speculative_enable_w4a4_mxfp4_megamoe speculative_dspark_align_verify_tokens_to_graph_tier mlx_enable_sampling dllm_fdfo
weight_loader_disable_mmap weight_loader_drop_cache_after_load weight_loader_prefetch_checkpoints dcp_replicate_q_proj
checkpoint_engine_wait_weights_before_ready enforce_shared_experts_fusion enforce_disable_flashinfer_allreduce_fusion
remote_instance_weight_loader_start_seed_via_transfer_engine disaggregation_enable_kv_checksum
disaggregation_decode_enable_radix_cache disaggregation_decode_enable_offload_kvcache keep_mm_feature_on_device stream_output
"""
_MANY = """
custom_weight_loader flashinfer_autotune_skip_ops lora_target_modules lora_paths uvicorn_access_log_exclude_prefixes
cuda_graph_bs cuda_graph_bs_decode cuda_graph_bs_prefill prompt_tokens_buckets generation_tokens_buckets encoder_urls
bucket_time_to_first_token bucket_inter_token_latency bucket_e2e_request_latency debug_tensor_dump_layers
tokenizer_metrics_allowed_custom_labels piecewise_cuda_graph_tokens model_checksum allowed_media_domains
prefill_delayer_forward_passes_buckets prefill_delayer_wait_seconds_buckets trace_modules return_aux_hidden_state_layer_ids
"""
_NAMES: Final = frozenset(
    name for name in (*_SETTINGS.split(), *_NEUTRAL.split(), *LORA, *_UNMODELLED, *_FLAGS.split()) if not name.endswith(".*")
)

GRAMMAR: Final = Grammar(
    booleans=frozenset(_FLAGS.split()) | frozenset(n for n in _NAMES if n.startswith(("enable_", "disable_"))),
    many=frozenset(_MANY.split()),
    short={
        "model": "model_path", "tensor_parallel_size": "tp_size", "tp": "tp_size", "pipeline_parallel_size": "pp_size",
        "pp": "pp_size", "data_parallel_size": "dp_size", "dp": "dp_size", "expert_parallel_size": "ep_size", "ep": "ep_size",
        "attention_data_parallel_size": "attn_dp_size", "decode_context_parallel_size": "dcp_size",
        "attention_context_parallel_size": "attn_cp_size", "moe_data_parallel_size": "moe_dp_size",
        "nccl_init_addr": "dist_init_addr", "enable_hicache": "enable_hierarchical_cache", "context_bucket":
        "cuda_graph_prefill_max_context", "grpc_http_sidecar_port": "smg_http_sidecar_port",
        "hierarchical_sparse_attention_extra_config": "hisparse_config",
        "speculative_draft_model": "speculative_draft_model_path", "speculative_algo": "speculative_algorithm",
    },
    known=_NAMES,
)  # fmt: skip
TABLES: Final = Tables(frozenset((*_NEUTRAL.split(), *LORA)), _UNMODELLED, _OFF)
