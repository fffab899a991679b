"""Models of diffusers and timm by name, with a batch and a loss."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional

from foretell.errors import ConfigError, InputError
from foretell.trace.engine.libraries import library
from foretell.trace.request import ModelRequest

__all__ = ["diffusers_model", "timm_model"]

_TEXT_TOKENS = 77
"""Tokens of a prompt that a diffusion model is conditioned on (CLIP)."""


def diffusers_model(request: ModelRequest, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Return a model of diffusers, what makes a batch of latents for it, and its loss.

    Raises:
        ConfigError: no such class.

    """
    content, where = request.content, request.where
    diffusers = library("diffusers")
    name = str(content["_class_name"])
    cls = getattr(diffusers, name, None)
    if cls is None:
        raise ConfigError("is no class of diffusers", field="_class_name", value=name, where=where)
    rest = {k: v for k, v in content.items() if not k.startswith("_") and k not in ("dtype", "torch_dtype")}
    model = cls.from_config(rest).to(dtype)
    takes = inspect.signature(model.forward).parameters
    config = model.config

    def batch() -> dict[str, Any]:
        b = request.micro_batch
        side = request.image_size or config.get("sample_size") or 64
        made: dict[str, Any] = {"timestep": torch.zeros(b, dtype=torch.long)}
        if "img_ids" in takes:  # Flux: patches of a latent image, beside text
            tokens = (side // 2) ** 2 if config.get("sample_size") or request.image_size else 4096
            made["hidden_states"] = torch.zeros(b, tokens, config["in_channels"], dtype=dtype)
            made["img_ids"] = torch.zeros(tokens, 3)
            made["txt_ids"] = torch.zeros(512, 3)
            made["encoder_hidden_states"] = torch.zeros(b, 512, config["joint_attention_dim"], dtype=dtype)
            made["pooled_projections"] = torch.zeros(b, config["pooled_projection_dim"], dtype=dtype)
            made["timestep"] = torch.zeros(b, dtype=dtype)
            if config.get("guidance_embeds"):
                made["guidance"] = torch.zeros(b, dtype=dtype)
            return made
        made["sample" if "sample" in takes else "hidden_states"] = torch.zeros(b, config["in_channels"], side, side, dtype=dtype)
        if "encoder_hidden_states" in takes and config.get("cross_attention_dim"):
            width = config["cross_attention_dim"]
            width = width[0] if isinstance(width, (tuple, list)) else width
            made["encoder_hidden_states"] = torch.zeros(b, _TEXT_TOKENS, width, dtype=dtype)
        if config.get("addition_embed_type") == "text_time":
            made["added_cond_kwargs"] = {
                "text_embeds": torch.zeros(b, 1280, dtype=dtype),
                "time_ids": torch.zeros(b, 6, dtype=dtype),
            }
        if "class_labels" in takes and config.get("num_embeds_ada_norm"):
            made["class_labels"] = torch.zeros(b, dtype=torch.long)
        return made

    def loss(model: Any, batch: dict[str, Any]) -> Any:
        out = model(**batch).sample
        return functional.mse_loss(out.float(), torch.zeros_like(out, dtype=torch.float32))

    return model, batch, loss


def timm_model(request: ModelRequest, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Return a model of timm, what makes a batch of images for it, and its loss.

    Raises:
        InputError: no such model.

    """
    timm = library("timm")
    name = str(request.content["timm"])
    if name not in timm.list_models():
        raise InputError("is no model of timm", field="model", value=f"timm:{name}", hint="timm.list_models() lists them")
    model = timm.create_model(name, pretrained=False).to(dtype)
    channels, height, width = model.default_cfg["input_size"]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        b, side = request.micro_batch, request.image_size
        images = torch.zeros(b, channels, side or height, side or width, dtype=dtype)
        return images, torch.zeros(b, dtype=torch.long)

    def loss(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return functional.cross_entropy(model(batch[0]), batch[1])

    return model, batch, loss
