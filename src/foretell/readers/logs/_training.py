r"""Memory and speed as training frameworks log them.

======================  ========================================================================================
torchtitan              torchtitan/components/metrics.py: ``memory`` is the peak of reserved bytes since the last line, GiB
axolotl                 src/axolotl/utils/bench.py: peaks of active, allocated and reserved; its GB are 2^30
DeepSpeed               deepspeed/runtime/utils.py ``see_memory_usage``: GB are 2^30, ``Max_CA`` without decimals; peaks since the
                        last such line
Megatron                megatron/training/utils ``report_memory``: MB are 2^20
transformers            trainer_utils.py ``TrainerMemoryTracker``: MB are 2^20
ms-swift                swift/trainers: ``max_memory_reserved`` in GiB
torchtune               torchtune/training/memory.py: GiB since 2024-08, before that GB of 10^9
nanotron                src/nanotron/logging: MiB
LitGPT                  litgpt/finetune: allocated, GB of 10^9
llama-cookbook          utils/memory_utils.py: 2^30, decimals cut off
verl                    utils/debug/performance.py: GB are 2^30
NeMo Automodel          "mem": allocated peak, GiB
unsloth                 its notebooks: reserved, GB are 2^30
PEFT                    examples ``TorchTracemalloc``: 2^20
======================  ========================================================================================
"""

from __future__ import annotations

import re
from typing import Final

from foretell.readers.logs._log import Counter, Moment
from foretell.readers.logs._scan import Builder, Rule, amount, gauge, number, tally

__all__ = ["RULES"]

# -- DeepSpeed ----------------------------------------------------------------------------------------------

_SEE: Final = re.compile(
    r"MA ([\d.]{1,12}) GB\s{1,20}Max_MA ([\d.]{1,12}) GB\s{1,20}CA ([\d.]{1,12}) GB\s{1,20}Max_CA ([\d.]{1,12}) GB"
)
_SEEN: Final[tuple[tuple[int, Counter, Moment], ...]] = (
    (2, "allocated", "peak"),
    (4, "reserved", "peak"),
    (1, "allocated", "now"),
    (3, "reserved", "now"),
)
_PREFIX: Final = re.compile(r"^(?:\[[^\]]{1,80}\] ?){0,5}(?:\[rank\d{1,6}\]:? ?)?")


def _see_memory(builder: Builder, found: re.Match[str]) -> None:
    """Take the four numbers, with the message on the line above."""
    at = found.start()
    label = _PREFIX.sub("", builder.before(at)).strip()[:80]
    for group, counter, moment in (
        (2, "allocated", "peak"),
        (4, "reserved", "peak"),
        (1, "allocated", "now"),
        (3, "reserved", "now"),
    ):
        size = amount(found[group], "GB")
        builder.figure(at, counter, size, "DeepSpeed", f"{found[group]} GB", moment=moment, label=label)  # type: ignore[arg-type]


# -- torchtitan ---------------------------------------------------------------------------------------------

_TITAN: Final = re.compile(
    r"memory: {1,3}([\d.]{1,12})GiB\(([\d.]{1,8})%\)(?: {1,4}(?:tps|wps): {1,3}([\d,]{1,12}))?"
    r"(?: {1,4}tflops: {1,3}([\d,.]{1,12}))?(?: {1,4}mfu: {1,3}([\d.]{1,8})%)?"
)


