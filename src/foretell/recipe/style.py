"""Style: how a framework runs each kind of operator, as far as memory can tell.

A style answers "which tensors does this code keep for the backward pass and which copies does it make", one
switch per kind of operator.  Profiles (:mod:`foretell.recipe.profiles`) choose the switches and cite the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormStyle = Literal["eager", "fused"]
GateStyle = Literal["eager", "fused"]
RopeStyle = Literal["eager", "fused", "inplace", "complex", "composite"]
AttentionStyle = Literal["eager", "flash", "efficient", "sdpa", "te"]
LossStyle = Literal[
    "hf",
    "eager",
    "chunked",
    "compiled",
    "fused-linear",
    "vocab-parallel",
    "native-fused",
    "loss-parallel",
    "te-fused",
    "mse",
    "list-chunked",
    "output-chunked",
    "linear-chunked",
    "vocab-parallel-copies",
]
"""Implementations of the loss: see :mod:`foretell.cost.loss`."""
ExpertStyle = Literal["grouped", "alltoall"]


@dataclass(frozen=True, slots=True)
class Style:
    """Switches of one run.  Sizes are bytes per element."""

    # -- formats ---------------------------------------------------------------------------------------------
    compute: float = 2.0
    """Matmul operands and their outputs."""
    residual: float = 2.0
    """The residual stream (4 under autocast over fp32 parameters: adding fp32 and bf16 gives fp32)."""
    autocast: bool = False
    """Matmul inputs wider than ``compute`` are cast at each use, and the copy is what is kept."""
    cast_once: bool = False
    """A compiled graph casts a tensor once for all who read it."""

    # -- norms, gates and dropout ----------------------------------------------------------------------------
    norm: NormStyle = "eager"
    """eager: composite fp32 code; fused (and compiled): input and statistics are kept."""
    norm_pow: bool = False
    """An eager norm's variance is ``x.pow(2).mean()``: its backward makes two more fp32 tensors of x's size."""
    norm_scale_wide: bool = False
    """An eager norm multiplies by its weight in fp32 and casts last (else it casts first)."""
    edge_norm: Literal["", "eager", "fused"] = ""
    """Style of the norms outside the layers, where only the layers are compiled (empty: as ``norm``)."""
    gate: GateStyle = "eager"
    """eager: gate, activated gate and up are kept, and the product; fused (and compiled): gate, up and product."""
    act: Literal["eager", "fused"] = "fused"
    """eager: activations written out in Python (``gelu_new``, ``quick_gelu``) keep each intermediate result."""
    inplace: bool = False
    """Gradients overwrite what a gate kept and what a norm received (Liger)."""
    dropout: float | None = None
    """Overrides every dropout probability of the model but attention's (None: the model's own)."""

    # -- attention -------------------------------------------------------------------------------------------
    rope: RopeStyle = "eager"
    """composite: the two products of transformers' ``apply_rotary_pos_emb``, with tables in the stream's format."""
    attention: AttentionStyle = "flash"
    """Kernel: FlashAttention, PyTorch's memory-efficient one, the one that PyTorch chooses (sdpa), Transformer Engine's, or
    (eager) scores written out."""
    attention_dropout: float | None = None
    """Overrides the dropout probability of attention's (None: the model's own)."""
    slices: Literal["view", "copy"] = "view"
    """A slice of a projection given to attention keeps the whole projection (view) or is made contiguous."""
    heads_first: bool = False
    """Queries are laid out heads first when attention gets them (rope by concatenation); the kernel's output takes their
    layout (``at::empty_like``), so that putting the heads side by side is a copy."""
    packed_kv: bool = False
    """Keys and values are copied into one tensor for the kernel while the merged projection lives on as the queries."""
    gqa_expand: bool = False
    """Keys and values are repeated to the number of query heads before the attention call."""
    ring: bool = False
    """Context parallelism: attention exchanges keys and values and keeps one more output-sized tensor."""

    # -- attention with scores written out -------------------------------------------------------------------
    scores: Literal["fused", "composite"] = "fused"
    """fused: one kernel scales, masks and normalises; composite: transformers' ``eager_attention_forward`` (product,
    scaled, masked, softmax), masked by a tensor that lives through the step; the softmax's backward makes one more
    tensor of its gradient's size (aten ``SoftMax.cu``)."""
    softmax: float = 4.0
    """Bytes of one stored attention probability before its cast."""
    softmax_copy: bool = True
    """Composite code makes an fp32 copy of bf16 scores; fp16 ones are converted inside the kernel (aten ``softmax`` of a
    given dtype)."""
    mask: float = 0.0
    """Bytes per element of a materialised attention mask added to the scores."""
    softmax_input: bool = False
    """PyTorch's softmax and log-softmax keep their input beside their result."""

    # -- other mixers ----------------------------------------------------------------------------------------
    scan: Literal["fused", "eager"] = "fused"
    """Mamba: the kernels of mamba_ssm, or transformers' fallback in Python, which keeps the state of every token."""
    experts: ExpertStyle = "grouped"
    """grouped: permuted tokens go through grouped matmuls; alltoall: Megatron-Core's dispatcher, which keeps more copies."""

    # -- output projection and loss --------------------------------------------------------------------------
    loss: LossStyle = "eager"
    logits_held: Literal["", "compute", "float"] = ""
    """The model's output keeps the logits alive through the backward pass, as computed or as their fp32 copy."""
    logits_shift: bool = False
    """The loss shifts a copy of the logits by one token instead of the labels."""
    logits_upcast: bool = True
    """The loss works on an fp32 copy of the logits."""
    logits_float: bool = False
    """The model's own code returns fp32 logits, so that a compiled loss reads those."""
    logits_carried: bool = False
    """The training loop's variable still holds the previous micro-batch's logits while the next forward runs."""
    outputs_float: bool = False
    """Under autocast the model's outputs are converted to fp32 once its loss is there (accelerate ``ConvertOutputsToFp32``)."""
    loss_compiled: bool = False
    """A chunked loss is compiled: it keeps its chunk of logits instead of fp32 log-probabilities."""
    chunked_head: bool = False
    """The chunked loss projects each chunk itself: full logits never exist."""
    chunk_tokens: int = 0
    """Tokens of one chunk of such a loss (0: an eighth of all)."""

    # -- what Python variables keep --------------------------------------------------------------------------
    frames: bool = False
    """Local variables of the model's Python code keep their tensors: an attention's input, q, k and v until its
    output projection ran, an MLP's input until its last matmul, eager scores until the layer ends."""
    outputs_in_step: bool = False
    """The loop's variable keeps the model's output up to the optimizer step: the logits, and through their graph the
    embeddings' output with its gradient where that is a leaf (frozen embeddings made to require gradients)."""

    # -- adapters and quantised bases ------------------------------------------------------------------------
    lora_clone: bool = False
    """A 4-bit base's result is cloned before the adapter's is added (peft ``tuners/lora/bnb.py``)."""
    quantized_stream: bool = False
    """A 4-bit matmul returns its input's format (bitsandbytes ``Linear4bit.forward``): the whole stream, logits
    included, has the format of the embeddings, fp32 after ``prepare_model_for_kbit_training``."""
    quantized_keeps_input: bool = False
    """A 4-bit matmul keeps its input although its weight is frozen, and outside autograd's saved tensors, so that
    the backward pass does not free it (bitsandbytes before 0.43.2)."""

    # -- parallelism -----------------------------------------------------------------------------------------
    sequence_parallel: bool = False
    """Between the matrices that tensor parallelism divides, each rank has a part of the sequence (arXiv 2205.05198)."""
    gather_buffers: bool = False
    """Sequence parallelism gathers inputs into global buffers that are never freed."""
    main_grad_fusion: bool = False
    """Weight gradients are accumulated into an existing buffer inside the matmul: no transient copy."""
    fsdp_units: Literal["root", "split", "layers"] = "root"
    """root: embedding, final norm and head form the root unit and stay whole from forward to backward; split: the
    embedding is a unit of its own, norm and head stay whole; layers: embedding and head are units like any layer."""
    fp8_gather: bool = False
    """FSDP gathers the layers' matrices as 1-byte elements (torchao ``enable_fsdp_float8_all_gather``)."""
    keeps_last_block: bool = False
    """FSDP2 does not reshard the last block between its forward and backward."""

    # -- activation checkpointing ----------------------------------------------------------------------------
    early_stop: bool = False
    """A recomputed layer stops once its last kept tensor is there (``torch.utils.checkpoint`` without re-entry)."""
    sac_attention: bool = True
    """Selective checkpointing by operator keeps the attention output."""
    sac_every: int = 2
    """... and the outputs of every so-manieth matmul."""
    fused_qkv: bool = False
    """... of which q, k and v are one (torchtitan's ``wqkv``)."""
    sac_last: bool = True
    """... and the last matmul's output, which the backward never reads (the partitioner of a compiled layer drops it)."""
    sac_abs: bool = False
    """... and the absolute values of float8 weights (row-wise scaling)."""
    sac_opaque: float = 0.0
    """Share of the layers, from the first, whose matmuls are opaque to the list (NVFP4), so that none is kept."""

    @property
    def composite(self) -> bool:
        """Whether the model's code is transformers', whose ways operators know (``written``, ``joined``, ``narrow`` ...)."""
        return self.rope == "composite"
