"""The precision of a run of transformers: autocast, and the format that the weights were loaded in.

Autocast over fp32 weights (4 + 4 + 8 bytes a parameter) is another run than autocast over weights loaded in bfloat16, whose
gradients and optimizer states are bfloat16 too.  FSDP and DeepSpeed keep fp32 weights or masters whichever was loaded.

Sources: transformers 5.24.0 modeling_utils.py ``from_pretrained`` (dtype "auto" is the default), accelerate 1.15.0 accelerator.py
and utils/fsdp_utils.py (trainable parameters are upcast under mixed precision), DeepSpeed 0.19.6 runtime/engine.py
``_configure_distributed_model`` (the model is cast), peft 0.21.2 (``autocast_adapter_dtype``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foretell.errors import ForetellError
from foretell.readers._reading import Builder
from foretell.readers.hf._common import card, take

if TYPE_CHECKING:
    from foretell.readers._document import Found

__all__ = ["Weights", "settle_precision"]


@dataclass(frozen=True)
class Weights:
    """The format that weights are loaded in."""

    name: str
    """auto (as the checkpoint has them), bf16, fp16 or fp32."""
    found: Found | None
    why: str
    """Whose default it is, where nothing says it."""

    @property
    def half(self) -> bool:
        """Whether they are taken to have two bytes; "auto" is corrected where the checkpoint turns out to have four."""
        return self.name in ("auto", "bf16", "fp16")


def settle_precision(b: Builder, mixed: str, mixed_at: Found | None, weights: Weights, whose: str) -> None:
    """Set ``precision`` (and ``param_dtype``) for the framework that is set.

    ``mixed``: autocast: no, bf16, fp16 or fp8.  Adapters and quantisation must be set before.
    """
    _settle(b, mixed, mixed_at, _of_checkpoint(b, weights), whose)
    found = b.sources.get("tf32")
    if found is not None:
        b.harmless(found)
    on = b.given("compile") is True if found is None else found.flag()  # training_args.py: on with torch.compile
    device = card(b)
    if b.given("precision") != "fp32" or on or (device is not None and "tf32" not in device.peak_flops):
        return
    why = "products in full fp32, not TF32: slower than forecast by up to 8x on GPUs with tensor cores"
    if found is not None:
        b.doubt(found, "speed", why)
    else:
        b.doubt_default("tf32", "speed", f"{why}; tf32: true turns it on")


def _of_checkpoint(b: Builder, weights: Weights) -> Weights:
    """Return fp32 in place of "auto" where the checkpoint is known to be stored so."""
    if weights.name != "auto" or not b.named or b.named.startswith((".", "/", "~")):
        return weights
    from foretell.arch import load_model  # noqa: PLC0415  # 60 ms

    try:
        stored = load_model(b.named).architecture.dtype
    except ForetellError:
        return weights
    if stored not in ("float32", "fp32"):
        return weights
    return Weights("fp32", weights.found, "as the checkpoint has them (its config.json)")


def _settle(b: Builder, mixed: str, mixed_at: Found | None, weights: Weights, whose: str) -> None:
    b.default("framework", "hf-trainer", f"default of {whose}: data parallelism, or one GPU")
    framework, tuned = str(b.given("framework")), b.given("lora_rank") is not None
    half = "bf16" if mixed in ("no", "fp8") else mixed
    pure = "fp16-true" if weights.name == "fp16" else "bf16-true"
    loaded = (
        f"weights loaded as {weights.name}" if weights.found is not None else f"weights loaded as {weights.name}: {weights.why}"
    )
    if mixed == "fp8" and mixed_at is None:
        b.doubt_default("mixed_precision", "both", "matrix products in FP8 are counted as bf16")
    if framework == "deepspeed":
        name, why = (half if mixed != "no" else "fp32"), "DeepSpeed casts the model and keeps fp32 masters"
        if "precision" in b.settings:
            _unused(b, weights)
            return
    elif framework.startswith("fsdp"):
        name, why = (half, "FSDP upcasts what trains") if mixed != "no" else (pure if weights.half else "fp32", loaded)
        if tuned and mixed != "no" and weights.half:
            _frozen(b, half, weights)
    elif tuned and mixed == "no" and weights.half:
        framework = "peft"  # the base and all products in half precision, adapters in fp32
        b.settings["framework"] = replace(b.settings["framework"], value="peft")
        name, why = ("fp16" if weights.name == "fp16" else "bf16"), loaded
    elif tuned:
        name, why = (half if mixed != "no" else "fp32"), ""
        if not weights.half and mixed != "no":
            _frozen(b, "fp32", weights)
    elif mixed == "fp16":
        name, why = "fp16", "its scaler needs fp32 weights"
        if weights.half:
            b.note("fp16: PyTorch's GradScaler works on fp32 weights only: they are taken to be loaded so")
    else:
        name, why = (pure, loaded) if weights.half else (half if mixed != "no" else "fp32", loaded)
    if weights.name == "auto" and why == loaded and not tuned:
        b.default("weights", "auto", weights.why)
        b.default("autocast", mixed, weights.why)
    if mixed_at is not None:
        take(b, "precision", name, mixed_at, why)
    elif weights.found is not None and why == loaded:
        b.set("precision", name, weights.found, why)
        return
    else:
        b.default("precision", name, why or f"default of {whose}")
    _unused(b, weights)


def _frozen(b: Builder, name: str, weights: Weights) -> None:
    """A frozen base keeps the format that it was loaded in."""
    if weights.found is not None:
        b.set("param_dtype", name, weights.found)
    else:
        b.default("param_dtype", name, weights.why)


def _unused(b: Builder, weights: Weights) -> None:
    if weights.found is not None and b.given("param_dtype") is None:
        b.harmless(weights.found)
