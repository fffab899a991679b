"""The named framework profiles: where they are looked up.

Each family has a module; a statement in it cites where the framework does so.
"""

from __future__ import annotations

from foretell.catalog import loader
from foretell.errors import CatalogError
from foretell.recipe import profiles_megatron as megatron
from foretell.recipe import profiles_native as native
from foretell.recipe import profiles_transformers as transformers
from foretell.recipe.formats import MIXED
from foretell.recipe.profile import Profile
from foretell.recipe.style import Style

_GENERIC = Profile(
    name="generic",
    title="reference accounting: 2 + 2 + 12 bytes a parameter, fused operators",
    sources=("arXiv 1910.02054 section 3", "arXiv 2205.05198"),
    formats=MIXED,
    style=Style(norm="fused", gate="fused", rope="fused", main_grad_fusion=True),
    pipeline=True,
    tensor=True,
    context=True,
    expert=True,
    gradients="buffer",
    ddp_bucket=False,
    optimizer_impl="fused",
)
_ALL = (
    _GENERIC,
    transformers.HF_TRAINER,
    transformers.PEFT,
    transformers.FSDP2,
    native.TORCHTITAN,
    transformers.FSDP1,
    transformers.FSDP_QLORA,
    transformers.ZERO,
    megatron.DEEPSPEED_PIPELINE,
    megatron.CORE,
    megatron.BRIDGE,
    native.TORCHTUNE,
    native.THUNDER,
    native.LITGPT,
    native.LLM_FOUNDRY,
    native.TORCHAO,
    native.MMSEG,
    megatron.NANOTRON,
)
PROFILES: dict[str, Profile] = {p.name: p for p in _ALL}
_BY_NAME = {key: p for p in _ALL for key in (p.name, *p.aliases)}


def profile(name: str, depth: int = 0) -> Profile:
    """The profile of that name or alias; ``depth`` counts the bases of a user's own profile."""
    key = name.strip().lower() if isinstance(name, str) else ""
    if loader.has_own("framework"):
        from foretell.recipe.own import own_profile  # noqa: PLC0415  # only who adds entries pays for reading them

        own = own_profile(key, depth)
        if own is not None:
            return own
    if key not in _BY_NAME:
        raise CatalogError.unknown("framework", str(name), PROFILES)
    return _BY_NAME[key]
