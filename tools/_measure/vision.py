"""Plain modules of vision models: ViT and ResNet, as transformers 5 has them (``models/{vit,resnet}/modeling_*.py``)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from _measure.configurations import Shape
from _measure.language import attend

__all__ = ["ResNet", "Vit"]


class VitLayer(nn.Module):
    """Attention to every patch, then an MLP, each on a norm of the stream and added to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads = shape["hidden_size"], shape["num_attention_heads"]
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, shape["intermediate_size"]), nn.Linear(shape["intermediate_size"], width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        kept = x
        x = self.norm_1(x)
        x = self._attended(x)
        x = x + kept
        kept = x
        x = self.norm_2(x)
        x = self.up(x)
        x = functional.gelu(x)
        x = self.down(x)
        return x + kept

    def _attended(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        out = attend(q, k, v, None, 0.0, causal=False)
        return self.o_proj(out)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """A ViT classifier; its forward gives the loss of images [B, 3, P, P] and their labels [B]."""

    def __init__(self, shape: Shape, *, recompute: str = "none") -> None:
        super().__init__()
        self.recompute = recompute
        width, patch = shape["hidden_size"], shape["patch_size"]
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (shape["image_size"] // patch) ** 2 + 1, width))
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.layers = nn.ModuleList(VitLayer(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape["num_labels"])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.size(0), -1, -1), x), dim=1)
        x = x + self.places
        for layer in self.layers:
            x = layer(x) if self.recompute == "none" else checkpoint(layer, x, use_reentrant=self.recompute == "full-reentrant")
        x = self.norm(x)
        return functional.cross_entropy(self.head(x[:, 0]), labels)


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, and ReLU where asked."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, active: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        x = self.norm(x)
        return functional.relu(x) if self.active else x


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut; the middle one takes the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride=stride, active=False)
        self.body = nn.Sequential(
            ConvNorm(inputs, inner, 1), ConvNorm(inner, inner, 3, stride=stride), ConvNorm(inner, outputs, 1, active=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = x
        x = self.body(x)
        kept = self.shortcut(kept)
        x += kept
        return functional.relu(x)


class ResNet(nn.Module):
    """A ResNet classifier of bottlenecks; its forward gives the loss of images [B, 3, P, P] and their labels [B]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        widths = [shape["embedding_size"], *shape["hidden_sizes"]]
        self.stem = nn.Sequential(ConvNorm(3, widths[0], 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))
        self.stages = nn.ModuleList()
        for number, ((inputs, outputs), depth) in enumerate(zip(pairwise(widths), shape["depths"], strict=True)):
            first = Bottleneck(inputs, outputs, 1 if number == 0 else 2)
            self.stages.append(nn.Sequential(first, *(Bottleneck(outputs, outputs, 1) for _ in range(depth - 1))))
        self.head = nn.Linear(widths[-1], shape["num_labels"])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return functional.cross_entropy(self.head(x), labels)
