"""Keys of axolotl's files that change nothing, and those whose effect is not modelled.

axolotl 0.18.0, ``utils/schemas/*.py`` and ``integrations/*/args.py``; names that older releases had are listed as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretell.readers._reading import Effect

__all__ = ["HARMLESS_PLUGINS", "NEUTRAL", "OFF", "PLUGINS", "UNMODELLED"]

_DATA: Final = """
datasets.* test_datasets.* pretraining_dataset.* dataset_prepared_path
dataset_shard_num dataset_shard_idx skip_prepare_dataset num_dataset_shards_to_save shuffle_merged_datasets
shuffle_before_merging_datasets dataset_processes dataset_num_proc dataset_exact_deduplication dataset_keep_in_memory
push_dataset_to_hub hf_use_auth_token train_on_inputs group_by_length curriculum_sampling min_sample_len excess_length_strategy
chat_template chat_template_jinja chat_template_kwargs.* default_system_message eot_tokens roles_to_train train_on_eos
role_boundaries.* streaming streaming_multipack_buffer_size pretrain_multipack_buffer_size
pretrain_multipack_attn pretraining_sample_concatenation sample_packing_group_size sample_packing_bin_size
sample_packing_sequentially sample_packing_mp_start_method sample_packing_eff_est sample_packing_seq_len_multiplier
multipack_real_batches pad_to_multiple_of total_num_tokens total_supervised_tokens remove_unused_columns is_preprocess
preprocess_iterable val_set_size max_prompt_len dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor
dataloader_drop_last tokenizer_config tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common tokenizer_type
tokenizer_save_jinja_files special_tokens.* tokens tokens.* added_tokens_overrides.* fix_untrained_tokens processor_kwargs.*
processor_config image_resize_algorithm
max_packed_sequence_len conversation data_seed length_column
"""
_OPTIMISATION: Final = """
learning_rate embedding_lr embedding_lr_scale weight_decay lr_scheduler lr_scheduler_kwargs.* lr_quadratic_warmup
cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_groups.* adam_epsilon adam_epsilon2 adam_beta1
adam_beta2 adam_beta3 adam_eps adam8bit eta_min log_sweep_min_lr log_sweep_max_lr dion_lr dion_momentum torchdistx_path
max_grad_norm num_epochs max_steps warmup_steps warmup_ratio loraplus_lr_ratio loraplus_lr_embedding jagged_restart_steps
jagged_restart_warmup_steps jagged_restart_anneal_steps relora_steps relora_warmup_steps relora_anneal_steps qgalore_scale
qgalore_proj_type qgalore_update_proj_gap qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size noisy_embedding_alpha
optim_target_modules lora_alpha lora_alpha_pattern.* peft_use_rslora peft_init_lora_weights peft_ensure_weight_tying
lora_fan_in_fan_out peft.* seed dpo_use_weighting dpo_label_smoothing dpo_loss_type dpo_loss_weights dpo_beta rl_beta orpo_alpha
simpo_gamma cpo_alpha kto_desirable_weight kto_undesirable_weight rpo_alpha center_rewards_coefficient num_labels
scaling_softmax_factor scaling_softmax_bias eaft_alpha eaft_k grokfast_alpha grokfast_lamb kd_ce_alpha kd_alpha kd_temperature
kd_beta kd_normalize_topk kd_temperature_min liger_use_token_scaling relora_prune_ratio relora_prune_method
"""
_OUTPUT: Final = """
output_dir hub_model_id hub_strategy hub_revision save_safetensors save_steps saves_per_epoch save_strategy save_total_limit
save_first_step save_only_model resume_from_checkpoint auto_resume_from_checkpoints load_best_model_at_end
metric_for_best_model greater_is_better early_stopping_patience logging_steps logging_dir include_tokens_per_second include_tkps
use_wandb wandb_name wandb_run_id wandb_mode wandb_project wandb_entity wandb_watch wandb_log_model wandb_disabled
use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_tensorboard
use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode comet_online comet_experiment_config.*
use_trackio trackio_project_name trackio_run_name trackio_space_id use_swanlab swanlab_project swanlab_experiment_name
swanlab_description swanlab_mode swanlab_workspace swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host
swanlab_lark_webhook_url swanlab_lark_secret swanlab_log_completions swanlab_completion_log_interval
swanlab_completion_max_buffer use_otel_metrics otel_metrics_host otel_metrics_port gradio_title gradio_share gradio_server_name
gradio_server_port gradio_max_new_tokens gradio_temperature eval_steps evals_per_epoch eval_strategy evaluation_strategy
eval_table_size eval_max_new_tokens eval_causal_lm_metrics eval_sample_packing bench_dataset bench_split loss_watchdog_threshold
loss_watchdog_patience lm_eval_tasks lm_eval_batch_size lm_eval_post_train lm_eval_model num_generation_samples
generation_max_new_tokens generation_temperature generation_top_p generation_top_k generation_prompt_ratio generation_do_sample
dynamic_checkpoint.* ray_run_name project_name debug fsdp_final_state_dict_type merge_lora torch_dtype merge_method quantization.*
llmcompressor.save_compressed kd_online_server_base_url kd_online_topk kd_online_server kd_online_timeout
"""
_LOADING: Final = """
base_model_ignore_patterns revision_of_model model_revision branch trust_remote_code cls_model_config type_of_model model_type
reinit_weights low_cpu_mem_usage resize_token_embeddings_to_32x mean_resizing_embeddings embeddings_skip_upcast
experimental_skip_move_to_device lora_model_dir lora_on_cpu qlora_sharded_model_loading gptq_groupsize gptq_model_v1
gptq_disable_exllama is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model strict
axolotl_config_path local_rank world_size device ddp ddp_timeout ddp_broadcast_buffers ddp_find_unused_parameters
accelerator_config.* tf32 use_ray bnb_config_kwargs.bnb_4bit_compute_dtype bnb_config_kwargs.bnb_4bit_quant_storage
bnb_config_kwargs.load_in_4bit ring_attn_func flex_attn_compile_kwargs.* torch_compile_mode torch_compile_options.*
tiled_mlp_num_shards tiled_mlp_use_original_mlp nvfp4_merge_aware nvfp4_merge_aware_start_step expert_parallel_backend
expert_parallel_fallback_on_unsupported load_4bit load_in_4bit load_in_8bit fp32_norm_classes
"""
_RL: Final = """
trl.beta trl.vllm_server_host trl.vllm_server_port trl.vllm_server_timeout trl.vllm_guided_decoding_regex trl.reward_funcs
trl.reward_weights trl.log_completions trl.num_completions_to_print trl.importance_sampling_level trl.ref_model_mixup_alpha
trl.ref_model_sync_steps trl.scale_rewards trl.temperature trl.top_p trl.top_k trl.min_p trl.repetition_penalty
trl.generation_kwargs.* trl.chat_template_kwargs.* trl.epsilon trl.epsilon_high trl.loss_type trl.mask_truncated_completions
trl.multi_objective_aggregation trl.vllm_importance_sampling_correction trl.vllm_importance_sampling_mode
trl.vllm_importance_sampling_cap trl.off_policy_mask_threshold trl.use_bias_correction_kl trl.reward_num_workers
trl.skip_zero_advantage_batches ebft.alignment_coef ebft.diversity_coef ebft.ce_coef ebft.embed_method ebft.gt_length_multiplier
ebft.adaptive_max_tokens ebft.temperature ebft.top_p ebft.rl_coef ebft.advantage_estimator ebft.min_completion_prefix
ebft.use_whitening trl.rollout_func vllm.* nemo_gym_enabled nemo_gym_dir nemo_gym_auto_clone nemo_gym_config_paths
nemo_gym_head_port nemo_gym_server_timeout nemo_gym_verify_timeout nemo_gym_run_timeout nemo_gym_datasets.* nemo_gym_auto_start
nemo_gym_model_name nemo_gym_multi_turn nemo_gym_max_turns
"""
NEUTRAL: Final = frozenset(f"{_DATA} {_OPTIMISATION} {_OUTPUT} {_LOADING} {_RL}".split())
"""Known to change neither device memory nor the speed of a step."""

_GENERATES: Final = "samples are generated during training"
_KERNELS: Final = "replaces the kernels of expert layers"
_REMOVED: Final = "is no longer known to axolotl 0.18"

UNMODELLED: Final[Mapping[str, tuple[Effect, str]]] = {
    # -- the model ----------------------------------------------------------------------------------------------
    "model_config.*": ("both", "overrides the model's own configuration"),
    "overrides_of_model_config.*": ("both", "overrides the model's own configuration"),
    "model_kwargs.*": ("both", "is passed to from_pretrained"),
    "overrides_of_model_kwargs.*": ("both", "is passed to from_pretrained"),
    "rope_scaling.*": ("speed", _REMOVED + ": a key of model_config"),
    "shrink_embeddings": ("less-memory", "cuts the embeddings to the tokenizer's vocabulary"),
    "processor_type": ("both", "samples have images or sound: the activations of their encoder depend on the data"),
    "image_size": ("both", "samples have images: the activations of their encoder depend on the data"),
    "freeze_mm_modules": ("less", "the encoders of images and sound are frozen"),
    "unfrozen_parameters": ("less", "only these parameters train: all are counted"),
    "model_quantization_config": ("both", "the base is loaded as it is quantised"),
    "model_quantization_config_kwargs.*": ("both", "the base is loaded as it is quantised"),
    "use_onebitllms": ("both", "linear layers become BitNet's"),
    "qat.*": ("more", "weights and activations pass through fake quantisation"),
    "llama4_linearized_experts": ("both", "experts are computed one by one"),
    "device_map": ("both", "the model is put on several devices of one process"),
    "device_map.*": ("both", "the model is put on several devices of one process"),
    "max_memory.*": ("both", "the model is put on several devices of one process"),
    "gpu_memory_limit": ("both", "the model is put on several devices of one process"),
    "fp32_norms": ("more-memory", "norms are kept in fp32"),
    "neftune_noise_alpha": ("memory", "noise is added to the embeddings"),
    # -- adapters -----------------------------------------------------------------------------------------------
    "lora_target_parameters": ("more", "adapters on the parameters of experts"),
    "lora_rank_pattern.*": ("memory", "some adapters have another rank"),
    "lora_exclude_modules": ("less-memory", "some matrices get no adapter"),
    "peft_layers_to_transform": ("less", "only these layers get adapters"),
    "peft_layers_pattern": ("less", "only these layers get adapters"),
    "peft_layer_replication": ("both", "layers are used several times"),
    "peft_trainable_token_indices": ("more-memory", "rows of the embeddings train"),
    "peft_trainable_token_indices.*": ("more-memory", "rows of the embeddings train"),
    "peft_autocast_adapter_dtype": ("memory", "format of the adapters"),
    "peft_adapter.*": ("memory", "LLaMA-Adapter's prompts"),
    "relora": ("memory", "adapters are merged into the base again and again"),
    "relora_cpu_offload": ("speed", "adapters are merged on the host"),
    "quantize_moe_experts": ("both", "expert weights are quantised too"),
    "bnb_config_kwargs.*": ("memory", "changes how the base is quantised"),
    "gptq": ("both", "the base is quantised with GPTQ"),
    "mora.*": ("memory", "MoRA adapters"),
    "lisa_n_layers": ("less", "LISA trains some layers at a time"),
    "lisa_step_interval": ("speed", "LISA trains some layers at a time"),
    "lisa_layers_attribute": ("speed", "LISA trains some layers at a time"),
    # -- activations and kernels --------------------------------------------------------------------------------
    "selective_checkpointing": ("both", "outputs of attention are kept and not recomputed"),
    "selective_checkpointing.*": ("both", "outputs of attention are kept and not recomputed"),
    "layer_offloading": ("both", "frozen layers are kept in host memory"),
    "tiled_mlp": ("both", "feed-forward layers run in tiles of the sequence"),
    "flash_attn_cross_entropy": ("less", "flash-attn's cross entropy"),
    "flash_attn_fuse_mlp": ("memory", "flash-attn's fused feed-forward layer"),
    "flash_attn_fuse_qkv": ("memory", "queries, keys and values are projected together"),
    "flash_attn_rms_norm": ("less", "flash-attn's RMSNorm"),
    "flash_optimum": ("both", "BetterTransformer replaces layers"),
    "s2_attention": ("both", "shifted sparse attention"),
    "gemma4_hybrid_attn_impl": ("both", "layers have different kernels of attention"),
    "large_head_attention": ("both", "layers with wide heads have another kernel of attention"),
    "flash_attn_d512": ("both", "layers with wide heads have another kernel of attention"),
    "sdpa_varlen": ("both", "packed rows run in PyTorch's attention of several lengths"),
    "fused_attn_kernel": ("both", "norm and rotation of queries and keys are fused"),
    "scaling_softmax": ("both", "scaled softmax attention"),
    "batch_flattening": ("less", "rows of a batch are put behind one another, without padding"),
    "use_kernels": ("both", "kernels of the Hub replace those of transformers"),
    "use_pose": ("both", "positions are skipped (PoSE)"),
    "pose_split_on_token_ids": ("both", "positions are skipped (PoSE)"),
    "pose_max_context_len": ("both", "positions are skipped (PoSE)"),
    "pose_num_chunks": ("both", "positions are skipped (PoSE)"),
    "use_eaft": ("memory", "the loss needs the entropy of the logits"),
    "chunked_cross_entropy_num_chunks": ("memory", "number of the loss's chunks"),
    "unsloth_cross_entropy_loss": ("less-memory", _REMOVED),
    "unsloth_lora_mlp": ("less-memory", _REMOVED),
    "unsloth_lora_qkv": ("less-memory", _REMOVED),
    "unsloth_lora_o": ("less-memory", _REMOVED),
    "unsloth_rms_norm": ("less-memory", _REMOVED),
    "unsloth_rope": ("less-memory", _REMOVED),
    # -- experts ------------------------------------------------------------------------------------------------
    "experts_implementation": ("both", _KERNELS),
    "expert_backend": ("both", _KERNELS),
    "nonexpert_quantization": ("less-memory", "projections beside the experts are quantised"),
    "moe_grouped_backend": ("both", _KERNELS),
    "moe_dequant_chunk_size": ("memory", "experts are dequantised in chunks"),
    "moe_bnb_fast": ("speed", _KERNELS),
    "use_scattermoe": ("both", _KERNELS),
    "use_sonicmoe": ("both", _KERNELS),
    "use_dsv4_kernels": ("both", _KERNELS),
    "use_glm_dsa_kernels": ("both", "replaces the kernels of sparse attention"),
    "dsv4_fp8_nonexpert_mode": ("both", _KERNELS),
    "dsv4_fp8_lora_kernel": ("both", _KERNELS),
    "dsv4_shared_mlp_lora_kernel": ("both", _KERNELS),
    "dsv4_bf16_all": ("both", _KERNELS),
    "dsv4_fp4_grouped_mode": ("both", _KERNELS),
    "gemma4_fp8_nonexpert": ("less-memory", "projections beside the experts are quantised"),
    "gemma4_nf4_nonexpert": ("less-memory", "projections beside the experts are quantised"),
    "expert_parallel_num_nvl_bytes": ("more-memory", "DeepEP's buffer of exchanges inside a node"),
    "expert_parallel_num_rdma_bytes": ("more-memory", "DeepEP's buffer of exchanges between nodes"),
    "expert_parallel_token_capacity": ("memory", "tokens that the buffers of experts hold"),
    "dense_mixer": ("both", "gradients pass through all experts"),
    # -- the optimizer ------------------------------------------------------------------------------------------
    "optim_args": ("memory", "arguments of the optimizer"),
    "optim_args.*": ("memory", "arguments of the optimizer"),
    "dion_rank_fraction": ("memory", "rank of Dion's approximation"),
    "dion_rank_multiple_of": ("memory", "rank of Dion's approximation"),
    "qgalore_rank": ("memory", "rank of Q-GaLore's projection"),
    "qgalore_proj_quant": ("memory", "Q-GaLore's projection is quantised"),
    "qgalore_proj_bits": ("memory", "Q-GaLore's projection is quantised"),
    "qgalore_proj_group_size": ("memory", "Q-GaLore's projection is quantised"),
    "spectrum_top_fraction": ("less", "Spectrum trains the layers with the best signal only"),
    "spectrum_model_name": ("less-memory", "Spectrum trains the layers with the best signal only"),
    # -- several GPUs -------------------------------------------------------------------------------------------
    "tensor_parallel_size": ("both", "tensor parallelism: every rank is counted with all of its matrices"),
    "context_parallel_size": ("both", "context parallelism: every rank is counted with the whole sequence"),
    "sequence_parallel_degree": ("both", "context parallelism: every rank is counted with the whole sequence"),
    "heads_k_stride": ("memory", "keys gathered at a time in ring attention"),
    "expert_parallel_size": ("both", "expert parallelism: every rank is counted with all experts"),
    "ddp_bucket_cap_mb": ("memory", "size of DDP's buckets"),
    "deepcompile": ("both", "DeepSpeed compiles the model"),
    "resources_per_worker.*": ("unknown", "what Ray gives each worker"),
    "fp8_enable_fsdp_float8_all_gather": ("speed", "weights are gathered in float8"),
    "auto_find_batch_size": ("both", "the micro-batch is halved until it fits"),
    "torch_compile_backend": ("both", "another compiler"),
    # -- beside the step ----------------------------------------------------------------------------------------
    "eval_batch_size": ("memory", "evaluation is not modelled"),
    "eval_sequence_len": ("memory", "evaluation is not modelled"),
    "do_causal_lm_eval": ("memory", _GENERATES),
    "do_bench_eval": ("memory", _GENERATES),
    "generate_samples": ("memory", _GENERATES),
    "gc_steps": ("speed", "collects garbage every few steps"),
    "torch_empty_cache_steps": ("memory", "gives reserved memory back every few steps"),
    "gc_collect_steps": ("speed", "collects garbage every few steps"),
    "profiler_steps": ("both", "records the memory of the first steps"),
    "profiler_steps_start": ("speed", "records the memory of some steps"),
    "trainer_cls": ("both", "a trainer of the user's own"),
    "diffusion.*": ("both", "trains a diffusion language model"),
    "kd_trainer": ("more", "distils from a teacher's logits"),
    "llmcompressor.*": ("both", "sparsifies or quantises while training"),
    # -- reinforcement learning ---------------------------------------------------------------------------------
    **dict.fromkeys(
        (
            "trl.max_completion_length",
            "trl.num_generations",
            "trl.generation_batch_size",
            "trl.num_iterations",
            "trl.use_vllm",
            "trl.vllm_mode",
            "trl.vllm_enable_sleep_mode",
            "trl.use_liger_loss",
            "trl.sync_ref_model",
            "trl.use_data_producer",
            "trl.async_prefetch",
            "trl.prefetch_depth",
            "trl.vllm_sync_interval",
            "trl.streaming_partial_batch",
            "trl.streaming_min_groups",
            "trl.replay_buffer_size",
            "trl.replay_recompute_logps",
            "trl.reroll_start_fraction",
            "trl.reroll_max_groups",
            "trl.vllm_lora_sync",
            "ebft.mode",
            "ebft.stride",
            "ebft.context_length",
            "ebft.generate_max_len",
            "ebft.n_samples_per_prompt",
            "ebft.feature_layers",
        ),
        ("both", "samples are generated and scored during training"),
    ),
    "precompute_ref_log_probs": ("less", "the reference model runs before training"),
    "dpo_use_liger_kernel": ("less-memory", "Liger's loss of preferences"),
    "dpo_use_logits_to_keep": ("less-memory", _REMOVED),
    "dpo_padding_free": ("less", "pairs are put behind one another, without padding"),
    "dpo_generate_during_eval": ("memory", _GENERATES),
    "dpo_norm_loss": ("speed", _REMOVED),
    "hatchery.*": ("both", "trains on a remote server"),
}
"""Key -> (what it may change, why it is not modelled)."""

OFF: Final[Mapping[str, tuple[object, ...]]] = {
    "tensor_parallel_size": (1,),
    "context_parallel_size": (1,),
    "sequence_parallel_degree": (1,),
    "expert_parallel_size": (1,),
    "torch_compile_backend": ("inductor",),
    "experts_implementation": ("eager",),
    "expert_backend": ("eager",),
    "large_head_attention": ("sdpa",),
    "trl.use_vllm": (False,),
    "qgalore_rank": (256,),
    "peft_autocast_adapter_dtype": (True,),
    "bnb_config_kwargs.llm_int8_threshold": (6.0, 6),
}
"""Values that mean that an option is not used."""

HARMLESS_PLUGINS: Final = frozenset((
    "LigerPlugin", "CutCrossEntropyPlugin", "KernelsPlugin", "ExpertParallelPlugin", "SwanLabPlugin", "LMEvalPlugin",
))  # fmt: skip
"""Plugins whose effect is that of their own keys, or none."""
PLUGINS: Final[Mapping[str, tuple[Effect, str]]] = {
    "SpectrumPlugin": ("less", "trains the layers with the best signal only"),
    "GrokfastPlugin": ("more", "keeps a running mean of the gradients"),
    "KDPlugin": ("more", "distils from a teacher's logits"),
    "DenseMixerPlugin": ("both", "gradients pass through all experts"),
    "DiffusionPlugin": ("both", "trains a diffusion language model"),
    "LLMCompressorPlugin": ("both", "sparsifies or quantises while training"),
    "MoraPlugin": ("memory", "MoRA adapters"),
    "NemoGymPlugin": ("both", "samples are generated and scored by environments"),
    "HatcheryPlugin": ("both", "trains on a remote server"),
}
"""Class of a plugin -> what it may change."""
