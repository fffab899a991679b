"""Collects what happens in a simulation: sums and histograms only, so that its memory does not grow with the requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from foretell.errors import InputError
from foretell.sim.batch import Sequence
from foretell.sim.outcome import Distribution, Outcome, QueuePoint, Served, Slo

__all__ = ["Meter", "Progress", "Recorder", "Window"]

Progress = Callable[[int, float], None]
"""Called with the requests finished and the seconds simulated, at most ten times a second."""

PROGRESS_S: Final = 0.1
QUEUE_POINTS: Final = 2000
HOPELESS: Final = 1000
"""Rejected requests, with none accepted, after which a run is given up."""


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds of the simulation that count: without warm-up and cool-down."""

    start_s: float = 0.0
    end_s: float = inf

    def holds(self, moment: float) -> bool:
        """Whether an arrival is inside, both ends included."""
        return self.start_s <= moment <= self.end_s

    def ends(self, moment: float) -> bool:
        """Whether the end of a step is inside: one that ends as the window begins was before it."""
        return self.start_s < moment <= self.end_s or (not self.start_s and not moment)

    def overlap(self, start: float, end: float) -> float:
        """Seconds of a stretch that are inside."""
        low = max(start, self.start_s)
        high = min(end, self.end_s)
        return high - low if high > low else 0.0


@dataclass(slots=True)
class Meter:
    """Occupancy of the replicas of one kind; integrals over the window."""

    window: Window
    busy: float = 0.0
    resident: float = 0.0
    held: float = 0.0
    resident_max: int = 0
    held_max: int = 0
    steps: int = 0

    def add(self, start: float, end: float, resident: int, held: tuple[int, int]) -> None:
        """Count a stretch of steps; ``held`` blocks at its begin and at its end."""
        seconds = self.window.overlap(start, end)
        self.busy += seconds
        self.resident += seconds * resident
        self.held += seconds * 0.5 * (held[0] + held[1])
        if seconds or self.window.ends(end):
            self.resident_max = max(self.resident_max, resident)
            self.held_max = max(self.held_max, *held)


