"""Rules by which serving engines set their limits: sequences and tokens of a step, SGLang's memory share, captured batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foretell.machine.hardware import HardwareNode
from foretell.recipe.engine_profile import Engine
from foretell.recipe.serving import ServingRecipe

__all__ = ["RULES", "Asked", "graph_sizes", "static_share"]

GIB: Final = 2.0**30
MIB: Final = 2.0**20


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rule goes by."""

    engine: Engine
    hardware: HardwareNode
    length: int
    """Tokens of the longest sequence."""
    chunked: bool
    """Prompts are read in chunks."""
    offline: bool
    """The engine is called from a program."""


Limits = tuple[int, int]
"""(max_num_seqs, max_num_batched_tokens)."""


def _device_bytes(hardware: HardwareNode) -> float:
    return hardware.available_bytes / hardware.logical_devices


def _card_mib(hardware: HardwareNode) -> float:
    """Memory of the card as its vendor's tool prints it, MiB."""
    return (hardware.card_memory_bytes or hardware.memory_bytes) / hardware.logical_devices / MIB


def _named(hardware: HardwareNode, *names: str) -> bool:
    text = f"{hardware.id} {hardware.name}".lower()
    return any(name in text for name in names)


def _v0(asked: Asked) -> Limits:
    """vLLM's first engine (config.py SchedulerConfig): a prompt has to fit a step unless it is read in chunks."""
    return 256, asked.engine.chunk if asked.chunked else max(asked.length, 2048)


def _v1(asked: Asked) -> Limits:
    """vLLM's second engine (engine/arg_utils.py get_batch_defaults): by the memory of the device, and by who calls it."""
    memory = _device_bytes(asked.hardware)
    large = memory >= 70 * GIB
    rule = asked.engine.limits
    if rule in ("v1-1024", "v1-named"):
        large = _named(asked.hardware, "h100", "h200")
    elif rule != "v1-a100" and _named(asked.hardware, "a100"):
        large = False
    if rule == "v1-160":
        if memory >= 160 * GIB:
            return 1024, 16384
        large = large and asked.hardware.compute_capability != "12.1"
    tokens = (16384 if asked.offline else 8192) if large else (8192 if asked.offline else 2048)
    return (1024 if large or rule == "v1-1024" else 256), (tokens if asked.chunked else max(tokens, asked.length))


def _sglang(asked: Asked) -> Limits:
    """SGLang (server_args.py): chunked_prefill_size by the card's memory.  Running requests are bounded by the KV pool and by
    the request pool, of 2,048 at least (model_runner.py init_memory_pool)."""
    card = _card_mib(asked.hardware)
    if not asked.chunked:
        return 2048, 16384
    if asked.engine.limits == "sglang-2024":
        return 2048, 2048 if card < 25_000 else 8192
    if asked.engine.limits == "sglang-2025":
        return 2048, 2048 if card < 35 * 1024 else 8192 if card < 160 * 1024 else 16384
    if card < 35 * 1024:
        return 2048, 2048
    return 2048, 4096 if card < 60 * 1024 else 8192 if card < 160 * 1024 else 16384


def _trt(asked: Asked) -> Limits:
    """TensorRT-LLM (trtllm-build --help, LlmArgs): 8,192 tokens; a longer prompt needs chunks."""
    return (256 if asked.engine.limits == "trt-256" else 2048), (8192 if asked.chunked else max(8192, min(asked.length, 16384)))


def _lmdeploy(asked: Asked) -> Limits:
    """LMDeploy (utils.py get_max_batch_size, messages.py max_prefill_token_num)."""
    if asked.engine.limits == "lmdeploy-128":
        return 128, 8192
    if _named(asked.hardware, "h100", "h800", "h200"):
        return 1024, 8192
    return (384 if _named(asked.hardware, "a100", "a800") else 128), 8192


def _llama_cpp(_: Asked) -> Limits:
    """llama.cpp (common/common.h): one slot; a step computes at most n_ubatch tokens at once."""
    return 1, 512


def _tgi(_: Asked) -> Limits:
    """Text Generation Inference (launcher/src/main.rs): max_concurrent_requests, max_batch_prefill_tokens."""
    return 128, 4096


