"""What machines cost: owned or rented, by the hour and by the token, and what nobody knows the price of."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretell as ft
from foretell.core.solver import EconomicsModel, EconomicsResult
from foretell.machine import load_fleet
from foretell.machine.datacenter import Datacenter, GridProfile
from foretell.operations import money
from foretell.units import quantity
from sweep_rows import TODAY, agree, unsaid

MODEL = EconomicsModel()
H100 = "dgx-h100"
FLEET = load_fleet(H100)
OWNED: dict[str, Any] = {"node_price_usd": 280_000, "life_years": 4, "node_power_w": 8400, "pue": 1.25}
"""Eight GPUs of 35,000 dollars and 1.05 kW each."""


def ask(days: float = 365, *, fleet: Any = H100, **settings: Any) -> EconomicsResult:
    return MODEL.solve(fleet, days, **({"today": TODAY} | settings))


def test_an_owned_hour_costs_what_the_annuity_says() -> None:
    """35,000 dollars, 5,000 left after 4 years, 8 %, 5 % upkeep, 1.05 kW, PUE 1.25, 0.08 a kWh: 1.384409 an hour."""
    yearly = money.yearly_capital(35_000, 5_000, 0.08, 4)
    by_hand = money.owned_per_hour(yearly, 0.05 * 35_000, 1.05, 1.25, 0.08)
    assert by_hand == pytest.approx(1.384409, abs=1e-6)
    assert money.owned_per_hour(yearly, 0.05 * 35_000, 1.05, 1.25, 0.08, 0.6) == pytest.approx(2.307349, abs=1e-6)
    found = ask(kwh_price=0.08, residual_fraction=1 / 7, **OWNED)
    assert found.usd_per_device_hour == pytest.approx(by_hand)
    assert found.tco_usd == pytest.approx(by_hand * 8 * 8760)
    assert found.capex_usd == pytest.approx(8 * yearly)
    assert found.purchase_usd == 280_000
    assert found.tco_usd == pytest.approx(found.capex_usd + found.total_opex_usd)


def test_annuities_and_present_values_are_those_of_the_tables() -> None:
    for rate, years, expected in ((0.08, 4, 0.301920804454), (0.10, 3, 0.402114803625), (0.10, 5, 0.263797480795), (0, 4, 0.25)):
        assert money.capital_recovery(rate, years) == pytest.approx(expected, rel=1e-11)
    flows = [-35_000.0, 15_000.0, 15_000.0, 15_000.0, 15_000.0]
    assert money.net_present_value(0.08, flows) == pytest.approx(14_681.9026, abs=1e-4)
    assert money.net_present_value(0.08, [*flows[:-1], 20_000.0]) == pytest.approx(18_357.0519, abs=1e-4)


def test_owning_pays_from_half_of_the_hours_on() -> None:
    """Against 2.95 dollars an hour: 0.494 with interest, 0.421 without."""
    for rate, expected in ((0.08, 0.494227), (0.0, 0.421311)):
        found = ask(kwh_price=0.08, price_usd_per_device_hour=2.95, discount_rate=rate, **OWNED)
        assert found.break_even_utilisation == pytest.approx(expected, abs=1e-6)
        assert f"owning is cheaper from {100 * expected:.3g} % of the hours on" in found.constraint_trace[-1]
    dear = ask(kwh_price=0.08, price_usd_per_device_hour=1.0, **OWNED)
    assert dear.break_even_utilisation is not None
    assert 1 < dear.break_even_utilisation < np.inf
    assert dear.constraint_trace[-1].endswith("at no utilisation")


def test_electricity_dearer_than_the_rent_never_pays_and_is_null_in_json() -> None:
    found = ask(kwh_price=12, price_usd_per_device_hour=0.01, **OWNED)
    assert found.break_even_utilisation == np.inf
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["break_even_utilisation"], plain["mode"]) == (None, "own")
    assert not unsaid(found.explain())


def test_a_day_of_serving_and_a_million_tokens() -> None:
    """DeepSeek's 226.75 nodes of 8 at 2 dollars: 87,072 a day. 4 H100 at 2.95 and 6,826.5 tokens/s: 0.48 a million."""
    day = ask(226.75, mode="rent", price_usd_per_device_hour=2.0)
    assert day.tco_usd == day.rent_usd == 87_072
    tokens = ask(1, mode="rent", price_usd_per_device_hour=2.95, tokens_per_second=2 * 6826.5)
    assert tokens.usd_per_million_tokens == pytest.approx(0.480155, abs=1e-6)
    half = ask(1, mode="rent", price_usd_per_device_hour=2.95, tokens_per_second=2 * 6826.5, utilisation=0.5)
    assert half.usd_per_million_tokens == pytest.approx(2 * 0.480155, abs=2e-6)
    assert half.tco_usd == tokens.tco_usd


