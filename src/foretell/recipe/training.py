"""TrainingRecipe: everything about a training run that is not the model, the machine or the parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Adapter:
    """Parameter-efficient fine-tuning: what is added and where (names as in PEFT)."""

    kind: Literal["lora", "dora", "qlora", "lora-fa", "adapter", "adapter-v2", "prefix", "prompt", "ia3", "ln-tuning"] = "lora"
    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Module names (suffixes) the adapter is put on; ``all-linear`` for every matrix but the head."""
    dtype: str = "fp32"
    dropout: float | None = None
    """Dropout in front of the adapter (None: the framework's default)."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained in full beside the adapters."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Storage of the frozen base: ``kind`` for the matrices, ``rest`` for embeddings, head and norms."""

    kind: Literal["nf4", "fp4", "int8"] = "nf4"
    double: bool = False
    rest: str = ""
    """Empty: the framework's own (:attr:`foretell.recipe.profile.Profile.quantized_rest`)."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """Activation checkpointing.

    ``full``: the input of each layer is kept and the layer runs again; ``scope`` ``layer`` (every layer),
    ``uniform`` (groups of ``layers``), ``block`` (the first ``layers`` of a stage only).
    ``selective``: ``scope`` ``op`` (torchtitan's list), ``modules`` (Megatron's ``modules``), ``layer``
    (every ``layers``-th layer in full), ``attention`` (the core only).
    """

    mode: Literal["none", "selective", "full"] = "none"
    scope: str | None = None
    layers: int | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """One training run.  ``None`` means the framework profile's own choice."""

    micro_batch: int = 1
    seq_len: int = 4096
    encoder_seq_len: int | None = None
    image_size: tuple[int, int] | None = None
    grad_accum: int = 1
    framework: str = "generic"
    precision: str = "bf16"
    """``bf16``/``fp16`` mixed with fp32 masters, ``bf16-true``, ``fp16-true``, ``fp32``, ``fp8`` ..."""
    optimizer: str = "adamw"
    optimizer_impl: Literal["fused", "foreach", "forloop"] | None = None
    recompute: Recompute = field(default_factory=Recompute)
    attention: str | None = None
    loss: str | None = None
    compile: bool = False
    dropout: float | None = None
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    mtp_layers: int = 0
    """Multi-token-prediction layers trained (Megatron ``--mtp-num-layers``)."""
    offload: frozenset[str] = frozenset()
    """Any of ``optimizer``, ``params``, ``grads``, ``activations``."""
    optimizer_in_backward: bool = False
    trainable_fraction: float = 1.0
    param_dtype: str | None = None
    grad_dtype: str | None = None
    master_dtype: str | None = None
    optim_dtype: str | None = None
    compute_dtype: str | None = None
    fp8_recipe: str | None = None
    communication_buffer_fraction: float | None = None
    reduce_bucket: int | None = None
    """DeepSpeed ``reduce_bucket_size`` in elements (None: 5e8; transformers' ``auto`` is the hidden size squared)."""
    live_parameters: int | None = None
    """DeepSpeed ``stage3_max_live_parameters`` in elements (None: 1e9)."""
    sub_group: int | None = None
    """DeepSpeed ``sub_group_size`` in elements (None: 1e9)."""
    expandable_segments: bool | None = None
    """``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` (None: the framework's launcher decides)."""
    grad_accum_fusion: bool | None = None
    """Megatron's gradient-accumulation fusion: weight gradients are added to the main gradients in the matmul."""
    lengths: Literal["equal", "longest-first"] = "equal"
    """Batches of one length, or (LitGPT's tuning scripts) the longest sample in the very first micro-batch only."""
    date: str = ""
    """Date of the framework used, ISO; empty: today's behaviour."""

    def with_(self, **changes: object) -> TrainingRecipe:
        return replace(self, **changes)  # type: ignore[arg-type]
