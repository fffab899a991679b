"""Library workspaces that live inside PyTorch's allocator: cuBLAS and Transformer Engine."""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.recipe.resolve import Run

MIB = 2.0**20


def library_workspace(arch: Architecture, run: Run, compute_capability: str | None) -> float:
    """Bytes of library workspaces that ``max_memory_allocated`` counts.

    cuBLAS takes one workspace per handle and stream through the caching allocator: 8.125 MiB (4096 KiB x 2 +
    16 KiB x 8), 32 MiB from sm_90 on (pytorch ``aten/src/ATen/cuda/CublasHandlePool.cpp``); the forward and the
    autograd thread have a handle each.  Transformer Engine adds 32 MiB from sm_90 on, else 4 MiB
    (``pytorch/cpp_extensions/gemm.py``), and four more streams of it for grouped matmuls.
    """
    modern = compute_capability is not None and compute_capability.split(".")[0] in ("9", "10", "11", "12")
    size = 2 * (32.0 if modern else 8.125)
    if run.profile.megatron:
        te = 32.0 if modern else 4.0
        size += te * (5 if arch.experts else 1)
    return size * MIB