def test_a_rent_has_no_parts_of_owning_and_says_what_had_no_effect() -> None:
    found = ask(30, mode="rent", staff_usd_per_year=365_000, life_years=2, pue=1.2, node_power_w="9 kW")
    assert found.rent_usd == pytest.approx(5.0725 * 8 * 720, rel=1e-3)
    assert found.rent_usd is not None
    assert found.tco_usd == pytest.approx(found.rent_usd + 30_000)
    assert (found.opex_other_usd, found.capex_usd, found.opex_energy_usd, found.opex_maintenance_usd) == (30_000, 0, 0, 0)
    unknown = ("purchase_usd", "total_energy_kwh", "kwh_price_usd", "break_even_utilisation", "usd_per_million_tokens")
    assert [getattr(found, name) for name in unknown] == [None] * 5
    assert "no effect on a rent: life_years, pue, node_power_w" in found.notes
    assert not any(note.startswith("no effect") for note in ask(30, mode="rent").notes)
    assert found.assumed == ()
    text = found.explain()
    assert "cost (rent)" in text
    assert not unsaid(text)


def test_prices_that_are_old_are_named_with_their_date() -> None:
    found = ask(nodes=8)
    old = [note for note in found.notes if "more than a year old" in note]
    assert any("server dgx-h100 2024-03" in note for note in old)
    assert any("switch-port 400g 2024-08" in note for note in old)
    assert any(note.startswith("rent: more than a year old: ") for note in old)
    assert found.price_date == "2024-03"
    early = ask(nodes=8, today=dt.date(2024, 9, 1))
    assert not any("more than a year old: server" in note for note in early.notes)
    assert any("dated after 2024-09-01" in note for note in early.notes)
    assert ask(nodes=8, today=dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)) == found
    alone = ask(nodes=8, node_price_usd=3e5, price_usd_per_device_hour=2)
    assert alone.price_date == "2024-08"  # of the network
    assert ask(node_price_usd=3e5, price_usd_per_device_hour=2).price_date is None
    assert "server dgx-h100" in found.sources[0]
    assert any(source.startswith("rent: aws, p5.48xlarge, 2026-07") for source in found.sources)


def test_a_provider_and_a_kind_of_price_count() -> None:
    found = {kind: ask(1, mode="rent", provider="aws", price_kind=kind) for kind in ("on-demand", "capacity-block")}
    assert found["on-demand"].price_usd_per_device_hour == 6.88
    assert found["capacity-block"].price_usd_per_device_hour == pytest.approx(4.92, abs=0.01)
    wide = ask(1, mode="rent").rent_interval_usd
    assert wide is not None
    assert wide[0] < found["on-demand"].tco_usd < wide[1]


def test_chips_without_a_rated_power_say_how_to_give_one() -> None:
    with pytest.raises(ft.InputError, match=r"tdp_w is not known for Google TPU v5p \(chip\)\. Give node_power_w"):
        ask(30, fleet="tpu-v5p-pod", node_price_usd=1e5)
    given_power = ask(30, fleet="tpu-v5p-pod", node_price_usd=1e5, node_power_w="2 kW", pue=1.1)
    assert given_power.total_energy_kwh == pytest.approx(2240 * 2 * 720 * 1.1)


