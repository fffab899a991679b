"""From the text of a ``config.json`` to an :class:`Architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config
from foretell.arch.readers._registry import find_reader, known_model_types
from foretell.errors import ConfigError

_DECODER_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def read_config(raw: Mapping[str, Any], *, where: str = "config", name: str = "") -> Architecture:
    """Read the content of a ``config.json``.

    Raises :class:`ConfigError` for a wrong shape, a missing key, an unreadable value or an unknown model type
    that lacks the standard decoder keys.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(
            "is not a JSON object", field="config", value=type(raw).__name__, where=where, hint="give a config.json"
        )
    cfg = Config(raw, where=where)
    read = find_reader(cfg.model_type)
    notes: tuple[str, ...] = ()
    if read is None:
        read, notes = _fallback(cfg)
    arch = read(cfg)
    dtype = raw.get("torch_dtype", raw.get("dtype"))
    return replace(
        arch,
        name=name or arch.name,
        config=dict(raw),
        dtype=dtype if isinstance(dtype, str) else None,
        notes=arch.notes + notes,
    )


def _fallback(cfg: Config) -> tuple[Any, tuple[str, ...]]:
    """An unknown model type with the standard decoder keys is read as a Llama-like decoder, and says so."""
    missing = [key for key in _DECODER_KEYS if not cfg.has(key)]
    if missing:
        raise ConfigError(
            "is not a model type that can be read",
            field="model_type",
            value=cfg.model_type or None,
            allowed=f"a known model type, or a config with {', '.join(_DECODER_KEYS)} (missing: {', '.join(missing)})",
            where=cfg.where,
            hint=f"{len(known_model_types())} model types are known: `foretell catalog list model-types`",
        )
    read = find_reader("llama")
    note = f"model_type {cfg.model_type!r} is unknown: read as a Llama-like decoder from its standard keys"
    return read, (note,)
