"""Sizing a fleet: what is asked of it decides how many replicas there are, and the simulator agrees."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell as ft
from foretell.core.serving import deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import point
from foretell.cost.serving_flow import largest_rate, prompt_s
from foretell.plan.serving_confirm import confirmed
from foretell.plan.serving_option import BOUNDS
from foretell.plan.serving_size import Sizing, size
from foretell.plan.serving_slo import SloTargets, Target, parse_slo
from foretell.plan.serving_tail import MEAN, Tail
from foretell.plan.serving_trace import TraceLoad, read_trace
from foretell.recipe.serving import ServingRecipe
from foretell.sim.serving import play

MODEL = "llama-3.1-8b"
SLO = "ttft=2s,itl=100ms"
OWN: dict[str, Any] = {"max_num_seqs": (None,), "max_num_batched_tokens": (None,)}
"""The engine's own batch flags."""


def asked(inputs: float, outputs: float, rate: float, **more: Any) -> Demand:
    return Demand("open", inputs, outputs, rate=rate, **more)


def gpus(found: Sizing) -> float:
    return math.inf if found.best is None or found.best.gpus is None else found.best.gpus


# -- targets --------------------------------------------------------------------------------------------------


def test_targets_are_read_with_their_statistic() -> None:
    found = parse_slo("TTFT=500ms, itl=50 ms,p90-e2e=10s,mean-tpot = 0.04,ttft-p95<=400ms")
    assert found.targets == (
        Target("ttft", 0.5, "p99"),
        Target("itl", 0.05, "p99"),
        Target("e2e", 10.0, "p90"),
        Target("itl", 0.04, "mean"),
        Target("ttft", 0.4, "p95"),
    )
    assert found.tightest.ttft_s == 0.4
    assert found.to_dict()["p90-e2e_s"] == 10.0


@pytest.mark.parametrize(
    "text",
    ["", "  ", "ttft", "ttft=0", "ttft=0ms", "itl=-5ms", "ttft=fast", "p42-ttft=1s", "p99-ttft-p90=1s", "tttt=1s",
     "ttft=1s,ttft=2s", "ttft=1s,", "ttft=nan", "ttft=inf", "ttft=5 GiB", ",".join(f"p9{i % 10}-ttft=1s" for i in range(40))],
)  # fmt: skip
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ft.InputError) as caught:
        parse_slo(text)
    assert caught.value.to_dict()["field"] == "slo"


def test_a_target_needs_time() -> None:
    with pytest.raises(ft.InputError, match="no time"):
        Target("ttft", 0.0)
    with pytest.raises(ft.InputError):
        SloTargets(())


# -- percentiles ----------------------------------------------------------------------------------------------


def test_percentiles_rise_with_the_share_and_with_the_rate() -> None:
    found = deployment(MODEL, "h100")
    tail = Tail.of(found, asked(1000, 200, 1.0).traffic, input_cv=0.5)
    rates = np.linspace(0.05, 0.9, 12) * tail.sharing.largest_rate
    by = [tail.at(rates, share, whole=True) for share in (MEAN, 0.9, 0.95, 0.99)]
    for metric in ("ttft", "itl", "e2e"):
        values = np.stack([late.of(metric) for late in by])
        assert (np.diff(values, axis=0) > 0).all()
        assert (np.diff(values[1:], axis=1) > -1e-12).all()
    assert np.isinf(tail.at(rates[-1:] * 1.2, 0.99).ttft).all()


def test_an_idle_replica_has_the_prompt_and_the_step_alone() -> None:
    found = deployment(MODEL, "h100")
    traffic = asked(1000, 200, 1.0).traffic
    tail = Tail.of(found, traffic)
    late = tail.at(np.array([1e-3]), 0.5, whole=True)
    alone = found.steps.engine.request_s + prompt_s(found, traffic, found.limits)
    assert float(late.ttft[0]) == pytest.approx(alone, rel=0.02)
    assert float(late.tpot[0]) == pytest.approx(tail.idle[1], rel=0.02)
    assert tail.idle[2] == pytest.approx(alone + 199 * tail.idle[1])


SEEDS = (3, 5, 8, 13, 21, 34)


