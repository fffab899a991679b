"""Failure rates of public fleets: what the records say, the range to plan with, and rates of parts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.catalog import loader
from foretell.errors import CatalogError, ConfigError, InputError
from foretell.operations.component_rates import component_rates, fleet_rate
from foretell.operations.failure_rates import FAMILIES, component_source, public_range, record, records
from foretell.operations.poisson import cumulative, interval
from foretell.operations.restart_times import hang_range, restart_range, restart_time, restart_times

OWN = """
id = "own"
nodes = 1000
observation_days = 200
failures_count = 2000
causes = "infrastructure"
planned_counted = false
year = 2026
"""


def _own(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CATALOG", str(folder))
    (folder / "failures").mkdir()
    (folder / "failures" / "own.toml").write_text(text)


def test_llama_3_has_its_published_figures() -> None:
    llama = record("llama3-405b-run")
    counts = {name: cause.count for name, cause in llama.components.items()}
    assert len(counts) == 18
    assert sum(counts.values()) == llama.failures_count == 419
    assert counts["faulty_gpu"] / 419 == pytest.approx(0.353, abs=5e-4)  # not the 30.1 % that is printed
    assert sum(cause.count for cause in llama.components.values() if cause.part == "gpu") == 268
    assert llama.rate == pytest.approx(3.789, rel=5e-4)
    assert llama.mtbf_hours == pytest.approx(3.0931, rel=1e-4)
    assert llama.gpu_hours_per_failure == pytest.approx(50_677, rel=1e-4)
    assert (llama.planned_counted, llama.planned_count) == (False, 47)
    hours_each_stop = 54 * 24 / (419 + 47)
    assert hours_each_stop == pytest.approx(2.7811, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("rsc-1", 6.5), ("rsc-2", 2.34), ("opt-175b-run", 14.1), ("bloom-176b-run", 3.0), ("b200-504", 2.89), ("imbue-h100", 4.3)],
)
def test_each_fleet_has_its_rate(name: str, rate: float) -> None:
    assert record(name).rate == pytest.approx(rate, rel=0.01)


def test_every_record_is_complete_and_its_names_are_of_no_other_kind() -> None:
    others = {
        loader._key(name)
        for kind in loader.KINDS
        if kind != "failure"
        for entry in loader.entries(kind)
        for name in (entry["id"], *entry.get("aliases", ()))
    }
    for one in records():
        assert one.sources
        assert {source.basis for source in one.sources} <= {"read", "secondary", "recalled"}
        assert all(source.url.startswith("https://") and source.date for source in one.sources)
        assert not {loader._key(name) for name in (one.id, *one.aliases)} & others
        assert one.accelerator is None or loader.entry("hardware", one.accelerator)["id"] == one.accelerator


def test_measured_and_projected_times_are_two_families() -> None:
    rsc = record("rsc-1")
    projected = {point.gpus: point.hours for point in rsc.mttf if point.family == "projected"}
    measured = {point.gpus: point.hours for point in rsc.mttf if point.family == "measured"}
    for gpus, hours in projected.items():  # 1 / (nodes x rate)
        assert 24_000 / (gpus / 8 * rsc.rate) == pytest.approx(hours, rel=0.025)
    assert measured[8] * 8 / 1024 == pytest.approx(measured[1024], rel=0.15)  # 1 / N
    assert 24_000 / (1024 / 8 * rsc.rate) / measured[1024] == pytest.approx(3.65, rel=0.01)  # the one does not give the other


def test_the_planning_range_holds_llama_3_and_leaves_the_early_fleet_out() -> None:
    usual = public_range()
    assert (usual.low, usual.high) == (2.34, 6.5)
    assert usual.point == pytest.approx((2.34 * 3.78869 * 6.5) ** (1 / 3), rel=1e-4)
    assert usual.records == ("llama3-405b-run", "rsc-1", "rsc-2")
    assert usual.unit == "failures per 1000 node-days"
    days = 2048 * 54 / 1000
    assert usual.low * days < 419 < usual.high * days
    assert record("opt-175b-run").rate not in usual
    assert usual.to_dict()["records"] == list(usual.records)
    assert public_range(accelerator="h100-sxm-80gb").point == pytest.approx(3.789, rel=1e-3)
    asked = public_range("job restarts")
    assert (asked.records, asked.low) == (("opt-175b-run",), 13.0)
    assert public_range("GPU errors only").records == ("b200-504",)


def test_a_range_of_no_record_says_what_there_is() -> None:
    with pytest.raises(InputError, match="leaves no record; allowed: b200-504"):
        public_range(minimum_node_days=1e9)
    with pytest.raises(InputError, match="causes='all' is not known"):
        public_range("all")
    with pytest.raises(CatalogError, match="nearest: rsc-"):
        record("rsc-3")


def test_a_fleet_of_ones_own_joins_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own(tmp_path, OWN, monkeypatch)
    wider = public_range()
    assert "own" in wider.records
    assert wider.high == 10.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('causes = "infrastructure"', 'causes = "some"', "failure own: causes='some' is not known"),
        ("failures_count = 2000", "", "needs a rate, or a count"),
        ("nodes = 1000", "", "lacks nodes"),
        ("nodes = 1000", "nodes = -1", "nodes=-1"),
        ("year = 2026", 'year = 2026\nrate = "x"', "rate is not a known key"),
        ("year = 2026", "year = 2026\n[components]\na = 1", "has a table whose keys"),
        ("year = 2026", "year = 2026\n[units]\ngpu = 0", "units.gpu=0"),
        (
            "year = 2026",
            'year = 2026\n[units]\ngpu = 8\n[components]\na = { count = 1, part = "gpu", per = "gpu", family = "hardware" }',
            "is not the sum of the components",
        ),
        (
            "year = 2026",
            'year = 2026\n[components]\na = { count = 2000, part = "gpu", per = "gpu", family = "hardware" }',
            "is not among the fleet's units",
        ),
    ],
)
def test_a_bad_record_is_refused_with_its_place(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own(tmp_path, OWN.replace(old, new), monkeypatch)
    with pytest.raises((InputError, ConfigError)) as caught:
        record("own")
    assert message in str(caught.value)
    assert "failure own" in str(caught.value)


# chi-square quantiles of 2k and 2k + 2 degrees of freedom at 5 % and 95 %, halved (tables; scipy gives the same digits)
@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        (0, 0.0, 2.9957322736),
        (1, 0.0512932944, 4.7438645184),
        (7, 3.2853156919, 13.1481138024),
        (148, 128.5739193062, 169.6302379153),
        (419, 385.9087111580, 454.2683367645),
    ],
)
def test_the_interval_of_a_count_is_the_exact_one(count: int, low: float, high: float) -> None:
    assert interval(count) == pytest.approx((low, high), rel=1e-9, abs=1e-12)


@given(st.integers(0, 2000), st.floats(0.5, 0.99))
def test_an_interval_holds_its_count_and_grows_with_the_confidence(count: int, level: float) -> None:
    low, high = interval(count, level)
    assert low <= count <= high
    assert cumulative(count, high) == pytest.approx((1 - level) / 2, rel=1e-6)
    wider = interval(count, level + 0.005)
    assert wider[0] <= low
    assert wider[1] > high


@given(st.integers(0, 60), st.floats(0.01, 80.0))
def test_the_cumulative_is_the_plain_sum(count: int, mean: float) -> None:
    plain = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
    assert cumulative(count, mean) == pytest.approx(min(plain, 1.0), rel=1e-9, abs=1e-300)


def test_parts_sum_to_their_fleet() -> None:
    rates = component_rates()
    assert {rate.family for rate in rates.values()} == set(FAMILIES)
    assert sum(rate.count for rate in rates.values()) == 419
    assert rates["gpu"].per_hour.point == pytest.approx(268 / (16384 * 54 * 24))
    assert rates["nic"].per_hour.point == pytest.approx(7 / (16384 * 54 * 24))
    assert rates["cpu"].per_hour.point == pytest.approx(2 / (2048 * 54 * 24))
    for rate in rates.values():
        low, high = (end / (component_source().units[rate.per] * 1296) for end in interval(rate.count))
        assert rate.per_hour.low == pytest.approx(low * 2.34 / component_source().rate)
        assert rate.per_hour.high == pytest.approx(high * 6.5 / component_source().rate)
        assert rate.per_hour.sources
    whole = fleet_rate(2048)
    assert whole.point == pytest.approx(419 / 1296)
    assert 419 / 1296 in whole
    by_family = [fleet_rate(2048, families=[family]).point for family in FAMILIES]
    assert math.fsum(by_family) == pytest.approx(whole.point)


def test_a_fleet_of_other_nodes_and_of_given_rates() -> None:
    rates = component_rates()
    half = fleet_rate(100, {"gpu": 4, "nic": 4, "host": 1}, families=["hardware"])
    gpus = rates["gpu"].per_hour.point * 400
    hosts = sum(r.per_hour.point for r in rates.values() if r.per == "host" and r.family == "hardware") * 100
    assert half.point == pytest.approx(gpus + hosts)
    assert fleet_rate(1, rates={"gpu": rates["gpu"]}).point == pytest.approx(8 * rates["gpu"].per_hour.point)
    with pytest.raises(InputError, match="parts='gpus'"):
        fleet_rate(1, {"gpus": 8})
    with pytest.raises(InputError, match="nodes=0"):
        fleet_rate(0)
    with pytest.raises(InputError, match="has no failures by cause"):
        component_rates("rsc-1")


def test_restart_times_say_their_bounds() -> None:
    assert (restart_range().low, restart_range().high) == (300.0, 1200.0)
    assert (hang_range().low, hang_range().high) == (600.0, 1800.0)
    assert [restart_time(f"initialise_{name}").value_s for name in ("default", "new_store", "tuned")] == [1047, 361, 5]
    assert (restart_time("failover").value_s, restart_time("failover").bound) == (600, "lower")
    for one in restart_times():
        assert one.sources
        assert one.bound in (None, "upper", "lower")
        assert one.value_s is not None or (one.low_s is not None and one.high_s is not None)
