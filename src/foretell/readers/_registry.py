"""The families, and which of them to ask first: a module is imported once it is asked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from foretell.readers._document import Document
    from foretell.readers._family import Family
    from foretell.readers._launch import Launcher

__all__ = ["FAMILIES", "families", "owner_of", "starter_of"]

_MODULES: Final = {
    "axolotl": "axolotl.reader",
    "llamafactory": "llamafactory.reader",
    "torchtune": "torchtune.reader",
    "torchtitan": "torchtitan.reader",
    "megatron": "megatron.reader",
    "megatron_bridge": "bridge.reader",
    "nanotron": "nanotron.reader",
    "llm_foundry": "foundry.reader",
    "olmo": "olmo.reader",
    "maxtext": "maxtext.reader",
    "vllm": "engines.vllm",
    "vllm_recipes": "engines.vllm_recipes",
    "sglang": "engines.sglang",
    "trtllm": "engines.trtllm",
    "trl": "hf.trl",
    "trainer": "hf.trainer",
    "accelerate": "hf.accelerate",
    "deepspeed": "hf.deepspeed",
}
"""Family -> module of this package that holds its ``FAMILY``."""
FAMILIES: Final = tuple(_MODULES)

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "base_model": ("axolotl",),
    "model_name_or_path": ("llamafactory", "trl", "trainer"),
    "MODEL_ARGS": ("megatron", "megatron_bridge"),
    "distributed_type": ("accelerate",),
    "zero_optimization": ("deepspeed",),
    "checkpointer": ("torchtune",),
    "variants": ("vllm_recipes",),
    "train_loader": ("llm_foundry",),
    "tokens": ("nanotron",),
    "fsdp": ("olmo",),
    "base_config": ("maxtext",),
    "base_emb_dim": ("maxtext",),
    "training": ("torchtitan",),
}
"""Key of the top level -> families that have files with it: they are asked first, the others where none of them claims."""
_PROGRAMS: Final = {
    "axolotl": "axolotl",
    "llamafactory-cli": "llamafactory",
    "tune": "torchtune",
    "vllm": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang": "sglang",
    "sglang.launch_server": "sglang",
    "trtllm-serve": "trtllm",
    "trl": "trl",
    "pretrain_gpt.py": "megatron",
}
"""Program -> the family that is asked first."""
_LEAST: Final = 0.3
"""Claim below which a document is nobody's."""


def families(names: Sequence[str]) -> Iterator[Family]:
    """Yield families by their names; their modules are imported here."""
    for name in names:
        made: Family = importlib.import_module(f"foretell.readers.{_MODULES[name]}").FAMILY
        yield made


def starter_of(launch: Launcher, names: Sequence[str]) -> Family | None:
    """Return the family whose run a command starts."""
    first = _PROGRAMS.get(launch.program, _PROGRAMS.get(launch.name))
    order = sorted(names, key=lambda name: name != first)
    return next((one for one in families(order) if one.starts is not None and one.starts(launch)), None)


def owner_of(document: Document, names: Sequence[str]) -> tuple[float, Family]:
    """Return how surely a document is whose; ConfigError where it is nobody's."""
    keys = document.keys()
    likely = [name for key in keys for name in _KEYS.get(key, ()) if name in names]
    for asked in (dict.fromkeys(likely), names):
        claims = [(one.claims(document), one) for one in families(tuple(asked))]
        score, owner = max(claims, key=lambda pair: pair[0], default=(0.0, None))
        if owner is not None and (score >= _LEAST or len(names) == 1):
            return score, owner
    shown = ", ".join(keys[:6]) or "none"
    known = ", ".join(one.title for one in families(FAMILIES))
    hint = f"Its keys: {shown}. Known are files of: {known}. Say which with --family"
    raise ConfigError("is of no framework that is known here", where=document.path, hint=hint)
