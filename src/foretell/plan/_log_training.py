"""What an out-of-memory message says: where the device's memory was, why the last request failed, and which term it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from foretell.core.forecast import Forecast
from foretell.plan._log_anchor import refuted
from foretell.plan._log_tensors import LEAST, Match, matched
from foretell.plan._log_words import FLAGS, Finding, Remedy, size
from foretell.readers.logs import LogReading, Oom
from foretell.units import GIB, MIB

__all__ = ["cause_of", "failure", "findings", "remedies", "short_of"]

PHASES: Final = {
    "load": "while the model was loaded",
    "forward": "in the forward pass",
    "loss": "at the head and the loss",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    "checkpoint_save": "while a checkpoint was saved",
    "evaluation": "in the evaluation",
    "generation": "while text was generated",
    "engine-load": "while the engine loaded the weights",
    "profile": "in the engine's profiling run of the largest step",
    "kv": "while the engine made its KV pool",
    "graphs": "while CUDA graphs were captured",
    "serving": "while requests were served",
}
_DEVICE: Final = 0.04
"""Share by which two capacities of one kind of GPU differ: what the driver keeps, and how it is counted."""
_WORTH: Final = 256 * MIB
"""Bytes of other processes or of unused memory that are worth a word."""
_MUCH: Final = 4 * GIB
"""Bytes outside the allocator above which another process is likely (communicators of large jobs take 1 to 2 GiB)."""
_LATE: Final = 2
"""Steps after which a run has shown its usual peak."""
_NAMED: Final = 3


def short_of(oom: Oom) -> float | None:
    """Return the bytes that were missing for the request that failed."""
    if oom.tried is None or oom.free is None:
        return None
    return max(0.0, oom.tried - oom.free)


def cause_of(oom: Oom) -> str:
    """Return what stood in the way: request, other-processes, fragmentation, limit or full.

    >>> cause_of(Oom(1, "CUDA", tried=4.0 * GIB, free=2.0 * GIB, allocated=70.0 * GIB, unallocated=6.0 * GIB))
    'fragmentation'
    """
    tried, short = oom.tried, short_of(oom)
    if tried is None or short is None:
        return "full"
    if oom.capacity is not None and tried > oom.capacity:
        return "request"
    unused = oom.unallocated or 0.0
    if oom.foreign >= max(short, unused, _WORTH):
        return "other-processes"
    if unused >= max(short, _WORTH):
        return "fragmentation"
    if short <= 0:
        return "limit"
    return "full"


def failure(oom: Oom) -> str:
    """Say in one sentence what failed."""
    backend = "a library on the GPU" if oom.backend == "CUDA library" else oom.backend
    text = f"{backend} ran out of memory"
    if oom.phase:
        text += f" {PHASES[oom.phase]}"
    if oom.doing:
        text += f" ({oom.doing})"
    if oom.tried is not None:
        text += f": {size(oom.tried)} were asked for"
        if oom.free is not None:
            text += f", {size(oom.free)} were free"
            text += f" of {size(oom.capacity)}" if oom.capacity is not None else ""
    return text


def findings(oom: Oom, log: LogReading, forecast: Forecast | None) -> Iterator[Finding]:
    """Yield what the message shows, and what it means beside a forecast."""
    yield Finding("failure", failure(oom), oom.line, oom.tried)
    if oom.where is not None:
        frame = oom.where
        code = f": {frame.code}" if frame.code else ""
        yield Finding("phase", f"{frame.path.rsplit('/', 1)[-1]}:{frame.number}, in {frame.function}{code}", oom.line)
    yield from _ledger(oom)
    yield from _reasons(oom)
    yield from _when(oom, log)
    if forecast is not None:
        yield from _beside(oom, forecast)


def _ledger(oom: Oom) -> Iterator[Finding]:
    """Where the device's memory was."""
    parts = [
        (oom.allocated, "in tensors"),
        (oom.unallocated, "reserved by PyTorch and unused"),
        (oom.outside, "of this process outside PyTorch's allocator (context, communicators)"),
        (oom.foreign or None, "of other processes"),
        (oom.free, "free"),
    ]
    if oom.outside is None:
        parts.insert(2, (oom.unnamed, "outside PyTorch's allocator (contexts, communicators, other processes)"))
    known = [f"{size(amount)} {what}" for amount, what in parts if amount is not None]
    if oom.allocated is not None and oom.capacity is not None:
        yield Finding("ledger", f"of {size(oom.capacity)}: {', '.join(known)}", oom.line, oom.allocated)
    if oom.private:
        text = f"of the tensors, {size(oom.private)} lie in private pools (CUDA graphs, or an engine's own pools)"
        yield Finding("ledger", text, oom.line, oom.private)


