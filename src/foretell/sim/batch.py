"""What a continuous-batching engine decides before each step: who decodes, whose prompt is read, who is put back.

No clock is in here: ``plan`` says what the next step works on, ``advance`` that it is over.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil
from typing import NamedTuple

from foretell.cost.serving_load import Load
from foretell.sim.kv_blocks import KvBlocks
from foretell.sim.scheduler import Scheduler

__all__ = ["Batch", "Sequence", "Step"]

_ROUNDING = 1e-9
"""What products of a step count and a mean may be off by."""


class Sequence:
    """A request on a server.  Times are seconds of the simulation; None: not yet."""

    __slots__ = (
        "arrival_s", "cached", "first_s", "goal", "index", "input_tokens", "landed", "last_s", "made", "origin", "output_tokens",
        "owned", "preempted", "read", "start_s", "target",
    )  # fmt: skip

    def __init__(self, index: int, arrival_s: float, input_tokens: int, output_tokens: int, cached: int) -> None:
        """Begin with nothing read and nothing made."""
        self.index = index
        self.arrival_s = arrival_s
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached = cached
        self.read = 0  # tokens of the prompt that are in the cache
        self.goal = input_tokens  # prompt tokens; after a preemption, those made before belong to it
        self.made = 0  # tokens made; while the sequence decodes, ``target`` says it
        self.landed = False  # its KV comes from a prefill server: nothing to read
        self.origin = 0  # see KvBlocks
        self.target: int | None = None  # odometer at which it is done; None: it does not decode
        self.owned = 0  # blocks taken at admission
        self.preempted = 0  # times
        self.start_s: float | None = None
        self.first_s: float | None = None
        self.last_s = 0.0  # of its last token; while it decodes, the batch knows it


class Step(NamedTuple):
    """What a step works on; it may stand for several in which nothing changes but the context."""

    load: Load
    """Of the first step."""
    steps: int
    """So many, until somebody finishes or blocks run out."""
    held: int
    """KV blocks during the first one."""
    reading: tuple[tuple[Sequence, int], ...]
    """Prompts, and the tokens of them that are read."""


class Batch:
    """The queue, the resident sequences and the KV cache of one server."""

    def __init__(self, scheduler: Scheduler, *, hands_over: bool = False) -> None:
        """Start empty; with ``hands_over`` sequences leave with their first token, for a server that decodes."""
        self.scheduler = scheduler
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}  # in the order of admission
        self.fresh: dict[Sequence, None] = {}  # made their first token, or were read again, since the last step that decoded
        self.decoding = 0
        self.preemptions = 0
        self.last_s = 0.0  # when the last step that decoded was over
        self.kv = KvBlocks(scheduler.blocks, scheduler.block_size, grows=not scheduler.reserve)
        self.hands_over = hands_over
        self._origins = 0  # sum over the sequences that decode
        self._ends: list[tuple[int, int, Sequence]] = []  # heap of (target, index, sequence); some are out of date
        self._partial: Sequence | None = None  # its prompt has been read in part: always the youngest
        self._steps = 0  # that decoded

    def refusal(self, seq: Sequence) -> str | None:
        """Why this server can never hold a sequence; None where it can."""
        how = self.scheduler
        slack = 0 if how.reserve else ceil(how.tokens_per_step) - 2  # the last token is made, not stored
        tokens = seq.input_tokens + (0 if self.hands_over else seq.output_tokens + slack)
        if self.kv.blocks(tokens) > self.kv.capacity:
            return f"{tokens} tokens of KV cache needed, {how.kv_tokens} there"
        if not how.pieces and seq.input_tokens - seq.cached > how.max_tokens and not seq.landed:
            return f"a prompt of {seq.input_tokens - seq.cached} tokens fits in no step of {how.max_tokens}"
        return None

    def plan(self) -> Step | None:
        """Decide the next step; None: nothing can be done before something comes or goes."""
        how = self.scheduler
        while self.waiting and self.waiting[0].landed and self._seat(self._blocks(self.waiting[0]), 0):
            self._land(self.waiting.popleft())
        if not how.mixed:
            reading = self._readers(how.max_tokens, 0)
            if reading:
                return self._step(0, 0, reading)
        before = self.preemptions
        growth = self._make_room()
        if how.mixed:
            budget = how.max_tokens - self.decoding * how.width
            reading = self._readers(budget, growth, admit=self.preemptions == before)
        else:
            reading = ()
        if not reading and not self.decoding:
            return None
        return self._step(self.decoding, growth, reading, most=1 if reading or self.preemptions > before else 0)

    def load_after(self, step: Step, steps: int) -> Load:
        """Load of the step that comes so many later in a stretch in which nothing changes."""
        load = step.load
        return Load(load.decode, load.context + load.decode * self.tokens(steps), width=load.width)

    def tokens(self, steps: int) -> int:
        """Tokens that each sequence gets in the next steps: whole ones, on average ``tokens_per_step``."""
        mean = self.scheduler.tokens_per_step
        return steps if mean == 1.0 else int((self._steps + steps) * mean + _ROUNDING) - int(self._steps * mean + _ROUNDING)

    def held_after(self, steps: int) -> int:
        """KV blocks during the last of so many steps that decode."""
        return self.kv.held + self.kv.need(self.tokens(steps))

    def advance(self, step: Step, steps: int) -> tuple[list[Sequence], list[Sequence], int]:
        """End so many steps of a plan.

        Returns the sequences that are done with decoding, those of which the prompt has been read (done or not), and the
        tokens that were made by decoding.
        """
        done: list[Sequence] = []
        made = 0
        if step.load.decode:
            grown = self.tokens(steps)
            made = self.decoding * grown
            self.kv.advance(grown)
            self._steps += steps
            self.fresh.clear()
            while self._ends and self._ends[0][0] <= self.kv.odometer:
                target, _, seq = heapq.heappop(self._ends)
                if seq.target == target:
                    made -= self.kv.odometer - target
                    self._stop(seq)
                    seq.made = seq.output_tokens
                    done.append(seq)
        read = []
        for seq, tokens in step.reading:
            seq.read += tokens
            if seq.read == seq.goal:
                self._read(seq)
                read.append(seq)
        return done, read, made

    def hand_back(self, seq: Sequence) -> None:
        """Give back the blocks of a sequence that has left for a server that decodes."""
        self.kv.release(seq.owned)

    # ---- admission

    def _blocks(self, seq: Sequence) -> int:
        """Blocks that admission takes."""
        reserved = self.scheduler.reserve and not self.hands_over
        return self.kv.blocks(seq.input_tokens + seq.output_tokens if reserved else seq.goal)

    def _seat(self, blocks: int, growth: int) -> bool:
        return len(self.running) < self.scheduler.max_seqs and blocks <= self.kv.free - growth

    def _admit(self, seq: Sequence) -> None:
        seq.owned = self._blocks(seq)
        self.kv.take(seq.owned)
        self.running[seq] = None

    def _land(self, seq: Sequence) -> None:
        seq.landed = False  # should it be preempted, it is read here
        self._admit(seq)
        self._decode(seq)

    def _readers(self, budget: int, growth: int, *, admit: bool = True) -> tuple[tuple[Sequence, int], ...]:
        """Choose the prompts that a step reads, within the budget."""
        reading = []
        partial = self._partial
        if partial is not None and budget > 0:
            tokens = min(budget, partial.goal - partial.read)
            reading.append((partial, tokens))
            budget -= tokens
            if partial.read + tokens == partial.goal:
                partial = self._partial = None
        while admit and partial is None and budget > 0 and self.waiting:
            seq = self.waiting[0]
            left = seq.goal - seq.cached
            whole = self.scheduler.pieces or left <= budget or not (reading or self.decoding)
            if seq.landed or not whole or not self._seat(self._blocks(seq), growth):
                break
            self.waiting.popleft()
            self._admit(seq)
            seq.read = seq.cached
            tokens = min(left, budget) if self.scheduler.pieces else left
            reading.append((seq, tokens))
            budget -= tokens
            if tokens < left:
                partial = self._partial = seq
        return tuple(reading)

    # ---- growth

    def _make_room(self) -> int:
        """Return the blocks that decoding needs in the next step; the youngest are put back until there are as many."""
        tokens = self.tokens(1)
        need = self.kv.need(tokens)
        while need > self.kv.free:
            self._preempt()
            need = self.kv.need(tokens)
        return need

    def _preempt(self) -> None:
        seq, _ = self.running.popitem()
        if seq is self._partial:
            self._partial = None
            self.kv.release(seq.owned)
        else:
            assert seq.target is not None  # noqa: S101  # only sequences that decode are resident beside
            seq.made = seq.output_tokens - (seq.target - self.kv.odometer)
            if seq not in self.fresh:
                seq.last_s = self.last_s
            self.fresh.pop(seq, None)
            self._stop(seq)
        seq.read = 0
        seq.goal = seq.input_tokens + seq.made
        seq.preempted += 1
        self.preemptions += 1
        self.waiting.appendleft(seq)

    def _decode(self, seq: Sequence) -> None:
        """From the next step on the sequence decodes."""
        seq.origin = self.kv.join(seq.goal)
        seq.target = self.kv.odometer + seq.output_tokens - seq.made
        self._origins += seq.origin
        self.decoding += 1
        self.fresh[seq] = None
        heapq.heappush(self._ends, (seq.target, seq.index, seq))

    def _stop(self, seq: Sequence) -> None:
        """The sequence decodes no more, and its blocks are free."""
        seq.target = None
        self.decoding -= 1
        self._origins -= seq.origin
        tokens = self.kv.leave(seq.origin)
        self.kv.release(self.kv.blocks(tokens) if self.kv.grows else seq.owned)
        self.running.pop(seq, None)

    def _read(self, seq: Sequence) -> None:
        """The whole prompt has been read, which makes a token."""
        seq.made += 1
        if seq.made < seq.output_tokens and not self.hands_over:
            self._decode(seq)
            return
        self.running.pop(seq)
        if seq.made == seq.output_tokens:
            self.kv.release(seq.owned)

    # ---- the step

    def _step(self, decode: int, growth: int, reading: tuple[tuple[Sequence, int], ...], most: int = 1) -> Step:
        """Put a step together; ``most`` of 0: as many as nothing changes in."""
        tokens = pairs = 0
        for seq, read in reading:
            tokens += read
            pairs += read * seq.read + read * (read + 1) // 2
        context = decode * (self.kv.odometer + 1) + self._origins if decode else 0
        width = float(self.scheduler.width)
        load = Load(float(decode), float(context), float(tokens), float(pairs), float(len(reading)), width)
        return Step(load, most or self._quiet(), self.kv.held + growth, reading)

    def _quiet(self) -> int:
        """Steps until the first sequence is done or blocks run out; at least one."""
        while self._ends[0][2].target != self._ends[0][0]:
            heapq.heappop(self._ends)  # put back or done since
        left = self._ends[0][0] - self.kv.odometer
        mean = self.scheduler.tokens_per_step
        if mean == 1.0:
            return max(1, self.kv.room(left))
        steps = max(1, ceil(left / mean) + 1)
        while steps > 1 and self.tokens(steps - 1) >= left:
            steps -= 1
        room = self.kv.room(self.tokens(steps))
        if self.tokens(steps) > room:
            steps = max(1, int(room / mean) + 1)
            while steps > 1 and self.tokens(steps) > room:
                steps -= 1
        return steps
