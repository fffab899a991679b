"""Keys of LLaMA-Factory's files that change nothing, and those whose effect is not modelled, beside TrainingArguments' own.

LLaMA-Factory 0.9.6.dev0, ``hparams/*.py``, ``v1/config/*.py`` and ``v1/plugins``; mcore_adapter's arguments of Megatron-Core.
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["LLAMAFACTORY", "MEGATRON", "V1"]

_DATA: Final = """
template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history streaming buffer_size mix_strategy
interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers max_samples eval_num_beams
ignore_pad_token_for_loss val_size eval_on_each_dataset tool_format default_system enable_thinking preserve_thinking
tokenized_path data_shared_file_system disable_shuffling reserved_label_len train_on_inputs
"""
_MODEL: Final = """
adapter_name_or_path adapter_folder cache_dir use_fast_tokenizer resize_vocab split_special_tokens add_tokens add_special_tokens
new_special_tokens_config init_special_tokens model_revision low_cpu_mem_usage rope_scaling trust_remote_code hf_hub_token
ms_hub_token om_hub_token print_param_status train_from_scratch offload_folder use_kv_cache use_v1_kernels infer_dtype
quantization_device_map use_audio_in_video audio_sampling_rate export_dir export_size export_device export_quantization_bit
export_quantization_dataset export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id
vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config.* sglang_maxlen sglang_mem_fraction sglang_tp_size
sglang_config.* sglang_lora_backend infer_backend moe_aux_loss_coef kt_num_threads
"""
_METHOD: Final = """
lora_alpha use_rslora pissa_init pissa_iter pissa_convert create_new_adapter loraplus_lr_ratio loraplus_lr_embedding
module_dropout pref_beta pref_ftx pref_bco_weight dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma ppo_epochs
ppo_score_norm ppo_target ppo_whiten_rewards ld_alpha galore_update_interval galore_scale galore_proj_type galore_target
apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_scale_front apollo_target
badam_start_block badam_switch_mode badam_switch_interval badam_mask_mode badam_verbose asft_alpha eaft_alpha compute_accuracy
early_stopping_steps plot_loss include_effective_tokens_per_second use_swanlab swanlab_project swanlab_workspace
swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret
ray_run_name ray_storage_path ray_storage_filesystem ray_init_kwargs.* master_addr master_port placement_strategy
resources_per_worker.*
profiler_output_dir profiler_wait_steps profiler_warmup_steps profiler_active_steps profiler_repeat profile_modules
do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens
"""
_IMAGES: Final = "samples have images, video or sound: the activations of their encoder depend on the data"
_FROZEN: Final = "parts of the model are frozen: all are counted as they train"
_HOST: Final = "experts run on the host (KTransformers): all are counted on the GPU"
_PROFILED: Final = "records a profile of some steps"

LLAMAFACTORY: Final = Tables(
    frozenset(f"{_DATA} {_MODEL} {_METHOD}".split()),
    {
        # -- the model and its kernels --------------------------------------------------------------------------------
        "shift_attn": ("both", "shifted sparse attention"),
        "mixture_of_depths": ("both", "tokens skip layers (mixture of depths)"),
        "use_unsloth": ("less", "Unsloth's kernels keep fewer activations"),
        "upcast_layernorm": ("more-memory", "norms are kept in fp32"),
        "upcast_lmhead_output": ("more-memory", "logits are copied to fp32"),
        **dict.fromkeys(
            (
                "image_max_pixels",
                "image_min_pixels",
                "image_do_pan_and_scan",
                "crop_to_patches",
                "video_max_pixels",
                "video_min_pixels",
                "video_fps",
                "video_maxlen",
            ),
            ("both", _IMAGES),
        ),
        **dict.fromkeys(
            ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model", "freeze_extra_modules"),
            ("less", _FROZEN),
        ),
        **dict.fromkeys(
            (
                "use_kt",
                "kt_config.*",
                "kt_cpu_activation",
                "kt_weight_path",
                "kt_non_expert_weight_path",
                "kt_expert_checkpoint_path",
                "kt_use_lora_experts",
                "kt_lora_expert_num",
                "kt_lora_expert_intermediate_size",
            ),
            ("both", _HOST),
        ),
        # -- the method -----------------------------------------------------------------------------------------------
        "use_llama_pro": ("less", "only the expanded layers train"),
        "freeze_trainable_layers": ("less", "only some layers train: all are counted"),
        "freeze_trainable_modules": ("less", "only some modules train: all are counted"),
        "oft_rank": ("both", "OFT is counted as LoRA"),
        "oft_block_size": ("both", "OFT is counted as LoRA"),
        "oft_target": ("both", "OFT is counted as LoRA on every matrix"),
        "ref_model": ("more", "a reference model runs beside it"),
        "ref_model_adapters": ("more", "a reference model runs beside it"),
        "ref_model_quantization_bit": ("less-memory", "the reference model is quantised"),
        "reward_model": ("more", "a reward model runs beside it"),
        "reward_model_adapters": ("more", "a reward model runs beside it"),
        "reward_model_quantization_bit": ("less-memory", "the reward model is quantised"),
        "reward_model_type": ("memory", "how the reward model is kept"),
        "ppo_buffer_size": ("memory", "micro-batches of experience that are kept"),
        "use_dft_loss": ("memory", "the loss weighs tokens by their probability"),
        "use_asft_loss": ("more", "a reference model runs beside it"),
        "use_eaft_loss": ("memory", "the loss needs the entropy of the logits"),
        "galore_rank": ("memory", "moments are counted in a projection of rank 128"),
        "apollo_rank": ("memory", "moments are counted in a projection of rank 128"),
        "badam_mode": ("memory", "BAdam by ratio, where one layer at a time is counted"),
        "badam_update_ratio": ("memory", "BAdam by ratio, where one layer at a time is counted"),
        # -- several GPUs, beside the step ------------------------------------------------------------------------------
        "use_hyper_parallel": ("both", "HyperParallel divides the model"),
        "hyper_parallel_args": ("both", "HyperParallel divides the model"),
        "hyper_parallel_cp_size": ("both", "HyperParallel divides the sequence"),
        "fp8_backend": ("speed", "library of float8 products"),
        "fp8_enable_fsdp_float8_all_gather": ("speed", "weights are gathered in float8"),
        "enable_torch_profiler": ("both", _PROFILED),
        "profiler_record_shapes": ("speed", _PROFILED),
        "profiler_profile_memory": ("speed", _PROFILED),
        "profiler_with_stack": ("speed", _PROFILED),
    },
    {
        "badam_mode": ("layer",),
        "galore_rank": (128,),
        "apollo_rank": (128,),
        "hyper_parallel_cp_size": (1,),
        "fp8_backend": ("auto", "torchao"),
        "reward_model_type": ("lora", "full"),
        "freeze_trainable_modules": ("all",),
    },
)
"""Keys of the model, data, fine-tuning and generation arguments."""

_MEGATRON: Final = """
bias_activation_fusion apply_rope_fusion masked_softmax_fusion moe_grouped_gemm calculate_per_token_loss overlap_param_gather
overlap_grad_reduce megatron_pretrained_checkpoint export_hf_on_finish account_for_embedding_in_pipeline_split
account_for_loss_in_pipeline_split use_mca use_megatron_bridge tensorboard save_hf_model overlap_p2p_comm
gradient_accumulation_fusion variable_seq_lengths attention_softmax_in_fp32
"""
MEGATRON: Final = Tables(
    frozenset(_MEGATRON.split()),
    {
        "cross_entropy_loss_fusion": ("memory", "a fused loss"),
        "extra_config": ("both", "overrides of Megatron Bridge"),
        "extra_config.*": ("both", "overrides of Megatron Bridge"),
        "use_packed_sequences": ("speed", "samples are packed by Megatron Bridge"),
        "moe_aux_loss_coeff": ("speed", "the auxiliary loss of the router"),
        "additional_configs.*": ("both", "overrides of mcore_adapter"),
        "transformer_impl": ("both", "Megatron-Core's own layers in place of Transformer Engine's"),
        "distributed_timeout_minutes": ("unknown", ""),
    },
    {"transformer_impl": ("transformer_engine",)},
)
"""Arguments of Megatron Bridge and mcore_adapter."""

_V1: Final = """
train_dataset eval_dataset custom_chat_template trust_remote_code sample_backend max_new_tokens output_dir learning_rate
num_train_epochs max_steps max_grad_norm batching_workers dist_timeout seed full_determinism resume_from_checkpoint save_steps
save_epochs save_ckpt_as_hf save_total_limit logging_steps pref_beta pref_ftx simpo_gamma dpo_label_smoothing ld_alpha
lr_scheduler_config.* model_class init_config.* dist_config.dcp_path dist_config.pin_memory peft_config.lora_alpha
peft_config.use_rslora peft_config.adapter_name_or_path peft_config.export_dir peft_config.export_size
peft_config.export_hub_model_id peft_config.infer_dtype peft_config.export_legacy_format optim_config.lr optim_config.wd
optim_config.momentum optim_config.nesterov optim_config.ns_steps optim_config.adamw_betas optim_config.adamw_eps
quant_config.compute_dtype peft_config.cast_trainable_params_to_fp32
"""
V1: Final = Tables(
    frozenset(_V1.split()),
    {
        "kernel_config.*": ("both", "kernels of the user's choice replace those of transformers"),
        "cp_size": ("both", "context parallelism: every rank is counted with the whole sequence"),
        "cp_mode": ("both", "context parallelism: every rank is counted with the whole sequence"),
        "dist_config.ep_size": ("both", "expert parallelism: every rank is counted with all experts"),
        "dist_config.ep_dispatcher": ("speed", "how routed tokens travel"),
        "peft_config.freeze_trainable_layers": ("less", "only some layers train: all are counted"),
        "peft_config.freeze_trainable_modules": ("less", "only some modules train: all are counted"),
        "peft_config.freeze_extra_modules": ("less", "only some modules train: all are counted"),
        "dp_size": ("both", "ranks of data parallelism"),
        "mp_shard_size": ("memory", "ranks that one copy of the states is divided over"),
    },
    {
        "kernel_config.name": ("auto",),
        "cp_size": (1,),
        "dist_config.ep_size": (1,),
        "cp_mode": ("ulysses",),
        "peft_config.freeze_trainable_modules": ("all",),
    },
)
"""Keys of the files of ``USE_V1=1``."""
