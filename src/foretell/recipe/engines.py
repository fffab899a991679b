"""What a serving engine does with the flags that are left open: its version is found, and each flag gets the engine's default.

The defaults follow from the device (its memory, its name), the layout and the other flags, by rules that changed with the
versions (:mod:`foretell.recipe.engine_versions`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from foretell.arch.architecture import Architecture
from foretell.errors import InputError, nearest
from foretell.machine.hardware import HardwareNode
from foretell.recipe.engine_limits import RULES, Asked, graph_sizes, static_share
from foretell.recipe.engine_profile import Change, Engine
from foretell.recipe.engine_versions import CHANGES, CHECKED, TENSORRT, engine_at
from foretell.recipe.serving import ServingRecipe
from foretell.validation import choice, number, positive_int

__all__ = ["ENGINES", "Engine", "Resolved", "engine_of", "resolve_serving"]

ENGINES: Final = tuple(CHANGES)
"""Names of the engines that are known."""

_ALIASES: Final = {
    "trt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "tensorrtllm": "tensorrt-llm",
    "nim": "tensorrt-llm",
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "turbomind": "lmdeploy",
    "text-generation-inference": "tgi",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_VERSION: Final = re.compile(r"(?<![\w.])v?(\d{1,2})\.(\d{1,3})(?:\.(\d{1,3}|x))?(?![\d])")
_LONGEST: Final = 131072
"""Tokens; longest sequence that is assumed where neither the flags nor the model say one."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment with every flag decided."""

    recipe: ServingRecipe
    """Nothing that the engine decides is None (but speculation, which may be off)."""
    engine: Engine
    graph_sizes: tuple[int, ...] = ()
    """Batches of which a CUDA graph is captured, in ascending order."""
    assumed: tuple[str, ...] = ()
    """Flags that the engine decided, as ``flag=value``."""
    notes: tuple[str, ...] = ()
    certain: bool = True
    """False where the engine or its version is not known: intervals are wider."""


# -- version --------------------------------------------------------------------------------------------------


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of a version of the tables: "0.11.0" -> (0, 11, 0), "b2400" -> (2400,)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _dated(text: str) -> str | None:
    """Return the latest month that a text names: "(Feb 2026)", "2026-06", "2023"."""
    low = text.lower()
    found = re.search(r"\b(20[12]\d)-(0[1-9]|1[0-2])\b", low)
    if found:
        return f"{found[1]}-{found[2]}"
    found = re.search(rf"\b({'|'.join(_MONTHS)})[a-z]*\.?\s+(20[12]\d)\b", low)
    if found:
        return f"{found[2]}-{_MONTHS.index(found[1]) + 1:02d}"
    found = re.search(r"(?<![\d.])(20[12]\d)(?![\d.])", low)
    return f"{found[1]}-12" if found else None


def _stated(name: str, text: str, table: tuple[Change, ...]) -> tuple[int, ...] | None:
    """Return the version that a text states, as numbers; None where it states none."""
    pulls = [_numbers(c.since) for c in table if c.pull is not None and re.search(rf"\bPR\s*#?{c.pull}\b", text, re.IGNORECASE)]
    if pulls:
        return max(pulls)
    if name == "llama.cpp":
        build = re.search(r"\bb(\d{3,5})\b", text)
        return (int(build[1]),) if build else None
    if name == "tensorrt-llm":
        below = re.search(r"TensorRT\s+(\d+)\.(\d+)", text)
        if below:
            release = (int(below[1]), int(below[2]))
            return next((_numbers(v) for r, v in reversed(TENSORRT) if r <= release), _numbers(TENSORRT[0][1]))
        if "pytorch" in text.lower():
            return max(_found(text) or (1, 0, 0), (1, 0, 0))
        if "nim" in text.lower():
            return None
    return _found(text)


def _found(text: str) -> tuple[int, ...] | None:
    match = _VERSION.search(re.sub(r"(?i)cuda\s+[\d.]+", "", text))
    if match is None:
        return None
    patch = 999 if match[3] == "x" else int(match[3] or 0)  # "0.6.x": people run the last patch of a series
    return int(match[1]), int(match[2]), patch


def engine_of(name: str, version: str | None = None) -> tuple[Engine, tuple[str, ...], bool]:
    """Return an engine at a version, notes on how it was found, and whether engine and version are known.

    A version is read from any text that holds one: a release, a commit build after it, a month, a pull request.  Raises
    InputError for an unknown engine.

    >>> engine, notes, certain = engine_of("vllm", "0.19.1rc1.dev339+gedc364896")
    >>> engine.version, certain
    ('0.17.0', True)
    >>> engine_of("tensorrt-llm", "TensorRT 10.2.0, CUDA 12.4")[0].version
    '0.10.0'
    >>> engine_of("vllm", "nightly (Feb 2026)")[0].version
    '0.12.0'
    """
    if version is not None and not isinstance(version, str):
        raise InputError("must be text, as the engine prints it", field="version", value=version)
    key = name.strip().lower().replace("_", "-") if isinstance(name, str) else ""
    key = _ALIASES.get(key, key)
    if key not in CHANGES:
        near = nearest(key, [*CHANGES, *_ALIASES], most=1)
        hint = f"Did you mean {near[0]}?" if near else None
        raise InputError("is not an engine that is known", field="engine", value=name, allowed=ENGINES, hint=hint)
    return _found_engine(key, version)


