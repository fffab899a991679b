"""From a configuration to a job: a model, a batch, a loss and an optimizer, built on the default device.

The real run and the trace call the same :func:`job`; under a trace every tensor is fake, so nothing here reads a value.
A job is a mapping with the fields of ``foretell.trace.Job``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from _measure.configurations import Configuration
from _measure.language import Decoder, Gpt2, adapt
from _measure.vision import ResNet, Vit

__all__ = ["OPTIMIZERS", "job"]

WEIGHTS: Final = {"bf16": torch.float32, "bf16-true": torch.bfloat16, "fp32": torch.float32}
"""dtype of the weights by precision."""
_TEXT_TOKENS: Final = 77
"""Tokens of the text that a diffusion model is conditioned on (CLIP)."""

OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw-forloop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
}


def job(c: Configuration) -> dict[str, Any]:
    """Return the job of a configuration."""
    with _default_dtype(WEIGHTS[c.precision]):
        model = _model(c)
    if c.lora_rank is not None and not c.library:
        adapt(model, c.lora_rank, c.lora_targets)
    if c.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    if c.compiled:
        model.compile()
    return {
        "model": model,
        "batch": _batch(c),
        "loss": _loss(c),
        "optimizer": OPTIMIZERS[c.optimizer],
        "accumulate": c.accumulate,
        "autocast": "bfloat16" if c.precision == "bf16" else None,
        "clip": c.clip,
    }


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let weights be made in their final dtype: a conversion would leave gaps in reserved memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _model(c: Configuration) -> nn.Module:
    if c.library == "transformers":
        return _of_transformers(c)
    if c.library == "diffusers":
        config = {k: v for k, v in c.shape.items() if k not in ("model_type", "_class_name")}
        made: nn.Module = importlib.import_module("diffusers").UNet2DConditionModel(**config)
        return made
    if c.model_type in ("llama", "mixtral"):
        return Decoder(c.shape, eager=c.attention == "eager", recompute=c.recompute)
    if c.model_type == "gpt2":
        return Gpt2(c.shape, eager=c.attention == "eager", recompute=c.recompute)
    return Vit(c.shape, recompute=c.recompute) if c.model_type == "vit" else ResNet(c.shape)


def _of_transformers(c: Configuration) -> nn.Module:
    library = importlib.import_module("transformers")
    config = library.AutoConfig.for_model(**c.shape)
    made: nn.Module = library.AutoModelForCausalLM.from_config(
        config, dtype=WEIGHTS[c.precision], attn_implementation=c.attention
    )
    if c.recompute != "none":
        enable: Any = made.gradient_checkpointing_enable
        enable(gradient_checkpointing_kwargs={"use_reentrant": c.recompute == "full-reentrant"})
    if c.lora_rank is None:
        return made
    peft = importlib.import_module("peft")
    adapted: nn.Module = peft.get_peft_model(made, peft.LoraConfig(r=c.lora_rank, target_modules=list(c.lora_targets)))
    return adapted


# -- batches and losses -------------------------------------------------------------------------------------


def _batch(c: Configuration) -> Callable[[], Any]:
    """Return what makes the inputs of a micro-step."""
    b = c.micro_batch
    if c.tokens is not None:
        return lambda: _words(b, c.tokens or 0, c.shape["vocab_size"])
    side = c.pixels or 0
    if c.library == "diffusers":
        return lambda: {
            "sample": torch.randn(b, c.shape["in_channels"], side, side),
            "timestep": torch.randint(0, 1000, (b,)),
            "encoder_hidden_states": torch.randn(b, _TEXT_TOKENS, c.shape["cross_attention_dim"]),
        }
    return lambda: _images(c, b, side)


def _words(batch: int, tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(0, vocabulary, (batch, tokens))
    return words, words.clone()


def _images(c: Configuration, batch: int, side: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(batch, 3, side, side)
    if c.channels_last:
        images = images.to(memory_format=torch.channels_last)
    return images, torch.randint(0, c.shape["num_labels"], (batch,))


def _loss(c: Configuration) -> Callable[[Any, Any], Tensor]:
    if c.library == "diffusers":
        return _noise_loss
    return _own_loss if c.library == "transformers" else _plain_loss


def _plain_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(*batch)  # type: ignore[no-any-return]


def _own_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(input_ids=batch[0], labels=batch[1], use_cache=False).loss  # type: ignore[no-any-return]


def _noise_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    out = model(**batch).sample
    return functional.mse_loss(out.float(), torch.randn_like(out, dtype=torch.float32))
