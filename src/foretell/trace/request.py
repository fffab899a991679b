"""What to trace and how, as plain data: it crosses to the worker process as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode
from foretell.validation import choice, number, positive_int

__all__ = ["ModelRequest", "TraceRequest", "capability_of"]

PRECISIONS = ("bf16", "fp16", "fp32", "bf16-true", "fp16-true")
ATTENTIONS = ("sdpa", "eager")
RECOMPUTES = ("none", "full", "full-reentrant")
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-forloop", "adam", "adafactor", "sgd", "sgd-momentum", "rmsprop", "none")
SHARDINGS = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp2")
"""``zero1``: data parallel with the optimizer's states divided; ``zero2`` and ``zero3``: ``fully_shard`` that keeps the gathered
weights after the forward pass, or not; ``fsdp2`` is ``zero3``."""
BACKENDS = ("auto", "flash", "efficient", "cudnn", "math")
EXPERTS = ("eager", "batched_mm", "grouped_mm")


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a model that is named by its configuration is trained."""

    content: dict[str, Any]
    """Of the ``config.json``; ``{"timm": name}`` for a model of timm."""
    where: str
    micro_batch: int = 1
    seq_len: int = 2048
    image_size: int | None = None
    """Pixels of a side; None: the model's own."""
    precision: str = "bf16"
    """``bf16`` and ``fp16`` are autocast over fp32 weights, ``bf16-true`` and ``fp16-true`` weights of that dtype."""
    attention: str = "sdpa"
    recompute: str = "none"
    optimizer: str = "adamw"
    accumulate: int = 1
    clip: float | None = None
    """Largest norm of the gradients."""
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] | None = None
    """Names of the matrices that get an adapter; None: every linear layer but the head."""
    quantization: str | None = None
    """``nf4``: linear layers of the frozen base are kept in four bits."""
    experts: str | None = None
    sharding: str = "none"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            InputError: one that is not allowed, with its name.

        """
        for field, allowed in (
            ("precision", PRECISIONS),
            ("attention", ATTENTIONS),
            ("recompute", RECOMPUTES),
            ("optimizer", OPTIMIZERS),
            ("sharding", SHARDINGS),
        ):
            choice(getattr(self, field), field, allowed)
        for field in ("micro_batch", "seq_len", "accumulate"):
            positive_int(getattr(self, field), field, maximum=10**7)
        for field in ("image_size", "lora_rank"):
            if getattr(self, field) is not None:
                positive_int(getattr(self, field), field, maximum=10**5)
        if self.clip is not None:
            number(self.clip, "clip", minimum=1e-12)
        if self.experts is not None:
            choice(self.experts, "experts", EXPERTS)
        if self.quantization is not None:
            choice(self.quantization, "quantization", ("nf4",))
            if self.lora_rank is None:
                raise InputError("needs adapters to train: a base in four bits is frozen", field="quantization",
                                 value=self.quantization, hint="Add --lora-rank")  # fmt: skip


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One trace."""

    target: str | None = None
    """``module:callable`` or ``file.py:callable``; None: ``model`` says what to build."""
    model: ModelRequest | None = None
    folder: str = "."
    """Where the target is looked for, and where it runs."""
    gpu: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    gpu_bytes: int = 80 * 2**30
    device: str = "cuda"
    """``cuda``, or ``cpu``: fake tensors of the CPU, whose operators differ from a GPU's."""
    world: int = 1
    steps: int = 2
    evaluate: bool = False
    sdpa: str = "auto"
    skew: float = 1.0
    """Tokens of the busiest expert over the even share, where code asks how many an expert has."""
    density: float | None = None
    """Share of a mask that is taken as set where an operator's size depends on it; None: such an operator is an error."""
    full: bool = False
    """Record every layer, also where they repeat."""

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            InputError: one that is not allowed, with its name.

        """
        if (self.target is None) == (self.model is None):
            raise InputError("give a callable (module:callable) or a model, one of the two", field="target", value=self.target)
        if self.target is not None and not all(self.target.rpartition(":")[::2]):
            raise InputError("must be module:callable or file.py:callable", field="target", value=self.target)
        choice(self.device, "device", ("cuda", "cpu"))
        choice(self.sdpa, "sdpa", BACKENDS)
        positive_int(self.world, "gpus", maximum=10**6)
        positive_int(self.steps, "steps", maximum=64)
        number(self.skew, "skew", minimum=1.0, maximum=1e4)
        if self.density is not None:
            number(self.density, "density", maximum=1.0)
        sharding = self.model.sharding if self.model is not None else "none"
        if self.model is not None and (sharding != "none") != (self.world > 1):
            raise InputError(
                "needs more than one GPU" if self.world == 1 else "needs a sharding: ddp, zero1, zero2, zero3 or fsdp2",
                field="sharding",
                value=sharding,
                hint="Add --gpus" if self.world == 1 else "Add --sharding",
            )


def capability_of(gpu: HardwareNode) -> tuple[int, int]:
    """Return a GPU's compute capability.

    Raises:
        InputError: it has none: no CUDA device, or unknown.

    """
    text = gpu.compute_capability
    if not gpu.cuda_like or text is None or not text.replace(".", "", 1).isdigit():
        raise InputError(
            "has no CUDA compute capability, which decides what kernels run",
            field="gpu",
            value=gpu.id or gpu.name,
            hint="Name an NVIDIA GPU",
        )
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)
