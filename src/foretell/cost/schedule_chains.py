"""The longest chain of passes and transfers from a step's first forward pass to its last backward pass, in closed form.

Only a few chains can be the longest: those that come down to one rank, stay with it while it works through its
micro-batches, and leave it at the end.  None is longer than the step; the largest is as long, up to chains that change
ranks on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from foretell.cost.arrays import Value, is_array, maximum, minimum, where
from foretell.cost.schedule_inputs import Pipeline

__all__ = ["Chain", "gpipe", "interleaved", "one_f_one_b"]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Chain:
    """Seconds along the stages of the model with what sending takes from the rank; ``lag``: what is left of a transfer."""

    pp: int
    m: Value
    forward: tuple[Value, ...]
    backward: tuple[Value, ...]
    lag: tuple[Value, ...]
    """From each stage to the next."""

    @classmethod
    def of(cls, question: Pipeline) -> Chain:
        stream = question.streams[0]
        hops = [question.hop(a[0], b[0]) for a, b in pairwise(stream)]
        held = [question.exposed * hop for hop in hops]
        return cls(
            question.pp,
            question.micro_batches,
            tuple(question.forward[r][c] + sent for (r, c), sent in zip(stream, [*held, 0.0], strict=True)),
            tuple(question.backward(r, c) + sent for (r, c), sent in zip(stream, [0.0, *held], strict=True)),
            tuple(hop * (1.0 - question.exposed) for hop in hops),
        )

    @property
    def plain(self) -> Value:
        """Whether no interleaved chain changes ranks on the way, to 1 %.

        All stages inside take the same seconds; the first, with the embedding, up to a fifth more; the last, with head and
        loss, any more; transfers that only delay the receiver a tenth of a stage at most.
        """
        passes = [*zip(self.forward, self.backward, strict=True)]
        if len(passes) < 3:
            return False
        plain: Value = True
        for of_stage in (0, 1):
            inside = passes[1][of_stage]
            for one in passes[2:-1]:
                plain = plain & _same(one[of_stage], inside)
            first, last = passes[0][of_stage], passes[-1][of_stage]
            plain = plain & (first >= (1 - _ROUNDING) * inside) & (first <= 1.2 * inside) & (last >= (1 - _ROUNDING) * inside)
        for lag in self.lag:
            plain = plain & _same(lag, self.lag[0]) & (lag <= sum(passes[1]) / 10)
        return plain


def _same(a: Value, b: Value) -> Value:
    return True if a is b else abs(a - b) <= _ROUNDING * abs(a)


def _largest(values: Sequence[Value]) -> Value:
    return reduce(maximum, values)


def gpipe(chain: Chain) -> Value:
    """All forward passes, then all backward passes: each a flow of equal jobs through the stages (exact)."""
    once = sum(chain.forward) + sum(chain.backward) + 2 * sum(chain.lag)
    return once + (chain.m - 1) * (_largest(chain.forward) + _largest(chain.backward))


def _entry(chain: Chain, f: tuple[Value, ...], b: tuple[Value, ...]) -> list[Value]:
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


def one_f_one_b(chain: Chain) -> Value:
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


def _rounds(chain: Chain, s: int, count: Value) -> Value:
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


def _fill(chain: Chain, f: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[list[Value], list[Value]]:
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


def interleaved(chain: Chain) -> Value:
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
        chains.append(where((m > pp) | (2 * (pp - r - 1) + 1 < pp), in_turns, all_first))  # else all before any backward pass
        if r < pp - 1:
            down, up = down + f[r] + chain.lag[r], up + b[r] + chain.lag[r]
    return _largest(chains)
