"""``quantization_config`` (and ``hf_quant_config.json``): stored bits per element, and what is left out.

Bits count the scales and zero points that lie beside the packed values, as mean bits per quantised element; scales
of one per tensor or per row are left out (below 0.01 bit for rows of 4,096).  Sources: OCP Microscaling Formats
(MX) v1.0, 2023-09 (blocks of 32, 8-bit scale); NVIDIA ModelOpt NVFP4 (blocks of 16, FP8 scale); DeepSeek-V3, arXiv
2412.19437 section 3.3 (128 x 128 blocks, fp32 scale); QLoRA, arXiv 2305.14314 section 3 (NF4: blocks of 64 with an
fp32 scale; doubled: 8-bit scales, an fp32 in 256 of them); AutoAWQ and GPTQModel (16-bit scale and packed zero
point a group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foretell.arch.architecture import Quantized
from foretell.errors import ConfigError

NVFP4 = 4 + 8 / 16
MXFP4 = 4 + 8 / 32
_ALGORITHMS: dict[str, float] = {
    "FP8": 8.0,
    "FP8_PER_CHANNEL_PER_TOKEN": 8.0,
    "FP8_PB_WO": 8 + 32 / 128**2,
    "FP8_PB_REAL": 8 + 32 / 128**2,
    "FP8_BLOCK_SCALES": 8 + 32 / 128**2,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "MXFP4": MXFP4,
    "MXFP8": 8 + 8 / 32,
    "INT8": 8.0,
    "W8A8_SQ_PER_CHANNEL": 8.0,
    "W8A16": 8.0,
    "W4A16": 4 + 16 / 128,
    "INT4_AWQ": 4 + 16 / 128,
    "W4A16_AWQ": 4 + 16 / 128,
    "W4A8_AWQ": 4 + 16 / 128,
}
"""ModelOpt's algorithm names -> stored bits per element (source: NVIDIA TensorRT-Model-Optimizer, 2025)."""


