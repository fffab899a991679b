"""What an answer says about itself: choices that were not given, and what is known to be left out."""

from __future__ import annotations

from foretell.arch.workload import Workload
from foretell.core._checks import Facts
from foretell.cost.overheads import Overheads
from foretell.recipe.resolve import Run
from foretell.recipe.training import TrainingRecipe

__all__ = ["assumptions", "run_notes"]


def assumptions(run: Run, given: TrainingRecipe | None, above: Overheads) -> tuple[str, ...]:
    """Return the choices that were left open, with what was taken for each."""
    r, p, style, name = run.recipe, run.par, run.style, run.profile.name
    out = []
    if given is None:
        out += [
            f"micro-batch {r.micro_batch}, sequence {r.seq_len}",
            f"precision {r.precision}, {r.optimizer}",
        ]
    if r.attention is None:
        out.append(f"attention: {style.attention} ({name}'s default)")
    if r.loss is None:
        out.append(f"loss: {style.loss} ({name}'s default)")
    if r.optimizer_impl is None:
        out.append(f"optimizer step: {run.profile.optimizer_impl} ({name}'s default)")
    if p.tp > 1:
        out.append(f"sequence parallelism {'on' if p.sp else 'off'}")
    if p.pp > 1:
        out.append(f"pipeline schedule {run.schedule}")
    if p.ep > 1:
        out.append(f"expert tensor parallelism {p.expert_tp}; tokens spread evenly over the experts")
    if above.cuda_like and r.expandable_segments is None:
        out.append(f"expandable_segments {'on' if run.expandable else 'off'} ({name}'s default)")
    return tuple(out)


def run_notes(model: Workload, run: Run, facts: Facts) -> tuple[str, ...]:
    """Return what a reader should know before trusting the numbers."""
    r, p, arch = run.recipe, run.par, model.architecture
    out = [*model.notes, *run.profile.notes]
    if arch.max_positions and facts.text and r.seq_len > arch.max_positions:
        out.append(f"the sequence of {r.seq_len} is longer than the model's {arch.max_positions} positions")
    if p.pp > 1 and r.grad_accum < p.pp:
        out.append(f"{r.grad_accum} micro-batches do not fill {p.pp} pipeline stages")
    if any(n < p.tp for n in facts.kv_heads):
        out.append("key-value heads are fewer than tp: their copies on several ranks are left out")
    if arch.quantized is not None and r.quantization is None:
        out.append(f"the checkpoint is quantised ({arch.quantized.method}); {r.precision} training is assumed")
    if arch.experts:
        out.append("experts: dropless, tokens spread evenly; a hot expert needs more")
    if r.compile:
        out.append("torch.compile: its partitioner decides what is kept; expect a wider error")
    return tuple(out)
