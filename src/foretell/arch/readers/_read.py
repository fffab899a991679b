"""From the text of a ``config.json`` to an :class:`Architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config
from foretell.arch.readers._fallback import fallback
from foretell.arch.readers._quantization import read_quantization
from foretell.arch.readers._registry import find_reader
from foretell.errors import ConfigError


def read_config(
    raw: Mapping[str, Any], *, where: str = "config", name: str = "", beside: Mapping[str, Any] | None = None
) -> Architecture:
    """Read the content of a ``config.json``; ``beside`` is that of an ``hf_quant_config.json`` in the same folder.

    Raises :class:`ConfigError` for a wrong shape, a missing key, an unreadable value or an unknown model type
    that lacks the standard decoder keys.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(
            "is not a JSON object", field="config", value=type(raw).__name__, where=where, hint="give a config.json"
        )
    cfg = Config(raw, where=where)
    if not cfg.model_type and isinstance(raw.get("_class_name"), str):  # a diffusers file
        cfg.model_type = raw["_class_name"]
    read = find_reader(cfg.model_type)
    notes: tuple[str, ...] = ()
    if read is None:
        read, cfg, notes = fallback(cfg)
    arch = read(cfg)
    dtype = raw.get("torch_dtype", raw.get("dtype"))
    nested = raw.get("text_config")
    if dtype is None and isinstance(nested, Mapping):
        dtype = nested.get("torch_dtype", nested.get("dtype"))
    return replace(
        arch,
        name=name or arch.name,
        config=dict(raw),
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        quantized=read_quantization(raw, where=where, beside=beside),
        notes=arch.notes + notes,
    )
