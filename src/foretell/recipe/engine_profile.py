"""A serving engine at one version: how it schedules, what its memory flag means, and what its start-up counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Change", "Engine", "Share"]

Share = Literal["total", "static", "free", "device", "slots"]
"""What the memory flag is a share of, and what it has to hold: ``total`` of the device, for everything; ``static`` of what is
left after start of the process, for weights and KV; ``free`` of what is left after loading, for KV; ``device`` of the device,
for KV; ``slots``: no share, KV is reserved for each slot at its full length."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine at one version.  Numbers that follow from the device and the other flags are resolved elsewhere."""

    name: str
    version: str = ""
    """First version that does all of this."""
    released: str = ""
    """Its month."""
    source: str = ""
    share: Share = "total"
    memory_share: float | None = 0.9
    """Default of the memory flag; None: it follows from the device."""
    block_size: int = 16
    limits: str = "v1"
    """The rule that gives max_num_seqs and max_num_batched_tokens."""
    chunked_prefill: bool = True
    """Whether prompts are read in chunks by default."""
    long_chunked: bool = False
    """... or only where max_model_len exceeds 32,768."""
    chunk: int = 2048
    """Tokens of a step where prompts are read in chunks by such a version."""
    mixed: bool = True
    """Whether prompts and decoding sequences share a step; False: steps that read prompts come first."""
    chunks_mixed: bool = True
    """... or do where prompts are read in chunks."""
    admission: Literal["grow", "reserve"] = "grow"
    """grow: blocks are taken as a sequence grows, and the latest sequence is preempted when none is left; reserve: a sequence
    starts when blocks for its prompt and its longest answer are free."""
    windows: bool = True
    """Layers with an attention window give blocks back that the window has left (else they grow like all others)."""
    spread: float = 1.0
    """Layers of different kinds form groups as large as the smallest kind, or as the largest where that has fewer than this
    many times its layers."""
    full_tokens: bool = False
    """The log's KV tokens are sequences of max_model_len times that length, which sees what windows give back."""
    window_ratio: float | None = None
    """Tokens in the pool of window layers per token in that of the others; None: one pool for all."""
    state_ratio: float | None = None
    """Bytes of the pool of recurrent states per byte of the KV pool; None: one pool for all."""
    latent: bool = True
    """Multi-head latent attention keeps the latent, not all heads."""
    latent_block: int | None = None
    """Block size of such models."""
    graphs: bool = True
    """Captures CUDA graphs by default."""
    graph_largest: int = 512
    graph_step: tuple[int, ...] = (8,)
    """Steps between the captured batches: up to 256, and above."""
    graph_kinds: int = 1
    """2: decoding batches are captured a second time, as whole graphs."""
    # -- what the profiling run counts ----------------------------------------------------------------------
    activation: bool = True
    """The KV pool leaves room for the largest step; False: what the memory flag leaves over has to do."""
    eager: bool = False
    """The step runs module by module, so that a module's inputs live as long as it does."""
    sampler: float = 38.0
    """Bytes per sequence and vocabulary entry at the sampler's peak."""
    sampler_rows: bool = False
    """... and a 32-bit row of the vocabulary for each multiprocessor."""
    context: bool = False
    """The CUDA context counts."""
    communicators: int = 1
    """NCCL communicators that count."""
    graphs_count: bool = False
    """CUDA graphs count."""
    leftovers: bool = False
    """What loading leaves in the allocator's cache counts too, by an amount that is not known: 1.7 GiB for an 8B model on one
    H100, 2.6 GiB on two (vllm#10511)."""
    held_reductions: bool = False
    """Inputs of all-reduces are held until the step ends."""
    embedding_whole: bool = False
    """Each tensor-parallel rank holds the whole token table."""
    embedding_on_host: bool = False
    """The token table stays in host memory."""
    hopper_experts: Literal["", "marlin", "hopper"] = ""
    """Kernels that run 4-bit experts on Hopper: Marlin's, or Triton's for it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an engine does since a version."""

    since: str
    released: str
    source: str
    changes: dict[str, Any]
    pull: int | None = None
    """Number of the pull request that brought it."""
