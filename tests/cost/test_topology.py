"""Topologies of machines, and where the groups of a job sit on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.catalog import loader
from foretell.cost.collectives import seconds
from foretell.cost.placement import place
from foretell.cost.topology import Group, topology_of
from foretell.errors import InputError
from foretell.evidence.fabric import fabric_topology
from foretell.machine import NetworkFabric, load_fleet, load_hardware

H100 = topology_of(load_hardware("h100"))


@pytest.mark.parametrize("name", loader.ids("hardware"))
def test_every_accelerator_has_a_topology(name: str) -> None:
    found = topology_of(load_hardware(name))
    assert found.bytes_per_s > 0
    assert found.node_bytes_per_s > 0
    assert found.domain >= found.gpus_per_node
    assert any("network not stated" in note for note in found.notes)


@pytest.mark.parametrize("name", loader.ids("system"))
def test_every_system_has_a_topology(name: str) -> None:
    fleet = load_fleet(name)
    found = topology_of(fleet.accelerator, fleet=fleet)
    assert found.gpus_per_node == fleet.node.accelerators_per_node
    if fleet.fabric and fleet.fabric.nic_bytes_per_s:
        assert found.node_bytes_per_s == fleet.fabric.node_bytes_per_s
        assert not [note for note in found.notes if "network" in note]


def test_generations() -> None:
    assert (H100.family, H100.domain, H100.nvls, H100.network, H100.node_bytes_per_s) == ("nvlink4", 8, True, "ib", 400e9)
    a100 = topology_of(load_hardware("a100-sxm-80gb"))
    assert (a100.family, a100.nvls, a100.node_bytes_per_s) == ("nvlink3", False, 200e9)
    rack = topology_of(load_hardware("gb200"))
    assert (rack.domain, rack.gpus_per_node, rack.node_bytes_per_s) == (72, 4, 200e9)
    pod = topology_of(load_hardware("tpu-v5p"))
    assert (pod.family, pod.torus, pod.domain) == ("ici", 3, 8960)
    assert topology_of(load_hardware("t4")).family == "pcie"
    assert topology_of(load_hardware("h200-nvl"), 4).nvls is False  # bridges do not reduce


def test_a_mesh_uses_the_links_to_the_ranks_that_take_part() -> None:
    mesh = topology_of(load_hardware("mi300x"))
    assert mesh.inside(Group(2, 2)) == 64e9
    assert mesh.inside(Group(4, 4)) == 3 * 64e9
    assert mesh.inside(Group(8, 8)) == 448e9
    assert H100.inside(Group(2, 2)) == H100.inside(Group(8, 8)) == 450e9


def test_bridges_join_pairs_and_pcie_the_rest() -> None:
    cards = topology_of(load_hardware("a100-pcie-80gb"))
    assert cards.bridge is not None
    assert (cards.family, cards.bridge.family, cards.bridge.size) == ("pcie", "nvlink3", 2)
    assert cards.inside(Group(2, 2)) == 300e9
    assert cards.inside(Group(8, 8)) == 31.5e9
    assert cards.inside(Group(2, 2, reach=5)) == 31.5e9  # not neighbours


def test_oversubscription_and_stated_cards() -> None:
    fabric = NetworkFabric(nic_bytes_per_s=25e9, nics_per_node=4, topology="RoCE", oversubscription=2.0)
    found = topology_of(load_hardware("h100"), fabric=fabric)
    assert (found.network, found.node_bytes_per_s, found.notes) == ("roce", 100e9, ())
    assert found.between(Group(16, 8)) == 50e9
    assert found.between(Group(16, 1)) == 12.5e9  # its own card
    assert found.between(Group(16, 1, sharing=8)) == 6.25e9  # half a card


def test_a_stated_latency_counts_and_a_guessed_one_does_not() -> None:
    far = NetworkFabric(nic_bytes_per_s=50e9, nics_per_node=8, topology="InfiniBand", latency_s=1e-3)
    found = topology_of(load_hardware("h100"), fabric=far)
    near = topology_of(load_hardware("h100"), fabric=NetworkFabric(nic_bytes_per_s=50e9, nics_per_node=8))
    group = Group(64, 8)
    assert seconds("all_gather", 1024, group, found) > seconds("all_gather", 1024, group, near) + 6e-3
    assert topology_of(load_hardware("h100"), fleet=load_fleet("dgx-h100")).latency_s is None


def test_what_a_row_states_of_its_fabric() -> None:
    row = {"gpu": "h100-sxm-80gb", "gpus_per_node": 8}
    assert fabric_topology(row).network == "ib"
    assert fabric_topology(row, unstated=True).network == "unstated"
    ib = fabric_topology(row | {"fabric": {"intra": "nvlink4", "inter": "ib-ndr400", "nics_per_node": 4, "nic_gbps": 400}})
    assert (ib.network, ib.node_bytes_per_s, ib.notes) == ("ib", 200e9, ())
    total = fabric_topology(row | {"fabric": {"inter": "roce", "node_gbps": 1600}})
    assert (total.network, total.node_bytes_per_s) == ("roce", 200e9)
    vague = fabric_topology(row | {"fabric": {"inter": "ethernet"}})
    assert vague.network == "ethernet"
    assert "rate of ethernet not stated" in vague.notes[0]
    rack = fabric_topology({"gpu": "gb200", "gpus_per_node": 4, "fabric": {"intra": "nvlink5", "domain_gpus": 72}})
    assert rack.domain == 72
    pcie = fabric_topology({"gpu": "a100-sxm-80gb", "gpus_per_node": 8, "fabric": {"intra": "pcie4"}})
    assert (pcie.family, pcie.bytes_per_s) == ("pcie", 31.5e9)
    with pytest.raises(InputError, match="nics_per_node"):
        fabric_topology(row | {"fabric": {"inter": "roce", "nics_per_node": 0}})


def test_megatron_order() -> None:
    """tp innermost, then cp, then dp; pp outermost (Megatron-Core, tp-cp-ep-dp-pp)."""
    found = place(H100, tp=4, cp=2, dp=4, pp=2, ep=4, etp=1)
    assert (found.tp.ranks, found.tp.local) == (4, 4)
    assert (found.cp.ranks, found.cp.local, found.cp.sharing) == (2, 2, 4)  # 4 apart: both in the node
    assert (found.dp.ranks, found.dp.local, found.dp.sharing) == (4, 1, 8)  # 8 apart: one in each node
    assert (found.dp_cp.ranks, found.dp_cp.local) == (8, 2)
    assert (found.ep.ranks, found.ep.local) == (4, 4)  # experts without tp: neighbours
    assert (found.expert_dp.ranks, found.expert_dp.local) == (8, 2)  # 4 x 2 x 4 / 4 replicas, 4 apart
    assert (found.pp.ranks, found.pp.local, found.pp.sharing) == (2, 1, 8)


def test_fsdp_and_hsdp() -> None:
    flat = place(H100, dp=64)
    assert (flat.shard.ranks, flat.shard.local, flat.shard.sharing, flat.replicate.ranks) == (64, 8, 1, 1)
    hybrid = place(H100, dp=64, replicas=8)
    assert (hybrid.shard.ranks, hybrid.shard.local) == (8, 8)
    assert (hybrid.replicate.ranks, hybrid.replicate.local, hybrid.replicate.sharing) == (8, 1, 8)


def test_pipelines_inside_a_node_and_across() -> None:
    assert place(H100, tp=2, pp=4).pp == Group(ranks=2, local=2, sharing=1, reach=3)
    assert place(H100, tp=2, pp=8).pp.local == 1
    assert place(H100, pp=1).pp.ranks == 1


def test_a_rack_holds_more() -> None:
    rack = topology_of(load_hardware("gb200"))
    assert place(rack, dp=72).dp.local == 72
    assert place(rack, ep=32, dp=144).ep.local == 32
    assert place(rack, tp=8, dp=16).dp.local == 9
    assert place(rack, tp=8, dp=18).dp.domains == 2


def test_orders() -> None:
    inner = place(H100, tp=2, dp=4, pp=2, order="tp-pp-cp-ep-dp")
    assert (inner.pp.local, inner.dp.local) == (2, 2)
    with pytest.raises(InputError, match="order"):
        place(H100, order="tp-dp")


@given(
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    cp=st.sampled_from([1, 2, 3]),
    dp=st.integers(1, 64),
    pp=st.sampled_from([1, 2, 3, 8]),
    ep=st.sampled_from([1, 2, 4, 8]),
)
def test_groups_are_groups_and_arrays_agree(tp: int, cp: int, dp: int, pp: int, ep: int) -> None:
    one = place(H100, tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)
    many = place(H100, tp=np.array([tp, 1]), cp=np.array([cp, 1]), dp=np.array([dp, 8]), pp=pp, ep=np.array([ep, 1]))
    for name in one.__slots__:
        group, array = getattr(one, name), getattr(many, name)
        assert 1 <= group.local <= group.ranks
        assert group.sharing >= 1
        assert group.local * group.sharing <= 8
        for part in ("ranks", "local", "sharing", "domains", "span"):
            assert np.broadcast_to(getattr(array, part), 2)[0] == getattr(group, part), (name, part)
