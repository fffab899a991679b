"""A serving engine's start-up beside foretell's account of it: which part is larger, and what would let it start."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from foretell.cost.kv_capacity import KvCapacity
from foretell.plan._log_words import FLAGS, Finding, Remedy, size
from foretell.readers.logs import Figure, LogReading, Refusal
from foretell.units import GIB

__all__ = ["Part", "parts", "refusal_remedies", "refused", "serving_findings"]

_ALIKE: Final = 0.05
_SMALL: Final = 0.25 * GIB
"""Differences below both are none."""
_HINTS: Final = {
    "weights": "another weight format, a draft model, an adapter, or a part (vision) that was not described",
    "activation": "the engine profiles with images or audio, more batched tokens or more sequences than was described",
    "non_torch": "communicators, or another process that grew while the engine profiled",
    "graphs": "more or larger graphs are captured than was described",
    "weights and non_torch": "another weight format, or communicators and contexts",
}
_MOST: Final = 0.98
"""A memory flag above it leaves the driver and the context no room."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an engine's memory: as its log has it, and as was forecast."""

    name: str
    measured_bytes: float | None
    forecast_bytes: float | None
    line: int | None = None

    @property
    def more(self) -> float:
        """Bytes that the log has more than the forecast."""
        return (self.measured_bytes or 0.0) - (self.forecast_bytes or 0.0)

    @property
    def differs(self) -> bool:
        """Whether both are known, and are not alike."""
        known = self.measured_bytes is not None and self.forecast_bytes is not None
        return known and abs(self.more) > max(_SMALL, _ALIKE * max(self.measured_bytes or 0.0, self.forecast_bytes or 0.0))


def parts(log: LogReading, held: KvCapacity | None) -> tuple[Part, ...]:
    """Return the parts that the log names, each beside the forecast's."""
    figures: dict[str, Figure | None] = {
        "capacity": log.figure("capacity"),
        "budget": log.figure("budget"),
        "weights": log.figure("weights"),
        "non_torch": log.figure("non_torch"),
        "weights and non_torch": log.figure("consumed"),
        "activation": log.figure("activation"),
        "graphs": log.figure("graphs", "graphs_estimate"),
        "kv_pool": log.figure("kv_pool"),
    }
    planned: dict[str, float] = {}
    if held is not None:
        budget, engine = held.budget, held.resolved.engine
        outside = budget.libraries + budget.communicators / 2 * engine.communicators + budget.context * engine.context
        share = held.resolved.recipe.memory_share or 0.0
        planned = {
            "capacity": budget.device,
            "weights": budget.weights,
            "non_torch": outside,
            "weights and non_torch": budget.weights + outside,
            "activation": budget.activation,
            "graphs": budget.graphs,
            "kv_pool": budget.pool,
        }
        if engine.share == "total":
            planned["budget"] = share * budget.device
    out = []
    for name, figure in figures.items():
        if figure is not None:
            out.append(Part(name, figure.bytes, planned.get(name), figure.line))
    return tuple(out)


def serving_findings(log: LogReading, held: KvCapacity | None, found: tuple[Part, ...]) -> Iterator[Finding]:
    """Yield how the engine's account differs from the forecast's."""
    for part in sorted((p for p in found if p.differs and p.name in ("capacity", *_HINTS)), key=lambda p: -abs(p.more)):
        measured, planned = part.measured_bytes or 0.0, part.forecast_bytes or 0.0
        text = f"{part.name.replace('_', '-')}: {size(measured)} in the log, {size(planned)} forecast"
        if part.name == "capacity":
            yield Finding("device", f"{text}: another GPU than was described", part.line, part.more)
        else:
            why = f" ({_HINTS[part.name]})" if part.more > 0 else ""
            yield Finding(
                "part", f"{text}, {size(abs(part.more))} {'more' if part.more > 0 else 'less'}{why}", part.line, part.more
            )
    tokens = log.count("kv_tokens")
    pool = next((p for p in found if p.name == "kv_pool"), None)
    if pool is not None and pool.measured_bytes is not None and pool.measured_bytes < 0:
        text = f"the KV pool would have {size(pool.measured_bytes)}: the other parts take more than the memory flag gives"
        yield Finding("part", text, pool.line, pool.measured_bytes)
    if held is None or tokens is None or held.tokens <= 0:
        return
    low, high = held.interval
    words = "as forecast" if low <= tokens.value <= high else "outside of the forecast's interval"
    text = f"{tokens.value:,.0f} tokens of KV in the log, {held.tokens:,} forecast ({low:,} to {high:,}): {words}"
    yield Finding("measured", text, tokens.line, tokens.value)


