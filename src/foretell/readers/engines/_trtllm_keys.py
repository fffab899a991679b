"""TensorRT-LLM's flags and the keys of the file that ``--config`` names, by what they do.

Sources: TensorRT-LLM 1.2 tensorrt_llm/commands/serve.py, tensorrt_llm/llmapi/llm_args.py (BaseLlmArgs, TorchLlmArgs, TrtLlmArgs),
docs/source/commands/trtllm-serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.engines._flags import Grammar, Tables

if TYPE_CHECKING:
    from foretell.readers._reading import Effect

__all__ = ["GRAMMAR", "OWN", "TABLES"]

_SETTINGS = """
model backend max_batch_size max_num_tokens max_seq_len tensor_parallel_size pipeline_parallel_size moe_expert_parallel_size
gpus_per_node free_gpu_memory_fraction enable_chunked_prefill config dtype enable_attention_dp kv_cache_config cuda_graph_config
speculative_config enable_lora lora_config quant_config kv_cache_dtype
"""
_NEUTRAL = """
tokenizer custom_tokenizer host port custom_module_dirs log_level num_postprocess_workers trust_remote_code revision
reasoning_parser tool_parser metadata_server_config_file fail_fast_on_attention_window_too_large otlp_traces_endpoint
disagg_cluster_uri chat_template tokenizer_mode skip_tokenizer_init tokenizer_revision iter_stats_max_iterations
request_stats_max_iterations guided_decoding_backend batched_logits_processor postprocess_tokenizer_dir mpi_session
return_perf_metrics perf_metrics_max_requests orchestrator_type garbage_collection_gen0_threshold enable_iter_perf_stats
enable_iter_req_stats iter_perf_stats_interval print_iter_log enable_layerwise_nvtx_marker load_format checkpoint_loader
checkpoint_format ray_worker_extension_cls ray_placement_config ray_placement_config.* max_stats_len
layer_wise_benchmarks_config.* enable_tqdm workspace enable_build_cache enable_build_cache.* fast_build normalize_log_probs
env_overrides hostname media_io_kwargs media_io_kwargs.* served_model_name telemetry_config.* otlp_config.*
cache_transceiver_config.kv_transfer_timeout_ms cache_transceiver_config.kv_transfer_sender_future_timeout_ms
kv_cache_config.event_buffer_max_size kv_cache_config.attention_dp_events_gather_period_ms calib_config.* max_input_len
allow_request_chat_template enable_energy_metrics
"""

_KERNELS: Final = ("speed", "chooses kernels")
_WAITS: Final = ("speed", "changes the order or the number of the requests and tokens of a step")
_POOL: Final = ("memory", "says how large the pool of keys and values is, beside the memory flag")
_HOST: Final = ("speed", "keys and values that leave the GPU are kept in host memory")
_APART: Final = ("both", "prompts are read by another server")
_ENCODER: Final = ("both", "changes what the encoder of images, video or audio takes, which is not modelled")
_GRAPHS: Final = ("both", "which batches have CUDA graphs")
_CALLED: Final = ("both", "a layout that is not modelled")


def _each(names: str, about: tuple[Effect, str]) -> dict[str, tuple[Effect, str]]:
    return dict.fromkeys(names.split(), about)


_UNMODELLED: Final[dict[str, tuple[Effect, str]]] = {
    **_each(
        """moe_config.backend moe_config.* attn_backend nvfp4_gemm_config.* allreduce_strategy enable_autotuner
        enable_mixed_sampler enable_trtllm_sampler sampler_type sampler_force_async_worker disable_flashinfer_sampling
        use_cute_dsl_blockscaling_mm use_cute_dsl_blockscaling_bmm enable_min_latency extended_runtime_perf_knob_config.*
        torch_compile_config torch_compile_config.* pytorch_backend_config.* embedding_parallel_mode gather_generation_logits
        gather_context_logits dense_gemm_config.* use_low_precision_moe_combine""",
        _KERNELS,
    ),
    "moe_config.load_balancer": ("more", "busy experts get copies, and are moved"),
    "moe_config.load_balancer.*": ("more", "busy experts get copies, and are moved"),
    "moe_config.max_num_tokens": ("memory", "the largest step of the experts"),
    **_each(
        """disable_overlap_scheduler scheduler_config.* attention_dp_config.* batch_wait_timeout_ms batch_wait_timeout_iters
        batch_wait_max_tokens_ratio stream_interval batching_type max_beam_width""",
        _WAITS,
    ),
    "max_beam_width": ("both", "several answers are searched at once"),
    "scheduler_config.capacity_scheduler_policy": ("speed", "when requests start, and whether they are paused"),
    **_each("kv_cache_config.max_tokens kv_cache_config.max_gpu_total_bytes kv_cache_config.cross_kv_cache_fraction", _POOL),
    **_each(
        "kv_cache_config.host_cache_size kv_cache_config.onboard_blocks kv_cache_config.secondary_offload_min_priority", _HOST
    ),
    "kv_cache_config.enable_block_reuse": ("speed", "beginnings of prompts that were read before are read again"),
    "kv_cache_config.enable_partial_reuse": ("speed", "parts of blocks that were read before are read again"),
    "kv_cache_config.copy_on_partial_reuse": ("speed", "how parts of blocks are taken again"),
    "kv_cache_config.max_attention_window": ("less", "layers keep the last tokens only"),
    "kv_cache_config.sink_token_length": ("less", "layers keep the first and the last tokens only"),
    "kv_cache_config.use_uvm": ("less", "the pool may lie in host memory"),
    "kv_cache_config.mamba_ssm_cache_dtype": ("memory", "the format of recurrent states"),
    "kv_cache_config.use_kv_cache_manager_v2": ("both", "another manager of the pool"),
    **_each("cache_transceiver_config.* server_role disagg_cluster.* disagg_cluster kv_connector_config.*", _APART),
    **_each("context_parallel_size cp_config.* cp_config moe_cluster_parallel_size enable_lm_head_tp_in_adp", _CALLED),
    "moe_tensor_parallel_size": ("both", "ranks that share the matrices of one expert"),
    "pp_partition": ("memory", "which layers each stage has"),
    "sparse_attention_config.*": ("both", "another attention"),
    "peft_cache_config.*": ("more", "room for adapters"),
    "lora_config.*": ("more", "adapters on every matrix, and their products"),
    **_each("cuda_graph_config.batch_sizes cuda_graph_config.max_batch_size cuda_graph_config.*", _GRAPHS),
    "cuda_graph_config.enable_padding": ("speed", "batches are padded to one that has a graph"),
    "speculative_config.*": ("speed", "changes how often proposed tokens are accepted, or what proposing costs"),
    "decoding_config.*": ("both", "another way of making tokens"),
    "quant_config.*": ("memory", "which matrices are quantised, and how"),
    "force_dynamic_quantization": ("memory", "quantises while it loads"),
    "model_kwargs.*": ("both", "changes the model's file"),
    "build_config.*": ("both", "how an engine is built"),
    "enable_prompt_adapter": ("more-memory", "the server keeps prompt adapters"),
    "max_prompt_adapter_token": ("more-memory", "the server keeps prompt adapters"),
    "enable_sleep": ("memory", "an allocator that can let go of weights and pool"),
    **_each("mm_encoder_only multimodal_config.* video_pruning_rate extra_encoder_options", _ENCODER),
    **_each("visual_gen_args enable_visual_gen", ("both", "makes images or video, no tokens")),
    "set": ("both", "sets a key of the file from the command line"),
}
_OFF: Final[dict[str, tuple[object, ...]]] = {
    "max_beam_width": (1,), "context_parallel_size": (1,), "stream_interval": (1,), "attn_backend": ("TRTLLM",),
    "enable_autotuner": (True,), "allreduce_strategy": ("AUTO",), "kv_cache_config.enable_block_reuse": (True,),
    "kv_cache_config.enable_partial_reuse": (True,), "kv_cache_config.onboard_blocks": (True,),
    "kv_cache_config.copy_on_partial_reuse": (True,), "kv_cache_config.host_cache_size": (0,), "moe_config.backend": ("AUTO",),
    "kv_cache_config.max_gpu_total_bytes": (0,), "batch_wait_timeout_ms": (0,), "batch_wait_timeout_iters": (0,),
    "batch_wait_max_tokens_ratio": (0, 0.0), "kv_cache_config.mamba_ssm_cache_dtype": ("auto",),
    "scheduler_config.capacity_scheduler_policy": ("GUARANTEED_NO_EVICT",), "sampler_type": ("auto",),
}  # fmt: skip
"""Values that are TensorRT-LLM's defaults."""

