"""Number formats: how many bytes an element takes, block scales included, exactly.

Imports errors only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from foretell.errors import InputError, nearest

__all__ = ["DTYPES", "DType", "dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """One number format; a block format adds a scale per block of elements (and scales of those scales)."""

    name: str
    bits: int
    """Bits of the element itself."""
    scales: tuple[tuple[int, int], ...] = ()
    """(elements per scale, bits of that scale), finest first."""
    source: str = "width of the format"
    aliases: tuple[str, ...] = ()

    @property
    def bytes_per_element(self) -> Fraction:
        """Bytes per element with the scales, exactly; `nbytes` also counts the last, partial block.

        >>> dtype("nf4").bytes_per_element, dtype("bf16").bytes_per_element
        (Fraction(9, 16), Fraction(2, 1))
        """
        return _bytes_per_element(self.bits, self.scales)

    def nbytes(self, elements: Any) -> Any:  # int -> int, integer array -> integer array
        """Bytes of a tensor of `elements` elements (an int or an integer array), partial blocks rounded up.

        >>> dtype("mxfp4").nbytes(4096), dtype("mxfp4").nbytes(33)  # 4096/2 + 128 scales; 17 + 2 scales
        (2176, 19)
        """
        total = -(-elements * self.bits // 8)
        for block, bits in self.scales:
            total = total + (-(-elements // block) * bits) // 8
        return total


@functools.cache
def _bytes_per_element(bits: int, scales: tuple[tuple[int, int], ...]) -> Fraction:
    """Return the exact bytes; kept, since every term of every fold asks for them."""
    return Fraction(bits, 8) + sum(Fraction(scale, 8 * block) for block, scale in scales)


_QLORA = "QLoRA, arXiv:2305.14314 (2023-05), section 3: blocks of 64, scales in blocks of 256"
_MX = "OCP Microscaling Formats (MX) v1.0 (2023-09), table 1: blocks of 32, E8M0 scale"
_NVFP4 = "NVIDIA Transformer Engine user guide, NVFP4 (2025): blocks of 16, E4M3 scale; one fp32 a tensor"
_FP8_BLOCK = "DeepSeek-V3, arXiv:2412.19437 (2024-12), section 3.3: weights 128x128, inputs 1x128, fp32 scale"

_ALL = (
    DType("fp64", 64, aliases=("float64", "double", "f64")),
    DType("fp32", 32, aliases=("float32", "float", "f32", "full", "fp32-true")),
    DType("tf32", 32, source="stored as fp32; 19 bits only inside the tensor core", aliases=("tensorfloat32",)),
    DType("bf16", 16, aliases=("bfloat16", "bf16-true")),
    DType("fp16", 16, aliases=("float16", "half", "f16", "fp16-true")),
    DType("fp8", 8, aliases=("float8", "e4m3", "e5m2", "fp8-e4m3", "fp8-e5m2", "float8-e4m3fn", "float8-e5m2")),
    DType("fp8-block", 8, ((128 * 128, 32),), _FP8_BLOCK, ("fp8-blockwise", "fp8-128x128")),
    DType("fp8-tile", 8, ((128, 32),), _FP8_BLOCK, ("fp8-1x128",)),
    DType("mxfp8", 8, ((32, 8),), _MX),
    DType("mxfp6", 6, ((32, 8),), _MX),
    DType("mxfp4", 4, ((32, 8),), _MX),
    DType("nvfp4", 4, ((16, 8),), _NVFP4),
    DType("fp4", 4, source="E2M1 alone, without scales", aliases=("e2m1",)),
    DType("int8", 8, aliases=("i8", "uint8", "u8")),
    DType("int4", 4, aliases=("i4", "uint4")),
    DType("nf4", 4, ((64, 32),), _QLORA, ("normalfloat4",)),
    DType("nf4-dq", 4, ((64, 8), (64 * 256, 32)), _QLORA, ("nf4-double", "nf4-double-quant")),
    DType("int16", 16),
    DType("int32", 32),
    DType("int64", 64, aliases=("long",)),
    DType("bool", 8, source="PyTorch stores a byte an element"),
)

DTYPES = {kind.name: kind for kind in _ALL}
"""Canonical name -> DType."""

_BY_KEY = {key: kind for kind in _ALL for key in (kind.name, *kind.aliases)}


def dtype(name: str | DType, field: str = "dtype", *, where: str | None = None) -> DType:
    """Return the DType of a name or alias ("bf16", "torch.bfloat16", "F32"), or raise an InputError.

    >>> dtype("torch.bfloat16").name
    'bf16'
    """
    if isinstance(name, DType):
        return name
    key = name.strip().casefold().removeprefix("torch.").replace("_", "-") if isinstance(name, str) else ""
    if key in _BY_KEY:
        return _BY_KEY[key]
    near = nearest(key, _BY_KEY, most=1)
    hint = f"Did you mean {_BY_KEY[near[0]].name}?" if near else None
    raise InputError("is not a known number format", field=field, value=name, allowed=list(DTYPES), where=where, hint=hint)
