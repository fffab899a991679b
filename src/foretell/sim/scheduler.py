"""How an engine fills its steps: the limits and rules of its scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.errors import CombinationError
from foretell.sim.arrivals import share_cached
from foretell.validation import flag, number, positive_int

__all__ = ["Scheduler"]

MAX_KV_TOKENS: Final = 10**12


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How an engine fills its steps; one for each replica.

    | engine | mixed | chunked | reserve |
    |---|---|---|---|
    | vLLM V1, SGLang with mixed chunks | yes | yes | no |
    | SGLang | no | yes | no |
    | vLLM V0 | no | no | no |
    | TensorRT-LLM, GUARANTEED_NO_EVICT | yes | where chunked context is on | yes |
    """

    max_seqs: int
    """Sequences that are resident at once (decode, or have their prompt read)."""
    max_tokens: int
    """Token budget of one step."""
    kv_tokens: int
    """Tokens of KV cache; rounded down to whole blocks."""
    block_size: int = 16
    mixed: bool = True
    """Prompts share the step with the sequences that decode, which come first; else they go first, in steps of their own."""
    reserve: bool = False
    """Admission takes the blocks of input and output; else of the input, and when growth finds none left the youngest sequence
    goes back to the head of the queue and is computed anew."""
    chunked: bool | None = None
    """A prompt may be read in pieces over several steps; None: as ``mixed``."""
    tokens_per_step: float = 1.0
    """Tokens that a sequence gets in a step on average (speculation); spread evenly, not drawn."""
    width: int = 1
    """Tokens that the model runs for a sequence that decodes: 1, and those that a draft proposes.  They count in the budget."""
    prefix_share: float = 0.0
    """Of the input, found in the prefix cache, where a request does not say: not computed, but in blocks all the same."""

    def __post_init__(self) -> None:
        """Check every value and that they go together.

        Raises:
            InputError: a value out of range.
            CombinationError: a step cannot hold a token of each sequence, or the cache not one block.

        """
        for field in ("max_seqs", "max_tokens", "block_size", "width"):
            positive_int(getattr(self, field), field)
        positive_int(self.kv_tokens, "kv_tokens", maximum=MAX_KV_TOKENS)
        for field in ("mixed", "reserve"):
            flag(getattr(self, field), field)
        if self.chunked is not None:
            flag(self.chunked, "chunked")
        number(self.tokens_per_step, "tokens_per_step", minimum=1.0, maximum=1e3)
        share_cached(self.prefix_share, "prefix_share")
        if self.kv_tokens < self.block_size:
            raise CombinationError("is less than one block", field="kv_tokens", value=self.kv_tokens,
                                   allowed=f"{self.block_size} or more")  # fmt: skip
        if self.mixed and self.max_tokens < self.max_seqs * self.width:
            raise CombinationError("is less than the tokens of max_seqs sequences that decode", field="max_tokens",
                                   value=self.max_tokens, allowed=f"{self.max_seqs * self.width} or more",
                                   hint="Raise max_tokens or lower max_seqs")  # fmt: skip

    @property
    def pieces(self) -> bool:
        """Whether a prompt may be read in pieces."""
        return self.mixed if self.chunked is None else self.chunked

    @property
    def blocks(self) -> int:
        """KV blocks."""
        return self.kv_tokens // self.block_size
