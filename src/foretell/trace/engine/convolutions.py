"""How much workspace a convolution may be given, whichever algorithm cuDNN chooses.

cuDNN does not publish what its algorithms ask for.  Two of them need what their textbook form needs (Chetlur et al. 2014, "cuDNN:
efficient primitives for deep learning"; Lavin and Gray 2016, "Fast algorithms for convolutional neural networks"):

* a matrix product on the whole batch's patches: every output position with its window of input channels;
* Winograd's F(4x4, 3x3) with its three transforms in memory: 36 numbers for each tile of 4 x 4 outputs and each channel, of the
  input and of the output, and for each pair of channels, of the weights, all in fp32.

The larger of the two that a convolution's shape allows is its allowance.  Transforms by Fourier can take more.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

__all__ = ["allowance"]

aten = torch.ops.aten
_TILE = 4
_TRANSFORMED = 36
_FLOAT = 4


def allowance(func: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the bytes for a convolution or its backward pass; 0 for others, and for depthwise ones (torch's own kernel)."""
    if func is aten.convolution.default:
        x, weight, _, stride, _, dilation, transposed, _, groups = args
        whole = out
    elif func is aten.convolution_backward.default:
        whole, x, weight, _, stride, _, dilation, transposed, _, groups, _ = args
    else:
        return 0
    if groups > 1 and weight.shape[1] == 1:
        return 0
    few = x if transposed else whole
    outputs, inputs = int(weight.shape[0]), int(weight.shape[1] * groups)
    window, positions = list(weight.shape[2:]), list(few.shape[2:])
    batch, plain = int(few.shape[0]), all(s == 1 for s in stride)
    patches = 0 if plain and prod(window) == 1 else batch * int(prod(positions) * prod(window)) * inputs * int(x.element_size())
    if window != [3, 3] or not plain or groups > 1 or any(d != 1 for d in dilation):
        return patches
    tiles = batch * int(prod(-(-p // _TILE) for p in positions))
    return max(patches, _TRANSFORMED * _FLOAT * (tiles * (inputs + outputs) + inputs * outputs))