@dataclass(slots=True)
class Recorder:
    """Collects over all replicas."""

    window: Window
    slo: Slo | None
    overhead_s: float
    log: Callable[[Served], None] | None
    progress: Progress | None
    main: Meter
    prefill: Meter
    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)
    wait: Distribution = field(default_factory=Distribution)
    first_arrival_s: float | None = None
    last_end_s: float = 0.0
    arrived: int = 0
    finished: int = 0
    rejected: int = 0
    rejection: str = ""
    met: int = 0
    counted: int = 0
    decided: int = 0
    """Counted, or rejected in the window: whether they met the targets is known."""
    output_tokens: int = 0
    input_tokens: int = 0
    ended: int = 0
    queue: list[QueuePoint] = field(default_factory=list)
    _every_s: float = 0.0
    _told: float = 0.0

    def arrive(self, now: float) -> int:
        """Count an arrival; returns its index."""
        if self.first_arrival_s is None:
            self.first_arrival_s = now
        self.arrived += 1
        return self.arrived - 1

    def reject(self, now: float, why: str) -> None:
        """Count a request that can never be held.

        Raises:
            InputError: no request could be held so far, and many were tried.

        """
        self.rejected += 1
        if self.window.holds(now):
            self.decided += 1
        self.rejection = self.rejection or why
        self.last_end_s = max(self.last_end_s, now)
        if self.arrived == HOPELESS and self.rejected == HOPELESS:
            self.refuse()

    def refuse(self) -> None:
        """Say that no request can be served."""
        raise InputError(f"can hold none of the requests: {self.rejection}", field="scheduler",
                         hint="Raise kv_tokens (or max_tokens), or send shorter requests")  # fmt: skip

    def gap(self, seconds: float, sequences: float) -> None:
        """Count a gap between two outputs of so many sequences."""
        if sequences:
            self.itl.add(seconds, sequences)

    def prompt(self, seq: Sequence) -> None:
        """Count the input of a request that has been read for the first time."""
        self.input_tokens += seq.input_tokens

    def finish(self, seq: Sequence, now: float, replica: int) -> None:
        """Count a request that has all its tokens."""
        self.finished += 1
        self.last_end_s = now
        assert seq.start_s is not None  # noqa: S101  # what is finished was admitted
        assert seq.first_s is not None  # noqa: S101  # ... and has a first token
        if self.window.ends(now):
            self.ended += 1
        if self.window.holds(seq.arrival_s):
            self._latencies(seq, seq.start_s, seq.first_s, now)
        if self.log is not None:
            self.log(Served(seq.index, replica, seq.arrival_s, seq.start_s, seq.first_s, now, seq.input_tokens,
                            seq.output_tokens, seq.preempted))  # fmt: skip

    def _latencies(self, seq: Sequence, start: float, first: float, now: float) -> None:
        self.counted += 1
        self.decided += 1
        ttft = first - seq.arrival_s + self.overhead_s
        e2e = now - seq.arrival_s + self.overhead_s
        self.ttft.add(ttft)
        self.e2e.add(e2e)
        self.wait.add(start - seq.arrival_s)
        tpot = None
        if seq.output_tokens > 1:
            tpot = (now - first) / (seq.output_tokens - 1)
            self.tpot.add(tpot)
        if self.slo is not None and self.slo.met(ttft, tpot, e2e):
            self.met += 1

    def moment(self, now: float, population: Callable[[], tuple[int, int]]) -> None:
        """Keep a point of the queue's course unless the last one is near; report progress."""
        if not self.queue or now - self.queue[-1].time_s >= self._every_s:
            self.queue.append(QueuePoint(now, *population()))
            if len(self.queue) > QUEUE_POINTS:
                del self.queue[1::2]
                self._every_s = 2.0 * (now - self.queue[0].time_s) / QUEUE_POINTS
        if self.progress is not None:
            clock = time.monotonic()
            if clock - self._told >= PROGRESS_S:
                self._told = clock
                self.progress(self.finished, now)

    def outcome(self, end: float, blocks: tuple[int, int], replicas: tuple[int, int], preemptions: int, late: int) -> Outcome:
        """Put the outcome together.

        Args:
            end: seconds at which the simulation stopped.
            blocks: KV blocks of one replica, and of one prefill server.
            replicas: how many of them.
            preemptions: of all replicas.
            late: unfinished requests that already miss the target of the first token.

        """
        start = self.first_arrival_s or 0.0
        if not self.finished and self.rejected:
            self.refuse()
        span = self.window.overlap(start, end)
        rate = 1.0 / self._some(span, end)
        decided = self.decided + late
        share = self.met / decided if self.slo is not None and decided else None
        main, count = self.main, replicas[0]
        return Outcome(
            requests=self.counted,
            unfinished=self.arrived - self.finished - self.rejected,
            rejected=self.rejected,
            duration_s=span,
            ttft=self.ttft.summary(),
            itl=self.itl.summary(),
            tpot=self.tpot.summary(),
            e2e=self.e2e.summary(),
            wait=self.wait.summary(),
            requests_per_s=self.ended * rate,
            output_tokens_per_s=self.output_tokens * rate,
            total_tokens_per_s=(self.output_tokens + self.input_tokens) * rate,
            resident_mean=main.resident * rate / count,
            resident_max=main.resident_max,
            kv_mean=main.held * rate / (count * blocks[0]),
            kv_max=main.held_max / blocks[0],
            utilisation=min(1.0, main.busy * rate / count),
            prefill_utilisation=min(1.0, self.prefill.busy * rate / replicas[1]) if replicas[1] else None,
            preemptions=preemptions,
            steps=main.steps + self.prefill.steps,
            slo_share=share,
            goodput_per_s=self.met * rate if self.slo is not None else None,
            queue=tuple(self.queue),
            notes=self._notes(end),
        )

    def _some(self, span: float, end: float) -> float:
        """Check that there is a time to divide by."""
        if span > 0.0:
            return span
        if self.window.start_s >= end > 0.0:
            raise InputError(f"begins when the simulation is over, after {end:.6g} s", field="window", value=self.window.start_s)
        raise InputError("let no time pass: every step costs 0 s", field="cost")

    def _notes(self, end: float) -> tuple[str, ...]:
        notes = []
        if self.rejected:
            notes.append(f"{self.rejected} requests were refused, the first because of this: {self.rejection}")
        left = self.arrived - self.finished - self.rejected
        if left:
            notes.append(f"{left} requests were not finished after {end:.6g} s: no latency has them, which favours short ones")
        if not self.counted:
            notes.append("no request arrived in the window and was finished: there are no latencies")
        return tuple(notes)
