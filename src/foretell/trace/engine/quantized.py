"""A frozen base in four bits: linear layers whose weight is packed and made whole for each product.

Stands for the linear layer of bitsandbytes (``nn/modules.py``, ``autograd/_functions.py``), whose kernels take no fake
tensors: two weights in a byte, a fp32 scale for 64 of them, and a copy in the compute dtype while a product runs, forward and
backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Linear4bit", "quantize"]

BLOCK = 64
"""Weights that share a scale."""


class _Product(torch.autograd.Function):
    """``x @ w.T``; keeps no copy of the weight between forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Linear4bit) -> torch.Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.whole(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (gradient,) = gradients
        return gradient @ ctx.layer.whole(gradient.dtype), None


class Linear4bit(nn.Linear):
    """A linear layer with a packed weight."""

    def __init__(self, like: nn.Linear) -> None:
        """Take the shape and the bias of a linear layer."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        count = like.weight.numel()
        device = like.weight.device
        self.weight = nn.Parameter(torch.empty(-(-count // 2), 1, dtype=torch.uint8, device=device), requires_grad=False)
        self.register_buffer("scales", torch.empty(-(-count // BLOCK), dtype=torch.float32, device=device))
        self.bias = like.bias

    def whole(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in a dtype of its own storage."""
        return torch.empty(self.out_features, self.in_features, dtype=dtype, device=self.weight.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ w.T + b``."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        out: torch.Tensor = _Product.apply(x, self)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def quantize(model: nn.Module, *, keep: tuple[str, ...]) -> None:
    """Put packed layers in the place of a model's linear layers, but for those whose name is in ``keep``."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name not in keep:
                setattr(module, name, Linear4bit(child))
