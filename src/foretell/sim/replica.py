"""One server as a SimPy process: it decides a step (``batch``), lets its seconds pass, and ends it.

While nothing changes but the context it lets many steps pass at once (``ramp``).  An arrival that could be admitted interrupts
it, and the step that is running then is the last one before the next decision.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Any, Protocol

import simpy

from foretell.cost.serving_load import StepCost
from foretell.sim.batch import Batch, Sequence, Step
from foretell.sim.ramp import Ramp, price, stretch
from foretell.sim.recorder import Meter, Recorder

__all__ = ["Events", "Hub", "Replica"]

Events = Generator[Any, Any, None]
"""A SimPy process."""


class Hub(Protocol):
    """What servers share."""

    env: Any
    """The SimPy environment."""
    recorder: Recorder
    edges: list[float]
    """Moments (seconds) that no stretch of steps passes over."""
    jump: bool
    """Whether several steps may pass at once."""

    def hand_over(self, replica: Replica, seq: Sequence) -> None:
        """Send the KV cache of a sequence to a server that decodes it."""
        ...

    def finish(self, seq: Sequence, now: float, replica: int) -> None:
        """A request is over."""
        ...

    def population(self) -> tuple[int, int]:
        """Requests that wait and that are resident, over all servers."""
        ...


class Replica:
    """One replica: its batch, and the process that runs it."""

    def __init__(self, hub: Hub, number: int, batch: Batch, cost: StepCost, meter: Meter) -> None:
        self._hub = hub
        self.number = number
        self.batch = batch
        self.cost = cost
        self.meter = meter
        self.running: tuple[float, Step] | None = None  # when the step that runs began, and what it is
        self._idle: Any = None  # event that somebody has come, while there is nothing to do
        self._open = False  # a stretch of steps is passing that an arrival may cut short
        self.process: Any = hub.env.process(self._run())

    @property
    def load(self) -> int:
        """Requests that wait or are resident."""
        return len(self.batch.waiting) + len(self.batch.running)

    def submit(self, seq: Sequence) -> None:
        """Queue a sequence; a server that is idle, or could admit it before its stretch is over, is told."""
        batch = self.batch
        batch.waiting.append(seq)
        if self._open and len(batch.waiting) == 1 and len(batch.running) < batch.scheduler.max_seqs:
            self._open = False
            self.process.interrupt()
        self.wake()

    def wake(self) -> None:
        """Let an idle server look again."""
        if self._idle is not None and not self._idle.triggered:
            self._idle.succeed()

    def _run(self) -> Events:
        env, batch = self._hub.env, self.batch
        while True:
            yield env.timeout(0)  # who arrives at this very moment is in the queue before the next decision
            step = batch.plan()
            if step is None:
                self._idle = env.event()
                yield self._idle
                self._idle = None
                continue
            start = env.now
            for seq, _ in step.reading:
                if seq.start_s is None:
                    seq.start_s = start
            ramp = self._price(step, start)
            self.running = start, step
            count = ramp.count
            try:
                self._open = count > 1
                yield env.timeout(ramp.seconds(count))
            except simpy.Interrupt:
                count = ramp.until(env.now - start)
                yield env.timeout(max(0.0, start + ramp.seconds(count) - env.now))
            self._open = False
            self.running = None
            self._end(step, ramp, count, start)

    def _price(self, step: Step, start: float) -> Ramp:
        """Price the step, or the stretch of steps up to the next moment at which counting begins or ends."""
        if step.steps == 1 or not self._hub.jump:
            return Ramp(price(self.cost, step.load), 0.0, 1)
        ramp = stretch(self.cost, step.load, lambda steps: self.batch.load_after(step, steps), step.steps)
        edge = next((moment for moment in self._hub.edges if moment > start), inf)
        count = ramp.count if start + ramp.seconds(ramp.count) <= edge else ramp.within(edge - start)
        while count > 1 and start + ramp.seconds(count) > edge:  # as the clock will count
            count -= 1
        return Ramp(ramp.first, ramp.slope, count)

    def _end(self, step: Step, ramp: Ramp, count: int, start: float) -> None:
        """End the steps: count tokens, gaps and occupancy, and let go who is done."""
        batch, recorder, now = self.batch, self._hub.recorder, self._hub.env.now
        inside = recorder.window.ends(now)
        resident = len(batch.running)
        if step.load.decode:
            if inside:
                self._gaps(ramp, count, start)
            batch.last_s = now
        held = batch.held_after(count) if count > 1 else step.held
        done, read, made = batch.advance(step, count)
        self.meter.steps += count
        self.meter.add(start, now, resident, (step.held, held))
        if inside:
            recorder.output_tokens += made + len(read)
        for seq in read:
            if seq.first_s is None:
                seq.first_s = now
                if inside:
                    recorder.prompt(seq)
            elif inside:
                recorder.gap(now - seq.last_s, 1)
            seq.last_s = now
            if seq.made == seq.output_tokens:
                done.append(seq)
            elif batch.hands_over:
                self._hub.hand_over(self, seq)
        for seq in done:
            self._hub.finish(seq, now, self.number)
        recorder.moment(now, self._hub.population)

    def _gaps(self, ramp: Ramp, count: int, start: float) -> None:
        """Count the gaps that end with these steps."""
        batch, recorder = self.batch, self._hub.recorder
        first = (start + ramp.first) if count > 1 else self._hub.env.now
        recorder.gap(first - batch.last_s, batch.decoding - len(batch.fresh))
        for seq in batch.fresh:
            recorder.gap(first - seq.last_s, 1)
        if count > 1:
            recorder.itl.add_ramp(ramp.step(1), ramp.step(count - 1), count - 1, batch.decoding)
