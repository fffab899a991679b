"""A recipe and a parallelism, completed by a framework profile: no ``None`` is left that decides the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from foretell.dtypes import dtype
from foretell.errors import CombinationError, InputError
from foretell.recipe.history import at_date
from foretell.recipe.optimizers import Optimizer, optimizer
from foretell.recipe.parallelism import Parallelism, Sharding
from foretell.recipe.profile import Formats, Profile
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

_ATTENTION = {
    "flash": "flash", "sdpa": "flash", "te": "te", "flex": "flash", "eager": "eager",
    "mem-efficient": "efficient", "efficient": "efficient",
}  # fmt: skip
_LOW = ("fp8", "mxfp8", "nvfp4")
"""Formats of matmul operands only: everything stored stays in the precision's own compute format."""
_SHARDINGS: dict[str, tuple[str, ...]] = {
    "fsdp1": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp"),
    "fsdp2": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp"),
    "deepspeed": ("none", "ddp", "deepspeed"),
    "distopt": ("none", "ddp", "distopt", "fsdp2", "megatron-fsdp"),
    "ddp": ("none", "ddp", "fsdp1", "fsdp2", "simplefsdp", "deepspeed"),
}
"""Who can shard the states, by the framework's own sharding: PyTorch's, DeepSpeed's and Megatron's do not mix
(Megatron-LM ``--use-torch-fsdp2`` and accelerate's FSDP and DeepSpeed plugins are the bridges there are)."""
LIGER: dict[str, object] = {"norm": "fused", "gate": "fused", "rope": "inplace", "inplace": True}
"""Liger's fused loss comes with its other kernels (linkedin/Liger-Kernel ``transformers/monkey_patch.py``, defaults of
``apply_liger_kernel_to_llama``): RMSNorm keeps x and one statistic, SwiGLU gate and up, RoPE turns projections in place."""
_LOSS = {
    "eager": None, "hf": "hf", "chunked": "chunked", "compiled": "compiled", "fused": "fused-linear",
    "fused-linear": "fused-linear", "liger": "fused-linear", "te-fused": "te-fused", "vocab-parallel": "vocab-parallel",
    "mse": "mse",
}  # fmt: skip


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
        recipe = replace(recipe, offload=profile.offloads)
    formats = _formats(recipe, profile)
    if profile.megatron and (formats.param, formats.master) == ("bf16", "fp32") and formats.optim != "fp32":
        # precision-aware optimizer: masters keep the 16 bits that the bf16 parameter lacks (Megatron-LM
        # core/optimizer/optimizer_config.py ``store_param_remainders``; Transformer Engine optimizers/fused_adam.py)
        formats = replace(formats, master="int16")
    sp = par.sp if par.sp is not None else profile.sequence_parallel
    sharding = par.sharding or profile.sharding
    if par.zero == 2 and sharding in ("fsdp1", "fsdp2", "simplefsdp"):  # SHARD_GRAD_OP: shards between steps, whole in them
        par = replace(par, zero=3, reshard="never")
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
    style = _style(recipe, par, profile, formats)
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
            f"is not a precision that {profile.name} trains in", field="precision", value=recipe.precision,
            allowed=sorted(profile.formats),
        )  # fmt: skip
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


def _style(recipe: TrainingRecipe, par: Parallelism, profile: Profile, formats: Formats) -> Style:
    style = profile.style
    changes: dict[str, object] = {}
    if formats.compute == "fp32":
        changes |= {"compute": 4.0, "residual": 4.0, "autocast": False}
    if formats.param == formats.compute:
        # a base loaded in the compute format: only fp32 adapters still make autocast cast anything
        mixed = recipe.adapter is not None and profile.formats[recipe.precision].param != formats.compute
        changes |= {"autocast": style.autocast and mixed, "residual": 4.0 if formats.compute == "fp32" else 2.0}
    if recipe.quantization is not None and style.quantized_stream:
        wide = float(dtype(recipe.quantization.rest).bytes_per_element)
        changes |= {"residual": wide} if style.autocast else {"residual": wide, "compute": wide}
    if recipe.attention is not None:
        if recipe.attention not in _ATTENTION:
            raise InputError(
                "is not a known implementation", field="attention", value=recipe.attention, allowed=sorted(_ATTENTION)
            )
        changes["attention"] = _ATTENTION[recipe.attention]
    if recipe.loss is not None:
        if recipe.loss not in _LOSS:
            raise InputError("is not a known implementation", field="loss", value=recipe.loss, allowed=sorted(_LOSS))
        changes["loss"] = _LOSS[recipe.loss] or style.loss
        if changes["loss"] == "fused-linear" and style.rope == "composite":  # a transformers model patched by Liger
            changes |= LIGER
    if recipe.compile and profile.compiles != "kernels":
        # AOTAutograd's min-cut keeps matmul operands: norm outputs, silu*up; norms, rope and silu run again
        changes |= {"norm": "fused", "gate": "fused", "rope": "fused", "act": "fused", "sac_last": False}
        changes |= {"cast_once": True, "loss_compiled": True, "edge_norm": style.norm if profile.compiles == "layers" else ""}
    if recipe.adapter is not None and profile.adapter_fsdp_units:
        changes["fsdp_units"] = profile.adapter_fsdp_units
    if recipe.dropout is not None:
        changes |= {"dropout": recipe.dropout, "attention_dropout": recipe.dropout}
    if style.attention == "te" and changes.get("attention") == "flash":
        changes["attention"] = "te"
    named = dict(profile.losses)
    if recipe.loss in named:
        changes["loss"] = named[recipe.loss]
    changes["sequence_parallel"] = bool(par.sp) and par.tp > 1
    changes["ring"] = par.cp > 1 and style.attention == "te"
    if par.sharding == "simplefsdp" and (not recipe.date or recipe.date >= "2026-04"):
        changes["sac_every"] = 1  # torchtitan graph_trainer: the default memory policy keeps every matmul
    if profile.name == "torchtitan" and recipe.fp8_recipe == "tensorwise":  # train_configs/llama3_405b.toml, docs/float8.md
        changes["fp8_gather"] = True
    if "nvfp4" in (recipe.compute_dtype, recipe.precision):
        changes["sac_opaque"] = 0.85  # torchao nvfp4 recipe: the leading 85 % of the layers are converted
    if recipe.grad_accum_fusion is False:
        changes["main_grad_fusion"] = False
    changes["softmax_copy"] = formats.compute != "fp16"
    if style.scores == "composite" and changes.get("attention", style.attention) == "eager":
        changes["mask"] = changes.get("residual", style.residual)
    return replace(style, **changes)  # type: ignore[arg-type]


