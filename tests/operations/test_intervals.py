"""How often to save, and what share trains: tables to every digit, and what holds for all positive numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.operations import intervals
from foretell.operations.goodput import best_interval, ettr, goodput, losses

# block, MTBF, restart -> Young, Daly's higher order, exact, complete model at Young's, first order there; seconds and shares
TABLE = [
    (300.0, 86_400.0, 600.0, 7200.000, 7001.3889, 7001.4044, 0.91257668, 0.90965278),
    (300.0, 21_600.0, 600.0, 3600.000, 3402.7778, 3402.8401, 0.81917607, 0.80502137),
    (300.0, 900.0, 600.0, 734.84692, 548.4552, 549.99017, 0.19428647, -0.53),
    (60.0, 10_000.0, 300.0, 1095.4451, 1055.8103, 1055.8156, 0.86792208, 0.8602997),
    (120.0, 3_600.0, 600.0, 929.516, 851.23733, 851.29747, 0.64571831, 0.5732288),
    (600.0, 600.0, 600.0, 848.52814, 495.66859, 504.8434, 0.051101, -1.62),
    (600.0, 300.0, 600.0, 600.000, 300.0, 284.25927, 0.005050, -3.5),
]
positive = st.floats(1e-6, 1e9)
factor = st.floats(1.0, 1e3)
ONE = 1.0 + 1e-12


def half_digit(value: float) -> float:
    """Half a unit of the last digit that the table writes, or 1e-9 of the value."""
    digits = len(f"{value!r}".partition(".")[2])
    return max(0.51 * 10.0**-digits, 1e-9 * abs(value))


@pytest.mark.parametrize("row", TABLE)
def test_published_formulas_give_the_table(row: tuple[float, ...]) -> None:
    block, mtbf, restart, *wanted = row
    young = intervals.square_root(block, mtbf)
    found = [
        young,
        intervals.higher_order(block, mtbf),
        intervals.exact(block, mtbf),
        intervals.complete_efficiency(young, block, mtbf, restart),
        intervals.first_order_efficiency(young, block, mtbf, restart),
    ]
    for value, told in zip(found[:4], wanted[:4], strict=True):
        assert value == pytest.approx(told, abs=1.1 * half_digit(told))
    first_order = wanted[4]
    # below nothing the table writes two digits: first order does not hold there, and says so by its sign
    assert found[4] == pytest.approx(first_order, abs=0.06 if first_order < 0 else half_digit(first_order))


@pytest.mark.parametrize(("hours", "minutes"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_dalys_own_figures(hours: float, minutes: float) -> None:
    assert intervals.higher_order(300.0, hours * 3600.0) / 60.0 == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


@pytest.mark.parametrize(
    ("rate", "block", "interval", "share"),
    [(6.5e-3, 10.0, 420.98785, 0.9205263), (6.5e-3, 300.0, 2305.8454, 0.7397918), (1e-3, 300.0, 5878.7754, 0.8979379)],
)
def test_effective_training_time_of_12000_accelerators(rate: float, block: float, interval: float, share: float) -> None:
    job = 1500 * rate / 86_400.0
    assert intervals.square_root(block, 1.0 / job) == pytest.approx(interval, abs=1e-4)
    assert ettr(job, 300.0, block) == pytest.approx(share, abs=6e-8)


@given(block=positive, mtbf=positive)
def test_the_exact_interval_solves_its_equation_to_the_last_digits(block: float, mtbf: float) -> None:
    """-ln(1 - u) - u = d/M for u = t/M; as a series where u is small, which loses no digits."""
    best = intervals.exact(block, mtbf)
    assert 0.0 < best <= mtbf
    u = best / mtbf
    if u < 1e-3:
        left = math.fsum(u**k / k for k in range(2, 8))
    elif u < 0.999:
        left = -math.log1p(-u) - u
    else:  # 1 - u has no digits left: the other side of the equation
        assert best == pytest.approx(mtbf, rel=2e-3)
        return
    assert left == pytest.approx(block / mtbf, rel=1e-9)


@given(block=positive, mtbf=positive, restart=st.floats(0.0, 1e9), other=st.sampled_from([0.5, 0.7, 0.9, 1.1, 1.4, 2.0]))
def test_the_exact_interval_beats_its_neighbours(block: float, mtbf: float, restart: float, other: float) -> None:
    best = intervals.exact(block, mtbf)
    share = intervals.complete_efficiency(best, block, mtbf, restart)
    assert intervals.complete_efficiency(other * best, block, mtbf, restart) <= share * ONE
    for rule in (intervals.square_root, intervals.higher_order):
        assert intervals.complete_efficiency(rule(block, mtbf), block, mtbf, restart) <= share * ONE


@given(block=positive, mtbf=positive, restart=positive, times=factor)
def test_rules_agree_where_checkpoints_are_short_and_order_themselves(
    block: float, mtbf: float, restart: float, times: float
) -> None:
    young, best = intervals.square_root(block, mtbf), intervals.exact(block, mtbf)
    assert best <= young * ONE
    assert intervals.availability_optimal(block, mtbf, restart) >= young  # it counts the block and the restart in
    assert intervals.exact(times * block, mtbf) >= best / ONE
    assert intervals.exact(block, times * mtbf) >= best / ONE
    if block < 1e-3 * mtbf:
        assert intervals.higher_order(block, mtbf) == pytest.approx(best, rel=1e-4)
        assert young - block == pytest.approx(intervals.first_order(block, mtbf))
        assert young == pytest.approx(best, rel=0.04)
    assert intervals.first_order_waste(block, mtbf) == pytest.approx(block / young + young / (2 * mtbf))


@settings(max_examples=200)
@given(interval=positive, block=positive, mtbf=positive, restart=positive, lag=positive, times=factor)
def test_goodput_is_a_share_that_falls_with_all_that_costs(
    interval: float, block: float, mtbf: float, restart: float, lag: float, times: float
) -> None:
    share = goodput(interval, block, mtbf, restart, lag)
    assert 0.0 <= share <= 1.0
    for worse in (
        goodput(interval, times * block, mtbf, restart, lag),
        goodput(interval, block, mtbf / times, restart, lag),
        goodput(interval, block, mtbf, times * restart, lag),
        goodput(interval, block, mtbf, restart, times * lag),
    ):
        assert worse <= share * ONE
    assert goodput(interval, block, mtbf, restart) >= share / ONE
    assert share <= interval / (interval + block) * ONE  # checkpoints alone
    assert best_interval(block, mtbf, lag) >= lag


@settings(max_examples=200)
@given(interval=positive, block=positive, mtbf=positive, restart=positive, lag=positive)
def test_losses_sum_to_the_wall_time(interval: float, block: float, mtbf: float, restart: float, lag: float) -> None:
    found = losses(interval, block, mtbf, restart, lag)
    parts = (found.useful, found.checkpoints, found.rework, found.restarts)
    assert all(0.0 <= part <= 1.0 for part in parts)
    assert math.fsum(parts) == pytest.approx(1.0, abs=1e-9)
    assert found.useful == goodput(interval, block, mtbf, restart, lag)
    assert found.restarts == pytest.approx(-math.expm1(-restart / mtbf), abs=1e-12)
    assert found.checkpoints * interval == pytest.approx(found.useful * block, rel=1e-9, abs=1e-300)


FORMULAS: list[tuple[Callable[..., Any], int]] = [
    (intervals.square_root, 2),
    (intervals.first_order, 2),
    (intervals.higher_order, 2),
    (intervals.exact, 2),
    (intervals.first_order_waste, 2),
    (intervals.availability_optimal, 3),
    (intervals.wall_time_ratio, 4),
    (intervals.complete_efficiency, 4),
    (intervals.first_order_efficiency, 4),
    (best_interval, 3),
    (goodput, 5),
    (ettr, 3),
    (ettr, 4),
]


@pytest.mark.parametrize(("formula", "count"), FORMULAS)
@given(rows=st.lists(st.tuples(*[positive] * 5), min_size=1, max_size=20))
def test_one_by_one_equals_all_at_once_and_is_a_number(
    formula: Callable[..., Any], count: int, rows: list[tuple[float, ...]]
) -> None:
    one_by_one = [formula(*row[:count]) for row in rows]
    assert not any(math.isnan(value) for value in one_by_one)
    at_once = formula(*np.array(rows).T[:count])  # a warning of NumPy's is an error here
    assert at_once == pytest.approx(one_by_one, rel=1e-12, abs=1e-300)


@given(rows=st.lists(st.tuples(*[positive] * 5), min_size=1, max_size=20))
def test_losses_one_by_one_equal_all_at_once(rows: list[tuple[float, ...]]) -> None:
    at_once = losses(*np.array(rows).T)
    for i, row in enumerate(rows):
        one = losses(*row)
        for part in ("useful", "checkpoints", "rework", "restarts"):
            assert getattr(at_once, part)[i] == pytest.approx(getattr(one, part), rel=1e-12, abs=1e-12)


def test_no_failures_leave_the_checkpoints_alone_and_no_progress_is_zero() -> None:
    assert goodput(1000.0, 10.0, 1e15, 600.0) == pytest.approx(1000.0 / 1010.0, rel=1e-9)
    assert goodput(1e9, 1.0, 1e-6, 1.0) == 0.0
    assert intervals.wall_time_ratio(1e9, 1.0, 1e-6, 1.0) == math.inf
    found = losses(1e9, 1.0, 1e-6, 1.0)
    assert (found.useful, found.checkpoints, found.rework, found.restarts) == (0.0, 0.0, 0.0, 1.0)
