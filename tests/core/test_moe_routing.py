"""Routed experts: which of them a batch visits, what its tokens send, and how long that takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from core_models import llama, mixtral
from foretell.core.solver import MoERoutingModel
from foretell.machine import Fleet, NetworkFabric, Node

MODEL = MoERoutingModel()
FLEET = ft.load_fleet("dgx-h100", 64)


def test_tokens_travel_there_and_back_forward_and_backward_in_every_layer() -> None:
    deep, flat = (MODEL.solve(mixtral(num_hidden_layers=n), 8, 4096, ep_size=8, fleet=FLEET) for n in (32, 2))
    assert (deep.exchanges, flat.exchanges) == (4 * 32, 4 * 2)
    payload = 8 * 4096 * 4096 * 2 * 2 * 7 / 8  # tokens x width x bytes x experts of a token, to the seven other ranks
    assert deep.token_dispatch_bytes == pytest.approx(128 * payload)
    assert deep.all_to_all_latency_s is not None
    assert flat.all_to_all_latency_s is not None
    assert deep.all_to_all_latency_s / flat.all_to_all_latency_s == pytest.approx(16)
    assert deep.all_to_all_latency_s > 128 * payload / 450e9  # NVLink, one direction


def test_a_fleet_with_one_device_a_node_sends_over_its_network() -> None:
    fabric = NetworkFabric(nic_bytes_per_s=25e9, nics_per_node=1, topology="InfiniBand")
    apart = Fleet("apart", Node(ft.load_hardware("h100"), 1), 512, fabric)
    near, far = (MODEL.solve(mixtral(), 1, 4096, ep_size=8, fleet=f).all_to_all_latency_s for f in (FLEET, apart))
    assert near is not None
    assert far is not None
    assert far > 5 * near


def test_few_tokens_visit_few_experts() -> None:
    model = mixtral()
    one = MODEL.solve(model, 1, 1)
    assert one.visited_experts == 2.0
    assert one.visited_parameters == pytest.approx(model.active_parameters)
    four = MODEL.solve(model, 4, 1)
    assert four.visited_experts == pytest.approx(8 * (1 - 0.75**4))
    many = MODEL.solve(model, 8, 4096)
    assert (many.visited_experts, many.visited_parameters) == (8.0, model.parameters)


def test_imbalance_loads_the_busiest_rank_up_to_all_experts() -> None:
    model = mixtral()
    even, hot, worst = (MODEL.solve(model, 4, 2048, ep_size=8, routing_imbalance_factor=g) for g in (1.0, 1.5, 100.0))
    assert [r.effective_active_experts for r in (even, hot, worst)] == [2.0, 3.0, 8.0]
    assert even.effective_active_parameters == model.active_parameters
    expert = 3 * 4096 * 14336
    assert hot.effective_active_parameters == pytest.approx(model.active_parameters + 32 * expert)
    assert hot.active_parameter_multiplier == pytest.approx(hot.effective_active_parameters / model.active_parameters)
    assert worst.effective_active_parameters == pytest.approx(model.parameters, rel=1e-3)
    assert hot.token_dispatch_bytes == pytest.approx(1.5 * even.token_dispatch_bytes)


def test_results_come_back_in_sixteen_bits() -> None:
    half, narrow, wide = (MODEL.solve(mixtral(), 4, 2048, precision=p, ep_size=8) for p in ("bf16", "fp8", "fp32"))
    assert narrow.token_dispatch_bytes == pytest.approx(0.75 * half.token_dispatch_bytes)
    assert wide.token_dispatch_bytes == pytest.approx(2 * half.token_dispatch_bytes)


def test_one_rank_sends_nothing_and_no_fleet_takes_no_time() -> None:
    alone = MODEL.solve(mixtral(), 4, 2048, fleet=FLEET)
    assert (alone.token_dispatch_bytes, alone.all_to_all_latency_s, alone.exchanges) == (0.0, 0.0, 0)
    assert MODEL.solve(mixtral(), 4, 2048, ep_size=8).all_to_all_latency_s is None
    with_time = MODEL.solve(mixtral(), 4, 2048, ep_size=8, fleet=FLEET)
    assert with_time.all_to_all_latency.to("ms").magnitude == pytest.approx(1e3 * (with_time.all_to_all_latency_s or 0))
    assert with_time.interval_s is not None
    assert with_time.interval_s[0] < (with_time.all_to_all_latency_s or 0) < with_time.interval_s[1]
    assert with_time.token_dispatch.to("GB").magnitude == pytest.approx(with_time.token_dispatch_bytes / 1e9)
    assert "exchanges" in with_time.explain()


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"ep_size": 3}, "must divide the model's 8 experts"),
        ({"ep_size": 0}, "ep_size=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seq_len": 2.5}, "whole number"),
        ({"routing_imbalance_factor": 0.5}, "routing_imbalance_factor=0.5"),
        ({"routing_imbalance_factor": float("nan")}, "routing_imbalance_factor"),
        ({"precision": "banana"}, "is not a known number format"),
        ({"fleet": "banana"}, "is not in the catalog"),
    ],
)
def test_bad_input_is_named(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ft.InputError, match=words):
        MODEL.solve(mixtral(), **({"batch_size": 4, "seq_len": 128} | given_settings))


def test_a_dense_model_has_nothing_to_route() -> None:
    with pytest.raises(ft.InputError, match="has no routed experts"):
        MODEL.solve(llama(), 1, 1)


def test_experts_must_divide_the_fleet() -> None:
    one = Fleet("odd", Node(ft.load_hardware("h100"), 1), 3)
    with pytest.raises(ft.InputError, match="must divide the fleet's 3 accelerators"):
        MODEL.solve(mixtral(), 1, 128, ep_size=2, fleet=one)


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "batch_size": [1, 8],
        "seq_len": [1, 2048],
        "ep_size": [1, 3, 8],
        "precision": ["fp16", "fp8"],
        "routing_imbalance_factor": [1.0, 1.5],
        "fleet": FLEET,
    }
    table = MODEL.sweep(mixtral(), **axes)
    assert len(table) == 48
    for i in range(len(table)):
        row = table.row(i)
        asked = {name: row[name] for name in axes}
        if not row["valid"]:
            with pytest.raises(ft.InputError):
                MODEL.solve(mixtral(), **asked)
            continue
        one = MODEL.solve(mixtral(), **asked)
        for name in ("token_dispatch_bytes", "all_to_all_latency_s", "visited_experts", "effective_active_parameters"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-9)
    assert set(table["reason"]) == {"", "ep_size must divide the model's 8 experts"}
    with pytest.raises(ft.InputError, match="ep"):
        MODEL.sweep(mixtral(), batch_size=1, seq_len=1, ep=[1, 2])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]), st.floats(1.0, 4.0))
def test_visits_and_traffic_grow_with_the_batch(batch: int, tokens: int, ep: int, hot: float) -> None:
    model = mixtral(num_hidden_layers=2)
    less, more = (
        MODEL.solve(model, b, tokens, ep_size=ep, routing_imbalance_factor=hot, fleet=FLEET) for b in (batch, 2 * batch)
    )
    assert more.token_dispatch_bytes == pytest.approx(2 * less.token_dispatch_bytes)
    assert more.visited_experts >= less.visited_experts
    assert (more.all_to_all_latency_s or 0) >= (less.all_to_all_latency_s or 0)
    assert 2 <= less.visited_experts <= 8