def _reasons(oom: Oom) -> Iterator[Finding]:
    """Why the request could not be served."""
    tried, short, free = oom.tried, short_of(oom), oom.free
    if tried is None or short is None or free is None:
        return
    if oom.capacity is not None and tried > oom.capacity:
        yield Finding(
            "request", f"one tensor of {size(tried)} is more than the whole GPU: a shape is not what it should be", oom.line
        )
        return
    if tried < LEAST:
        text = (
            f"the request was small (PyTorch asks for whole segments, here {size(tried)}): the GPU was full, wherever it failed"
        )
        yield Finding("request", text, oom.line, tried)
    unused = oom.unallocated or 0.0
    if unused >= max(short, _WORTH):
        text = f"{size(unused)} that PyTorch held lay unused in pieces too small for {size(tried)}: fragmentation"
        yield Finding("fragmentation", text, oom.line, unused)
    elif short > 0:
        more = f"; {size(unused)} that lay unused in pieces would not have been enough" if unused >= _WORTH else ""
        yield Finding("short", f"{size(short)} were missing for this request alone{more}", oom.line, short)
    if oom.foreign >= _WORTH:
        pids = ", ".join(f"{one.pid} ({size(one.bytes)})" for one in oom.others[:_NAMED])
        helps = "without them the request would have been served" if oom.foreign >= short else "not the whole reason"
        yield Finding("other-processes", f"other processes held {size(oom.foreign)}: {pids}; {helps}", oom.line, oom.foreign)
    elif oom.unnamed is not None and oom.outside is None and oom.unnamed >= _MUCH:
        text = (
            f"{size(oom.unnamed)} outside PyTorch's allocator are much for a context and communicators: look for another process"
        )
        yield Finding("other-processes", text, oom.line, oom.unnamed)
    if short <= 0 and unused < _WORTH:
        limit = (
            f"a memory fraction allows {size(oom.allowed)}"
            if oom.allowed
            else "another process was quicker, or the driver has a limit"
        )
        yield Finding("limit", f"{size(free)} were free, more than was asked for: {limit}", oom.line, free)


def _when(oom: Oom, log: LogReading) -> Iterator[Finding]:
    if oom.step is not None and oom.step > _LATE:
        text = (
            f"step {oom.step:,} was reached: usual steps fit, this one did not (a longer sample, or memory that has come apart)"
        )
        yield Finding("step", text, oom.line)
    elif oom.phase == "optimizer" and oom.term == "optimizer_state":
        yield Finding("step", "the first step makes the optimizer's states: every later step would need them too", oom.line)
    tries = sum(one.times for one in log.retries)
    count = log.count("allocation_retries")
    tries += int(count.value) if count is not None else 0
    if tries:
        text = f"the allocator gave back its cache and tried again {tries} times before: memory was at its edge for a while"
        yield Finding("retries", text, log.retries[0].line if log.retries else count.line if count is not None else None)
    if oom.times > 1:
        yield Finding("failure", f"the same message stands {oom.times} times", oom.line)


# -- beside a forecast --------------------------------------------------------------------------------------


