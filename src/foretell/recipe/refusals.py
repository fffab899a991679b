"""What a framework cannot run, and why: a table of rules, asked in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from foretell.errors import CombinationError
from foretell.recipe.optimizers import optimizer
from foretell.recipe.parallelism import Parallelism, Sharding
from foretell.recipe.profile import STATES, Profile
from foretell.recipe.training import TrainingRecipe

_SHARDINGS: dict[str, tuple[str, ...]] = {
    "fsdp1": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp"),
    "fsdp2": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp"),
    "deepspeed": ("none", "ddp", "deepspeed"),
    "distopt": ("none", "ddp", "distopt", "fsdp2", "megatron-fsdp"),
    "ddp": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp", "deepspeed"),
}
"""Who can shard the states, by the framework's own sharding: PyTorch's, DeepSpeed's and Megatron's do not mix
(Megatron-LM ``--use-torch-fsdp2`` and accelerate's FSDP and DeepSpeed plugins are the bridges there are)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``broken`` gives the value of ``field`` that cannot be run, or None; ``{can}`` in ``why`` is what can be offloaded."""

    field: str
    why: str
    broken: Callable[[TrainingRecipe, Parallelism, Profile], object]


def _degree(field: str, kind: str, offered: str) -> _Rule:
    """A kind of parallelism that the framework does not have."""

    def broken(_: TrainingRecipe, par: Parallelism, profile: Profile) -> int | None:
        degree: int = getattr(par, field)
        return degree if degree > 1 and not getattr(profile, offered) else None

    return _Rule(field, f"needs {kind} parallelism, which this framework does not have", broken)


def _no_switch(recipe: TrainingRecipe, _: Parallelism, profile: Profile) -> str | None:
    return min(recipe.offload - profile.offloads, default=None)


def _apart(recipe: TrainingRecipe, _: Parallelism, profile: Profile) -> str | None:
    states = recipe.offload & STATES
    alone = profile.offloads_together and states and "params" not in states
    return ",".join(sorted(states)) if alone else None


def _offloads_below(part: str, zero: int) -> Callable[[TrainingRecipe, Parallelism, Profile], object]:
    """DeepSpeed offloads ``part`` from a ZeRO stage on only."""
    return lambda r, p, f: part if part in r.offload and f.name == "deepspeed" and p.zero < zero else None


def _base(recipe: TrainingRecipe) -> str | None:
    return recipe.quantization.kind if recipe.quantization is not None else None


def _steps_within(recipe: TrainingRecipe, _: Parallelism, _profile: Profile) -> int | None:
    """Micro-batches a step where each would be followed by an update (torchtune ``optimizer_in_bwd``, LOMO's README)."""
    within = recipe.optimizer_in_backward or optimizer(recipe.optimizer).in_backward
    return recipe.grad_accum if within and recipe.grad_accum > 1 else None


_RULES = (
    _degree("pp", "pipeline", "pipeline"),
    _degree("tp", "tensor", "tensor"),
    _degree("cp", "context", "context"),
    _degree("ep", "expert", "expert"),
    _Rule(
        "zero_stage",
        "Megatron-Core shards gradients and parameters only with sharding megatron-fsdp",
        lambda _r, p, f: p.zero if f.megatron and p.zero >= 2 and p.sharding != "megatron-fsdp" else None,
    ),
    _Rule(
        "zero_stage",
        "DeepSpeed's pipeline engine runs ZeRO 0 and 1 only",  # deepspeed/runtime/pipe/engine.py asserts it
        lambda _r, p, f: p.zero if p.zero >= 2 and p.pp > 1 and f.pipe_buffers else None,
    ),
    _Rule(
        "quantization",
        "a quantised base runs on one device only",
        lambda r, p, f: _base(r) if p.world > 1 and not f.quantizes_many else None,
    ),
    _Rule("vpp", "virtual pipeline stages need pp > 1", lambda _r, p, _f: p.vpp if p.vpp > 1 and p.pp == 1 else None),
    _Rule("offload", "this framework has no switch for it: {can}", _no_switch),
    _Rule("offload", "FSDP offloads parameters, gradients and optimizer together: say params", _apart),
    _Rule("offload", "DeepSpeed offloads parameters only in ZeRO stage 3", _offloads_below("params", 3)),
    _Rule("offload", "DeepSpeed offloads optimizer states from ZeRO stage 1 on", _offloads_below("optimizer", 1)),
    _Rule(
        "grad_accum",
        "cannot be: an optimizer that steps inside the backward pass leaves no gradients to accumulate",
        _steps_within,
    ),
    _Rule(
        "trainable_fraction",
        "is for full fine-tuning: with an adapter, what trains follows from its rank and targets",
        lambda r, _p, _f: r.trainable_fraction if r.adapter is not None and r.trainable_fraction != 1 else None,
    ),
    _Rule(
        "adapter",
        "this framework does not train adapters",
        lambda r, _p, f: r.adapter.kind if r.adapter is not None and not f.supports_adapters else None,
    ),
    _Rule(
        "quantization",
        "this framework does not train on a quantised base",
        lambda r, _p, f: None if f.adapters_4bit else _base(r),
    ),
    _Rule(
        "quantization",
        "a quantised base is frozen: training it needs an adapter (LoRA)",
        lambda r, _p, _f: _base(r) if r.adapter is None else None,
    ),
)


def check(recipe: TrainingRecipe, par: Parallelism, profile: Profile) -> None:
    """Refuse combinations that the framework cannot run, with the reason."""
    name, where = profile.name, f"framework {profile.name}"
    if par.zero not in profile.zero:
        hint = "Name what shards: --framework deepspeed, fsdp1 or fsdp2." if name == "hf-trainer" else None
        why = f"is not a ZeRO stage of {name}"
        raise CombinationError(why, field="zero_stage", value=par.zero, allowed=list(profile.zero), hint=hint)
    offered = _SHARDINGS.get(profile.sharding, get_args(Sharding))
    if par.sharding is not None and name != "generic" and par.sharding not in offered:
        why = "is not a sharding that this framework runs"
        raise CombinationError(why, field="sharding", value=par.sharding, allowed=offered, where=where)
    for rule in _RULES:
        value = rule.broken(recipe, par, profile)
        if value is not None:
            can = f"it can offload {', '.join(sorted(profile.offloads))}" if profile.offloads else "it offloads nothing"
            raise CombinationError(rule.why.format(can=can), field=rule.field, value=value, where=where)
