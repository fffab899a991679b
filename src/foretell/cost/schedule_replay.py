"""Step seconds of any schedule from the exact course of a few micro-batches, for numbers and arrays alike.

Once a pipeline is full, every further group of micro-batches costs the same: the course of a short step and of one that is
a group longer give the seconds of a step of any length.  Steps up to ``settled`` micro-batches are exact.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from foretell.cost.arrays import Value, is_array, maximum
from foretell.cost.schedule_inputs import Pipeline
from foretell.cost.schedule_program import durations, small_program, total

__all__ = ["replayed", "replayed_unless", "settled"]


def settled(schedule: str, pp: int) -> tuple[int, int]:
    """Micro-batches from which on further ones are taken to cost what the last ones did, and how many those last ones are.

    Few ranks of unlike speed take longer to settle, and cost little to follow.  Where transfers delay the receiver, a
    pipeline goes in rounds of any length up to ``pp``: the last ones are a multiple of ``pp`` and of 2.
    """
    groups = 5 if schedule == "dualpipe" else 4
    last = pp * -(-12 // pp)
    return pp * max(groups, -(-32 // pp)), last + last % 2 * pp


def replayed(question: Pipeline) -> Value:
    """Seconds of a step."""
    m = question.micro_batches
    if not is_array(m):
        return _of_length(question, int(m))
    import numpy as np  # noqa: PLC0415  # arrays came in

    long, _ = settled(question.schedule, question.pp)
    shape = _shape(question)
    count = np.broadcast_to(m, shape)
    out = np.empty(shape)
    for length in np.unique(np.minimum(m, long + 1)).tolist():
        these = count > long if length > long else count == length
        part = _chosen(question, these)
        out[these] = _of_length(part, part.micro_batches if length > long else int(length))
    return out


def replayed_unless(known: Value, question: Pipeline, seconds: Value) -> Value:
    """``seconds`` of the step where they are ``known``; where they are only a bound from below, the course of the step."""
    if not is_array(known):
        return seconds if known else maximum(seconds, replayed(question))
    import numpy as np  # noqa: PLC0415

    shape = _shape(question)
    out = np.array(np.broadcast_to(seconds, shape), dtype=float)
    rest = ~np.broadcast_to(known, shape)
    if rest.any():
        out[rest] = np.maximum(out[rest], replayed(_chosen(question, rest)))
    return out


def _of_length(question: Pipeline, m: Value) -> Value:
    """Seconds of steps of one length, or of any lengths above ``settled``."""
    schedule, pp, vpp = question.schedule, question.pp, question.vpp
    long, group = settled(schedule, pp)
    if not is_array(m) and m <= long:
        return _exactly(question, schedule, pp, vpp, m)
    last, busiest = _exactly(question, schedule, pp, vpp, long), _work(question, m)
    one = (last - _exactly(question, schedule, pp, vpp, long - group)) / group
    return maximum(last + (m - long) * one, busiest)


def _exactly(question: Pipeline, schedule: str, pp: int, vpp: int, m: int) -> Value:
    course = small_program(schedule, pp, vpp, m)
    return total(course, durations(question, course.keys), pp)


def _work(question: Pipeline, m: Value) -> Value:
    """Seconds until the busiest rank is through: the way of the first micro-batch to it, and all that it runs then.

    A rank that is the slowest by little may get the upper hand long after ``settled``.  With two directions there are two
    ways to a rank, and what runs together is not the sum of its parts: nothing is said then.
    """
    way: Value = 0.0
    most: Value = 0.0
    if len(question.streams) > 1:
        return most
    course = small_program(question.schedule, question.pp, question.vpp, question.pp)
    times = durations(question, course.keys)
    for rank in range(question.pp):
        here = [at for at, key in enumerate(course.keys) if key[0] == rank]
        first = course.keys.index((rank, "F", 0, -1))
        way = way + times.lag[first]
        most = maximum(most, way + m * sum(times.held[at] for at in here))
        way = way + times.held[first]
    return most


def _shape(question: Pipeline) -> tuple[int, ...]:
    """Shape of what all arrays of a question are broadcast to."""
    import numpy as np  # noqa: PLC0415

    tables = (question.forward, question.backward_input, question.backward_weight)
    numbers = [question.micro_batches, question.exposed, question.together, *question.hops]
    return np.broadcast_shapes(*(np.shape(v) for v in numbers), *(np.shape(v) for table in tables for row in table for v in row))


def _chosen(question: Pipeline, these: Value) -> Pipeline:
    """The configurations for which ``these`` holds."""
    import numpy as np  # noqa: PLC0415

    def pick(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(pick(one) for one in value)
        return np.broadcast_to(value, these.shape)[these] if is_array(value) else value

    return replace(question, **{f.name: pick(getattr(question, f.name)) for f in fields(question)})
