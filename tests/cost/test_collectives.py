"""Time of collectives: numbers that a hand can check, properties, and what was published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.collectives import (
    KINDS,
    bus_bytes,
    calibration,
    constants,
    interval,
    seconds,
    timings,
)
from foretell.cost.topology import Group, Topology, topology_of
from foretell.errors import InputError
from foretell.machine import load_fleet, load_hardware

H100 = topology_of(load_fleet("dgx-h100").accelerator, fleet=load_fleet("dgx-h100"))
PLAIN = Topology("nvlink4", 100e9, 8, 8, "ib", 10e9, 8)
"""100 GB/s inside, 8 cards of 10 GB/s outside."""
IDEAL = dict.fromkeys(constants(), 0.0) | {
    "ramp.exponent": 0.5,
    "efficiency.nvlink4": 1.0,
    "network.efficiency.ib": 1.0,
    "tree.share": 1.0,
    "tree.link_share": 1.0,
    "all_to_all.share": 1.0,
    "nvls.efficiency": 1.0,
    "deepep.link_efficiency": 1.0,
    "deepep.network_efficiency": 1.0,
}
"""Links reach their nominal rate, nothing has latency: what is left is the accounting of bytes."""
GB = 1e9


def ideal(kind: str, size: float, group: Group, topology: Topology = PLAIN, **options: Any) -> float:
    return float(seconds(kind, size, group, topology, known=IDEAL, **options))


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_to_all", 7 / 8), ("broadcast", 1)],
)
def test_bytes_on_the_link_of_one_domain(kind: str, factor: float) -> None:
    assert ideal(kind, 100 * GB, Group(8, 8)) == pytest.approx(factor)
    assert bus_bytes(kind, 1.0, 8) == factor


def test_a_flat_ring_sends_its_bus_volume_over_the_network() -> None:
    # 32 ranks of 4 nodes, 8 cards of 10 GB/s: 2 x 31/32 of 80 GB over 80 GB/s
    assert ideal("all_reduce", 80 * GB, Group(32, 8), algorithm="ring") == pytest.approx(2 * 31 / 32)


def test_hierarchical_accounting() -> None:
    """Inside 2 x 7/8, between 2 x 3/4 of the buffer; of a ring's 31/32 over each edge, (k-1)/k = 3/4 crosses."""
    group, size = Group(32, 8), 80 * GB
    inside, between = 2 * 7 / 8 * 80 / 100, 2 * 3 / 4 * 80 / 80
    assert ideal("all_reduce", size, group, algorithm="hierarchical") == pytest.approx(inside + between)
    assert ideal("all_gather", size, group, algorithm="hierarchical") == pytest.approx((inside + between) / 2)
    share = (3 / 4) / (31 / 32)
    assert share == pytest.approx(8 * (4 - 1) / (32 - 1))  # (k-1)/(n-1) for each of the eight rails


def test_a_tree_of_two_nodes_sends_the_buffer_once() -> None:
    assert ideal("all_reduce", 80 * GB, Group(16, 8), algorithm="tree") == pytest.approx(max(1.0, 2 * 80 / 100))
    assert ideal("all_reduce", 80 * GB, Group(32, 8), algorithm="tree") == pytest.approx(2.0)


def test_p2p_is_one_message_on_a_link_or_on_one_card() -> None:
    assert ideal("p2p", 100 * GB, Group(2, 2)) == pytest.approx(1.0)
    assert ideal("p2p", 10 * GB, Group(2, 1)) == pytest.approx(1.0)
    assert ideal("p2p", 10 * GB, Group(2, 1, sharing=16)) == pytest.approx(2.0)  # sixteen senders on eight cards


def test_groups_that_communicate_at_once_divide_the_cards() -> None:
    alone, eight = Group(4, 1), Group(4, 1, sharing=8)
    assert ideal("all_gather", 40 * GB, alone) == ideal("all_gather", 40 * GB, eight) == pytest.approx(3.0)  # a card each
    assert ideal("all_gather", 40 * GB, Group(32, 8)) == pytest.approx(31 / 32 * 40 / 80)


