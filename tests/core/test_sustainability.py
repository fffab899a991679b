"""Energy, carbon and water of machines at work, and their share of what making them emitted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretell as ft
from foretell.core.solver import SustainabilityModel, SustainabilityResult
from foretell.machine import load_fleet
from foretell.machine.datacenter import Datacenter, GridProfile
from foretell.operations.emissions import embodied_rate, facility_kwh, grid_kg, on_site_litres
from foretell.units import quantity
from sweep_rows import agree, unsaid

MODEL = SustainabilityModel()
FLEET = load_fleet("dgx-h100")


def ask(days: float = 30, place: Any = "poland", *, fleet: Any = FLEET, **settings: Any) -> SustainabilityResult:
    return MODEL.solve(fleet, days, place, **settings)


@pytest.mark.parametrize(("hours", "tonnes"), [(184_320, 31.22), (368_640, 62.44), (1_720_320, 291.42)])
def test_llama_2_emitted_what_its_card_says(hours: float, tonnes: float) -> None:
    """GPU-hours x 400 W x PUE 1.1 x 0.385 kg/kWh (arXiv 2307.09288, table 2)."""
    days = hours / (24 * 8 * 128)
    asked: dict[str, Any] = {"node_power_w": 8 * 400, "pue": 1.1, "carbon_intensity": 385}
    found = ask(days, None, fleet="dgx-a100", nodes=128, **asked)
    assert found.operational_carbon_kg / 1000 == pytest.approx(tonnes, rel=5e-4)
    assert found.operational_carbon_interval_kg == pytest.approx((found.operational_carbon_kg,) * 2)
    assert found.region_name == "intensity as given"
    assert not any("region" in text for text in found.assumed)


def test_bloom_emitted_what_its_authors_count() -> None:
    """433 MWh at 57 g/kWh are 24.69 t; a server of 2,500 kg over six years at 85 % is 0.056 kg an hour of use."""
    assert grid_kg(1_082_990 * 0.4, 57) / 1000 == pytest.approx(24.69, abs=0.01)
    assert embodied_rate(2500, 6, 0.85) == pytest.approx(0.0559585, rel=1e-6)
    assert embodied_rate(150, 6, 0.85) == pytest.approx(0.00335751, rel=1e-6)
    assert 1_082_990 * embodied_rate(150, 6, 0.85) / 1000 == pytest.approx(3.64, abs=0.01)


def test_gpt_3_and_olmo_close_on_their_inputs_with_the_pue_once() -> None:
    assert facility_kwh(10_000 * 14.8 * 24 * 0.33, 1.10) / 1000 == pytest.approx(1289.4, rel=1e-3)  # 1,287 MWh published
    assert on_site_litres(0.24 / 1.09, 1.15) == pytest.approx(0.253, abs=1e-3)  # millilitres of a Gemini prompt, of IT energy


def test_power_is_measured_not_the_label_s_limit() -> None:
    """Eight H100 in training: 7.75 kW of 10.2, at most 8.48; decoding less, idle least."""
    watts = {name: ask(regime=name).node_power_w for name in ("training", "prefill", "decode", "idle")}
    assert watts["training"] == pytest.approx(7752, abs=1)
    assert ask().node_power_interval_w[1] == pytest.approx(8480, abs=1)
    assert watts["training"] > watts["decode"] > watts["idle"] > 1000
    assert watts["prefill"] > watts["decode"]


def test_hours_without_work_are_idle_hours() -> None:
    busy, half, idle = (ask(utilisation=share).it_energy_kwh for share in (1.0, 0.5, 0.0))
    assert half == pytest.approx((busy + idle) / 2)
    assert idle == pytest.approx(ask(regime="idle").it_energy_kwh)
    low = ask(utilisation=0.5, node_power_w=100)
    assert low.it_energy_kwh == pytest.approx(0.1 * 720)  # a node waits at no more than it works at


def test_chips_without_a_rated_power_say_how_to_give_one() -> None:
    with pytest.raises(ft.InputError, match=r"Give node_power_w .*, or tdp_w in a hardware file"):
        ask(fleet="tpu-v5p-pod")
    for watts in ("2 kW", 2000, quantity(2000, "W")):
        found = ask(fleet="tpu-v5p-pod", node_power_w=watts, utilisation=0.25)
        assert found.it_energy_kwh == pytest.approx(2240 * 2 * 720)
        assert any("no account of Google TPU v5p" in note for note in found.notes) or found.embodied_carbon_kg > 0


def test_boundaries_are_not_mixed() -> None:
    operational, lifecycle = ask(), ask(boundary="lifecycle")
    assert (operational.boundary, lifecycle.boundary) == ("operational", "lifecycle")
    assert lifecycle.carbon_intensity_g_per_kwh != operational.carbon_intensity_g_per_kwh
    assert operational.carbon_intensity_year == 2024
    with pytest.raises(ft.InputError, match="boundary='market' is not known of Poland; allowed: operational, lifecycle"):
        ask(boundary="market")
    assert ask(boundary="market", carbon_intensity=12).boundary == "market"


def test_a_building_s_pue_is_its_operator_s_alone() -> None:
    anyone, theirs, other = ask(), ask(operator="microsoft"), ask(operator="google")
    assert (anyone.pue, theirs.pue, theirs.pue_interval) == (1.25, 1.19, (1.19, 1.19))
    assert other.pue == 1.09
    assert ask(operator="Azure") == theirs
    assert any("operator 'microsoft' takes it" in note for note in anyone.notes)
    survey = ask(operator="survey")
    assert survey.pue == 1.54
    assert any(text.startswith("wue") and "survey's is not known" in text for text in survey.assumed)


def test_water_of_the_site_and_of_the_power_stations_are_apart() -> None:
    found = ask(place="us-iowa", pue=1.2, wue=0.5)
    assert found.water_usage_liters == pytest.approx(found.it_energy_kwh * 0.5)
    assert found.off_site_water_liters is not None
    assert found.off_site_water_liters > found.water_usage_liters
    assert ask(place="us-iowa", pue=2.0).off_site_water_liters == pytest.approx(found.off_site_water_liters * 2.0 / 1.2)
    assert ask(place="quebec").off_site_water_liters is None


def test_the_life_of_the_servers_reaches_their_making() -> None:
    short, long = ask(life_years=2), ask(life_years=8)
    assert short.embodied_carbon_kg == pytest.approx(4 * long.embodied_carbon_kg)
    assert short.operational_carbon_kg == long.operational_carbon_kg
    opened = ask()
    low, high = opened.embodied_carbon_interval_kg
    assert low < opened.embodied_carbon_kg < high
    assert any("4 to 6 years" in note for note in opened.notes)
    narrow = ask(life_years=5).embodied_carbon_interval_kg
    assert low < narrow[0] < narrow[1] < high


def test_machines_that_nobody_placed_span_all_grids() -> None:
    found = ask(place=None)
    low, high = found.carbon_intensity_interval_g_per_kwh
    assert low < 10 < found.carbon_intensity_g_per_kwh < 600 < high
    assert found.assumed[0] == "region not named: United States, average; the interval spans the catalog's grids"
    place = Datacenter("mine", GridProfile("grid", carbon_intensity_g_per_kwh=100.0), pue=1.1, wue_l_per_kwh=0.0)
    own = dataclasses.replace(FLEET, datacenter=place)
    inside = ask(place=None, fleet=own)
    assert (inside.region_name, inside.pue, inside.carbon_intensity_g_per_kwh, inside.assumed) == ("mine", 1.1, 100, ())
    assert inside.water_usage_liters == 0
    assert agree(MODEL, [own], {"duration_days": [1, 30], "datacenter": [None, "poland", place]}) == 6


@given(
    days=st.floats(1e-3, 3650),
    more=st.floats(1e-3, 3650),
    nodes=st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    used=st.floats(0, 1),
    pue=st.one_of(st.none(), st.floats(1, 10)),
    wue=st.one_of(st.none(), st.floats(0, 1e3)),
    grams=st.one_of(st.none(), st.floats(0, 1e5)),
    watts=st.one_of(st.none(), st.floats(1e-3, 1e9)),
    place=st.sampled_from([None, "poland", "us-iowa", "quebec"]),
    regime=st.sampled_from(["training", "prefill", "decode", "idle"]),
)
def test_energy_adds_up_over_nodes_and_days(
    days: float,
    more: float,
    nodes: tuple[int, int],
    used: float,
    pue: float | None,
    wue: float | None,
    grams: float | None,
    watts: float | None,
    place: str | None,
    regime: str,
) -> None:
    asked: dict[str, Any] = {"utilisation": used, "pue": pue, "wue": wue, "carbon_intensity": grams, "node_power_w": watts}
    asked["regime"] = regime
    first, second, both = (ask(days, place, nodes=count, **asked) for count in (*nodes, sum(nodes)))
    then, whole = (ask(one, place, nodes=nodes[0], **asked) for one in (more, days + more))
    for name in ("it_energy_kwh", "total_energy_kwh", "operational_carbon_kg", "embodied_carbon_kg", "water_usage_liters"):
        assert getattr(both, name) == pytest.approx(getattr(first, name) + getattr(second, name))
        assert getattr(whole, name) == pytest.approx(getattr(first, name) + getattr(then, name))
    assert first.carbon_footprint_kg == pytest.approx(first.operational_carbon_kg + first.embodied_carbon_kg)
    assert first.total_energy_kwh == pytest.approx(first.it_energy_kwh * first.pue)
    for name in ("it_energy", "total_energy"):
        low, high = getattr(first, f"{name}_interval_kwh")
        assert low * (1 - 1e-12) <= getattr(first, f"{name}_kwh") <= high * (1 + 1e-12)
    for name in ("carbon_footprint", "operational_carbon", "embodied_carbon"):
        low, high = getattr(first, f"{name}_interval_kg")
        assert low * (1 - 1e-12) <= getattr(first, f"{name}_kg") <= high * (1 + 1e-12)
    assert json.loads(json.dumps(first.to_dict(), allow_nan=False))["it_energy_kwh"] == first.it_energy_kwh
    assert not unsaid(first.explain())


def test_a_result_is_a_mapping_with_quantities() -> None:
    found = ask(nodes=8)
    assert set(found) >= {"it_energy_kwh", "carbon_footprint_kg", "water_usage_liters", "node_power", "boundary"}
    assert found.node_power.to("kW").magnitude == pytest.approx(7.752, abs=1e-3)
    assert found["node_power_interval"][1].to("kW").magnitude == pytest.approx(8.48, abs=1e-3)
    text = found.explain()
    assert "8 nodes at 7.752 kW in training" in text
    assert "operational, Poland" in text
    assert all(len(line) < 300 for line in text.splitlines())
    assert any("arXiv" in source or "arxiv" in source for source in found.sources)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"duration_days": 0}, "duration_days=0"),
        ({"duration_days": -1}, "duration_days=-1"),
        ({"duration_days": float("nan")}, "duration_days=nan"),
        ({"duration_days": 1e300}, "allowed: 1e-09 to 36500"),
        ({"duration_days": "30 days"}, "duration_days='30 days'"),
        ({"duration_days": True}, "duration_days=True"),
        ({"duration_days": np.array([1.0, 2.0])}, "duration_days=array"),
        ({"datacenter": "polnd"}, "nearest: poland"),
        ({"datacenter": 5}, "datacenter=5 is no place; allowed: the name of a region"),
        ({"datacenter": ["poland"]}, "is no place"),
        ({"regime": "trainin"}, "Did you mean training"),
        ({"regime": None}, "regime is not known"),
        ({"utilisation": "30 %"}, "utilisation='30 %'"),
        ({"utilisation": 30}, "utilisation=30 .*allowed: 0 to 1"),
        ({"utilisation": True}, "utilisation=True"),
        ({"boundary": "operation"}, "Did you mean operational"),
        ({"boundary": 5}, "boundary=5"),
        ({"operator": "gogle"}, "Did you mean google"),
        ({"operator": 5}, "operator=5"),
        ({"pue": 0.9}, "pue=0.9 .*allowed: 1 to 10"),
        ({"pue": "1.2"}, "pue='1.2'"),
        ({"wue": -0.1}, "wue=-0.1"),
        ({"carbon_intensity": -1}, "carbon_intensity=-1"),
        ({"carbon_intensity": "400 g"}, "carbon_intensity='400 g'"),
        ({"node_power_w": "10 GB"}, "is a size, not a power"),
        ({"node_power_w": "10 kWh"}, "is an energy, not a power"),
        ({"node_power_w": 0}, "node_power_w=0"),
        ({"node_power_w": -5}, "node_power_w=-5"),
        ({"life_years": 0}, "life_years=0"),
        ({"nodes": 2.5}, "nodes=2.5 must be a whole number"),
        ({"nodes": 0}, "nodes=0"),
        ({"fleet": "dgx-h10"}, "nearest: dgx-h100"),
        ({"fleet": 5}, "system=5 must be a name or a path"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"fleet": "dgx-h100", "duration_days": 30}
    with pytest.raises(ft.ForetellError, match=words):
        MODEL.solve(**(plain | asked))


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "duration_days": [1, 30, 0],
        "datacenter": [None, "poland", "us-iowa"],
        "regime": ["training", "decode", "train"],
        "utilisation": [0.3, 1.0],
        "operator": [None, "google", "survey"],
        "pue": [None, 1.2, 0.9],
        "carbon_intensity": [None, 400],
        "nodes": [1, 8],
    }
    assert agree(MODEL, [FLEET], axes) == 2 * 3 * 2 * 2 * 3 * 2 * 2 * 2
    more: dict[str, Any] = {
        "duration_days": 30,
        "datacenter": ["poland", "quebec"],
        "boundary": [None, "market", "lifecycle"],
        "wue": [None, 0, -1],
        "carbon_intensity": [None, 12.0],
        "node_power_w": [None, 100, "9 kW", "9 kWh"],
        "life_years": [None, 3],
        "utilisation": [0.25, 1.0],
    }
    known = agree(MODEL, [FLEET], more)
    assert known == agree(MODEL, [FLEET], more | {"boundary": [None, "lifecycle"]}) + 2 * 2 * 1 * 3 * 2 * 2


def test_rows_that_give_an_unknown_power_are_answered() -> None:
    axes: dict[str, Any] = {"duration_days": [1, 30], "node_power_w": [None, 2000, "3 kW"], "utilisation": [0.25, 1.0]}
    assert agree(MODEL, [load_fleet("tpu-v5p-pod")], axes) == 2 * 2 * 2


@given(
    axes=st.fixed_dictionaries(
        {
            "duration_days": st.lists(st.floats(1e-3, 36500), min_size=1, max_size=2),
            "utilisation": st.lists(st.floats(0, 1), min_size=1, max_size=2),
            "pue": st.lists(st.one_of(st.none(), st.floats(1, 10)), min_size=1, max_size=2),
            "wue": st.lists(st.one_of(st.none(), st.floats(0, 1e3)), min_size=1, max_size=2),
            "node_power_w": st.lists(st.one_of(st.none(), st.floats(1e-3, 1e9)), min_size=1, max_size=2),
            "life_years": st.lists(st.one_of(st.none(), st.floats(0.1, 100)), min_size=1, max_size=2),
            "nodes": st.lists(st.integers(1, 10**9), min_size=1, max_size=2),
        }
    )
)
def test_any_row_is_what_solve_says(axes: dict[str, Any]) -> None:
    agree(MODEL, [FLEET], axes)


def test_a_sweep_chooses_the_cleanest() -> None:
    place = Datacenter("mine", GridProfile("grid", carbon_intensity_g_per_kwh=1000.0), pue=1.1)
    table = MODEL.sweep(FLEET, duration_days=30, datacenter=["quebec", "germany", place])
    assert table.best()["datacenter"] == "quebec"
    worst = table.best(largest=True)
    assert worst["datacenter"] is place
    assert worst["carbon_footprint_kg"] == table["carbon_footprint_kg"].max()
    assert table["feasible"].all()
    assert "Table of 3 rows" in repr(table)
    with pytest.raises(ft.InputError, match="region=.* is not a setting"):
        MODEL.sweep(FLEET, duration_days=1, region="quebec")
