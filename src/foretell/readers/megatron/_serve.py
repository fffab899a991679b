"""Megatron-LM's inference scripts, as a server.

Defaults: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py`` (``_add_inference_args``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.megatron._layout import degree

if TYPE_CHECKING:
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args

__all__ = ["SCRIPTS", "serves", "serving"]

SCRIPTS: Final = frozenset((
    "gpt_dynamic_inference.py", "gpt_dynamic_inference_with_coordinator.py", "gpt_static_inference.py",
    "simple_gpt_batch_inference.py", "offline_inference.py", "launch_inference_server.py", "run_text_generation_server.py",
    "run_dynamic_text_generation_server.py", "run_inference_performance_test.py", "run_mamba_text_generation_server.py",
))  # fmt: skip
"""Scripts of Megatron-LM's examples/inference and tools that generate text."""
_ASKED: Final = ("num_tokens_to_generate", "prompts", "prompt_file", "incoming_requests_per_sec", "incoming_requests_per_step")


def serves(args: Args, mode: str) -> bool:
    """Whether a run generates text and trains nothing; ``mode``: of a test's YAML."""
    if mode or args.program:
        return mode == "inference" or args.program in SCRIPTS
    return any(name in args.spelled for name in _ASKED) and "perform_rl_step" not in args.spelled


def serving(b: Builder, args: Args) -> None:
    """Take the layout, the limits and the formats of a server."""
    b.default("engine", "other", "Megatron-LM's own engine")
    tp = degree(args, "tp")
    for name, key in (("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size")):
        _take(b, args, name, key, 1)
    experts = args.get("expert_model_parallel_size")
    if experts is not None:
        b.set("ep", experts.whole(), experts)
        if experts.whole() > tp:
            b.set("dp", experts.whole() // tp, experts, "experts lie on more ranks than tensor parallelism has")
            b.set("dp_kind", "attention", experts)
    static = args.on("use_legacy_static_engine") is not None or args.program == "gpt_static_inference.py"
    _take(b, args, "max_model_len", "inference_max_seq_length", 2560)
    if static:
        _take(b, args, "max_num_seqs", "inference_max_requests", 8, "inference_max_batch_size")
    else:
        _take(b, args, "max_num_seqs", "inference_dynamic_batching_max_requests", None)
        _take(b, args, "max_num_batched_tokens", "inference_dynamic_batching_max_tokens", None)
        _take(b, args, "block_size", "inference_dynamic_batching_block_size", 256)
        _flag(b, args, "chunked_prefill", "enable_chunked_prefill")
    graphs = args.on("enable_cuda_graph") or args.get("cuda_graph_impl")
    if graphs is None or graphs.text() == "none":
        b.default("enforce_eager", value=True, why=f"{args.source}: cuda_graph_impl none")
    _weights(b, args)


def _take(b: Builder, args: Args, name: str, key: str, default: int | None, old: str = "") -> None:
    found = args.get(key, old)
    if found is not None:
        b.set(name, found.whole(), found)
    else:
        b.default(name, default, args.source)


def _flag(b: Builder, args: Args, name: str, key: str) -> None:
    found = args.on(key)
    if found is not None:
        b.set(name, value=True, found=found)
    else:
        b.default(name, value=False, why=args.source)


def _weights(b: Builder, args: Args) -> None:
    """Take the format of the weights."""
    low, four, half = args.get("fp8_format"), args.get("fp4_format"), args.on("bf16", "fp16")
    for name, found in (("nvfp4", four), ("fp8", low), ("bf16", half)):
        if found is not None:
            b.set("weights", name, found)
            return
    b.default("weights", "fp32", f"{args.source}: neither --bf16 nor --fp16")
