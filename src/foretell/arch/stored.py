"""Bytes of a model's checkpoint: which matrices are quantised, layer by layer, and how wide the rest is.

Module names of a checkpoint are matched against where an operator would stand in the common layouts
(``model.layers.3.self_attn.q_proj``, ``backbone.layers.3.mixer.in_proj`` ...): names, globs and ``re:`` patterns.
Routers, convolutions, norms, embeddings, the output head and the towers of a multimodal model are never quantised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from foretell.arch.operators import Experts, Linear, Operator

if TYPE_CHECKING:
    from foretell.arch.architecture import Architecture, Block

BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "float": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+|\*)(\*?)(?:\.(.*))?$")
_MIXERS = ("self_attn", "attn", "linear_attn", "mixer", "mamba", "attention")
_FEEDS = ("mlp", "ffn", "mixer", "feed_forward", "block_sparse_moe")


@dataclass(frozen=True)
class _Rule:
    """One pattern: ``bits`` per element of what it names (None = left as it is)."""

    pattern: str
    bits: float | None

    def layer(self) -> tuple[str, bool, str] | None:
        """(number or ``*``, whether a star follows the digits, rest) of a pattern that names layers."""
        if self.pattern.startswith("re:"):
            return None
        m = _LAYER.search(self.pattern)
        return (m[1], bool(m[2]), m[3] or "") if m else None


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _covers(pattern: str, path: str) -> bool:
    """Whether ``pattern`` names ``path``, a module above it, or the end of either."""
    if pattern.startswith("re:"):
        compiled = _regex(pattern[3:])
        return compiled is not None and compiled.match(path) is not None
    return any(fnmatchcase(path, form) for form in (pattern, f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*"))


def _places(op: Operator, after_mixer: bool) -> tuple[str, ...]:
    """Where an operator stands inside its layer, in the layouts of common checkpoints."""
    if isinstance(op, Experts):
        return tuple(f"{feed}.experts" for feed in _FEEDS)
    if op.name.startswith("shared_"):
        rest = op.name.removeprefix("shared_")
        return tuple(f"{feed}.{shared}.{rest}" for feed in _FEEDS for shared in ("shared_experts", "shared_expert"))
    return tuple(f"{parent}.{op.name}" for parent in (_FEEDS if after_mixer else _MIXERS))


def _bits_of(places: tuple[str, ...], local: Iterable[_Rule], everywhere: Iterable[_Rule], default: float | None) -> float | None:
    """Bits of a module: the first rule that names it, else ``default``."""
    for rule in local:
        rest = (rule.layer() or ("", False, ""))[2]
        if not rest or any(_covers(rest, place) for place in places):
            return rule.bits
    for rule in everywhere:
        if any(_covers(rule.pattern, f"model.layers.0.{place}") for place in places):
            return rule.bits
    return default


def _matrix_bits(
    block: Block, local: tuple[_Rule, ...], everywhere: tuple[_Rule, ...], default: float | None
) -> dict[str, float | None]:
    """Bits per element of the matrices of one layer's operators, by name; None where they are left as they are."""
    found: dict[str, float | None] = {}
    after = False
    for op in block.ops:
        after = after or op.name in ("norm2", "add1")
        if isinstance(op, Linear | Experts):
            found[op.name] = _bits_of(_places(op, after), local, everywhere, default)
    return found


def _bits_in_block(block: Block, own: dict[str, float | None], rest: float) -> float:
    """Bits of one layer's weights."""
    total = 0.0
    for op in block.ops:
        if op.name in block.borrowed or block.shared:
            continue
        wide = own.get(op.name)
        for w in op.weights():
            bits = wide if wide is not None and w.role in ("matrix", "expert") else rest * 8
            total += w.elements * bits
    return total


def _trunk(arch: Architecture) -> Iterator[tuple[int, Block]]:
    for i, which in enumerate(arch.main.pattern):
        yield i, arch.main.blocks[which]
    for i, block in enumerate(arch.unused):
        yield arch.layers + i, block


@lru_cache(maxsize=64)
def matrix_bits(arch: Architecture) -> tuple[dict[str, float | None], ...]:
    """For each layer of the trunk, next-token layers last: bits per element of its operators' matrices as the checkpoint stores
    them, by the operator's name; None where they are not quantised.  Empty where the file says nothing of quantisation.

    >>> from foretell.arch import load_model
    >>> layers = matrix_bits(load_model("gpt-oss-20b").architecture)
    >>> layers[0]["experts"], layers[0]["q_proj"]
    (4.25, None)
    """
    q = arch.quantized
    if q is None:
        return ()
    rules = [*(_Rule(p, None) for p in q.skip), *(_Rule(p, b) for p, b in q.groups)]
    parsed = [(rule, rule.layer()) for rule in rules]
    everywhere = tuple(rule for rule, at in parsed if at is None)
    seen: dict[object, dict[str, float | None]] = {}
    out = []
    for i, block in _trunk(arch):
        local = tuple(rule for rule, at in parsed if at and (at[0] in ("*", str(i)) or (at[1] and str(i).startswith(at[0]))))
        key = (id(block), tuple(((rule.layer() or ("", False, ""))[2], rule.bits) for rule in local))
        if key not in seen:
            seen[key] = _matrix_bits(block, local, everywhere, q.bits or None)
        out.append(seen[key])
    return tuple(out)


def checkpoint_bytes(arch: Architecture) -> int | None:
    """Bytes of the stored weights, next-token layers included; None where the file gives neither dtype nor method.

    A quantised checkpoint that names no dtype keeps the rest in 16 bits.
    """
    q = arch.quantized
    rest = BYTES.get(arch.dtype or "") or (2.0 if q else None)
    if rest is None:
        return None
    plain = arch.embed.parameters + arch.head.parameters + sum(s.parameters for s in arch.stacks[:-1])
    if q is None:
        return int((plain + arch.main.parameters + sum(b.parameters for b in arch.unused)) * rest)
    total, seen = plain * rest * 8, {}
    for (_, block), own in zip(_trunk(arch), matrix_bits(arch), strict=True):
        key = (id(block), id(own))
        if key not in seen:
            seen[key] = _bits_in_block(block, own, rest)
        total += seen[key]
    return round(total / 8)
