"""What cannot run, with the reason: one list of checks for a single run and for arrays of runs.

A check looks at degrees and sizes that are numbers or NumPy arrays and says where it is broken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Attention, Experts, Gate
from foretell.errors import CombinationError, InputError

__all__ = ["CHECKS", "Check", "Degrees", "Facts", "facts_of", "first_broken"]

Value = Any
"""A number, or an array of numbers."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks need to know of a model and a framework."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    ffn: tuple[int, ...]
    """Widths that tensor parallelism divides."""
    expert_ffn: tuple[int, ...]
    experts: int
    layers: int
    text: bool
    """Whether any layer runs over a sequence of tokens."""
    framework: str
    replicates_kv: bool
    """Whether the framework copies key and value heads when tp is larger than their number."""
    strict_sequence: bool
    """Whether it refuses a sequence that the sequence-parallel ranks do not share evenly."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """The numbers that a check looks at."""

    micro_batch: Value
    seq_len: Value
    dp: Value
    tp: Value
    pp: Value
    cp: Value
    ep: Value
    etp: Value
    vpp: Value
    sp: Value
    """1 with sequence parallelism, else 0."""
    hsdp: Value = 1
    """Replicas of a hybrid-sharded group."""
    empty: Value = 0
    """Chunks that a given layout leaves without a layer: the embedding's or the loss's alone."""
    world: Value = None
    """GPUs that there are (None: as many as the degrees ask for)."""


@dataclass(frozen=True, slots=True)
class Check:
    """`broken` says where; `why` words the message of one run that is broken."""

    field: str
    broken: Callable[[Facts, Degrees], Value]
    why: Callable[[Facts, Degrees], str]
    reason: str
    """Short form, for tables."""
    kind: type[InputError] = CombinationError
    value: Callable[[Degrees], object] | None = None


@functools.lru_cache(maxsize=256)
def facts_of(arch: Architecture, framework: str, *, megatron: bool) -> Facts:
    """Return the facts of a model under a framework.

    Megatron-Core takes tp above the number of key-value heads and copies them
    (``transformer_config.py``, ``num_query_groups``); torchtitan, torchtune and Hugging Face plans split the
    key projection by columns and reshape it to whole heads, which then fails.
    """
    ops = [op for block, _ in arch.blocks() for op in block.ops]
    attention = [op for op in ops if isinstance(op, Attention)]
    return Facts(
        heads=_sorted(op.heads for op in attention),
        kv_heads=_sorted(op.kv_heads for op in attention),
        ffn=_sorted(op.features for op in ops if isinstance(op, Gate) and op.split),
        expert_ffn=_sorted(op.ffn for op in ops if isinstance(op, Experts)),
        experts=max((op.experts for op in ops if isinstance(op, Experts)), default=0),
        layers=arch.layers,
        text=arch.reads_tokens,
        framework=framework,
        replicates_kv=megatron or framework == "generic",
        strict_sequence=megatron or framework in ("torchtitan", "nanotron"),
    )


def _sorted(values: Any) -> tuple[int, ...]:  # any iterable of ints
    return tuple(sorted(set(values)))


def _any_rest(numbers: tuple[int, ...], divisor: Value) -> Value:
    """Whether the divisor leaves a rest of any of the numbers."""
    out: Value = False
    for n in numbers:
        out = out | (n % divisor != 0)
    return out


def _kv_broken(f: Facts, d: Degrees) -> Value:
    out: Value = False
    for n in f.kv_heads:
        bad = n % d.tp != 0
        if f.replicates_kv:
            bad = bad & (d.tp % n != 0)
        out = out | bad
    return out


def _names(numbers: tuple[int, ...]) -> str:
    return " and ".join(str(n) for n in numbers)


def _world(d: Degrees) -> Value:
    return d.dp * d.tp * d.pp * d.cp


CHECKS: Final = (
    Check(
        "tp",
        lambda f, d: _any_rest(f.heads, d.tp),
        lambda f, _d: f"must divide the model's {_names(f.heads)} attention heads",
        "tp does not divide the attention heads",
        value=lambda d: d.tp,
    ),
    Check(
        "tp",
        _kv_broken,
        lambda f, _d: (
            f"must divide the model's {_names(f.kv_heads)} key-value heads"
            + (" or be a multiple of them" if f.replicates_kv else "")
        ),
        "tp does not divide the key-value heads",
        value=lambda d: d.tp,
    ),
    Check(
        "tp",
        lambda f, d: _any_rest(f.ffn, d.tp),
        lambda f, _d: f"must divide the feed-forward widths {_names(f.ffn)}",
        "tp does not divide the feed-forward width",
        value=lambda d: d.tp,
    ),
    Check(
        "pp",
        lambda f, d: d.pp * d.vpp > f.layers + d.empty,
        lambda f, d: f"x vpp = {d.pp * d.vpp} stages are more than the model's {f.layers} layers",
        "more pipeline stages than layers",
        value=lambda d: d.pp,
    ),
    Check(
        "ep",
        lambda f, d: (d.ep > 1) & (f.experts == 0),
        lambda _f, _d: "needs a model with experts; this one is dense",
        "expert parallelism on a dense model",
        value=lambda d: d.ep,
    ),
    Check(
        "ep",
        lambda f, d: (d.ep > 1) & ((f.experts or 1) % d.ep != 0),
        lambda f, _d: f"must divide the model's {f.experts} experts",
        "ep does not divide the experts",
        value=lambda d: d.ep,
    ),
    Check(
        "ep",
        lambda _f, d: (d.ep > 1) & ((d.dp * d.cp * d.tp) % (d.ep * d.etp) != 0),
        lambda _f, d: (
            f"x expert tp = {d.ep * d.etp} must divide dp x cp x tp = {d.dp * d.cp * d.tp}: "
            "expert parallelism is carved out of these ranks"
        ),
        "ep x expert tp does not divide dp x cp x tp",
        value=lambda d: d.ep,
    ),
    Check(
        "etp",
        lambda f, d: _any_rest(f.expert_ffn, d.etp) if f.experts else False,
        lambda f, _d: f"must divide the experts' width {_names(f.expert_ffn)}",
        "expert tp does not divide the experts' width",
        value=lambda d: d.etp,
    ),
    Check(
        "seq_len",
        lambda f, d: (d.cp > 1) & (d.seq_len % (d.cp * (2 if f.strict_sequence else 1)) != 0) if f.text else False,
        lambda f, d: (
            f"must be a multiple of {'2 x cp' if f.strict_sequence else 'cp'} = {d.cp * (2 if f.strict_sequence else 1)}"
        ),
        "cp does not divide the sequence",
        value=lambda d: d.seq_len,
    ),
    Check(
        "seq_len",
        lambda f, d: (d.seq_len % (1 + (d.tp - 1) * d.sp) != 0) if f.strict_sequence and f.text else False,
        lambda _f, d: f"must be a multiple of tp = {d.tp} with sequence parallelism",
        "tp does not divide the sequence (sequence parallelism)",
        value=lambda d: d.seq_len,
    ),
    Check(
        "hsdp_replicas",
        lambda _f, d: (d.dp * d.cp) % d.hsdp != 0,
        lambda _f, d: f"must divide dp x cp = {d.dp * d.cp}",
        "the replicas of a hybrid-sharded group do not divide dp x cp",
        value=lambda d: d.hsdp,
    ),
    Check(
        "gpus",
        lambda _f, d: False if d.world is None else _world(d) != d.world,
        lambda _f, d: f"is not dp x tp x pp x cp = {d.dp} x {d.tp} x {d.pp} x {d.cp} = {_world(d)}" + _hint_dp(d),
        "the degrees do not multiply to the number of GPUs",
        value=lambda d: d.world,
    ),
)


def _hint_dp(d: Degrees) -> str:
    others = d.tp * d.pp * d.cp
    return f"; dp={d.world // others} would be" if d.world % others == 0 else ""


def first_broken(facts: Facts, degrees: Degrees) -> None:
    """Raise the first check that a single run breaks."""
    for check in CHECKS:
        if check.broken(facts, degrees):
            value = check.value(degrees) if check.value is not None else None
            where = None if facts.framework == "generic" else f"framework {facts.framework}"
            raise check.kind(check.why(facts, degrees), field=check.field, value=value, where=where)
