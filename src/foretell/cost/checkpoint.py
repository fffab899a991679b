"""Bytes of a checkpoint: the states of the memory fold, each element once however many ranks hold it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from foretell.arch.architecture import Architecture
from foretell.cost.evaluate import Basis, breakdown
from foretell.cost.states import states
from foretell.cost.training_memory import folders, sizes_of
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.resolve import Run
from foretell.validation import choice

__all__ = ["CONTENTS", "CheckpointTerms", "checkpoint_terms"]

CONTENTS = ("full", "weights")
"""Everything that training needs to go on, or the model's parameters alone."""


@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """Bytes of one checkpoint of the whole job, by what they are."""

    weights: float
    """Parameters in the format that the framework stores them in; of an adapter run the adapters alone."""
    master_weights: float
    optimizer_state: float
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Sum of the terms."""
        return self.weights + self.master_weights + self.optimizer_state


def checkpoint_terms(arch: Architecture, run: Run, content: str = "full") -> CheckpointTerms:
    """Return what one checkpoint of a run holds; gradients, random states and schedules (kilobytes) are left out.

    Raises InputError for a `content` that is not in CONTENTS.
    """
    choice(content, "content", CONTENTS)
    recipe = replace(run.recipe, offload=frozenset(), micro_batch=1, seq_len=1, grad_accum=1, encoder_seq_len=None)
    terms = _whole(arch, replace(run, recipe=recipe, par=replace(Parallelism(), zero=run.par.zero, sharding=run.par.sharding)))
    return replace(terms, master_weights=0.0, optimizer_state=0.0) if content == "weights" else terms


@lru_cache(maxsize=512)
def _whole(arch: Architecture, run: Run) -> CheckpointTerms:
    """Fold the states of all blocks on one rank."""
    (folder,) = folders(arch, replace(run, par=replace(run.par, zero=0, sharding="ddp")))
    base = states(folder.blocks(), folder.plan, 0)
    basis = Basis(sizes_of(replace(run, par=Parallelism())))
    weights = breakdown(base.weights, basis)
    master = float(sum(breakdown(base.master, basis).values()))
    notes = []
    if run.recipe.adapter is not None:
        stored = float(weights.get("adapters", 0.0))
        notes.append("the frozen base is not saved again: the adapters and their optimizer states alone")
    elif run.par.zero == 3 and run.par.sharding == "deepspeed" and master:
        # deepspeed/runtime/engine.py saves the partitioned fp32 weights with the optimizer; zero_to_fp32.py restores from them
        stored = 0.0
        notes.append("ZeRO-3 of DeepSpeed saves the fp32 weights with the optimizer, and no 16-bit copy")
    else:
        stored = float(sum(weights.values()))
    return CheckpointTerms(stored, master, float(sum(breakdown(base.optimizer, basis).values())), tuple(notes))
