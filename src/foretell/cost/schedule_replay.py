"""Step seconds of any schedule from the exact course of a few micro-batches, for numbers and arrays alike.

Once a pipeline is full, every further group of ``pp`` micro-batches costs the same: the course of a short step and of one
that is a group longer give the seconds of a step of any length.  Steps up to ``settled`` micro-batches are exact.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from foretell.cost.arrays import Value, is_array
from foretell.cost.schedule_inputs import Pipeline
from foretell.cost.schedule_program import durations, small_program, total

__all__ = ["replayed", "settled"]


def settled(schedule: str, pp: int) -> int:
    """Micro-batches from which on a further group of ``pp`` is taken to cost what the last one did."""
    return (5 if schedule == "dualpipe" else 4) * pp


def replayed(question: Pipeline) -> Value:
    """Seconds of a step."""
    m = question.micro_batches
    if not is_array(m):
        return _of_length(question, int(m))
    import numpy as np  # noqa: PLC0415  # arrays came in

    long = settled(question.schedule, question.pp)
    shape = np.broadcast_shapes(*(np.shape(value) for value in _values(question)))
    count = np.broadcast_to(m, shape)
    out = np.empty(shape)
    for length in np.unique(np.minimum(m, long + 1)).tolist():
        these = count > long if length > long else count == length
        part = _where(question, these, shape)
        out[these] = _of_length(part, part.micro_batches if length > long else int(length))
    return out


def _of_length(question: Pipeline, m: Value) -> Value:
    """Seconds of steps of one length, or of any lengths above ``settled``."""
    schedule, pp, vpp = question.schedule, question.pp, question.vpp
    long = settled(schedule, pp)
    if not is_array(m) and m <= long:
        return _exactly(question, schedule, pp, vpp, m)
    last = _exactly(question, schedule, pp, vpp, long)
    group = last - _exactly(question, schedule, pp, vpp, long - pp)
    return last + (m - long) * (group / pp)


def _exactly(question: Pipeline, schedule: str, pp: int, vpp: int, m: int) -> Value:
    course = small_program(schedule, pp, vpp, m)
    return total(course, durations(question, course.keys), pp)


def _values(question: Pipeline) -> list[Value]:
    tables = (question.forward, question.backward_input, question.backward_weight)
    numbers = [question.micro_batches, question.exposed, question.together, *question.hops]
    return numbers + [value for table in tables for row in table for value in row]


def _where(question: Pipeline, these: Value, shape: tuple[int, ...]) -> Pipeline:
    """The configurations for which ``these`` holds."""
    import numpy as np  # noqa: PLC0415

    def pick(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(pick(one) for one in value)
        return np.broadcast_to(value, shape)[these] if is_array(value) else value

    return replace(question, **{f.name: pick(getattr(question, f.name)) for f in fields(question)})
