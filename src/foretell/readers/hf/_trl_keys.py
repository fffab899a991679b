"""Keys of TRL's configurations that are not looked at (TRL 1.9.0; those that 0.9 to 0.28 had).

Sources: trl trainer/*_config.py, experimental/*/*_config.py, scripts/utils.py; alignment-handbook src/alignment/configs.py.
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["TRL"]

TRL: Final = Tables(
    neutral=frozenset((
        # data
        "dataset_mixture.*", "datasets.*", "datasets[].*", "dataset_mixer.*", "dataset_splits", "dataset_configs",
        "test_split_size", "streaming", "dataset_kwargs.*", "dataset_kwargs", "dataset_batch_size", "dataset_id_or_path",
        "columns", "text_column", "skip_prepare_dataset", "num_of_sequences", "chars_per_token", "formatting_func",
        "auto_insert_empty_system_msg", "completion_only_loss", "assistant_only_loss", "train_on_inputs", "tools",
        "preprocessing_num_workers", "messages_key", "chat_template", "chat_template_path", "chat_template_kwargs.*",
        "eos_token", "pad_token", "padding_value", "label_pad_token_id", "truncation_mode", "packing_strategy", "eval_packing",
        "padding_free", "pad_to_multiple_of", "is_encoder_decoder", "system_prompt", "dataset_prompt_column", "decontaminate",
        "benchmarks", "callbacks", "wandb_log_unique_prompts", "data_files", "exp_name", "save_folder", "step_separator",
        "train_on_last_step_only", "chat_template_kwargs", "generation_kwargs", "gradient_checkpointing_use_reentrant",
        # losses of preferences
        "beta", "label_smoothing", "loss_weights", "ld_alpha", "f_divergence_type", "f_alpha_divergence_coef", "use_weighting",
        "discopop_tau", "rpo_alpha", "desirable_weight", "undesirable_weight", "cpo_alpha", "simpo_gamma", "alpha",
        "gamma_beta_ratio", "center_rewards_coefficient", "ref_model_mixup_alpha", "ref_model_sync_steps", "reference_free",
        "disable_dropout", "base_model_attribute_name", "model_adapter_name", "ref_adapter_name", "precompute_ref_batch_size",
        "prompt_sample_size", "min_density_ratio", "max_density_ratio", "router_aux_loss_coef", "max_prompt_length",
        "max_target_length", "token_level_kl", "normalize_advantage", "normalize_reward", "non_eos_penalty",
        "penalty_reward_value", "mixture_coef", "world_size", "num_total_batches", "eos_tokens", "eos_token_ids", "do_sample",
        "replay_buffer_size",
        # sampling and rewards
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs.*", "epsilon", "epsilon_high",
        "delta", "importance_sampling_level", "reward_weights", "scale_rewards", "mask_truncated_completions",
        "top_entropy_quantile", "entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max",
        "entropy_coef_delta", "entropy_target", "multi_objective_aggregation", "normalize_advantages", "reward_clip_range",
        "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg",
        "off_policy_mask_threshold", "use_bias_correction_kl", "vllm_importance_sampling_correction",
        "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
        "vllm_importance_sampling_cap", "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
        "vllm_group_port", "vllm_structured_outputs_regex", "vllm_guided_decoding_regex", "vllm_model_impl", "log_completions",
        "log_multimodal", "num_completions_to_print", "log_unique_prompts", "log_completions_hub_repo", "missing_eos_penalty",
        "whiten_rewards", "kl_coef", "kl_estimator", "cliprange", "vf_coef", "cliprange_value", "gamma", "lam", "stop_token",
        "stop_token_id", "num_sample_generations", "total_episodes", "max_tool_calling_iterations", "reward_funcs", "lmbda",
        "seq_kd", "num_generations_eval", "shuffle_dataset", "accelerate_config", "reward_funcs_registry",
        "cosine_min_value_wrong", "cosine_max_value_wrong", "cosine_min_value_correct", "cosine_max_value_correct",
        "cosine_max_len", "repetition_n_grams", "repetition_max_penalty", "code_language",
    )),
    unmodelled={
        "model_init_kwargs": ("both", "arguments of from_pretrained"),
        "rloo_k": ("both", "answers that are sampled for each prompt"),
        "batch_size": ("both", "rollouts of a step"),
        "local_batch_size": ("both", "rollouts of a step"),
        "mini_batch_size": ("both", "rollouts of a step"),
        "local_mini_batch_size": ("both", "rollouts of a step"),
        "micro_batch_size": ("both", "rollouts of a step"),
        "use_num_logits_to_keep": ("less", "logits of answers only"),
        "vllm_enable_prefix_caching": ("speed", "vLLM keeps the keys and values of prompts"),
        "transformers_continuous_batching_config": ("both", "how answers are sampled"),
        "ref_model_init_kwargs": ("memory", "arguments of the reference model"),
        "teacher_model_init_kwargs": ("memory", "arguments of the teacher"),
        "model_init_kwargs.*": ("both", "arguments of from_pretrained"),
        "ref_model_init_kwargs.*": ("memory", "arguments of the reference model"),
        "sync_ref_model": ("speed", "the reference model follows the trained one"),
        "generate_during_eval": ("more-memory", "evaluation generates"),
        "use_liger_loss": ("less", "Liger's loss of preferences, in chunks"),
        "use_logits_to_keep": ("less", "logits of answers only"),
        "force_use_ref_model": ("more", "a reference model beside the adapters"),
        "cast_lm_head_to_fp32": ("more-memory", "the head is kept in fp32"),
        "num_generations": ("both", "answers that are sampled for each prompt"),
        "generation_batch_size": ("both", "answers that are sampled at once"),
        "steps_per_generation": ("speed", "how often answers are sampled"),
        "num_iterations": ("speed", "how often samples are used"),
        "use_vllm": ("both", "vLLM samples the answers"),
        "vllm_mode": ("both", "where vLLM runs"),
        "vllm_gpu_memory_utilization": ("both", "vLLM's share of the GPU"),
        "vllm_tensor_parallel_size": ("both", "vLLM's parallelism"),
        "vllm_max_model_length": ("both", "vLLM's longest request"),
        "vllm_max_model_len": ("both", "vLLM's longest request"),
        "vllm_device": ("both", "where vLLM runs"),
        "vllm_dtype": ("both", "vLLM's format"),
        "vllm_enable_sleep_mode": ("less", "vLLM frees its memory between samplings"),
        "use_transformers_paged": ("both", "how answers are sampled"),
        "use_transformers_continuous_batching": ("both", "how answers are sampled"),
        "transformers_continuous_batching_config.*": ("both", "how answers are sampled"),
        "cache_implementation": ("memory", "the KV cache of sampling"),
        "ds3_gather_for_generation": ("more-memory", "the whole model is gathered for sampling"),
        "max_new_tokens": ("both", "the length of sampled answers"),
        "response_length": ("both", "the length of sampled answers"),
        "local_rollout_forward_batch_size": ("both", "samples of one pass without gradients"),
        "num_mini_batches": ("both", "how a batch of rollouts is divided"),
        "num_ppo_epochs": ("speed", "how often rollouts are used"),
        "reward_model_path": ("more", "a reward model beside"),
        "sft_model_path": ("more", "a reference model beside"),
        "teacher_model_name_or_path": ("more", "a teacher beside"),
        "teacher_model_init_kwargs.*": ("memory", "arguments of the teacher"),
    },
)  # fmt: skip
