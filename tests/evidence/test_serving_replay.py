"""Measured servers, replayed: an error budget by load, suspicious rows, and what is said of rows that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.evidence.replay import replay, shipped
from foretell.evidence.serving_replay import score

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return replay("serving", shipped("serving"))


def row(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": "x",
        "source": {"title": "somebody"},
        "model": {"name": "8B", "config": CONFIG},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "engine": {"name": "vllm", "version": "0.11.0"},
        "serving": {"weights_dtype": "bf16", "kv_dtype": "bf16", "tp": 1},
        "load": {"kind": "single", "input_tokens": 1000, "output_tokens": 200},
        "measured": {"ttft_s": 0.03, "itl_s": 0.0072, "statistic": "mean", "itl_kind": "tpot"},
        "confidence": 3,
    }
    for key, value in changes.items():
        base[key] = base[key] | value if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return base


def test_the_budget(report: dict[str, Any]) -> None:
    summary = report["summary"]
    loads = summary["by_load"]
    assert loads["static itl_s"]["median_ape_pct"] < 8
    assert loads["single ttft_s"]["median_ape_pct"] < 15
    assert loads["static output_tokens_per_s"]["median_ape_pct"] < 12
    assert loads["offline output_tokens_per_s"]["median_ape_pct"] < 17
    assert summary["by_metric"]["kv_tokens"]["median_ape_pct"] < 6
    assert 80 < summary["coverage_pct"] < 98
    assert summary["skipped"] < 0.1 * len(report["rows"])


def test_simpler_answers_stand_beside_it(report: dict[str, Any]) -> None:
    ours, others = report["summary"]["by_load"], report["summary"]["baselines"]
    for name in ("static itl_s", "offline output_tokens_per_s"):
        for other in others.values():
            assert ours[name]["median_ape_pct"] < 0.6 * other["by_load"][name]["median_ape_pct"]


def test_whole_system_bands_are_reported_apart(report: dict[str, Any]) -> None:
    assert report["summary"]["apart"]["mlperf"]["n"] > 0
    assert not any("MLPerf" in name for name in report["summary"]["by_source"])


def test_one_row_for_each_measured_value() -> None:
    found = score(row())
    assert [one.metric for one in found] == ["ttft_s", "itl_s"]
    for one in found:
        assert one.error is not None
        assert abs(one.error) < 0.3
        assert one.low is not None
        assert one.predicted is not None
        assert one.low < one.predicted
        assert one.naive is not None
    itl = found[1].to_dict()
    assert itl["naive"] < itl["measured"]
    assert json.dumps(itl)


def test_throughput_of_one_accelerator_is_a_share() -> None:
    static = {"kind": "static", "batch": 64, "input_tokens": 128, "output_tokens": 128}
    total, each = (
        score(
            row(
                hardware={"gpus": 4},
                serving={"tp": 4},
                load=static,
                measured={"output_tokens_per_s": 1.0, "throughput_scope": scope},
            )
        )
        for scope in ("total", "per_gpu")
    )
    one, whole = (next(r for r in found if r.metric == "output_tokens_per_s").predicted for found in (each, total))
    assert one is not None
    assert whole == pytest.approx(4 * one)


def test_what_no_server_can_have_done_is_flagged() -> None:
    quick = score(row(measured={"itl_s": 0.001}))[1]
    assert quick.suspicious is not None
    assert "read" in quick.suspicious
    load = {"kind": "offline", "input_tokens": 4000, "output_tokens": 100, "requests": 5000}
    cached = score(row(load=load, measured={"output_tokens_per_s": 9000.0, "throughput_scope": "total"}))
    assert any("peak" in (one.suspicious or "") for one in cached)
    assert all(one.suspicious is None for one in score(row()))


def test_a_deployment_that_cannot_start_is_a_verdict() -> None:
    found = score(
        row(
            hardware={"gpu": "rtx4090"},
            load={"kind": "capacity"},
            measured={"kv_tokens": 0, "kv_bytes": -1e9, "feasible": False},
            serving={"weights_dtype": "bf16", "max_model_len": 8192, "gpu_memory_utilization": 0.6},
        )
    )
    verdict = next(one for one in found if one.metric == "feasible")
    assert (verdict.outcome, verdict.verdict) == ("oom", "does_not_fit")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"load": {"kind": "odd"}}, "underspecified: load.kind"),
        ({"load": {"output_tokens": None}}, "underspecified"),
        ({"hardware": {"gpu": "h9000"}}, "not-modelled"),
        ({"hardware": {"gpus": 0}}, "underspecified"),
        ({"serving": {"tp": "two"}}, "underspecified"),
        ({"serving": {"tp": 3}}, "not-modelled"),
        ({"serving": {"weights_dtype": "q7"}}, "not-modelled"),
        ({"engine": {"name": "mystery"}}, "not-modelled"),
        ({"model": {"config": {"model_type": "unknown-type"}}}, "not-modelled"),
        ({"serving": {"speculative": {"method": "mtp"}}}, "underspecified: serving.speculative.acceptance_length"),
        ({"measured": {"itl_s": float("nan")}}, ""),
        ({"measured": {"itl_s": -1.0}}, ""),
        ({"assumed": 3}, "underspecified: assumed"),
    ],
)
def test_rows_that_cannot_be_read_say_why(changes: dict[str, Any], reason: str) -> None:
    found = score(row(**changes))
    assert found
    assert any(one.skipped is not None for one in found)
    assert all((one.skipped or "").startswith(("underspecified", "not-modelled")) for one in found if one.skipped)
    assert any(reason in (one.skipped or "") for one in found)


def test_a_file_of_rows_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row(id=str(i))) for i in range(3)), encoding="utf-8")
    found = replay("serving", file)
    assert found["summary"]["n"] == 6
    assert json.dumps(found)
