"""The closed form of a server that batches continuously, on steps that can be summed by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.cost.serving_flow import (
    Limits,
    Traffic,
    at_concurrency,
    at_rate,
    job_s,
    largest_rate,
    prompt_s,
    resident_limit,
)
from foretell.cost.serving_load import Load
from foretell.sim.arrivals import ClosedLoop
from foretell.sim.scheduler import Scheduler
from foretell.sim.server import simulate
from foretell.sim.serving import Drawn


@dataclass(frozen=True)
class Plain:
    """A step that takes so much by itself, and for each token and each key that it sees."""

    step: float = 0.01
    token: float = 0.0
    key: float = 0.0

    def seconds(self, load: Load) -> Any:
        return self.step + self.token * (load.decode * load.width + load.prefill) + self.key * load.context


WIDE = Limits(sequences=1000, tokens=10_000, kv_tokens=1e9)


def test_a_step_of_one_length_gives_a_token_to_everyone() -> None:
    flow = at_concurrency(Plain(), Traffic(100, 101), WIDE, 10)
    assert flow.itl_s == pytest.approx(0.01)
    assert flow.prompt_s == pytest.approx(0.01)
    assert flow.rate == pytest.approx(10 / (101 * 0.01), rel=1e-3)  # 100 steps that decode and one that reads
    assert flow.decoding + flow.reading == pytest.approx(10, rel=1e-3)


def test_prompts_that_are_read_beside_slow_everyone_down() -> None:
    """Each token costs a millisecond: a request brings 1,000 + 100 of them, and the server does 1,000 a second."""
    cost = Plain(step=0.0, token=1e-3)
    flow = at_concurrency(cost, Traffic(1000, 101), WIDE, 50)
    assert flow.rate == pytest.approx(1000 / 1100, rel=0.01)
    assert flow.itl_s == pytest.approx(50 / (1000 / 1100) / 101, rel=0.05)


def test_prompts_of_their_own_steps_cost_the_same() -> None:
    cost = Plain(step=0.0, token=1e-3)
    mixed, apart = (
        at_concurrency(cost, Traffic(1000, 101), Limits(1000, 10_000, 1e9, mixed=mixed), 50, staggered=True)
        for mixed in (True, False)
    )
    assert apart.rate == pytest.approx(mixed.rate, rel=0.02)
    assert apart.gap_s < mixed.itl_s  # the usual gap has no prompt in it


def test_equal_requests_go_in_step_where_prompts_come_first() -> None:
    """20 prompts in ten steps, then 100 steps that decode: the first users wait for one step of reading, the last for ten."""
    cost, how = Plain(token=1e-4), Limits(1000, 2000, 1e9, mixed=False)
    flow = at_concurrency(cost, Traffic(1000, 101), how, 20)
    reads, decodes = 0.01 + 2000e-4, 0.01 + 20e-4
    assert flow.rate == pytest.approx(20 / (10 * reads + 100 * decodes))
    assert flow.ttft_s == pytest.approx(5.5 * reads)
    assert flow.itl_s == pytest.approx(decodes + 4.5 * reads / 100)
    assert flow.gap_s == pytest.approx(decodes)
    assert sum(often * cost.seconds(load) for often, load in flow.steps) == pytest.approx(flow.itl_s)
    assert flow.decoding + flow.reading == pytest.approx(20)
    waiting = at_concurrency(cost, Traffic(1000, 101), Limits(20, 2000, 1e9, mixed=False), 50)
    assert waiting.rate == pytest.approx(flow.rate)
    assert waiting.queue_s == pytest.approx(30 / flow.rate)
    unequal = at_concurrency(cost, Traffic(1000, 101, longest=400), how, 20)
    assert unequal.ttft_s < flow.ttft_s / 3


def test_going_in_step_is_what_a_simulated_server_does() -> None:
    cost, traffic = Plain(token=1e-4, key=1e-8), Traffic(900, 200)
    found = simulate(
        ClosedLoop(users=24, lengths=Drawn(900.0, 200.0), requests=480),
        Scheduler(max_seqs=64, max_tokens=2048, kv_tokens=10**7, mixed=False, chunked=True),
        cost,
    )
    flow = at_concurrency(cost, traffic, Limits(64, 2048, 1e7, mixed=False), 24)
    assert found.ttft.mean == pytest.approx(flow.ttft_s, rel=0.15)
    assert found.tpot.mean == pytest.approx(flow.itl_s, rel=0.05)
    assert 480 / found.duration_s == pytest.approx(flow.rate, rel=0.05)


def test_the_budget_of_a_step_cuts_prompts_and_can_be_the_limit() -> None:
    assert prompt_s(Plain(), Traffic(4000, 1), Limits(10, 1000, 1e9)) == pytest.approx(4 * 0.01)
    flow = at_concurrency(Plain(), Traffic(5000, 11), Limits(1000, 1000, 1e9), 100)
    assert flow.bound == "tokens"
    room = 1000 - flow.decoding
    assert flow.rate == pytest.approx(room / 5000 / 0.01, rel=0.01)  # a request for every 5,000 tokens of room
    assert flow.waiting > 50


def test_places_and_blocks_hold_requests_back() -> None:
    traffic = Traffic(1000, 199)
    assert resident_limit(traffic, Limits(8, 8192, 1e9)) == (8, "max_num_seqs")
    grown, reserved = (resident_limit(traffic, Limits(500, 8192, 120_000, reserve=r))[0] for r in (False, True))
    assert grown == pytest.approx(120_000 / 1100)
    assert reserved == pytest.approx(120_000 / 1199)
    flow = at_concurrency(Plain(), traffic, Limits(8, 8192, 1e9), 20)
    assert flow.waiting == pytest.approx(12)
    assert flow.queue_s == pytest.approx(12 / flow.rate)


def test_arrivals_meet_a_server_that_is_just_busy_enough() -> None:
    cost, traffic = Plain(), Traffic(10, 101)
    flow = at_rate(cost, traffic, WIDE, 3.0)
    assert flow.rate == pytest.approx(3.0, rel=1e-3)
    assert flow.decoding == pytest.approx(3.0 * 100 * 0.01, rel=0.01)  # Little's law
    top = largest_rate(cost, traffic, Limits(10, 10_000, 1e9))
    late = at_rate(cost, traffic, Limits(10, 10_000, 1e9), 1.01 * top.rate)
    assert not late.stable
    assert math.isinf(late.ttft_s)


def test_bursts_make_the_queue_longer() -> None:
    cost = Plain(step=0.0, token=1e-4)
    calm, even, wild = (at_rate(cost, Traffic(2000, 20), WIDE, 4.0, arrival_cv=cv).queue_s for cv in (0.0, 1.0, 4.0))
    assert calm < even < wild


def test_speculation_makes_more_of_a_step() -> None:
    plain, drafted = (at_concurrency(Plain(), Traffic(10, 201), WIDE, 4, width=w, made=m) for w, m in ((1, 1), (5, 2.5)))
    assert drafted.itl_s == pytest.approx(plain.itl_s / 2.5)


def test_a_job_is_its_waves_and_its_end() -> None:
    whole = job_s(Plain(), Traffic(10, 101), Limits(1000, 1e6, 1e9), 100)
    assert whole == pytest.approx(0.01 + 101 * 0.01, rel=0.02)  # all at once: one step that reads, then one for each token
    waves = job_s(Plain(), Traffic(10, 101), Limits(100, 1e6, 1e9), 1000)
    assert waves == pytest.approx(10 * 102 * 0.01, rel=0.05)
    cut = Traffic(10, 101, longest=400)
    assert job_s(Plain(), cut, Limits(1000, 1e6, 1e9), 100) == pytest.approx(400 * 0.01, rel=0.03)  # the longest answer


@settings(max_examples=60, deadline=None)
@given(
    inputs=st.integers(1, 20_000),
    outputs=st.integers(1, 2000),
    concurrency=st.floats(1, 2000),
    seats=st.integers(1, 512),
    kv=st.integers(30_000, 10**7),
    mixed=st.booleans(),
    reserve=st.booleans(),
)
def test_a_steady_state_is_consistent(
    inputs: int, outputs: int, concurrency: float, seats: int, kv: int, *, mixed: bool, reserve: bool
) -> None:
    cost = Plain(0.005, 1e-5, 1e-8)
    limits = Limits(seats, 4096, kv, mixed, reserve)
    flow = at_concurrency(cost, Traffic(inputs, outputs), limits, concurrency)
    assert 0 < flow.rate < math.inf
    assert 0 <= flow.decoding <= seats + 1e-6
    assert flow.waiting >= 0
    assert flow.ttft_s >= flow.prompt_s > 0
    more = at_concurrency(cost, Traffic(inputs, outputs), limits, 2 * concurrency)
    assert more.rate >= 0.98 * flow.rate
