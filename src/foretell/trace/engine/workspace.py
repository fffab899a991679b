"""What a CUDA kernel asks the caching allocator for beside its outputs, where its size is known from the source.

cuBLAS takes one workspace for each handle and stream at its first matrix product, and keeps it; the forward and the autograd
thread have a handle each.  Attention's backward kernels accumulate in fp32 (``flash_api.cpp``;
``mem_eff_attention/kernel_backward.h``).  cuDNN's plans are not known without the library: convolutions are reported as such.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from foretell.cost.workspace import cublas_bytes

__all__ = ["Workspaces"]

aten = torch.ops.aten
_MATMULS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten._grouped_mm.default,
        aten.addmv.default,
        aten.mv.default,
    }
)
_FLASH = aten._scaled_dot_product_flash_attention_backward.default
_EFFICIENT = aten._scaled_dot_product_efficient_attention_backward.default
_SOFTMAX = aten._softmax_backward_data.default
_LOSSES = frozenset({aten.mse_loss.default, aten.smooth_l1_loss.default})
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default, aten._cudnn_rnn.default})


class Workspaces:
    """Answers the recorder: sizes of an operator's workspaces; a negative one is kept for ever."""

    def __init__(self, capability: tuple[int, int], stream: Any) -> None:
        """Begin before the first matrix product."""
        self.size = round(cublas_bytes(f"{capability[0]}.{capability[1]}"))
        self.stream = stream
        self.handles: set[tuple[bool, int]] = set()
        self.unknown: Counter[str] = Counter()
        """Operators whose workspace is not known."""

    def __call__(self, func: Any, args: tuple[Any, ...], backward: bool) -> tuple[int, ...]:
        """Return the sizes (bytes)."""
        if func in _MATMULS:
            handle = backward, self.stream()
            if handle in self.handles or args[0].device.type != "cuda":
                return ()
            self.handles.add(handle)
            return (-self.size,)
        if func is _FLASH:
            return _flash(args[1], args[2])
        if func is _EFFICIENT:
            return _efficient(args[1], args[2], args[3])
        if func is _SOFTMAX:  # SoftMax.cu: the gradient times the output, whole
            gradient, output = args[0], args[1]
            return (output.numel() * max(gradient.element_size(), output.element_size()),)
        if func in _LOSSES:  # Loss.cpp: the loss of each element, before it is reduced
            reduced = args[2] if len(args) > 2 else 1
            return (args[0].numel() * args[0].element_size(),) if reduced else ()
        if func in _CONVOLUTIONS:
            self.unknown[func._schema.name] += 1
        return ()


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _flash(q: Any, k: Any) -> tuple[int, ...]:
    """Row sums, the fp32 accumulator of dQ, and dK and dV of every query head where heads share them."""
    batch, heads, length, size = q.shape
    rows = _up(length, 128)
    width = _up(size, 32)
    sizes = [4 * batch * heads * rows, 4 * batch * rows * heads * width]
    if k.size(1) != heads:
        sizes += [batch * k.size(2) * heads * size * q.element_size()] * 2
    return tuple(sizes)


def _efficient(q: Any, k: Any, v: Any) -> tuple[int, ...]:
    """Row sums, and fp32 accumulators: of dQ for half types; of dK and dV too for heads above 64."""
    batch, heads, length, size = q.shape
    sizes = [4 * batch * heads * length]
    if q.element_size() < 4:  # fp32 accumulates in its output
        elements = _up(length, 64) * _up(size, 64)
        if size > 64:  # else they stay in registers
            elements += _up(k.size(2), 64) * (_up(size, 64) + _up(v.size(3), 64))
        sizes.append(4 * batch * heads * elements)
    return tuple(sizes)
