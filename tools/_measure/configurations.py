"""What is measured: each configuration once, as data from which the real run and the trace both build.

Shapes are Hugging Face ``config.json`` objects.  The order of :data:`CONFIGURATIONS` is by value: whatever ends a measurement
early loses the least.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, Literal

__all__ = ["CONFIGURATIONS", "CONTEXT", "STEPS", "Configuration", "Shape", "as_data"]

Shape = dict[str, Any]
GIB: Final = 2**30
STEPS: Final = 3
"""Training steps of each run: the first makes the optimizer's state, the second has it from the start, the third repeats."""
CONTEXT: Final = "context"
"""Name of the run that is no training: what a process takes that only initialises CUDA, and what libraries add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One training run."""

    name: str
    why: str
    """What this run can show that the others cannot."""
    shape: Shape
    library: Literal["", "transformers", "diffusers", "dry"] = ""
    """Whose classes make the model; empty: the plain modules beside this file."""
    micro_batch: int
    tokens: int | None = None
    """Sequence length of a language model."""
    pixels: int | None = None
    """Side of an image; for a diffusion model, of its latent image."""
    precision: Literal["bf16", "bf16-true", "fp32"] = "bf16-true"
    """``bf16``: autocast over fp32 weights; ``bf16-true``: weights in bf16."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    recompute: Literal["none", "full", "full-reentrant"] = "none"
    optimizer: Literal["adamw", "adamw-fused", "adamw-forloop", "sgd", "sgd-momentum"] = "adamw"
    """Without an implementation, PyTorch's choice: ``foreach`` on a GPU."""
    accumulate: int = 1
    clip: float | None = None
    """Largest norm of the gradients."""
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ()
    channels_last: bool = False
    compiled: bool = False
    allocator: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF``."""
    limit_bytes: int | None = None
    """Most that the allocator may reserve; None: what the device has."""
    snapshot: bool = False
    """Keep a memory snapshot with its history."""
    seconds: float = 15.0
    """What the run usually takes, its imports included; it is not begun with less, and ended after several times that."""

    @property
    def model_type(self) -> str:
        """The family of the model."""
        return str(self.shape["model_type"])

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages that must be installed."""
        peft = ("peft",) if self.library == "transformers" and self.lora_rank is not None else ()
        return peft if self.library in ("", "dry") else (self.library, *peft)

    def missing(self) -> str | None:
        """Return what is not installed here, in words; None: nothing."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"{' and '.join(absent)} not installed" if absent else None


def as_data(configuration: Configuration) -> dict[str, Any]:
    """Return a configuration as it stands in a JSON file."""
    return asdict(configuration) | {"lora_targets": list(configuration.lora_targets)}


# -- shapes -------------------------------------------------------------------------------------------------

LLAMA_1B: Final[Shape] = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 8192, "hidden_act": "silu",
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_8B: Final[Shape] = LLAMA_1B | {
    "hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 128, "intermediate_size": 14336, "tie_word_embeddings": False,
}  # fmt: skip
GPT2: Final[Shape] = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    "activation_function": "gelu_pytorch_tanh", "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip
MOE: Final[Shape] = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 64, "intermediate_size": 3584, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
VIT_B16: Final[Shape] = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "image_size": 224, "patch_size": 16, "num_labels": 1000, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
RESNET_50: Final[Shape] = {
    "model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck", "hidden_act": "relu", "num_labels": 1000,
}  # fmt: skip
UNET_SD1: Final[Shape] = {
    "model_type": "diffusers", "_class_name": "UNet2DConditionModel", "sample_size": 64, "in_channels": 4, "out_channels": 4,
    "block_out_channels": [320, 640, 1280, 1280], "layers_per_block": 2,
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": 8, "cross_attention_dim": 768,
}  # fmt: skip

# -- runs ---------------------------------------------------------------------------------------------------

_EXPANDABLE: Final = "expandable_segments:True"
_LINEAR: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_1B = Configuration(
    name="llama-1b", why="a dense decoder, everything in bf16: the plain case", shape=LLAMA_1B, micro_batch=4, tokens=2048,
    snapshot=True,
)  # fmt: skip
_8B = Configuration(
    name="llama-8b", why="a dense decoder that fills half the device", shape=LLAMA_8B, micro_batch=1, tokens=2048, seconds=20
)
_GPT2 = Configuration(
    name="gpt2-autocast", why="dropout, LayerNorm, biases and a fused projection, under autocast", shape=GPT2, micro_batch=8,
    tokens=1024, precision="bf16", snapshot=True,
)  # fmt: skip
_MOE = Configuration(name="moe", why="experts by grouped matrix products", shape=MOE, micro_batch=4, tokens=2048, snapshot=True)
_VIT = Configuration(
    name="vit-b16-autocast", why="attention without a mask, under autocast", shape=VIT_B16, micro_batch=64, pixels=224,
    precision="bf16", snapshot=True,
)  # fmt: skip
_RESNET = Configuration(
    name="resnet50", why="convolutions: what cuDNN's plans take", shape=RESNET_50, micro_batch=64, pixels=224, precision="fp32",
    optimizer="sgd-momentum", snapshot=True,
)  # fmt: skip


def _like(base: Configuration, name: str, why: str, **changes: Any) -> Configuration:
    return replace(base, name=name, why=why, **{"snapshot": False, **changes})


CONFIGURATIONS: Final[tuple[Configuration, ...]] = (
    _1B,
    _like(_1B, "llama-1b-autocast", "fp32 weights, bf16 copies at each use", precision="bf16", snapshot=True),
    _RESNET,
    _GPT2,
    _8B,
    _VIT,
    _MOE,
    _like(_1B, "llama-1b-expandable", "the same requests, expandable segments", allocator=_EXPANDABLE, snapshot=True),
    _like(_1B, "llama-1b-eager", "scores written out", attention="eager"),
    _like(_1B, "llama-1b-checkpoint", "layers run again, without re-entry", recompute="full", snapshot=True),
    _like(_1B, "llama-1b-reentrant", "layers run again, re-entrant", recompute="full-reentrant"),
    Configuration(
        name="unet-sd1", why="convolutions, group norms and attention over pixels", shape=UNET_SD1, library="diffusers",
        micro_batch=4, pixels=64, precision="fp32", seconds=25,
    ),
    _like(_1B, "llama-1b-fused", "no temporary copies in the optimizer's step", optimizer="adamw-fused", micro_batch=1,
          tokens=1024),
    _like(_8B, "llama-8b-lora", "a frozen base, adapters in fp32, layers run again", lora_rank=16, lora_targets=_LINEAR,
          recompute="full", micro_batch=4),
    _like(_8B, "llama-8b-oom", "does not fit: fp32 weights, states and a foreach step", precision="bf16", micro_batch=4),
    _like(_1B, "llama-1b-fp32", "fp32 throughout", precision="fp32"),
    _like(_8B, "llama-8b-limited-oom", "a limit between what is allocated and what must be reserved", limit_bytes=77 * GIB),
    _like(_8B, "llama-8b-limited-expandable", "the same limit, which expandable segments stay under", limit_bytes=77 * GIB,
          allocator=_EXPANDABLE),
    _like(_8B, "llama-8b-lora-limited", "a limit that is kept by giving cached segments back", lora_rank=16,
          lora_targets=_LINEAR, recompute="full", micro_batch=4, limit_bytes=31 * GIB),
    _like(_RESNET, "resnet50-autocast", "convolutions in bf16, channels last", precision="bf16", channels_last=True,
          micro_batch=128),
    _like(_GPT2, "gpt2-accumulate", "fp32, four micro-steps, clipped gradients", precision="fp32", accumulate=4, clip=1.0),
    _like(_8B, "llama-8b-fused", "layers run again, fused step, expandable segments", optimizer="adamw-fused", recompute="full",
          allocator=_EXPANDABLE, micro_batch=2, tokens=4096),
    _like(_1B, "llama-1b-sgd", "no optimizer state", optimizer="sgd", micro_batch=1, tokens=1024),
    _like(_1B, "llama-1b-forloop", "one parameter after the other", optimizer="adamw-forloop", micro_batch=1, tokens=1024),
    _like(_1B, "transformers-llama-1b", "the classes of transformers", library="transformers"),
    _like(_MOE, "transformers-mixtral", "the classes of transformers", library="transformers"),
    _like(_GPT2, "transformers-gpt2", "the classes of transformers", library="transformers"),
    _like(_1B, "peft-llama-1b", "adapters of peft", library="transformers", lora_rank=16, lora_targets=_LINEAR),
    _like(_GPT2, "gpt2-compiled", "torch.compile of the model", compiled=True, seconds=60),
    _like(_1B, "llama-1b-compiled", "torch.compile of the model", compiled=True, seconds=90),
)  # fmt: skip
