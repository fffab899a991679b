"""What one step of a serving engine works on, and what prices it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from foretell.cost.arrays import Value

__all__ = ["Load", "StepCost"]


@dataclass(frozen=True, slots=True)
class Load:
    """The batch of one step: sequences that decode a token each, and prompts (or chunks of them) that are read."""

    decode: Value = 0.0
    """Sequences that decode."""
    context: Value = 0.0
    """Tokens that these see, summed over them, each one's own included."""
    prefill: Value = 0.0
    """Prompt tokens that are read."""
    pairs: Value = 0.0
    """Query-key pairs of these under a causal mask: a prompt of n tokens has n (n + 1) / 2, a chunk those of its tokens."""
    prompts: Value = 0.0
    """Prompts of which tokens are read."""
    width: Value = 1.0
    """Tokens of each decoding sequence that the model runs at once: one, or one more than a draft proposes."""


class StepCost(Protocol):
    """Prices steps; pure: the same load takes the same time."""

    def seconds(self, load: Load) -> Value:
        """Return the seconds of one step from one model output to the next, host time included."""
        ...
