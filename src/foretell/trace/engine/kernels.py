"""Fake kernels that make other memory than the real ones: their results are put right.

Found by running every operator of ``torch.testing``'s database (torch 2.13) on the CPU, real beside fake, and comparing bytes and
strides of what each makes.  Sources of the real kernels: pytorch ``aten/src/ATen/native/Loss.cpp``, ``cuda/Loss.cu``,
``SoftMax.cpp``, ``layer_norm.cpp``, ``cuda/layer_norm_kernel.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from foretell.trace.engine.syncbn import KERNELS

__all__ = ["CORRECTED", "REPLACED", "dense", "view_stride"]

aten = torch.ops.aten
_MEAN = 1  # at::Reduction


def _whole(place: int) -> Callable[[Any, Any], Any]:
    """A loss is first one value for each element, and keeps that memory when it is reduced to a scalar."""

    def correct(out: Any, args: Any) -> Any:
        reduction = args[place] if len(args) > place else _MEAN
        if not reduction:
            return out
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(shape, dtype=out.dtype, device=out.device).resize_(())

    return correct


def _contiguous(out: Any, _args: Any) -> Any:
    """Results are contiguous whatever the strides of what comes in."""

    def correct(tensor: torch.Tensor) -> torch.Tensor:
        same = tensor.is_contiguous()
        return tensor if same else torch.empty_like(tensor, memory_format=torch.contiguous_format)

    return tree_map_only(torch.Tensor, correct, out)


def _wide(place: int) -> Callable[[Any, Any], Any]:
    """On the CPU the saved mean and deviation of half-precision input have the dtype of the weight."""

    def correct(out: Any, args: Any) -> Any:
        weight = args[place]
        if weight is None or weight.device.type != "cpu" or out[1].dtype == weight.dtype:
            return out
        first, *stats = out
        return first, *(torch.empty_like(t, dtype=weight.dtype) for t in stats)

    return correct


def _two_biases(out: Any, _args: Any) -> Any:
    """The gradients of the two biases of a recurrent layer on the CPU are two tensors."""
    *first, bias, same, hidden, cell = out
    return (*first, bias, torch.empty_like(same), hidden, cell)


def _view(out: Any, args: Any) -> Any:
    """A view's strides along dimensions of size 1 decide what counts as channels-last further on."""
    old = args[0]
    if 1 not in out.shape and 1 not in old.shape:
        return out
    stride = view_stride(old.shape, old.stride(), out.shape)
    if stride is None or stride == out.stride():
        return out
    return old.as_strided(out.shape, stride, old.storage_offset())


def _scaled(out: Any, args: Any) -> Any:
    """With a number for one operand strides are kept; the fake kernels give channels-last ones in full to a batch of one."""
    old = args[0]
    if 1 not in out.shape or not isinstance(old, torch.Tensor) or old.is_contiguous() or old.stride() == out.stride():
        return out
    alone = not isinstance(args[1], torch.Tensor) or args[1].dim() == 0
    if not alone or old.shape != out.shape or not dense(old):
        return out
    return torch.empty_strided(out.shape, old.stride(), dtype=out.dtype, device=out.device)


def dense(tensor: torch.Tensor) -> bool:
    """Do the elements lie side by side, in whatever order?"""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def view_stride(shape: tuple[int, ...], stride: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a view of ``wanted`` shape, None where there is none (pytorch ``aten/src/ATen/TensorUtils.cpp``).

    Dimensions whose elements follow each other form a chunk; the view's dimensions are cut out of the chunks, last first.

    >>> view_stride((1, 32, 256), (8192, 1, 32), (1, 32, 16, 16))
    (32, 1, 512, 32)
    """
    if not shape or 0 in shape:
        return None
    made: list[int] = []
    left = len(wanted) - 1
    chunk = inner = 1
    unit = stride[-1]
    for d in range(len(shape) - 1, -1, -1):
        chunk *= shape[d]
        if d and (shape[d - 1] == 1 or stride[d - 1] == chunk * unit):
            continue
        while left >= 0 and (inner < chunk or wanted[left] == 1):
            made.append(inner * unit)
            inner *= wanted[left]
            left -= 1
        if inner != chunk:
            return None
        if d:
            unit, chunk, inner = stride[d - 1], 1, 1
    return tuple(reversed(made)) if left < 0 else None


def _grouped_mm(func: Any, args: Any, kwargs: Any) -> Any:
    """The fake kernel refuses what is not bfloat16; the real one does it in a loop (pytorch ``native/GroupedMMUtils.h``)."""
    dtype = args[0].dtype
    if dtype == torch.bfloat16:
        return func(*args, **kwargs)
    narrow = [torch.empty_like(a, dtype=torch.bfloat16) for a in args[:2]]
    out = func(*narrow, *args[2:], **{k: v for k, v in kwargs.items() if k != "out_dtype"})
    return torch.empty_strided(out.shape, out.stride(), dtype=dtype, device=out.device)


REPLACED: dict[Any, Callable[[Any, Any, Any], Any]] = {aten._grouped_mm.default: _grouped_mm, **KERNELS}
"""Operator -> what stands for its fake kernel."""
CORRECTED: dict[Any, Callable[[Any, Any], Any]] = {
    aten.mse_loss.default: _whole(2),
    aten.smooth_l1_loss.default: _whole(2),
    aten.soft_margin_loss.default: _whole(2),
    aten.binary_cross_entropy.default: _whole(3),
    aten.native_layer_norm_backward.default: _contiguous,
    aten._log_softmax_backward_data.default: _contiguous,
    aten.huber_loss_backward.default: _contiguous,
    aten.mkldnn_rnn_layer_backward.default: _two_biases,
    aten.add.Tensor: _scaled,
    aten.sub.Tensor: _scaled,
    aten.mul.Tensor: _scaled,
    aten.div.Tensor: _scaled,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.native_batch_norm.default: _wide(1),
    aten.native_group_norm.default: _wide(1),
    aten.native_layer_norm.default: _wide(2),
}
"""Operator -> (its fake result, its arguments) -> the result with the real kernel's memory."""
