"""A recipe and a parallelism as users give them, checked value by value; then the combination."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.core._checks import Degrees, Facts, facts_of, first_broken
from foretell.cost.weights import check_targets, matches
from foretell.errors import CombinationError, InputError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profile import Profile
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import Run, resolve
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe
from foretell.typed import check_fields
from foretell.validation import MAX_SEQUENCE, choice, flag, number, positive_int

__all__ = ["check_recompute", "check_schedule", "checked_parallelism", "checked_recipe", "checked_run", "completed", "degrees_of"]

DEFAULT_SEQ_LEN = 4096
_SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe")
_SCOPES = ("layer", "uniform", "block", "op", "compute", "modules", "attention")
_OFFLOADS = ("optimizer", "params", "grads", "activations")
_NAMED = ("framework", "precision", "optimizer")
_TEXTS = (
    *_NAMED,
    "optimizer_impl",
    "attention",
    "loss",
    "param_dtype",
    "grad_dtype",
    "master_dtype",
    "optim_dtype",
    "compute_dtype",
    "fp8_recipe",
)
_SHARDINGS = ("none", "ddp", "fsdp1", "fsdp2", "deepspeed", "distopt", "simplefsdp", "megatron-fsdp")
_SCOPES_OF: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": ("layer", "uniform", "block"),
    "selective": ("op", "compute", "modules", "attention", "layer"),
}
_RANKLESS = ("adapter", "adapter-v2", "ia3", "ln-tuning")
"""Kinds of adapters that have no rank."""
_RECOMPUTE = {"mode": "recompute", "scope": "recompute_scope", "layers": "recompute_layers", "modules": "recompute_modules"}
_ADAPTER = {"kind": "lora_kind", "rank": "lora_rank", "targets": "lora_targets", "dropout": "lora_dropout"}
_QUANTIZATION = {"kind": "quantization", "double": "double_quant", "rest": "quantization.rest"}
_SPLIT_BACKWARD = ("zb-h1", "zb-v", "dualpipe")


def checked_recipe(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return the recipe with whole numbers as ints, or raise an InputError that names the field."""
    for name, kind in (("recompute", Recompute), ("adapter", Adapter), ("quantization", Quantization)):
        part = getattr(recipe, name)
        if not isinstance(part, kind) and (part is not None or name == "recompute"):
            raise InputError(f"must be a {kind.__name__}", field=name, value="None" if part is None else part)
    _check_choices(recipe)
    _check_shares(recipe)
    micro = positive_int(recipe.micro_batch, "micro_batch")
    seq = positive_int(recipe.seq_len, "seq_len", maximum=MAX_SEQUENCE)
    accum = positive_int(recipe.grad_accum, "grad_accum")
    changes: dict[str, object] = {}
    if micro is not recipe.micro_batch or seq is not recipe.seq_len or accum is not recipe.grad_accum:
        changes |= {"micro_batch": micro, "seq_len": seq, "grad_accum": accum}
    if recipe.encoder_seq_len is not None:
        encoder = positive_int(recipe.encoder_seq_len, "encoder_seq_len", maximum=MAX_SEQUENCE)
        changes["encoder_seq_len"] = encoder
    if recipe.recompute.layers is not None:
        positive_int(recipe.recompute.layers, "recompute_layers", maximum=2**20)
    if recipe.adapter is not None:
        if not isinstance(recipe.adapter.kind, str):
            raise InputError("must be a name", field="lora_kind", value=recipe.adapter.kind)
        positive_int(recipe.adapter.rank, "lora_rank", minimum=0 if recipe.adapter.kind in _RANKLESS else 1, maximum=2**20)
    made = replace(recipe, **changes) if changes else recipe  # type: ignore[arg-type]
    for part, names in ((made, {}), (made.recompute, _RECOMPUTE), (made.adapter, _ADAPTER), (made.quantization, _QUANTIZATION)):
        if part is not None:
            check_fields(part, names)
    return made


def check_recompute(spec: Recompute) -> None:
    """Refuse parts of a checkpointing mode that the mode has no use for."""
    counted = ("uniform", "block") if spec.mode == "full" else ("layer",)
    parts = {
        "recompute_scope": (spec.scope, spec.scope in _SCOPES_OF[spec.mode]),
        "recompute_layers": (spec.layers, spec.mode != "none" and spec.scope in counted),
        "recompute_modules": (spec.modules or None, spec.mode == "selective" and spec.scope in (None, "modules")),
    }
    allowed = _SCOPES_OF[spec.mode] or None
    for name, (given, used) in parts.items():
        if given is not None and not used:
            problem = f"has no use under recompute {spec.mode}" + (f", scope {spec.scope}" if spec.scope else "")
            hint = f"It belongs to the scope {' or '.join(counted)}" if name == "recompute_layers" else None
            raise InputError(problem, field=name, value=given, allowed=allowed if name == "recompute_scope" else None, hint=hint)


