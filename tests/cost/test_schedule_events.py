"""The course of pipeline schedules: whole logs of tiny runs, what must hold of any run, and the orders' memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cost.pipelines import SCHEDULES, pipelines
from foretell.cost.pipeline import in_flight
from foretell.cost.schedule_events import Simulation, run, simulate
from foretell.cost.schedule_inputs import Pipeline, pipeline
from foretell.cost.schedule_orders import order
from foretell.errors import InputError


def log(simulation: Simulation) -> list[str]:
    """One line a rank: kind, micro-batch and chunk (a, b) of each pass, start and end."""
    assert simulation.timeline is not None
    return [
        " ".join(f"{e.kind}{e.micro_batch}{'ab'[e.chunk]}:{e.start:g}-{e.end:g}" for e in simulation.timeline if e.rank == rank)
        for rank in range(len(simulation.busy))
    ]


def tiny(schedule: str, vpp: int = 1, micro_batches: int = 2, **transfers: Any) -> Simulation:
    """Two ranks; forward 2 s, backward 3 s for the input and 1 s for the weights."""
    forward, back, weight = ([[seconds] * vpp] * 2 for seconds in (2, 3, 1))
    return simulate(schedule, forward, back, weight, micro_batches=micro_batches, timeline=True, **transfers)


def test_gpipe_turns_round_once() -> None:
    assert log(tiny("gpipe")) == [
        "F0a:0-2 F1a:2-4 B0a:10-14 B1a:14-18",
        "F0a:2-4 F1a:4-6 B0a:6-10 B1a:10-14",
    ]


def test_1f1b_whose_transfers_delay_the_receiver() -> None:
    found = tiny("1f1b", p2p=1, exposed=0)
    assert log(found) == [
        "F0a:0-2 F1a:2-4 B0a:10-14 B1a:16-20",
        "F0a:3-5 B0a:5-9 F1a:9-11 B1a:11-15",
    ]
    assert [*found.sending, *found.idle] == [0, 0, 8, 8]


def test_1f1b_whose_transfers_hold_the_sender_too() -> None:
    found = tiny("1f1b", p2p=1, exposed=1)
    assert log(found) == [
        "F0a:0-2 F1a:3-5 B0a:10-14 B1a:17-21",
        "F0a:3-5 B0a:5-9 F1a:10-12 B1a:12-16",
    ]
    # the first rank sends activations only, the last one gradients only
    assert [*found.busy, *found.sending, *found.waiting] == [12, 12, 2, 2, 7, 7]


def test_interleaved_goes_round_before_it_turns() -> None:
    assert log(tiny("interleaved-1f1b", vpp=2)) == [
        "F0a:0-2 F1a:2-4 F0b:4-6 F1b:6-8 B0b:12-16 B1b:18-22 B0a:22-26 B1a:26-30",
        "F0a:2-4 F1a:4-6 F0b:6-8 B0b:8-12 F1b:12-14 B1b:14-18 B0a:18-22 B1a:22-26",
    ]


def test_interleaved_sends_from_the_last_rank_to_the_first() -> None:
    assert log(tiny("interleaved-1f1b", vpp=2, p2p=1, exposed=0)) == [
        "F0a:0-2 F1a:2-4 F0b:6-8 F1b:8-10 B0b:16-20 B1b:22-26 B0a:26-30 B1a:32-36",
        "F0a:3-5 F1a:5-7 F0b:9-11 B0b:11-15 F1b:15-17 B1b:17-21 B0a:21-25 B1a:27-31",
    ]


def test_zb_h1_leaves_weight_gradients_of_later_ranks_for_the_end() -> None:
    assert log(tiny("zb-h1")) == [
        "F0a:0-2 F1a:2-4 I0a:7-10 W0a:10-11 I1a:12-15 W1a:15-16",
        "F0a:2-4 I0a:4-7 F1a:7-9 I1a:9-12 W0a:12-13 W1a:13-14",
    ]


def test_zb_v_turns_on_the_last_rank_and_ends_on_the_first() -> None:
    assert log(tiny("zb-v", vpp=2)) == [
        "F0a:0-2 F1a:2-4 F0b:6-8 I0b:8-11 W0b:11-12 F1b:12-14 I1b:14-17 W1b:17-18 I0a:18-21 W0a:21-22 I1a:26-29 W1a:29-30",
        "F0a:2-4 F0b:4-6 F1a:6-8 F1b:8-10 I0b:11-14 W0b:14-15 I0a:15-18 W0a:18-19 I1b:19-22 W1b:22-23 I1a:23-26 W1a:26-27",
    ]


def test_dualpipe_starts_at_both_ends_and_runs_pairs_together() -> None:
    # F3 and B0 take 2 + 4 seconds apart, 4.5 together
    assert log(tiny("dualpipe", micro_batches=4, together=0.75)) == [
        "F0a:0-2 F2b:2-4 F1a:4-6 B2b:6-10 F3b:10-14.5 B0a:10-14.5 B3b:14.5-18.5 I1a:18.5-21.5 W1a:21.5-22.5",
        "F2b:0-2 F0a:2-4 F3b:4-6 B0a:6-10 F1a:10-14.5 B2b:10-14.5 B1a:14.5-18.5 I3b:18.5-21.5 W3b:21.5-22.5",
    ]


def test_each_way_to_the_next_rank_has_its_own_seconds() -> None:
    ones = [1] * 4
    assert simulate("1f1b", ones, ones, micro_batches=1, p2p=[1, 10, 100, 1000], exposed=0.5).makespan == 8 + 2 * 111


@settings(max_examples=150, deadline=None)
@given(pipelines())
def test_what_holds_of_any_run(question: Pipeline) -> None:
    found = run(question, timeline=True)
    assert found.timeline is not None
    ranks, m = range(question.pp), question.micro_batches
    passes = {(e.rank, e.chunk, {"I": "B"}.get(e.kind, e.kind), e.micro_batch): e for e in found.timeline}
    for rank in ranks:
        whole = sum(question.forward[rank][c] + question.backward(rank, c) for c in range(question.vpp))
        assert found.busy[rank] == pytest.approx(whole * m / len(question.streams))
        assert found.busy[rank] == pytest.approx(question.busy(rank))
        assert found.makespan >= found.busy[rank] + found.sending[rank] - 1e-9
        assert found.busy[rank] + found.sending[rank] + found.waiting[rank] == pytest.approx(found.makespan)
        for a, b in pairwise(e for e in found.timeline if e.rank == rank):
            assert b.start >= a.end - 1e-9 or (a.kind, b.kind) == ("F", "B")  # two that run together
    for stream in question.streams:
        for i in {e.micro_batch for e in found.timeline if (e.rank, e.chunk) == stream[0]}:
            way = [passes[rank, chunk, "F", i] for rank, chunk in stream]
            back = [passes[rank, chunk, "B", i] for rank, chunk in reversed(stream)]
            assert back[0].start >= way[-1].end - 1e-9
            for a, b in (*pairwise(way), *pairwise(back)):
                assert b.start >= a.end + question.hop(a.rank, b.rank) - 1e-9


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_transfers_never_shorten_a_step(question: Pipeline) -> None:
    def at(p2p: float) -> float:
        return run(replace(question, hops=(p2p,) * question.pp)).makespan

    assert at(0.0) <= at(0.1) + 1e-9 <= at(0.5) + 2e-9


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_runs_once(schedule: str) -> None:
    vpp, m = {"interleaved-1f1b": 3, "zb-v": 2}.get(schedule, 1), 24
    chunks = 2 if schedule == "dualpipe" else vpp
    for rank in order(schedule, 6, vpp, m):
        forward = [(p.chunk, p.micro_batch) for p in rank if p.kind in ("F", "FB")]
        pairs = [(p.back_chunk, p.back_micro_batch) for p in rank if p.kind == "FB"]
        backward = pairs + [(p.chunk, p.micro_batch) for p in rank if p.kind in ("B", "I")]
        weights = [(p.chunk, p.micro_batch) for p in rank if p.kind == "W"]
        halves = [range(m // 2), range(m // 2, m)] if schedule == "dualpipe" else [range(m)] * chunks
        everything = [(chunk, i) for chunk in range(chunks) for i in halves[chunk]]
        assert sorted(forward) == sorted(backward) == everything
        assert sorted(weights) == sorted((p.chunk, p.micro_batch) for p in rank if p.kind == "I")


@pytest.mark.parametrize(("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("zb-v", 2), ("dualpipe", 1)])
def test_an_order_keeps_what_the_memory_forecast_says(schedule: str, vpp: int) -> None:
    pp, m = 8, 32
    for stage, rank in enumerate(order(schedule, pp, vpp, m)):
        kept = peak = 0
        for one in rank:
            kept += one.kind in ("F", "FB")
            peak = max(peak, kept)
            kept -= one.kind in ("B", "W", "FB")
        assert kept == 0
        assert peak == sum(in_flight(schedule, pp, stage, vpp, m))


def test_arrays_are_for_the_closed_form() -> None:
    with pytest.raises(InputError, match="step_seconds"):
        simulate("1f1b", [1.0, np.ones(3)], [1.0, 1.0], micro_batches=2)


def test_numpy_numbers_are_numbers() -> None:
    count: Any = np.int64(2)
    found = simulate("1f1b", list(np.ones(2)), list(np.ones(2)), micro_batches=count)
    assert type(found.makespan) is float
    assert found.makespan == 6


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"forward": []}, "forward"),
        ({"forward": [1.0, -1.0]}, "forward"),
        ({"forward": [1.0, float("nan")]}, "forward"),
        ({"forward": [[1.0], [1.0, 1.0]]}, "forward"),
        ({"backward_input": [1.0]}, "backward_input"),
        ({"backward_weight": [1.0, float("inf")]}, "backward_weight"),
        ({"backward_weight": None}, "backward_weight"),
        ({"p2p": [1.0]}, "p2p"),
        ({"p2p": -1.0}, "p2p"),
        ({"exposed": 1.5}, "exposed"),
        ({"together": 0.0}, "together"),
    ],
)
def test_what_no_clock_can_show_is_refused(given_: dict[str, Any], field: str) -> None:
    whole: dict[str, Any] = {
        "forward": [1.0, 1.0],
        "backward_input": [1.0, 1.0],
        "backward_weight": [1.0, 1.0],
        "micro_batches": 2,
    } | given_
    with pytest.raises(InputError) as caught:
        pipeline("zb-h1", **whole)
    assert caught.value.field == field
