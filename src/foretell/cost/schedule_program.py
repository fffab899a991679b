"""A schedule as a program: every rank's passes in one list in which no pass stands before what it waits for.

The list depends on the schedule, the ranks, the chunks and the micro-batches, never on seconds, so one list serves any
number of configurations, as numbers or as arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from foretell.cost.arrays import Value, maximum
from foretell.cost.schedule_inputs import Pipeline
from foretell.cost.schedule_orders import Pass, order, place

__all__ = ["Key", "Program", "Seconds", "Step", "durations", "program", "small_program", "total"]

Key = tuple[int, str, int, int]
"""Rank, kind and chunk of a pass, and the chunk of a backward pass that runs with it (-1: none)."""
_NOTHING, _NOBODY = -1, -2  # places for what is there from the start, and for what nobody waits for


Step = tuple[int, int, int, int, int, int]
"""A pass as a clock sees it: its rank, its key, the number of what it makes (activation, gradient or nobody's input) and of
what it needs; twice, for the second of two passes that run together."""


class Program(NamedTuple):
    """Steps in an order that can be run from front to back."""

    steps: list[Step]
    keys: list[Key]
    micro_batches: int
    outputs: int

    def passes(self, step: Step) -> list[tuple[int, str, int]]:
        """Chunk, kind and micro-batch of the one or two passes of a step."""
        _, key, out, _, also_out, _ = step
        _, kind, chunk, back_chunk = self.keys[key]
        if kind != "FB":
            return [(chunk, kind, out % self.micro_batches)]
        return [(chunk, "F", out % self.micro_batches), (back_chunk, "B", also_out % self.micro_batches)]


class Seconds(NamedTuple):
    """Of each key of a program: computing, keeping the rank (with the exposed part of sending), and waiting for input."""

    work: list[Value]
    held: list[Value]
    lag: list[Value]
    also_lag: list[Value]


def program(schedule: str, pp: int, vpp: int, micro_batches: int) -> Program:
    """Put the passes of all ranks in one list.  A rank runs on until its next pass needs what is not made yet."""
    numbers, outputs = _numbers(schedule, pp, vpp, micro_batches)
    keys: dict[Key, int] = {}
    ranks = [_translated(rank, passes, keys, numbers) for rank, passes in enumerate(order(schedule, pp, vpp, micro_batches))]
    steps: list[Step] = []
    made = bytearray(outputs) + b"\x00\x01"  # in the last places: for nobody, and there from the start
    asleep: dict[int, int] = {}
    at = [0] * pp
    awake = list(range(pp))
    while awake:
        rank = awake.pop()
        todo = ranks[rank]
        index = at[rank]
        for step in islice(todo, index, None):
            _, _, out, need, also_out, also_need = step
            if not made[need] or not made[also_need]:
                asleep[also_need if made[need] else need] = rank
                break
            made[out] = made[also_out] = 1
            index += 1
            if out in asleep:
                awake.append(asleep.pop(out))
            if also_out in asleep:
                awake.append(asleep.pop(also_out))
        steps.extend(todo[at[rank] : index])
        at[rank] = index
    if asleep:
        raise RuntimeError(f"the passes of {schedule} wait for each other")
    return Program(steps, list(keys), micro_batches, outputs)


small_program = lru_cache(maxsize=16)(program)


def _numbers(schedule: str, pp: int, vpp: int, m: int) -> tuple[dict[tuple[int, str, int], tuple[int, int]], int]:
    """Of each rank, kind and chunk: what micro-batch 0 makes and needs; and how many outputs there are."""
    streams = place(schedule, pp, vpp)
    stages = sum(len(stream) for stream in streams)
    numbers: dict[tuple[int, str, int], tuple[int, int]] = {}
    offset = 0
    for stream in streams:
        last = len(stream) - 1
        for k, (rank, chunk) in enumerate(stream):
            activation, gradient, weight = ((bank * stages + offset + k) * m for bank in range(3))
            numbers[rank, "F", chunk] = activation, activation - m if k else _NOTHING
            numbers[rank, "B", chunk] = numbers[rank, "I", chunk] = gradient, gradient + m if k < last else activation
            numbers[rank, "W", chunk] = weight, gradient
        offset += len(stream)
    return numbers, 3 * stages * m


def _translated(
    rank: int, passes: Iterable[Pass], keys: dict[Key, int], numbers: dict[tuple[int, str, int], tuple[int, int]]
) -> list[Step]:
    """Steps of a rank."""
    known: dict[tuple[str, int, int], tuple[int, int, int, int, int]] = {}
    steps: list[Step] = []
    for kind, chunk, i, back_chunk, back_i in passes:
        found = known.get((kind, chunk, back_chunk))
        if found is None:
            key = keys.setdefault((rank, kind, chunk, back_chunk), len(keys))
            out, need = numbers[rank, kind[0], chunk]
            also = numbers[rank, "B", back_chunk] if kind == "FB" else (_NOBODY, _NOTHING)
            found = known[kind, chunk, back_chunk] = (key, out, need, *also)
        key, out, need, also_out, also_need = found
        if kind == "FB":
            also_out, also_need = also_out + back_i, also_need + back_i
        steps.append((rank, key, out + i, need + i if need >= 0 else need, also_out, also_need))
    return steps


def durations(question: Pipeline, keys: list[Key]) -> Seconds:
    """Seconds of each key of a program."""
    sent: dict[tuple[int, str, int], tuple[Value, Value]] = {}  # to the next stage, and from the one before
    for stream in question.streams:
        for k, (rank, chunk) in enumerate(stream):
            before = question.hop(stream[k - 1][0], rank) if k else 0.0
            after = question.hop(rank, stream[k + 1][0]) if k < len(stream) - 1 else 0.0
            sent[rank, "F", chunk] = after, before
            sent[rank, "B", chunk] = sent[rank, "I", chunk] = before, after
            sent[rank, "W", chunk] = 0.0, 0.0
    late = 1.0 - question.exposed
    found = Seconds([], [], [], [])
    for rank, kind, chunk, back in keys:
        out, into = sent[rank, "F" if kind == "FB" else kind, chunk]
        out_too, into_too = sent[rank, "B", back] if kind == "FB" else (0.0, 0.0)
        work = question.seconds_of(rank, kind, chunk, back)
        found.work.append(work)
        found.held.append(work + question.exposed * (out + out_too))
        found.lag.append(late * into)
        found.also_lag.append(late * into_too)
    return found


def total(course: Program, times: Seconds, pp: int) -> Value:
    """Seconds until the last pass is over, for numbers and arrays alike."""
    done: list[Value] = [0.0] * (course.outputs + 2)
    now: list[Value] = [0.0] * pp
    _, held, lag, also_lag = times
    for rank, key, out, need, also_out, also_need in course.steps:
        start = now[rank]
        if need >= 0:
            start = maximum(start, done[need] + lag[key])
        if also_need >= 0:
            start = maximum(start, done[also_need] + also_lag[key])
        now[rank] = done[out] = done[also_out] = start + held[key]
    end = now[0]
    for one in now[1:]:
        end = maximum(end, one)
    return end
