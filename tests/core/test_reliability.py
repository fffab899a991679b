"""Jobs that fail: how often, how often to save them, and what is left of the time."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretell as ft
from foretell.core.solver import ReliabilityModel, ReliabilityResult
from foretell.machine import load_fleet
from foretell.operations.intervals import complete_efficiency, exact, first_order_efficiency, higher_order, square_root
from foretell.units import quantity
from sweep_rows import agree, unsaid

MODEL = ReliabilityModel()
H100 = "dgx-h100"


def ask(hours: float = 24.0, **settings: Any) -> ReliabilityResult:
    return MODEL.solve(H100, hours, **settings)


def test_llama_3_lies_within_what_other_fleets_promise() -> None:
    """54 days of 2,048 nodes: 419 interruptions, one in 3.09 h, 3.789 of 1,000 node-days."""
    own = ask(54 * 24, nodes=2048, record="llama3-405b-run")
    assert own.expected_failures == pytest.approx(419)
    assert own.fleet_mtbf.to("hour").magnitude == pytest.approx(3.0931, abs=1e-4)
    assert own.failures_per_1000_node_days == pytest.approx(3.789, abs=1e-3)
    rates = [ask(record=name).failures_per_1000_node_days for name in ("rsc-2", "rsc-1")]
    others = ask(54 * 24, nodes=2048, failure_rate=rates)
    low, high = others.expected_failures_interval
    assert low < 419 < high
    assert high < 3 * low
    assert (
        ask(54 * 24, checkpoint_time_s=60, nodes=2048, failure_rate=rates).goodput_interval[1] > 0.90
    )  # more than 90 % was reported
    assert not own.assumed or "from a failure until training goes on" in own.assumed[0]
    assert any("Llama 3" in source for source in own.sources)


def test_a_projected_cluster_fails_as_its_owners_projected() -> None:
    """6.5 failures of 1,000 node-days: every 1.80 h at 16,384 GPUs, 0.23 h at 131,072."""
    for gpus, hours in ((16_384, 1.8029), (131_072, 0.2254)):
        found = ask(nodes=gpus // 8, record="rsc-1")
        assert found.fleet_mtbf_s / 3600 == pytest.approx(hours, abs=1e-4)


@pytest.mark.parametrize(
    ("block", "mtbf", "restart", "young", "daly", "best", "at_young", "rough"),
    [
        (300, 86400, 600, 7200.000, 7001.3889, 7001.4044, 0.91257668, 0.90965278),
        (300, 21600, 600, 3600.000, 3402.7778, 3402.8401, 0.81917607, 0.80502137),
        (300, 900, 600, 734.84692, 548.4552, 549.99017, 0.19428647, None),
        (60, 10000, 300, 1095.4451, 1055.8103, 1055.8156, 0.86792208, 0.8602997),
        (120, 3600, 600, 929.516, 851.23733, 851.29747, 0.64571831, 0.5732288),
        (600, 600, 600, 848.52814, 495.66859, 504.8434, 0.051101, None),
        (600, 300, 600, 600.000, 300.0, 284.25927, 0.005050, None),
    ],
)
def test_intervals_and_shares_are_those_of_the_papers(
    block: float, mtbf: float, restart: float, young: float, daly: float, best: float, at_young: float, rough: float | None
) -> None:
    found = ask(1000, checkpoint_time_s=block, recovery_time_s=restart, mtbf_hours=mtbf / 3600, checkpoint_interval_s=young)
    assert found.young_interval_s == pytest.approx(young, rel=1e-7)
    assert found.daly_interval_s == pytest.approx(daly, rel=1e-7)
    assert found.optimal_checkpoint_interval_s == pytest.approx(best, rel=1e-7)
    assert found.goodput_ratio == pytest.approx(at_young, abs=1e-6)
    if rough is not None:
        assert first_order_efficiency(young, block, mtbf, restart) == pytest.approx(rough, rel=1e-6)
    for minutes, hours in ((117, 24), (57, 6), (9.1, 0.25)):  # Daly's own examples, of a block of five minutes
        assert higher_order(300.0, hours * 3600) / 60 == pytest.approx(minutes, abs=0.5)


@pytest.mark.parametrize(
    ("block", "mtbf", "restart", "interval"), [(300.0, 21600.0, 600.0, 3400.0), (120.0, 3600.0, 600.0, 930.0)]
)
def test_a_simulated_job_trains_for_the_share_that_is_promised(
    block: float, mtbf: float, restart: float, interval: float
) -> None:
    dice = random.Random(7)  # noqa: S311  # no secret
    clock, useful, fails = 0.0, 0.0, dice.expovariate(1 / mtbf)
    for _ in range(60_000):
        end = clock + interval + block
        if fails >= end:
            clock, useful = end, useful + interval
            continue
        while True:  # a restart may fail too
            clock = fails
            fails = clock + dice.expovariate(1 / mtbf)
            if fails >= clock + restart:
                clock += restart
                break
    assert useful / clock == pytest.approx(complete_efficiency(interval, block, mtbf, restart), abs=0.005)


def test_shares_sum_to_the_whole_time() -> None:
    found = ask(720, checkpoint_time_s="2 min", nodes=2048)
    assert math.fsum(found.losses.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.losses.values())
    assert found.losses["useful"] == found.goodput_ratio
    assert found.useful_time.to("hour").magnitude == pytest.approx(720 * found.goodput_ratio)
    assert found.wall_time_s == pytest.approx(720 * 3600 / found.goodput_ratio)


RATES = st.floats(1e-3, 1e4)
TIMES = st.floats(1e-3, 1e5)


@given(RATES, TIMES, TIMES, st.integers(1, 10**5), st.floats(0, 1e4), st.floats(1.0, 100.0))
def test_more_failures_leave_less_time(rate: float, block: float, restart: float, nodes: int, lag: float, more: float) -> None:
    asked: dict[str, Any] = {"checkpoint_time_s": block, "recovery_time_s": restart, "nodes": nodes, "durability_lag_s": lag}
    rare, often = (ask(100, failure_rate=one, **asked) for one in (rate, rate * more))
    assert 0 <= often.goodput_ratio <= rare.goodput_ratio * (1 + 1e-9) <= 1 + 1e-9
    assert rare.goodput_ratio <= 1
    assert often.expected_failures == pytest.approx(rare.expected_failures * more)
    assert 0 <= rare.failure_probability <= often.failure_probability <= 1
    assert rare.optimal_checkpoint_interval_s >= often.optimal_checkpoint_interval_s * (1 - 1e-9)
    assert math.fsum(rare.losses.values()) == pytest.approx(1)
    assert often.feasible == (often.goodput_ratio >= 0.01 and block < often.fleet_mtbf_s)


@given(
    rate=st.tuples(RATES, st.floats(1.0, 10.0)),
    block=TIMES,
    nodes=st.integers(1, 10**5),
    interval=st.one_of(st.none(), TIMES),
    shape=st.floats(0.3, 3.0),
    hours=st.floats(1e-3, 1e5),
)
def test_intervals_hold_the_point(
    rate: tuple[float, float], block: float, nodes: int, interval: float | None, shape: float, hours: float
) -> None:
    low = rate[0]
    found = ask(
        hours,
        checkpoint_time_s=block,
        failure_rate=(low, low * rate[1]),
        nodes=nodes,
        checkpoint_interval_s=interval,
        weibull_shape=shape,
    )
    for name in ("fleet_mtbf_s", "failure_probability", "expected_failures", "wall_time_s", "failures_per_1000_node_days"):
        ends = getattr(found, f"{name.removesuffix('_s')}_interval" + ("_s" if name.endswith("_s") else ""))
        assert ends[0] * (1 - 1e-12) <= getattr(found, name) <= ends[1] * (1 + 1e-12), name
    assert found.goodput_interval[0] <= found.goodput_ratio * (1 + 1e-12) <= found.goodput_interval[1] * (1 + 2e-12)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["goodput_ratio"] == found.goodput_ratio
    text = found.explain()
    assert not unsaid(text)


@given(TIMES, st.floats(1e-2, 1e9), st.floats(0.1, 10.0))
def test_no_interval_is_better_than_the_best(block: float, mtbf: float, other: float) -> None:
    best = exact(block, mtbf)
    assert 0 < best <= mtbf * (1 + 1e-12)
    assert best <= square_root(block, mtbf) * (1 + 1e-9)
    at = complete_efficiency(best, block, mtbf, 0.0)
    assert complete_efficiency(best * other, block, mtbf, 0.0) <= at * (1 + 1e-9)


@pytest.mark.parametrize(
    "extreme",
    [
        {"mtbf_hours": 1e-9},
        {"mtbf_hours": 1e-9, "nodes": 10**9},
        {"mtbf_hours": 1e-9, "checkpoint_time_s": 1e9, "recovery_time_s": 1e9, "durability_lag_s": 1e9},
        {"mtbf_hours": 1e-9, "checkpoint_time_s": 1e-6, "recovery_time_s": 0},
        {"failure_rate": 1e-9, "checkpoint_time_s": 1e-6},
        {"failure_rate": 1e-9, "checkpoint_time_s": 1e9, "recovery_time_s": 1e9, "checkpoint_interval_s": 1e-6},
        {"failure_rate": 1e7, "nodes": 10**9, "weibull_shape": 20.0},
        {"mtbf_hours": 1e-9, "weibull_shape": 20.0, "nodes": 1},
        {"mtbf_hours": 2e5, "weibull_shape": 0.05, "nodes": 10**9},
        {"recovery_time_s": 1.49e10 / 25, "mtbf_hours": 1e6 / 3600, "checkpoint_interval_s": 1e-6, "checkpoint_time_s": 1e9},
    ],
)
@pytest.mark.parametrize("hours", [1e-9, 1e9 / 3600])
def test_absurd_numbers_have_an_answer_without_infinities(extreme: dict[str, Any], hours: float) -> None:
    found = ask(hours, **extreme)
    plain = found.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == json.loads(json.dumps(plain))
    assert 0 <= found.goodput_ratio <= 1
    assert 0 <= found.failure_probability <= 1
    assert math.fsum(found.losses.values()) == pytest.approx(1)
    assert found.feasible <= (found.goodput_ratio >= 0.01)
    if found.goodput_ratio == 0:
        assert (found.wall_time_s, plain["wall_time_s"]) == (math.inf, None)
    assert ("no progress" in found.explain()) == (not found.feasible)
    table = MODEL.sweep(H100, job_duration_hours=hours, **extreme)  # numpy's warnings would be errors
    assert table["goodput_ratio"][0] == pytest.approx(found.goodput_ratio, rel=1e-9)
    assert table["wall_time_s"][0] == pytest.approx(found.wall_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"checkpoint_interval_s": 1e-6}, "saving takes 100 %"),
        ({"checkpoint_interval_s": 1e9}, "work done once more after failures takes 100 %"),
        ({"recovery_time_s": 1e9}, "starting again takes 100 %"),
    ],
)
def test_no_progress_says_where_the_time_goes(asked: dict[str, Any], why: str) -> None:
    found = ask(**asked)
    assert not found.feasible
    assert found.constraint_trace[-1] == f"no progress: less than a hundredth of the time trains, {why}"


def test_fresh_nodes_fail_more_often_than_old_ones() -> None:
    old, fresh, ageing = (ask(1, nodes=1000, weibull_shape=shape) for shape in (1.0, 0.7, 1.5))
    assert ageing.failure_probability < old.failure_probability < fresh.failure_probability
    assert old.expected_failures == fresh.expected_failures
    assert any("fresh" in note for note in fresh.notes)


def test_spares_take_the_place_of_nodes_in_repair() -> None:
    found = [ask(nodes=1000, spares=n, repair_hours=24) for n in (0, 1, 5, 20, 10_000)]
    shares = [one.enough_nodes_probability or 0.0 for one in found]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == pytest.approx(1)
    assert any("waits for each repair" in note for note in found[0].notes)
    assert ask().enough_nodes_probability is None
    with pytest.raises(ft.InputError, match="spares=10001 is above the largest value taken; allowed: 0 to 10000"):
        ask(spares=10_001, repair_hours=24)


def test_a_save_beside_training_costs_its_lag_once_a_failure() -> None:
    """A copy of one second that is safe after ten minutes: better than ten minutes of waiting, worse than one second."""
    asked: dict[str, Any] = {"nodes": 2048, "recovery_time_s": 600}
    waits = ask(checkpoint_time_s=601, **asked).goodput_ratio
    beside = ask(checkpoint_time_s=1, durability_lag_s="10 min", **asked)
    at_once = ask(checkpoint_time_s=1, **asked).goodput_ratio
    assert waits < beside.goodput_ratio < at_once
    assert beside.optimal_checkpoint_interval_s >= 600


def test_a_result_is_a_mapping_with_quantities() -> None:
    found = ask(nodes=64, checkpoint_time_s=quantity(2, "s"))
    assert set(found) >= {"fleet_mtbf", "goodput_ratio", "losses", "optimal_checkpoint_interval", "expected_failures"}
    assert found["fleet_mtbf"].to("hour").magnitude == pytest.approx(found.fleet_mtbf_s / 3600)
    assert found.fleet_mtbf_interval[0].to("s").magnitude == found.fleet_mtbf_interval_s[0]
    text = found.explain()
    assert f"{100 * found.goodput_ratio:.3g} % of the time trains" in text
    assert "64 nodes of 8 accelerators" in text
    assert all(len(line) < 200 for line in text.splitlines())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"job_duration_hours": 0}, "job_duration_hours=0 must be a finite number in range"),
        ({"job_duration_hours": -1}, "job_duration_hours=-1"),
        ({"job_duration_hours": float("nan")}, "job_duration_hours=nan"),
        ({"job_duration_hours": True}, "job_duration_hours=True"),
        ({"job_duration_hours": "24 h"}, "job_duration_hours='24 h'"),
        ({"job_duration_hours": 1e300}, "allowed: 1e-09 to 277778"),
        ({"job_duration_hours": np.array([1.0, 2.0])}, "job_duration_hours=array"),
        ({"checkpoint_time_s": 0}, "checkpoint_time_s=0"),
        ({"checkpoint_time_s": -5}, "checkpoint_time_s=-5"),
        ({"checkpoint_time_s": None}, "checkpoint_time_s"),
        ({"checkpoint_time_s": "5 GB"}, "is a size, not a time"),
        ({"checkpoint_time_s": True}, "checkpoint_time_s=True"),
        ({"recovery_time_s": -1}, "recovery_time_s=-1"),
        ({"recovery_time_s": float("inf")}, "recovery_time_s=inf"),
        ({"failure_rate": 0}, "failure_rate=0"),
        ({"failure_rate": (5, 2)}, "low and then a high"),
        ({"failure_rate": (1, 2, 3)}, "neither a rate nor"),
        ({"failure_rate": "3"}, "failure_rate='3'"),
        ({"failure_rate": [True, 2]}, "failure_rate=True"),
        ({"mtbf_hours": 0}, "mtbf_hours=0"),
        ({"mtbf_hours": "1 h"}, "mtbf_hours='1 h'"),
        ({"mtbf_hours": 1, "failure_rate": 3}, "failure_rate=3 has no use where mtbf_hours is given"),
        ({"mtbf_hours": 1, "record": "rsc-1"}, "record='rsc-1' has no use"),
        ({"failure_rate": 1, "causes": "infrastructure"}, "has no use where the rate itself is given"),
        ({"record": "rscc"}, "nearest: rsc"),
        ({"record": "rsc-1", "causes": "infrastructure"}, "belongs to the range of public fleets"),
        ({"causes": "all"}, "Did you mean all interruptions"),
        ({"weibull_shape": 0}, "weibull_shape=0"),
        ({"weibull_shape": "0.7"}, "weibull_shape='0.7'"),
        ({"spares": 1}, "Give repair_hours"),
        ({"spares": -1, "repair_hours": 1}, "spares=-1"),
        ({"repair_hours": 0}, "repair_hours=0"),
        ({"nodes": 0}, "nodes=0"),
        ({"nodes": 2.5}, "nodes=2.5 must be a whole number"),
        ({"nodes": 10**10}, "nodes=10000000000"),
        ({"checkpoint_interval_s": 10, "durability_lag_s": 20}, "is shorter than the save takes"),
        ({"fleet": "dgx-h10"}, "nearest: dgx-h100"),
        ({"fleet": 5}, "system=5 must be a name or a path"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"fleet": H100, "job_duration_hours": 24}
    with pytest.raises(ft.ForetellError, match=words):
        MODEL.solve(**(plain | asked))


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "job_duration_hours": [24, -1],
        "checkpoint_time_s": ["5 min", 1e-3, "5 GB"],
        "recovery_time_s": [None, 60],
        "failure_rate": [None, 6.5, 1e7],
        "mtbf_hours": [None, 2.0],
        "record": [None, "rsc-1", "nobody"],
        "nodes": [1, 2048],
    }
    assert agree(MODEL, [H100], axes) == 2 * 2 * 2 * (2 + 2 + 1)


def test_a_sweep_marks_contradictions() -> None:
    axes: dict[str, Any] = {
        "job_duration_hours": 24,
        "checkpoint_interval_s": [None, 10.0, 4000.0],
        "durability_lag_s": [0, "20 s"],
        "weibull_shape": [1.0, 0.7],
        "causes": [None, "infrastructure", "everything"],
        "failure_rate": [None, 3.0],
    }
    assert agree(MODEL, [H100], axes) == 5 * 2 * (2 + 1)
    short = MODEL.sweep(H100, job_duration_hours=24, checkpoint_interval_s=10, durability_lag_s=20)
    assert short["reason"][0].startswith("checkpoint_interval_s is shorter than the save takes")
    assert np.isnan(short["goodput_ratio"]).all()


@given(
    axes=st.fixed_dictionaries(
        {
            "job_duration_hours": st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=2),
            "checkpoint_time_s": st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=2),
            "recovery_time_s": st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=1, max_size=2),
            "failure_rate": st.lists(st.one_of(st.none(), st.floats(1e-9, 1e7)), min_size=1, max_size=2),
            "checkpoint_interval_s": st.lists(st.one_of(st.none(), st.floats(1e-6, 1e9)), min_size=1, max_size=2),
            "durability_lag_s": st.lists(st.floats(0, 1e5), min_size=1, max_size=2),
            "nodes": st.lists(st.integers(1, 10**9), min_size=1, max_size=2),
        }
    )
)
def test_any_row_is_what_solve_says(axes: dict[str, Any]) -> None:
    agree(MODEL, [H100], axes, within=1e-6)


def test_a_fleet_s_own_rate_stands_in_a_sweep() -> None:
    fleet = dataclasses.replace(load_fleet("gb200-nvl72"), mtbf_s=36_000.0)
    assert agree(MODEL, [fleet], {"job_duration_hours": [1, 100], "nodes": [18, 36]}) == 4


def test_a_sweep_chooses_the_shortest_run() -> None:
    table = MODEL.sweep(H100, job_duration_hours=720, checkpoint_time_s=[5, 60, 600], nodes=[512, 2048], recovery_time_s=300)
    assert len(table) == 6
    best = table.best()
    assert (best["checkpoint_time_s"], best["nodes"], best["wall_time_s"]) == (5, 512, table["wall_time_s"].min())
    assert "wall_time_s" in repr(table)
    with pytest.raises(ft.InputError, match="spare=2 is not a setting"):
        MODEL.sweep(H100, job_duration_hours=1, spare=2)
    with pytest.raises(ft.InputError, match="job_duration_hours is needed"):
        MODEL.sweep(H100)
