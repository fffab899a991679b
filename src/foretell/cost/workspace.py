"""Library workspaces that live inside PyTorch's allocator: cuBLAS and Transformer Engine."""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.recipe.resolve import Run

MIB = 2.0**20


def cublas_bytes(compute_capability: str | None) -> float:
    """Return the bytes of the workspace that cuBLAS takes for one handle and stream, through the caching allocator.

    8.125 MiB (4096 KiB x 2 + 16 KiB x 8), 32 MiB from sm_90 on (pytorch ``aten/src/ATen/cuda/CublasHandlePool.cpp``).

    >>> cublas_bytes("8.0") / MIB, cublas_bytes("9.0") / MIB
    (8.125, 32.0)
    """
    return (32.0 if _modern(compute_capability) else 8.125) * MIB


def _modern(compute_capability: str | None) -> bool:
    return compute_capability is not None and compute_capability.split(".")[0] in ("9", "10", "11", "12")


def library_workspace(arch: Architecture, run: Run, compute_capability: str | None) -> float:
    """Bytes of library workspaces that ``max_memory_allocated`` counts.

    The forward and the autograd thread have a cuBLAS handle each.  Transformer Engine adds 32 MiB from sm_90 on, else 4 MiB
    (``pytorch/cpp_extensions/gemm.py``), and four more streams of it for grouped matmuls.
    """
    size = 2 * cublas_bytes(compute_capability)
    if run.profile.megatron:
        te = (32.0 if _modern(compute_capability) else 4.0) * MIB
        size += te * (5 if arch.experts else 1)
    return size
