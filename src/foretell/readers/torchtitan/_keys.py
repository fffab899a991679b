"""Keys of torchtitan's files and flags that no setting is made of.

Source: pytorch/torchtitan ``torchtitan/config_manager.py`` (until 2025-07), ``config/job_config.py`` (until 9810191bb, 2026-02),
``config/configs.py`` and the ``Config`` classes of components (b5bcd76c6, 2026-08).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers.hf._common import Tables

if TYPE_CHECKING:
    from foretell.readers._reading import Effect

__all__ = ["ENVIRONMENT", "TABLES"]

_NEUTRAL: Final = f"""
{POSITIONAL} {POSITIONAL}[]
activation_checkpoint.debug activation_checkpoint.determinism_check
activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns activation_checkpoint.preserve_rng_state
activation_checkpoint.visualize_memory_budget_pareto checkpoint.* comm.init_timeout_seconds comm.mode
comm.save_traces_file_prefix comm.save_traces_folder comm.trace_buf_size comm.train_timeout_seconds compile.backend
compile.fullgraph config data.* dataloader.* debug.batch_invariant debug.deterministic_warn_only debug.moe_force_load_balance
debug.print_config debug.save_config_file debug.seed dump_folder encoder.* eval.* experimental.custom_args_module
experimental.custom_import fault_tolerance.* float8.filter_fqns float8.precompute_float8_dynamic_scale_for_fsdp hf_assets_path
inference.* job.* lr_scheduler.* metrics.* model.hf_assets_path model.norm_type model.print_after_conversion
model.tokenizer_path module mx.filter_fqns mx.mxfp8_dim1_cast_kernel_choice optimizer.beta1 optimizer.beta2 optimizer.eps
optimizer.lr optimizer.name optimizer.weight_decay override.* parallelism.context_parallel_load_balancer
parallelism.context_parallel_ptrr_mask_key parallelism.pipeline_parallel_schedule_csv parallelism.spmd_backend profiler.*
profiling.enable_profiling profiling.profile_freq profiling.profiler_active profiling.profiler_warmup
profiling.save_memory_snapshot_folder profiling.save_traces_folder quantize.linear.float8.filter_fqns
quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp quantize.linear.mx.filter_fqns
quantize.linear.mx.mxfp8_dim1_cast_kernel_choice tokenizer.* training.classifer_free_guidance_prob
training.classifier_free_guidance_prob training.dataloader.* training.dataset training.dataset_path training.deterministic
training.gc_debug training.gc_freq training.img_size training.max_norm training.seed training.steps training.test_mode
training.warmup_steps validation.* validator.*
"""
_UNMODELLED: Final[dict[str, tuple[Effect, str]]] = {
    "activation_checkpoint.early_stop": ("speed", "recomputation stops at the last tensor that is needed"),
    "activation_checkpoint.memory_budget": ("memory", "the compiler chooses what to keep"),
    "comm.torchcomms": ("speed", "another library for collectives"),
    "debug.deterministic": ("speed", "slower kernels that give the same bits"),
    "estimate.memory": ("unknown", "estimates memory in place of training"),
    "float8.emulate": ("speed", "float8 is emulated"),
    "float8.force_recompute_fp8_weight_in_bwd": ("less-memory", "float8 weights are made again in the backward pass"),
    "memory_estimation.*": ("unknown", "estimates memory in place of training"),
    "metrics.enable_memory_trace": ("speed", "allocations are recorded"),
    "parallelism.context_parallel_rotate_method": ("speed", "how keys and values travel"),
    "parallelism.disable_loss_parallel": ("more-memory", "whole logits on every tensor-parallel rank"),
    "training.enable_loss_parallel": ("memory", "logits are divided over the tensor-parallel ranks"),
    "parallelism.enable_compiled_autograd": ("both", "the backward pass is compiled too"),
    "experimental.enable_compiled_autograd": ("both", "the backward pass is compiled too"),
    "parallelism.enable_fsdp_symm_mem": ("both", "FSDP's buffers lie in symmetric memory"),
    "parallelism.expert_parallel_comm_backend": ("both", "DeepEP sends routed tokens"),
    "parallelism.module_fqns_per_model_part": ("both", "layers are put on stages one by one, and counted as even"),
    "parallelism.pipeline_parallel_expert_parallel_overlap": ("speed", "exchanges of experts run beside the other stage's work"),
    "parallelism.pipeline_parallel_first_stage_less_layers": ("both", "the first stage has fewer layers than counted"),
    "parallelism.pipeline_parallel_last_stage_less_layers": ("both", "the last stage has fewer layers than counted"),
    "parallelism.pipeline_parallel_split_points": ("both", "layers are divided at given places, and counted as even"),
    "experimental.pipeline_parallel_split_points": ("both", "layers are divided at given places, and counted as even"),
    "experimental.pipeline_parallel_split_mode": ("memory", "how a model is divided into stages"),
    "profiling.enable_memory_snapshot": ("speed", "allocations are recorded"),
    "quantize.grouped_mm.float8.fqns": ("both", "products of experts run in float8"),
    "quantize.grouped_mm.mx.fqns": ("both", "products of experts run in MXFP8"),
    "quantize.grouped_mm.mx.recipe_name": ("both", "products of experts run in MXFP8"),
    "quantize.linear.float8.emulate": ("speed", "float8 is emulated"),
    "training.disable_cuda_graphs": ("speed", "nothing is captured"),
    "training.mixed_precision_reduce": ("less-memory", "gradients are reduced in another format than fp32"),
}
_OFF: Final = {
    "parallelism.context_parallel_rotate_method": ("allgather",),
    "training.enable_loss_parallel": (True,),
    "parallelism.expert_parallel_comm_backend": ("standard",),
    "parallelism.pipeline_parallel_expert_parallel_overlap": (True,),
    "experimental.pipeline_parallel_split_mode": ("manual",),
    "training.mixed_precision_reduce": ("float32",),
    "training.disable_cuda_graphs": (True,),
    "quantize.grouped_mm.mx.recipe_name": ("mxfp8",),
    "activation_checkpoint.memory_budget": (0.5,),
}
TABLES: Final = Tables(frozenset(_NEUTRAL.split()), _UNMODELLED, _OFF)
ENVIRONMENT: Final = ("NGPU", "CONFIG_FILE", "MODULE", "CONFIG")
"""Variables of ``run_train.sh``."""
