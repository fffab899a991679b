"""Percentiles, targets and what an outcome says as plain data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.sim.arrivals import Lengths, OpenLoop, Request
from foretell.sim.outcome import Distribution, Slo
from foretell.sim.server import Scheduler, simulate
from sim.sim_costs import Affine

SHARES = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200))
def test_percentiles_are_those_of_numpy_to_a_bin(values: list[float]) -> None:
    made = Distribution()
    for value in values:
        made.add(value)
    assert made.quantiles(SHARES) == pytest.approx(list(np.quantile(values, SHARES)), rel=1.1e-3)
    assert made.mean == pytest.approx(np.mean(values))
    assert (made.count, made.maximum) == (len(values), max(values))


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 50)), min_size=1, max_size=20))
def test_a_weight_is_so_many_values(values: list[tuple[float, int]]) -> None:
    weighted = Distribution()
    for value, weight in values:
        weighted.add(value, weight)
    plain = np.repeat([value for value, _ in values], [weight for _, weight in values])
    assert weighted.quantiles(SHARES) == pytest.approx(list(np.quantile(plain, SHARES)), rel=1.1e-3)


@given(st.floats(1e-3, 10), st.floats(1e-3, 10), st.integers(1, 5000), st.integers(1, 100))
def test_a_ramp_is_its_values(first: float, last: float, values: int, weight: int) -> None:
    made = Distribution()
    made.add_ramp(first, last, values, weight)
    plain = np.linspace(first, last, values) if values > 1 else np.array([(first + last) / 2])
    assert made.count == pytest.approx(values * weight)
    assert made.mean == pytest.approx(np.mean(plain))
    width = abs(last - first) / min(values, 64)
    assert made.quantile(0.5) == pytest.approx(np.quantile(plain, 0.5), rel=2e-3, abs=width)


def test_no_value_has_no_percentile() -> None:
    empty = Distribution().summary()
    assert (empty.count, empty.mean, empty.p50, empty.p99, empty.maximum) == (0, None, None, None, None)


def test_zeros_are_values() -> None:
    made = Distribution()
    for value in (0.0, 0.0, 1.0):
        made.add(value)
    assert (made.quantile(0.5), made.maximum) == (0.0, 1.0)


def test_goodput_counts_who_met_every_target() -> None:
    """One seat: the requests take 1.5 s each, and wait for the ones before."""
    asked = [Request(float(i), 1, 2) for i in range(4)]
    cost = Affine(step=0.75, decode=0.0, context=0.0, prefill=0.0, pairs=0.0)
    how = Scheduler(1, 8, 1024)

    def share(slo: Slo) -> tuple[float | None, float | None]:
        out = simulate(asked, how, cost, slo=slo)
        assert out.ttft.maximum == 0.75 + 1.5  # 0.75, 1.25, 1.75, 2.25
        return out.slo_share, out.goodput_per_s

    assert share(Slo(ttft_s=1.25)) == (0.5, 2 / 6)
    assert share(Slo(ttft_s=1.25, tpot_s=0.75)) == (0.5, 2 / 6)
    assert share(Slo(tpot_s=0.7)) == (0.0, 0.0)
    assert share(Slo(e2e_s=2.5)) == (0.75, 3 / 6)


def test_who_waits_beyond_the_target_has_missed_it() -> None:
    asked = [Request(0.0, 1, 1000), Request(0.0, 1, 1), Request(9.5, 1, 1)]
    cost = Affine(step=1.0, decode=0.0, context=0.0, prefill=0.0, pairs=0.0)
    out = simulate(asked, Scheduler(1, 8, 4096), cost, until=10.0, slo=Slo(ttft_s=2.0))
    assert (out.requests, out.unfinished, out.slo_share) == (0, 3, 0.0)  # the second one is late, the third one not yet
    assert out.ttft.mean is None
    assert out.duration_s == 10.0
    assert out.utilisation == 1.0
    assert out.output_tokens_per_s == 1.0


def test_targets_are_checked() -> None:
    with pytest.raises(InputError, match="at least one target"):
        Slo()
    with pytest.raises(InputError) as raised:
        Slo(ttft_s=0.0)
    assert raised.value.field == "ttft_s"


def test_an_outcome_is_plain_data() -> None:
    out = simulate(OpenLoop(1.0, Lengths(100, 20), requests=20), Scheduler(4, 64, 4096), Affine())
    data = json.loads(json.dumps(out.to_dict(), allow_nan=False))
    assert data["ttft"]["p99_s"] == out.ttft.p99
    assert data["ttft"]["count"] == 20
    assert data["queue"][-1] == list(out.queue[-1])
    assert data["prefill_utilisation"] is None