def late_ones(seed: int) -> tuple[Any, Demand]:
    rng = random.Random(seed)  # noqa: S311
    model, gpu, tp = rng.choice([(MODEL, "h100", 1), ("qwen3-32b", "h100", 2), ("llama-3.1-70b", "h200", 4)])
    found = deployment(model, gpu, ServingRecipe(tp=tp, max_model_len=16384, engine=rng.choice(["vllm", "tensorrt-llm"])))
    inputs, outputs = round(10 ** rng.uniform(2, 3.6)), round(10 ** rng.uniform(1.3, 2.8))
    load = asked(inputs, outputs, 1.0, input_cv=rng.choice([0.0, 0.5]))
    top = largest_rate(found, load.traffic, found.limits).rate
    return found, replace(load, rate=rng.uniform(0.2, 0.6) * top)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_late_ones_are_as_late_as_in_a_simulation(seed: int) -> None:
    found, load = late_ones(seed)
    assert load.rate is not None
    tail = Tail.of(found, load.traffic, input_cv=load.input_cv)
    late = tail.at(np.array([load.rate]), 0.99, whole=True)
    span = 4000 / load.rate
    seen = play(found, load, requests=4000, seed=seed, window=(0.2 * span, 0.95 * span))
    assert float(late.ttft[0]) == pytest.approx(seen.ttft.p99, rel=0.35)
    assert float(late.tpot[0]) == pytest.approx(seen.tpot.p99, rel=0.25)
    assert float(late.e2e[0]) == pytest.approx(seen.e2e.p99, rel=0.25)


# -- how many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ttft=400ms,itl=30ms", "mean-ttft=200ms,mean-itl=20ms", "e2e=4s"])
def test_looser_targets_never_need_more(kind: str) -> None:
    targets = parse_slo(kind)
    needed = []
    for looser in (0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 16.0):
        slo = SloTargets(tuple(replace(one, seconds=one.seconds * looser) for one in targets))
        needed.append(gpus(size(MODEL, asked(1500, 150, 25.0), slo, hardware="h100", **OWN)))
    assert needed == sorted(needed, reverse=True)
    assert needed[0] > needed[-1]


def test_more_requests_never_need_fewer() -> None:
    needed = [gpus(size(MODEL, asked(1500, 150, 2.0**n), SLO, hardware="h100")) for n in range(9)]
    assert needed == sorted(needed)
    assert needed[-1] > 8 * needed[0]


def test_each_replica_is_within_what_one_serves() -> None:
    found = size(MODEL, asked(1500, 150, 100.0), SLO, hardware="h100")
    for one in found.options:
        if one.replicas is None:
            continue
        assert one.replicas * one.rate_per_replica >= 100.0 * (1 - 1e-9) > (one.replicas - 1) * one.rate_per_replica
        assert one.rate_per_replica <= 0.9 * one.capacity_per_replica * (1 + 1e-9)
        assert one.gpus == one.replicas * one.recipe.tp
        assert all(one.latencies[target.name] <= target.seconds * (1 + 1e-9) for target in found.slo)


def test_prompts_consume_capacity() -> None:
    # 8,192 tokens in and 64 out, 30 a second, at half of the peak: 2 x 7.5e9 x 8192 + 9e12 FLOP of a prompt take 0.27 s
    load = asked(8192, 64, 30.0)
    half = {slo: size(MODEL, load, slo, hardware="h100", tp=[1], efficiency=0.5, **OWN).best for slo in ("ttft=60s,itl=2s", SLO)}
    for slo, least in (("ttft=60s,itl=2s", 30 * 0.27 / 0.9), (SLO, 11)):
        best = half[slo]
        assert best is not None
        assert best.replicas is not None
        assert best.replicas >= least
        assert best.capacity_per_replica < 1 / 0.27
        assert best.binding == "prefill"
    # with calibrated kernels: no fewer than prompts alone keep busy at all of the peak, 8.03e9 x 2 x 8192 FLOP each
    best = size(MODEL, load, "ttft=60s,itl=2s", hardware="h100", tp=[1], **OWN).best
    assert best is not None
    assert best.replicas is not None
    assert best.replicas > 30 * 2 * 8.03e9 * 8192 / 989.4e12
    assert best.rate_per_replica < 0.9 / prompt_s(best.deployment, load.traffic, best.deployment.limits)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("seats", [1, 4, 32, 256])
