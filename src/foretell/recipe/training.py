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

    # -- the batch -------------------------------------------------------------------------------------------
    micro_batch: int = 1
    """Samples that a rank runs forward and backward at a time."""
    seq_len: int = 4096
    """Tokens a sample (a decoder's, where there is an encoder)."""
    encoder_seq_len: int | None = None
    """Tokens a sample that the encoder reads (None: ``seq_len``)."""
    image_size: tuple[int, int] | None = None
    """Height and width in pixels (None: the model's own)."""
    grad_accum: int = 1
    """Micro-batches a step, on each rank."""
    lengths: Literal["equal", "longest-first"] = "equal"
    """Batches of one length, or (LitGPT's tuning scripts) the longest sample in the very first micro-batch only."""

    # -- the software ----------------------------------------------------------------------------------------
    framework: str = "generic"
    """Name or alias of a profile (:mod:`foretell.recipe.profiles`)."""
    date: str = ""
    """Date of the framework used, ISO; empty: today's behaviour."""
    attention: str | None = None
    """Attention kernel: ``flash``, ``sdpa``, ``eager`` ..."""
    loss: str | None = None
    """Implementation of the loss: ``eager``, ``chunked``, ``liger`` ..."""
    compile: bool = False
    """``torch.compile`` of what the framework compiles."""
    cuda_graphs: Literal["none", "partial", "layer", "full"] = "none"
    """What is captured: nothing, attention and routers but not the experts, every layer, or the whole step."""
    tp_comm_overlap: bool | None = None
    """Tensor-parallel exchanges are pipelined with the products beside them (None: the framework's default)."""
    dispatcher: Literal["alltoall", "flex"] | None = None
    """How routed tokens travel: each copy by itself, or once to every domain (DeepEP); None: flex where experts span
    domains."""
    expandable_segments: bool | None = None
    """``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` (None: the framework's launcher decides)."""

    # -- number formats --------------------------------------------------------------------------------------
    precision: str = "bf16"
    """``bf16``/``fp16`` mixed with fp32 masters, ``bf16-true``, ``fp16-true``, ``fp32``, ``fp8`` ..."""
    param_dtype: str | None = None
    grad_dtype: str | None = None
    master_dtype: str | None = None
    """``none``: no master weights."""
    optim_dtype: str | None = None
    compute_dtype: str | None = None
    fp8_recipe: str | None = None
    """How float8 matmuls scale: ``rowwise``, ``tensorwise`` ..."""

    # -- optimizer and gradients -----------------------------------------------------------------------------
    optimizer: str = "adamw"
    """Name or alias (:mod:`foretell.recipe.optimizers`)."""
    optimizer_impl: Literal["fused", "foreach", "forloop"] | None = None
    optimizer_in_backward: bool = False
    """Each parameter is updated, and its gradient freed, as soon as the gradient is made."""
    grad_accum_fusion: bool | None = None
    """Megatron's gradient-accumulation fusion: weight gradients are added to the main gradients in the matmul."""
    offload: frozenset[str] = frozenset()
    """What is kept in host memory: any of ``optimizer``, ``params``, ``grads``, ``activations``."""
    communication_buffer_fraction: float | None = None
    """Reduction buffers as a share of the gradients, where a paper counts them so."""
    reduce_bucket: int | None = None
    """DeepSpeed ``reduce_bucket_size`` in elements (None: 5e8; transformers' ``auto`` is the hidden size squared)."""
    live_parameters: int | None = None
    """DeepSpeed ``stage3_max_live_parameters`` in elements (None: 1e9)."""
    sub_group: int | None = None
    """DeepSpeed ``sub_group_size`` in elements (None: 1e9)."""
    fsdp_units: Literal["root", "split", "layers"] | None = None
    """What FSDP shards apart (:attr:`foretell.recipe.style.Style.fsdp_units`)."""

    # -- the model -------------------------------------------------------------------------------------------
    recompute: Recompute = field(default_factory=Recompute)
    dropout: float | None = None
    """Probability that replaces all of the model's own (None: the model's)."""
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    trainable_fraction: float = 1.0
    """Share of the parameters that trains, in full fine-tuning with frozen parts."""
    mtp_layers: int = 0
    """Multi-token-prediction layers trained (Megatron ``--mtp-num-layers``)."""

    def with_(self, **changes: object) -> TrainingRecipe:
        return replace(self, **changes)  # type: ignore[arg-type]
