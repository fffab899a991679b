"""Keys of an OLMo file that are not looked at (allenai/OLMo 59a53e3 ``olmo/config.py``: TrainConfig and what it holds)."""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["TABLES"]

_MODEL: Final = """
alibi_bias_max rope_theta rope_full_precision clip_qkv layer_norm_eps max_sequence_length scale_logits eos_token_id pad_token_id
init_device init_fn init_std init_cutoff_factor precision scale_emb_init emb_init_std vocab_size new_init
low_cpu_fsdp alibi_bias_max attention_layer_norm_with_affine layer_norm_with_affine bias_for_layer_norm
"""
_RUN: Final = """
run_name seed epoch dry_run scheduler.* data.* restore_dataloader fast_forward_batches evaluators[].* evaluators
eval_interval tokenizer.* save_folder remote_save_folder canceled_check_interval save_interval save_interval_unsharded
save_interval_ephemeral save_num_checkpoints_to_keep save_num_unsharded_checkpoints_to_keep save_overwrite
force_save_unsharded no_pre_train_checkpoint load_path load_path_sharded_checkpointer try_load_latest_save
reset_optimizer_state reset_trainer_state sharded_checkpointer new_style_checkpoints max_duration device_train_batch_size
device_eval_batch_size device_train_grad_accum eval_subset_num_batches eval_on_load max_grad_norm max_grad_norm_ratio
wandb.* speed_monitor.* console_log_interval gen1_gc_interval time_limit extra_steps_after_cancel early_stopping_factor
save_data_indices python_profiling torch_profiling stop_at stop_after hf_datasets_cache_dir module_outputs_save_steps
auxiliary_loss_multiplier single.device ddp.grad_sync_mode distributed_strategy
optimizer.learning_rate optimizer.weight_decay optimizer.betas optimizer.eps optimizer.no_decay_norm_and_bias
optimizer.decay_norm_and_bias optimizer.decay_embeddings optimizer.metrics_log_interval
fsdp.use_orig_params fsdp.hybrid_sharding_num_model_replicas
compile.fullgraph compile.backend compile.dynamic (arguments)
"""
TABLES: Final = Tables(
    neutral=frozenset(_RUN.split()) | frozenset(f"model.{key}" for key in _MODEL.split()),
    unmodelled={
        "data.generate_attention_mask": ("both", "attention gets a mask, which its kernel may not take"),
        "data.generate_doc_lengths": ("speed", "documents do not see each other"),
        "optimizer.selective_updates": ("both", "the update runs one parameter after the other, with masks"),
        "optimizer.record_update_metrics": ("both", "norms of updates are taken"),
        "ddp.find_unused_params": ("speed", "the graph is searched for parameters without gradients"),
        "compile.mode": ("both", "chooses how torch.compile works, and CUDA graphs"),
        "model.embedding_layer_norm": ("more-memory", "a norm behind the embeddings"),
    },
    off={
        "compile.mode": ("default",),
    },
)
