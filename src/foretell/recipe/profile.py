"""Profile: how a named framework lays out numbers in memory.

A profile is data.  It fixes the number formats of each state, which state is sharded at which ZeRO stage, the
style of every operator (:class:`foretell.recipe.style.Style`), the buffers the framework allocates and the way
its allocator rounds.  Each profile cites the framework's own source or documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foretell.recipe.style import Style

STATES = frozenset({"params", "grads", "optimizer"})
ACTIVATIONS = frozenset({"activations"})
"""What can be kept in host memory."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of the states of one trained parameter, and of the computation.  None = not kept."""

    param: str
    grad: str
    master: str | None
    optim: str
    compute: str
    wgrad: str
    """What autograd produces before it is reduced or accumulated."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One framework."""

    # -- what it is ------------------------------------------------------------------------------------------
    name: str
    title: str
    style: Style
    formats: dict[str, Formats] = field(compare=False)
    """By precision name."""
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    # -- data parallelism ------------------------------------------------------------------------------------
    sharding: str = "ddp"
    """Default data-parallel sharding."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages it can run."""
    default_zero: int = 0
    ddp_bucket: bool = True
    """DistributedDataParallel keeps a second copy of the gradients in buckets (gradient_as_bucket_view=False)."""
    no_sync: bool = False
    """Gradient accumulation skips reduction: FSDP keeps whole gradients between micro-batches."""
    adapter_units: bool = False
    """Adapters are FSDP units of their own, so that frozen flat parameters get no gradient (peft ``utils/other.py``
    ``fsdp_auto_wrap_policy``)."""
    adapter_fsdp_units: Literal["", "root", "split", "layers"] = ""
    """FSDP units where only adapters train (empty: as the style says)."""

    # -- other parallelism -----------------------------------------------------------------------------------
    pipeline: bool = False
    tensor: bool = False
    context: bool = False
    expert: bool = False
    sequence_parallel: bool = False
    """Default of sequence parallelism when tp > 1."""
    tp_comm_overlap: bool = False
    """Default of pipelining tensor-parallel exchanges with the products beside them."""
    default_expert_tp: int | None = None
    """Default of expert tensor parallelism (None: tp, or 1 where only that leaves room for the experts)."""
    split: Literal["even", "cost"] = "even"
    """How layers are put on pipeline stages without a layout; cost: by multiplications, embedding and head included."""
    pipe_buffers: bool = False
    """DeepSpeed's pipeline engine keeps outputs, a received input and a received gradient beside the graph."""
    megatron: bool = False
    """Megatron-Core's resident buffers and pipeline engine."""

    # -- gradients and optimizer -----------------------------------------------------------------------------
    gradients: Literal["fresh", "buffer"] = "fresh"
    """fresh: ``.grad`` made in each backward and freed after the step; buffer: persistent main gradients."""
    autograd_gradients: bool = False
    """Beside persistent main gradients, autograd's own live until the micro-batch's backward pass has ended."""
    optimizer_impl: str = "foreach"
    """PyTorch's implementations of a step: ``fused``, ``foreach`` (copies as large as the parameters) or ``forloop``."""
    step_gather: bool = False
    """ZeRO-1 gathers updated parameters through flat buffers as large as they are."""
    offloads: frozenset[str] = STATES | ACTIVATIONS
    """What its own switches can keep in host memory."""
    offloads_together: bool = False
    """FSDP's CPU offload moves a unit's parameters, gradients and optimizer states together."""

    # -- the model's code ------------------------------------------------------------------------------------
    losses: tuple[tuple[str, str], ...] = ()
    """What a loss name means here, where it differs from the general meaning."""
    rewrite: str = ""
    """The framework has model code of its own: a key of :data:`foretell.arch.rewrite.REWRITES`."""
    no_dropout: tuple[str, ...] = ()
    """Model types whose modules here never drop anything."""
    compiles: Literal["layers", "model", "kernels"] = "layers"
    """What ``compile`` covers: each layer, the whole model, or (kernels) only how operators are fused, so that what is
    kept stays as in eager code."""

    # -- adapters and quantised bases ------------------------------------------------------------------------
    supports_adapters: bool = True
    adapters_4bit: bool = True
    """... on a quantised base."""
    lora_dropout: float = 0.0
    """Default dropout in front of LoRA."""
    checkpoint_dtype: bool = False
    """A frozen base keeps the checkpoint's half precision whatever the autocast (transformers 5 ``dtype="auto"``)."""
    quantized_rest: str = "bf16"
    """Default format of what a quantised base leaves unquantised (embeddings, head, norms)."""
    quantizes_head: bool = False
    """A quantised base includes the output projection."""
    quantizes_many: bool = True
    """A quantised base can be trained on several devices."""
    dequantized: str = ""
    """Format a quantised matrix is dequantised to, where it is then cast to the compute format (empty: compute)."""

    # -- the allocator ---------------------------------------------------------------------------------------
    expandable: bool = False
    """expandable_segments is on by default."""
    replays: bool = False
    """One compute stream whose allocations the fold knows in order: reserved memory can be had by replaying them."""
