"""Which flags a serving deployment can be given: the interval of the memory flag, the batch that admits most, the chunk's price.

More of a flag is not always more: ``max_num_seqs`` raises the sampler's peak and so takes from the pool that is to hold the
sequences, and a longer chunk takes from it once a layer needs more than the sampler.  So these are searched, not interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from foretell.arch.architecture import Architecture
from foretell.cost.kv_capacity import KvCapacity, kv_capacity
from foretell.machine.hardware import HardwareNode
from foretell.recipe.engines import resolve_serving
from foretell.recipe.serving import ServingRecipe
from foretell.validation import number, positive_int

__all__ = ["BatchChoice", "ShareInterval", "best_batch", "pool_change", "share_interval"]

STEP: Final = 0.001
"""The memory flag is written with three decimals."""
MOST: Final = 4096
"""Largest max_num_seqs that is tried."""


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """Values of the memory flag that start and do not run out of memory."""

    low: float | None
    """Smallest that holds what is asked; None: none does."""
    high: float | None
    """Largest that leaves room for a full step, CUDA graphs and what the engine does not count; None where there is no flag."""
    why: str = ""
    """What stands in the way; empty where there is an interval."""

    @property
    def feasible(self) -> bool:
        """Whether some value does."""
        return self.low is not None and (self.high is None or self.low <= self.high)


def share_interval(
    arch: Architecture, hardware: HardwareNode, recipe: ServingRecipe, *, length: int | None = None, sequences: float = 1.0
) -> ShareInterval:
    """Return the values of the memory flag that hold ``sequences`` sequences of ``length`` tokens (``max_model_len`` where
    None) and leave room for the largest step.

    >>> from foretell.arch import load_model
    >>> from foretell.machine.hardware import load_hardware
    >>> llama, h100 = load_model("llama-3.1-8b").architecture, load_hardware("h100")
    >>> share_interval(llama, h100, ServingRecipe(version="0.12.0", max_model_len=16000))  # 21.8 of 79.2 GiB at least
    ShareInterval(low=0.276, high=0.985, why='')
    """
    wanted = number(sequences, "sequences", minimum=0.0)
    resolved = resolve_serving(recipe, hardware, arch)
    engine = resolved.engine
    tokens = positive_int(length, "length") if length is not None else resolved.recipe.max_model_len or 1

    def at(share: float) -> KvCapacity:
        return kv_capacity(arch, hardware, replace(resolved, recipe=replace(resolved.recipe, memory_share=share)))

    if engine.share == "slots":
        found = kv_capacity(arch, hardware, resolved)
        short = found.shortfall_bytes / 2**30
        return ShareInterval(0.0 if found.feasible else None, None, "" if found.feasible else f"{short:.2f} GiB are missing")
    whole, half = at(1.0), at(0.5)
    slope = 2.0 * (whole.pool_bytes - half.pool_bytes)  # the pool is a line in the flag: nothing else follows from it
    need = float(max(wanted, 1e-9) * whole.sequence_bytes(tokens))
    high = 1.0 - max(0.0, -whole.budget.rest) / slope
    if engine.share == "total":
        high = min(high, 1.0 - whole.budget.context / whole.budget.device)  # engines refuse to ask for more than is free
    high = math.floor(high / STEP + 1e-9) * STEP
    low = max(STEP, math.ceil((1.0 - (whole.pool_bytes - need) / slope) / STEP - 1e-9) * STEP)
    while low <= 1.0 and at(low).pool_bytes < need:
        low += STEP
    if low > 1.0:
        missing = (need - whole.pool_bytes) / 2**30
        return ShareInterval(None, round(high, 3), f"{missing:.2f} GiB are missing with all of the memory")
    why = "" if low <= high else f"{low:.3f} is needed, and more than {high:.3f} leaves no room for a full step"
    return ShareInterval(round(low, 3), round(high, 3), why)


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The flag that lets most sequences run at once."""

    max_num_seqs: int
    admitted: int
    """Sequences that run at once with it; 0: none fits."""
    tokens: int
    """Of the KV pool with it."""
    falls: bool
    """Whether larger values admit fewer."""


def _batches(most: int) -> Iterator[int]:
    yield from (size for size in (1, 2, 4) if size <= most)
    size = 8
    while size <= most:
        yield size
        size += 8 if size < 256 else 32 if size < 1024 else 128


def best_batch(
    arch: Architecture, hardware: HardwareNode, recipe: ServingRecipe, length: int, *, most: int = MOST
) -> BatchChoice:
    """Return the smallest ``max_num_seqs`` with which most sequences of ``length`` tokens run at once.

    >>> from foretell.arch import load_model
    >>> from foretell.machine.hardware import load_hardware
    >>> qwen, h100 = load_model("qwen3-32b").architecture, load_hardware("h100")
    >>> best_batch(qwen, h100, ServingRecipe(version="0.11.0", max_model_len=16000), 512)  # the default, 1,024, admits 35
    BatchChoice(max_num_seqs=72, admitted=69, tokens=35792, falls=True)
    """
    positive_int(length, "length")
    tried: list[tuple[int, int, int]] = []
    for size in _batches(positive_int(most, "most")):
        found = kv_capacity(arch, hardware, replace(recipe, max_num_seqs=size))
        tried.append((min(size, int(found.concurrency(length))), size, found.tokens))
    admitted, size, tokens = max(tried, key=lambda one: (one[0], -one[1]))
    return BatchChoice(size, admitted, tokens, tried[-1][0] < admitted)


def pool_change(arch: Architecture, hardware: HardwareNode, recipe: ServingRecipe, **flags: object) -> float:
    """Return the bytes that the KV pool gains (negative: loses) when flags are changed, all that is left open following them.

    >>> from foretell.arch import load_model
    >>> from foretell.machine.hardware import load_hardware
    >>> llama, h100 = load_model("llama-3.1-8b").architecture, load_hardware("h100")
    >>> recipe = ServingRecipe(version="0.11.0", max_model_len=16000)
    >>> pool_change(llama, h100, recipe, max_num_batched_tokens=16384) / 2**20  # 8,192 more hidden states of 8 KiB
    -64.0
    """
    before = kv_capacity(arch, hardware, recipe).pool_bytes
    return kv_capacity(arch, hardware, replace(recipe, **flags)).pool_bytes - before  # type: ignore[arg-type]  # by name
