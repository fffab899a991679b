"""Keys of transformers' TrainingArguments that are not looked at, and of scripts built on them.

Sources: transformers 5.24.0 training_args.py, training_args_seq2seq.py; 4.57 for keys that 5 dropped; examples/pytorch
(ModelArguments, DataTrainingArguments).
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["SCRIPT", "TRAINING"]

TRAINING: Final = Tables(
    neutral=frozenset((
        # how long, how fast the weights move
        "output_dir", "overwrite_output_dir", "num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type",
        "lr_scheduler_kwargs.*", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "weight_decay", "adam_beta1",
        "adam_beta2", "adam_epsilon", "max_grad_norm", "average_tokens_across_devices", "neftune_noise_alpha",
        "average_tokens",
        # logging
        "logging_strategy", "logging_steps", "logging_first_step", "logging_dir", "log_on_each_node", "logging_nan_inf_filter",
        "include_num_input_tokens_seen", "include_tokens_per_second", "log_level", "log_level_replica", "disable_tqdm",
        "report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id",
        "skip_memory_metrics", "debug", "tpu_metrics_debug", "ray_scope",
        # evaluation and saving
        "eval_steps", "eval_delay", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps",
        "include_for_metrics", "include_inputs_for_metrics", "batch_eval_metrics", "prediction_loss_only", "eval_on_start",
        "save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit", "save_safetensors",
        "enable_jit_checkpoint", "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "do_train",
        "do_predict", "resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint",
        "predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config", "sortish_sampler",
        "early_stopping_patience",
        # the Hub
        "push_to_hub", "push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token", "hub_token",
        "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "hub_model_revision",
        # seeds and data
        "seed", "data_seed", "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
        "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context",
        "dataloader_in_order", "remove_unused_columns", "label_names", "train_sampling_strategy", "group_by_length",
        "length_column_name", "shuffle_dataset", "accelerator_config.even_batches", "accelerator_config.use_seedable_sampler",
        "accelerator_config.non_blocking", "accelerator_config.dispatch_batches", "dispatch_batches",
        "accelerator_config.gradient_accumulation_kwargs.*", "accelerator_config.use_configured_state",
        # processes and libraries
        "local_rank", "local-rank", "ddp_backend", "ddp_timeout", "ddp_broadcast_buffers", "ddp_static_graph", "xpu_backend",
        "tpu_num_cores", "use_mps_device", "fp16_opt_level", "half_precision_backend", "fp16_backend", "past_index",
        "use_legacy_prediction_loop", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "torch_compile_backend",
        "torchdynamo_backend", "use_cache", "optim_target_modules", "mp_parameters", "lr", "tpu_name", "fp16_full_eval",
    )),
    unmodelled={
        "bf16_full_eval": ("memory", "evaluation converts the model"),
        "label_smoothing_factor": ("more-memory", "the loss works on a second copy of the log-probabilities"),
        "liger_kernel_config.*": ("both", "chooses single kernels of Liger"),
        "torch_empty_cache_steps": ("speed", "the allocator's cache is emptied while training"),
        "auto_find_batch_size": ("both", "halves the batch until it fits"),
        "full_determinism": ("speed", "deterministic kernels"),
        "ddp_find_unused_parameters": ("speed", "the graph is searched for unused parameters"),
        "ddp_bucket_cap_mb": ("speed", "the size of DDP's buckets"),
        "accelerator_config": ("unknown", "names a file that is not read"),
        "accelerator_config.split_batches": ("both", "the batch is that of all GPUs together"),
        "split_batches": ("both", "the batch is that of all GPUs together"),
        "parallelism_config.*": ("both", "accelerate divides layers or sequences"),
        "jit_mode_eval": ("speed", "evaluation is traced"),
        "use_ipex": ("both", "runs on Intel's extension"),
        "sharded_ddp": ("both", "fairscale shards the states"),
        "xla": ("both", "runs on a TPU"),
        "galore_rank": ("memory", "moments are counted in a projection of rank 128"),
    },
    off={"sharded_ddp": ("",), "label_smoothing_factor": (0, 0.0)},
)  # fmt: skip
"""Keys of TrainingArguments."""

SCRIPT: Final = Tables(
    neutral=frozenset((
        "config", "config_name", "tokenizer_name", "tokenizer_name_or_path", "tokenizer_revision", "cache_dir",
        "use_fast_tokenizer", "use_fast", "model_revision", "token", "use_auth_token", "trust_remote_code",
        "low_cpu_mem_usage", "model_code_revision", "ignore_mismatched_sizes", "dataset_name", "dataset_config_name",
        "dataset_config", "dataset", "dataset_format", "dataset_text_field", "dataset_train_split", "dataset_test_split",
        "dataset_split", "dataset_splits", "splits", "train_split", "dataset_streaming", "dataset_num_proc", "dataset_path",
        "dataset_dir", "data_dir", "data_path", "eval_data_path", "train_data_path", "valid_data_path", "train_file",
        "validation_file", "test_file", "train_data_file", "eval_data_file", "train_files", "validation_files",
        "max_train_samples", "max_eval_samples", "max_predict_samples", "max_samples", "streaming", "overwrite_cache",
        "validation_split_percentage", "validation_split_name", "train_split_name", "preprocessing_num_workers", "num_proc",
        "num_workers", "keep_linebreaks", "line_by_line", "mlm_probability", "task_name", "language", "source_lang",
        "target_lang", "source_prefix", "forced_bos_token", "text_column", "text_column_name", "summary_column",
        "label_column_name", "label_column", "audio_column_name", "image_column_name", "metric_name", "num_beams",
        "ignore_pad_token_for_loss", "doc_stride", "n_best_size", "version_2_with_negative", "null_score_diff_threshold",
        "max_answer_length", "lang", "pad_to_multiple_of", "lazy_preprocess", "conv_template", "chat_template",
        "chat_template_format", "append_concat_token", "add_special_tokens", "lora_alpha", "lora_bias", "bias",
        "lora_task_type", "use_rslora", "lora_scaling", "seed_for_data", "wandb_project", "wandb_run_name", "wandb_entity",
        "tracker_project_name", "checkpointing_steps", "report", "logging_path", "template", "instruction_template",
        "response_template", "train_on_source", "do_mmlu_eval", "mmlu_split", "mmlu_dataset", "group_texts", "stop_on_nan",
        "verbose", "ignore_bias_buffers", "sanity_check", "ddp_kwargs", "lora_weight_path", "save_adapter_only",
        "eval_dataset_size", "train_dataset", "eval_dataset", "num_epochs", "warmup", "tokenizer", "tokenizer_path",
        "prompt_type", "(arguments)", "split", "data_split", "pad_to_max_length", "max_train_steps", "num_warmup_epochs",
        "eval_step", "save_best_model", "clean_best_model", "data_output_path", "num_warmup_steps", "enable_tensorboard",
        "tensorboard_path", "num_padding_at_beginning", "print_loss", "job_name", "sft_only_data_path", "with_tracking",
        "evaluation_steps", "load_best_model", "language_abbr", "task", "env.*",
    )),
    unmodelled={
        "lora_module_name": ("memory", "adapters go to modules whose names hold this"),
        "use_adalora": ("both", "AdaLoRA changes ranks while training"),
        "only_optimize_lora": ("both", "whether the base is frozen"),
        "dropout": ("memory", "replaces the model's dropout"),
        "config_overrides": ("both", "changes the model's shape"),
        "model_type": ("both", "builds a model from scratch"),
        "freeze_encoder": ("less-memory", "a part of the model does not train"),
        "freeze_feature_encoder": ("less-memory", "a part of the model does not train"),
        "freeze_embeddings": ("less-memory", "the embeddings do not train"),
        "freeze_backbone": ("less-memory", "a part of the model does not train"),
        "freeze_vision_tower": ("less-memory", "a part of the model does not train"),
        "tune_mm_mlp_adapter": ("less-memory", "the language model does not train"),
        "vision_tower": ("more", "an image encoder is part of the model"),
        "use_unsloth": ("both", "Unsloth's kernels and checkpointing"),
        "max_memory_MB": ("unknown", "limits what is put on each GPU"),
        "lora_target_parameters": ("more-memory", "parameters of experts get adapters"),
        "use_flash_attention_2": ("both", "chooses the attention kernel"),
    },
)  # fmt: skip
"""Keys of scripts that train with the Trainer: transformers' examples, PEFT's, FastChat's, QLoRA's and many people's own."""