def test_one_node_needs_no_network() -> None:
    one, two = ask(nodes=1, node_price_usd=3e5), ask(nodes=2, node_price_usd=3e5)
    assert one.purchase_usd == 3e5
    assert two.purchase_usd is not None
    assert 6e5 < two.purchase_usd < 9e5
    assert any("switch ports" in note for note in two.notes)
    assert not any("switch ports" in note for note in one.notes)
    assert ask(nodes=2, node_price_usd=3e5, network_usd_per_node=1000).purchase_usd == 602_000
    fabricless = dataclasses.replace(load_fleet(H100, 2), fabric=None)
    bare = ask(fleet=fabricless, node_price_usd=3e5)
    assert bare.purchase_usd == 6e5
    assert any("give network_usd_per_node" in note for note in bare.notes)


def test_the_building_of_the_fleet_is_taken() -> None:
    place = Datacenter("mine", GridProfile("grid", carbon_intensity_g_per_kwh=100.0), pue=1.1, kwh_price_usd=0.05)
    fleet = dataclasses.replace(load_fleet(H100, 4), datacenter=place)
    found = ask(fleet=fleet)
    assert (found.kwh_price_usd, found.region_name) == (0.05, "mine")
    assert found.assumed == ("written off in 4 years (3 to 6)",)
    assert agree(MODEL, [fleet], {"duration_days": [1, 365], "datacenter": [None, place, "quebec"], "today": TODAY}) == 6


def test_carbon_and_water_are_no_business_of_the_cost() -> None:
    found = ask(datacenter="quebec", operator="survey")
    assert not any("wue" in text for text in (*found.notes, *found.assumed))
    assert found.region_name == "Québec, Canada"
    assert any("operator 'aws' takes it" in note for note in found.notes)
    assert not any("operator 'aws' takes it" in note for note in ask(datacenter="quebec", operator="Amazon").notes)


@given(
    days=st.floats(1e-3, 3650),
    times=st.floats(1, 10),
    nodes=st.integers(2, 10**4),
    rate=st.floats(0, 1),
    life=st.one_of(st.none(), st.floats(0.5, 50)),
    residual=st.floats(0, 1),
    busy=st.floats(1e-3, 1),
    mode=st.sampled_from(["own", "rent"]),
)
def test_costs_go_with_time_and_nodes(
    days: float, times: float, nodes: int, rate: float, life: float | None, residual: float, busy: float, mode: str
) -> None:
    asked: dict[str, Any] = {
        "discount_rate": rate,
        "life_years": life,
        "residual_fraction": residual,
        "utilisation": busy,
        "mode": mode,
        "staff_usd_per_year": 1e5,
    }
    one, longer, more = (
        ask(days, nodes=nodes, **asked),
        ask(days * times, nodes=nodes, **asked),
        ask(days, nodes=2 * nodes, **asked),
    )
    assert longer.tco_usd == pytest.approx(one.tco_usd * times)
    assert more.tco_usd - one.opex_other_usd == pytest.approx(2 * (one.tco_usd - one.opex_other_usd))
    assert one.tco_usd == pytest.approx(one.capex_usd + one.total_opex_usd)
    parts = one.opex_energy_usd + one.opex_maintenance_usd + one.opex_other_usd
    assert one.total_opex_usd == pytest.approx(parts + (one.rent_usd or 0) * (mode == "rent"))
    low, high = one.tco_interval_usd
    assert 0 < low * (1 - 1e-12) <= one.tco_usd <= high * (1 + 1e-12)
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["tco_usd"] == one.tco_usd
    assert not unsaid(one.explain())


def test_colocation_is_by_the_kilowatt() -> None:
    """Contracted for what a node may draw, its rating of 10.2 kW, and paid for whether it works or not."""
    for used in (1.0, 0.1):
        found = ask(365, colocation_usd_per_kw_month=150, utilisation=used, **OWNED)
        assert found.opex_other_usd == pytest.approx(150 * 10.2 * 12)