_NAMES: Final = frozenset(name.partition(".")[0] for name in (*_SETTINGS.split(), *_NEUTRAL.split(), *_UNMODELLED) if name != "*")
GRAMMAR: Final = Grammar(
    booleans=frozenset(
        ("trust_remote_code", "fail_fast_on_attention_window_too_large", "enable_chunked_prefill", "enable_visual_gen")
    ),
    many=frozenset(),
    short={
        "tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size", "cp_size": "context_parallel_size",
        "ep_size": "moe_expert_parallel_size", "cluster_size": "moe_cluster_parallel_size",
        "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction", "extra_llm_api_options": "config",
        "kv_cache_free_gpu_mem_fraction": "free_gpu_memory_fraction",
    },
    known=_NAMES,
)  # fmt: skip
TABLES: Final = Tables(
    frozenset(_NEUTRAL.split()) | {"kv_cache_config", "moe_config", "scheduler_config", "env_overrides.*"},
    _UNMODELLED,
    _OFF,
)
_ALONE = """
kv_cache_config cuda_graph_config moe_config enable_attention_dp attention_dp_config cache_transceiver_config
disable_overlap_scheduler print_iter_log moe_expert_parallel_size enable_iter_perf_stats attn_backend nvfp4_gemm_config
peft_cache_config garbage_collection_gen0_threshold allreduce_strategy sparse_attention_config
"""
OWN: Final = frozenset(_ALONE.split())
"""Keys that no other framework's file has."""
