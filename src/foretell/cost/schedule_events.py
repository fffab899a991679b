"""The exact course of a pipeline schedule: every pass starts when its rank is free and its input has arrived.

The order of a rank's passes is the framework's (``schedule_orders``); nothing overtakes.  A pass that sends keeps its rank
for the exposed share of the transfer and reaches the neighbour when all of it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretell.cost.arrays import Value
from foretell.cost.schedule_inputs import Given, Pipeline, pipeline
from foretell.cost.schedule_program import Program, Seconds, durations, program
from foretell.errors import InputError

__all__ = ["Event", "Simulation", "run", "simulate"]


class Event(NamedTuple):
    """One pass on the timeline; seconds from the start of the step, without the time that its sending keeps the rank.

    ``kind``: ``F``, ``B`` (whole backward), ``I`` and ``W`` (its parts); two passes that run together are two events with
    the same times.
    """

    rank: int
    chunk: int
    kind: str
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """Seconds of one step; lists are over the ranks and add up: ``busy + sending + waiting = makespan``."""

    makespan: float
    busy: tuple[float, ...]
    """Computing."""
    sending: tuple[float, ...]
    """Held by transfers of its own (the exposed share)."""
    timeline: tuple[Event, ...] | None
    """By start, then rank; only where it was asked for."""

    @property
    def idle(self) -> tuple[float, ...]:
        """Not computing: waiting for neighbours or held by transfers."""
        return tuple(self.makespan - one for one in self.busy)

    @property
    def waiting(self) -> tuple[float, ...]:
        """Waiting for a neighbour, or for the end of the step."""
        return tuple(self.makespan - one - other for one, other in zip(self.busy, self.sending, strict=True))


def simulate(
    schedule: str,
    forward: Given,
    backward_input: Given,
    backward_weight: Given | None = None,
    *,
    micro_batches: int,
    p2p: Value | Sequence[Value] = 0.0,
    exposed: float = 1.0,
    together: float = 1.0,
    timeline: bool = False,
) -> Simulation:
    """Run one step of one configuration; arguments and errors of ``schedule_inputs.pipeline``, numbers only.

    >>> simulate("1f1b", [1, 1], [2, 2], micro_batches=2).makespan
    9.0
    """
    return run(
        pipeline(
            schedule,
            forward,
            backward_input,
            backward_weight,
            micro_batches=micro_batches,
            p2p=p2p,
            exposed=exposed,
            together=together,
        ),
        timeline=timeline,
    )


def run(question: Pipeline, *, timeline: bool = False) -> Simulation:
    """As ``simulate``, of a checked question."""
    course = program(question.schedule, question.pp, question.vpp, int(question.micro_batches))
    times = _numbers(durations(question, course.keys))
    starts, makespan = _starts(course, times, question.pp)
    busy, held = ([0.0] * question.pp for _ in range(2))
    for rank, key, *_ in course.steps:
        busy[rank] += times.work[key]
        held[rank] += times.held[key]
    sending = tuple(max(0.0, h - b) for h, b in zip(held, busy, strict=True))
    return Simulation(makespan, tuple(busy), sending, _timeline(course, times, starts) if timeline else None)


def _numbers(times: Seconds) -> Seconds:
    """Plain numbers, which count faster than NumPy's."""
    for values in times:
        for value in values:
            if getattr(value, "ndim", 0):
                raise InputError("one simulation takes numbers; step_seconds takes arrays too", value=value)
    return Seconds(*([float(value) for value in values] for values in times))


def _starts(course: Program, times: Seconds, pp: int) -> tuple[list[float], float]:
    """When each step starts, and when the last one is over."""
    done = [0.0] * (course.outputs + 2)
    now = [0.0] * pp
    starts: list[float] = []
    _, held, lag, also_lag = times
    for rank, key, out, need, also_out, also_need in course.steps:
        start = now[rank]
        if need >= 0:
            arrival = done[need] + lag[key]
            if arrival > start:  # noqa: PLR1730  # in half the time of max
                start = arrival
        if also_need >= 0:
            arrival = done[also_need] + also_lag[key]
            if arrival > start:  # noqa: PLR1730  # in half the time of max
                start = arrival
        starts.append(start)
        now[rank] = done[out] = done[also_out] = start + held[key]
    return starts, max(now)


def _timeline(course: Program, times: Seconds, starts: list[float]) -> tuple[Event, ...]:
    events = [
        Event(step[0], chunk, kind, micro_batch, start, start + times.work[step[1]])
        for step, start in zip(course.steps, starts, strict=True)
        for chunk, kind, micro_batch in course.passes(step)
    ]
    return tuple(sorted(events, key=lambda event: (event.start, event.rank)))
