"""Queues: exact where the textbook is, near simulations elsewhere."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.operations import queueing
from foretell.operations.approximations import deterministic_mean_wait, deterministic_ratio, response_error
from foretell.operations.exponentials import Law
from foretell.operations.queueing import Queue, erlang_b, erlang_c

# servers, load, Erlang C, mean wait, p99 of the wait, p50 and p99 of the response; mean service 1
EXACT = [
    (1, 0.8, 0.8, 4, 21.910133, 3.4657359, 23.025851),
    (2, 1, 0.3333333333, 0.3333333333, 3.506557897, 0.9744116, 5.665960684),
    (5, 4, 0.5541125541, 0.5541125541, 4.014782739, 1.2043949, 6.079662525),
    (10, 9, 0.6687315241, 0.6687315241, 4.202797577, 1.3290919, 6.249876699),
    (32, 28.8, 0.4581966215, 0.1431864442, 1.195222907, 0.8557553, 4.794356231),
    (100, 80, 0.01964642663, 0.0009823213, 0.0337655, 0.6941807, 4.606203674),
    (100, 95, 0.5064568539, 0.1012913708, 0.7849708, 0.8079159, 4.724387049),
    (1000, 990, 0.6590804219, 0.0659080422, 0.4188260, 0.7637505, 4.675844058),
]
# servers, load of each, exact mean wait of M/D/c (Crommelin), service 1
EQUAL = [
    (2, 0.8, 0.903284),
    (4, 0.9, 0.999966),
    (8, 0.9, 0.449973),
    (10, 0.9, 0.344582),
    (10, 0.95, 0.837083),
    (32, 0.9, 0.076222),
    (100, 0.95, 0.053446),
]


@pytest.mark.parametrize(("servers", "load", "waits", "mean", "w99", "t50", "t99"), EXACT)
def test_exponential_queues_are_the_textbooks(
    servers: int, load: float, waits: float, mean: float, w99: float, t50: float, t99: float
) -> None:
    queue = Queue.of(load, 1.0, servers)
    assert erlang_c(servers, load) == pytest.approx(waits, rel=1e-9)
    found = (queue.probability, queue.mean_wait, queue.wait_quantile(0.99), queue.response_quantile(0.5))
    assert found == pytest.approx((waits, mean, w99, t50), rel=1e-6)
    assert queue.response_quantile(0.99) == pytest.approx(t99, rel=1e-8)
    assert queue.wait_quantile(0.99) + 1 != pytest.approx(t99, rel=0.01) or servers == 1


@pytest.mark.parametrize(("servers", "load"), [(1, 0.3), (2, 1.0), (40, 39.0), (100, 250.0), (3000, 2970.0), (10_000, 9_900.0)])
def test_lost_calls_are_the_last_term_over_the_sum_of_all(servers: int, load: float) -> None:
    logs = [k * math.log(load) - math.lgamma(k + 1) for k in range(servers + 1)]
    most = max(logs)
    assert erlang_b(servers, load) == pytest.approx(math.exp(logs[-1] - most) / sum(math.exp(x - most) for x in logs), rel=1e-9)


@pytest.mark.parametrize(("servers", "load"), [(0.4, 0.3), (2.5, 1.8), (7.7, 9.0), (66.6, 60.0)])
def test_fractions_of_servers_are_near_the_integral(servers: float, load: float) -> None:
    x = np.linspace(0, 400, 400_001)
    inverse = np.trapezoid(np.exp(servers * np.log1p(x / load) - x), x)  # Fortet's form, for any number of servers
    assert erlang_b(servers, load) == pytest.approx(1 / inverse, rel=0.035 if servers < 1 else 3e-3)


def test_shares_too_small_for_a_float_are_nothing() -> None:
    assert erlang_b(10**9, 1.0) == 0.0
    assert erlang_b(10_000, 5_000.0) == 0.0
    assert erlang_c(10**9, 0.9999 * 1e9) == pytest.approx(8.4965e-4, rel=1e-4)


def test_a_millionth_of_a_slot_to_spare_where_the_rates_coincide() -> None:
    servers, load = 10, 9.0  # c - 1 = a: waiting and serving fade at the same rate
    t, waits = 3.0, erlang_c(servers, load)
    assert Queue.of(load, 1.0, servers).response_tail(t) == pytest.approx(math.exp(-t) * (1 + waits * t), rel=1e-12)
    for near in (load - 1e-6, load + 1e-6):
        gap, share = servers - 1 - near, erlang_c(servers, near)
        exact = math.exp(-t) * (1 + share * (1 - math.exp(-t * gap)) / gap)
        assert Queue.of(near, 1.0, servers).response_tail(t) == pytest.approx(exact, rel=1e-9)


def test_one_server_answers_at_a_single_rate() -> None:
    queue = Queue.of(8.0, 0.1, 1)
    assert queue.response_quantile(0.99) == pytest.approx(math.log(100) / (10 - 8), rel=1e-12)
    assert queue.response_tail(1.0) == pytest.approx(math.exp(-2), rel=1e-12)
    assert queue.wait_tail(1.0) == pytest.approx(0.8 * math.exp(-2), rel=1e-12)
    assert queueing.response_tail(1.0, 8.0, 0.1, 1) == queue.response_tail(1.0)
    assert queueing.wait_tail(1.0, 8.0, 0.1, 1) == queue.wait_tail(1.0)


def test_no_arrivals_mean_no_wait() -> None:
    queue = Queue.of(0.0, 0.2, 3)
    assert (queue.probability, queue.mean_wait, queue.wait_quantile(0.999), queue.utilization) == (0.0, 0.0, 0.0, 0.0)
    assert queue.response_quantile(0.99) == pytest.approx(0.2 * math.log(100))


@pytest.mark.parametrize("rate", [10.0, 10.5, 30.0])
def test_a_queue_that_falls_behind_has_no_steady_state(rate: float) -> None:
    queue = Queue.of(rate, 1.0, 10, 0.5, 2.0)
    assert (queue.stable, queue.probability, queue.utilization) == (False, 1.0, rate / 10)
    times = (queue.mean_wait, queue.mean_response, queue.wait_quantile(0.5), queue.response_quantile(0.01))
    assert times == (math.inf,) * 4
    assert (queue.wait_tail(1e6), queue.response_tail(1e6)) == (1.0, pytest.approx(1.0))
    assert queueing.backlog_growth(rate, 1.0, 10) == rate - 10


@pytest.mark.parametrize(("servers", "load", "mean"), EQUAL)
def test_equal_services_wait_as_crommelin_found(servers: int, load: float, mean: float) -> None:
    assert deterministic_mean_wait(servers * load, 1.0, servers) == pytest.approx(mean, abs=5e-7)
    assert Queue.of(servers * load, 1.0, servers, 0.0).mean_wait == pytest.approx(mean, rel=0.015)


def test_the_error_of_the_equal_services_is_the_one_that_is_stated() -> None:
    for servers in (2, 3, 5, 10, 32, 100, 300):
        for load in (0.2, 0.4, 0.6, 0.8, 0.9, 0.97):
            exponential = Queue.of(servers * load, 1.0, servers)
            if exponential.probability > 1e-6:
                exact = deterministic_mean_wait(servers * load, 1.0, servers) / exponential.mean_wait
                error = deterministic_ratio(servers, load) / exact - 1
                assert -0.11 < error < 0.04
                assert abs(error) < 0.055 or exponential.probability < 0.01
                assert abs(error) < 0.015 or exponential.probability < 0.1
    assert deterministic_mean_wait(2.0, 1.0, 2) == math.inf
    assert deterministic_mean_wait(0.0, 1.0, 2) == 0.0


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.7, 1.0, 1.5, 4.0])
def test_one_server_waits_as_pollaczek_and_khinchine_found(spread: float) -> None:
    assert Queue.of(0.8, 1.0, 1, spread).mean_wait == pytest.approx(0.8 / 0.2 * (1 + spread**2) / 2)
    assert Queue.of(0.8, 1.0, 1, spread, 3.0).mean_wait == pytest.approx(0.8 / 0.2 * (9 + spread**2) / 2)  # Allen and Cunneen


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5, 0.7, 0.75, 0.99, 1.0, 1.01, 2.0, 10.0])
def test_the_law_of_services_has_the_mean_and_the_spread_asked_for(spread: float) -> None:
    law = Law.of(np.float64(spread))
    x = np.concatenate([[0.0], np.geomspace(1e-9, 4000, 400_001)])
    tail = law.response(x, 0.0, 1.0)[0]
    assert np.trapezoid(tail, x) == pytest.approx(1.0, rel=1e-4)
    assert 2 * np.trapezoid(tail * x, x) == pytest.approx(1 + spread**2, rel=2e-4)
    assert (np.diff(tail) <= 1e-12).all()


SPREADS = st.sampled_from([0.0, 0.1, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0])


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 400), st.floats(0.0, 0.999), SPREADS, SPREADS, st.floats(0.01, 0.999), st.floats(1e-6, 1e3))
def test_quantiles_are_where_the_tail_says(servers: int, load: float, cv_s: float, cv_a: float, p: float, service: float) -> None:
    queue = Queue.of(load * servers / service, service, servers, cv_s, cv_a)
    at = queue.response_quantile(p)
    assert queue.response_tail(at * (1 + 1e-8)) - 1e-9 <= 1 - p <= queue.response_tail(at * (1 - 1e-8)) + 1e-9  # may be a jump
    assert cv_s == 0 or queue.response_tail(at) == pytest.approx(1 - p, rel=1e-6)
    assert at >= queue.wait_quantile(p) * (1 - 1e-9)  # a response is no shorter than its wait
    assert 0 <= queue.probability <= 1
    assert queue.mean_wait >= 0
    assert queue.response_tail(2 * at) <= queue.response_tail(at)
    busier = Queue.of(min(1.02 * load, 0.9995) * servers / service, service, servers, cv_s, cv_a)
    assert busier.mean_wait >= queue.mean_wait * (1 - 1e-3)  # the parabola of part servers bends by less


def test_many_queues_at_once_are_each_of_them() -> None:
    servers = np.array([1, 2, 7, 100, 1000, 10, 5, 3, 20_000_000])
    rate = np.array([0.8, 1.0, 6.5, 96.0, 700.0, 25.0, 0.0, 2.9, 19_990_000.0])
    cv_s = np.array([1.0, 0.0, 2.0, 0.5, 1.0, 1.0, 1.0, 0.9, 1.0])
    cv_a = np.array([1.0, 1.0, 3.0, 0.4, 1.0, 1.0, 2.0, 0.0, 1.0])
    many = Queue.of(rate, 1.0, servers, cv_s, cv_a)
    quantiles, tails = many.response_quantile(0.99), many.response_tail(2.0)
    for i in range(len(rate)):
        one = Queue.of(*(x[i].item() for x in (rate, np.ones(9), servers, cv_s, cv_a)))
        assert many.mean_wait[i] == pytest.approx(one.mean_wait, rel=1e-9)
        assert quantiles[i] == pytest.approx(one.response_quantile(0.99), rel=1e-8)
        assert tails[i] == pytest.approx(one.response_tail(2.0), rel=1e-8)
        assert many.wait_quantile(0.9)[i] == pytest.approx(one.wait_quantile(0.9), rel=1e-9)
    assert np.isposinf(quantiles[5])


# -- against simulation -----------------------------------------------------------------------------------------------


def simulated(
    servers: int, load: float, gap: Callable[[], float], service: Callable[[], float], n: int
) -> tuple[float, float, list[float]]:
    """Return (mean wait, share that waits, responses in order of length) of `n` requests after as many tenths to warm up."""
    free, now, waits, responses = [0.0] * servers, 0.0, [], []
    for i in range(n + n // 10):
        now += gap() / (servers * load)
        wait, took = max(free[0] - now, 0.0), service()
        heapq.heapreplace(free, now + wait + took)
        if i >= n // 10:
            waits.append(wait)
            responses.append(wait + took)
    return sum(waits) / n, sum(w > 0 for w in waits) / n, sorted(responses)


def lognormal(draw: random.Random, cv: float) -> Callable[[], float]:
    sigma = math.sqrt(math.log(1 + cv * cv))
    return lambda: draw.lognormvariate(-sigma * sigma / 2, sigma)


def gamma(draw: random.Random, cv: float) -> Callable[[], float]:
    return lambda: draw.gammavariate(1 / cv**2, cv**2)


def bursts(draw: random.Random, cv: float) -> Callable[[], float]:
    p = (1 + math.sqrt((cv * cv - 1) / (cv * cv + 1))) / 2
    return lambda: draw.expovariate(2 * p if draw.random() < p else 2 * (1 - p))


@pytest.mark.parametrize(
    ("servers", "load", "cv_a", "cv_s"), [(10, 0.8, 1.0, 0.5), (10, 0.8, 1.0, 2.0), (10, 0.7, 2.0, 1.0), (40, 0.85, 2.0, 0.5)]
)
def test_the_approximations_are_near_simulations(servers: int, load: float, cv_a: float, cv_s: float) -> None:
    draw = random.Random(11)  # noqa: S311
    gap = bursts(draw, cv_a) if cv_a > 1 else lambda: draw.expovariate(1.0)
    service = {0.5: gamma, 2.0: lognormal}[cv_s](draw, cv_s) if cv_s != 1 else lambda: draw.expovariate(1.0)
    mean, waits, responses = simulated(servers, load, gap, service, 150_000)
    queue, error = Queue.of(servers * load, 1.0, servers, cv_s, cv_a), response_error(load, cv_s, cv_a)
    assert queue.mean_wait == pytest.approx(mean, rel=0.22)
    assert queue.probability == pytest.approx(waits, abs=0.06)
    assert queue.response_quantile(0.99) == pytest.approx(responses[int(0.99 * len(responses))], rel=error)
    if cv_a > 1:  # what the wait probability of Poisson arrivals would make of it is much further off
        assert abs(erlang_c(servers, servers * load) - waits) > 3 * abs(queue.probability - waits)


def test_published_simulations_of_wide_laws_are_met() -> None:
    # c = 10, load 0.9: services with a squared spread of 4, hyperexponential and lognormal; arrivals so, exponential services
    wide, bursty = Queue.of(9.0, 1.0, 10, 2.0), Queue.of(9.0, 1.0, 10, 1.0, 2.0)
    assert wide.mean_wait == pytest.approx(1.522, rel=0.02)
    assert wide.mean_wait == pytest.approx(1.426, rel=0.08)
    assert wide.response_quantile(0.99) == pytest.approx(14.05, rel=0.17)
    assert bursty.mean_wait == pytest.approx(1.852, rel=0.05)
    # c = 100, load 0.95, lognormal: a scaled quantile of the wait would give 2.96
    assert Queue.of(95.0, 1.0, 100, 2.0).response_quantile(0.99) == pytest.approx(8.73, rel=0.18)
