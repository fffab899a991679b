"""Training memory of one run: fold every pipeline stage once, then evaluate for the run's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import foretell.cost.rules  # noqa: F401  # fills the table of rules
from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Attention, Head
from foretell.arch.rewrite import REWRITES, prompt_tuned
from foretell.cost.evaluate import Basis, Sizes, breakdown, evaluate
from foretell.cost.folder import Made, StageFolder
from foretell.cost.memory import StageFold, fold
from foretell.cost.pipeline import by_cost, saturation, stages
from foretell.cost.tape import Point
from foretell.cost.weights import WeightPlan
from foretell.recipe.resolve import Run


@dataclass(frozen=True, slots=True)
class Level:
    """A level of allocated memory on one rank: where, how much, and of what."""

    phase: str
    operator: str
    bytes: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Allocated memory of one pipeline rank."""

    stage: int
    layers: int
    peak: Level
    phases: Mapping[str, Level]
    states: float
    """Bytes resident after a step."""
    pooled: float | None = None
    """Reserved memory where it follows from stream pools (FSDP2), before fragmentation."""


def fold_run(arch: Architecture, run: Run) -> tuple[StageFold, ...]:
    """The stages of a run as linear forms; cached on everything but the numeric sizes."""
    recipe, par = run.recipe, run.par
    most = saturation(run.schedule, par.pp, par.vpp)
    cap = recipe.grad_accum if most is None else min(recipe.grad_accum, most)
    bound = exceeded(arch, recipe.seq_len)
    key_recipe = replace(recipe, micro_batch=1, seq_len=1 + bound, encoder_seq_len=None, grad_accum=cap)
    # only whether a degree is above one decides which terms exist (and what DeepSpeed puts in a sub-group)
    groups = run.sharding == "deepspeed" and par.zero == 3
    key_par = replace(
        par,
        dp=par.dp if groups else min(par.dp, 2),
        tp=min(par.tp, 2),
        cp=min(par.cp, 2),
        ep=min(par.ep, 2),
        etp=min(par.expert_tp, 2),
        hsdp_replicas=1,
    )
    return _folded(arch, replace(run, recipe=key_recipe, par=key_par))


def exceeded(arch: Architecture, tokens: int) -> int:
    """The widest attention window that a sequence is longer than (0: none), which is all a fold wants to know of its length."""
    return max((w for w in windows(arch) if w < tokens), default=0)


def windows(arch: Architecture) -> tuple[int, ...]:
    """Attention windows of a model in tokens, narrow to wide; those within a sample (of image patches) always bind."""
    blocks = [b for s in arch.stacks for b in s.blocks if b.stream != "sample"]
    return tuple(sorted({op.window for b in blocks for op in b.ops if isinstance(op, Attention) and op.window}))


def matrix_elements(block: Block) -> float:
    """Multiplications of one token in a block's matrices (its output projection included)."""
    return float(sum(w.elements for op in block.ops for w in op.weights() if w.role in ("matrix", "head"))) + sum(
        float(op.rows * op.dim) for op in block.ops if isinstance(op, Head) and op.tied
    )


@lru_cache(maxsize=512)
def _folded(arch: Architecture, run: Run) -> tuple[StageFold, ...]:
    return tuple(fold(folder) for folder in folders(arch, run))


def folders(arch: Architecture, run: Run) -> list[StageFolder]:
    """What assembles each stage of a run."""
    profile, adapter = run.profile, run.recipe.adapter
    plan = WeightPlan(
        run.recipe,
        run.formats,
        run.optimizer,
        fused_wgrad=run.style.main_grad_fusion,
        quantizes_head=profile.quantizes_head,
        dequantized=profile.dequantized,
        keeps_wide=run.style.composite,
    )
    if profile.rewrite:
        arch = REWRITES[profile.rewrite](arch)
    if adapter is not None and adapter.kind in ("adapter", "adapter-v2"):
        arch = prompt_tuned(arch)
    even = profile.megatron
    par = run.par
    layout = par.layout
    if profile.pipe_buffers and layout is not None and sum(layout) == arch.layers + 2:
        # DeepSpeed's module list: the embedding and the head are units of the first and last stage
        layout = (layout[0] - 1, *layout[1:-1], layout[-1] - 1)
    if arch.model_type in profile.no_dropout:
        run = replace(run, profile=replace(profile, style=replace(run.style, dropout=0.0, attention_dropout=0.0)))
    if layout is None and profile.split == "cost" and par.pp > 1:
        main = arch.main
        costs = [matrix_elements(main.blocks[i]) for i in main.pattern]
        layout = by_cost(costs, matrix_elements(arch.head), par.pp)
    made: Made = {}  # a layer is the same on every stage: emit it once
    return [
        StageFolder(arch, plan, run, stage, made)
        for stage in stages(arch.layers, par.pp, par.vpp, run.schedule, run.recipe.grad_accum, layout, even=even)
    ]


def sizes_of(run: Run) -> Sizes:
    """The numbers of a run that its linear forms are evaluated at."""
    r, p = run.recipe, run.par
    return Sizes(
        micro_batch=r.micro_batch,
        seq_len=r.seq_len,
        encoder_seq_len=r.encoder_seq_len or r.seq_len,
        dp=p.dp,
        tp=p.tp,
        cp=p.cp,
        ep=p.ep,
        etp=p.expert_tp,
        sp=bool(p.sp),
        hsdp_replicas=p.hsdp_replicas,
    )


def highest(points: tuple[Point, ...], basis: Basis) -> tuple[Point, float]:
    """The point that is highest at these sizes."""
    return max(((p, evaluate(p.flat, basis)) for p in points), key=lambda found: found[1])


def level(points: tuple[Point, ...], basis: Basis) -> Level:
    """The highest level among ``points``, with its terms."""
    p, value = highest(points, basis)
    return Level(p.phase, p.operator, value, breakdown(p.size, basis))


def training_memory(arch: Architecture, run: Run) -> list[StageMemory]:
    """Allocated memory of every pipeline rank."""
    basis = Basis(sizes_of(run))
    out = []
    for f in fold_run(arch, run):
        phases = {name: level(points, basis) for name, points in f.phases.items()}
        peak = max(phases.values(), key=lambda lv: lv.bytes)
        pooled = highest(f.pooled, basis)[1] if f.pooled else None
        states = evaluate(f.resident.by_monomial(), basis)
        out.append(StageMemory(f.stage.index, f.stage.layers, peak, phases, states, pooled))
    return out


PARTS = (("weights", "adapters"), ("gradients",), ("master_weights", "optimizer_state"), ("activations", "logits"))
"""What authors list when they add up a run's memory: parameters, gradients, optimizer states, activations."""


def listed_parts(arch: Architecture, run: Run, stage: int = 0) -> float:
    """Sum of the largest value that each of :data:`PARTS` has at any time (they need not be large together);
    activations at the end of the forward pass, where authors measure them."""
    basis = Basis(sizes_of(run))
    highest_of = dict.fromkeys(PARTS, 0.0)
    for phase, points in fold_run(arch, run)[stage].phases.items():
        for p in points:
            terms = breakdown(p.size, basis)
            for part in PARTS if phase == "loss" else PARTS[:-1]:
                highest_of[part] = max(highest_of[part], sum(terms.get(name, 0.0) for name in part))
    return sum(highest_of.values())


def worst(stage_memory: list[StageMemory]) -> StageMemory:
    """The rank that needs most."""
    return max(stage_memory, key=lambda s: s.peak.bytes)


__all__ = ["Level", "StageMemory", "fold_run", "listed_parts", "sizes_of", "training_memory", "windows", "worst"]
