"""What a pipeline schedule is timed with: seconds of every pass of every rank, of transfers, and what a schedule allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard, get_args

from foretell.cost.arrays import Value, is_array
from foretell.cost.schedule_orders import place, together
from foretell.errors import CombinationError, InputError
from foretell.recipe.parallelism import Schedule

__all__ = ["Given", "Pipeline", "pipeline"]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
SPLIT = ("zb-h1", "zb-v", "dualpipe")
"""Schedules that run the weight-gradient part of a backward pass apart."""
Given = Sequence[Value] | Sequence[Sequence[Value]]
"""Of each rank, or of each model chunk of each rank; items are numbers or arrays over configurations."""
_Table = tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One checked question: seconds indexed by rank and chunk, made by ``pipeline``."""

    schedule: str
    forward: _Table
    backward_input: _Table
    backward_weight: _Table
    micro_batches: Value
    hops: tuple[Value, ...]
    """Seconds of a transfer from each rank to the next; the last is the way from the last rank to the first."""
    exposed: Value
    together: Value

    @property
    def pp(self) -> int:
        return len(self.forward)

    @property
    def vpp(self) -> int:
        return len(self.forward[0])

    @property
    def streams(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Rank and chunk of each stage in the model's order; DualPipe has two such lists."""
        return place(self.schedule, self.pp, self.vpp)

    def hop(self, a: int, b: int) -> Value:
        """Seconds of a transfer between two neighbouring ranks; nothing stays to be sent within one rank."""
        if a == b:
            return 0.0
        return self.hops[min(a, b)] if abs(a - b) == 1 else self.hops[-1]

    def backward(self, rank: int, chunk: int) -> Value:
        """Seconds of a whole backward pass."""
        return self.backward_input[rank][chunk] + self.backward_weight[rank][chunk]

    def seconds_of(self, rank: int, kind: str, chunk: int, back_chunk: int = -1) -> Value:
        """Seconds that a pass computes; kinds as in ``schedule_orders.Pass``."""
        if kind == "F":
            return self.forward[rank][chunk]
        if kind == "I":
            return self.backward_input[rank][chunk]
        if kind == "W":
            return self.backward_weight[rank][chunk]
        if kind == "B":
            return self.backward(rank, chunk)
        return (self.forward[rank][chunk] + self.backward(rank, back_chunk)) * self.together

    def busy(self, rank: int) -> Value:
        """Seconds that a rank computes in a step."""
        alone = sum(self.forward[rank][c] + self.backward(rank, c) for c in range(self.vpp))
        if self.schedule != "dualpipe":
            return self.micro_batches * alone
        near = 0 if rank < self.pp // 2 else 1
        pairs = together(self.pp, rank, self.micro_batches)
        hidden = (
            self.seconds_of(rank, "FB", near ^ far, near ^ far ^ 1) * (1 / self.together - 1) * pairs[far] for far in (0, 1)
        )
        return self.micro_batches / 2 * alone - sum(hidden)


def pipeline(
    schedule: str,
    forward: Given,
    backward_input: Given,
    backward_weight: Given | None = None,
    *,
    micro_batches: Value,
    p2p: Value | Sequence[Value] = 0.0,
    exposed: Value = 1.0,
    together: Value = 1.0,
) -> Pipeline:
    """Check a question about a schedule and put it in order.

    ``forward``, ``backward_input``, ``backward_weight``: seconds of one micro-batch's passes, a list over the ranks whose
    items are numbers, arrays, or lists over the rank's model chunks (interleaved-1f1b: chunk ``c`` of rank ``r`` is stage
    ``c*pp + r``; zb-v: ``r`` and ``2*pp-1-r``; dualpipe takes the ``pp`` stages of one copy of the model).  Without
    ``backward_weight`` the backward pass is not split: ``backward_input`` is all of it.

    ``p2p``: seconds of one transfer to the neighbouring rank, or a list of the ways from each rank to the next, the last
    one back to the first.  ``exposed`` (0 to 1): the share of a transfer that the sending rank waits for before it computes
    on (1: Megatron-Core without ``overlap_p2p_comm``); the receiving one always waits for all of it.
    ``together`` (dualpipe): seconds of a forward and a backward pass run together, as a share of one after the other.

    Raises InputError or CombinationError, which name the field.
    """
    if schedule not in SCHEDULES:
        raise InputError("is not a schedule", field="schedule", value=schedule, allowed=SCHEDULES)
    if schedule in SPLIT and backward_weight is None:
        raise InputError(f"is needed for {schedule}, which runs it apart", field="backward_weight")
    ahead = _table(forward, "forward")
    back = _table(backward_input, "backward_input", ahead)
    weight = (
        tuple((0.0,) * len(row) for row in ahead)
        if backward_weight is None
        else _table(backward_weight, "backward_weight", ahead)
    )
    pp, vpp = len(ahead), len(ahead[0])
    _check_shape(schedule, pp, vpp)
    _check_micro_batches(schedule, pp, micro_batches)
    if schedule == "dualpipe":
        ahead, back, weight = (tuple((t[r][0], t[pp - 1 - r][0]) for r in range(pp)) for t in (ahead, back, weight))
    hops = tuple(p2p) if _is_list(p2p) else (p2p,) * pp
    if len(hops) != pp:
        raise InputError(f"must be one number or the {pp} ways from each rank to the next", field="p2p", value=len(hops))
    for one in hops:
        _check_seconds(one, "p2p")
    wrong = _first(exposed, (exposed >= 0) & (exposed <= 1))
    if wrong is not None:
        raise InputError("must be a share", field="exposed", value=wrong, allowed="0 to 1")
    wrong = _first(together, (together > 0) & (together <= 1))
    if wrong is not None:
        raise InputError("must be a share", field="together", value=wrong, allowed="above 0, at most 1")
    return Pipeline(schedule, ahead, back, weight, micro_batches, hops, exposed, together)


def _is_list(value: Given | Value) -> TypeGuard[Sequence[Value]]:
    return isinstance(value, list | tuple)


def _first(value: Value, right: Value) -> Value:
    """The first number for which the condition does not hold; None where it holds for all."""
    if not is_array(right):
        return None if right else value
    wrong = value[~right]
    return wrong[0].item() if wrong.size else None


def _check_seconds(value: Value, field: str) -> None:
    wrong = _first(value, (value >= 0) & (value < float("inf")))
    if wrong is not None:
        raise InputError("must be seconds", field=field, value=wrong, allowed="0 or more, finite")


def _table(given: Given, field: str, like: _Table | None = None) -> _Table:
    """Rows of equal length over the ranks."""
    if not _is_list(given) or not given:
        raise InputError("must list the ranks", field=field, value=given)
    rows = tuple(tuple(row) if _is_list(row) else (row,) for row in given)
    width = len(rows[0]) if like is None else len(like[0])
    if not width or any(len(row) != width for row in rows) or (like is not None and len(rows) != len(like)):
        raise InputError(
            "must have the same model chunks on every rank, for every pass", field=field, value=[len(r) for r in rows]
        )
    for row in rows:
        for value in row:
            _check_seconds(value, field)
    return rows


def _check_shape(schedule: str, pp: int, vpp: int) -> None:
    """Refuse chunks and ranks that the schedule has no place for."""
    if schedule == "zb-v" and vpp != 2:
        raise CombinationError("zb-v has two model chunks on every rank", field="vpp", value=vpp, allowed=[2])
    if schedule not in ("zb-v", "interleaved-1f1b") and vpp != 1:
        hint = "Several chunks are interleaved-1f1b" if schedule == "1f1b" else None
        raise CombinationError(f"{schedule} has one model chunk on every rank", field="vpp", value=vpp, allowed=[1], hint=hint)
    if schedule == "dualpipe" and pp % 2:
        raise CombinationError("dualpipe pairs ranks from both ends", field="pp", value=pp, allowed="even numbers")


def _check_micro_batches(schedule: str, pp: int, m: Value) -> None:
    """Refuse counts that the schedule cannot run."""
    wrong = _first(m, (m >= 1) & (m % 1 == 0))
    if wrong is not None:
        raise InputError("must be a whole number of micro-batches", field="micro_batches", value=wrong, allowed="1 or more")
    wrong = _first(m, m % pp == 0) if schedule == "interleaved-1f1b" else None
    if wrong is not None:
        raise CombinationError(
            "does not divide into groups of pp: interleaved-1f1b takes a multiple of the pipeline's ranks",
            field="micro_batches",
            value=wrong,
            allowed=f"multiples of {pp}",
        )
    wrong = _first(m, (m % 2 == 0) & (m >= 2 * pp)) if schedule == "dualpipe" else None
    if wrong is not None:
        raise CombinationError(
            "dualpipe sends half of the micro-batches from each end and fills both",
            field="micro_batches",
            value=wrong,
            allowed=f"even numbers from {2 * pp} on",
        )
