"""Keys of an accelerate configuration and flags of ``accelerate launch`` that are not looked at (accelerate 1.15.0).

Sources: accelerate commands/config/config_args.py ``ClusterConfig``, ``SageMakerConfig``; commands/launch.py.
"""

from __future__ import annotations

from typing import Final

from foretell.readers.hf._common import Tables
from foretell.readers.hf._fsdp import FSDP

__all__ = ["ACCELERATE", "LAUNCH"]

_DEEPSPEED: Final = Tables(
    neutral=frozenset((
        "gradient_clipping", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile",
        "deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "seq_parallel_communication_data_type",
        "offload_optimizer_nvme_path", "offload_param_nvme_path",
    )),
    unmodelled={"deepspeed_moe_layer_cls_names": ("more-memory", "layers of experts are gathered whole")},
)  # fmt: skip
_MEGATRON: Final = Tables(
    neutral=frozenset((
        "megatron_lm_gradient_clipping", "megatron_lm_no_load_optim", "megatron_lm_no_save_optim", "megatron_lm_eod_mask_loss",
        "megatron_lm_calculate_per_token_loss", "megatron_lm_use_rotary_position_embeddings",
    )),
    unmodelled={
        "megatron_lm_use_custom_fsdp": ("both", "Megatron's own FSDP"),
        "megatron_lm_optimizer_cpu_offload": ("both", "the optimizer runs on the host"),
        "megatron_lm_overlap_cpu_optimizer_d2h_h2d": ("speed", "copies of the optimizer overlap"),
        "megatron_lm_use_precision_aware_optimizer": ("memory", "the formats of the optimizer's states"),
        "megatron_lm_decoder_last_pipeline_num_layers": ("memory", "the last stage has another number of layers"),
        "megatron_lm_attention_backend": ("both", "chooses the attention kernel"),
        "megatron_lm_attention_softmax_in_fp32": ("memory", "the format of attention's softmax"),
        "megatron_lm_attention_dropout": ("memory", "dropout keeps masks"),
        "megatron_lm_hidden_dropout": ("memory", "dropout keeps masks"),
        "megatron_lm_recompute_method": ("memory", "how layers are grouped for recomputation"),
        "megatron_lm_recompute_num_layers": ("memory", "how layers are grouped for recomputation"),
    },
)  # fmt: skip
_DYNAMO: Final = Tables(
    neutral=frozenset(("dynamo_use_dynamic", "dynamo_use_fullgraph", "use_dynamic", "use_fullgraph")),
    unmodelled={
        "dynamo_use_regional_compilation": ("both", "repeated blocks are compiled, not the model"),
        "use_regional_compilation": ("both", "repeated blocks are compiled, not the model"),
    },
)
_PARALLEL: Final = Tables(
    neutral=frozenset((
        "parallelism_config_dp_shard_size", "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_sp_attn_implementation",
    )),
    unmodelled={
        "parallelism_config_dp_replicate_size": ("both", "replicas of a sharded group"),
        "parallelism_config_tp_size": ("both", "tensor parallelism divides the layers"),
        "parallelism_config_cp_size": ("both", "context parallelism divides the sequence"),
        "parallelism_config_sp_size": ("both", "sequence parallelism divides the sequence"),
        "parallelism_config_cp_comm_strategy": ("speed", "how context parallelism exchanges"),
        "parallelism_config_cp_backend": ("speed", "whose context parallelism"),
        "parallelism_config_sp_backend": ("speed", "whose sequence parallelism"),
    },
    off={f"parallelism_config_{name}_size": (1,) for name in ("cp", "sp", "tp", "dp_replicate")},
)  # fmt: skip
_TOP: Final = Tables(
    frozenset((
        "deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config", "dynamo_config", "fp8_config",
        "mpirun_config", "compute_environment", "debug", "machine_rank", "main_process_ip", "main_process_port",
        "rdzv_backend", "same_network", "main_training_function", "enable_cpu_affinity", "gpu_ids", "tpu_name", "tpu_zone",
        "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "downcast_bf16", "mpirun_config.*",
        "ipex_config.*", "fp8_config.*", "iam_role_name", "image_uri", "profile", "region", "base_job_name", "pytorch_version",
        "transformers_version", "py_version", "sagemaker_inputs_file", "sagemaker_metrics_file", "additional_args.*",
        "num_cpu_threads_per_process", "use_cpu", "ec2_instance_type", "max_restarts", "monitor_interval",
        "deepspeed_hostfile",
    ))
)  # fmt: skip

ACCELERATE: Final = (
    _TOP
    | FSDP.under("fsdp_config.fsdp_", "fsdp_config.")
    | _DEEPSPEED.under("deepspeed_config.")
    | _MEGATRON.under("megatron_lm_config.")
    | _DYNAMO.under("dynamo_config.")
    | _PARALLEL.under("parallelism_config.")
)
"""Keys of a file."""

LAUNCH: Final = (
    _TOP
    | _DEEPSPEED
    | _MEGATRON
    | _DYNAMO
    | _PARALLEL
    | FSDP.under("fsdp_")
    | Tables(
        frozenset((
            "config_file", "num_processes", "num_machines", "multi_gpu", "quiet", "q", "m", "module", "no_python", "log_dir",
            "role", "rdzv_conf", "start_method", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config",
            "mpirun_hostfile", "mpirun_ccl", "env", "tpu_cluster", "vm", "aws_access_key_id", "aws_secret_access_key",
            "use_xpu", "ipex", "mps", "t",
            *(f"fp8_{key}" for key in (
                "backend", "use_autocast_during_eval", "margin", "interval", "format", "amax_history_len", "amax_compute_algo",
                "override_linear_precision", "opt_level", "enable_fsdp_float8_all_gather", "pad_inner_dim")),
        ))
    )
)  # fmt: skip
"""Flags that no reader of a file looks at."""