def test_a_result_is_a_mapping_and_reads_as_text() -> None:
    found = ask(nodes=8, tokens_per_second=1e4)
    assert set(found) >= {"capex_usd", "tco_usd", "break_even_utilisation", "usd_per_million_tokens", "price_date"}
    assert found["tco_usd"] == found.tco_usd
    text = found.explain()
    assert text.startswith("cost (own)")
    assert "electricity" in text
    assert "capital" in text
    assert all(len(line) < 300 for line in text.splitlines())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"duration_days": 0}, "duration_days=0"),
        ({"duration_days": "30 days"}, "duration_days='30 days'"),
        ({"duration_days": True}, "duration_days=True"),
        ({"duration_days": np.array([1, 2])}, "duration_days=array"),
        ({"duration_days": float("nan")}, "duration_days=nan"),
        ({"duration_days": 1e300}, "allowed: 1e-09 to 36500"),
        ({"kwh_price": -1}, "kwh_price=-1"),
        ({"kwh_price": "0.1"}, "kwh_price='0.1'"),
        ({"kwh_price": None}, "kwh_price"),
        ({"mode": "lease"}, "allowed: own, rent"),
        ({"datacenter": 5}, "datacenter=5 is no place"),
        ({"datacenter": "atlantis"}, "grid='atlantis' is not in the catalog"),
        ({"node_price_usd": 0}, "node_price_usd=0"),
        ({"node_price_usd": -1}, "node_price_usd=-1"),
        ({"node_price_usd": "3e5"}, "node_price_usd='3e5'"),
        ({"network_usd_per_node": -1}, "network_usd_per_node=-1"),
        ({"price_usd_per_device_hour": 0}, "price_usd_per_device_hour=0"),
        ({"price_usd_per_device_hour": 1e7}, "1e-09 to 1e\\+06"),
        ({"provider": "awz"}, "nearest: aws"),
        ({"provider": 5}, "provider=5"),
        ({"provider": "aws", "price_kind": "spot"}, "spot at aws, is not known. Give one"),
        ({"price_kind": "sopt"}, "price_kind='sopt' is not known.*Did you mean spot"),
        ({"life_years": 0}, "life_years=0"),
        ({"discount_rate": 8}, "discount_rate=8 .*allowed: 0 to 1"),
        ({"discount_rate": "8 %"}, "discount_rate='8 %'"),
        ({"residual_fraction": 1.5}, "residual_fraction=1.5"),
        ({"maintenance_fraction": 5}, "maintenance_fraction=5"),
        ({"utilisation": 0}, "utilisation=0"),
        ({"utilisation": "30 %"}, "utilisation='30 %'"),
        ({"staff_usd_per_year": -1}, "staff_usd_per_year=-1"),
        ({"colocation_usd_per_kw_month": True}, "colocation_usd_per_kw_month=True"),
        ({"tokens_per_second": 0}, "tokens_per_second=0"),
        ({"regime": "trainin"}, "Did you mean training"),
        ({"pue": 0.9}, "pue=0.9 .*allowed: 1 to 10"),
        ({"operator": "gogle"}, "Did you mean google"),
        ({"operator": 5}, "operator=5"),
        ({"node_power_w": "8 kWh"}, "is an energy, not a power"),
        ({"node_power_w": 0}, "node_power_w=0"),
        ({"today": "2026"}, "today='2026' is no date"),
        ({"nodes": 0}, "nodes=0"),
        ({"fleet": "dgx-h10"}, "nearest: dgx-h100"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"fleet": H100, "duration_days": 30, "today": TODAY}
    with pytest.raises(ft.ForetellError, match=words):
        MODEL.solve(**(plain | asked))


def test_a_rent_that_nobody_offers_is_an_error() -> None:
    with pytest.raises(ft.InputError, match=r"Give price_usd_per_device_hour") as caught:
        MODEL.solve("frontier-node", 1, mode="rent", today=TODAY)
    assert caught.value.field == "price"
    table = MODEL.sweep("frontier-node", duration_days=1, mode="rent", price_usd_per_device_hour=[None, 2.0], today=TODAY)
    assert table["valid"].tolist() == [False, True]
    assert table["tco_usd"][1] == 2 * 24 * load_fleet("frontier-node").total_accelerators