def test_all_to_all_uses_link_and_network_side_by_side() -> None:
    # of 80 GB a rank sends 7/32 on the link and 24/32 outside, where eight ranks share 80 GB/s
    assert ideal("all_to_all", 80 * GB, Group(32, 8)) == pytest.approx(8 * 24 / 32)
    assert ideal("all_to_all", 80 * GB, Group(32, 8), algorithm="hierarchical") == pytest.approx(0.7 + 8 * 3 / 4)
    assert ideal("all_to_all", 80 * GB, Group(32, 8), algorithm="deepep") == pytest.approx(8 * 3 / 4)


def test_all_to_all_on_a_torus_passes_other_chips() -> None:
    ring = Topology("nvlink4", 100e9, 64, 4, "ib", 10e9, 1, torus=1)
    cube = Topology("nvlink4", 100e9, 64, 4, "ib", 10e9, 1, torus=3)
    flat = Topology("nvlink4", 100e9, 64, 4, "ib", 10e9, 1)
    group = Group(64, 64)
    base = ideal("all_to_all", 100 * GB, group, flat)
    assert ideal("all_to_all", 100 * GB, group, ring) == pytest.approx(base * 64 / 4)
    assert ideal("all_to_all", 100 * GB, group, cube) == pytest.approx(base * 3 * 4 / 4)
    assert ideal("all_to_all", 100 * GB, group, flat, algorithm="torus") == pytest.approx(base * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_and_no_bytes_take_no_time(kind: str) -> None:
    assert seconds(kind, 1e9, Group(1, 1), H100) == 0
    assert seconds(kind, 0, Group(8, 8), H100) == 0


def test_an_algorithm_that_does_not_exist_is_met_with_those_that_do() -> None:
    with pytest.raises(InputError, match="topology_override='banana' is not known") as caught:
        seconds("all_reduce", 1e9, Group(8, 8), H100, algorithm="banana")
    assert {"ring", "tree", "nvls", "hierarchical", "fat-tree", "torus"} <= set(caught.value.allowed or ())
    with pytest.raises(InputError, match="needs switches that reduce"):
        seconds("all_reduce", 1e9, Group(8, 8), topology_of(load_hardware("a100-sxm-80gb")), algorithm="nvls")
    with pytest.raises(InputError, match="kind='gossip'"):
        seconds("gossip", 1e9, Group(8, 8), H100)
    with pytest.raises(InputError, match="local"):
        seconds("all_reduce", 1e9, Group(4, 8), H100)


def test_an_override_changes_the_answer() -> None:
    group = Group(32, 8)
    found = {name: seconds("all_reduce", 1e9, group, H100, algorithm=name) for name in ("ring", "tree", "nvls", "hierarchical")}
    assert len(set(found.values())) == 4
    assert seconds("all_reduce", 1e9, group, H100) == min(found["ring"], found["tree"], found["nvls"])
    assert seconds("all_reduce", 1e9, group, H100, algorithm="fat-tree") == seconds("all_reduce", 1e9, group, H100)
    assert seconds("broadcast", 1e9, group, H100, algorithm="tree") == seconds("broadcast", 1e9, group, H100)


def test_a_forced_nvls_leaves_groups_with_one_rank_in_each_domain_alone() -> None:
    spread = Group(16, 1, sharing=8)
    assert seconds("all_reduce", 1e9, spread, H100, algorithm="nvls") == seconds("all_reduce", 1e9, spread, H100)
    mixed = Group(np.array([16, 16]), np.array([1, 8]))
    found = seconds("all_reduce", 1e9, mixed, H100, algorithm="nvls")
    assert found[0] == seconds("all_reduce", 1e9, Group(16, 1), H100)
    assert found[1] == timings("all_reduce", 1e9, Group(16, 8), H100)["nvls"]


def busbw(gpu: str, ranks: int, size: float, kind: str = "all_reduce", **options: Any) -> float:
    topology = topology_of(load_hardware(gpu))
    return float(bus_bytes(kind, size, ranks) / seconds(kind, size, Group(ranks, ranks), topology, **options) / GB)


def test_nvls_is_taken_above_four_ranks_on_h200_and_above_five_on_b200() -> None:
    """stas00/ml-engineering, network: bus bandwidth with and without NVLS, 8 GiB."""
    for gpu, most in (("h200-sxm", 4), ("b200-sxm", 5)):
        for ranks in range(2, 9):
            auto, ring = (busbw(gpu, ranks, 2**33, **o) for o in ({}, {"algorithm": "ring"}))
            assert (auto > 1.05 * ring) == (ranks > most), (gpu, ranks)


@pytest.mark.parametrize(
    ("gpu", "ranks", "kind", "options", "published"),
    [
        ("a100-sxm-80gb", 8, "all_reduce", {}, 235),  # DGX A100
        ("h100-sxm-80gb", 8, "all_reduce", {}, 480),
        ("h200-sxm", 8, "all_reduce", {"algorithm": "ring"}, 367),
        ("h200-sxm", 8, "all_gather", {}, 361),  # NVLS is for all-reduce only
        ("b200-sxm", 8, "all_reduce", {}, 840),
        ("b200-sxm", 8, "all_reduce", {"algorithm": "ring"}, 682),
        ("gb200", 72, "all_reduce", {"algorithm": "ring"}, 680),
        ("gb200", 72, "all_reduce", {}, 850),
        ("mi300x", 8, "all_reduce", {}, 313),
        ("mi300x", 2, "all_reduce", {}, 47.7),
        ("v100-sxm-32gb", 8, "all_reduce", {}, 130),
    ],
)
def test_published_bus_bandwidths(gpu: str, ranks: int, kind: str, options: dict[str, Any], published: float) -> None:
    assert busbw(gpu, ranks, 2**34, kind, **options) == pytest.approx(published, rel=0.11)


def test_networks_reach_what_their_users_print() -> None:
    """Rings of DGX A100 (8 x 200 Gbit/s: 192 GB/s, nccl/issues/812), of H100 with 4 x 400 RoCE (190 GB/s, 1368)."""
    a100 = topology_of(load_fleet("dgx-a100").accelerator, fleet=load_fleet("dgx-a100"))
    ring = bus_bytes("all_reduce", 2**33, 32) / seconds("all_reduce", 2**33, Group(32, 8), a100, algorithm="ring") / GB
    assert ring == pytest.approx(192, rel=0.05)
    roce = Topology("nvlink4", 450e9, 8, 8, "roce", 50e9, 4, nvls=True)
    group = Group(40, 8)
    ring, tree = (
        bus_bytes("all_reduce", 2**30, 40) / seconds("all_reduce", 2**30, group, roce, algorithm=name) / GB
        for name in ("ring", "tree")
    )
    assert ring == pytest.approx(190, rel=0.1)
    assert tree == pytest.approx(150, rel=0.15)


@pytest.mark.parametrize(("size", "us"), [(2**21, 113.2), (2**22, 154.4), (2**23, 231.4), (2**24, 420.5), (2**25, 812.3)])
def test_medium_sizes_between_two_cards(size: int, us: float) -> None:
    """One H100 in each of two nodes, 400 Gbit/s (nccl-tests/issues/232): no row of the fit has such a network."""
    roce = Topology("nvlink4", 450e9, 8, 8, "roce", 50e9, 4, nvls=True)
    assert seconds("all_reduce", size, Group(2, 1), roce) * 1e6 == pytest.approx(us, rel=0.2)


def test_hops_of_many_nodes() -> None:
    """A tree over 256 A100 (63 us, nccl/issues/652), a ring over 16 (93 us, 812) and over 40 H100 (355 us for 1 MiB, 1368)."""
    a100 = Topology("nvlink3", 300e9, 8, 8, "ib", 25e9, 4)
    assert seconds("all_reduce", 64, Group(256, 8), a100) * 1e6 == pytest.approx(63, rel=0.35)
    assert seconds("all_reduce", 64, Group(16, 8), a100, algorithm="ring") * 1e6 == pytest.approx(93, rel=0.1)
    roce = Topology("nvlink4", 450e9, 8, 8, "roce", 50e9, 4, nvls=True)
    assert seconds("all_reduce", 2**20, Group(40, 8), roce, algorithm="ring") * 1e6 == pytest.approx(355, rel=0.3)


def test_two_nodes_exceed_their_cards_by_the_tree() -> None:
    """H100 with 8 x 400 Gbit/s: above the 400 GB/s of the cards, as a tree sends the buffer once."""
    found = timings("all_reduce", 2**33, Group(16, 8), H100)
    assert min(found, key=lambda name: found[name]) in ("tree", "nvls")
    assert 400 < bus_bytes("all_reduce", 2**33, 16) / min(found.values()) / GB < 520


def test_what_is_launched_ahead_is_not_bound_by_the_host() -> None:
    small = seconds("all_reduce", 1024, Group(8, 8), H100)
    assert seconds("all_reduce", 1024, Group(8, 8), H100, queued=True) < small == constants()["launch.host_s"]


def test_intervals_hold_the_prediction() -> None:
    for group in (Group(8, 8), Group(32, 8)):
        low, high = interval(1.0, group, H100)
        assert 0.4 < low < 1 < high < 2.5
    assert set(calibration()["regimes"]) == {"link", "network", "unstated"}


def test_every_constant_says_where_it_comes_from() -> None:
    for name, entry in calibration()["constants"].items():
        assert entry["source"], name
        assert entry["basis"] in ("fit", "prior"), name
        assert entry["basis"] == "fit" or entry["value"] == entry["prior"], name
        if "efficiency" in name or "share" in name:
            assert 0.3 < entry["value"] <= 1, name


GROUPS = st.sampled_from([(2, 1), (2, 2), (4, 4), (8, 8), (16, 8), (12, 4), (64, 8), (64, 1), (512, 8)])
SIZES = st.floats(1, 1e11)
MACHINES = st.sampled_from(["dgx-a100", "dgx-h100", "dgx-b200", "mi300x-platform", "aws-p5-48xlarge", "gb200-nvl72"])


@given(kind=st.sampled_from(KINDS), group=GROUPS, size=SIZES, factor=st.floats(1, 100), machine=MACHINES)
def test_more_bytes_are_never_faster(kind: str, group: tuple[int, int], size: float, factor: float, machine: str) -> None:
    topology = topology_of(load_fleet(machine).accelerator, fleet=load_fleet(machine))
    placed = Group(*group)
    assert seconds(kind, size * factor, placed, topology) >= seconds(kind, size, placed, topology) * (1 - 1e-12)


@given(kind=st.sampled_from(KINDS), group=GROUPS, size=SIZES, link=st.floats(1, 10), card=st.floats(1, 10))
def test_more_bandwidth_is_never_slower(kind: str, group: tuple[int, int], size: float, link: float, card: float) -> None:
    placed = Group(*group)
    better = Topology("nvlink4", 100e9 * link, 8, 8, "ib", 10e9 * card, 8, nvls=True)
    plain = Topology("nvlink4", 100e9, 8, 8, "ib", 10e9, 8, nvls=True)
    assert seconds(kind, size, placed, better) <= seconds(kind, size, placed, plain) * (1 + 1e-12)


@given(group=GROUPS, size=SIZES, algorithm=st.sampled_from(["ring", "hierarchical"]))
def test_an_all_reduce_takes_at_least_its_halves(group: tuple[int, int], size: float, algorithm: str) -> None:
    placed = Group(*group)
    whole = seconds("all_reduce", size, placed, H100, algorithm=algorithm)
    assert whole >= seconds("reduce_scatter", size, placed, H100, algorithm=algorithm)
    assert seconds("reduce_scatter", size, placed, H100) == seconds("all_gather", size, placed, H100)


@given(kind=st.sampled_from(KINDS), sizes=st.lists(SIZES, min_size=1, max_size=4), group=GROUPS, machine=MACHINES)
def test_arrays_give_what_numbers_give(kind: str, sizes: list[float], group: tuple[int, int], machine: str) -> None:
    topology = topology_of(load_fleet(machine).accelerator, fleet=load_fleet(machine))
    ranks = np.array([1, 2, 8, group[0]])
    local = np.minimum(ranks, group[1])
    found = seconds(kind, np.array(sizes)[:, None], Group(ranks, local), topology)
    for i, size in enumerate(sizes):
        for j in range(4):
            one = seconds(kind, size, Group(int(ranks[j]), int(local[j])), topology)
            assert found[i, j] == pytest.approx(one, rel=1e-9)


def test_two_nodes_with_fewer_cards_than_accelerators_get_a_rings_rate() -> None:
    """Two DGX A100 with four HDR cards: 86 and 91 GB/s bus bandwidth (nccl-tests issues 175 and 100), not the 138 of a tree."""
    four = Topology("nvlink3", 300e9, 8, 8, "ib", 25e9, 4)
    size = 4 * 2.0**30
    measured = bus_bytes("all_reduce", size, 16) / seconds("all_reduce", size, Group(16, 8), four)
    assert 80e9 < measured < 105e9