def test_a_lone_request_waits_for_nobody_however_large_the_batch_may_be(seats: int) -> None:
    found = size(MODEL, asked(1920, 128, 1.0), "e2e=3s", hardware="h100", tp=[1], max_num_seqs=[seats])
    idle = size(MODEL, asked(1920, 128, 1e-4), "ttft=1s", hardware="h100", tp=[1], max_num_seqs=[seats])
    assert found.feasible
    assert idle.best is not None
    assert idle.best.ttft_s == pytest.approx(0.07, abs=0.03)


def test_more_places_never_need_more_replicas() -> None:
    needed = [
        gpus(size(MODEL, asked(1920, 128, 20.0), "e2e=3s", hardware="h100", tp=[1], max_num_seqs=[seats]))
        for seats in (1, 4, 32, 256)
    ]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] > needed[-1]


# -- what holds it up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "slo", "more", "binding"),
    [
        (asked(64, 1000, 30.0), "ttft=2s,itl=15ms", {}, "decode"),
        (asked(16000, 16, 4.0), "ttft=5s,itl=1s", {}, "prefill"),
        (asked(6000, 60, 4.0), "ttft=20s,itl=30ms", {}, "prefill"),
        (asked(512, 2000, 30.0), "e2e=600s", {"hardware": "l4"}, "memory"),
        (asked(512, 500, 20.0), "ttft=300ms,itl=1s", {"max_num_seqs": [16]}, "queue"),
        (asked(1000, 100, 3.0), "ttft=2ms", {}, "base latency"),
        (asked(1000, 100, 3.0), "itl=1ms", {}, "base latency"),
    ],
)
def test_what_binds_is_named(load: Demand, slo: str, more: dict[str, Any], binding: str) -> None:
    found = size(MODEL, load, slo, **{"hardware": "h100", "tp": [1], **OWN, **more})
    assert found.binding == binding
    assert binding in BOUNDS
    assert found.feasible == (binding != "base latency")


def test_a_card_that_holds_no_model_says_what_is_missing() -> None:
    found = size("llama-3.1-70b", asked(1000, 100, 3.0), SLO, hardware="rtx4090", tp=[1, 2])
    assert not found.feasible
    assert found.binding == "memory"
    least = min(one.missing_bytes or math.inf for one in found.options)
    assert 40 * 2**30 < least < 70 * 2**30  # 141 GB on two cards of 24 GiB
    advice = " | ".join(found.advice)
    assert "int4" in advice
    assert f"{least / 2**30:.2f} GiB more" in advice
    assert found.best is None
    assert found.pareto == ()


def test_a_target_that_none_reaches_says_by_how_much() -> None:
    found = size(MODEL, asked(4000, 100, 3.0), "ttft=20ms", hardware="h100")
    fastest = min(one.latencies["p99-ttft"] for one in found.options)
    said = (
        f"a looser p99-ttft: {fastest:.3g} s at least, {fastest / 0.02:.3g} times the target, with the fastest of what was tried"
    )
    assert found.advice == (said,)
    again = size(MODEL, asked(4000, 100, 3.0), SloTargets((Target("ttft", fastest * 1.3),)), hardware="h100")
    assert again.feasible


def test_too_few_accelerators_say_how_many_it_takes() -> None:
    load = asked(1000, 300, 60.0)
    free = size("llama-3.1-70b", load, SLO, hardware="h100", weights=["fp8"])
    bound = size("llama-3.1-70b", load, SLO, hardware="h100", weights=["fp8"], max_gpus=8)
    assert gpus(free) > 8
    assert not bound.feasible
    assert bound.advice[0].startswith(f"{gpus(free):g} accelerators")
    less = float(bound.advice[1].split()[3])  # "a rate of X requests/s with 8"
    assert size("llama-3.1-70b", replace(load, rate=less * 0.99), SLO, hardware="h100", weights=["fp8"], max_gpus=8).feasible


# -- what is chosen -------------------------------------------------------------------------------------------


