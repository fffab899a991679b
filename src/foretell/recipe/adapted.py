"""The style of a profile, adapted to one run: its formats, its choice of kernels, compilation and parallelism."""

from __future__ import annotations

from dataclasses import replace

from foretell.dtypes import dtype
from foretell.errors import InputError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profile import Formats, Profile
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

Changes = dict[str, object]
"""Fields of a style and their new values."""

_ATTENTION = {
    "eager": "eager",
    "efficient": "efficient",
    "flash": "flash",
    "flex": "flash",
    "mem-efficient": "efficient",
    "sdpa": "sdpa",
    "te": "te",
}
"""Style by the name a user gives."""
_LOSS = {
    "chunked": "chunked",
    "chunked-head": "chunked",  # projects 256 tokens at a time, without full logits (trl ``_patch_chunked_ce_lm_head``)
    "compiled": "compiled",
    "eager": None,  # the framework's own
    "fused": "fused-linear",
    "fused-linear": "fused-linear",
    "hf": "hf",
    "liger": "fused-linear",
    "linear-chunked": "linear-chunked",
    "mse": "mse",
    "te-fused": "te-fused",
    "vocab-parallel": "vocab-parallel",
}
_CHUNK = 256
"""Tokens of a chunk (trl 1.13 release notes: "256 tokens x vocab" of logits; Apple's cut cross entropy keeps fewer)."""
_LIGER: Changes = {"norm": "fused", "gate": "fused", "rope": "inplace", "inplace": True}
"""Liger's fused loss comes with its other kernels (linkedin/Liger-Kernel ``transformers/monkey_patch.py``, defaults of
``apply_liger_kernel_to_llama``): RMSNorm keeps x and one statistic, SwiGLU gate and up, RoPE turns projections in place."""
_COMPILED: Changes = {
    "norm": "fused",
    "gate": "fused",
    "rope": "fused",
    "act": "fused",
    "sac_last": False,
    "cast_once": True,
    "loss_compiled": True,
}
"""AOTAutograd's min-cut keeps matmul operands: norm outputs, silu*up; norms, rope and silu run again."""


def adapted_style(recipe: TrainingRecipe, par: Parallelism, profile: Profile, formats: Formats) -> Style:
    """The profile's style as this run has it; later groups of changes override earlier ones."""
    style = profile.style
    changes = (
        _formats(recipe, profile, formats)
        | _attention(recipe, style)
        | _loss(recipe, profile)
        | _compiled(recipe, profile)
        | _tuning(recipe, profile)
        | _parallel(recipe, par, profile)
        | _list_of_kept(recipe, par)
    )
    if style.scores == "composite" and changes.get("attention", style.attention) == "eager":
        changes["mask"] = changes.get("residual", style.residual)
    return replace(style, **changes)  # type: ignore[arg-type]


def _formats(recipe: TrainingRecipe, profile: Profile, formats: Formats) -> Changes:
    """Bytes per element of operands and of the residual stream."""
    style = profile.style
    changes: Changes = {"softmax_copy": formats.compute != "fp16"}
    if formats.compute == "fp32":
        changes |= {"compute": 4.0, "residual": 4.0, "autocast": False}
    if formats.param == formats.compute:
        # a base loaded in the compute format: only fp32 adapters still make autocast cast anything
        mixed = recipe.adapter is not None and profile.formats[recipe.precision].param != formats.compute
        changes |= {"autocast": style.autocast and mixed, "residual": 4.0 if formats.compute == "fp32" else 2.0}
    if recipe.quantization is not None and style.quantized_stream:
        wide = float(dtype(recipe.quantization.rest).bytes_per_element)
        changes |= {"residual": wide} if style.autocast else {"residual": wide, "compute": wide}
    return changes


def _attention(recipe: TrainingRecipe, style: Style) -> Changes:
    """The attention that the recipe names."""
    given = recipe.attention
    if given is None:
        return {}
    if given not in _ATTENTION:
        raise InputError("is not a known implementation", field="attention", value=given, allowed=sorted(_ATTENTION))
    found = _ATTENTION[given]
    return {"attention": "te" if style.attention == "te" and found in ("flash", "sdpa") else found}


def _loss(recipe: TrainingRecipe, profile: Profile) -> Changes:
    """The loss that the recipe names, as this framework understands the name."""
    given, style = recipe.loss, profile.style
    if given is None:
        return {}
    if given not in _LOSS:
        raise InputError("is not a known implementation", field="loss", value=given, allowed=sorted(_LOSS))
    found = _LOSS[given] or style.loss
    changes = _LIGER if found == "fused-linear" and style.rope == "composite" else {}  # transformers, patched by Liger
    if given == "chunked-head":
        changes = changes | {"chunked_head": True, "chunk_tokens": _CHUNK}
    return changes | {"loss": dict(profile.losses).get(given, found)}


def _compiled(recipe: TrainingRecipe, profile: Profile) -> Changes:
    """What compilation changes; norms outside compiled layers stay as they are."""
    if not recipe.compile or profile.compiles == "kernels":
        return {}
    return _COMPILED | {"edge_norm": profile.style.norm if profile.compiles == "layers" else ""}


def _tuning(recipe: TrainingRecipe, profile: Profile) -> Changes:
    """What adapters and dropout change."""
    changes: Changes = {}
    if recipe.adapter is not None and profile.adapter_fsdp_units:
        changes["fsdp_units"] = profile.adapter_fsdp_units
    if recipe.fsdp_units is not None:
        changes["fsdp_units"] = recipe.fsdp_units
    if recipe.dropout is not None:
        changes |= {"dropout": recipe.dropout, "attention_dropout": recipe.dropout}
    return changes


def _parallel(recipe: TrainingRecipe, par: Parallelism, profile: Profile) -> Changes:
    """What the parallelism changes."""
    changes: Changes = {
        "sequence_parallel": bool(par.sp) and par.tp > 1,
        "ring": par.cp > 1 and profile.style.attention == "te",
    }
    if profile.name == "torchtitan" and recipe.fp8_recipe == "tensorwise":  # train_configs/llama3_405b.toml, docs/float8.md
        changes["fp8_gather"] = True
    if recipe.grad_accum_fusion is False:
        changes["main_grad_fusion"] = False
    return changes


def _list_of_kept(recipe: TrainingRecipe, par: Parallelism) -> Changes:
    """What selective checkpointing by operator keeps."""
    changes: Changes = {}
    if par.sharding == "simplefsdp" and (not recipe.date or recipe.date >= "2026-04"):
        changes["sac_every"] = 1  # torchtitan graph_trainer: the default memory policy keeps every matmul
    if "nvfp4" in (recipe.compute_dtype, recipe.precision):
        changes["sac_opaque"] = 0.85  # torchao nvfp4 recipe: the leading 85 % of the layers are converted
    return changes