@functools.lru_cache(maxsize=256)
def _found_engine(key: str, version: str | None) -> tuple[Engine, tuple[str, ...], bool]:
    """:func:`engine_of` for an engine's own name."""
    if key == "other":
        return engine_at(key, -1), ("the engine is not known: taken to schedule and reserve as vLLM does",), False
    table = CHANGES[key]
    newest = CHECKED[key]
    if not version:
        return engine_at(key, -1), (f"{key}: no version stated, taken as the newest known, {newest}",), True
    numbers = _stated(key, version, table)
    month = None if numbers else _dated(version)
    if numbers is None and month is None:
        return engine_at(key, -1), (f"{key}: {version!r} names no version, taken as {newest}",), False
    known = [i for i, c in enumerate(table) if (_numbers(c.since) <= numbers if numbers else c.released <= str(month))]
    at = known[-1] if known else 0
    notes = []
    if not known:
        notes.append(f"{key}: {version!r} is older than the oldest known, {table[0].since}, which stands for it")
    above = bool(numbers) and _series(numbers) > _series(_numbers(newest)) and key != "llama.cpp"
    if above:
        notes.append(f"{key}: {version!r} is newer than the newest known, {newest}, which stands for it")
    return engine_at(key, at), tuple(notes), bool(known) and not above


def _series(numbers: tuple[int, ...] | None) -> tuple[int, ...]:
    return (numbers or ())[:2]


# -- flags ----------------------------------------------------------------------------------------------------


def _filled(recipe: ServingRecipe, found: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Flags that are left open, with their defaults."""
    for flag, value in found.items():
        if getattr(recipe, flag) is None:
            yield flag, value


def resolve_serving(
    recipe: ServingRecipe, hardware: HardwareNode, arch: Architecture, *, offline: bool = False, longest: int | None = None
) -> Resolved:
    """Return the deployment with each open flag as its engine sets it, and what was assumed.

    ``offline``: the engine is called from a program (vLLM's ``LLM``), not as a server.  ``longest``: tokens of the longest
    sequence of the load, for engines that reserve it.  Raises InputError for an unknown engine.
    """
    engine, notes, certain = engine_of(recipe.engine, recipe.version)
    _checked(recipe)
    said = list(notes)
    length = recipe.max_model_len or _model_length(arch, longest, said)
    chunked = recipe.chunked_prefill
    if chunked is None:
        chunked = engine.chunked_prefill or (engine.long_chunked and length > 32768 and recipe.speculation is None)
    seqs, tokens = RULES[engine.limits](Asked(engine, hardware, length, chunked, offline))
    tokens = recipe.max_num_batched_tokens or tokens
    seqs = recipe.max_num_seqs or (min(seqs, tokens) if engine.name == "vllm" else seqs)
    latent = isinstance((arch.text or arch).config.get("kv_lora_rank"), int) and engine.latent
    share = recipe.memory_share
    if share is None and engine.share == "static":
        share = static_share(engine, hardware, recipe, tokens)
    found = {
        "kv": recipe.kv or "bf16",
        "activations": recipe.activations or _products(recipe.weights),
        "max_model_len": length,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "memory_share": share if share is not None else engine.memory_share,
        "block_size": (engine.latent_block if latent else None) or engine.block_size,
        "chunked_prefill": chunked,
    }
    filled = dict(_filled(recipe, found))
    full = replace(recipe, engine=engine.name, **filled)  # type: ignore[arg-type]  # each flag's own type, by its name
    assumed = tuple(f"{flag}={value}" for flag, value in filled.items() if value is not None)
    sizes = () if recipe.enforce_eager or not engine.graphs else graph_sizes(engine, hardware, full)
    return Resolved(full, engine, sizes, assumed, tuple(said), certain)


_COUNTS: Final = ("tp", "pp", "ep", "dp", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")


def _checked(recipe: ServingRecipe) -> None:
    """Raise InputError for a flag that no engine takes."""
    for flag in _COUNTS:
        value = getattr(recipe, flag)
        if value is not None:
            positive_int(value, flag)
    if recipe.memory_share is not None:
        number(recipe.memory_share, "memory_share", minimum=1e-6, maximum=1.0)
    choice(recipe.dp_kind, "dp_kind", ("replica", "attention"))


def _model_length(arch: Architecture, longest: int | None, notes: list[str]) -> int:
    """Longest sequence that the engine takes where no flag says it: the model's own."""
    known = (arch.text or arch).max_positions or arch.max_positions
    if known:
        return max(known, longest or 0)
    notes.append(f"neither the flags nor the model say how long a sequence may be: {longest or _LONGEST} tokens")
    return longest or _LONGEST


def _products(weights: str) -> str:
    """Format that products run in: the weights' own where tensor cores multiply it with itself, else 16 bits."""
    return {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8", "fp16": "fp16"}.get(weights, "bf16")