def _check_choices(recipe: TrainingRecipe) -> None:
    """Check the settings that are one of a few names, or a yes or no."""
    for name in _TEXTS:
        given = getattr(recipe, name)
        if not isinstance(given, str) and (given is not None or name in _NAMED):
            raise InputError("must be a name", field=name, value=given)
    choice(recipe.recompute.mode, "recompute", ("none", "selective", "full"))
    if recipe.recompute.scope is not None:
        choice(recipe.recompute.scope, "recompute_scope", _SCOPES)
    if recipe.optimizer_impl is not None:
        choice(recipe.optimizer_impl, "optimizer_impl", ("fused", "foreach", "forloop"))
    if not isinstance(recipe.offload, frozenset | set | list | tuple):
        raise InputError("must be a set of names", field="offload", value=recipe.offload)
    for name in recipe.offload:
        choice(name, "offload", _OFFLOADS)
    for name in ("compile", "optimizer_in_backward"):
        flag(getattr(recipe, name), name)
    if recipe.expandable_segments is not None:
        flag(recipe.expandable_segments, "expandable_segments")


def _check_shares(recipe: TrainingRecipe) -> None:
    """Check the settings that are shares of one."""
    number(recipe.trainable_fraction, "trainable_fraction", maximum=1)
    if recipe.communication_buffer_fraction is not None:
        number(recipe.communication_buffer_fraction, "communication_buffer_fraction", maximum=1)
    if recipe.dropout is not None:
        number(recipe.dropout, "dropout", maximum=1)


def checked_parallelism(par: Parallelism) -> Parallelism:
    """Return the parallelism with whole numbers as ints, or raise an InputError that names the field."""
    changes: dict[str, object] = {}
    for name in ("dp", "tp", "pp", "cp", "ep", "vpp", "hsdp_replicas"):
        given = getattr(par, name)
        made = positive_int(given, name)
        if made is not given:
            changes[name] = made
    if par.etp is not None:
        changes["etp"] = positive_int(par.etp, "etp")
    changes["zero"] = positive_int(par.zero, "zero_stage", minimum=0, maximum=3)
    if par.sp is not None:
        flag(par.sp, "sp")
    if par.schedule is not None:
        choice(par.schedule, "schedule", _SCHEDULES)
    if par.sharding is not None:
        choice(par.sharding, "sharding", _SHARDINGS)
    choice(par.reshard, "reshard", ("default", "always", "never"))
    if par.layout is not None:
        if not isinstance(par.layout, tuple | list):
            raise InputError("must be the layers of each stage", field="pp_layout", value=par.layout)
        changes["layout"] = tuple(positive_int(n, "pp_layout", minimum=0, maximum=2**20) for n in par.layout)
    return replace(par, **changes) if changes else par  # type: ignore[arg-type]


def checked_run(
    arch: Architecture,
    recipe: TrainingRecipe,
    par: Parallelism,
    *,
    gpus: int | None = None,
    explicit: Collection[str] = (),
) -> tuple[Run, Facts]:
    """Check everything about a run and complete it from its framework's profile.

    `explicit` names the settings that the user gave (so that one which means nothing here is refused).
    """
    recipe, par = checked_recipe(recipe), checked_parallelism(par)
    check_recompute(recipe.recompute)
    world = None if gpus is None else positive_int(gpus, "gpus")
    run, facts = completed(arch, recipe, par, explicit=explicit)
    first_broken(facts, degrees_of(run, world))
    return run, facts


def completed(
    arch: Architecture, recipe: TrainingRecipe, par: Parallelism, *, explicit: Collection[str] = ()
) -> tuple[Run, Facts]:
    """Complete a run; refuse what does not depend on the exact degrees."""
    chosen = profile(recipe.framework)
    facts = facts_of(arch, chosen.name, megatron=chosen.megatron)
    if (recipe.recompute.layers or 0) > arch.layers:
        problem = f"is more than the model's {arch.layers} layers"
        raise InputError(problem, field="recompute_layers", value=recipe.recompute.layers)
    check_schedule(par, chosen)
    _check_even(arch, par, chosen)
    run = resolve(recipe, _expert_sequences(arch, par, chosen), chosen)
    if not facts.text:
        if "seq_len" in explicit or recipe.seq_len not in (1, DEFAULT_SEQ_LEN):
            raise InputError(
                "means nothing for this model: it reads images, not a sequence of tokens",
                field="seq_len",
                value=recipe.seq_len,
                hint="Leave it out",
            )
    elif recipe.image_size is not None and arch.family in ("decoder", "encoder", "encoder-decoder"):
        raise InputError("means nothing for a text model", field="image_size", value=recipe.image_size)
    if recipe.adapter is not None:
        if not chosen.supports_adapters:
            raise CombinationError("is not offered", field="adapter", value=recipe.adapter.kind, where=f"framework {chosen.name}")
        if recipe.adapter.kind in ("lora", "dora", "qlora"):
            check_targets(arch, recipe.adapter)
        _check_saved(arch, recipe.adapter.modules_to_save)
    return run, facts