@pytest.mark.parametrize("watts", ["8.4 kW", 8400, quantity(8.4, "W") * 1000])
def test_a_power_says_its_unit_or_is_watts(watts: Any) -> None:
    assert ask(**(OWNED | {"node_power_w": watts})) == ask(**OWNED)


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "duration_days": [1, 365, 0],
        "kwh_price": [0.05, -1],
        "mode": ["own", "rent", "lease"],
        "datacenter": [None, "quebec"],
        "nodes": [1, 8],
        "node_price_usd": [None, 3e5],
        "network_usd_per_node": [None, 0.0],
        "price_usd_per_device_hour": [None, 2.0, 0],
        "today": [TODAY],
    }
    assert agree(MODEL, [FLEET], axes) == 2 * 1 * 2 * 2 * 2 * 2 * 2 * 2
    nowhere: dict[str, Any] = {
        "duration_days": 30,
        "datacenter": ["iowa", "atlantis"],
        "operator": ["aws", "awz"],
        "today": TODAY,
    }
    assert agree(MODEL, [FLEET], nowhere) == 1
    more: dict[str, Any] = {
        "duration_days": 30,
        "life_years": [None, 4],
        "discount_rate": [0, 0.08, 8],
        "residual_fraction": [0.0, 0.2],
        "utilisation": [0.5, 1.0, "30 %"],
        "staff_usd_per_year": [0, 1e5],
        "tokens_per_second": [None, 1000],
        "pue": [None, 1.1, 0.9],
        "node_power_w": [None, "8 kW"],
        "operator": [None, "google"],
        "today": TODAY,
    }
    assert agree(MODEL, [FLEET], more) == 2 * 2 * 2 * 2 * 2 * 2 * 2 * 2 * 2


@pytest.mark.parametrize("system", ["tpu-v5p-pod", "gb200-nvl72", "gaudi3-server"])
def test_rows_that_give_what_is_unknown_are_answered(system: str) -> None:
    axes: dict[str, Any] = {
        "duration_days": [30],
        "mode": ["own", "rent"],
        "node_price_usd": [None, 1e5],
        "node_power_w": [2000, "3 kW"],
        "price_usd_per_device_hour": [None, 1.0],
        "price_kind": ["on-demand", "spot"],
        "utilisation": [0.5],
        "today": TODAY,
    }
    fleet = load_fleet(system)
    assert agree(MODEL, [fleet], axes) > 0
    bare: dict[str, Any] = {"duration_days": 30, "node_price_usd": 1e5, "node_power_w": [None, 2000], "today": TODAY}
    assert agree(MODEL, [fleet], bare) == (1 if fleet.accelerator.tdp_w is None else 2)


@given(
    axes=st.fixed_dictionaries(
        {
            "duration_days": st.lists(st.floats(1e-3, 36500), min_size=1, max_size=2),
            "mode": st.lists(st.sampled_from(["own", "rent"]), min_size=1, max_size=2),
            "node_price_usd": st.lists(st.one_of(st.none(), st.floats(1, 1e12)), min_size=1, max_size=2),
            "life_years": st.lists(st.one_of(st.none(), st.floats(0.1, 100)), min_size=1, max_size=2),
            "discount_rate": st.lists(st.floats(0, 1), min_size=1, max_size=2),
            "nodes": st.lists(st.integers(1, 10**9), min_size=1, max_size=2),
            "utilisation": st.lists(st.floats(1e-6, 1), min_size=1, max_size=2),
            "today": st.just(TODAY),
        }
    )
)
def test_any_row_is_what_solve_says(axes: dict[str, Any]) -> None:
    agree(MODEL, [FLEET], axes, within=1e-8)


def test_a_sweep_chooses_the_cheapest(tmp_path: Path) -> None:
    table = MODEL.sweep(H100, duration_days=365, datacenter=["quebec", "germany"], mode=["own", "rent"], today=TODAY)
    best = table.best()
    assert (best["datacenter"], best["mode"], best["tco_usd"]) == ("quebec", "own", table["tco_usd"].min())
    assert table["feasible"].all()
    place = tmp_path / "mine.toml"
    place.write_text(
        'id = "mine"\nname = "Mine"\ncarbon_intensity_g_per_kwh = 10.0\ncarbon_intensity_year = 2024\nkwh_price_usd = 0.01\n'
    )
    from_file = MODEL.sweep(H100, duration_days=365, datacenter=[place, "quebec"], today=TODAY)
    assert from_file["kwh_price_usd"].tolist() == [0.01, 0.041]
    with pytest.raises(ft.InputError, match="price=2 is not a setting"):
        MODEL.sweep(H100, duration_days=1, price=2)
