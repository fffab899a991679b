"""What one accelerator holds while a batch is served: weights, keys and values, the largest step, and the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretell.arch.architecture import Architecture
from foretell.arch.workload import Workload
from foretell.core.serving import Deployment
from foretell.core.solver._result import Term
from foretell.cost.arrays import Value
from foretell.cost.kv_budget import largest_step
from foretell.cost.kv_layout import Stage, placement, stages
from foretell.cost.overheads import available_bytes
from foretell.cost.serving_batch import kept_bytes
from foretell.recipe.engines import Resolved, resolve_serving
from foretell.recipe.serving import ServingRecipe

__all__ = ["Held", "Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """A group of accelerators that serves a model, and the model that proposes tokens beside it."""

    found: Deployment
    draft: Workload | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages of the pipeline."""
        return _stages(_text(self.found.workload), self.found.resolved, self.found)

    def proposing(self, *, whole: bool = False) -> tuple[Stage, ...]:
        """Stages of the model that proposes tokens, in 16 bits; ``whole``: on one accelerator."""
        if self.draft is None:
            return ()
        arch, r = _text(self.draft), self.found.recipe
        tp = r.tp if arch.heads and arch.heads % r.tp == 0 and not whole else 1
        own = ServingRecipe(engine=r.engine, version=r.version, tp=tp)
        return _stages(arch, resolve_serving(own, self.found.hardware, arch), self.found)

    @property
    def available(self) -> float:
        """Bytes that a process can use of one accelerator."""
        return float(available_bytes(self.found.hardware))

    def sent(self, tokens: Value) -> Value:
        """Bytes of keys and values of one sequence over all layers, each once: what another node has to be sent."""
        resolved = self.found.resolved
        single = replace(resolved, recipe=replace(resolved.recipe, tp=1, pp=1, ep=1))
        own = _stages(_text(self.found.workload), single, self.found)
        return sum(kept_bytes(stage, tokens) for stage in (*own, *self.proposing(whole=True)))

    def held(self, batch: int, tokens: int, step: int) -> Held:
        """What the fullest accelerator holds of ``batch`` sequences of ``tokens``; ``step``: tokens of the largest step."""
        return max((self._on(stage, batch, tokens, step) for stage in self.stages), key=lambda held: held.total)

    def _on(self, stage: Stage, batch: int, tokens: int, step: int) -> Held:
        budget, proposing = self.found.capacity.budget, self.proposing()
        return Held(
            weights=stage.weights,
            kept=batch * float(kept_bytes(stage, tokens)),
            draft_weights=sum(s.weights for s in proposing),
            draft_kept=batch * sum(float(kept_bytes(s, tokens)) for s in proposing),
            activations=largest_step(self.found.resolved, self.found.hardware, stage, batch, max(step, batch)),
            process=budget.context + budget.libraries + budget.communicators,
        )


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on one accelerator."""

    weights: float
    kept: float
    """Keys, values and states."""
    draft_weights: float
    draft_kept: float
    activations: float
    process: float
    """Context, loaded kernels, communicators."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.kept + self.draft_weights + self.draft_kept + self.activations + self.process

    def terms(self) -> Iterator[Term]:
        """Yield the lines of the ledger."""
        logs = "engines' start-up logs"
        yield Term("weights", self.weights, "", "parameters as they are stored", "parameters")
        yield Term("kv_cache", self.kept, "", "keys, values and states of the batch", "KV layout")
        if self.draft_weights:
            yield Term("draft_weights", self.draft_weights, "", "the model that proposes tokens", "parameters")
            yield Term("draft_kv_cache", self.draft_kept, "", "its keys and values", "KV layout")
        yield Term("activations", self.activations, "", "largest step: its widest layer or its sampling", logs)
        yield Term("process", self.process, "", "context, loaded kernels, communicators", "memory calibration")


def _text(workload: Workload) -> Architecture:
    return workload.architecture.text or workload.architecture


def _stages(arch: Architecture, resolved: Resolved, found: Deployment) -> tuple[Stage, ...]:
    return stages(arch, placement(arch, resolved, found.hardware.compute_capability))
