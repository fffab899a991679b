"""What a process takes that trains nothing: the bare context, then what each library adds on first use.

Each stage tells the device's memory, and what of it the allocator holds: the rest lies outside.  What stays allocated after a
stage is a workspace that a library keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from _measure.counters import Counters

__all__ = ["context", "kernel_of"]

_SIDE = 512
"""Of the square matrices."""
_HEADS, _TOKENS, _HEAD = 8, 256, 64
_DEPTH = 4
"""Nodes of a graph that are looked at before the attention's."""


def context(counters: Counters) -> dict[str, Any]:
    """Return the stages, in order."""
    stages: list[dict[str, Any]] = []
    kernels: dict[str, str] = {}

    def note(name: str, work: Callable[[], object]) -> None:
        work()
        stages.append({"stage": name, **counters.outside(), **counters.read()})

    note("context", lambda: counters.begin(None))
    with torch.device(counters.device):
        note("kernel", lambda: torch.ones(8).add_(1))
        note("matmul", lambda: torch.mm(*_matrices(torch.bfloat16)))
        note("matmul, backward", lambda: _product(torch.bfloat16))
        note("matmul, fp32", lambda: _product(torch.float32))
        note("attention", lambda: kernels.update(_attention()))
        note("convolution", lambda: _convolution(torch.float32))
        note("convolution, bf16", lambda: _convolution(torch.bfloat16))
    return {"outcome": "measured", "stages": stages, "attention": kernels, "machine": counters.machine()}


def _matrices(dtype: torch.dtype, *, grad: bool = False) -> tuple[Tensor, Tensor]:
    a, b = (torch.randn(_SIDE, _SIDE, dtype=dtype) for _ in "ab")
    return a.requires_grad_(grad), b.requires_grad_(grad)


def _product(dtype: torch.dtype) -> None:
    a, b = _matrices(dtype, grad=True)
    (a @ b).sum().backward()  # type: ignore[no-untyped-call]


def _attention() -> dict[str, str]:
    """Return which kernel attention takes, by the name of its backward, for the kinds of input that models have."""
    cases = {
        "bf16, causal": (torch.bfloat16, _HEADS, _HEAD, True),
        "bf16, causal, grouped": (torch.bfloat16, 2, _HEAD, True),
        "bf16, not causal": (torch.bfloat16, _HEADS, _HEAD, False),
        "bf16, heads of 256": (torch.bfloat16, _HEADS, 256, True),
        "fp32, causal": (torch.float32, _HEADS, _HEAD, True),
    }
    return {name: _kernel(*case) for name, case in cases.items()}


def _kernel(dtype: torch.dtype, kv_heads: int, size: int, causal: bool) -> str:
    q, k, v = (torch.randn(2, heads, _TOKENS, size, dtype=dtype) for heads in (_HEADS, kv_heads, kv_heads))
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != _HEADS)
    name = kernel_of(out)
    out.sum().backward()  # type: ignore[no-untyped-call]
    return name


def kernel_of(out: Tensor) -> str:
    """Return the name of the backward of the attention that made a tensor; views may stand before it.  Empty: it has none."""
    nodes: list[Any] = [out.grad_fn] if out.grad_fn is not None else []
    first = nodes[0].name() if nodes else ""
    for _ in range(_DEPTH):
        found = next((node.name() for node in nodes if "Attention" in node.name()), None)
        if found is not None:
            return str(found)
        nodes = [following for node in nodes for following, _ in node.next_functions if following is not None]
    return str(first)


def _convolution(dtype: torch.dtype) -> None:
    images = torch.randn(4, 64, 56, 56, dtype=dtype, requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, dtype=dtype, requires_grad=True)
    functional.conv2d(images, weight, padding=1).sum().backward()  # type: ignore[no-untyped-call]
