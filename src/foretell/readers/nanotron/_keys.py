"""Keys of a nanotron file that are not looked at.

Source: huggingface/nanotron 2411b02 ``src/nanotron/config/config.py``, ``lighteval_config.py``, ``models_config.py``,
``examples/doremi/doremi/config.py``, ``examples/mamba/config.py``, ``examples/moe/config_llamoe.py``.
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables

__all__ = ["COMMAND", "TABLES"]

_MODEL: Final = """
bos_token_id eos_token_id pad_token_id initializer_range rms_norm_eps layer_norm_epsilon rope_scaling rope_theta rope_interleaved
rope_seq_len_interpolation_factor use_cache pretraining_tp log_attn_probs ring_attn_heads_k_stride z_loss_coefficient
use_position_embeddings interleaved_rotary
use_rotary_embeddings attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights
max_position_embeddings moe_config.router_aux_loss_coef moe_config.token_dispatcher_type moe_loss_weight moe_z_loss_weight
ssm_cfg.dt_init ssm_cfg.dt_init_floor ssm_cfg.dt_max ssm_cfg.dt_min ssm_cfg.dt_scale flex_attention_mask _use_doc_masking
"""
_RUN: Final = """
general.* checkpoints.* logging.* metrics_logging.* tokenizer.* lighteval.* s3_upload.* profiler.* experiment_logger.*
data.* data_stages[].name data_stages[].start_training_step data_stages[].data.* doremi.domain_names
doremi.domain_weights doremi.smoothing_param doremi.step_size
model.init_method.* model.ddp_bucket_cap_mb
optimizer.weight_decay optimizer.clip_grad optimizer.weight_decay_exclude_named_params
optimizer.learning_rate_scheduler.* optimizer.adam_beta1 optimizer.adam_beta2 optimizer.adam_eps
optimizer.optimizer_factory.adam_beta1 optimizer.optimizer_factory.adam_beta2 optimizer.optimizer_factory.adam_eps
tokens.train_steps tokens.val_check_interval tokens.limit_val_batches tokens.limit_test_batches
"""
TABLES: Final = Tables(
    neutral=frozenset(_RUN.split()) | frozenset(f"model.model_config.{key}" for key in _MODEL.split()),
    unmodelled={
        "parallelism.moe_layer_recompute": ("less", "experts are recomputed in the backward pass"),
        "doremi.ref_model_resume_checkpoint_path": ("more", "a reference model runs beside the one that trains"),
        "data_stages[].sequence_length": ("both", "a stage of training has samples of another length"),
        "model.model_config.z_loss_enabled": ("more-memory", "the loss has a second term over the logits"),
        "model.model_config.no_rope_layer": ("speed", "some layers have no rotary embedding"),
        "model.model_config.global_attn_layers": ("speed", "some layers see everything, the others a window"),
        "model.model_config.moe_capacity_factor": ("both", "experts take a fixed number of tokens"),
        "model.model_config.fused_add_norm": ("less-memory", "the residual sum and the norm are one kernel"),
        "model.model_config.residual_in_fp32": ("more-memory", "the residual stream is fp32"),
        "model.model_config._fused_rotary_emb": ("both", "chooses the kernel of rotary embeddings"),
        "model.model_config._fused_rms_norm": ("both", "chooses the kernel of norms"),
        "model.model_config._use_qkv_packed": ("both", "chooses how q, k and v are laid out"),
        "model.model_config.ssm_cfg.use_fast_path": ("both", "chooses mamba_ssm's kernels"),
    },
    off={
        "model.model_config._fused_rotary_emb": (True,),
        "model.model_config._fused_rms_norm": (True,),
        "model.model_config._use_qkv_packed": (True,),
        "model.model_config.fused_add_norm": (False,),
        "model.model_config.ssm_cfg.use_fast_path": (True,),
    },
)
COMMAND: Final = Tables(frozenset(("config_file", "(arguments)")))
"""Arguments of ``run_train.py``."""
