"""torchtune's recipes and the keys of their files that no setting is made of.

Source: torchtune 0.7.0 (``recipes/*.py``: every ``cfg.get``; ``_recipe_registry.py``; ``torchtune/training``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers.hf._common import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretell.readers._reading import Effect

__all__ = ["COMMAND", "IDLE", "RECIPES", "TABLES", "TORCHRUN", "Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a recipe does."""

    kind: str
    """sft, dpo, kd, ppo, grpo, async-grpo, or what it does instead of training."""
    many: bool
    """Whether it runs on several GPUs."""
    trains: bool = True


RECIPES: Final[Mapping[str, Recipe]] = {
    "full_finetune_single_device": Recipe("sft", many=False),
    "full_finetune_distributed": Recipe("sft", many=True),
    "lora_finetune_single_device": Recipe("sft", many=False),
    "lora_finetune_distributed": Recipe("sft", many=True),
    "lora_finetune_fsdp2": Recipe("sft", many=True),
    "full_dpo_distributed": Recipe("dpo", many=True),
    "lora_dpo_single_device": Recipe("dpo", many=False),
    "lora_dpo_distributed": Recipe("dpo", many=True),
    "qat_single_device": Recipe("sft", many=False),
    "qat_distributed": Recipe("sft", many=True),
    "qat_lora_finetune_distributed": Recipe("sft", many=True),
    "knowledge_distillation_single_device": Recipe("kd", many=False),
    "knowledge_distillation_distributed": Recipe("kd", many=True),
    "ppo_full_finetune_single_device": Recipe("ppo", many=False),
    "grpo_full_finetune_distributed": Recipe("grpo", many=True),
    "async_grpo_full_finetune_distributed": Recipe("async-grpo", many=True),
    "early_exit_finetune_distributed": Recipe("sft", many=True),
    "lora_finetune_distributed_multi_dataset": Recipe("sft", many=True),
    "generate": Recipe("generates text", many=False, trains=False),
    "generate_v2": Recipe("generates text", many=False, trains=False),
    "generate_v2_distributed": Recipe("generates text", many=True, trains=False),
    "eleuther_eval": Recipe("evaluates a model", many=False, trains=False),
    "quantize": Recipe("quantises a checkpoint", many=False, trains=False),
}
"""By name, without "dev/"."""
IDLE: Final = {
    "download": "fetches a checkpoint",
    "ls": "lists recipes",
    "cp": "copies a recipe or a configuration",
    "cat": "shows a configuration",
    "validate": "checks a configuration",
}
"""What the other commands of ``tune`` do (``torchtune/_cli``)."""

