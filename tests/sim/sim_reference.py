"""A server written the long way: one step after the other, one sequence after the other, no events and no shortcuts.

It shares nothing with the simulator but the types of what goes in and comes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from foretell.cost.serving_load import Load, StepCost
from foretell.sim.arrivals import Request
from foretell.sim.outcome import Served
from foretell.sim.server import Scheduler


@dataclass(eq=False)
class Seq:
    index: int
    request: Request
    prompt: int
    stored: int = 0  # tokens in the cache
    made: int = 0
    blocks: int = 0
    decodes: bool = False
    start: float | None = None
    first: float | None = None
    last: float = 0.0
    preempted: int = 0


@dataclass
class Run:
    served: list[Served] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    refused: int = 0


def serve(requests: list[Request], how: Scheduler, cost: StepCost) -> Run:
    run = Run()
    every = [Seq(i, r, r.input_tokens) for i, r in enumerate(requests)]
    coming = [one for one in every if not _never(one, how)]
    run.refused = len(every) - len(coming)
    waiting: list[Seq] = []
    running: list[Seq] = []
    now, steps = 0.0, 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].request.arrival_s)
        while coming and coming[0].request.arrival_s <= now:
            waiting.append(coming.pop(0))
        grown = math.floor((steps + 1) * how.tokens_per_step + 1e-9) - math.floor(steps * how.tokens_per_step + 1e-9)
        reading: list[tuple[Seq, int]] = []
        if not how.mixed:
            reading = _readers(waiting, running, how, how.max_tokens, admit=True)
        decoders: list[Seq] = []
        if not reading:
            put_back = _grow(waiting, running, how, grown)
            decoders = [s for s in running if s.decodes]
            if how.mixed:
                budget = how.max_tokens - len(decoders) * how.width
                reading = _readers(waiting, running, how, budget, admit=not put_back)
        for s, _ in reading:
            if s.start is None:
                s.start = now
        held = sum(s.blocks for s in running)
        assert held <= how.kv_tokens // how.block_size
        assert len(running) <= how.max_seqs
        run.blocks.append(held)
        load = _load(decoders, reading, how)
        run.loads.append(load)
        now += cost.seconds(load)
        steps += bool(decoders)
        for s in decoders:
            run.gaps.append(now - s.last)
            s.last = now
            s.stored += grown
            s.made += grown
        for s, n in reading:
            s.stored += n
            if s.stored == s.prompt:
                if s.first is None:
                    s.first = now
                else:
                    run.gaps.append(now - s.last)
                s.last = now
                s.made += 1
                s.decodes = True
        run.served += [_served(s, now) for s in running if s.made >= s.request.output_tokens]
        running = [s for s in running if s.made < s.request.output_tokens]
    return run


def _load(decoders: list[Seq], reading: list[tuple[Seq, int]], how: Scheduler) -> Load:
    return Load(
        float(len(decoders)),
        float(sum(s.stored + 1 for s in decoders)),
        float(sum(n for _, n in reading)),
        float(sum(sum(range(s.stored + 1, s.stored + n + 1)) for s, n in reading)),
        float(len(reading)),
        float(how.width),
    )


def _served(s: Seq, now: float) -> Served:
    r = s.request
    assert s.start is not None
    assert s.first is not None
    return Served(s.index, 0, r.arrival_s, s.start, s.first, now, r.input_tokens, r.output_tokens, s.preempted)


def _blocks(tokens: int, how: Scheduler) -> int:
    return math.ceil(tokens / how.block_size)


def _never(s: Seq, how: Scheduler) -> bool:
    r = s.request
    most = r.input_tokens + r.output_tokens + (0 if how.reserve else math.ceil(how.tokens_per_step) - 2)
    pieces = how.mixed if how.chunked is None else how.chunked
    too_long = not pieces and r.input_tokens - r.cached_tokens > how.max_tokens
    return too_long or _blocks(most, how) > how.kv_tokens // how.block_size


def _free(running: list[Seq], how: Scheduler) -> int:
    return how.kv_tokens // how.block_size - sum(s.blocks for s in running)


def _grow(waiting: list[Seq], running: list[Seq], how: Scheduler, grown: int) -> bool:
    """Blocks for what the decoding sequences store in this step; the youngest goes back while there are too few."""
    if how.reserve:
        return False
    put_back = False
    while True:
        need = {s: _blocks(s.stored + grown, how) for s in running if s.decodes}
        if sum(need.values()) - sum(s.blocks for s in need) <= _free(running, how):
            break
        youngest = running.pop()
        youngest.preempted += 1
        youngest.blocks = youngest.stored = 0
        youngest.prompt = youngest.request.input_tokens + youngest.made
        youngest.decodes = False
        waiting.insert(0, youngest)
        put_back = True
    for s, blocks in need.items():
        s.blocks = blocks
    return put_back


def _readers(waiting: list[Seq], running: list[Seq], how: Scheduler, budget: int, *, admit: bool) -> list[tuple[Seq, int]]:
    pieces = how.mixed if how.chunked is None else how.chunked
    reading = []
    for s in running:
        if not s.decodes and budget > 0:
            n = min(budget, s.prompt - s.stored)
            reading.append((s, n))
            budget -= n
    while admit and waiting and budget > 0 and all(s.decodes or s.stored + n == s.prompt for s, n in _all(running, reading)):
        s = waiting[0]
        r = s.request
        left = s.prompt - r.cached_tokens
        blocks = _blocks(r.input_tokens + r.output_tokens if how.reserve else s.prompt, how)
        alone = not reading and not any(q.decodes for q in running)
        if len(running) == how.max_seqs or blocks > _free(running, how) or not (pieces or left <= budget or alone):
            break
        waiting.pop(0)
        running.append(s)
        s.blocks = blocks
        s.stored = r.cached_tokens
        n = min(left, budget) if pieces else left
        reading.append((s, n))
        budget -= n
    return reading


def _all(running: list[Seq], reading: list[tuple[Seq, int]]) -> list[tuple[Seq, int]]:
    """Resident sequences with what this step reads of them."""
    read = {id(s): n for s, n in reading}
    return [(s, read.get(id(s), 0)) for s in running]
