"""Step seconds of a pipeline schedule in closed form, for numbers and arrays alike; ``schedule_events`` is its check.

A step is the longest chain of passes and transfers from the first forward pass to the last backward pass.  Only a few
chains can be the longest: those that come down to one rank, stay with it while it works through its micro-batches, and
leave it at the end.  The seconds are the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from foretell.cost.arrays import Value, is_array, maximum, minimum, where
from foretell.cost.schedule_inputs import Given, Pipeline, pipeline
from foretell.cost.schedule_replay import replayed

__all__ = ["Bubble", "bubble", "idle", "seconds", "step_seconds"]


def step_seconds(
    schedule: str,
    forward: Given,
    backward_input: Given,
    backward_weight: Given | None = None,
    *,
    micro_batches: Value,
    p2p: Value | Sequence[Value] = 0.0,
    exposed: Value = 1.0,
    together: Value = 1.0,
) -> Value:
    """Seconds from the first forward to the last backward pass; arguments and errors of ``schedule_inputs.pipeline``.

    >>> step_seconds("1f1b", [1, 1], [2, 2], micro_batches=2)  # (m + pp - 1)(f + b)
    9.0
    """
    return seconds(
        pipeline(
            schedule,
            forward,
            backward_input,
            backward_weight,
            micro_batches=micro_batches,
            p2p=p2p,
            exposed=exposed,
            together=together,
        )
    )


def seconds(question: Pipeline) -> Value:
    """As ``step_seconds``, of a checked question."""
    form = _FORMS.get(question.schedule)
    return replayed(question) if form is None else form(_Chain.of(question))


@dataclass(frozen=True, slots=True)
class Bubble:
    """Seconds of a step in which ranks do not compute, transfers that hold them included."""

    step: Value
    """Seconds of the step."""
    ranks: tuple[Value, ...]
    """Idle seconds of each rank."""

    @property
    def seconds(self) -> Value:
        """Idle seconds, the mean over ranks."""
        return sum(self.ranks) / len(self.ranks)

    @property
    def of_step(self) -> Value:
        """``idle / step``: the share of what is paid for that does nothing."""
        return self.seconds / self.step

    @property
    def of_ideal(self) -> Value:
        """``idle / (step - idle)``: the bubble of the Megatron papers (2104.04473), ``(pp - 1) / (vpp m)`` on equal stages."""
        return self.seconds / (self.step - self.seconds)


def bubble(
    schedule: str,
    forward: Given,
    backward_input: Given,
    backward_weight: Given | None = None,
    *,
    micro_batches: Value,
    p2p: Value | Sequence[Value] = 0.0,
    exposed: Value = 1.0,
    together: Value = 1.0,
) -> Bubble:
    """What the ranks of a pipeline do not compute in; arguments and errors of ``schedule_inputs.pipeline``.

    >>> bubble("1f1b", [1, 1, 1, 1], [2, 2, 2, 2], micro_batches=6).of_ideal  # 3 / 6
    0.5
    """
    return idle(
        pipeline(
            schedule,
            forward,
            backward_input,
            backward_weight,
            micro_batches=micro_batches,
            p2p=p2p,
            exposed=exposed,
            together=together,
        )
    )


def idle(question: Pipeline) -> Bubble:
    """As ``bubble``, of a checked question."""
    step = seconds(question)
    return Bubble(step, tuple(step - question.busy(rank) for rank in range(question.pp)))


@dataclass(frozen=True, slots=True)
class _Chain:
    """Seconds along the stages of the model with what sending takes from the rank; ``lag``: what is left of a transfer."""

    pp: int
    m: Value
    forward: tuple[Value, ...]
    backward: tuple[Value, ...]
    weight: tuple[Value, ...]
    """Part of ``backward`` that nobody waits for."""
    lag: tuple[Value, ...]
    """From each stage to the next."""

    @classmethod
    def of(cls, question: Pipeline) -> _Chain:
        stream = question.streams[0]
        hops = [question.hop(a[0], b[0]) for a, b in pairwise(stream)]
        held = [question.exposed * hop for hop in hops]
        return cls(
            question.pp,
            question.micro_batches,
            tuple(question.forward[r][c] + sent for (r, c), sent in zip(stream, [*held, 0.0], strict=True)),
            tuple(question.backward(r, c) + sent for (r, c), sent in zip(stream, [0.0, *held], strict=True)),
            tuple(question.backward_weight[r][c] for r, c in stream),
            tuple(hop * (1.0 - question.exposed) for hop in hops),
        )


def _largest(values: Sequence[Value]) -> Value:
    return reduce(maximum, values)


def _gpipe(chain: _Chain) -> Value:
    """All forward passes, then all backward passes: each a flow of equal jobs through the stages (exact)."""
    once = sum(chain.forward) + sum(chain.backward) + 2 * sum(chain.lag)
    return once + (chain.m - 1) * (_largest(chain.forward) + _largest(chain.backward))


def _entry(chain: _Chain, f: tuple[Value, ...], b: tuple[Value, ...]) -> list[Value]:
    """1F1B: seconds until each stage starts its first backward pass.

    It needs a stage ``e`` at or below to have run its warm-up and turned round.  The same with forward and backward in
    each other's place is the way from a stage's last forward pass to the end.
    """
    down: list[Value] = []
    passed, slowest = 0.0, 0.0
    for e, one in enumerate(f):
        passed, slowest = passed + one, maximum(slowest, one)
        down.append(passed + minimum(chain.pp - 1 - e, chain.m - 1) * slowest)
        passed = passed + (chain.lag[e] if e < chain.pp - 1 else 0.0)
    for e in reversed(range(chain.pp - 1)):
        down[e] = maximum(down[e], down[e + 1] + b[e + 1] + chain.lag[e])
    return down


def _1f1b(chain: _Chain) -> Value:
    """Chains that stay with one stage (2006.09503), or go round and round between two where transfers take time.

    A stage keeps at most ``pp - stage`` micro-batches, so going round from ``s`` to ``e`` carries ``e - s + 1`` of them on:
    a transfer that delays the receiver is paid nearly twice for every micro-batch, by any 1F1B.
    """
    f, b, m, pp = chain.forward, chain.backward, chain.m, chain.pp
    start, finish = _entry(chain, f, b), _entry(chain, b, f)
    chains: list[Value] = []
    down = up = slow_down = slow_up = 0.0
    for s in range(pp):
        down, up = down + f[s], up + b[s]
        slow_down, slow_up = maximum(slow_down, f[s]), maximum(slow_up, b[s])
        between = m - pp + s  # micro-batches that this stage runs in turns, less one
        all_first = maximum(start[s] + up + (m - 1) * slow_up, finish[s] + down + (m - 1) * slow_down)
        in_turns = start[s] + finish[s] + b[s] + f[s] + _rounds(chain, s, maximum(between, 1) - 1)
        chains.append(where(between >= 1, in_turns, all_first))
        if s < pp - 1:
            down, up = down + chain.lag[s], up + chain.lag[s]
    return _largest(chains)


def _rounds(chain: _Chain, s: int, count: Value) -> Value:
    """Longest chain over ``count`` micro-batches between stage ``s`` and one below it."""
    trip = chain.forward[s] + chain.backward[s]
    longest = count * trip
    lags = 0.0
    for e in range(s + 1, chain.pp):
        lag = chain.lag[e - 1]
        if not is_array(lag) and lag == 0 and not is_array(lags) and lags == 0:
            return longest  # without transfers no mean of stages is above the slowest of them
        size = e - s + 1
        lags = lags + lag
        trip = trip + chain.forward[e] + chain.backward[e] + 2 * lag
        left = count % size  # these go round a shorter way, which has one transfer fewer to pay
        short = where(left > 0, (1 - left / size) * 2 * lags / (size - 1), 0.0)
        longest = maximum(longest, count * trip / size - short)
    return longest


def _fill(chain: _Chain, f: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[list[Value], list[Value]]:
    """Interleaved: seconds until each rank starts its first backward pass, and how many seconds it computed before.

    Groups of ``pp`` micro-batches go through chunk after chunk; a rank begins a chunk once it has run the one before and
    the first micro-batch has come round.  Before its first backward pass it runs ``2 (pp - rank - 1)`` more passes than
    the last rank, of the last chunk and then of the next group.  ``f`` and ``b`` as in ``_entry``.
    """
    pp, vpp, m = chain.pp, len(f) // chain.pp, chain.m
    head = [0.0] * pp  # when each rank may start the chunk
    start: list[Value] = [0.0] * pp
    spent: list[Value] = [0.0] * pp
    arrival: Value = 0.0
    for chunk in range(vpp):
        through: Value = 0.0
        for r in range(pp):
            k = chunk * pp + r
            begin = maximum(head[r], arrival)
            arrival = begin + f[k] + (chain.lag[k] if k < len(f) - 1 else 0.0)
            if chunk == vpp - 1:
                more = 2 * (pp - r - 1)  # passes after the first one of this chunk
                rest = min(more, pp - 1) * f[k] + where(m > pp, max(0, more - pp + 1) * f[r], 0.0)
                start[r], spent[r] = begin + f[k] + rest, spent[r] + f[k] + rest
            else:
                through = maximum(begin + pp * f[k], through + f[k] + (chain.lag[k - 1] if r else 0.0))
                head[r], spent[r] = through, spent[r] + pp * f[k]
    for r in reversed(range(pp - 1)):
        k = (vpp - 1) * pp + r
        start[r] = maximum(start[r], start[r + 1] + b[k + 1] + chain.lag[k])
    return start, spent


def _interleaved(chain: _Chain) -> Value:
    """Chains that stay with one rank and its chunks (2104.04473, order of Megatron-Core)."""
    f, b, m, pp = chain.forward, chain.backward, chain.m, chain.pp
    # seen from the end, the last chunk's backward pass is the first chunk's forward pass
    start, before = _fill(chain, f, b)
    finish, after = _fill(chain, b, f)
    chains: list[Value] = []
    down = up = 0.0
    for r in range(pp):
        one_f, one_b = sum(f[r::pp]), sum(b[r::pp])
        all_first = maximum(start[r] + m * one_b + up, finish[r] + m * one_f + down)
        in_turns = start[r] + finish[r] + m * (one_f + one_b) - before[r] - after[r]
        chains.append(where((m > pp) | (2 * (pp - r - 1) < pp), in_turns, all_first))
        if r < pp - 1:
            down, up = down + f[r] + chain.lag[r], up + b[r] + chain.lag[r]
    return _largest(chains)


_FORMS = {"gpipe": _gpipe, "1f1b": _1f1b, "interleaved-1f1b": _interleaved}
