"""What the kernels of ``torch.nn.SyncBatchNorm`` make, which torch has for CUDA alone and without fake ones.

Shapes and dtypes are those of pytorch ``aten/src/ATen/native/cuda/Normalization.cu`` and ``Normalization.cuh``: statistics have
the accumulation's dtype, gradients of the weights that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["KERNELS"]

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def _channels(like: Any, dtype: torch.dtype, count: int) -> Any:
    return torch.empty(count, dtype=dtype, device=like.device)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that a kernel accumulates in."""
    return torch.float32 if dtype in _HALF else dtype


def _stats(_func: Any, args: Any, _kwargs: Any) -> Any:
    """Mean and inverse deviation of each channel."""
    x = args[0]
    return tuple(_channels(x, _wide(x.dtype), x.size(1)) for _ in range(2))


def _gathered(_func: Any, args: Any, _kwargs: Any) -> Any:
    """The same of all ranks together, from those of each."""
    x, mean = args[0], args[1]
    return tuple(_channels(x, _wide(mean.dtype), x.size(1)) for _ in range(2))


def _alike(place: int) -> Callable[[Any, Any, Any], Any]:
    return lambda _func, args, _kwargs: torch.empty_like(args[place])


def _reduced(_func: Any, args: Any, _kwargs: Any) -> Any:
    """Two sums for the gradient of the input, and the gradients of weight and bias; of what is not asked for: nothing."""
    _, x, mean, _, weight, *asked = args
    dtypes = (mean.dtype, mean.dtype, *((x if weight is None else weight).dtype for _ in range(2)))
    wanted = (asked[0], *asked)
    return tuple(_channels(x, dtype, x.size(1) if on else 0) for dtype, on in zip(dtypes, wanted, strict=True))


KERNELS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    aten.batch_norm_stats.default: _stats,
    aten.batch_norm_gather_stats_with_counts.default: _gathered,
    aten.batch_norm_elemt.default: _alike(0),
    aten.batch_norm_backward_reduce.default: _reduced,
    aten.batch_norm_backward_elemt.default: _alike(1),
}
"""Operator -> what stands for its fake kernel."""
