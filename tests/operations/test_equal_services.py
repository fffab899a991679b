"""M/D/c: the law of the wait beside what is known of it otherwise."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.operations.approximations import deterministic_mean_wait
from foretell.operations.equal_services import EqualServices


@settings(max_examples=40, deadline=None)
@given(servers=st.integers(1, 400), load=st.floats(0.01, 0.995))
def test_the_mean_is_that_of_the_zeros_and_that_of_the_tail(servers: int, load: float) -> None:
    queue = EqualServices.of(servers, load)
    assert queue.mean_wait == pytest.approx(deterministic_mean_wait(servers * load, 1.0, servers), rel=1e-6, abs=1e-10)
    assert queue.at_most[-1] == pytest.approx(1.0, abs=1e-12)
    tails = [queue.wait_tail(0.1 * i) for i in range(30)]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(tails))


def test_the_tail_adds_up_to_the_mean() -> None:
    queue, step = EqualServices.of(7, 0.85), 1e-3
    area = sum(queue.wait_tail((i + 0.5) * step) for i in range(12_000)) * step
    assert area == pytest.approx(queue.mean_wait, rel=1e-5)


@pytest.mark.parametrize("time", [0.0, 0.4, 1.0, 2.7, 6.1])
def test_one_server_is_erlangs(time: float) -> None:
    load = 0.7  # P(W <= t) = (1 - rho) sum over k <= t of (rho (k - t))^k / k! exp(-rho (k - t))
    terms = [(load * (k - time)) ** k / math.factorial(k) * math.exp(-load * (k - time)) for k in range(math.floor(time) + 1)]
    assert EqualServices.of(1, load).wait_tail(time) == pytest.approx(1 - (1 - load) * sum(terms), abs=1e-12)


def test_a_quantile_is_where_the_tail_is() -> None:
    queue = EqualServices.of(32, 0.9)
    assert queue.wait_tail(0.0) == pytest.approx(0.42901613, rel=1e-7)
    assert queue.wait_quantile(0.5) == 0.0
    for p in (0.6, 0.9, 0.99, 0.9999):
        assert queue.wait_tail(queue.wait_quantile(p)) == pytest.approx(1 - p, rel=1e-9)


def test_no_load_means_no_wait_and_too_much_no_law() -> None:
    idle = EqualServices.of(3, 0.0)
    assert (idle.mean_wait, idle.wait_tail(0.0), idle.wait_quantile(0.99)) == (0.0, 0.0, 0.0)
    for load in (1.0, -0.1, math.nan):
        with pytest.raises(InputError, match="exact law"):
            EqualServices.of(3, load)
