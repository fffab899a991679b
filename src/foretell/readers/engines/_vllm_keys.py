"""vLLM's flags, by what they do.

Sources: vLLM 0.33.0 vllm/engine/arg_utils.py (EngineArgs.add_cli_args), entrypoints/common/cli_args.py (FrontendArgs), envs.py;
flags that are gone since: the same files of 0.8.5 and 0.12.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.engines._flags import Grammar, Tables

if TYPE_CHECKING:
    from foretell.readers._reading import Effect

__all__ = ["GRAMMAR", "LORA", "TABLES", "VERSION"]

VERSION: Final = "0.33.0"

_BOOLEANS = """
aggregate_engine_logging allow_credentials allow_deprecated_quantization async_scheduling calculate_kv_scales
cohere_is_reasoning_model cudagraph_metrics data_parallel_external_lb data_parallel_hybrid_lb
data_parallel_multi_port_external_lb dcp_q_replicate disable_async_output_proc disable_cascade_attn disable_chunked_mm_input
disable_custom_all_reduce disable_fastapi_docs disable_frontend_multiprocessing disable_hybrid_kv_cache_manager
disable_log_requests disable_log_stats disable_mm_preprocessor_cache disable_nccl_for_dp_synchronization
disable_sliding_window disable_uvicorn_access_log enable_layerwise_offload enable_cpu_offload enable_auto_tool_choice
enable_batch_sharded_sampling enable_chunked_prefill enable_cumem_allocator enable_dbo enable_elastic_ep
enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance enable_flash_late_interaction
enable_flashinfer_autotune enable_force_include_usage enable_hc_sp enable_layerwise_nvtx_tracing enable_log_deltas
enable_log_outputs enable_log_requests enable_logging_iteration_details enable_lora enable_lora_bias
enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format
enable_mm_embeds enable_mm_processor_stats enable_moe_shared_loras enable_multimodal_encoder_data_parallel
enable_nccl_comm_suspend enable_offline_docs enable_per_request_metrics enable_prefix_caching enable_prompt_adapter
enable_prompt_embeds enable_prompt_tokens_details enable_reasoning enable_request_id_headers enable_return_routed_experts
enable_scale_out enable_server_load_tracking enable_shm_tensor_arena enable_sleep_mode enable_ssl_refresh
enable_tokenizer_info_endpoint enable_tower_connector_lora enable_trace_replay enforce_eager
exclude_tools_when_tool_choice_none fail_on_environ_validation fully_sharded_loras grpc headless interleave_mm_strings
jit_monitor_verbose kv_cache_metrics kv_sharing_fast_prefill language_model_only log_error_stack
long_prefill_token_threshold_adaptive mm_device_do_normalize mm_encoder_only monokernel multi_step_stream_outputs numa_bind
omni use_hsdp vae_use_tiling vae_use_slicing ray_workers_use_nsight return_sampling_mask return_tokens_as_token_ids
scheduler_reserve_full_isl skip_mm_profiling skip_tokenizer_init sleep_mode_offload_cudagraph specialize_active_lora
swa_bounded_replay tokens_only trust_remote_code trust_request_chat_template trust_request_mm_kwargs use_fp64_gumbel
use_replayssm use_tqdm_on_load use_v2_block_manager
"""
_MANY = """
allowed_media_domains api_key collect_detailed_traces cpu_offload_params cudagraph_capture_sizes cuda_graph_sizes
disable_log_stats ignore_patterns kv_cache_dtype_skip_layers logits_processors lora_modules lora_target_modules middleware
numa_bind_cpus numa_bind_nodes offload_params prompt_adapters served_model_name sleep_preserve_parameter_names
"""
_SETTINGS = """
model runner convert task dtype max_model_len quantization quantization_config enforce_eager hf_overrides
pipeline_parallel_size nnodes tensor_parallel_size data_parallel_size data_parallel_size_local enable_expert_parallel
block_size gpu_memory_utilization kv_cache_dtype limit_mm_per_prompt language_model_only enable_lora max_num_batched_tokens
max_num_seqs enable_chunked_prefill speculative_config spec_method spec_model spec_tokens speculative_model
num_speculative_tokens compilation_config optimization_level load_format config
"""
_NEUTRAL = """
tokenizer tokenizer_mode trust_remote_code seed hf_config_path allowed_local_media_path allowed_media_domains revision
code_revision tokenizer_revision allow_deprecated_quantization max_logprobs logprobs_mode skip_tokenizer_init
served_model_name config_format hf_token model_class_overrides generation_config override_generation_config model_impl
logits_processors io_processor_plugin renderer_num_workers load_format download_dir safetensors_load_strategy
safetensors_prefetch_num_threads safetensors_prefetch_block_size model_loader_extra_config ignore_patterns use_tqdm_on_load
pt_load_map_location mamba_cache_philox_rounds reasoning_parser reasoning_parser_plugin distributed_executor_backend
master_addr master_port node_rank distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind numa_bind_nodes
numa_bind_cpus device_ids data_parallel_rank data_parallel_start_rank data_parallel_address data_parallel_rpc_port
data_parallel_backend data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb
enable_ep_weight_filter max_parallel_loading_workers ray_workers_use_nsight worker_cls worker_extension_cls
enable_fault_tolerance fault_tolerance_config prefix_caching_hash_algo media_io_kwargs mm_processor_cache_gb
mm_processor_cache_type mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_fp8_scale_path
mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin interleave_mm_strings mm_tensor_ipc logging_config log_level
log_config_file show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces per_request_spec_decode_metrics
kv_cache_metrics kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics enable_layerwise_nvtx_tracing
enable_mfu_metrics enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose enable_mm_processor_stats
max_num_queued_reqs max_num_queued_tokens kv_events_config structured_outputs_config aux_output_config profiler_config
watchdog_config weight_transfer_config disable_log_stats aggregate_engine_logging fail_on_environ_validation shutdown_timeout
enable_log_requests tokens_only lora_modules chat_template chat_template_content_format trust_request_chat_template
trust_request_mm_kwargs default_chat_template_kwargs reasoning_effort_map response_role return_tokens_as_token_ids
enable_auto_tool_choice exclude_tools_when_tool_choice_none tool_call_parser tool_parser_plugin tool_strict_level tool_server
max_log_len enable_prompt_tokens_details enable_per_request_metrics enable_server_load_tracking enable_force_include_usage
sse_keep_alive_interval enable_tokenizer_info_endpoint enable_log_outputs enable_log_deltas cohere_is_reasoning_model
cohere_format anthropic_disabled_thinking_effort log_error_stack enable_scale_out fingerprint_mode fingerprint_value host port
grpc_port data_parallel_supervisor_port dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
dp_supervisor_probe_failure_threshold uds uvicorn_log_level disable_uvicorn_access_log disable_access_log_for_endpoints
allow_credentials allowed_origins allowed_methods allowed_headers api_key ssl_keyfile ssl_certfile ssl_ca_certs
enable_ssl_refresh ssl_cert_reqs ssl_ciphers root_path middleware enable_request_id_headers disable_fastapi_docs
h11_max_incomplete_event_size h11_max_header_count enable_offline_docs enable_flash_late_interaction headless api_server_count
grpc model_tag config disable_frontend_multiprocessing disable_log_requests disable_mm_preprocessor_cache enable_reasoning
guided_decoding_backend logits_processor_pattern override_pooler_config pooler_config tokenizer_pool_extra_config
tokenizer_pool_size tokenizer_pool_type use_v2_block_manager swap_space num_lookahead_slots preemption_mode device
enable_shm_tensor_arena enable_trace_replay max_seq_len_to_capture reasoning_config omni init_timeout stage_init_timeout
enable_mm_embeds enable_prompt_embeds reasoning_config.* logging_config.* kv_events_config.* structured_outputs_config.*
aux_output_config.* profiler_config.* watchdog_config.* weight_transfer_config.* pooler_config.* override_pooler_config.*
fault_tolerance_config.* override_generation_config.* default_chat_template_kwargs.* reasoning_effort_map.*
model_loader_extra_config.* media_io_kwargs.* custom_histogram_buckets.* model_class_overrides.* speculative_config.revision
speculative_config.code_revision speculative_config.max_model_len speculative_config.draft_load_config.*
speculative_config.synthetic_acceptance_length
"""

LORA: Final = (
    "max_loras", "max_lora_rank", "lora_dtype", "enable_tower_connector_lora", "max_cpu_loras", "fully_sharded_loras",
    "lora_target_modules", "default_mm_loras", "specialize_active_lora", "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras", "max_lora_cls_labels", "lora_extra_vocab_size", "long_lora_scaling_factors", "enable_lora_bias",
    "qlora_adapter_name_or_path",
)  # fmt: skip
"""Flags that count with ``--enable-lora`` alone."""

_KERNELS: Final = ("speed", "chooses kernels")
_SPECULATION: Final = ("speed", "changes how often proposed tokens are accepted, or what proposing costs")
_ENCODER: Final = ("both", "changes what the encoder of images, video or audio takes, which is not modelled")
_OFFLOADED: Final = ("less", "weights that stay in host memory and are read from there in each step")
_STATES: Final = ("memory", "changes the format or the size of recurrent states")
_SCHEDULED: Final = ("speed", "changes the order or the number of the requests and tokens of a step")


def _each(names: str, about: tuple[Effect, str]) -> dict[str, tuple[Effect, str]]:
    return dict.fromkeys(names.split(), about)


_UNMODELLED: Final[dict[str, tuple[Effect, str]]] = {
    # kernels
    **_each(
        """attention_backend attention_config attention_config.* mamba_backend mamba_ssu_algorithm moe_backend
        linear_backend sparse_indexer_topk_backend kernel_config kernel_config.* ir_op_priority ir_op_priority.*
        enable_flashinfer_autotune monokernel gdn_prefill_backend kda_prefill_backend kda_decode_backend
        disable_cascade_attn use_fp64_gumbel enable_mamba_cache_stochastic_rounding enable_hc_sp
        enable_batch_sharded_sampling disable_custom_all_reduce dcp_comm_backend dcp_kv_cache_interleave_size
        cp_kv_cache_interleave_size disable_async_output_proc override_attention_dtype override_neuron_config
        mamba_config mamba_config.*""",
        _KERNELS,
    ),
    "attention_config.use_fp4_indexer_cache": ("less", "the index of sparse attention is kept in 4 bits"),
    "attention_config.indexer_kv_dtype": ("memory", "the format of the index of sparse attention"),
    "optimization_level": ("both", "what is compiled and captured"),
    "performance_mode": ("both", "throughput doubles the tokens and the sequences of a step, interactivity captures more graphs"),
    "additional_config": ("both", "a platform's own options"),
    "additional_config.*": ("both", "a platform's own options"),
    "cudagraph_capture_sizes": ("both", "which batches have CUDA graphs"),
    "cuda_graph_sizes": ("both", "which batches have CUDA graphs"),
    "max_cudagraph_capture_size": ("both", "which batches have CUDA graphs"),
    "compilation_config.cudagraph_capture_sizes": ("both", "which batches have CUDA graphs"),
    "compilation_config.max_cudagraph_capture_size": ("both", "which batches have CUDA graphs"),
    "compilation_config.cudagraph_mode": ("both", "what is captured as CUDA graphs"),
    "compilation_config.cudagraph_mm_encoder": _ENCODER,
    "compilation_config.*": ("speed", "what is compiled, and how"),
    # speculation
    "speculative_config.*": _SPECULATION,
    **_each(
        """speculative_max_model_len speculative_disable_by_batch_size ngram_prompt_lookup_max ngram_prompt_lookup_min
        spec_decoding_acceptance_method typical_acceptance_sampler_posterior_threshold
        typical_acceptance_sampler_posterior_alpha disable_logprobs_during_spec_decoding speculative_disable_mqa_scorer
        speculative_model_quantization speculative_draft_tensor_parallel_size""",
        _SPECULATION,
    ),
    # parallelism
    "decode_context_parallel_size": ("less", "ranks of tensor parallelism share the keys and values of a sequence"),
    "prefill_context_parallel_size": ("both", "more ranks, which share the prompt of a sequence"),
    "dcp_q_replicate": ("more-memory", "query projections are on each rank"),
    "all2all_backend": ("both", "how routed tokens travel, with buffers of its own"),
    "enable_dbo": ("both", "a step runs as two halves that overlap"),
    "ubatch_size": ("both", "a step runs in parts that overlap"),
    "dbo_decode_token_threshold": ("speed", "when a step runs as two halves"),
    "dbo_prefill_token_threshold": ("speed", "when a step runs as two halves"),
    "dp_sync_interval": ("speed", "how often data-parallel ranks wait for each other"),
    "disable_nccl_for_dp_synchronization": ("speed", "how data-parallel ranks wait for each other"),
    "enable_eplb": ("more", "busy experts get copies, and are moved"),
    "eplb_config": ("more", "copies of busy experts"),
    "eplb_config.*": ("more", "copies of busy experts"),
    "num_redundant_experts": ("more", "copies of busy experts"),
    "expert_placement_strategy": ("speed", "which experts lie together"),
    "enable_elastic_ep": ("both", "ranks come and go"),
    "elastic_ep_max_dp_size": ("both", "ranks come and go"),
    # the pool of keys and values
    "kv_cache_memory_bytes": ("memory", "says how large the pool of keys and values is, in place of the memory flag"),
    "num_gpu_blocks_override": ("memory", "says how many blocks the pool has, in place of the memory flag"),
    "enable_prefix_caching": ("speed", "beginnings of prompts that were read before are read again"),
    "prefix_cache_retention_interval": ("memory", "how many states of windows and recurrent layers are kept for later requests"),
    "prefix_match_unit": ("speed", "where beginnings of prompts are found again"),
    "kv_cache_dtype_skip_layers": ("more-memory", "some layers keep 16 bits"),
    "calculate_kv_scales": ("speed", "scales of 8-bit keys and values are computed"),
    "kv_sharing_fast_prefill": ("speed", "layers that share keys and values are passed over in prompts"),
    "swa_bounded_replay": ("speed", "what is read again at a window's edge"),
    "disable_sliding_window": ("both", "layers with a window keep all tokens, or sequences are cut to it"),
    "disable_hybrid_kv_cache_manager": ("more-memory", "layers with a window keep all tokens"),
    "mamba_cache_dtype": _STATES,
    "mamba_ssm_cache_dtype": _STATES,
    "mamba_block_size": _STATES,
    "mamba_cache_mode": _STATES,
    "enable_mamba_shared_prefix_checkpoint": _STATES,
    "replayssm_buffer_len": _STATES,
    "use_replayssm": _STATES,
    "kv_offloading_size": ("speed", "keys and values that leave the GPU are kept in host memory"),
    "kv_offloading_backend": ("speed", "keys and values that leave the GPU are kept in host memory"),
    "kv_transfer_config": ("both", "keys and values come from, or go to, another server or a store"),
    "kv_transfer_config.*": ("both", "keys and values come from, or go to, another server or a store"),
    "ec_transfer_config": _ENCODER,
    "ec_transfer_config.*": _ENCODER,
    "ec_manager_config": _ENCODER,
    "ec_manager_config.*": _ENCODER,
    "engram_config": ("both", "tables of n-grams, which are not modelled"),
    "engram_config.*": ("both", "tables of n-grams, which are not modelled"),
    # weights elsewhere
    "cpu_offload_gb": _OFFLOADED,
    "cpu_offload_params": _OFFLOADED,
    "offload_backend": _OFFLOADED,
    "offload_group_size": _OFFLOADED,
    "offload_num_in_group": _OFFLOADED,
    "offload_prefetch_step": _OFFLOADED,
    "offload_params": _OFFLOADED,
    "enable_sleep_mode": ("memory", "the allocator that can let go of weights and pool"),
    "sleep_mode_backend": ("memory", "the allocator that can let go of weights and pool"),
    "sleep_mode_offload_cudagraph": ("memory", "the allocator that can let go of CUDA graphs"),
    "sleep_preserve_parameter_names": ("memory", "the allocator that can let go of weights and pool"),
    "enable_cumem_allocator": ("memory", "another allocator"),
    "enable_nccl_comm_suspend": ("memory", "buffers of communicators can be let go of"),
    # encoders
    **_each(
        """mm_processor_kwargs mm_processor_kwargs.* mm_encoder_only mm_encoder_attn_backend mm_encoder_attn_dtype
        video_pruning_rate video_pruning_method disable_chunked_mm_input mm_processor_device mm_device_do_normalize
        limit_mm_per_prompt limit_mm_per_prompt.*""",
        _ENCODER,
    ),
    "skip_mm_profiling": ("less-memory", "nothing is set aside for the encoder"),
    "mm_ipc_gpu_memory_gb": ("more-memory", "set aside for what processors of images hand over"),
    "mm_encoder_tp_mode": ("more", "data: each rank holds the whole encoder and works on its own images"),
    "enable_multimodal_encoder_data_parallel": ("more", "each rank holds the whole encoder and works on its own images"),
    "language_model_only": ("less-memory", "encoders of images, video and audio are not loaded"),
    # scheduling
    **_each(
        """max_num_scheduled_tokens max_num_active_seqs long_prefill_token_threshold long_prefill_token_threshold_adaptive
        scheduling_policy scheduler_cls scheduler_reserve_full_isl watermark prefill_schedule_interval async_scheduling
        stream_interval num_scheduler_steps multi_step_stream_outputs scheduler_delay_factor max_num_partial_prefills
        max_long_partial_prefills""",
        _SCHEDULED,
    ),
    # other
    "enable_return_routed_experts": ("speed", "the experts of each token are returned"),
    "return_sampling_mask": ("speed", "the mask of each token is returned"),
    "watermark_config": ("speed", "samples are marked"),
    "watermark_config.*": ("speed", "samples are marked"),
    "diffusion_config": ("both", "tokens are made in blocks"),
    "diffusion_config.*": ("both", "tokens are made in blocks"),
    "hf_overrides": ("both", "changes the model's file"),
    "hf_overrides.*": ("both", "changes the model's file"),
    "quantization_config": ("memory", "which matrices are quantised, and how"),
    "quantization_config.*": ("memory", "which matrices are quantised, and how"),
    "rope_scaling": ("memory", "changes how long a sequence may be, where max_model_len is not given"),
    "rope_scaling.*": ("memory", "changes how long a sequence may be, where max_model_len is not given"),
    "rope_theta": ("memory", "changes how long a sequence may be, where max_model_len is not given"),
    # vLLM-Omni (docs/cli of vllm-project/vllm-omni)
    **_each(
        """num_gpus usp ulysses_degree ring ring_degree cfg_parallel_size vae_patch_parallel_size vae_parallel_mode
        vae_use_tiling vae_use_slicing use_hsdp hsdp_shard_size hsdp_replicate_size text_encoder_tp_size
        diffusion_attention_backend enable_layerwise_offload enable_cpu_offload cache_backend cache_config
        model_class_name task_type deploy_config stage_configs_path""",
        ("both", "of vLLM-Omni, which makes images, video or speech"),
    ),
    "enable_prompt_adapter": ("more-memory", "the server keeps prompt adapters"),
    "prompt_adapters": ("more-memory", "the server keeps prompt adapters"),
    "max_prompt_adapters": ("more-memory", "the server keeps prompt adapters"),
    "max_prompt_adapter_token": ("more-memory", "the server keeps prompt adapters"),
}

_OFF: Final[dict[str, tuple[object, ...]]] = {
    "enable_prefix_caching": (True,),
    "async_scheduling": (True,),
    "enable_flashinfer_autotune": (True,),
    "optimization_level": (2, 3),
    "performance_mode": ("balanced",),
    "scheduling_policy": ("fcfs",),
    "stream_interval": (1,),
    "num_scheduler_steps": (1,),
    "cpu_offload_gb": (0, 0.0),
    "offload_group_size": (0,),
    "offload_backend": ("auto",),
    "decode_context_parallel_size": (1,),
    "prefill_context_parallel_size": (1,),
    "mm_encoder_tp_mode": ("weights",),
    "mm_processor_device": ("auto", "cpu"),
    "mamba_cache_dtype": ("auto",),
    "mamba_ssm_cache_dtype": ("auto",),
    "mamba_backend": ("triton",),
    "moe_backend": ("auto",),
    "linear_backend": ("auto",),
    "long_prefill_token_threshold": (0,),
    "watermark": (0, 0.0),
    "dp_sync_interval": (0,),
    "expert_placement_strategy": ("linear",),
    "compilation_config.cudagraph_mode": ("FULL_AND_PIECEWISE",),
    "compilation_config.mode": (3, "VLLM_COMPILE"),
    "compilation_config.level": (3,),
    "compilation_config.backend": ("",),
    "speculative_config.disable_padded_drafter_batch": (False,),
    "max_num_partial_prefills": (1,),
    "num_redundant_experts": (0,),
    "skip_mm_profiling": (False,),
}
"""Values that are vLLM's defaults."""

