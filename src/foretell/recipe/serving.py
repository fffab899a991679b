"""How a model is served: the engine and its flags, the formats, the layout.  What is left None the engine decides."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServingRecipe", "Speculation"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens that a draft proposes and the model verifies at once (Leviathan et al. 2023, arXiv 2211.17192)."""

    method: str = "draft"
    """draft (a model of its own), mtp or eagle (a layer of the model's own width on its hidden states)."""
    tokens: int = 4
    """Proposed in a step."""
    acceptance: float = 0.7
    """Probability that a proposed token is accepted, each given the ones before it."""
    length: float | None = None
    """Tokens that a step makes on average, where it was measured; comes before ``acceptance``."""

    @property
    def made(self) -> float:
        """Tokens that a step makes on average: the accepted ones and one of the model's own.

        >>> Speculation(tokens=4, acceptance=1.0).made, Speculation(tokens=4, acceptance=0.0).made
        (5.0, 1.0)
        >>> round(Speculation(tokens=4, acceptance=0.7).made, 3)
        2.773
        """
        if self.length is not None:
            return self.length
        a = self.acceptance
        return self.tokens + 1.0 if a >= 1.0 else (1.0 - a ** (self.tokens + 1)) / (1.0 - a)


@dataclass(frozen=True, slots=True)
class ServingRecipe:
    """One deployment: the engine with its flags.  Names as the engines' command lines have them."""

    engine: str = "vllm"
    version: str | None = None
    """As the engine prints it; None: the newest that is known."""
    weights: str = "bf16"
    """Format of the weights: bf16, fp16, fp8, int8, int4, nvfp4, mxfp4, q4_0, q4_k_m, q8_0."""
    activations: str | None = None
    """Format that products run in; None: the weights' own where it is one that products run in, else 16 bits."""
    kv: str | None = None
    """Format of keys and values; None: 16 bits."""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Ranks that share the routed experts, of tp x dp."""
    dp: int = 1
    dp_kind: str = "replica"
    """replica: copies that share nothing; attention: attention is replicated, experts are spread over all ranks."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    memory_share: float | None = None
    """Of the device's memory: vLLM's gpu_memory_utilization (weights, activations and KV), SGLang's mem_fraction_static (weights
    and KV), TensorRT-LLM's kv_cache_free_gpu_memory_fraction (KV, of what is left after loading), LMDeploy's
    cache_max_entry_count (the same)."""
    block_size: int | None = None
    """Tokens of one KV block."""
    chunked_prefill: bool | None = None
    enforce_eager: bool = False
    """No CUDA graphs."""
    speculation: Speculation | None = None

    @property
    def devices(self) -> int:
        """Accelerators of the deployment."""
        return self.tp * self.pp * self.dp
