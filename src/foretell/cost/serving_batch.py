"""One batch of sequences that are served together: how long their prompts take to read, and what they keep.

The prompts are read in steps of a budget of tokens, causal: a token sees what stands before it, in the prefix cache or not.
Numbers or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretell.cost.arrays import Value, ceil, exp, maximum, minimum, where
from foretell.cost.kv_layout import Stage
from foretell.cost.serving_load import Load, StepCost

__all__ = ["Reading", "expected_blocks", "kept_bytes", "mean_scale", "read_prompts"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of a batch's prompts, seconds."""

    total: Value
    """All of them, on a server that does nothing else."""
    chunks: Value
    """In which one prompt is read."""
    mean: Value
    """One chunk, on average."""
    slowest: Value
    """The last chunk of a prompt, which sees the most."""


def read_prompts(cost: StepCost, length: Value, cached: Value, batch: Value, budget: Value, *, whole: bool = False) -> Reading:
    """Return the reading of ``batch`` prompts of ``length`` tokens, of which ``cached`` are kept already.

    ``budget``: tokens of a step; ``whole``: a single prompt is not cut.
    """
    new = length - cached
    todo = new * batch
    steps = ceil(todo / budget)
    if whole:
        steps = where(batch > 1, steps, 1.0)
    pairs = new * (new + 1.0) / 2.0 + new * cached
    load = Load(prefill=todo / steps, pairs=pairs * batch / steps, prompts=maximum(batch / steps, 1.0))
    mean = cost.seconds(load)
    chunk = minimum(budget, new)
    last = Load(prefill=chunk * 1.0, pairs=chunk * (chunk + 1.0) / 2.0 + chunk * (length - chunk), prompts=1.0)
    return Reading(steps * mean, ceil(new / budget), mean, cost.seconds(last))


def kept_bytes(stage: Stage, tokens: Value) -> Value:
    """Return the bytes of keys, values and states that one sequence of so many tokens keeps on one accelerator of a stage."""
    out: Value = 0.0
    for layer, count in stage.kept:
        seen = minimum(tokens, layer.window) if layer.window else tokens
        out = out + count * (layer.token * seen + layer.state)
    return out


def mean_scale(mean: float, longest: float) -> float:
    """Return the scale of the exponential law whose values, cut at ``longest``, have this mean; 0 where nothing varies.

    >>> round(mean_scale(1024.0, 4096.0), 1), mean_scale(10.0, 10.0)
    (1044.7, 0.0)
    """
    if mean >= longest:
        return 0.0
    low, high = mean, max(mean, 1.0) * 1e6
    for _ in range(200):
        middle = (low + high) / 2.0
        cut = middle * (1.0 - float(exp(-longest / middle)))
        low, high = (middle, high) if cut < mean else (low, middle)
        if high - low <= 1e-9 * high:
            break
    return (low + high) / 2.0


def expected_blocks(mean: float, longest: float, block: int) -> float:
    """Return the blocks that a sequence holds on average whose length has an exponential law, cut at ``longest``.

    The k-th block is held where the length exceeds (k - 1) blocks: a geometric series.  Where mean and longest are equal,
    every sequence has that length.

    >>> expected_blocks(100.0, 100.0, 16), round(expected_blocks(1024.0, 4096.0, 16) * 16, 1)
    (7.0, 1031.9)
    """
    scale = mean_scale(mean, longest)
    if not scale:
        return float(ceil(longest / block))
    decay = float(exp(-block / scale))
    most = float(ceil(longest / block))
    return most if decay >= 1.0 else (1.0 - decay**most) / (1.0 - decay)