def _beside(oom: Oom, forecast: Forecast) -> Iterator[Finding]:
    """What the failure is in a forecast of the run."""
    available = forecast.available_bytes
    if oom.capacity is not None and abs(oom.capacity / available - 1) > _DEVICE:
        text = f"the log's GPU has {size(oom.capacity)}, the forecast was made for one of {size(available)}"
        yield Finding("device", text, oom.line, oom.capacity)
    match = matched(oom, forecast)
    if match is not None and oom.tried is not None:
        yield Finding("arithmetic", _arithmetic(oom.tried, match), oom.line, match.bytes)
    term = oom.term or (match.term if match is not None and match.exact else "")
    held = forecast.breakdown.get(term)
    if held:
        share = held / forecast.total_bytes
        text = f"it belongs to {term.replace('_', ' ')}, {size(held)} ({share:.0%}) of the forecast's peak"
        yield Finding("term", text, oom.line, held)
    largest = sorted(forecast.breakdown.items(), key=lambda item: -item[1])[:_NAMED]
    names = ", ".join(f"{name.replace('_', ' ')} {size(amount)}" for name, amount in largest)
    yield Finding("term", f"the largest terms of the forecast: {names}", None, largest[0][1])
    row = next((row for row in forecast.timeline if row["phase"] == oom.phase), None)
    if row is not None and oom.allocated is not None:
        planned = float(row["allocated_bytes"])
        asked = oom.allocated + (oom.tried or 0.0)
        text = f"{size(oom.allocated)} held and {size(oom.tried or 0.0)} asked for; the forecast has at most {size(planned)} here"
        yield Finding("phase", text + _against(asked, planned, oom, forecast), oom.line, planned)
    passed = refuted(oom, forecast)
    if passed is not None:
        phase, most = passed
        text = f"the run went through what the forecast has {size(most)} for ({PHASES[phase]}): it is smaller than described"
        yield Finding("phase", f"{text} (recomputation, a shorter sequence, a smaller batch, more GPUs)", oom.line, most)


def _against(asked: float, planned: float, oom: Oom, forecast: Forecast) -> str:
    """Say what a phase's level means beside the forecast's."""
    if asked > 1.02 * planned:
        return f": the run needed {asked / planned:.2f} times that, so that something is there which was not described"
    if refuted(oom, forecast) is not None:
        return ""
    if forecast.peak_phase != oom.phase:
        return f", and its peak later, {PHASES.get(forecast.peak_phase, forecast.peak_phase)}: {size(forecast.allocated_bytes)}"
    return ": this is the peak that it foresaw"


def _arithmetic(tried: float, match: Match) -> str:
    """Say how a failed size comes about."""
    names = " or ".join(match.names)
    if match.exact:
        return f"{size(tried)} is {names}{f': {match.formula}' if match.formula else ''} = {size(match.bytes)}"
    tokens, planned = match.tokens or 0.0, match.planned or 0.0
    times = tokens / planned if planned else 0.0
    return (
        f"{size(tried)} as {match.names[0]} ({match.formula}) means {tokens:,.0f} tokens; "
        f"the forecast has {planned:,.0f} ({times:.2f} times as many)"
    )


def remedies(oom: Oom, log: LogReading, forecast: Forecast | None) -> Iterator[Remedy]:
    """Yield what the message itself calls for."""
    short = short_of(oom)
    if oom.foreign >= _WORTH:
        enough = False if short is not None and oom.foreign < short else None  # what comes after this request is not known
        pids = ", ".join(str(one.pid) for one in oom.others[:_NAMED])
        yield Remedy(f"end what else runs on the GPU (pid {pids})", "", oom.foreign, enough, cures="other-processes")
    unused = oom.unallocated or 0.0
    expandable = log.said("expandable_segments") is not None or (forecast is not None and forecast.run.expandable)
    if short is not None and unused >= max(short, _WORTH) and not expandable:
        flags = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        price = "none for training; not together with vLLM's sleep mode"
        yield Remedy("let the allocator's segments grow", flags, unused, None, price, cures="fragmentation")
    share = log.count("memory_share")
    if oom.phase in ("graphs", "kv", "serving") and share is not None and short and oom.capacity:
        least = math.floor(100 * (share.value - short / oom.capacity)) / 100
        flags = f"{FLAGS.get(share.source, 'the memory flag')} {least:g}"
        yield Remedy("give the engine less of the memory", flags, (share.value - least) * oom.capacity, None, "a smaller KV pool")
    for phase, change, flags, price in _BY_PHASE:
        if oom.phase == phase:
            yield Remedy(change, flags, None, None, price)


_BY_PHASE: Final = (
    ("evaluation", "evaluate in smaller batches", "per_device_eval_batch_size", "a slower evaluation"),
    ("evaluation", "move predictions to the host as they come", "eval_accumulation_steps", "the same bytes in host memory"),
    ("evaluation", "keep the loss alone", "prediction_loss_only", "no metrics of the predictions"),
    ("checkpoint_save", "save shards instead of the gathered model", "", "a step that merges them afterwards"),
    (
        "profile",
        "schedule fewer tokens or sequences in a step",
        "--max-num-batched-tokens, --max-num-seqs",
        "longer prompts' steps",
    ),
    ("graphs", "capture fewer graphs, or none", "--enforce-eager", "slower decoding"),
)