def test_options_come_in_the_order_of_the_objective() -> None:
    common: dict[str, Any] = {"hardware": ["h100", "a100-sxm-80gb"], "prices": {"h100": 9.0, "a100-sxm-80gb": 1.0}}
    load = asked(1000, 200, 40.0)
    fewest = size(MODEL, load, SLO, **common)
    cheap = size(MODEL, load, SLO, objective="cost", **common)
    fast = size(MODEL, load, SLO, objective="latency", **common)
    for found in (fewest, cheap, fast):
        assert found.best is not None
    assert gpus(fewest) == min(one.gpus or math.inf for one in fewest.options if one.feasible)
    assert cheap.best is not None
    assert cheap.best.usd_per_h == min(one.usd_per_h or math.inf for one in cheap.options if one.feasible)
    assert cheap.best.hardware == "a100-sxm-80gb"
    assert cheap.cheapest == cheap.best
    assert fast.best is not None
    assert fast.best.request_s == pytest.approx(min(one.request_s or math.inf for one in fast.options if one.feasible), rel=0.02)
    assert (fast.best.request_s or 0.0) < (fewest.best.request_s or 0.0)  # type: ignore[union-attr]


def test_an_unknown_price_is_none() -> None:
    found = size(MODEL, asked(1000, 200, 4.0), SLO, hardware=["h100", "l40s"], objective="cost", prices={"h100": 2.0}, **OWN)
    assert {one.usd_per_h is None for one in found.options if one.hardware == "l40s"} == {True}
    assert found.best is not None
    assert found.best.hardware == "h100-sxm-80gb"
    assert found.best.usd_per_h == 2.0 * found.best.gpus  # type: ignore[operator]
    assert any("no price is known of l40s" in note for note in found.notes)


def test_no_point_of_the_front_is_beaten() -> None:
    found = size(MODEL, asked(1000, 200, 40.0), SLO, hardware=["h100", "l40s"], weights=["bf16", "fp8"])
    points = [(point.itl_s, point.output_tokens_per_s_per_gpu) for one in found.options for point in one.points]
    assert len(found.pareto) > 3
    for one in found.pareto:
        assert not any(
            itl <= one.itl_s and out >= one.output_tokens_per_s_per_gpu
            and (itl < one.itl_s or out > one.output_tokens_per_s_per_gpu)
            for itl, out in points
        )  # fmt: skip
    assert [one.itl_s for one in found.pareto] == sorted(one.itl_s for one in found.pareto)


def test_flags_are_tried_where_they_may_help() -> None:
    late = asked(3000, 60, 30.0), "ttft=800ms,itl=100ms"  # two steps of 2,048 tokens for a prompt of 3,000
    own = size(MODEL, *late, hardware="l40s", tp=[1], **OWN)
    tuned = size(MODEL, *late, hardware="l40s", tp=[1])
    assert own.binding == "prefill"
    assert tuned.best is not None
    assert dict(tuned.best.flags) == {"max_num_batched_tokens": 8192}
    assert gpus(tuned) < gpus(own)
    slow = asked(4000, 60, 10.0), "ttft=5s,itl=60ms"
    tuned = size(MODEL, *slow, hardware="h100", tp=[1])
    assert {dict(one.flags).get("max_num_seqs") for one in tuned.options} > {None, 16}
    assert gpus(tuned) <= gpus(size(MODEL, *slow, hardware="h100", tp=[1], **OWN))
    kept = size(MODEL, *slow, hardware="h100", tp=[1], recipe=ServingRecipe(max_num_seqs=8, max_num_batched_tokens=4096))
    assert {(one.recipe.max_num_seqs, one.recipe.max_num_batched_tokens) for one in kept.options} == {(8, 4096)}


def test_the_model_is_shortened_where_a_sequence_of_its_length_does_not_fit() -> None:
    found = size(MODEL, asked(1000, 100, 1.0), "ttft=3s", hardware="rtx4090", tp=[1], **OWN)
    assert found.best is not None
    assert 1100 <= (found.best.recipe.max_model_len or 0) < 131072


def test_a_forecast_of_the_fleet_is_the_usual_one() -> None:
    load = asked(1000, 200, 40.0)
    best = size(MODEL, load, SLO, hardware="h100").best
    assert best is not None
    said = best.forecast(load)
    assert said is not None
    assert said.replicas == best.replicas
    assert said.gpus == best.gpus
    assert said.stable
    assert said.itl_s == point(best.fleet, load).itl  # type: ignore[arg-type]