class _Reader:
    """One quantisation object, with errors that name its place."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw, self.where = raw, where

    def error(self, field: str, value: object, allowed: str) -> ConfigError:
        return ConfigError(
            "cannot be used",
            field=f"quantization_config.{field}",
            value=value,
            allowed=allowed,
            where=self.where,
            hint="correct the value",
        )

    def number(self, *keys: str, default: float) -> float:
        for key in keys:
            value = self.raw.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value <= 1_000_000:
                    raise self.error(key, value, "a number")
                return float(value)
        return default

    def names(self, *keys: str) -> tuple[str, ...]:
        for key in keys:
            value = self.raw.get(key)
            if value is not None:
                if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                    raise self.error(key, value, "a list of module names")
                return tuple(value)
        return ()


def _fp8(q: _Reader) -> Quantized:
    block = q.raw.get("weight_block_size")
    bits, how = 8.0, "one scale a tensor"
    if block is not None:
        if not isinstance(block, list | tuple) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
            raise q.error("weight_block_size", block, "two positive integers")
        bits, how = 8 + 32 / (block[0] * block[1]), f"blocks of {block[0]}x{block[1]}"
    groups: tuple[tuple[str, float], ...] = ()
    if str(q.raw.get("expert_dtype", "")).lower() in ("fp4", "mxfp4"):
        groups = (("*.experts", MXFP4),)
    if isinstance(q.raw.get("quantized_layers"), Mapping):
        groups = tuple(_layers(q))
    return Quantized("fp8", bits, q.names("modules_to_not_convert", "ignored_layers"), how, groups)


def _layers(q: _Reader) -> Iterator[tuple[str, float]]:
    """``quantized_layers``: an algorithm for each named module."""
    for name, entry in q.raw["quantized_layers"].items():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        yield name, _algorithm(q, "quantized_layers", algorithm)


def _algorithm(q: _Reader, field: str, name: object) -> float:
    bits = _ALGORITHMS.get(name.upper()) if isinstance(name, str) else None
    if bits is None:
        raise q.error(f"{field}.quant_algo", name, ", ".join(sorted(_ALGORITHMS)))
    return bits


def _modelopt(q: _Reader) -> Quantized | None:
    name = q.raw.get("quant_algo")
    skip = q.names("exclude_modules", "ignore")
    kv = q.raw.get("kv_cache_quant_algo")
    detail = f"{name}" + (f", key/value cache {kv}" if kv else "")
    if isinstance(q.raw.get("quantized_layers"), Mapping):
        return Quantized("modelopt", 0.0, skip, detail, tuple(_layers(q)))
    if name is None and not q.raw.get("config_groups"):
        return None
    if name is None:
        return _compressed(q)
    return Quantized("modelopt", _algorithm(q, "", name), skip, detail)


def _compressed(q: _Reader) -> Quantized:
    """compressed-tensors: one scheme a group of targets; ``Linear`` means all."""
    found: list[tuple[str, float]] = []
    everywhere: float | None = None
    for key, group in _objects(q, "config_groups"):
        weights = group.get("weights")
        if not isinstance(weights, Mapping):
            continue
        inner = _Reader(weights, q.where)
        bits = inner.number("num_bits", default=8)
        style = str(group.get("format") or q.raw.get("format") or "")
        size = inner.number("group_size", default=-1)
        if weights.get("type") == "float" and bits == 4:
            bits = MXFP4 if "mxfp4" in style or size == 32 else NVFP4
        elif weights.get("strategy") == "block" and isinstance(weights.get("block_structure"), list):
            a, b = (weights["block_structure"] + [1, 1])[:2]
            bits += 16 / max(a * b, 1)
        elif size > 0:
            bits += (16 + (0 if weights.get("symmetric", True) else bits)) / size
        targets = group.get("targets", ["Linear"])
        if not isinstance(targets, list):
            raise q.error(f"config_groups.{key}.targets", targets, "a list of module names")
        for target in targets:
            if target == "Linear":
                everywhere = bits
            else:
                found.append((str(target), bits))
    if everywhere is None and not found:
        raise q.error("config_groups", q.raw.get("config_groups"), "a group with weights")
    detail = str(q.raw.get("format", ""))
    return Quantized("compressed-tensors", everywhere or 0.0, q.names("ignore"), detail, tuple(found))


def _objects(q: _Reader, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    value = q.raw.get(key)
    if not isinstance(value, Mapping):
        raise q.error(key, value, "an object")
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield str(name), entry


def _grouped(method: str, zero: bool) -> Callable[[_Reader], Quantized]:
    """AWQ, GPTQ and kin: ``bits``, a 16-bit scale a group, and a packed zero point."""

    def read(q: _Reader) -> Quantized:
        bits = q.number("bits", "w_bit", "nbits", "num_bits", default=4)
        size = q.number("group_size", "q_group_size", default=128)
        has_zero = zero or bool(q.raw.get("zero_point", True))
        extra = (16 + (bits if has_zero else 0)) / size if size > 0 else 0.0
        skip = q.names("modules_to_not_convert", "modules_in_block_to_quantize_exclude")
        return Quantized(method, bits + extra, skip, f"{bits:g} bits, groups of {size:g}")

    return read


def _bitsandbytes(q: _Reader) -> Quantized | None:
    raw, skip = q.raw, q.names("llm_int8_skip_modules")
    if raw.get("load_in_4bit") or raw.get("_load_in_4bit"):
        double = bool(raw.get("bnb_4bit_use_double_quant"))
        bits = 4 + (8 / 64 + 32 / (64 * 256) if double else 32 / 64)
        return Quantized("bitsandbytes", bits, skip, f"{raw.get('bnb_4bit_quant_type', 'fp4')}{', doubled' * double}")
    if raw.get("load_in_8bit") or raw.get("_load_in_8bit"):
        return Quantized("bitsandbytes", 8.0, skip, "int8, one scale a row")
    return None


def _mxfp4(q: _Reader) -> Quantized:
    return Quantized("mxfp4", MXFP4, q.names("modules_to_not_convert"), "blocks of 32, 8-bit scale")


def _fixed(method: str, bits: float) -> Callable[[_Reader], Quantized]:
    return lambda q: Quantized(method, bits, q.names("modules_to_not_convert"), "")


def _quanto(q: _Reader) -> Quantized:
    bits = {"float8": 8.0, "int8": 8.0, "int4": 4 + 32 / 128, "int2": 2 + 32 / 128}.get(str(q.raw.get("weights", "int8")))
    if bits is None:
        raise q.error("weights", q.raw.get("weights"), "float8, int8, int4, int2")
    return Quantized("quanto", bits, q.names("modules_to_not_convert"), str(q.raw.get("weights", "int8")))


METHODS: dict[str, Callable[[_Reader], Quantized | None]] = {
    "auto-round": _grouped("auto-round", zero=True),
    "awq": _grouped("awq", zero=False),
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "eetq": _fixed("eetq", 8.0),
    "fbgemm_fp8": _fixed("fbgemm_fp8", 8.0),
    "fp8": _fp8,
    "gptq": _grouped("gptq", zero=True),
    "hqq": _grouped("hqq", zero=True),
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
    "quanto": _quanto,
}


def _find(raw: Mapping[str, Any]) -> object:
    """``quantization_config`` of the file, else of its text part."""
    places = [raw, *(raw.get(key) for key in ("text_config", "llm_config", "language_config"))]
    found = (p.get("quantization_config") for p in places if isinstance(p, Mapping))
    return next((q for q in found if q is not None), None)


def _method(found: Mapping[str, Any]) -> object:
    """``quant_method``, or what the other keys say it is."""
    method = found.get("quant_method")
    if method is None and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        return "bitsandbytes"
    return "compressed-tensors" if method is None and "config_groups" in found else method


def read_quantization(
    raw: Mapping[str, Any], *, where: str = "config", beside: Mapping[str, Any] | None = None
) -> Quantized | None:
    """How the checkpoint of a ``config.json`` is stored; ``beside`` is the content of ``hf_quant_config.json``.

    Raises :class:`ConfigError` for an unknown method, listing the known ones.
    """
    found = _find(raw)
    if beside is not None and isinstance(beside.get("quantization"), Mapping):
        inner = {k: v for k, v in beside["quantization"].items() if v is not None}
        if found is None:
            return _modelopt(_Reader(inner, where))
        if isinstance(found, Mapping):
            found = {**inner, **found}
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError("is not an object", field="quantization_config", value=found, where=where, hint="give an object")
    if "expert_dtype" in raw and "expert_dtype" not in found:
        found = {**found, "expert_dtype": raw["expert_dtype"]}
    method = _method(found)
    read = METHODS.get(str(method).lower())
    if read is None:
        raise ConfigError(
            "is not a quantisation method that is known",
            field="quantization_config.quant_method",
            value=method,
            allowed=sorted(METHODS),
            where=where,
            hint="correct the name, or remove quantization_config",
        )
    return read(_Reader(found, where))
