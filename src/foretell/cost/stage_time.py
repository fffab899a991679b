"""What one pipeline rank spends in a step, before anything overlaps: passes by chunk, and what it exchanges once a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from foretell.arch.architecture import Architecture, Block
from foretell.cost.arrays import Value, maximum
from foretell.cost.folder import StageFolder
from foretell.cost.pass_time import Passes, Pricer
from foretell.cost.recompute import MODULES
from foretell.cost.states import states
from foretell.cost.training_memory import exceeded, folders
from foretell.cost.weights import unit
from foretell.cost.works import BlockWorks, block_works
from foretell.recipe.resolve import Run

__all__ = ["Reduction", "StageCost", "StageWorks", "price", "recomputed", "stage_works"]

LOW = ("fp8", "mxfp8", "nvfp4")
"""Formats of matrix-product operands that are narrower than what is stored."""
_MERGED = ("torchtitan",)
"""Frameworks that merge projections which the profile's memory rules keep apart."""


@dataclass(frozen=True, slots=True)
class StageWorks:
    """One pipeline rank: its blocks with how often each stands in each chunk, how it is recomputed, and its parameters."""

    chunks: tuple[tuple[tuple[int, str, BlockWorks], ...], ...]
    """Of each chunk: (count, checkpointing mode, works)."""
    trained: dict[str, float]
    """Trained elements by shard."""
    stored: dict[str, float]
    """All elements by shard."""
    layers: int
    first: bool
    last: bool
    routed: int = 0
    """Layers with routed experts."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Gradients and parameters that a rank exchanges, seconds of each collective on an idle machine."""

    gather: Value = 0.0
    """All-gather of the parameters."""
    reduce: Value = 0.0
    """Reduction of the gradients."""
    update: Value = 0.0
    """Bytes that the optimizer step moves."""
    norm: Value = 0.0
    """Bytes that gradient clipping reads."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Passes of each chunk of one micro-batch, and the rank's exchanges of states."""

    chunks: tuple[Passes, ...]
    reduction: Reduction
    layers: int


def recomputed(run: Run, mode: str) -> Callable[[str], bool]:
    """Tell by a node's name whether it runs again before the backward pass of its layer."""
    spec = run.recipe.recompute
    if mode in ("full", "opaque"):
        return lambda _: True
    if mode == "none":
        return lambda _: False
    if spec.scope in ("op", "compute"):
        return _Every(run.style.sac_every).again
    tests = [MODULES[name][0] for name in (spec.modules or ("core_attn",)) if name in MODULES]
    return lambda name: any(test(name) for test in tests)


@dataclass(slots=True)
class _Every:
    """torchtitan's list keeps attention and every so-manieth matrix product (``activation_checkpoint.py``)."""

    every: int
    seen: int = 0

    def again(self, name: str) -> bool:
        if name == "attn":
            return False
        if name.endswith("_proj") or name in ("experts.up", "experts.down"):
            self.seen += 1
            return not self.every or (self.seen - 1) % self.every != 0
        return True


def stage_works(arch: Architecture, run: Run) -> tuple[StageWorks, ...]:
    """Return the works of every pipeline rank; cached on everything but the numeric sizes."""
    recipe, par = run.recipe, run.par
    bound = exceeded(arch, recipe.seq_len)
    key_recipe = replace(recipe, micro_batch=1, seq_len=1 + bound, encoder_seq_len=None, grad_accum=max(1, par.pp))
    key_par = replace(par, dp=min(par.dp, 2), tp=min(par.tp, 2), cp=min(par.cp, 2), ep=min(par.ep, 2), etp=min(par.expert_tp, 2))
    return _works(arch, replace(run, recipe=key_recipe, par=replace(key_par, hsdp_replicas=1)))


@lru_cache(maxsize=256)
def _works(arch: Architecture, run: Run) -> tuple[StageWorks, ...]:
    made: dict[tuple[int, str, bool], BlockWorks] = {}
    return tuple(_stage(folder, run, made) for folder in folders(arch, run))


def _stage(folder: StageFolder, run: Run, made: dict[tuple[int, str, bool], BlockWorks]) -> StageWorks:
    low = frozenset({"linear", "expert"}) if low_format(run) else frozenset[str]()
    fused = run.profile.megatron or run.profile.name in _MERGED or run.style.fused_qkv

    def works(block: Block, mode: str, *, flow: bool, loss: bool = False) -> BlockWorks:
        key = (id(block), mode, flow)
        if key not in made:
            emitter = folder.emitter(block, input_grad=flow, loss=loss)
            emitter.emit()
            made[key] = block_works(emitter, low=low, fused_columns=fused)
        return made[key]

    chunks: list[dict[tuple[int, str], list[object]]] = [{} for _ in folder.stage.chunks]
    for stack, layers, modes, c in folder.runs():
        for block, mode, flow in folder.placed(stack, layers, modes, c):
            found = works(block, mode, flow=flow)
            entry = chunks[c].setdefault((id(found), mode), [0, mode, found])
            entry[0] = int(entry[0]) + 1  # type: ignore[call-overload]
    rows = [[(int(e[0]), str(e[1]), e[2]) for e in chunk.values()] for chunk in chunks]  # type: ignore[call-overload]
    if folder.stage.first:
        rows[0].insert(0, (1, "none", works(folder.arch.embed, "embed", flow=False)))
    if folder.stage.last:
        head = works(folder.arch.head, "head", flow=True, loss=folder.has_loss)
        rows[-1].append((1, "none", head))
        if folder.recipe.mtp_layers and folder.arch.unused:
            prediction = works(folder.arch.unused[0], "mtp", flow=True)
            rows[-1].append((folder.recipe.mtp_layers, "none", prediction))
            rows[-1].append((folder.recipe.mtp_layers, "none", head))
    stored: dict[str, float] = {}
    for block, n in folder.blocks():
        for weight in block.weights():
            stored[weight.shard] = stored.get(weight.shard, 0.0) + n * weight.elements
    trained = dict(states(folder.blocks(), folder.plan, 0).trained)
    chunked = tuple(tuple(row) for row in rows)
    return StageWorks(chunked, trained, stored, folder.stage.layers, folder.stage.first, folder.stage.last)  # type: ignore[arg-type]


