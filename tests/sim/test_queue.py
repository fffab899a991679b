"""A simulated queue: exact laws within its own error, and errors that are no smaller than they are."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.operations.equal_services import EqualServices
from foretell.operations.queueing import Queue
from foretell.sim.queue import LAWS, Estimate, QueueRun, Times, _serve, _serve_in_turn, simulate_queue

EXPONENTIAL, EQUAL = Times("exponential", 1.0), Times("deterministic", 0.0)
WIDE, LOGNORMAL = Times("hyperexponential", 4.0), Times("lognormal", 4.0)


@pytest.fixture(scope="module")
def ten() -> QueueRun:
    return simulate_queue(10, 0.9, EXPONENTIAL, EXPONENTIAL)


def off(found: Estimate, exact: float) -> float:
    """Standard errors by which an answer misses."""
    return abs(found.value - exact) / found.standard_error


def test_exponential_queues_are_met_within_four_of_their_own_errors(ten: QueueRun) -> None:
    exact = Queue.of(9.0, 1.0, 10)
    assert off(ten.mean_wait, exact.mean_wait) < 4
    assert ten.mean_wait.standard_error < 0.01 * exact.mean_wait
    for p in (0.5, 0.9, 0.99, 0.999):
        for found, true in (
            (ten.wait_quantile(p), exact.wait_quantile(p)),
            (ten.response_quantile(p), exact.response_quantile(p)),
        ):
            assert off(found, true) < 4
            assert found.standard_error < (0.02 if p < 0.999 else 0.06) * true


def test_equal_services_are_met_too() -> None:
    exact, run = EqualServices.of(10, 0.9), simulate_queue(10, 0.9, EQUAL, EXPONENTIAL)
    assert off(run.mean_wait, exact.mean_wait) < 4
    for p in (0.5, 0.9, 0.99):
        assert off(run.wait_quantile(p), exact.wait_quantile(p)) < 4
        assert run.response_quantile(p).value == pytest.approx(run.wait_quantile(p).value + 1)


@pytest.mark.parametrize("services", [LOGNORMAL, Times("gamma", 0.25)])
def test_one_server_waits_as_pollaczek_and_khinchine_say(services: Times) -> None:
    found = simulate_queue(1, 0.8, services, EXPONENTIAL).mean_wait
    assert off(found, 0.8 / 0.2 * (1 + services.scv) / 2) < 4


def test_exponential_services_leave_an_exponential_wait_whatever_the_arrivals() -> None:
    run, servers, load, share = simulate_queue(10, 0.9, EXPONENTIAL, WIDE), 10, 0.9, 0.5 * (1 + math.sqrt(0.6))
    fast, slow = 2 * share * servers * load, 2 * (1 - share) * servers * load
    root = 0.9
    for _ in range(1000):  # GI/M/c: sigma = A*(c (1 - sigma))
        at = servers * (1 - root)
        root = share * fast / (fast + at) + (1 - share) * slow / (slow + at)
    longer, shorter = run.wait_quantile(0.98), run.wait_quantile(0.8)
    apart = math.log(10) / (servers * (1 - root))
    assert abs(longer.value - shorter.value - apart) < 4 * longer.standard_error


def test_the_law_matters_where_two_moments_are_the_same() -> None:
    lognormal, wide = (simulate_queue(10, 0.9, s, EXPONENTIAL).wait_quantile(0.5) for s in (LOGNORMAL, WIDE))
    assert wide.value - lognormal.value > 5 * (wide.standard_error + lognormal.standard_error)


def test_other_seeds_are_as_far_off_as_the_standard_error_says() -> None:
    runs = [simulate_queue(3, 0.85, EQUAL, WIDE, seed=seed) for seed in range(5)]  # equal services: the fastest runs
    for found in ([r.mean_wait for r in runs], [r.wait_quantile(0.99) for r in runs]):
        spread = np.std([e.value for e in found], ddof=1)
        said = np.mean([e.standard_error for e in found])
        assert 0.25 < spread / said < 2.2


def test_a_seed_gives_one_answer() -> None:
    first = simulate_queue(2, 0.6, EQUAL, EXPONENTIAL)
    assert simulate_queue(2, 0.6, EQUAL, EXPONENTIAL) is first
    simulate_queue.cache_clear()
    again = simulate_queue(2, 0.6, EQUAL, EXPONENTIAL)
    assert (again.wait_quantile(0.99), again.mean_wait) == (first.wait_quantile(0.99), first.mean_wait)


def test_nobody_waits_where_all_is_equal() -> None:
    run = simulate_queue(4, 0.9, EQUAL, EQUAL)
    assert (run.mean_wait, run.wait_quantile(0.99)) == (Estimate(0.0, 0.0), Estimate(0.0, 0.0))
    assert run.response_quantile(0.5) == Estimate(1.0, 0.0)


def test_what_a_run_has_not_seen_it_does_not_vouch_for() -> None:
    run = simulate_queue(2, 0.99, EQUAL, WIDE)
    assert run.wait_quantile(0.999).standard_error == math.inf
    assert 0 < run.wait_quantile(0.5).standard_error < 0.1 * run.wait_quantile(0.5).value


def test_servers_in_turn_are_the_heap_of_free_ones() -> None:
    rng = np.random.default_rng(3)
    for servers, services in ((1, rng.lognormal(size=600)), (5, np.ones(600)), (3, np.full(600, 0.5))):
        times = np.cumsum(rng.exponential(1.1 * services.mean() / servers, 600))
        plain, by_heap, in_turn = [0.0] * servers, [0.2 * i for i in range(servers)], [0.2 * i for i in range(servers)]
        waits = []
        for at, service in zip(times, services, strict=True):
            start = max(at, heapq.heappop(plain))
            waits.append(start - at)
            heapq.heappush(plain, start + service)
        assert _serve_in_turn(times, services, [0.0] * servers) == pytest.approx(waits, abs=1e-9)
        assert _serve(times, services, by_heap) == pytest.approx(_serve_in_turn(times, services, in_turn), abs=1e-9)
        assert sorted(by_heap) == pytest.approx(sorted(in_turn), abs=1e-9)


@pytest.mark.parametrize("law", LAWS)
def test_laws_have_their_mean_and_spread(law: str) -> None:
    scv = {"deterministic": 0.0, "exponential": 1.0}.get(law, 1.5)
    times = Times(law, scv).draw(np.random.default_rng(1), 10**6)
    assert times.min() > 0
    assert (times.mean(), times.var()) == pytest.approx((1.0, scv), abs=0.03)


def test_the_two_laws_of_a_hyperexponential_one_add_up_to_the_same() -> None:
    times = np.sort(WIDE.draw(np.random.default_rng(1), 10**6))
    share = 0.5 * (1 + math.sqrt(0.6))  # (1 + sqrt((scv - 1)/(scv + 1)))/2
    above = share * math.exp(-2 * share * 2) + (1 - share) * math.exp(-2 * (1 - share) * 2)
    assert np.mean(times > 2.0) == pytest.approx(above, rel=0.01)


def test_times_between_arrivals_have_the_law_of_their_spread() -> None:
    found = [Times.of_arrivals(scv).law for scv in (0.0, 0.3, 1.0, 2.0)]
    assert found == ["deterministic", "gamma", "exponential", "hyperexponential"]


@pytest.mark.parametrize(
    ("law", "scv", "field"),
    [
        ("pareto", 4.0, "law"),
        ("exponential", 2.0, "scv"),
        ("deterministic", 1.0, "scv"),
        ("hyperexponential", 0.5, "scv"),
        ("gamma", 0.0, "scv"),
        ("lognormal", math.nan, "scv"),
    ],
)
def test_laws_that_are_none_are_refused(law: str, scv: float, field: str) -> None:
    with pytest.raises(InputError) as caught:
        Times(law, scv)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("servers", "load", "field"), [(0, 0.5, "servers"), (2, 1.0, "load"), (2, 0.0, "load"), (10**5, 0.5, "servers")]
)
def test_queues_that_no_run_tells_are_refused(servers: int, load: float, field: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate_queue(servers, load, EXPONENTIAL, EXPONENTIAL)
    assert caught.value.field == field
