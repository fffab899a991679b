"""Measured training steps, replayed: an error budget, choices, baselines, and what is said of rows that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretell.evidence.baselines import constant_share, shares
from foretell.evidence.kinds import kind_of
from foretell.evidence.ranking import Choice, chosen, grouped_choices, ranking
from foretell.evidence.replay import replay, shipped
from foretell.evidence.training_replay import score


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return replay("training", shipped("training"))


def test_the_budget(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert summary["skipped"] == 0
    assert summary["by_kind"]["dense"]["mape_pct"] < 7
    assert summary["by_kind"]["experts"]["mape_pct"] < 15
    assert 85 < summary["coverage_pct"] < 97
    assert abs(summary["bias_pct"]) < 2
    assert summary["ranking_pct"] > 80
    assert summary["regret_pct"] < 3


def test_rows_that_repeat_another_are_reported_apart(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert summary["apart"]["drift"]["n"] == summary["apart"]["replicate"]["n"] == 45
    assert summary["n"] == len(report["rows"]) - 90


def test_simpler_answers_are_further_off(report: dict[str, Any]) -> None:
    summary = report["summary"]
    for other in summary["baselines"].values():
        assert other["n"] == summary["n"]
        assert other["mape_pct"] > 3 * summary["mape_pct"]
        assert other["p90_ape_pct"] > summary["p90_ape_pct"]
        assert other["ranking_pct"] < summary["ranking_pct"]
        assert other["regret_pct"] > summary["regret_pct"]
    assert summary["baselines"]["constant_mfu"]["ranking_pct"] == pytest.approx(
        50, abs=1
    )  # it cannot tell runs of one work apart


def test_shares_of_the_peak_are_those_of_the_shipped_rows(report: dict[str, Any]) -> None:
    """What the constant baseline knows is what the rows say, and no source sees its own."""
    reached = sorted(round(r["measured_mfu"], 4) for r in report["rows"] if r["split"] not in ("drift", "replicate"))
    assert reached == sorted(v for by in shares().values() for values in by.values() for v in values)
    assert constant_share("a", "hopper bf16", {"hopper bf16": {"a": [0.9]}}) is None


def test_order_and_regret() -> None:
    steps = [Choice("g", 1.0, 3.0), Choice("g", 1.02, 2.0), Choice("g", 2.0, 2.5), Choice("h", 1.0, 1.0)]
    assert ranking(steps[:3]) == (2, 1.0)  # the first two are too near to be told apart
    assert chosen(steps[:3]) == pytest.approx(0.02)
    found = grouped_choices(steps)
    assert (found["groups"], found["pairs"], found["ranking_pct"], found["regret_pct"]) == (1, 2, 50.0, 2.0)
    tied = [Choice("g", 1.0, 5.0), Choice("g", 2.0, 5.0)]
    assert grouped_choices(tied)["ranking_pct"] == 50.0
    assert chosen(tied) == pytest.approx(0.5)
    assert grouped_choices([])["ranking_pct"] is None


def row(**changes: Any) -> dict[str, Any]:
    """Llama-3 8B on a node of H100; ``changes``: dotted paths, None takes a field away."""
    base: dict[str, Any] = {
        "id": "x",
        "source": {"title": "somebody", "ref": "somewhere", "date": "2025-03"},
        "model": {"name": "Llama3-8B", "config": dict(LLAMA_8B)},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8, "gpus_per_node": 8, "fabric": {"intra": "nvlink4"}},
        "software": {"framework": "megatron-core", "date": "2025-03"},
        "training": {
            "micro_batch": 1,
            "grad_accum": 16,
            "global_batch": 128,
            "seq_len": 8192,
            "dtypes": {"param": "bf16", "compute": "bf16"},
            "recompute": {"mode": "none"},
        },
        "parallel": {"dp": 8, "tp": 1, "pp": 1, "zero": 1, "sharding": "distopt"},
        "measured": {"step_s": 13.0, "tokens_per_s_per_gpu": 10082.0},
        "confidence": 3,
        "split": "calib",
    }
    for path, value in changes.items():
        *parts, last = path.split("__")
        place = base
        for part in parts:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return base


LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_a_step_is_in_seconds_with_its_interval() -> None:
    found = score(row())
    assert (found.metric, found.measured, found.kind) == ("step_s", 13.0, "dense")
    assert found.predicted == pytest.approx(13, rel=0.25)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.predicted < found.high  # type: ignore[operator]
    assert found.regime == "megatron dense"
    tokens = score(row(measured__step_s=None))
    assert tokens.measured == pytest.approx(128 * 8192 / 8 / 10082)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"software__framework": "abacus"}, "not-modelled: framework 'abacus'"),
        ({"software__framework": "other", "software__name": "our loop"}, "not-modelled: framework 'our loop'"),
        ({"hardware__gpu": "h900"}, "not-modelled: hardware='h900'"),
        ({"hardware__gpus": 16}, "underspecified: dp x tp x pp x cp = 8 x 1 x 1 x 1 = 8 is not the number of devices, 16"),
        ({"training__global_batch": 100}, "underspecified: a global batch of 100 is no multiple"),
        ({"training__global_batch": None, "training__grad_accum": None}, "underspecified: neither global_batch nor grad_accum"),
        ({"training__seq_len": None}, "underspecified: training.seq_len is missing"),
        ({"training__dtypes__compute": "int8"}, "not-modelled: products in int8"),
        ({"training__dtypes__compute": "nvfp4"}, "not-modelled: "),
        ({"training__dtypes": "bf16"}, "underspecified: training.dtypes is no object"),
        ({"training__micro_batch": "many"}, "underspecified: training.micro_batch='many'"),
        ({"training__grad_accum": 10**9}, "underspecified: training.grad_accum=1000000000"),
        ({"training__peft": {"kind": "lora"}}, "underspecified: adapter rank or targets"),
        (
            {"training__peft": {"kind": "lora", "rank": 8, "targets": "q_proj"}},
            "underspecified: training.peft.targets is no list",
        ),
        ({"training__cuda_graph": {"scope": ["attn"]}}, "underspecified: training.cuda_graph.impl is missing"),
        ({"training__moe": {"capacity_factor": float("nan")}}, "underspecified: training.moe.capacity_factor"),
        ({"training__compile": "yes"}, "underspecified: training.compile is neither"),
        ({"software__date": "yesterday"}, "underspecified: software.date 'yesterday' is no date"),
        ({"parallel__pp": 4096}, "underspecified: parallel.pp=4096"),
        ({"parallel": [8]}, "underspecified: parallel is no object"),
        ({"measured__step_s": None, "measured__tokens_per_s_per_gpu": None}, "underspecified: measured.step_s is missing"),
        ({"measured__step_s": 0}, "underspecified: measured.step_s"),
        ({"measured": 7}, "underspecified: measured is no object"),
        ({"model__config": {}}, "not-modelled: "),
        ({"model__config__num_hidden_layers": "thirty"}, "not-modelled: "),
        ({"split": "secret"}, "underspecified: split 'secret' is none of"),
        ({"source": None, "confidence": "x"}, "underspecified: source is missing"),
        ({"assumed": ["training.optimizer"]}, "underspecified: assumed is no list of objects"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(changes: dict[str, Any], reason: str) -> None:
    found = score(row(**changes))
    assert found.predicted is None
    assert found.skipped is not None
    assert found.skipped.startswith(reason)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_skipped_row_is_listed_and_counted() -> None:
    kind = kind_of("training")
    rows = [score(row()), score(row(software__framework="abacus"))]
    extra = kind.extra(rows)
    assert extra["baselines"]["constant_mfu"]["n"] == 1
    assert extra["ranking_pct"] is None
