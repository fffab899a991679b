"""From the text of a ``config.json`` to an :class:`Architecture`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config
from foretell.arch.readers._fallback import fallback
from foretell.arch.readers._quantization import read_quantization
from foretell.arch.readers._registry import Reader, find_reader
from foretell.arch.readers._unread import activation_notes, reading_notes
from foretell.arch.stored import BYTES
from foretell.errors import ConfigError, InputError

MAX_PARAMETERS = 10**15
"""A thousand times the largest model known; more comes of a typing error."""
_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What a reader raises over values that are fine one by one and do not go together."""


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
    if not isinstance(raw.get("model_type", ""), str | None):
        raise cfg.error("model_type", raw["model_type"], "a text", "correct the value")
    if not cfg.model_type and isinstance(raw.get("_class_name"), str):  # a diffusers file
        cfg.model_type = raw["_class_name"]
    read = find_reader(cfg.model_type)
    notes: tuple[str, ...] = ()
    if read is None:
        read, cfg, notes = fallback(cfg)
    arch = _architecture(read, cfg)
    dtype = raw.get("torch_dtype", raw.get("dtype"))
    nested = raw.get("text_config")
    if dtype is None and isinstance(nested, Mapping):
        dtype = nested.get("torch_dtype", nested.get("dtype"))
    dtype = dtype.removeprefix("torch.") if isinstance(dtype, str) else None
    if dtype not in (None, "auto", *BYTES):
        notes += (f"torch_dtype {dtype!r} is no known number format: the checkpoint's bytes are unknown",)
    return replace(
        arch,
        name=name or arch.name,
        config=dict(raw),
        dtype=dtype,
        quantized=read_quantization(raw, where=where, beside=beside),
        notes=arch.notes + notes + reading_notes(cfg) + activation_notes(arch),
    )


def _architecture(read: Reader, cfg: Config) -> Architecture:
    """Run a reader; values that it cannot work with are an error of the file, with what went wrong."""
    hint = "correct the values; if transformers takes the file, please report it"
    try:
        arch = read(cfg)
        count = arch.parameters
    except ConfigError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        what = f"{type(error).__name__}: {str(error)[:80]}"
        problem = f"cannot be read as {cfg.model_type!r}: its values do not go together ({what})"
        raise ConfigError(problem, where=cfg.where, hint=hint) from error
    if not 0 < count <= MAX_PARAMETERS:
        problem = f"describes a model of {count:.3g} parameters, where 1 to {MAX_PARAMETERS:.0e} are possible"
        raise ConfigError(problem, where=cfg.where, hint=hint)
    for op in (op for block, _ in arch.blocks() for op in block.ops):
        for weight in op.weights():
            if 0 in weight.shape:
                problem = f"gives {op.name} a {weight.name} of the shape {weight.shape}, which holds nothing"
                raise ConfigError(problem, where=cfg.where, hint=hint)
    return arch
