"""Accelerators, nodes, fleets and their surroundings."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pint
import pytest

from foretell.catalog import loader
from foretell.errors import CatalogError, ConfigError, InputError
from foretell.machine import (
    Datacenter,
    Fleet,
    GridProfile,
    HardwareNode,
    Link,
    NetworkFabric,
    Node,
    load_datacenter,
    load_fleet,
    load_hardware,
)
from foretell.units import parse

if TYPE_CHECKING:
    from pathlib import Path

CARD: dict[str, Any] = {
    "id": "card",
    "memory_bytes": "80 GiB",
    "memory_bandwidth_bytes_per_s": "2 TB/s",
    "peak_flops": {"bfloat16": "400 TFLOP/s"},
    "link": {"name": "nvlink4", "bandwidth_bytes_per_s": 450e9, "domain_size": 8},
    "usable_memory_bytes": "79 GiB",
}


def card(**changes: Any) -> HardwareNode:
    return load_hardware(CARD | changes)


def test_a_card_from_text_pint_and_plain_numbers_is_the_same() -> None:
    plain = card(memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=2e12, peak_flops={"bf16": 4e14})
    units: pint.UnitRegistry[Any] = pint.UnitRegistry()
    asked = card(memory_bytes=units.Quantity(80, "GiB"), memory_bandwidth_bytes_per_s=units.Quantity(2, "TB/s"))
    assert card() == plain == asked
    assert hash(card()) == hash(plain)
    assert pickle.loads(pickle.dumps(plain)) == plain  # noqa: S301  # our own bytes
    assert type(plain.memory_bytes) is int


def test_what_a_card_knows() -> None:
    made = card()
    assert made.name == "card"
    assert made.ridge_point("bf16") == 200
    assert made.available_bytes == 79 * 2**30
    assert card(usable_memory_bytes=80 * 2**30).available_bytes == 80 * 2**30
    assert made.link == Link("nvlink4", 450e9, 8)
    assert (made.tdp_w, made.context_bytes, made.pcie) == (None, None, None)
    with pytest.raises(InputError, match="precision='fp8' has no known peak on card; allowed: bf16"):
        made.peak("fp8")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"memory_byte": 1}, "memory_byte is not a known key"),
        ({"memory_bytes": "80 GB/s"}, "memory_bytes='80 GB/s' is a data rate"),
        ({"memory_bytes": True}, "memory_bytes=True"),
        ({"usable_memory_bytes": "85 GiB"}, "is more than the device has"),
        ({"peak_flops": {"bf17": 1}}, "is not a known number format"),
        ({"peak_flops": 4e14}, "must be a mapping"),
        ({"link": "nvlink"}, "must be a table"),
        ({"link": {"name": "x", "domain_size": 2.5}}, "domain_size=2.5 must be a whole number"),
        ({"sm_count": 0}, "sm_count=0 is below"),
    ],
)
def test_a_wrong_field_is_named_with_where_it_stood(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        card(**changes)
    assert (caught.value.where or "").startswith("hardware card")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="hardware card: lacks memory_bytes, memory_bandwidth_bytes_per_s"):
        load_hardware({"id": "card", "peak_flops": {}})
    for ref in (None, 7, ["h100"]):
        with pytest.raises(InputError):
            load_hardware(ref)  # type: ignore[arg-type]


def test_a_fleet_of_a_users_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_registered", {})
    loader.register("hardware", CARD)
    path = tmp_path / "mine.toml"
    path.write_text(
        'id = "mine"\naccelerator = "card"\naccelerators_per_node = 8\ndomain_gpus = 16\nnodes_default = 4\n'
        'node_power_w = "10 kW"\nnode_power_note = "a guess"\nestimates = ["node_power_w"]\n'
        '[host]\nmemory_bytes = "2 TiB"\ncores = 96\n'
        '[fabric]\nnic_bytes_per_s = "400 Gbit/s"\nnics_per_node = 8\nlatency_s = "2 us"\n'
    )
    fleet = load_fleet(path)
    assert (fleet.total_accelerators, load_fleet(path, nodes=3).total_accelerators) == (32, 24)
    assert fleet.accelerator == card()
    assert fleet.node.link == Link("nvlink4", 450e9, 16)
    assert (fleet.node.host_memory_bytes, fleet.node.host_cores) == (2 * 2**40, 96)
    assert fleet.fabric == NetworkFabric(50e9, 8, 2e-6)
    assert fleet.fabric.node_bytes_per_s == 400e9
    assert (fleet.notes, fleet.estimates) == ({"node_power": "a guess"}, ("node_power_w",))
    assert load_fleet(fleet, nodes=1).nodes == 1
    for nodes in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="nodes="):
            load_fleet(fleet, nodes=nodes)  # type: ignore[arg-type]
    path.write_text('id = "mine"\naccelerator = "cart"\n')
    with pytest.raises(CatalogError, match="hardware='cart' is not in the catalog; nearest: card"):
        load_fleet(path)


def test_a_datacenter_of_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text('id = "here"\nname = "Here"\ncarbon_intensity_g_per_kwh = 30\npue = 1.1\n')
    made = load_datacenter(path)
    assert made == Datacenter("Here", GridProfile("Here", 30.0, id="here"), pue=1.1, id="here")
    assert load_datacenter(made) is made
    assert made.wue_l_per_kwh is None
    path.write_text('id = "here"\npue = 0.9\n')
    with pytest.raises(InputError, match="pue=0.9 must be a finite number in range; allowed: 1 to 10"):
        load_datacenter(path)


def test_an_oversubscribed_fabric_and_a_whole_fleet_by_hand() -> None:
    fabric = NetworkFabric(parse("100 Gbit/s", "byte/s", "fabric"))
    fleet = Fleet("two", Node(card(), accelerators_per_node=4), nodes=2, fabric=fabric)
    assert fleet.total_accelerators == 8
    with pytest.raises(InputError, match="oversubscription=0.5"):
        NetworkFabric(oversubscription=0.5)


@pytest.mark.parametrize("kind", ["hardware", "system", "grid"])
def test_every_shipped_entry_is_of_the_form_documented_here(kind: str) -> None:
    load: Any = {"hardware": load_hardware, "system": load_fleet, "grid": load_datacenter}[kind]
    for name in loader.ids(kind):
        made = load(name)
        assert made.id == name
        assert made.sources
