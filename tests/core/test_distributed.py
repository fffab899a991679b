"""A training step on a fleet: what is computed, what is sent, what waits, and whether it fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from core_models import llama, llama_70b, mixtral, small, vit
from foretell.core.solver import DistributedModel, DistributedResult
from foretell.machine import Fleet, NetworkFabric, Node

MODEL = DistributedModel()
PEAK = 989.4e12
MATRICES = 8.03e9 - 128256 * 4096
"""Parameters of Llama-3-8B that are multiplied: the token table is looked up."""


def fleet(nodes: int = 64, gpus: int = 8, nic: float = 50e9, cards: int = 8, gpu: str = "h100") -> Fleet:
    fabric = NetworkFabric(nic_bytes_per_s=nic, nics_per_node=cards, topology="InfiniBand fat-tree")
    return Fleet("fleet", Node(ft.load_hardware(gpu), gpus), nodes, fabric)


CLUSTER = fleet()
ALONE = fleet(nodes=1, gpus=1)


def answer(model: ft.Workload | None = None, system: Fleet = CLUSTER, **asked: Any) -> DistributedResult:
    return MODEL.solve(model or llama(), system, **({"batch_size": 512} | asked))


# -- what is computed -------------------------------------------------------------------------------------------


def test_a_plan_that_cannot_hold_its_states_is_not_feasible() -> None:
    """16 bytes a parameter on every rank: 70B replicated on 80 GB devices."""
    one = answer(llama_70b(), fleet(8), batch_size=4096)
    assert not one.feasible
    assert one.verdict == "does_not_fit"
    assert one.total_memory_bytes > 16 * 70.5e9
    assert "over the" in one.constraint_trace[1]
    assert not answer().feasible
    assert not answer().node_profile.feasible
    assert answer(zero_stage=3, activation_recomputation=True).feasible
    with pytest.raises(ft.InfeasibleError, match="over the"):
        answer(raise_errors=True)


def test_compute_follows_the_sequence() -> None:
    short, long = (answer(seq_len=s) for s in (512, 8192))
    grown = long.node_profile.latency_compute_s / short.node_profile.latency_compute_s
    matrices, attention = 6 * MATRICES, 6 * 32 * 4096  # a token, and of each token a token attends to (causal)
    assert grown == pytest.approx(16 * (matrices + attention * 8192) / (matrices + attention * 512), rel=1e-3)


@pytest.mark.parametrize(("tokens", "paper"), [(2048, 1.03), (32768, 1.54), (131072, 3.14)])
def test_attention_is_part_of_a_training_step(tokens: int, paper: float) -> None:
    one = answer(batch_size=512 * 131072 // tokens, seq_len=tokens, activation_recomputation=True)
    matrices = 8 * MATRICES - 2 * 128256 * 4096  # four passes of two FLOP a weight; the head is not computed again
    attention = 4 * 2 * 32 * 4096 * tokens
    assert one.node_profile.latency_compute_s == pytest.approx(131072 * (matrices + attention) / (0.5 * PEAK), rel=2e-3)
    assert 1 + attention / matrices == pytest.approx(paper, rel=0.08)


def test_an_encoder_is_counted_once_a_token() -> None:
    one = answer(ft.load_model("bert-base"), fleet(8), batch_size=4096, seq_len=128)
    assert one.node_profile.latency_compute_s == pytest.approx(3 * 22e9 * 64 / (0.5 * PEAK), rel=0.35)  # and its head


def test_frozen_weights_have_no_gradients() -> None:
    slow = fleet(nic=125e6, cards=1)
    full, adapted = (answer(system=slow, is_lora=lora) for lora in (False, True))
    assert adapted.node_profile.latency_compute_s / full.node_profile.latency_compute_s == pytest.approx(2 / 3, rel=0.03)
    assert adapted.dp_communication_latency_s / full.dp_communication_latency_s == pytest.approx(13.6e6 / 8.03e9, rel=0.05)
    assert adapted.total_memory_bytes < 0.3 * full.total_memory_bytes


def test_the_model_s_utilisation_leaves_recomputation_out() -> None:
    one = answer(llama_70b(), tp_size=8, pp_size=8, microbatch_count=8, activation_recomputation=True, seq_len=4096)
    tokens, matrices = 512 * 4096, 70.55e9 - 128256 * 8192
    flops = (6 * matrices + 6 * 80 * 8192 * 4096) * tokens
    assert one.mfu == pytest.approx(flops / (one.step_latency_total_s * 512 * PEAK), rel=1e-3)
    assert one.hfu / one.mfu == pytest.approx(4 / 3, rel=0.01)
    more = 6 * 80 * 8192 * 4096 * tokens
    assert one.mfu_full_attention == pytest.approx((flops + more) / (one.step_latency_total_s * 512 * PEAK), rel=1e-3)


# -- what is sent -----------------------------------------------------------------------------------------------


def test_experts_exchange_tokens_four_times_a_layer() -> None:
    deep, flat = (answer(mixtral(num_hidden_layers=n), ep_size=8, seq_len=4096) for n in (32, 2))
    assert deep.ep_communication_latency_s / flat.ep_communication_latency_s == pytest.approx(16)
    payload = 4096 * 4096 * 2 * 2 * 7 / 8  # tokens x width x bytes x experts of a token, to the seven others
    assert deep.ep_communication_latency_s == pytest.approx(128 * payload / 450e9, rel=0.8)  # NVLink is where ep 8 sits
    assert deep.ep_communication_latency_s > 128 * payload / 450e9
    hot = answer(mixtral(num_hidden_layers=2), ep_size=8, seq_len=4096, moe_routing_imbalance_factor=2.0)
    assert hot.ep_communication_latency_s > 1.8 * flat.ep_communication_latency_s


def test_accumulation_reduces_gradients_once_a_step() -> None:
    found = [answer(batch_size=512 * 64, gradient_accumulation_steps=n) for n in (1, 8, 64)]
    assert len({one.dp_communication_latency_s for one in found}) == 1
    assert [one.micro_batch for one in found] == [64, 8, 1]
    assert found[0].node_profile.latency_compute_s == pytest.approx(found[2].node_profile.latency_compute_s)
    again = answer(batch_size=512 * 64, microbatch_count=8)
    assert again.to_dict() == found[1].to_dict()


def test_sharded_parameters_move_half_as_much_again() -> None:
    times = [answer(zero_stage=z, topology_override="ring").dp_communication_latency_s for z in range(4)]
    assert times[1] == times[2] == pytest.approx(times[0], rel=0.01)
    assert times[3] / times[0] == pytest.approx(1.5, rel=0.01)


def test_stages_send_activations_to_one_another() -> None:
    one = answer(llama_70b(), tp_size=8, pp_size=8, microbatch_count=64)
    sent = 64 * 2048 * 8192 * 2 * 2
    assert sent / 50e9 < one.pp_communication_latency_s < 1.5 * sent / 50e9
    scattered = answer(llama_70b(), tp_size=8, pp_size=8, microbatch_count=64, framework="megatron-core")
    assert scattered.pp_communication_latency_s < 0.4 * one.pp_communication_latency_s  # an eighth each, gathered over NVLink
    assert answer(tp_size=8).pp_communication_latency_s == 0.0


def test_experts_are_reduced_among_those_that_hold_them() -> None:
    apart = fleet(512, 1, 25e9, 1)
    whole, half, eighth = (
        answer(mixtral(), apart, ep_size=ep, topology_override="ring").dp_communication_latency_s for ep in (1, 2, 8)
    )
    assert half / whole == pytest.approx((45.1 / 2 + 1.6) / 46.7, rel=0.03)
    assert eighth / whole == pytest.approx((45.1 / 8 + 1.6) / 46.7, rel=0.03)
    assert eighth == pytest.approx(2 * (45.1 / 8 + 1.6) * 2e9 / 25e9, rel=0.1)


def test_recomputation_repeats_tensor_parallel_exchanges() -> None:
    asked: dict[str, Any] = {"batch_size": 64, "tp_size": 8, "topology_override": "ring"}
    plain, again = (answer(llama_70b(), activation_recomputation=a, **asked) for a in (False, True))
    assert again.tp_communication_latency_s / plain.tp_communication_latency_s == pytest.approx(6 / 4, rel=0.01)


def test_gradients_keep_their_format_under_narrow_products() -> None:
    half, narrow = (answer(precision=p) for p in ("fp16", "fp8"))
    assert narrow.dp_communication_latency_s == half.dp_communication_latency_s
    assert narrow.node_profile.latency_compute_s < half.node_profile.latency_compute_s
    with pytest.raises(ft.CombinationError, match="int4.*too narrow to train.*bf16"):
        answer(precision="int4")
    assert answer(precision="nf4", is_lora=True).step_latency_total_s > 0


def test_a_forced_algorithm_counts_and_an_unknown_one_is_refused() -> None:
    ring, tree, staged = (answer(topology_override=name) for name in ("ring", "tree", "hierarchical"))
    assert len({one.dp_communication_latency_s for one in (ring, tree, staged)}) == 3
    assert answer(topology_override="fat-tree").dp_communication_latency_s == answer().dp_communication_latency_s
    with pytest.raises(ft.InputError, match="banana.*ring, tree"):
        answer(topology_override="banana")


# -- what overlaps and what waits ---------------------------------------------------------------------------------


def test_overlap_hides_no_more_than_there_is_compute() -> None:
    slow = answer(system=fleet(nic=125e6, cards=1), overlap_comm=True)
    compute = slow.node_profile.latency_s
    assert slow.dp_communication_latency_s > 100 * compute
    assert slow.exposed_communication_latency_s > slow.dp_communication_latency_s - compute
    fast, waiting = (answer(overlap_comm=overlap) for overlap in (True, False))
    assert fast.exposed_communication_latency_s == pytest.approx(0.15 * fast.dp_communication_latency_s)
    assert waiting.exposed_communication_latency_s == waiting.dp_communication_latency_s
    half = answer(overlap_comm=True, overlap_efficiency=0.5)
    assert half.exposed_communication_latency_s == pytest.approx(0.5 * half.dp_communication_latency_s)


def test_the_bubble_waits_for_exchanges_too() -> None:
    asked: dict[str, Any] = {"batch_size": 64, "tp_size": 8, "pp_size": 8, "microbatch_count": 8, "seq_len": 4096}
    one = answer(llama_70b(), **asked)
    passes = one.node_profile.latency_compute_s + one.tp_communication_latency_s
    assert one.pipeline_bubble_latency_s == pytest.approx(7 / 8 * passes, rel=0.25)
    assert one.pipeline_bubble_latency_s > 7 / 8 * passes
    many = answer(llama_70b(), **asked | {"batch_size": 512, "microbatch_count": 64})
    assert many.bubble_fraction < 0.4 * one.bubble_fraction
    assert answer().pipeline_bubble_latency_s == 0.0


def test_chunks_shorten_the_bubble() -> None:
    asked: dict[str, Any] = {"batch_size": 256, "tp_size": 8, "pp_size": 4, "microbatch_count": 8}
    whole, chunks = (answer(llama_70b(), v_stages=v, **asked) for v in (1, 4))
    assert chunks.pipeline_bubble_latency_s < 0.6 * whole.pipeline_bubble_latency_s
    assert chunks.pp_communication_latency_s == pytest.approx(4 * whole.pp_communication_latency_s)


def test_stragglers_and_congestion_stretch_their_own_parts() -> None:
    plain, slow, crowded = answer(), answer(straggler_factor=1.5), answer(congestion_factor=2.0)
    assert slow.step_latency_total_s == pytest.approx(1.5 * plain.step_latency_total_s)
    assert slow.dp_communication_latency_s == plain.dp_communication_latency_s
    assert crowded.dp_communication_latency_s == pytest.approx(2 * plain.dp_communication_latency_s, rel=0.1)
    assert crowded.node_profile.latency_s == plain.node_profile.latency_s


# -- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"batch_size": 1}, "batch_size=1 is smaller than the data-parallel degree 512"),
        ({"batch_size": 1023}, "batch_size=1023 leaves 511 samples over dp"),
        ({"batch_size": 512, "microbatch_count": 1000000}, "microbatch_count=1000000 is more than the 1 samples"),
        ({"batch_size": 1024, "microbatch_count": 4}, "microbatch_count=4 is more than the 2 samples"),
        ({"microbatch_count": 2, "gradient_accumulation_steps": 4}, "both name the micro-batches"),
        ({"tp_size": 7}, "must divide the fleet's 512 accelerators"),
        ({"ep_size": 8}, "needs a model with experts"),
        ({"efficiency": 0}, "efficiency=0"),
        ({"efficiency": 1.01}, "efficiency=1.01"),
        ({"efficiency": "best"}, "calibrated"),
        ({"congestion_factor": -1}, "congestion_factor=-1"),
        ({"straggler_factor": 0.5}, "straggler_factor=0.5"),
        ({"moe_routing_imbalance_factor": 0.5}, "moe_routing_imbalance_factor=0.5"),
        ({"overlap_comm": True, "overlap_efficiency": 1.5}, "overlap_efficiency=1.5"),
        ({"overlap_comm": 1}, "overlap_comm=1"),
        ({"zero_stage": 4}, "zero_stage=4"),
        ({"seq_len": 0}, "seq_len=0"),
        ({"pp_size": 64}, "more than the model's 4 layers"),
        ({"precision": "nvfp4"}, "nvfp4.*lacks.*bf16"),
        ({"precison": "bf16"}, "precison.*precision"),
        ({"dp_size": 4}, "dp_size=4 is not a setting"),
        ({"v_stages": 2}, "pp > 1"),
        ({"batch_size": 768, "pp_size": 4, "microbatch_count": 6, "schedule": "dualpipe"}, "even numbers from 8 on"),
        ({"activation_recomputation": True, "activation_checkpointing": "none"}, "is not activation_recomputation"),
    ],
)
def test_bad_input_is_one_clear_error(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ft.InputError, match=words):
        MODEL.solve(small(), CLUSTER, **({"batch_size": 512} | asked))


def test_degrees_make_the_world() -> None:
    one = answer(llama_70b(), batch_size=64, tp_size=8, pp_size=4, cp_size=2)
    assert one.parallelism == {"dp": 8, "tp": 8, "pp": 4, "cp": 2, "ep": 1, "world": 512}
    assert one.effective_throughput_per_s == pytest.approx(64 / one.step_latency_total_s)
    assert one.tokens_per_second_per_device == pytest.approx(64 * 2048 / 512 / one.step_latency_total_s)
    experts = answer(mixtral(), ep_size=8)
    assert (experts.parallelism["dp"], experts.parallelism["ep"]) == (512, 8)


def test_images_have_no_tokens() -> None:
    one = answer(vit())
    assert one.tokens_per_second is None
    assert one.node_profile.work_unit == "image"


# -- the result -------------------------------------------------------------------------------------------------


def test_the_ledger_sums_to_the_step() -> None:
    for share in (0.5, "calibrated"):
        one = answer(llama_70b(), tp_size=8, pp_size=4, microbatch_count=16, zero_stage=1, efficiency=share)
        assert sum(one.breakdown_s.values()) == pytest.approx(one.step_latency_total_s)
        assert one.interval_s[0] < one.step_latency_total_s < one.interval_s[1]
        parts = (one[f"{kind}_communication_latency"].to("s").magnitude for kind in ("dp", "tp", "pp", "ep", "cp"))
        assert sum(parts) == pytest.approx(one.communication_latency_s)
        assert one.scaling_efficiency == pytest.approx(one.node_profile.latency_s / one.step_latency_total_s)
        assert one.step_latency_total.to("ms").magnitude == pytest.approx(1e3 * one.step_latency_total_s)
        assert one.explain().splitlines()[0].startswith("step")
        assert one.to_dict()["node_profile"]["latency_s"] == one.node_profile.latency_s


def test_kernels_by_their_shape_replace_the_share() -> None:
    flat, shaped = answer(efficiency=0.5), answer(efficiency="calibrated")
    assert flat.breakdown_s["stream"] == 0.0
    assert shaped.breakdown_s["stream"] > 0
    assert shaped.efficiency == "calibrated"
    assert 0.2 < shaped.mfu < 0.7


def test_heads_that_fill_no_row_of_a_tensor_core_are_slow() -> None:
    sizes = {"num_attention_heads": 32, "num_key_value_heads": 32}
    whole, odd = (
        MODEL.solve(llama(head_dim=width, **sizes), ALONE, batch_size=1, seq_len=8192, efficiency="calibrated")
        for width in (96, 100)
    )
    assert odd.breakdown_s["attention"] > 1.8 * whole.breakdown_s["attention"]


# -- what must hold ---------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1, 4, 8]),
    st.floats(1.0, 8.0),
    st.booleans(),
)
def test_more_bandwidth_is_never_slower(tp: int, pp: int, zero: int, steps: int, factor: float, overlap: bool) -> None:
    asked: dict[str, Any] = {"tp_size": tp, "pp_size": pp, "zero_stage": zero, "microbatch_count": steps, "overlap_comm": overlap}
    slow, fast = (answer(small(), fleet(4, nic=rate), batch_size=256, **asked) for rate in (10e9, 10e9 * factor))
    assert fast.step_latency_total_s <= slow.step_latency_total_s * (1 + 1e-9)
    card = CLUSTER.accelerator
    wide = replace(card, memory_bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s * factor)
    quick = Fleet("wide", Node(wide, 8), 4, fleet(nic=10e9).fabric)
    assert answer(small(), quick, batch_size=256, **asked).step_latency_total_s <= slow.step_latency_total_s * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([0, 3]), st.sampled_from([0.5, "calibrated"]))
def test_more_recomputation_is_never_faster(tp: int, pp: int, zero: int, share: float | str) -> None:
    asked: dict[str, Any] = {"tp_size": tp, "pp_size": pp, "zero_stage": zero, "efficiency": share, "batch_size": 256}
    none, some, full = (
        answer(small(), fleet(4), activation_checkpointing=mode, **asked) for mode in ("none", "selective", "full")
    )
    assert none.step_latency_total_s <= some.step_latency_total_s <= full.step_latency_total_s
    assert none.total_memory_bytes >= some.total_memory_bytes >= full.total_memory_bytes


# -- sweeps -----------------------------------------------------------------------------------------------------


def agree(model: ft.Workload, system: Fleet, row: dict[str, Any], names: list[str]) -> None:
    """Compare one row with `solve`."""
    asked = {name: row[name] for name in names}
    if not row["valid"]:
        with pytest.raises(ft.InputError):
            MODEL.solve(model, system, **asked)
        return
    one = MODEL.solve(model, system, **asked)
    for name, value in row.items():
        if isinstance(value, float) and name not in names:
            found = getattr(one.node_profile, name.removeprefix("node_")) if name.startswith("node_") else getattr(one, name)
            assert value == pytest.approx(found, rel=1e-9, abs=1e-15), name
    assert (row["feasible"], row["verdict"]) == (one.feasible, one.verdict)
    assert (row["dp"], row["micro_batch"], row["micro_batches"]) == (one.parallelism["dp"], one.micro_batch, one.micro_batches)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([0.5, "calibrated"]), st.sampled_from([0, 1, 3]), st.booleans(), st.integers(0, 2**31))
def test_one_by_one_equals_vectorised(share: float | str, zero: int, overlap: bool, seed: int) -> None:
    axes: dict[str, Any] = {
        "efficiency": share,
        "zero_stage": zero,
        "overlap_comm": overlap,
        "pp_size": [1, 2, 4],
        "v_stages": [1, 2],
        "tp_size": [1, 2, 3, 8],
        "cp_size": [1, 2],
        "batch_size": [32, 96, 1000],
        "microbatch_count": [1, 2, 3, 4],
        "seq_len": [512, 1000],
        "activation_recomputation": [False, True],
    }
    table = MODEL.sweep(small(), fleet(4), profile=True, **axes)
    assert "node_energy_j" in table.columns
    assert len(table) == 3 * 2 * 4 * 2 * 3 * 4 * 2 * 2
    assert table["valid"].any()
    for index in np.random.default_rng(seed).integers(0, len(table), 25):
        agree(small(), fleet(4), table.row(int(index)), list(axes))


def test_experts_one_by_one_equal_vectorised() -> None:
    model = mixtral(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, intermediate_size=512)
    axes: dict[str, Any] = {
        "ep_size": [1, 2, 3, 8],
        "tp_size": [1, 2],
        "pp_size": [1, 2],
        "batch_size": [64, 128],
        "gradient_accumulation_steps": [1, 2],
        "framework": ["generic", "megatron-core"],
        "topology_override": [None, "ring"],
        "moe_routing_imbalance_factor": [1.0, 1.5],
        "congestion_factor": [1.0, 2.0],
    }
    table = MODEL.sweep(model, fleet(4), **axes)
    for index in range(0, len(table), 19):
        agree(model, fleet(4), table.row(index), list(axes))


def test_windows_adapters_and_images_one_by_one_equal_vectorised() -> None:
    window = small(model_type="gemma3_text", sliding_window=1000, head_dim=32)
    axes: dict[str, Any] = {
        "seq_len": [500, 1000, 1001, 4096],
        "batch_size": 32,
        "is_lora": [False, True],
        "straggler_factor": 1.1,
    }
    table = MODEL.sweep(window, fleet(4), **axes)
    for index in range(len(table)):
        agree(window, fleet(4), table.row(index), list(axes))
    images = MODEL.sweep(vit(), fleet(4), batch_size=[32, 64], zero_stage=[0, 3], precision=["fp16", "int4", "fp8"])
    assert "tokens_per_second" not in images.columns
    assert "node_latency_s" not in images.columns
    named = MODEL.sweep(vit(), fleet(4), batch_size=32, seq_len=[1, 2048])
    assert not named["valid"].any()
    for index in range(len(images)):
        agree(vit(), fleet(4), images.row(index), ["batch_size", "zero_stage", "precision"])


def test_reasons_say_what_is_wrong() -> None:
    table = MODEL.sweep(small(), fleet(4), batch_size=[32, 33], tp_size=[1, 3], microbatch_count=[1, 2])
    by_reason = {str(reason): int((table["reason"] == reason).sum()) for reason in np.unique(table["reason"])}
    assert by_reason == {
        "": 1,
        "batch_size is not a multiple of dp x micro-batches": 3,
        "tp x pp x cp does not divide the fleet's accelerators": 4,
    }
    assert np.isnan(table["step_latency_total_s"][~table["valid"]]).all()
    clash = MODEL.sweep(small(), fleet(4), batch_size=256, microbatch_count=[2, 4], gradient_accumulation_steps=[2, 4])
    assert clash["valid"].tolist() == [True, False, False, True]
    with pytest.raises(ft.InputError, match="is not a setting"):
        MODEL.sweep(small(), fleet(4), dp_size=[1, 2])


def test_the_best_row_is_the_fastest_that_fits() -> None:
    table = MODEL.sweep(llama(), CLUSTER, batch_size=512, tp_size=[1, 2, 4, 8], zero_stage=[0, 1, 3])
    best = table.best()
    assert best["feasible"]
    assert best["step_latency_total_s"] == np.nanmin(table["step_latency_total_s"][table["feasible"]])
    assert table.best("mfu", largest=True)["mfu"] == np.nanmax(table["mfu"][table["feasible"]])
    assert "step_latency_total_s" in repr(table)