_NEUTRAL: Final = """
activation_offloading_use_streams adapter_config.* apply_chat_template base_model_path batch_size_val chat_template
checkpoint_dir checkpoint_file checkpoint_files checkpointer.* clip_grad_norm collate_fn cudnn_deterministic_mode
data_parallel_shard_dim dataloader.* dataset dataset.* dataset[] dataset[].* dataset_val.* dataset_val[].* datasets[].*
debug_logging_enabled debug_num_samples_per_step device dtype_inference enable_kv_cache epochs fp8_recipe_name
fsdp_sharding_strategy gamma include_path kd_ratio keep_last_n_checkpoints kl_coeff limit lmbda log_every_n_steps log_level
log_peak_memory_stats loss loss.* low_cpu_ram lr_scheduler lr_scheduler.* max_steps_per_epoch metric_logger metric_logger.*
min_response_length model.image_size model.lora_alpha model.max_seq_len model.norm_eps model.rope_base model.scale_factor
model_dir model_type name num_steps num_train_steps optimizer.alpha optimizer.betas optimizer.bf16_stochastic_round
optimizer.block_size optimizer.block_wise optimizer.capturable optimizer.dampening optimizer.decoupled_weight_decay
optimizer.differentiable optimizer.eps optimizer.initial_accumulator_value optimizer.is_paged optimizer.lr optimizer.lr_decay
optimizer.maximize optimizer.min_8bit_size optimizer.nesterov optimizer.percentile_clipping optimizer.weight_decay output_dir
penalise_no_eos policy_model.norm_eps policy_model.rope_base ppo_epochs profiler profiler.* prompt.* quantizer.group_size
quantizer.groupsize ref_checkpointer.* ref_policy_checkpointer.* resume_from_checkpoint reward_and_value_model.*
reward_checkpointer.* reward_functions[].* reward_penalty run_val_every_n_steps save_adapter_weights_only save_every_n_epochs
save_every_n_steps seed shuffle steps_before_weight_sync stop_token_ids stop_token_ids[] subset_list tasks
teacher_checkpointer.* teacher_model.* temperature tensor_parallel_plan tensor_parallel_plan.* tied_embeddings tokenizer
tokenizer.* top_k top_p total_epochs use_distributed_state_dict use_flex validation_dataset.* value_checkpointer.*
whiten_rewards
"""
_UNMODELLED: Final[dict[str, tuple[Effect, str]]] = {
    "enable_async_checkpointing": ("speed", "checkpoints are copied while training goes on"),
    "enable_fp8_training": ("both", "matrices are multiplied in float8"),
    "early_exit_loss.*": ("more", "a loss behind further layers"),
    "layer_dropout.*": ("less", "layers are skipped at random"),
    "fake_quant_after_n_steps": ("speed", "weights are fake-quantised from a later step on"),
    "resize_token_embeddings": ("more-memory", "embeddings and head grow to the tokenizer's vocabulary"),
    "loss.num_output_chunks": ("memory", "the loss is counted in 8 chunks"),
    "loss.mask_ignored_tokens": ("memory", "ignored tokens go through the head too"),
    "memory_efficient_fsdp_wrap": ("memory", "embedding and head are sharded apart from the rest"),
    "context_parallel_rotate_method": ("speed", "how keys and values travel"),
    "model.attn_dropout": ("memory", "attention drops probabilities"),
    "policy_model.attn_dropout": ("memory", "attention drops probabilities"),
    "profiler.enabled": ("speed", "the profiler slows the steps that it records"),
    "tokenizer.max_num_tiles": ("memory", "tiles of an image: counted as many as the model has at most"),
    "model.quantization_kwargs.*": ("memory", "blocks of the quantised base of another size"),
    "fsdp_dtype": ("memory", "a format for gathering of its own"),
}
_OFF: Final = {
    "loss.num_output_chunks": (8,),
    "loss.mask_ignored_tokens": (True,),
    "context_parallel_rotate_method": ("allgather",),
    "model.attn_dropout": (0.0,),
    "policy_model.attn_dropout": (0.0,),
    "tokenizer.max_num_tiles": (4,),
}
_SFT: Final = Tables(frozenset(_NEUTRAL.split()), _UNMODELLED, _OFF)
_RL: Final = Tables(frozenset(("orchestration.*", "inference.*", "postprocessing.*", "training.steps_before_weight_sync")))
"""Sections of the asynchronous GRPO recipe, whose training loop has the keys of the others in one of its own."""
TABLES: Final = _SFT | _SFT.under("training.") | _RL

TORCHRUN: Final = frozenset(("standalone", "no_python", "run_path", "m", "module", "use_env"))
"""Options of torchrun, which ``tune run`` takes too, that have no value."""
COMMAND: Final = Tables(
    frozenset(
        f"""
        {POSITIONAL} {POSITIONAL}[]
        config local_addr local_ranks_filter log_dir logs_specs m master_addr master_port max_restarts module
        monitor_interval nnodes no_python node_rank nproc_per_node r rdzv_backend rdzv_conf rdzv_endpoint rdzv_id
        redirects role run_path standalone start_method t tee use_env
        """.split()
    )
)
"""Options of ``tune run`` itself (``_cli/run.py``; torch ``distributed/run.py``)."""
