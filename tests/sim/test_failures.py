"""Failures played one by one against the closed forms: the same efficiency, the same optimum, the same parts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.operations.goodput import goodput, losses
from foretell.operations.intervals import complete_efficiency, exact
from foretell.sim.failures import failure_times, simulate

SETTINGS = (  # block, MTBF, restart: seconds
    (300.0, 86_400.0, 600.0),
    (300.0, 21_600.0, 600.0),
    (300.0, 900.0, 600.0),
    (60.0, 10_000.0, 300.0),
    (120.0, 3_600.0, 600.0),
    (600.0, 600.0, 600.0),
    (5.0, 11_134.0, 600.0),
    (60.0, 11_134.0, 300.0),
    (30.0, 828.0, 60.0),
    (1.0, 3_600.0, 0.0),
)


@pytest.mark.parametrize(("block", "mtbf", "restart"), SETTINGS)
def test_the_exact_optimum_reaches_what_it_promises(block: float, mtbf: float, restart: float) -> None:
    best = exact(block, mtbf)
    run = simulate(best, block, mtbf, restart, failures=40_000)
    assert run.efficiency == pytest.approx(complete_efficiency(best, block, mtbf, restart), abs=3.5 * run.standard_error)
    assert run.standard_error < 0.01
    for other in (0.6 * best, 1.6 * best):  # the same failures strike all three
        assert simulate(other, block, mtbf, restart, failures=40_000).efficiency <= run.efficiency + run.standard_error


@pytest.mark.parametrize(("block", "mtbf", "restart"), SETTINGS[:5])
def test_the_time_goes_where_the_closed_form_says(block: float, mtbf: float, restart: float) -> None:
    best = exact(block, mtbf)
    run = simulate(best, block, mtbf, restart, failures=40_000)
    parts = (run.useful_s, run.checkpoints_s, run.rework_s, run.restarts_s)
    assert sum(parts) == pytest.approx(run.wall_s)
    shares = losses(best, block, mtbf, restart)
    wanted = (shares.useful, shares.checkpoints, shares.rework, shares.restarts)
    assert tuple(part / run.wall_s for part in parts) == pytest.approx(wanted, abs=0.01)
    assert run.wall_s / run.failures == pytest.approx(mtbf, rel=0.02)


@pytest.mark.parametrize("lag", [0.0, 30.0, 120.0, 600.0, 1_800.0])
def test_a_save_that_ends_later_costs_its_lag_once_a_failure(lag: float) -> None:
    interval = max(exact(5.0, 20_000.0), lag)
    run = simulate(interval, 5.0, 20_000.0, 600.0, lag_s=lag, failures=40_000)
    wanted = goodput(interval, 5.0, 20_000.0, 600.0, lag)
    assert run.efficiency == pytest.approx(wanted, abs=3.5 * run.standard_error + 0.003)


@pytest.mark.parametrize(("block", "mtbf", "restart"), [(60.0, 10_000.0, 300.0), (300.0, 21_600.0, 600.0)])
def test_other_laws_move_the_efficiency_little(block: float, mtbf: float, restart: float) -> None:
    best = exact(block, mtbf)
    run = simulate(best, block, mtbf, restart, weibull_shape=0.7, units=1, failures=40_000)
    assert run.efficiency == pytest.approx(complete_efficiency(best, block, mtbf, restart), abs=0.015)
    many = simulate(best, block, mtbf, restart, weibull_shape=0.7, units=500, failures=20_000)
    assert many.efficiency == pytest.approx(complete_efficiency(best, block, mtbf, restart), abs=4 * many.standard_error + 0.003)


def test_fresh_units_fail_sooner_where_the_young_die() -> None:
    def first(shape: float) -> float:
        rng = np.random.default_rng(3)
        times = (next(failure_times(rng, 1.0, weibull_shape=shape, units=1000, fresh=True)) for _ in range(400))
        return float(np.mean(list(times)))

    # mean of the first of n over mean / n is n^(1 - 1/k)
    assert first(0.7) == pytest.approx(0.05179, rel=0.2)
    assert first(1.5) == pytest.approx(10.0, rel=0.1)


def test_long_running_units_fail_at_their_mean_whatever_their_law() -> None:
    for shape in (0.7, 1.5, 3.0):
        times = failure_times(np.random.default_rng(5), 10.0, weibull_shape=shape, units=50)
        last = list(itertools.islice(times, 20_000))[-1]
        assert last / 20_000 == pytest.approx(10.0, rel=0.03)


def test_no_progress_is_an_answer() -> None:
    run = simulate(3_600.0, 3_600.0, 60.0, 600.0)
    assert run.efficiency < 1e-6
    assert run.restarts_s == pytest.approx(run.wall_s, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(
    interval=st.floats(1.0, 1e5),
    block=st.floats(0.0, 1e4),
    mtbf=st.floats(10.0, 1e6),
    restart=st.floats(0.0, 1e4),
    shape=st.sampled_from([0.7, 1.0, 1.5]),
)
def test_parts_sum_and_more_failures_never_help(interval: float, block: float, mtbf: float, restart: float, shape: float) -> None:
    run = simulate(interval, block, mtbf, restart, weibull_shape=shape, units=4, failures=500)
    assert 0.0 <= run.efficiency <= 1.0
    assert run.useful_s + run.checkpoints_s + run.rework_s + run.restarts_s == pytest.approx(run.wall_s)
    rarer = simulate(interval, block, 2 * mtbf, restart, weibull_shape=shape, units=4, failures=500)
    assert rarer.efficiency >= run.efficiency - 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [("interval_s", 0.0), ("block_s", -1.0), ("mtbf_s", 0.0), ("restart_s", float("nan")), ("failures", 3), ("units", 0)],
)
def test_numbers_that_mean_nothing(name: str, value: float) -> None:
    usual: dict[str, Any] = {"interval_s": 100.0, "block_s": 1.0, "mtbf_s": 1000.0, "restart_s": 10.0}
    with pytest.raises(InputError, match=name):
        simulate(**(usual | {name: value}))


def test_a_save_must_be_done_before_the_next_begins() -> None:
    with pytest.raises(InputError, match="shorter than the save takes"):
        simulate(100.0, 1.0, 1000.0, 10.0, lag_s=200.0)
