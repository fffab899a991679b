"""A schedule as a program: every rank's passes in one list in which no pass stands before what it waits for.

The list depends on the schedule, the ranks, the chunks and the micro-batches, never on seconds, so one list serves any
number of configurations, as numbers or as arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from foretell.cost.arrays import Value, maximum
from foretell.cost.schedule_inputs import Pipeline
from foretell.cost.schedule_orders import Pass, order, place

__all__ = ["Key", "Program", "Seconds", "Step", "durations", "program", "small_program", "total"]

Key = tuple[int, str, int, int]
"""Rank, kind and chunk of a pass, and the chunk of a backward pass that runs with it (-1: none)."""
_NOTHING, _NOBODY = -1, -2  # places for what is there from the start, and for what nobody waits for


class Step(NamedTuple):
    """A pass as a clock sees it: numbers of the outputs (activations and gradients) that it makes and needs."""

    rank: int
    key: int
    out: int
    need: int
    also_out: int
    also_need: int


class Program(NamedTuple):
    """Steps in an order that can be run from front to back, and the pass behind each."""

    steps: list[Step]
    passes: list[Pass]
    keys: list[Key]
    outputs: int


class Seconds(NamedTuple):
    """Of each key of a program: computing, keeping the rank (with the exposed part of sending), and waiting for input."""

    work: list[Value]
    held: list[Value]
    lag: list[Value]
    also_lag: list[Value]


def program(schedule: str, pp: int, vpp: int, micro_batches: int) -> Program:
    """Put the passes of all ranks in one list.  A rank runs on until its next pass needs what is not made yet."""
    ranks = order(schedule, pp, vpp, micro_batches)
    keys: dict[Key, int] = {}
    translate = _Translator(schedule, pp, vpp, micro_batches, keys)
    steps: list[Step] = []
    passes: list[Pass] = []
    made = bytearray(translate.outputs) + b"\x00\x01"
    asleep: dict[int, int] = {}
    at = [0] * pp
    awake = list(range(pp))
    while awake:
        rank = awake.pop()
        todo = ranks[rank]
        for index in range(at[rank], len(todo)):
            one = todo[index]
            step = translate.step(rank, one)
            _, _, out, need, also_out, also_need = step
            if not made[need] or not made[also_need]:
                asleep[also_need if made[need] else need] = rank
                at[rank] = index
                break
            steps.append(step)
            passes.append(one)
            made[out] = made[also_out] = 1
            awake.extend(asleep.pop(new) for new in (out, also_out) if new in asleep)
        else:
            at[rank] = len(todo)
    if asleep:
        raise RuntimeError(f"the passes of {schedule} wait for each other")
    return Program(steps, passes, list(keys), translate.outputs)


small_program = lru_cache(maxsize=64)(program)


class _Translator:
    """Numbers the outputs: activations of every stage and micro-batch, then gradients."""

    def __init__(self, schedule: str, pp: int, vpp: int, m: int, keys: dict[Key, int]) -> None:
        self.keys = keys
        streams = place(schedule, pp, vpp)
        stages = sum(len(stream) for stream in streams)
        self.outputs = 2 * stages * m
        self.first: dict[tuple[int, str, int], tuple[int, int]] = {}
        """Of each rank, kind and chunk: output and input of micro-batch 0."""
        offset = 0
        for stream in streams:
            last = len(stream) - 1
            for k, (rank, chunk) in enumerate(stream):
                activation, gradient = (offset + k) * m, (stages + offset + k) * m
                self.first[rank, "F", chunk] = activation, activation - m if k else _NOTHING
                self.first[rank, "B", chunk] = self.first[rank, "I", chunk] = gradient, gradient + m if k < last else activation
            offset += len(stream)

    def step(self, rank: int, one: Pass) -> Step:
        kind, chunk, i, back_chunk, back_i = one
        key = self.keys.setdefault((rank, kind, chunk, back_chunk), len(self.keys))
        if kind == "W":
            return Step(rank, key, _NOBODY, _NOTHING, _NOBODY, _NOTHING)
        if kind != "FB":
            out, need = self.first[rank, kind, chunk]
            return Step(rank, key, out + i, need + i if need >= 0 else need, _NOBODY, _NOTHING)
        out, need = self.first[rank, "F", chunk]
        also_out, also_need = self.first[rank, "B", back_chunk]
        return Step(rank, key, out + i, need + i if need >= 0 else need, also_out + back_i, also_need + back_i)


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