def _check_even(arch: Architecture, par: Parallelism, chosen: Profile) -> None:
    """Refuse uneven stages where the framework takes them only from a layout, and propose one."""
    parts = par.pp * par.vpp
    if not chosen.megatron or par.layout is not None or parts > arch.layers or arch.layers % parts == 0:
        return
    least, rest = divmod(arch.layers, parts)
    inner = [least + 1] * rest + [least] * (parts - 1 - rest)  # the first stage also has the embedding, the last the head
    layout = ",".join(str(n) for n in [least, *inner][:parts])
    raise CombinationError(
        f"does not divide the model's {arch.layers} layers",
        field="pp" if par.vpp == 1 else "pp x vpp",
        value=parts,
        where=f"framework {chosen.name}",
        hint=f"Give the layers of each {'stage' if par.vpp == 1 else 'chunk'}: --pp-layout {layout} (in Python pp_layout=[...])",
    )


def _expert_sequences(arch: Architecture, par: Parallelism, chosen: Profile) -> Parallelism:
    """Megatron runs expert with tensor parallelism only on sequence-parallel activations (``arguments.py``)."""
    if not (chosen.megatron and arch.experts and par.tp > 1 and par.ep > 1) or par.sp:
        return par
    if par.sp is False:
        raise CombinationError(
            "cannot be off where expert and tensor parallelism are both used", field="sp", value=False,
            where=f"framework {chosen.name}", hint="Leave --no-sp out",
        )  # fmt: skip
    return par.with_(sp=True)


def _check_saved(arch: Architecture, modules: tuple[str, ...]) -> None:
    """Refuse the name of a module to train in full that the model lacks."""
    if not modules:
        return
    names = {op.name for block, _ in arch.blocks() for op in block.ops if any(True for _ in op.weights())}
    for module in modules:
        if not any(matches(name, module) for name in names):
            raise InputError("matches no module of the model", field="modules_to_save", value=module, allowed=sorted(names))


def check_schedule(par: Parallelism, chosen: Profile) -> None:
    """Refuse pipeline schedules that the framework lacks or that a sharding cannot run under."""
    schedule = par.schedule
    where = None if chosen.name == "generic" else f"framework {chosen.name}"
    if schedule is None:
        return
    if schedule == "interleaved-1f1b" and par.vpp == 1:
        raise CombinationError("needs vpp > 1", field="schedule", value=schedule, where=where)
    if schedule in ("gpipe", "1f1b", "zb-h1") and par.vpp > 1:
        raise CombinationError(f"has one chunk a rank, not vpp = {par.vpp}", field="schedule", value=schedule, where=where)
    if chosen.megatron and schedule not in ("1f1b", "interleaved-1f1b"):
        raise CombinationError(
            "is not a schedule of Megatron-Core",
            field="schedule",
            value=schedule,
            allowed=["1f1b", "interleaved-1f1b"],
            where=where,
        )
    if par.zero >= 3 and schedule in _SPLIT_BACKWARD and chosen.name != "torchtitan":
        raise CombinationError(
            f"cannot run under {schedule}: its published forms shard optimizer states at most "
            "(arXiv 2401.10241, arXiv 2412.19437)",
            field="zero_stage",
            value=par.zero,
            where=where,
        )


def degrees_of(run: Run, world: int | None = None) -> Degrees:
    """Return the numbers of one run that the checks look at."""
    r, p = run.recipe, run.par
    return Degrees(
        micro_batch=r.micro_batch,
        seq_len=r.seq_len,
        dp=p.dp,
        tp=p.tp,
        pp=p.pp,
        cp=p.cp,
        ep=p.ep,
        etp=p.expert_tp,
        vpp=p.vpp,
        sp=int(bool(p.sp)),
        hsdp=p.hsdp_replicas,
        empty=(p.layout or ()).count(0),
        world=world,
    )
