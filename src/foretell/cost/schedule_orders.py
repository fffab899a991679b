"""Pipeline schedules as orders: which passes each rank runs, one after the other, and which stage each chunk is.

Sources: GPipe arXiv 1811.06965 (pytorch ``ScheduleGPipe``); 1F1B with flush 2006.09503; interleaved 1F1B 2104.04473
(Megatron-Core ``schedules.py``); ZB-H1 and ZB-V 2401.10241 and 2405.15362 (orders of pytorch
``torch/distributed/pipelining/schedules.py``: ``ScheduleInterleavedZeroBubble`` and ``ScheduleZBVZeroBubble``);
DualPipe 2412.19437 (deepseek-ai/DualPipe ``dualpipe.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["ORDERS", "Pass", "order", "place", "together"]

Place = tuple[int, int]
"""Rank and model chunk."""


class Pass(NamedTuple):
    """One pass of one micro-batch through one model chunk of a rank.

    Kinds: ``F`` forward, ``B`` whole backward, ``I`` its input-gradient part, ``W`` its weight-gradient part, ``FB`` a
    forward and a whole backward pass that run together (DualPipe), the latter of ``back_chunk`` and ``back_micro_batch``.
    """

    kind: str
    chunk: int
    micro_batch: int
    back_chunk: int = -1
    back_micro_batch: int = -1


def place(schedule: str, pp: int, vpp: int) -> tuple[tuple[Place, ...], ...]:
    """Rank and chunk of every stage in the order of the model; two such lists where batches enter at both ends.

    >>> place("zb-v", 2, 2)
    (((0, 0), (1, 0), (1, 1), (0, 1)),)
    """
    down = tuple((rank, 0) for rank in range(pp))
    if schedule == "zb-v":
        return ((*down, *((rank, 1) for rank in reversed(range(pp)))),)
    if schedule == "dualpipe":
        return down, tuple((rank, 1) for rank in reversed(range(pp)))
    return (tuple((rank, chunk) for chunk in range(vpp) for rank in range(pp)),)


def order(schedule: str, pp: int, vpp: int, micro_batches: int) -> list[list[Pass]]:
    """Passes of every rank in the order in which it runs them; arguments as ``schedule.pipeline`` has checked them.

    >>> [" ".join(f"{p.kind}{p.micro_batch}" for p in rank) for rank in order("1f1b", 2, 1, 2)]
    ['F0 F1 B0 B1', 'F0 B0 F1 B1']
    """
    of_rank = ORDERS[schedule]
    return [list(of_rank(pp, vpp, rank, micro_batches)) for rank in range(pp)]


def _gpipe(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:  # noqa: ARG001  # one signature for all
    yield from (Pass("F", 0, i) for i in range(m))
    yield from (Pass("B", 0, i) for i in range(m))


def _alternate(forward: list[Pass], backward: list[Pass], warm_up: int) -> Iterator[Pass]:
    """Forward passes first, then one forward and one backward pass in turns, then the backward passes left."""
    warm_up = min(warm_up, len(forward))
    yield from forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        yield ahead
        yield back
    yield from backward[len(forward) - warm_up :]


def _1f1b(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:  # noqa: ARG001
    return _alternate([Pass("F", 0, i) for i in range(m)], [Pass("B", 0, i) for i in range(m)], pp - rank - 1)


def _interleaved(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:
    """Groups of ``pp`` micro-batches go through one chunk after the other (Megatron-Core ``get_schedule_table``)."""
    table = [(chunk, i) for group in range(0, m, pp) for chunk in range(vpp) for i in range(group, min(group + pp, m))]
    forward = [Pass("F", chunk, i) for chunk, i in table]
    backward = [Pass("B", vpp - 1 - chunk, i) for chunk, i in table]
    return _alternate(forward, backward, 2 * (pp - rank - 1) + (vpp - 1) * pp)


def _zb_h1(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:  # noqa: ARG001
    """1F1B whose weight gradients come ``rank`` micro-batches late: every rank keeps ``pp - rank`` plus ``rank``."""
    warm_up = min(m, pp - rank - 1)
    yield from (Pass("F", 0, i) for i in range(warm_up))
    for i in range(m):
        if i + warm_up < m:
            yield Pass("F", 0, i + warm_up)
        yield Pass("I", 0, i)
        if i >= rank:
            yield Pass("W", 0, i - rank)
    yield from (Pass("W", 0, i) for i in range(max(0, m - rank), m))


def _zb_v(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:  # noqa: ARG001
    """Two chunks a rank in the shape of a V; passes of micro-batches that a short run lacks drop out of the order."""
    return (one for one in _zb_v_full(pp, rank, max(m, 2 * pp - 1)) if one.micro_batch < m)


def _zb_v_full(pp: int, rank: int, m: int) -> Iterator[Pass]:
    count = dict.fromkeys(("F0", "F1", "I0", "I1", "W0", "W1"), 0)

    def run(*names: str) -> Iterator[Pass]:
        for name in names:
            yield Pass(name[0], int(name[1]), count[name])
            count[name] += 1

    for _ in range(2 * (pp - rank) - 1):
        yield from run("F0")
    for _ in range(rank):
        yield from run("F1", "F0")
    for _ in range(pp - rank):
        yield from run("F1", "I1", "W1")
    while count["F1"] < m:
        if count["F0"] < m:
            yield from run("F0")
        yield from run("I0", "W0", "F1", "I1", "W1")
    for _ in range(rank):
        yield from run("I0", "I1")
    for _ in range(pp - rank):
        yield from run("I0", "W0")
    while count["W1"] < m:
        yield from run("W1")
    while count["W0"] < m:
        yield from run("W0")


def _dualpipe(pp: int, vpp: int, rank: int, m: int) -> Iterator[Pass]:  # noqa: ARG001
    """Two directions; ``near`` is the one whose end is the closer one: its micro-batches come by this rank first."""
    near = 0 if rank < pp // 2 else 1
    half, depth = pp // 2, min(rank, pp - 1 - rank)
    count = {(kind, chunk): chunk * (m // 2) for kind in "FB" for chunk in (0, 1)}
    waiting: deque[tuple[int, int]] = deque()

    def take(kind: str, far: int) -> tuple[int, int]:
        chunk = near ^ far
        count[kind, chunk] += 1
        return chunk, count[kind, chunk] - 1

    def backward(far: int, split: bool) -> Pass:
        at = take("B", far)
        if split:
            waiting.append(at)
        return Pass("I" if split else "B", *at)

    def pair(far: int) -> Pass:
        return Pass("FB", *take("F", far), *take("B", 1 - far))

    yield from (Pass("F", *take("F", 0)) for _ in range(2 * (half - depth - 1)))
    for _ in range(depth + 1):
        yield Pass("F", *take("F", 0))
        yield Pass("F", *take("F", 1))
    for _ in range(half - depth - 1):
        yield backward(1, split=True)
        yield Pass("W", *waiting.popleft())
        yield Pass("F", *take("F", 1))
    for i in range(m // 2 - pp + depth + 1):
        if i == 0 and depth == half - 1:  # the two middle ranks wait for each other: apart, the wait is shorter
            yield Pass("F", *take("F", 0))
            yield backward(1, split=False)
        else:
            yield pair(0)
        yield pair(1)
    for _ in range(half - depth - 1):
        yield backward(1, split=False)
        yield pair(1)
    for i in range(2 * (depth + 1)):  # the second half leaves the gradients of weights for the end
        yield backward(1 - i % 2, split=i > depth)
    for _ in range(half - depth - 1):
        yield Pass("W", *waiting.popleft())
        yield backward(0, split=True)
    yield from (Pass("W", *at) for at in waiting)


def together(pp: int, rank: int, micro_batches: Any) -> tuple[Any, Any]:
    """DualPipe: pairs of passes that run together, by whether the forward pass is of the near direction or the far one.

    >>> [one.kind for one in order("dualpipe", 2, 1, 8)[0]].count("FB"), together(2, 0, 8)
    (5, (2, 3))
    """
    half, depth = pp // 2, min(rank, pp - 1 - rank)
    steady = micro_batches // 2 - pp + depth + 1
    return steady - (depth == half - 1), steady + half - depth - 1


ORDERS = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved-1f1b": _interleaved,
    "zb-h1": _zb_h1,
    "zb-v": _zb_v,
    "dualpipe": _dualpipe,
}
