"""The longest sequence that vLLM starts with: what the model's file allows, unless the user says that it may be more.

Source: vLLM 0.33.0 vllm/config/model.py (_get_and_verify_max_len), envs.py; the same in 0.8.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers.engines._flags import Flags
    from foretell.readers.engines._model import Served

__all__ = ["check_length", "long_allowed"]

_VARIABLE: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_OTHERWISE: Final = ("hf_overrides", "rope_scaling", "rope_theta", "trust_remote_code", "hf_config_path", "config_format")
"""Flags with which the model's own file does not decide."""
_UNSCALED: Final = ("default", "llama3", "longrope", "su", "mrope")
"""Kinds of rotary scaling that max_position_embeddings counts already."""


def long_allowed(document: Document, *prefixes: str) -> bool:
    """Whether the environment lets a sequence be longer than the model's file allows; its variables lie below the prefixes."""
    nodes = [document.at(f"{prefix}{_VARIABLE}") for prefix in prefixes]
    return any(node is not None and node.scalar and str(node.value).strip().casefold() in ("1", "true") for node in nodes)


def check_length(found: Found, tokens: int, flags: Flags, served: Served) -> None:
    """Refuse a length with which vLLM does not start; ConfigError."""
    most = _most(served)
    if most is None or tokens <= most or flags.given(*_OTHERWISE):
        return
    raise found.error(
        f"is more than the {most} positions of {served.name}: vLLM does not start so",
        allowed=f"1 to {most}",
        hint=f"Lower it, scale the positions with --hf-overrides, or set {_VARIABLE}=1 if you know that the model can do it",
    )


def _most(served: Served) -> int | None:
    """Return the longest sequence by the model's file, scaling counted; None where that is not known."""
    arch, longest = served.architecture, served.longest
    if arch is None or longest is None:
        return None
    rope = arch.config.get("rope_scaling") or arch.config.get("rope_parameters")
    own = arch.config.get("model_max_length")
    longest = max(longest, own) if isinstance(own, int) else longest
    if not isinstance(rope, Mapping):
        return longest
    if rope.get("rope_type", rope.get("type", "default")) in _UNSCALED and not any(isinstance(v, Mapping) for v in rope.values()):
        return longest
    factor, before = rope.get("factor"), rope.get("original_max_position_embeddings", longest)
    if not isinstance(factor, int | float) or not isinstance(before, int):
        return None
    return max(longest, int(before * factor))
