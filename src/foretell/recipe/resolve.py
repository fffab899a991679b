"""A recipe and a parallelism, completed by a framework profile: no ``None`` is left that decides the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretell.errors import CombinationError
from foretell.recipe.adapted import adapted_style
from foretell.recipe.history import at_date
from foretell.recipe.optimizers import Optimizer, optimizer
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profile import STATES, Formats, Profile
from foretell.recipe.refusals import check
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

_LOW = ("fp8", "mxfp8", "nvfp4")
"""Formats of matmul operands only: everything stored stays in the precision's own compute format."""


@dataclass(frozen=True, slots=True)
class Run:
    """A training run with every choice made."""

    recipe: TrainingRecipe
    par: Parallelism
    profile: Profile
    """With its style adapted to this run."""
    formats: Formats
    optimizer: Optimizer

    @property
    def style(self) -> Style:
        return self.profile.style

    @property
    def expandable(self) -> bool:
        """Whether the allocator uses expandable segments."""
        given = self.recipe.expandable_segments
        return self.profile.expandable if given is None else given

    @property
    def sharding(self) -> str:
        return self.par.sharding or self.profile.sharding

    @property
    def schedule(self) -> str:
        if self.par.schedule is not None:
            return self.par.schedule
        return "interleaved-1f1b" if self.par.vpp > 1 else "1f1b"


def resolve(recipe: TrainingRecipe, par: Parallelism, profile: Profile) -> Run:
    """Complete a run from its framework's profile; refuse what the framework cannot run."""
    check(recipe, par, profile)
    profile = at_date(profile, recipe.date)
    if profile.offloads_together and "params" in recipe.offload:
        recipe = replace(recipe, offload=recipe.offload | (profile.offloads & STATES))
    formats = _formats(recipe, profile)
    if profile.megatron and (formats.param, formats.master) == ("bf16", "fp32") and formats.optim != "fp32":
        # precision-aware optimizer: masters keep the 16 bits that the bf16 parameter lacks (Megatron-LM
        # core/optimizer/optimizer_config.py ``store_param_remainders``; Transformer Engine optimizers/fused_adam.py)
        formats = replace(formats, master="int16")
    sp = par.sp if par.sp is not None else profile.sequence_parallel
    sharding = par.sharding or profile.sharding
    if par.zero == 2 and sharding in ("fsdp1", "fsdp2", "simplefsdp"):  # SHARD_GRAD_OP: shards between steps, whole in them
        par = replace(par, zero=3, reshard="never")
    if profile.name == "torchtune" and par.dp * par.cp == 1:  # pytorch/torchtune ParallelDims.dp_shard_enabled
        par = replace(par, zero=0, reshard="default")
    if par.pp > 1 and profile.name == "torchtitan" and par.reshard == "default":
        # pytorch/torchtitan apply_fsdp: gathering again for every micro-batch could not overlap
        par = replace(par, reshard="never")
    par = replace(
        par,
        sp=bool(sp),
        etp=par.etp if par.etp is not None else _expert_tp(par, profile),
        sharding=par.sharding or profile.sharding,  # type: ignore[arg-type]
    )
    if sharding == "deepspeed":
        if par.zero == 0 and recipe.grad_dtype is None and formats.param == "bf16" and formats.master:
            formats = replace(formats, grad="fp32")  # BF16_Optimizer accumulates in fp32
        if par.zero >= 2 and "optimizer" in recipe.offload:  # ZeRO-Offload: averaged gradients live on the host
            recipe = replace(recipe, offload=recipe.offload | {"grads"})
    if recipe.adapter is not None and recipe.adapter.dropout is None:
        recipe = replace(recipe, adapter=replace(recipe.adapter, dropout=profile.lora_dropout))
    if recipe.quantization is not None and not recipe.quantization.rest:
        recipe = replace(recipe, quantization=replace(recipe.quantization, rest=profile.quantized_rest))
    style = adapted_style(recipe, par, profile, formats)
    return Run(recipe, par, replace(profile, style=style), formats, optimizer(recipe.optimizer))


def _expert_tp(par: Parallelism, profile: Profile) -> int:
    """The framework's default, or 1 where only that leaves room for ``ep`` experts groups in dp x cp x tp."""
    if profile.default_expert_tp is not None:
        return profile.default_expert_tp
    return 1 if par.ep > par.dp * par.cp else par.tp


def _formats(recipe: TrainingRecipe, profile: Profile) -> Formats:
    base = profile.formats.get(recipe.precision)
    if base is None:
        raise CombinationError(
            f"is not a precision that {profile.name} trains in",
            field="precision",
            value=recipe.precision,
            allowed=sorted(profile.formats),
        )
    changes: dict[str, str | None] = {}
    for name in ("param", "grad", "optim", "compute"):
        given = getattr(recipe, f"{name}_dtype")
        if given is not None and not (name == "compute" and given in _LOW):
            changes[name] = given
    if profile.checkpoint_dtype and recipe.adapter is not None and recipe.param_dtype is None and "param" not in changes:
        changes["param"] = base.compute
    if recipe.master_dtype is not None:
        changes["master"] = None if recipe.master_dtype == "none" else recipe.master_dtype
    if "compute" in changes and base.wgrad == base.compute:
        changes["wgrad"] = changes["compute"]
    return replace(base, **changes)  # type: ignore[arg-type]