def refused(refusal: Refusal) -> str:
    """Say in one sentence why an engine did not start."""
    engine = refusal.engine
    if refusal.kind == "startup" and refusal.needed is not None and refusal.available is not None:
        return (
            f"{engine} did not start: its memory flag {refusal.share:g} asks for {size(refusal.needed)}, "
            f"and {size(refusal.available)} were free: something else is on the GPU"
        )
    if refusal.kind == "longest":
        need = f" of {refusal.wanted_tokens:,} tokens" if refusal.wanted_tokens is not None else ""
        text = f"{engine} did not start: one request{need} does not fit into the KV pool"
        if refusal.needed is not None and refusal.available is not None:
            text += f": {size(refusal.needed)} needed, {size(refusal.available)} there"
        if refusal.held_tokens is not None:
            text += f"; {refusal.held_tokens:,} tokens would fit"
        return text
    if refusal.kind == "weights":
        return f"{engine} did not start: the weights leave nothing for KV under its memory flag {refusal.share:g}"
    if refusal.kind == "states":
        return f"{engine} did not start: {refusal.held_tokens:,} states fit, {refusal.wanted_tokens:,} sequences were asked for"
    return f"{engine} did not start: nothing is left for KV under its memory flag"


def refusal_remedies(refusal: Refusal, log: LogReading) -> Iterator[Remedy]:
    """Yield what would let the engine start, with the bytes that each change brings."""
    if refusal.kind == "startup":
        yield from _startup(refusal)
        return
    missing = _missing(refusal, log)
    if refusal.kind == "longest" and refusal.held_tokens:
        yield Remedy("serve shorter requests", f"--max-model-len {refusal.held_tokens}", missing, True, "no longer requests")
    if refusal.kind == "states" and refusal.held_tokens:
        yield Remedy("serve fewer sequences at a time", f"--max-num-seqs {refusal.held_tokens}", None, True, "less concurrency")
    yield from _more(refusal, log, missing)
    if refusal.kind == "longest" and refusal.needed is not None and refusal.available is not None:
        half = refusal.needed / 2
        yield Remedy("keep keys and values in 8 bits", "--kv-cache-dtype fp8", half, half <= refusal.available, "some accuracy")
    graphs = log.figure("graphs", "graphs_estimate")
    if graphs is not None and missing is not None:
        yield Remedy("capture no CUDA graphs", "--enforce-eager", graphs.bytes, graphs.bytes >= missing, "slower decoding")
    activation = log.figure("activation")
    if refusal.kind == "no-blocks" and activation is not None:
        flags = "--max-num-batched-tokens, --max-num-seqs"
        yield Remedy("schedule fewer tokens or sequences in a step", flags, activation.bytes, None, "at most so much is saved")


def _startup(refusal: Refusal) -> Iterator[Remedy]:
    """Less is free than the flag asks for."""
    if refusal.available is None or refusal.needed is None:
        return
    missing = refusal.needed - refusal.available
    yield Remedy("end what else runs on the GPU", "", missing, True)
    fits = math.floor(100 * refusal.available / refusal.capacity) / 100 if refusal.capacity else 0.0
    if fits > 0:
        flags, price = f"{_flag(refusal)} {fits:g}", "a smaller KV pool, if the weights fit at all"
        yield Remedy("ask for less of the memory", flags, missing, None, price)


def _more(refusal: Refusal, log: LogReading, missing: float | None) -> Iterator[Remedy]:
    """A larger memory flag, where one can be large enough."""
    capacity = refusal.capacity or _bytes(log.figure("capacity"))
    share = refusal.share if refusal.share is not None else _value(log, "memory_share")
    if share is None and capacity and (budget := log.figure("budget")) is not None:
        share = budget.bytes / capacity
    least = refusal.least_share
    if least is None and share is not None and missing is not None and capacity:
        least = share + missing / capacity
    if least is None:
        return
    least = math.ceil(round(100 * least, 6)) / 100
    if least > _MOST:
        price = f"a larger {_flag(refusal)} cannot help: it would have to be {least:g}"
        yield Remedy("divide or quantise the weights", "", missing, None, price)
        return
    more = (least - share) * capacity if share is not None and capacity else None
    enough = True if refusal.least_share is None else None
    yield Remedy("give the engine more of the memory", f"{_flag(refusal)} {least:g}", more, enough, "less is left beside it")


def _flag(refusal: Refusal) -> str:
    return FLAGS.get(refusal.engine, "the memory flag")


def _missing(refusal: Refusal, log: LogReading) -> float | None:
    """Return the bytes that are missing in the KV pool."""
    if refusal.needed is not None and refusal.available is not None:
        return refusal.needed - refusal.available
    pool = log.figure("kv_pool")
    if refusal.kind == "no-blocks" and pool is not None and pool.bytes <= 0:
        return _SMALL - pool.bytes
    if refusal.kind == "longest" and pool is not None and refusal.held_tokens and refusal.wanted_tokens:
        return pool.bytes * (refusal.wanted_tokens / refusal.held_tokens - 1)
    return None


def _bytes(figure: Figure | None) -> float:
    return 0.0 if figure is None else figure.bytes


def _value(log: LogReading, name: str) -> float | None:
    found = log.count(name)
    return None if found is None else found.value