# -- the simulator agrees -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "load", "slo"),
    [
        (MODEL, asked(2000, 150, 40.0), "ttft=1s,itl=40ms"),
        (MODEL, asked(300, 400, 60.0, input_cv=0.5), "p90-ttft=300ms,p90-itl=20ms"),
        ("qwen3-32b", asked(1200, 250, 12.0), "e2e=20s"),
    ],
)
def test_the_answer_holds_in_simulation(model: str, load: Demand, slo: str) -> None:
    calls: list[tuple[int, int]] = []
    found = size(model, load, slo, hardware="h100", confirm=True, confirm_best=1, seed=4, progress=lambda *at: calls.append(at))
    best = found.best
    assert best is not None
    assert best.confirmed is not None
    assert best.confirmed.met
    assert best.confirmed.added <= 1
    assert best.confirmed.replicas == best.replicas
    assert set(best.confirmed.seconds) == set(best.latencies)
    assert calls
    assert calls[-1][0] <= calls[-1][1]
    again = size(model, load, slo, hardware="h100", confirm=True, confirm_best=1, seed=4)
    assert again.best is not None
    assert again.best.confirmed == best.confirmed


def test_half_a_fleet_does_not_hold() -> None:
    load, slo = asked(2000, 150, 40.0), parse_slo("ttft=1s,itl=40ms")
    best = size(MODEL, load, slo, hardware="h100", **OWN).best
    assert best is not None
    assert best.replicas is not None
    assert best.replicas >= 4
    half = replace(best, replicas=best.replicas // 2)
    tried = confirmed(half, load, slo, seed=4, most_replicas=half.replicas)
    assert tried.confirmed is not None
    assert not tried.confirmed.met
    assert not tried.feasible
    mended = confirmed(replace(best, replicas=best.replicas - 2, gpus=(best.replicas - 2) * best.recipe.tp), load, slo, seed=4)
    assert mended.confirmed is not None
    assert mended.confirmed.met
    assert mended.confirmed.added >= 1
    assert mended.gpus == mended.confirmed.replicas * best.recipe.tp


# -- traces ---------------------------------------------------------------------------------------------------


def arrivals(seed: int = 1) -> list[tuple[float, int, int]]:
    """Ten minutes at two a second, one of them at ten."""
    rng = random.Random(seed)  # noqa: S311
    now, out = 100.0, []
    while now < 700.0:
        rate = 10.0 if 330.0 <= now < 390.0 else 2.0
        now += rng.expovariate(rate)
        out.append((now, max(1, round(rng.lognormvariate(6.5, 0.5))), max(1, round(rng.expovariate(1 / 80)))))
    return out


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [f"{at:.6f},{inputs},{outputs}" for at, inputs, outputs in arrivals()]
    path = tmp_path / "requests.csv"
    path.write_text("arrival,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


def test_a_trace_is_read_once(trace: Path) -> None:
    rows = arrivals()
    found = read_trace(trace)
    times = np.array([row[0] for row in rows])
    inputs = np.array([row[1] for row in rows])
    gaps = np.diff(times)
    assert found.requests == len(rows)
    assert found.inputs == pytest.approx(inputs.mean())
    assert found.input_cv == pytest.approx(inputs.std() / inputs.mean())
    assert found.outputs == pytest.approx(np.mean([row[2] for row in rows]))
    assert found.output_cv == pytest.approx(np.std([row[2] for row in rows]) / found.outputs)
    assert found.longest_output == max(row[2] for row in rows)
    assert found.rate_per_s == pytest.approx(1 / gaps.mean(), rel=1e-5)
    assert found.arrival_cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-4)
    # the busiest of all windows of a minute that begin at a whole second
    starts = np.arange(0.0, 600.0)
    counts = [((times - times[0] >= start) & (times - times[0] < start + 60.0)).sum() for start in starts]
    assert found.busiest.requests == max(counts)
    assert found.busiest.rate_per_s == pytest.approx(max(counts) / 60.0)
    assert counts[round(found.busiest.start_s)] == max(counts)
    assert 225 <= found.busiest.start_s <= 235
    assert found.busiest.arrival_cv == pytest.approx(1.0, abs=0.15)
    inside = [one for one in found.around_peak() if one.arrival_s >= found.lead_s]
    assert len(inside) == found.busiest.requests


def test_a_trace_is_sized_for_its_busiest_minute(trace: Path) -> None:
    slo = "ttft=1s,itl=30ms"
    peak = size("llama-3.1-70b", trace, slo, hardware="h100", weights=["fp8"])
    mean = size("llama-3.1-70b", read_trace(trace), slo, hardware="h100", weights=["fp8"], peak=False)
    assert gpus(peak) > gpus(mean)
    assert peak.demand.rate == pytest.approx(10.0, rel=0.15)
    assert mean.demand.rate == pytest.approx(2.8, rel=0.15)
    assert "its busiest 60 s" in peak.notes[0]
    assert "its mean rate" in mean.notes[0]


def test_a_trace_is_played_itself(trace: Path) -> None:
    found = size(MODEL, trace, "ttft=1s,itl=30ms", hardware="h100", confirm=True, confirm_best=1)
    assert found.best is not None
    assert found.best.confirmed is not None
    assert found.best.confirmed.met
    assert found.best.confirmed.requests == len(arrivals())
    assert found.best.confirmed.simulated == found.best.replicas


def test_a_long_trace_is_played_around_its_peak(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.plan.serving_confirm._MOST", 100)
    found = size(MODEL, trace, "ttft=1s,itl=30ms", hardware="h100", confirm=True, confirm_best=1)
    assert found.best is not None
    assert found.best.confirmed is not None
    assert found.best.confirmed.requests == found.trace.busiest.requests  # type: ignore[union-attr]


def test_speed_brings_requests_closer(trace: Path) -> None:
    once, twice = read_trace(trace), read_trace(trace, speed=2.0)
    assert twice.rate_per_s == pytest.approx(2 * once.rate_per_s)
    assert twice.span_s == pytest.approx(once.span_s / 2)


def test_a_gap_between_windows_is_no_burst(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    times = [0.0, *(7200.0 + i for i in range(50))]
    path.write_text("arrival,input_tokens,output_tokens\n" + "".join(f"{at},100,10\n" for at in times))
    found = read_trace(path)
    assert found.busiest.requests == 50
    assert found.busiest.arrival_cv == pytest.approx(0.0, abs=1e-6)
    assert found.arrival_cv > 5


@pytest.mark.parametrize("rows", ["0,100,10\n", "5,100,10\n5,200,20\n"])
def test_one_moment_is_no_rate(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("arrival,input_tokens,output_tokens\n" + rows)
    with pytest.raises(ft.InputError, match="no rate"):
        read_trace(path)


def test_a_short_trace_is_its_own_window(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("arrival,input_tokens,output_tokens\n" + "".join(f"{i},100,10\n" for i in range(11)))
    found = read_trace(path)
    assert found.busiest.rate_per_s == found.rate_per_s == pytest.approx(1.0)
    assert found.window_s == 10.0


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "more", "field"),
    [
        (Demand("open", 100, 10, rate=0.0), {}, "rate"),
        (Demand("open", 100, 10, rate=-1.0), {}, "rate"),
        (Demand("open", 100, 10, rate=math.nan), {}, "rate"),
        (Demand("open", 100, 10), {}, "rate"),
        (Demand("closed", 100, 10, concurrency=4), {}, "load"),
        (asked(100, 10, 1.0, cached=100), {}, "cached_tokens"),
        (asked(100, 10, 1.0), {"hardware": []}, "hardware"),
        (asked(100, 10, 1.0), {"hardware": ["h100", "H100"]}, "hardware"),
        (asked(100, 10, 1.0), {"objective": "best"}, "objective"),
        (asked(100, 10, 1.0), {"max_gpus": 0}, "max_gpus"),
        (asked(100, 10, 1.0), {"tp": [0]}, "tp"),
        (asked(100, 10, 1.0), {"tp": [3]}, "tp"),
        (asked(100, 10, 1.0), {"weights": []}, "weights"),
        (asked(100, 10, 1.0), {"weights": ["fp7"]}, "weights"),
        (asked(100, 10, 1.0), {"kv": ["fp7"]}, "kv"),
        (asked(100, 10, 1.0), {"prices": {"l4": 1.0}}, "prices"),
        (asked(100, 10, 1.0), {"prices": {"h100": 0.0}}, "prices"),
        (asked(100, 10, 1.0), {"max_num_seqs": "many"}, "max_num_seqs"),
        (asked(100, 10, 1.0), {"max_num_batched_tokens": []}, "max_num_batched_tokens"),
        (asked(100, 10, 1.0), {"most_load": 1.5}, "most_load"),
        (asked(100, 10, 1.0), {"slo": "ttft=0"}, "slo"),
        (asked(100, 10, 1.0), {"recipe": ServingRecipe(dp=2)}, "dp"),
        (asked(131072, 10, 1.0), {}, "input_tokens"),
        (asked(4096, 10, 1.0), {"recipe": ServingRecipe(max_model_len=4096)}, "input_tokens"),
    ],
)
def test_what_means_nothing_is_refused(load: Demand, more: dict[str, Any], field: str) -> None:
    with pytest.raises(ft.InputError) as caught:
        size(MODEL, load, **{"slo": SLO, "hardware": "h100", **more})
    assert caught.value.to_dict()["field"] == field


def test_a_layout_that_cannot_be_is_left_out_beside_others() -> None:
    found = size(MODEL, asked(100, 10, 1.0), SLO, hardware="h100", tp=[1, 3])
    assert found.feasible
    wrong = [one for one in found.options if one.recipe.tp == 3]
    assert wrong
    assert "must divide" in wrong[0].why


def test_bursts_are_sized_for_their_peak() -> None:
    burst = {"peak_rate_per_s": 20.0, "duration_s": 5.0, "period_s": 60.0}
    found = size(MODEL, asked(1000, 100, 2.0, burst=burst), SLO, hardware="h100", **OWN)
    flat = size(MODEL, asked(1000, 100, 20.0), SLO, hardware="h100", **OWN)
    assert gpus(found) == gpus(flat)
    assert found.notes[0].startswith("sized for the bursts")
    played = size(MODEL, asked(1000, 100, 2.0, burst=burst), SLO, hardware="h100", confirm=True, confirm_best=1, **OWN).best
    assert played is not None
    assert played.confirmed is not None
    assert played.confirmed.met
    assert played.confirmed.simulated == played.replicas


def test_answers_of_one_token_have_no_itl() -> None:
    found = size(MODEL, asked(2000, 1, 20.0), "ttft=500ms,itl=1ms", hardware="h100", tp=[1], confirm=True, confirm_best=1, **OWN)
    assert found.best is not None
    assert found.best.itl_s == 0.0
    assert found.best.confirmed is not None
    assert found.best.confirmed.met
    assert found.binding == "prefill"
    cut = size(MODEL, asked(2000, 1, 20.0, longest=10.0), "ttft=500ms,itl=1ms", hardware="h100", tp=[1], **OWN)
    assert cut.feasible


def test_plain_data_is_json() -> None:
    found = size(MODEL, asked(1000, 100, 20.0), SLO, hardware="h100", confirm=True, confirm_best=1)
    text = json.dumps(found.to_dict(most=3), allow_nan=False)
    again = json.loads(text)
    assert len(again["options"]) == 3
    assert again["best"]["gpus"] == gpus(found)
    assert again["tried"] == len(found.options)
    assert again["best"]["confirmed"]["met"] is True


def test_a_trace_of_one_kind_is_a_demand() -> None:
    load = TraceLoad("x", 1.0, 10, 100.0, 20.0, 0.0, 0.1, 0.1, 200, 40, 0.0, 9.0, 1.0, 9.0, read_nothing()).demand()
    assert load.longest is None  # answers that hardly differ are taken as equal
    assert load.rate == 5.0


def read_nothing() -> Any:
    from foretell.plan.serving_trace import Busiest

    return Busiest(0.0, 45, 5.0, 1.2)


# -- speed ----------------------------------------------------------------------------------------------------

LOOPS = 4_000_000
"""200 configurations take as long as so many turns of a plain loop over a textbook formula, at most (1 s on a core of 2024)."""


def loop_per_s(seconds: float = 0.3) -> float:
    done, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        for batch in range(1, 101):
            step = max(16.06e9 / 3.35e12 + batch * 2048 * 131072 / 3.35e12, 2 * 8.03e9 * batch / 989e12)
            done += step > 0
    return done / seconds


def test_two_hundred_configurations_are_sized_in_a_second() -> None:
    more: dict[str, Any] = {
        "hardware": ["h100", "h200"],
        "weights": ["bf16", "fp8"],
        "tp": [1, 2, 4, 8],
        "max_num_seqs": [None, 32, 128, 256],
        "max_num_batched_tokens": [None, 2048, 16384, 4096],
    }
    took = math.inf
    for _ in range(3):
        start = time.process_time()
        found = size(MODEL, asked(1000, 300, 30.0), SLO, **more)
        took = min(took, time.process_time() - start)
    assert len(found.options) == 256
    assert took * 200 / 256 * loop_per_s() < LOOPS
