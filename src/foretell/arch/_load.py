"""From a reference to a workload: a catalog name, a ``config.json``, its folder, or its content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.arch.architecture import Architecture
from foretell.arch.readers import read_config
from foretell.arch.workload import Workload, wrap
from foretell.catalog.decode import unique
from foretell.catalog.loader import model_entry
from foretell.errors import CatalogError, ConfigError, InputError

__all__ = ["MAX_CONFIG_BYTES", "config_of", "load_model"]

MAX_CONFIG_BYTES: Final = 16 * 2**20
"""A larger file is no model's configuration (the largest known has 200 KiB)."""
_KEPT: Final = 256

# fmt: off
_QUANTIZATIONS: Final = frozenset((
    "awq", "auto-round", "autoround", "aqlm", "bitnet", "bitsandbytes", "compressed-tensors",
    "compressed_tensors", "eetq", "fbgemm_fp8", "fp8", "fp_quant", "gptq", "higgs", "hqq",
    "modelopt", "mxfp4", "mxfp8", "nvfp4", "quanto", "quark", "spqr", "torchao", "vptq",
))
# fmt: on
"""``quant_method`` values of transformers 5.24.0 (``quantizers/auto.py``), ModelOpt's and Quark's."""

_cache: OrderedDict[str, Workload] = OrderedDict()


def load_model(ref: str | os.PathLike[str] | Mapping[str, Any] | Workload | Architecture) -> Workload:
    """Return the model that `ref` names.

    `ref` is a catalog name ("llama-3-8b"), the path of a ``config.json`` or of its folder, or the
    content of a ``config.json`` as a mapping.  Equal content gives the same object again.
    """
    if isinstance(ref, Workload):
        return ref
    if isinstance(ref, Architecture):
        return wrap(ref)
    if isinstance(ref, Mapping):
        return _make(ref, where="config", name=_name_of(ref))
    if isinstance(ref, os.PathLike):
        return _from_path(Path(ref))
    if not isinstance(ref, str) or not ref.strip():
        raise InputError("must be a name, a path or the content of a config.json", field="model", value=ref)
    return _from_path(Path(ref)) if _looks_like_path(ref) else _from_name(ref)


def _from_name(ref: str) -> Workload:
    try:
        entry = model_entry(ref)
    except CatalogError:
        if os.path.isdir(ref):  # a folder named like a model, in the working directory  # noqa: PTH112
            return _from_path(Path(ref))
        raise
    return _from_entry(entry, ref)


def config_of(ref: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Return the content of the ``config.json`` that `ref` (a catalog name or a path) names, and where it stood."""
    path = Path(ref) if isinstance(ref, os.PathLike) or _looks_like_path(ref) else None
    if path is None:
        try:
            raw, where = model_entry(ref), f"model {ref}"
        except CatalogError:
            if not os.path.isdir(ref):  # noqa: PTH112
                raise
            path = Path(ref)
    if path is not None:
        file = path.expanduser()
        file = file / "config.json" if file.is_dir() else file
        raw, where = _read_json(file), str(file)
    inner = raw.get("config")
    return dict(inner if isinstance(inner, Mapping) and "model_type" not in raw else raw), where


def _looks_like_path(ref: str) -> bool:
    """Say whether it is a file's name, or text with a separator that leads somewhere."""
    if ref.startswith((".", "~", "/", os.sep)) or ref.casefold().endswith(".json"):
        return True
    return ("/" in ref or os.sep in ref) and os.path.exists(ref)  # noqa: PTH110  # "\0" gives False here


def _from_entry(entry: Mapping[str, Any], ref: str) -> Workload:
    identity = str(entry.get("id", ref))
    where = f"model {identity}"
    config = entry.get("config")
    if not isinstance(config, Mapping):
        raise ConfigError("must be the content of a config.json", field="config", value=config, where=where)
    name = str(entry.get("name") or identity)
    stated = entry.get("published_params")
    return _make(config, where=where, name=name, entry=entry, stated=stated if isinstance(stated, int) else None)


def _from_path(path: Path) -> Workload:
    try:
        path = path.expanduser()
        folder = path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # NUL, no home, too long a name
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(problem, where=str(path)) from error
    file = path / "config.json" if folder else path
    raw = _read_json(file)
    beside = file.parent / "hf_quant_config.json"
    if "quantization_config" not in raw and file.name != beside.name and beside.is_file():
        content = _read_json(beside)
        inner = content.get("quantization", content)
        if not isinstance(inner, Mapping):
            raise ConfigError("must be an object", field="quantization", value=inner, where=str(beside))
        raw = {**raw, "quantization_config": {"quant_method": "modelopt", **inner}}
    if isinstance(raw.get("config"), Mapping) and "model_type" not in raw:
        return _from_entry(raw, file.stem)  # a file of the catalog's own form
    name = _name_of(raw) or (file.parent.name if file.name == "config.json" else "")
    name = name or file.stem.removesuffix("_config")
    return _make(raw, where=str(file), name=name)


def _name_of(raw: Mapping[str, Any]) -> str:
    name = raw.get("_name_or_path")
    return Path(name).name if isinstance(name, str) and name and "\0" not in name else ""


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file of at most MAX_CONFIG_BYTES holds."""
    where = str(file)
    try:
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, "not a regular file")  # a pipe would wait for ever  # noqa: TRY301
        with file.open("rb") as stream:
            raw = stream.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(problem, where=where) from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise ConfigError(f"is larger than {MAX_CONFIG_BYTES} bytes, which no config.json is", where=where)
    try:
        data = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error.msg} (column {error.colno})"
        raise ConfigError(problem, where=f"{where}:{error.lineno}") from error
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=where) from error
    except ValueError as error:  # not UTF-8, or a number with more digits than Python converts
        raise ConfigError(f"is not valid JSON: {str(error)[:120]}", where=where) from error
    if not isinstance(data, dict):
        raise ConfigError(f"must hold an object, not {type(data).__name__}", where=where)
    return data


def _make(
    raw: Mapping[str, Any],
    *,
    where: str,
    name: str,
    entry: Mapping[str, Any] | None = None,
    stated: int | None = None,
) -> Workload:
    """Read a configuration once; the fold's cache depends on getting the same object again."""
    try:
        text = json.dumps([where if entry is None else entry, name, raw], sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"is not the content of a config.json: {error}", where=where) from error
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    found = _cache.get(key)
    if found is not None:
        _cache.move_to_end(key)
        return found
    _check_quantization(raw, where)
    architecture = read_config(raw, where=where, name=name)
    identity = "" if entry is None else str(entry.get("id", ""))
    sources = () if entry is None else (entry.get("source"), entry.get("date"))
    made = wrap(architecture, name=name, id=identity, stated=stated, sources=sources)
    _cache[key] = made
    while len(_cache) > _KEPT:
        _cache.popitem(last=False)
    return made


def _check_quantization(raw: Mapping[str, Any], where: str) -> None:
    """Refuse a quantisation that nobody knows: its bytes could only be guessed."""
    quantization = raw.get("quantization_config")
    if quantization is None:
        return
    if not isinstance(quantization, Mapping):
        raise ConfigError("must be an object", field="quantization_config", value=quantization, where=where)
    method = quantization.get("quant_method")
    if method is None and {"load_in_4bit", "load_in_8bit"} & set(quantization):
        return  # written before transformers named the method
    if not isinstance(method, str) or method.casefold() not in _QUANTIZATIONS:
        raise ConfigError(
            "is not a known quantisation",
            field="quantization_config.quant_method",
            value=method,
            allowed=sorted(_QUANTIZATIONS),
            where=where,
        )