def _titan(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    builder.figure(at, "reserved", amount(found[1], "GiB"), "torchtitan", f"{found[1]} GiB", moment="peak")
    for group, name in ((3, "tokens_per_s_per_gpu"), (4, "tflops_per_gpu"), (5, "mfu_percent")):
        if found[group] is not None:
            builder.count(at, name, number(found[group]), "torchtitan")


# -- axolotl ------------------------------------------------------------------------------------------------

_AXOLOTL: Final = re.compile(
    r" ([\d.]{1,12})GB \((?:\+([\d.]{1,12})GB (?:allocated|cache))?(?:, )?(?:\+([\d.]{1,12})GB (reserved|misc))?\)"
)
_PEAKS: Final[tuple[tuple[int, Counter], ...]] = ((1, "active"), (2, "allocated"), (3, "reserved"))
_LABEL: Final = re.compile(r"([A-Za-z][\w :]{2,80}):?$")


def _axolotl(builder: Builder, found: re.Match[str]) -> None:
    """Take "label 1.2GB (+3.4GB allocated, +5.6GB reserved)"; before 2025-06 it was allocated (+ cache, + misc)."""
    at = found.start()
    head = _LABEL.search(builder.head(at)[-90:])
    label = head[1].strip() if head is not None else ""
    new = "allocated" in found[0] or found[4] == "reserved"
    moment: Moment = "peak" if new else "now"
    for group, counter in _PEAKS if new else _PEAKS[1:2]:
        part = found[group if new else 1]
        if part is not None:
            builder.figure(at, counter, amount(part, "GB"), "axolotl", f"{part} GB", moment=moment, label=label)
    if not new and found[2] is not None:
        total = number(found[1]) + number(found[2])
        builder.figure(at, "reserved", amount(f"{total:.3f}", "GB"), "axolotl", f"{total:.3f} GB", label=label)


def _metric(source: str, key: str, counter: Counter) -> Rule:
    """``'key': 12.3`` of a printed dictionary."""
    pattern = re.compile(re.escape(key) + r"['\"]?[:=] ?['\"]?(-?[\d.]{1,16})")

    def take(builder: Builder, found: re.Match[str]) -> None:
        if found[1].count(".") < 2:
            builder.figure(found.start(), counter, amount(found[1], "GiB"), source, f"{found[1]} GiB", moment="peak")

    return Rule(key, pattern, take)


# -- transformers -------------------------------------------------------------------------------------------

_TRACKER: Final = re.compile(
    r"(before_init_mem_gpu|init_mem_gpu_alloc_delta|train_mem_gpu_(?:alloc|peaked)_delta)['\"]?\s{0,30}[=:] ?(-?\d{1,16})(MB)?"
)


def _tracker(builder: Builder, found: re.Match[str]) -> None:
    size = number(found[2]) * (2**20 if found[3] else 1)
    builder.count(found.start(), found[1], size, "transformers")


_INIT: Final = "after model init"

RULES: Final = (
    Rule("MA ", _SEE, _see_memory),
    Rule("memory: ", _TITAN, _titan),
    gauge("torchtitan", "memory usage for model: @", "allocated", label="model made"),
    gauge("torchtitan", "capacity: ~ with @ memory", "capacity"),
    _metric("torchtitan", "memory/max_active(GiB)", "active"),
    _metric("torchtitan", "memory/max_reserved(GiB)", "reserved"),
    _metric("axolotl", "memory/max_active (GiB)", "active"),
    _metric("axolotl", "memory/max_allocated (GiB)", "allocated"),
    _metric("axolotl", "memory/device_reserved (GiB)", "reserved"),
    _metric("axolotl", "memory/max_mem_active(gib)", "active"),
    _metric("axolotl", "memory/max_mem_allocated(gib)", "allocated"),
    _metric("axolotl", "memory/device_mem_reserved(gib)", "reserved"),
    Rule("GB (+", _AXOLOTL, _axolotl, 14, 80),
    gauge("Megatron", "memory (MB)~max allocated: %~max reserved: %", "allocated", "reserved", moment="peak", unit="MB"),
    gauge("Megatron", "total device memory used: %", "device", unit="MB"),
    gauge("Megatron", "Theoretical memory footprints: weight and optimizer=%~total=%", "estimate", "estimate", unit="MB"),
    tally("Megatron", "elapsed time per iteration (ms): %", "step_ms"),
    tally("Megatron", "throughput per GPU (TFLOP/s/GPU): %", "tflops_per_gpu"),
    Rule("mem_gpu", _TRACKER, _tracker, 22, 60),
    _metric("ms-swift", "memory(GiB)", "reserved"),
    gauge("torchtune", "GPU peak memory allocation: @", "allocated", moment="peak", decimal=True, label=_INIT),
    gauge("torchtune", "GPU peak memory reserved: @", "reserved", moment="peak", decimal=True, label=_INIT),
    gauge("torchtune", "GPU peak memory active: @", "active", moment="peak", decimal=True, label=_INIT),
    _metric("torchtune", "peak_memory_active", "active"),
    _metric("torchtune", "peak_memory_alloc", "allocated"),
    _metric("torchtune", "peak_memory_reserved", "reserved"),
    tally("torchtune", "tokens_per_second_per_gpu:%", "tokens_per_s_per_gpu"),
    gauge("nanotron", "Peak allocated @", "allocated", moment="peak"),
    gauge("nanotron", "Peak reserved: @", "reserved", moment="peak"),
    gauge("LitGPT", "Memory used: @", "allocated", moment="peak", decimal=True),
    gauge("llama-cookbook", "Max CUDA memory allocated was @", "allocated", moment="peak", whole=True),
    gauge("llama-cookbook", "Max CUDA memory reserved was @", "reserved", moment="peak", whole=True),
    gauge("llama-cookbook", "Peak active CUDA memory was @", "active", moment="peak", whole=True),
    _metric("verl", "max_memory_allocated_gb", "allocated"),
    _metric("verl", "max_memory_reserved_gb", "reserved"),
    gauge("NeMo Automodel", "| mem @ |", "allocated", moment="peak"),
    gauge("unsloth", "Peak reserved memory = @", "reserved", moment="peak"),
    gauge("unsloth", "Max memory = @", "capacity"),
    gauge("PEFT", "GPU Total Peak Memory consumed during the train (max): %", "allocated", moment="peak", unit="MB"),
)
