"""Keys of an llm-foundry file that are not looked at.

Sources: mosaicml/llm-foundry 8c8dd48 ``llmfoundry/utils/config_utils.py`` TrainConfig, ``models/mpt/configuration_mpt.py``,
``models/hf/hf_base.py``, ``callbacks/__init__.py``, ``algorithms/__init__.py``; mosaicml/composer 6405188
``composer/utils/parallelism.py`` FSDPConfig; PEFT ``LoraConfig``.
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["JOB", "TABLES"]

_RUN: Final = """
variables variables.* run_name seed code_paths dist_timeout accumulate_train_batch_on_tokens eval_interval eval_first
eval_subset_num_batches eval_loader.* eval_loaders.* device_eval_batch_size icl_tasks icl_tasks.* icl_tasks_str
icl_subset_num_batches icl_seq_len icl_max_seq_len eval_gauntlet eval_gauntlet.* eval_gauntlet_str loggers.* progress_bar
log_to_console python_log_level console_log_interval log_config save_folder save_latest_filename save_overwrite
save_weights_only save_filename save_interval save_num_checkpoints_to_keep save_ignore_keys load_path load_weights_only
load_strict_model_weights load_ignore_keys only_hf_checkpoint only_composer_checkpoint train_subset_num_batches
spin_dataloaders metadata metadata.* flatten_metadata autoresume profiler.* max_duration cuda_load_lazy scheduler.*
tokenizer.* train_loader.name train_loader.dataset.* train_loader.drop_last train_loader.num_workers train_loader.pin_memory
train_loader.prefetch_factor train_loader.persistent_workers train_loader.timeout train_loader.collate_fn dataset.*
data_local data_remote global_seed tokenizer_name model_name_or_path max_seq_len n_gpus device_train_grad_accum
source_dataset_train source_dataset_eval
optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay optimizer.disable_grad optimizer.param_groups
callbacks.* algorithms.gradient_clipping.* (arguments)
"""
_SHARDING: Final = """
activation_checkpointing_reentrant auto_wrap data_parallel_shard_degree load_fsdp_monolith_rank0_only
load_monolith_rank0_only load_planner.* save_planner.* sharded_ckpt_prefix_dir state_dict_type sync_module_states
use_orig_params verbose forward_prefetch_limit backward_prefetch_limit flatten_parameters min_params
"""
_MODEL: Final = """
init_device init_config.* norm_eps logit_scale embedding_fraction use_cache softmax_scale verbose init_std tokenizer_name
attn_config.softmax_scale attn_config.clip_qkv attn_config.attn_uses_sequence_id attn_config.alibi_bias_max
attn_config.rope_theta attn_config.rope_dail_config.* attn_config.rope_hf_config.* attn_config.attn_temperature_tuning.*
attn_config.prefix_lm attn_config.kv_dim loss_fn ffn_config.moe_loss_weight ffn_config.moe_lbl_in_fp32
ffn_config.moe_jitter_eps ffn_config.uniform_expert_assignment ffn_config.moe_normalize_expert_weights
ffn_config.moe_weight_parallelism ffn_config.moe_zloss_weight max_seq_len
pretrained pretrained_lora_id_or_path trust_remote_code use_auth_token additional_train_metrics additional_eval_metrics
allow_embedding_resizing should_save_peft_only z_loss adapt_vocab_for_denoising
peft_config.peft_type peft_config.task_type peft_config.lora_alpha peft_config.bias peft_config.use_rslora
peft_config.init_lora_weights peft_config.inference_mode peft_config.fan_in_fan_out peft_config.base_model_name_or_path
peft_config.revision
config_overrides
"""
TABLES: Final = Tables(
    neutral=frozenset(
        (*_RUN.split(), *(f"fsdp_config.{key}" for key in _SHARDING.split()), *(f"model.{key}" for key in _MODEL.split())),
    ),
    unmodelled={
        "max_split_size_mb": ("memory", "the allocator divides no larger block"),
        "tp_config.*": ("both", "tensor parallelism divides some layers"),
        "callbacks.layer_freezing.*": ("less-memory", "some layers do not train"),
        "callbacks.curriculum_learning.*": ("both", "the length of samples changes during the run"),
        "callbacks.optimizer_monitor.*": ("speed", "norms of gradients and states are taken"),
        "algorithms.alibi.*": ("both", "Composer changes the model's attention"),
        "algorithms.gated_linear_units.*": ("both", "Composer replaces feed-forward networks by gated ones"),
        "algorithms.low_precision_layernorm.*": ("less", "norms run in 16 bits"),
        "optimizer.amsgrad": ("more-memory", "a third state an element"),
        "compile_config.mode": ("speed", "chooses how torch.compile works"),
        "fsdp_config.activation_cpu_offload": ("less", "activations are kept in host memory"),
        "fsdp_config.backward_prefetch": ("both", "gathers the next unit's weights at another time"),
        "fsdp_config.forward_prefetch": ("more", "gathers the next unit's weights early"),
        "fsdp_config.limit_all_gathers": ("more", "weights are gathered far ahead"),
        "fsdp_config.keep_low_precision_grads": ("less-memory", "gradients stay in 16 bits"),
        "fsdp_config.te_checkpoint_wrapper": ("memory", "Transformer Engine's checkpointing"),
        "fsdp_config.te_shard_fp8_weight": ("both", "FP8 weights are sharded and gathered"),
        "fsdp_config.ignored_modules": ("more-memory", "some modules are not sharded"),
        "fsdp_config.process_group": ("memory", "chooses how many GPUs share a shard"),
        "model.block_overrides.*": ("both", "layers differ from each other"),
        "model.use_pad_tok_in_ffn": ("speed", "padding does not pass through the feed-forward networks"),
        "model.final_logit_softcapping": ("more-memory", "logits are capped"),
        "model.attn_config.attn_logit_softcapping": ("both", "scores are capped"),
        "model.attn_config.nope": ("speed", "no positions"),
        "model.attn_config.fused_qkv": ("both", "q, k and v are three products"),
        "model.attn_config.reuse_kv_layer_idx": ("less", "keys and values of another layer are used"),
        "model.attn_config.seq_parallel_world_size": ("both", "a sequence is divided over GPUs"),
        "model.fc_type": ("both", "Transformer Engine's linear layers"),
        "model.fc_type.*": ("both", "Transformer Engine's linear layers"),
        "model.use_train_metrics": ("less-memory", "no metrics read the logits"),
        "model.ffn_config.moe_world_size": ("less", "experts are spread over GPUs"),
        "model.ffn_config.moe_capacity_factor": ("both", "experts take a fixed number of tokens"),
        "model.ffn_config.memory_optimized_mlp": ("less-memory", "MegaBlocks keeps fewer activations of experts"),
        "model.ffn_config.mlp_impl": ("both", "chooses MegaBlocks' kernel"),
        "model.ffn_config.moe_expert_model_parallelism": ("both", "experts are spread over GPUs"),
        "model.ffn_config.fp16": ("memory", "the format of MegaBlocks' experts"),
        "model.ffn_config.bf16": ("memory", "the format of MegaBlocks' experts"),
        "model.activation_checkpointing_target": ("more", "only some modules are recomputed"),
        "model.activation_checkpointing_target.*": ("more", "only some modules are recomputed"),
        "model.load_in_8bit": ("both", "llm-foundry refuses this in training"),
        "model.peft_config.layers_to_transform": ("less-memory", "only some layers get adapters"),
        "model.peft_config.layers_pattern": ("less-memory", "only some layers get adapters"),
        "model.peft_config.rank_pattern.*": ("memory", "some adapters have another rank"),
        "model.peft_config.target_parameters": ("more-memory", "parameters of experts get adapters"),
    },
    off={
        "fsdp_config.limit_all_gathers": (True,),
        "fsdp_config.backward_prefetch": ("BACKWARD_POST",),
        "model.use_pad_tok_in_ffn": (True,),
        "model.use_train_metrics": (True,),
        "model.fc_type": ("torch",),
        "model.fc_type.name": ("torch",),
        "model.ffn_config.moe_world_size": (1,),
        "model.ffn_config.mlp_impl": ("grouped",),
        "model.ffn_config.moe_capacity_factor": (0,),
        "model.attn_config.fused_qkv": (True,),
        "model.attn_config.seq_parallel_world_size": (1,),
        "model.ffn_config.fp16": (False,),
        "model.ffn_config.bf16": (True,),
        "compile_config.mode": ("default",),
    },
)
_AROUND: Final = """
name image command integrations integrations[].* env_variables env_variables[].* env_variables.* scheduling.* metadata.*
compute.cluster compute.gpu_type compute.instance compute.nodes compute.node_names compute.cpus
"""
JOB: Final = Tables(frozenset(_AROUND.split()))
"""Keys of a MosaicML job around the configuration (mcli ``RunConfig``; llm-foundry ``mcli/*.yaml``)."""
