"""Power at work: against measured nodes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell.catalog import loader
from foretell.errors import InputError
from foretell.machine import HardwareNode, Node, load_fleet, load_hardware
from foretell.operations._data import data
from foretell.operations.power import REGIMES, device_power, host_power, node_power
from foretell.operations.ranges import Range, total


def test_a_node_of_eight_h100_in_training_is_the_measured_one() -> None:
    watts = node_power("dgx-h100", "training")
    assert watts.point == pytest.approx(0.76 * 10_200, rel=0.01)
    assert watts.point == pytest.approx(8400, rel=0.15)
    assert 8400 in watts
    assert 0.76 * 10_200 in watts
    assert watts.high < 10_200
    assert {"https://arxiv.org/abs/2412.08602", "https://arxiv.org/abs/2506.14551"} <= {one.url for one in watts.sources}


def test_a_node_that_the_shares_were_not_taken_from() -> None:
    v100 = node_power("dgx-1-v100")  # GPT-3: 330 W of the system for each V100
    assert v100.point / 8 == pytest.approx(330, rel=0.06)
    assert 8 * 330 in v100
    tpu = node_power("tpu-v3-pod")
    assert (tpu.low, tpu.high) == (4 * 245, 4 * 310)
    assert node_power("tpu-v4-pod").point == 4 * 378.5


def test_decode_holds_what_servers_were_measured_at() -> None:
    h100, b200 = device_power("h100", "decode"), device_power("b200", "decode")
    for watts in (137, 231, 407.6, 425.1, 588.6, 610.3, 693):
        assert watts in h100
    for watts in (449, 976):
        assert watts in b200
    for watts in (68, 75, 145):
        assert watts in device_power("h100", "idle")


@pytest.mark.parametrize("system", loader.ids("system"))
def test_every_system_has_a_power_in_every_regime_or_says_what_is_missing(system: str) -> None:
    fleet = load_fleet(system)
    if fleet.accelerator.tdp_w is None:
        with pytest.raises(InputError, match="Give node_power_w"):
            node_power(fleet, "decode")
        return
    ranges = {regime: node_power(fleet, regime) for regime in REGIMES}
    for regime, watts in ranges.items():
        assert 0 < watts.low <= watts.point <= watts.high
        assert watts.unit == "W"
        assert watts.sources
        assert watts.notes, regime
        assert fleet.node.node_power_w is None or watts.high <= fleet.node.node_power_w
        assert watts == node_power(fleet.node, regime) == node_power(system, regime)
    assert ranges["idle"].point < ranges["decode"].point < ranges["training"].point


def test_a_node_is_its_accelerators_and_its_host() -> None:
    node = load_fleet("dgx-a100").node
    parts = total([device_power("a100", "decode").scaled(8), host_power(node, "decode")], "W")
    assert node_power(node, "decode").point == pytest.approx(parts.point)
    unrated = replace(node, node_power_w=None)
    assert "no node_power_w is known" in " ".join(host_power(unrated).notes)
    assert node_power(unrated).low < node_power(node).point < node_power(unrated).high


def test_a_capped_node_draws_no_more_than_its_cap() -> None:
    capped = replace(load_fleet("dgx-h100").node, node_power_w=4000.0)
    watts = node_power(capped)
    assert watts.high == 4000.0
    assert any("taken as a cap" in note for note in watts.notes)


def test_what_cannot_be_known_is_refused_with_a_way_out() -> None:
    card = HardwareNode("mine", 80 * 10**9, 2e12, {"bf16": 4e14})
    with pytest.raises(InputError, match="tdp_w is not known for mine. Give node_power_w"):
        device_power(card)
    with pytest.raises(InputError, match="tdp_w is not known for mine"):
        node_power(Node(card))
    with pytest.raises(InputError, match="regime='train' is not known"):
        node_power("dgx-h100", "train")
    with pytest.raises(InputError, match="regime='sleep'"):
        device_power("h100", "sleep")


def test_an_estimate_and_another_card_are_told() -> None:
    assert any("is an estimate" in note for note in device_power("tpu-v3", "decode").notes)
    assert any("itself was not measured" in note for note in device_power("mi300x", "decode").notes)
    assert load_hardware("h100").tdp_w == 700


def test_the_file_names_catalog_entries_and_all_its_sources() -> None:
    power = data("power")
    rows = [row for part in ("device", "measured") for regime in power[part].values() for row in regime]
    hosts = [row for row in power["host"].values() if isinstance(row, dict)]
    assert set(power["device"]) == set(REGIMES)
    for row in rows:
        assert all(loader.entry("hardware", name)["id"] == name for name in row.get("hardware", ()))
    used = {key for row in (*rows, *hosts) for key in row["sources"]}
    assert used == set(power["sources"])
    assert all(row["year"] >= 2021 and row["note"] for row in (*rows, *hosts))


def test_a_range_keeps_its_order() -> None:
    assert 2 in Range(1, 2, 3)
    assert 4 not in Range(1, 2, 3)
    for low, point, high in ((2, 1, 3), (1, 3, 2), (-1, 0, 1), (0, float("nan"), 1), (0, 1, float("inf"))):
        with pytest.raises(InputError):
            Range(low, point, high)
    with pytest.raises(InputError, match="is not of the sum's unit"):
        total([Range(1, 2, 3, "W"), Range(1, 2, 3, "kg")], "W")
    with pytest.raises(InputError, match="factor=-1"):
        Range(1, 2, 3).scaled(-1)