_SHORT: Final = {
    "-q": "quantization", "-pp": "pipeline_parallel_size", "-n": "nnodes", "-r": "node_rank", "-tp": "tensor_parallel_size",
    "-dcp": "decode_context_parallel_size", "-pcp": "prefill_context_parallel_size", "-dp": "data_parallel_size",
    "-dpn": "data_parallel_rank", "-dpr": "data_parallel_start_rank", "-dpl": "data_parallel_size_local",
    "-dpa": "data_parallel_address", "-dpp": "data_parallel_rpc_port", "-dpb": "data_parallel_backend",
    "-dph": "data_parallel_hybrid_lb", "-dpe": "data_parallel_external_lb", "-dpm": "data_parallel_multi_port_external_lb",
    "-ep": "enable_expert_parallel", "-sc": "speculative_config", "-dc": "diffusion_config", "-cc": "compilation_config",
    "-ac": "attention_config", "-asc": "api_server_count", "-O": "optimization_level", "-O0": "O0", "-O1": "O1", "-O2": "O2",
    "-O3": "O3", "device_memory_utilization": "gpu_memory_utilization", "cc": "compilation_config", "sc": "speculative_config",
    "ac": "attention_config", "dc": "diffusion_config",
}  # fmt: skip

_NAMES: Final = frozenset(
    name
    for name in (*_BOOLEANS.split(), *_MANY.split(), *_SETTINGS.split(), *_NEUTRAL.split(), *LORA, *_UNMODELLED)
    if not name.endswith(".*")
)
GRAMMAR: Final = Grammar(
    booleans=frozenset((*_BOOLEANS.split(), "O0", "O1", "O2", "O3")),
    many=frozenset(_MANY.split()),
    short=_SHORT,
    known=_NAMES | {"O0", "O1", "O2", "O3"},
    inverse=True,
)
TABLES: Final = Tables(frozenset((*_NEUTRAL.split(), *LORA)), _UNMODELLED, _OFF)
