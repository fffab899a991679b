"""Host memory of a node: what the ranks, their copies of the model, offloaded states and data loaders take.

Constants stand in ``catalog/data/calibration/memory.json`` with where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from foretell.arch.architecture import Architecture
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.overheads import calibration
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.cost.weights import unit
from foretell.recipe.resolve import Run

__all__ = ["HostMemory", "Load", "default_load", "host_memory"]

Load = Literal["every-rank", "rank0", "meta"]
"""How a checkpoint reaches the devices: a full copy in each rank's memory, in rank 0's alone, or shard by
shard onto modules built on the meta device."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of one node."""

    terms: Mapping[str, float]
    """What is held while training."""
    load: float
    """The highest while loading."""

    @property
    def total(self) -> float:
        """Highest of training and loading, bytes."""
        return max(sum(self.terms.values()), self.load)


def default_load(framework: str) -> Load:
    """Return how a framework's usual script loads a model.

    torchtitan and Megatron build on the meta device or shard by shard; accelerate's FSDP loads on rank 0
    where ``fsdp_cpu_ram_efficient_loading`` is on (its default); bare ``from_pretrained`` loads in each rank.
    """
    if framework in ("torchtitan", "nanotron") or framework.startswith("megatron"):
        return "meta"
    return "rank0" if framework in ("fsdp1", "fsdp2", "hf-fsdp") else "every-rank"


def host_memory(
    arch: Architecture,
    run: Run,
    ranks: int,
    *,
    load: Load | None = None,
    workers: int = 2,
    prefetch: int = 2,
) -> HostMemory:
    """Return the host memory of a node with `ranks` ranks, each with `workers` data-loader processes.

    `prefetch`: batches that a worker holds ready (``DataLoader(prefetch_factor=2)``).
    """
    data = calibration()["host"]
    recipe = run.recipe
    load = load or default_load(run.profile.name)
    if arch.vocab is None:
        side = recipe.image_size or (224, 224)
        sample = 3.0 * side[0] * side[1] * data["pixel_bytes"]["value"]
    else:
        sample = float(recipe.seq_len) * data["token_bytes"]["value"]
    terms = {
        "processes": ranks * float(data["process_bytes"]["value"]),
        "data_loader": ranks * workers * (data["worker_bytes"]["value"] + prefetch * recipe.micro_batch * sample),
        "pinned_batches": ranks * recipe.micro_batch * sample,
    }
    for name, size in _offloaded(arch, run).items():
        terms[f"offloaded_{name}"] = ranks * size
    width = unit(run.formats.param if recipe.quantization is None else recipe.quantization.rest)
    copies = {"every-rank": ranks, "rank0": 1, "meta": 0}[load]
    loading = terms["processes"] + copies * arch.parameters * width
    return HostMemory(terms, loading)


def _offloaded(arch: Architecture, run: Run) -> dict[str, float]:
    """Return the bytes of one rank's states that live on the host, highest over the pipeline's stages."""
    kinds = {"optimizer": ("master", "optimizer"), "grads": ("gradients",), "params": ("weights",)}
    if not run.recipe.offload & set(kinds):
        return {}
    whole = replace(run, recipe=replace(run.recipe, offload=frozenset()))
    basis = Basis(sizes_of(run))
    out: dict[str, float] = {}
    for fold in fold_run(arch, whole):
        for kind in run.recipe.offload & set(kinds):
            forms = [getattr(fold.base, part) for part in kinds[kind]]
            if kind == "optimizer" and run.sharding == "deepspeed":
                # its host step takes fp32 gradients, as large as the masters, beside those in 16 bits (DeepSpeed
                # runtime/zero/stage3.py ``subgroup_gradient_buffer``, stage_1_and_2.py ``single_partition_of_fp32_groups``)
                forms.append(fold.base.master)
            size = sum(evaluate(form.by_monomial(), basis) for form in forms)
            out[kind] = max(out.get(kind, 0.0), size)
    return out
