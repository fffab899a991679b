"""Where one accelerator's memory goes when a serving engine starts: weights, the largest step, what is outside, and KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.cost.kv_footprint import Footprint
from foretell.cost.kv_layout import Stage
from foretell.cost.overheads import available_bytes, context_bytes
from foretell.cost.workspace import cublas_bytes
from foretell.machine.hardware import HardwareNode
from foretell.recipe.engines import Resolved

__all__ = ["Budget", "budget_of", "largest_step"]

GIB: Final = 2.0**30
LIBRARIES: Final = 0.13 * GIB
"""Kernels and handles that load with the first step, bytes: "non-torch" of vLLM on one H100 (llm-d-planner,
docs/empirical-vllm-memory-results.md: 0.13 GiB for six models; 0.16 in vllm#12126)."""
COMMUNICATOR_BASE: Final = 0.24 * GIB
COMMUNICATOR_RANK: Final = 0.09 * GIB
"""Bytes of one NCCL communicator over NVLink, alone and per rank: 0.42 GiB for two H100 (same document), 1.9 GiB for two
communicators of eight H200 (sglang#11716: "Init torch distributed ends. mem usage=1.77 to 2.01 GB")."""
COMMUNICATOR_PCIE: Final = 0.07 * GIB
"""... and over PCIe: 0.12 GiB for two of them on RTX 4090 (vllm#13061), 0.07 on RTX 3090 (vllm#14447)."""
GRAPH_LAYER: Final = 0.2 * 2**20
"""Bytes of one layer of one captured CUDA graph: 0.21 GiB for 35 graphs of 16 layers (vllm#11349), 0.73 GiB for 86
(vllm#39559), 0.11 GiB for 30 (their sizes scatter by a factor of two)."""
UNIT: Final = 2.0
"""Bytes per element of an activation."""
FP32: Final = 4.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What one accelerator's memory goes to, bytes."""

    device: float
    context: float
    libraries: float
    communicators: float
    weights: float
    activation: float
    graphs: float
    pool: float
    """KV; negative: so much is missing."""

    @property
    def rest(self) -> float:
        """What is left when all runs; negative where the flag promises more than there is."""
        used = self.context + self.libraries + self.communicators + self.weights + self.activation + self.graphs
        return self.device - used - max(self.pool, 0.0)


def budget_of(resolved: Resolved, hardware: HardwareNode, stage: Stage, prints: Footprint) -> Budget:
    """Where one accelerator's memory goes."""
    engine, recipe = resolved.engine, resolved.recipe
    device = float(available_bytes(hardware))
    context = context_bytes(hardware) if hardware.cuda_like else 0.0
    libraries = LIBRARIES if hardware.cuda_like else 0.0
    one = _communicator(hardware, recipe.tp * recipe.pp) if hardware.cuda_like else 0.0
    seqs, tokens = recipe.max_num_seqs or 1, recipe.max_num_batched_tokens or 1
    activation = largest_step(resolved, hardware, stage, seqs, tokens)
    kinds = engine.graph_kinds if engine.graphs else 1
    decoding = sum(1 for size in resolved.graph_sizes if size <= seqs) if kinds > 1 else 0
    graphs = GRAPH_LAYER * stage.count * (len(resolved.graph_sizes) + decoding)
    share = recipe.memory_share or 0.0
    counted = engine.communicators * one
    if engine.share == "total":
        taken = stage.weights + activation + libraries + counted
        pool = share * device - taken - context * engine.context - graphs * engine.graphs_count
    elif engine.share == "static":
        pool = share * (device - context - counted) - stage.weights - libraries
    else:
        free = device - context - counted - stage.weights - libraries - activation * engine.activation
        if engine.share == "free":
            pool = share * free
        else:
            wanted = share * device if engine.share == "device" else seqs * prints.sequence(recipe.max_model_len or 1)
            pool = wanted if wanted <= free else free - wanted
    return Budget(device, context, libraries, 2 * one, stage.weights, activation, graphs, float(pool))


def _communicator(hardware: HardwareNode, ranks: int) -> float:
    """Bytes of one NCCL communicator of so many ranks."""
    if ranks < 2:
        return 0.0
    link = hardware.link
    if link is None or (link.domain_size or 0) < 2:
        return COMMUNICATOR_PCIE
    return COMMUNICATOR_BASE + COMMUNICATOR_RANK * min(ranks, link.domain_size or ranks)


def largest_step(resolved: Resolved, hardware: HardwareNode, stage: Stage, seqs: int, tokens: int) -> float:
    """Return the bytes of activations at the peak of a step of ``tokens`` tokens in ``seqs`` sequences.

    In a layer: the residual stream, its normalised copy, the widest intermediates and, module by module, the layer's output
    (and its sum over the ranks) beside all of them.  After the layers: the hidden states of all tokens, those that are sampled
    from, and the sampler's own: 16-bit and 32-bit logits, their sorted copy with 64-bit indices, and the sort's own room (of the
    same size, with 64-bit positions): 2 + 4 + 4 + 8 + 8 + 12 = 38 bytes per sequence and vocabulary entry.
    """
    engine, recipe = resolved.engine, resolved.recipe
    wide = 2.0 * stage.hidden
    if engine.eager:
        wide = (3.0 + (recipe.tp > 1)) * stage.hidden
    layer = UNIT * tokens * (wide + stage.widest)
    if engine.held_reductions and recipe.tp > 1:
        layer += 2 * UNIT * tokens * stage.hidden * stage.count
    sampled = 0.0
    if stage.last:
        rows = min(seqs, tokens)
        sampled = UNIT * stage.hidden * (tokens + 2.0 * rows) + engine.sampler * rows * stage.vocab
        if engine.sampler_rows:
            sampled += FP32 * stage.vocab * min(hardware.sm_count or 0, rows)
    return max(layer, sampled) + (cublas_bytes(hardware.compute_capability) if hardware.cuda_like else 0.0)