def check(recipe: TrainingRecipe, par: Parallelism, profile: Profile) -> None:
    """Refuse combinations that the framework cannot run, with the reason."""
    name = profile.name

    def refuse(field: str, value: object, why: str) -> None:
        raise CombinationError(why, field=field, value=value, where=f"framework {name}")

    if par.zero not in profile.zero:
        raise CombinationError(f"is not a ZeRO stage of {name}", field="zero_stage", value=par.zero, allowed=list(profile.zero))
    if par.sharding is not None and name != "generic":
        offered = _SHARDINGS.get(profile.sharding, get_args(Sharding))
        if par.sharding not in offered:
            why = "is not a sharding that this framework runs"
            where = f"framework {name}"
            raise CombinationError(why, field="sharding", value=par.sharding, allowed=offered, where=where)
    if par.pp > 1 and not profile.pipeline:
        refuse("pp", par.pp, "needs pipeline parallelism, which this framework does not have")
    if par.tp > 1 and not profile.tensor:
        refuse("tp", par.tp, "needs tensor parallelism, which this framework does not have")
    if par.cp > 1 and not profile.context:
        refuse("cp", par.cp, "needs context parallelism, which this framework does not have")
    if par.ep > 1 and not profile.expert:
        refuse("ep", par.ep, "needs expert parallelism, which this framework does not have")
    if profile.megatron and par.zero >= 2 and par.sharding != "megatron-fsdp":
        refuse("zero_stage", par.zero, "Megatron-Core shards gradients and parameters only with sharding megatron-fsdp")
    if par.zero >= 2 and par.pp > 1 and profile.pipe_buffers:  # deepspeed/runtime/pipe/engine.py asserts it
        refuse("zero_stage", par.zero, "DeepSpeed's pipeline engine runs ZeRO 0 and 1 only")
    if recipe.quantization is not None and par.world > 1 and not profile.quantizes_many:
        refuse("quantization", recipe.quantization.kind, "a quantised base runs on one device only")
    if par.vpp > 1 and par.pp == 1:
        refuse("vpp", par.vpp, "virtual pipeline stages need pp > 1")
    for part in sorted(recipe.offload - profile.offloads):
        can = f"it can offload {', '.join(sorted(profile.offloads))}" if profile.offloads else "it offloads nothing"
        refuse("offload", part, f"this framework has no switch for it: {can}")
    if profile.offloads_together and recipe.offload and "params" not in recipe.offload:
        refuse(
            "offload", ",".join(sorted(recipe.offload)), "FSDP offloads parameters, gradients and optimizer together: say params"
        )
    if "params" in recipe.offload and name == "deepspeed" and par.zero < 3:
        refuse("offload", "params", "DeepSpeed offloads parameters only in ZeRO stage 3")
    if "optimizer" in recipe.offload and name == "deepspeed" and par.zero < 1:
        refuse("offload", "optimizer", "DeepSpeed offloads optimizer states from ZeRO stage 1 on")
    if recipe.adapter is not None and not profile.supports_adapters:
        refuse("adapter", recipe.adapter.kind, "this framework does not train adapters")
    if recipe.quantization is not None and not profile.adapters_4bit:
        refuse("quantization", recipe.quantization.kind, "this framework does not train on a quantised base")
    if recipe.quantization is not None and recipe.adapter is None:
        refuse("quantization", recipe.quantization.kind, "a quantised base is frozen: training it needs an adapter (LoRA)")
