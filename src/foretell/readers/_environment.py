"""Environment variables of a command: those that libraries read, each accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder, Effect

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found

__all__ = ["ALLOCATOR", "environment", "variables"]

ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Settings of PyTorch's caching allocator (pytorch docs/source/notes/cuda.rst, "Optimizing memory usage")."""
_DOUBTED: Final[dict[str, tuple[Effect, str]]] = {
    "CUDA_LAUNCH_BLOCKING": ("speed", "every kernel is waited for"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("both", "the caching allocator is off"),
    "TORCH_NCCL_AVOID_RECORD_STREAMS": ("memory", "tensors of collectives are freed at other times"),
    "NCCL_P2P_DISABLE": ("speed", "GPUs of a node exchange through the host"),
    "NCCL_IB_DISABLE": ("speed", "nodes exchange over TCP"),
    "NCCL_ALGO": ("speed", "the algorithm of collectives is forced"),
    "NCCL_PROTO": ("speed", "the protocol of collectives is forced"),
    "NVTE_FLASH_ATTN": ("both", "chooses Transformer Engine's attention"),
    "NVTE_FUSED_ATTN": ("both", "chooses Transformer Engine's attention"),
    "NVTE_UNFUSED_ATTN": ("both", "chooses Transformer Engine's attention"),
}
"""Variables that are known to change memory or speed (pytorch docs "CUDA environment variables"; NCCL and Transformer Engine
user guides)."""
_OFF: Final = {"NCCL_P2P_DISABLE": (0,), "NCCL_IB_DISABLE": (0,), "CUDA_LAUNCH_BLOCKING": (0,)}
"""Values that switch nothing on."""
_HARMLESS: Final = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_HOME", "CUDA_PATH",
    "CUDA_MODULE_LOADING", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX",
    "NCCL_ASYNC_ERROR_HANDLING", "NCCL_TIMEOUT", "NCCL_BLOCKING_WAIT", "NCCL_IB_RETRY_CNT", "NCCL_DEBUG_SUBSYS",
    "NCCL_NVLS_ENABLE", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_DISTRIBUTED_DEBUG", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR",
    "TORCH_HOME", "TORCH_LOGS", "TORCH_SHOW_CPP_STACKTRACES", "NVTE_DEBUG", "NVTE_DEBUG_LEVEL", "DS_SKIP_CUDA_CHECK",
    "DS_BUILD_OPS", "ACCELERATE_LOG_LEVEL", "TORCHELASTIC_ERROR_FILE", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "NVTE_BWD_LAYERNORM_SM_MARGIN", "NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_APPLY_QK_LAYER_SCALING",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "NCCL_CUMEM_ENABLE", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
_READ_BY = (
    "CUDA_", "NCCL_", "NVTE_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TORCHELASTIC_", "VLLM_", "SGLANG_", "SGL_",
    "TRTLLM_", "TLLM_", "DS_", "DEEPSPEED_", "ACCELERATE_", "FSDP_", "MEGATRON_", "XLA_", "HIP_", "ROCR_", "RCCL_",
)  # fmt: skip
"""Prefixes of variables that the libraries read; others are the script's own."""


def environment(b: Builder) -> None:
    """Account for the environment of the command: what nobody looked at before."""
    launch = b.sources.launch
    if launch is None:
        return
    variables(b, launch.document)
    named = {found.key for found in launch.document.untouched()}
    neutral = frozenset(name for name in named if name in _HARMLESS or not name.startswith(_READ_BY))
    b.rest(launch.document, neutral, _DOUBTED, off=_OFF)


def variables(b: Builder, document: Document, prefix: str = "") -> None:
    """Account for variables that a file sets, under ``prefix`` ("ENV_VARS."); the rest of the file is for its reader."""
    for name in ALLOCATOR:
        found = document.get(f"{prefix}{name}")
        if found is not None:
            _allocator(b, found)
    for found in [*document.untouched()] if prefix else []:
        name = found.key.removeprefix(prefix)
        if not found.key.startswith(prefix) or "." in name:
            continue
        value = found.node.plain()
        if name in _DOUBTED and value is not False and value not in _OFF.get(name, ()):
            b.doubt(found, *_DOUBTED[name])
        elif name in _HARMLESS or name in _DOUBTED or not name.startswith(_READ_BY):
            b.harmless(found)


def _allocator(b: Builder, found: Found) -> None:
    """Take the allocator's settings apart: "expandable_segments:True,max_split_size_mb:128"."""
    for part in found.text().split(","):
        name, _, value = part.strip().partition(":")
        if name == "expandable_segments" and value.strip().casefold() in ("true", "false"):
            b.set("expandable_segments", value.strip().casefold() == "true", found)
        elif name:
            b.doubt(found, "memory", f"{name} changes how much memory is reserved beyond what is allocated")