def low_format(run: Run) -> str | None:
    """The low-precision format of matrix products, if there is one."""
    given = run.recipe.compute_dtype or run.recipe.precision
    return given if given in LOW else None


def price(stages: Sequence[StageWorks], run: Run, pricer: Pricer) -> tuple[StageCost, ...]:
    """Return the passes and exchanges of every rank; equal blocks are priced once."""
    priced: dict[tuple[int, str], Passes] = {}

    def passes(works: BlockWorks, mode: str) -> Passes:
        key = (id(works), mode)
        if key not in priced:
            priced[key] = pricer.block(works, recomputed(run, mode))
        return priced[key]

    summed: dict[tuple[tuple[int, str, int], ...], Passes] = {}
    reduced: dict[tuple[tuple[str, float], ...], Reduction] = {}
    out = []
    for stage in stages:
        chunks = []
        for chunk in stage.chunks:
            key = tuple((count, mode, id(works)) for count, mode, works in chunk)
            if key not in summed:
                whole = Passes()
                for count, mode, works in chunk:
                    whole = whole + passes(works, mode) * float(count)
                summed[key] = whole
            chunks.append(summed[key])
        states_key = (*sorted(stage.trained.items()), ("", 0.0), *sorted(stage.stored.items()))
        if states_key not in reduced:
            reduced[states_key] = _reduction(stage, run, pricer)
        out.append(StageCost(tuple(chunks), reduced[states_key], stage.layers))
    return tuple(out)


def _reduction(stage: StageWorks, run: Run, pricer: Pricer) -> Reduction:
    """Exchanges of gradients and parameters over data parallelism, experts apart (their group is smaller)."""
    network, par = pricer.network, run.par
    parts = dict(_local(stage.trained, run)), dict(_local(stage.stored, run))
    reduce = unit(run.formats.grad)
    compute = unit(run.formats.compute)
    gather = unit(run.formats.param) if par.zero < 3 else compute
    if par.zero == 3 and run.style.fp8_gather:
        gather = 1.0
    groups = {"dense": network.groups.shard, "expert": network.groups.expert_dp}
    kind = "all_reduce" if par.zero == 0 else "reduce_scatter"
    seconds_reduce: Value = 0.0
    seconds_gather: Value = 0.0
    update: Value = 0.0
    norm: Value = 0.0
    states_bytes = _state_bytes(run)
    for part, group in groups.items():
        trained, stored = parts[0].get(part, 0.0), parts[1].get(part, 0.0)
        if part not in parts[0] and part not in parts[1]:
            continue
        seconds_reduce = seconds_reduce + network.seconds(kind, trained * reduce, group)
        if par.zero:
            whole = stored if par.zero == 3 else trained
            seconds_gather = seconds_gather + network.seconds("all_gather", whole * gather, group)
        replicas = network.groups.replicate
        if part == "dense":
            seconds_reduce = seconds_reduce + network.seconds("all_reduce", trained * reduce / group.ranks, replicas)
        own = trained / (maximum(group.ranks, 1) if par.zero else 1.0)
        update = update + own * states_bytes
        norm = norm + own * reduce
    return Reduction(seconds_gather, seconds_reduce, update, norm)


def _local(elements: dict[str, float], run: Run) -> Iterator[tuple[str, Value]]:
    """Elements of one rank, dense ones and those of experts."""
    par = run.par
    share: dict[str, Value] = {"1": 1.0, "tp": 1.0 / par.tp, "ep": 1.0 / (par.ep * par.expert_tp), "etp": 1.0 / par.expert_tp}
    for part, keys in (("dense", ("1", "tp")), ("expert", ("ep", "etp"))):
        found = [elements[key] * share[key] for key in keys if key in elements]
        if found:
            yield part, sum(found)


def _state_bytes(run: Run) -> float:
    """Bytes per trained element that a step of the optimizer moves: states, masters and gradient read, and written but for
    the gradient; the working copy of the parameter written."""
    formats, optimizer = run.formats, run.optimizer
    state = optimizer.states * (optimizer.bits / 8 if optimizer.bits else unit(formats.optim))
    master = unit(formats.master) if formats.master is not None and optimizer.master else unit(formats.param)
    return 2.0 * (state + master) + unit(formats.grad) + unit(formats.param)