RULES: Final[dict[str, Callable[[Asked], Limits]]] = {
    "v0": _v0,
    "v1": _v1,
    "v1-1024": _v1,
    "v1-named": _v1,
    "v1-a100": _v1,
    "v1-160": _v1,
    "sglang-2024": _sglang,
    "sglang-2025": _sglang,
    "sglang": _sglang,
    "trt-256": _trt,
    "trt-2048": _trt,
    "lmdeploy-128": _lmdeploy,
    "lmdeploy": _lmdeploy,
    "llama.cpp-512": _llama_cpp,
    "llama.cpp": _llama_cpp,
    "tgi": _tgi,
}
"""Name of a rule -> rule."""


def static_share(engine: Engine, hardware: HardwareNode, recipe: ServingRecipe, tokens: int) -> float:
    """Return SGLang's mem_fraction_static where it is not set (server_args.py): what its estimate of activations and CUDA
    graphs leaves of the card.  Raising the chunk or the captured batch lowers it.

    >>> from foretell.machine.hardware import load_hardware
    >>> from foretell.recipe.engine_versions import engine_at
    >>> share = static_share(engine_at("sglang", -1), load_hardware("h100"), ServingRecipe(engine="sglang"), 8192)
    >>> share  # of 81,559 MiB, less 512 + 1.5 x 8192 + 2 x 256 + 128 = 13,440
    0.835
    """
    card, ranks = _card_mib(hardware), recipe.tp * recipe.pp
    if engine.limits == "sglang-2024":
        return _by_ranks(card, ranks)
    attention = recipe.dp > 1 and recipe.dp_kind == "attention"
    if engine.limits == "sglang-2025":
        reserve = 2.8 + ranks / 10 if card < 35 * 1024 else (9.5 if card < 90 * 1024 else 12.0) + ranks / 2
        reserve = 32.0 if card >= 160 * 1024 else reserve
        reserve = 1024 * (reserve + (2 if recipe.speculation else 0) + (4 if attention else 0))
    else:
        largest = _largest(engine, card, recipe)
        reserve = 512 + 1.5 * max(tokens, 2048) + 2 * largest + ranks / 8 * 1024
        if attention:
            reserve += largest * recipe.dp * (4.5 if largest > 300 else 3.0)
        if card > 60 * 1024:
            reserve = max(reserve, 10 * 1024)
        reserve += 2 * 1024 if recipe.speculation else 0
    return round((card - reserve) / card, 3)


def _by_ranks(card: float, ranks: int) -> float:
    """SGLang up to 0.4.7: by the number of ranks, and with room for a fixed amount on larger cards."""
    share = 0.88
    if card <= 81920:
        share = next(value for least, value in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88)) if ranks >= least)
    if card > 96 * 1024:
        share = min(share + 48 * 1024 * (1 - share) / card, (card - 18 * 1024) / card)
    return share


def _largest(engine: Engine, card: float, recipe: ServingRecipe) -> int:
    """Largest batch of which a CUDA graph is captured."""
    if engine.limits == "sglang":
        wide = recipe.tp >= 4
        if card < 20 * 1024:
            return 8
        if card < 60 * 1024:
            return (80 if wide else 24) if card < 35 * 1024 else (160 if wide else 32)
        return 512 if wide or card >= 160 * 1024 else 256
    if engine.limits == "sglang-2025" and card < 35 * 1024:
        return 80 if recipe.tp >= 4 else 8
    return engine.graph_largest


def graph_sizes(engine: Engine, hardware: HardwareNode, recipe: ServingRecipe) -> tuple[int, ...]:
    """Return the batches of which an engine captures CUDA graphs: 1, 2, 4, then in steps of 8 (and of 16 above 256).

    >>> from foretell.machine.hardware import load_hardware
    >>> from foretell.recipe.engine_versions import engine_at
    >>> recipe = ServingRecipe(max_num_seqs=256, max_num_batched_tokens=2048)
    >>> len(graph_sizes(engine_at("vllm", -1), load_hardware("a100"), recipe))  # "PIECEWISE=51" in its log
    51
    """
    largest = _largest(engine, _card_mib(hardware), recipe)
    seqs, tokens = recipe.max_num_seqs or largest, recipe.max_num_batched_tokens or largest
    if engine.name == "vllm" and engine.graph_largest > 256:
        made = recipe.speculation.tokens + 1 if recipe.speculation else 1
        largest = min(largest, 2 * seqs * made, tokens)
    else:
        largest = min(largest, max(8, -(-seqs // 8) * 8))
    low, high = engine.graph_step[0], engine.graph_step[-1]
    steps = [1, 2, 4, *range(8, min(largest, 256) + 1, low), *range(256 + high, largest + 1, high)]
    return tuple(size for size in steps if size <= largest)
