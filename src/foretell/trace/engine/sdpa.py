"""``scaled_dot_product_attention`` as a CUDA build chooses its kernel; a CPU build would always write the scores out.

The choice follows pytorch ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (2.13), what is done before and after the
kernel ``aten/src/ATen/native/transformers/attention.cpp``.  It is registered as the operator's autograd kernel for CUDA, so that
autocast, ``sdpa_kernel(...)``, checkpoints and names bound at import all reach it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.nn import functional

from foretell.errors import InputError
from foretell.trace.request import BACKENDS

__all__ = ["Attention"]

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_LARGEST = 256
_CUDNN_LARGEST = 128


class Attention:
    """Chooses and calls the kernel; ``used`` counts the choices."""

    def __init__(self, backend: str, capability: tuple[int, int]) -> None:
        """Take one backend always, or (``auto``) as torch does on a GPU of this compute capability."""
        if backend not in BACKENDS:
            raise InputError("is no attention backend", field="sdpa", value=backend, allowed=list(BACKENDS))
        self.backend, self.capability = backend, capability
        self.used: Counter[str] = Counter()
        self._library: Any = None

    def install(self) -> None:
        """Become the kernel of this process."""
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("scaled_dot_product_attention", self.call, "AutogradCUDA")

    # -- choice ---------------------------------------------------------------------------------------------

    def choose(self, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> str:
        """Return the backend that takes these inputs."""
        if self.backend != "auto":
            return self.backend
        cuda = torch.backends.cuda
        order = ("cudnn", "flash", "efficient") if self.capability[0] in (9, 10) else ("flash", "efficient")
        allowed = {
            "cudnn": cuda.cudnn_sdp_enabled(),
            "flash": cuda.flash_sdp_enabled(),
            "efficient": cuda.mem_efficient_sdp_enabled(),
        }
        for name in order:
            if allowed[name] and getattr(self, f"_{name}")(q, k, v, mask, causal):
                return name
        return "math"

    def _dense(self, q: Any, k: Any, v: Any) -> bool:
        return q.dim() == 4 and all(t.size(-1) == 0 or t.stride(-1) == 1 for t in (q, k, v)) and min(q.size(-2), k.size(-2)) > 0

    def _flash(self, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> bool:
        same = q.size(-1) == k.size(-1) == v.size(-1) <= _FLASH_LARGEST
        square = not causal or q.size(-2) == k.size(-2)
        return self.capability >= (8, 0) and mask is None and same and square and q.dtype in _HALF and self._dense(q, k, v)

    def _cudnn(self, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> bool:
        fits = q.size(-1) == k.size(-1) and q.size(-1) % 8 == 0 and v.size(-1) % 8 == 0
        small = max(q.size(-1), v.size(-1)) <= _CUDNN_LARGEST
        learnt = mask is not None and mask.requires_grad
        square = not causal or q.size(-2) == k.size(-2)
        return fits and small and not learnt and square and q.dtype in _HALF and self._dense(q, k, v)

    def _efficient(self, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> bool:
        modern = self.capability >= (8, 0)
        unit = 8 if q.dtype in _HALF else (4 if modern else 1)
        aligned = q.size(-1) == k.size(-1) and q.size(-1) % unit == 0 and v.size(-1) % unit == 0
        kinds = (torch.float32, torch.float16, *((torch.bfloat16,) if modern else ()))
        heads = q.size(-3) == k.size(-3) == v.size(-3) if q.dim() == 4 else False
        return aligned and heads and q.dtype in kinds and not (causal and mask is not None) and self._dense(q, k, v)

    # -- call -----------------------------------------------------------------------------------------------

    def call(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Return attention of ``query`` [B, H, S, D] to ``key`` and ``value``, as the operator's documentation says."""
        name = self.choose(query, key, value, attn_mask, is_causal)
        self.used[name] += 1
        if name == "flash":
            return _by_flash(query, key, value, dropout_p, is_causal, scale)
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if name == "cudnn":
            mask = _additive(attn_mask, query)
            out: Any = aten._scaled_dot_product_cudnn_attention
            return out(query, key, value, mask, grad, dropout_p, is_causal, False, scale=scale)[0]
        if name == "efficient":
            mask = _aligned(_additive(attn_mask, query), query, key)
            out = aten._scaled_dot_product_efficient_attention
            return out(query, key, value, mask, grad, dropout_p, is_causal, scale=scale)[0]
        out = aten._scaled_dot_product_attention_math
        mask = _additive(attn_mask, query)
        return out(query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]


def _by_flash(q: Any, k: Any, v: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    """Heads are padded to a multiple of 8 for the kernel."""
    size = q.size(-1)
    over = -size % 8
    if over:
        q, k, v = (functional.pad(t, (0, over)) for t in (q, k, v))
    scale = scale if scale is not None else size**-0.5
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return out[..., :size] if over else out


def _additive(mask: Any, q: Any) -> Any:
    """A boolean mask becomes one that is added."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _aligned(mask: Any, q: Any, k: Any) -> Any:
    """Rows of the mask are padded to a multiple of 16 elements, and the mask is expanded to every head."""
    if mask is None:
        return None
    width = mask.size(-1)
    if width % 16:
        mask = functional.pad(mask, (0, -width % 16))[..., :width]
    return mask.expand(q.size(0), q.size(1), q.size(2), k.size(2))
