"""Emissions of making hardware: published accounts, their boundaries, and what no account covers."""

from __future__ import annotations

import pytest

from foretell.catalog import loader
from foretell.machine import HardwareNode, Node
from foretell.operations._data import data
from foretell.operations.embodied import embodied_device, embodied_host, embodied_node


def test_an_h100_and_an_a100_have_their_accounts() -> None:
    h100, a100 = embodied_device("h100"), embodied_device("a100")
    assert (h100.low, h100.point, h100.high) == (1312 / 8, 273.0, 575.1)
    assert (a100.low, a100.point, a100.high) == (127.6, 150.0, 319.3)
    assert 14.652 not in h100
    assert any("14.652 kg, boundary die" in note and "left out" in note for note in h100.notes)
    assert any("boundary server" in note and "left out" in note for note in a100.notes)
    b200 = embodied_device("b200-sxm")
    assert b200.low == pytest.approx(1312 * 0.50 / 0.66 * 2.3 / 8, rel=0.01)


def test_a_sister_card_says_whose_accounts_it_has() -> None:
    assert "accounts of H100 taken for" in embodied_device("h200").notes[-1]
    assert "accounts of" not in " ".join(embodied_device("h100").notes)


def test_a_host_is_most_of_a_node() -> None:
    node = embodied_node("dgx-h100")
    assert node.point == 8 * 273 + 5700
    assert node.low == 8 * 164 + 2500
    assert node.high == pytest.approx(8 * 575.1 + 5700)
    assert embodied_host().point / node.point > 0.7
    a100 = embodied_node("dgx-a100")
    assert 8 * 150 + 2500 in a100  # the account of BLOOM


@pytest.mark.parametrize("name", ["v100", "mi300x", "tpu-v4", "l4", "gaudi3", "m4-max"])
def test_one_that_no_account_covers_has_the_range_of_all_and_is_never_zero(name: str) -> None:
    kg = embodied_device(name)
    assert (kg.low, kg.high) == (127.6, 1003.0)
    assert kg.low < kg.point < kg.high
    assert kg.notes[0].startswith("no account of")
    kind = loader.entry("hardware", name)["kind"]
    assert any("may lie outside" in note for note in kg.notes) == (kind != "gpu")


def test_a_card_of_ones_own_and_a_node_of_another_size() -> None:
    card = HardwareNode("mine", 80 * 10**9, 2e12, {"bf16": 4e14})
    assert embodied_device(card).low > 0
    four, sixteen = embodied_node(Node(card, 4)), embodied_node(Node(card, 16))
    assert four.point < embodied_node(Node(card, 8)).point < sixteen.point
    assert any("scaled to 4" in note for note in four.notes)
    host = embodied_host(16)
    assert (host.low, host.point, host.high) == (2500, 11400, 11400)


def test_the_file_names_catalog_entries_boundaries_and_sources() -> None:
    embodied = data("embodied")
    rows = [*embodied["devices"], embodied["host"]]
    names = [name for row in embodied["devices"] for name in row["hardware"]]
    assert len(names) == len(set(names))
    assert all(loader.entry("hardware", name)["id"] == name for name in names)
    for account in (account for row in rows for account in row["accounts"]):
        assert account["boundary"] in ("die", "device", "board", "server")
        assert account["year"] >= 2022
        assert account["kg"] > 0
    assert {account["source"] for row in rows for account in row["accounts"]} == set(embodied["sources"])
