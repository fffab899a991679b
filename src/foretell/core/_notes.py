"""What an answer says about itself: choices that were not given, and what is known to be left out."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Attention, Dropout, Experts, Head, PromptAttention
from foretell.arch.workload import Workload
from foretell.core._checks import Facts
from foretell.cost.host_memory import Load
from foretell.cost.overheads import Overheads
from foretell.recipe.resolve import Run
from foretell.recipe.training import TrainingRecipe

__all__ = ["assumptions", "host_notes", "run_notes", "speed_notes"]


def assumptions(arch: Architecture, run: Run, given: TrainingRecipe | None, above: Overheads) -> tuple[str, ...]:
    """Return the choices that were left open, with what was taken for each."""
    r, p, style, name = run.recipe, run.par, run.style, run.profile.name
    out = []
    if given is None:
        out += [
            f"micro-batch {r.micro_batch}, sequence {r.seq_len}",
            f"precision {r.precision}, {r.optimizer}",
        ]
    if arch.family in ("encoder", "vision"):
        out.append(f"head: {_head(arch)}")
    if r.attention is None and _has(arch, Attention, PromptAttention):
        out.append(f"attention: {style.attention} ({name}'s default)")
    if r.loss is None and arch.vocab is not None:
        out.append(f"loss: {style.loss} ({name}'s default)")
    elif style.loss == "fused-linear" and style.rope == "inplace":
        out.append(f"loss {r.loss}: Liger's, with its kernels for norms, gates and rope")
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


def _has(arch: Architecture, *kinds: type) -> bool:
    """Whether a model has an operator of these kinds."""
    return any(isinstance(op, kinds) for block, _ in arch.blocks() for op in block.ops)


def _head(arch: Architecture) -> str:
    """Say which head an encoder is trained with."""
    last = arch.head.ops[-1]
    if isinstance(last, Head):
        if arch.vocab is None:
            return f"{last.rows} classes"
        return f"language model over {last.rows} tokens at every position"
    width = getattr(last, "d_out", None)
    return f"{last.name.replace('_', ' ')}, {width} outputs" if width else last.name.replace("_", " ")


def run_notes(model: Workload, run: Run, facts: Facts) -> tuple[str, ...]:
    """Return what a reader should know before trusting the numbers."""
    r, p, arch = run.recipe, run.par, model.architecture
    out = [*model.notes, *run.profile.notes]
    if arch.max_positions and facts.text and r.seq_len > arch.max_positions:
        out.append(f"the sequence of {r.seq_len} is longer than the model's {arch.max_positions} positions")
    if p.pp > 1 and r.grad_accum < p.pp:
        batches = "1 micro-batch a step does" if r.grad_accum == 1 else f"{r.grad_accum} micro-batches a step do"
        out.append(f"{batches} not fill {p.pp} pipeline stages: with {p.pp}, the first stage holds the activations of {p.pp}")
    if any(n < p.tp for n in facts.kv_heads):
        out.append("key-value heads are fewer than tp: their copies on several ranks are left out")
    if arch.quantized is not None and r.quantization is None:
        out.append(f"the checkpoint is quantised ({arch.quantized.method}); {r.precision} training is assumed")
    if arch.experts:
        out.append("experts: dropless, tokens spread evenly; a hot expert needs more")
    if run.sharding == "deepspeed" and p.zero >= 3:
        # deepspeed/runtime/engine.py _configure_distributed_model; transformers' from_pretrained uses zero.Init
        out.append("weights are built divided, inside zero.Init; a model built outside it moves to every device whole first")
    if r.trainable_fraction < 1:
        out.append("frozen weights save optimizer states and gradients; activations are counted as if every layer trained")
    if r.precision in ("int8", "int4", "nf4"):
        out.append(f"weights stored in {r.precision} and trained: an accounting, no framework trains so")
    out += _without_effect(arch, run)
    if r.compile:
        out.append("torch.compile: its partitioner decides what is kept; expect a wider error")
    return tuple(out)


def _without_effect(arch: Architecture, run: Run) -> Iterator[str]:
    """Name the settings that were given and change nothing on this model."""
    r, name = run.recipe, arch.name
    core = _has(arch, Attention, PromptAttention)
    if r.attention is not None and not core:
        yield f"attention {r.attention} has no effect: {name} has no attention"
    if r.recompute.mode == "selective" and r.recompute.scope == "attention" and not core:
        yield f"selective recomputation of attention has no effect: {name} has no attention"
    if r.dropout is not None and not core and not _has(arch, Dropout):
        yield f"dropout {r.dropout:g} has no effect: {name} has no dropout"
    if r.loss is not None and arch.vocab is None:
        yield f"loss {r.loss} has no effect: {name} has no vocabulary"
    if run.par.etp not in (None, 1, run.par.tp) and not _has(arch, Experts):
        yield f"expert tensor parallelism has no effect: {name} has no experts"


def speed_notes(run: Run) -> tuple[str, ...]:
    """Return what a forecast of speed leaves out of this run."""
    recipe = run.recipe
    out = []
    if recipe.offload:
        parts = ", ".join(sorted(recipe.offload))
        out.append(
            f"speed: copies to and from host memory ({parts}), and a step that the host makes, are left out: expect a longer one"
        )
    if recipe.quantization is not None:
        out.append(f"speed: converting the {recipe.quantization.kind} base before its products is left out: expect a longer step")
    if recipe.optimizer_impl == "forloop":
        out.append("speed: the launches of an optimizer step parameter by parameter are left out")
    return tuple(out)


def host_notes(run: Run, ranks: int, load: Load, workers: int) -> tuple[str, ...]:
    """Return what a node's host memory is made of."""
    many = f"{ranks} ranks" if ranks > 1 else "1 rank"
    copies = {
        "every-rank": f"each of {many} reads a full copy of the model" if ranks > 1 else "the model is read in full",
        "rank0": "one rank of the node reads a full copy of the model",
        "meta": "the model is read shard by shard, no full copy",
    }[load]
    if run.recipe.quantization is not None and load == "meta":
        copies = "the base is quantised on the device shard by shard, no full copy"
    out = [f"host of a node: {many}, {workers} data-loader workers each; {copies}"]
    if run.recipe.offload:
        out.append("host: offloaded states are pinned; an allocator that rounds to powers of two takes up to 2x")
    return tuple(out)
