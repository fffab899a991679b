"""The exact course of a pipeline schedule: every pass starts when its rank is free and its input has arrived.

The order of a rank's passes is the framework's (``schedule_orders``); nothing overtakes.  A pass that sends keeps its rank
for the exposed share of the transfer and reaches the neighbour when all of it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foretell.cost.arrays import Value, is_array
from foretell.cost.schedule_inputs import Given, Pipeline, pipeline
from foretell.cost.schedule_orders import Pass
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
    tables = (question.forward, question.backward_input, question.backward_weight)
    numbers = (question.micro_batches, question.exposed, question.together, *question.hops)
    if is_array(*numbers, *(value for table in tables for row in table for value in row)):
        raise InputError("one simulation takes numbers, not arrays: step_seconds takes both", field="schedule")
    course = program(question.schedule, question.pp, question.vpp, int(question.micro_batches))
    times = durations(question, course.keys)
    starts, makespan = _starts(course, times, question.pp)
    busy, held = ([0.0] * question.pp for _ in range(2))
    for step in course.steps:
        busy[step.rank] += times.work[step.key]
        held[step.rank] += times.held[step.key]
    events = None
    if timeline:
        every = zip(course.steps, course.passes, starts, strict=True)
        found = (e for step, one, start in every for e in _events(step.rank, one, start, start + times.work[step.key]))
        events = tuple(sorted(found, key=lambda e: (e.start, e.rank)))
    return Simulation(makespan, tuple(busy), tuple(max(0.0, h - b) for h, b in zip(held, busy, strict=True)), events)


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


def _events(rank: int, one: Pass, start: float, end: float) -> list[Event]:
    """What the timeline shows of a pass."""
    if one.kind != "FB":
        return [Event(rank, one.chunk, one.kind, one.micro_batch, start, end)]
    return [
        Event(rank, one.chunk, "F", one.micro_batch, start, end),
        Event(rank, one.back_chunk, "B", one.back_micro_batch, start, end),
    ]
