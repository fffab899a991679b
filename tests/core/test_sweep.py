"""A sweep answers what `solve` answers, row by row, and says why a row cannot run."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from core_models import mixtral, small
from foretell.core.solver import TrainingMemoryModel

MODEL = TrainingMemoryModel()


def agree(model: ft.Workload, row: dict[str, Any], given_names: list[str]) -> None:
    """Compare one row with `solve`."""
    asked = {name: row[name] for name in given_names}
    if "batch_size" not in asked:
        asked["batch_size"] = asked.pop("micro_batch") * row["dp_size"] * row["gradient_accumulation_steps"]
    if not row["valid"]:
        with pytest.raises(ft.InputError):
            MODEL.solve(model, "h100", **asked)
        return
    one = MODEL.solve(model, "h100", **asked)
    assert one.total_memory_bytes == pytest.approx(row["total_memory_bytes"], rel=1e-9)
    assert one.allocated_memory_bytes == pytest.approx(row["allocated_memory_bytes"], rel=1e-9)
    assert one.reserved_memory_bytes == pytest.approx(row["reserved_memory_bytes"], rel=1e-9)
    assert one.feasible == row["feasible"]
    assert one.verdict == row["verdict"]
    assert one.micro_batch == row["micro_batch"]
    overhead = sum(row[f"{n}_bytes"] for n in ("allocator_slack", "library_workspaces", "cuda_context", "nccl"))
    assert one.breakdown_bytes["framework_overhead"] == pytest.approx(overhead, rel=1e-6)
    for name in ("weights", "optimizer_state"):
        assert one.breakdown_bytes[name] == pytest.approx(row[f"{name}_bytes"], rel=1e-9)


@settings(max_examples=12)
@given(
    st.sampled_from(["generic", "torchtitan", "megatron-core", "deepspeed"]),
    st.sampled_from(["none", "selective", "full"]),
    st.integers(0, 2**31),
)
def test_one_by_one_equals_vectorised(framework: str, mode: str, seed: int) -> None:
    axes: dict[str, Any] = {
        "framework": framework,
        "precision": "bf16",
        "activation_checkpointing": mode,
        "pp_size": [1, 2, 4],
        "zero_stage": [0, 1, 3],
        "tp_size": [1, 2, 3, 8],
        "dp_size": [1, 2, 6],
        "batch_size": [6, 24],
        "gradient_accumulation_steps": [1, 2, 4],
        "seq_len": [512, 1000],
    }
    table = MODEL.sweep(small(), "h100", **axes)
    assert len(table) == 3 * 3 * 4 * 3 * 2 * 3 * 2
    for index in np.random.default_rng(seed).integers(0, len(table), 12):
        agree(small(), table.row(int(index)), list(axes))


def test_experts_one_by_one_equal_vectorised() -> None:
    model = mixtral(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, intermediate_size=512)
    axes: dict[str, Any] = {
        "framework": "megatron-core",
        "precision": "bf16",
        "pp_size": [1, 2],
        "ep_size": [1, 2, 3, 8],
        "etp_size": [1, 2],
        "tp_size": [1, 2],
        "cp_size": [1, 2],
        "dp_size": [4, 8],
        "micro_batch": [1, 2],
        "gradient_accumulation_steps": [1, 4],
        "seq_len": [1024],
    }
    table = MODEL.sweep(model, "h100", **axes)
    for index in range(0, len(table), 17):
        agree(model, table.row(index), list(axes))


def test_attention_windows_split_the_rows() -> None:
    model = small(model_type="gemma3_text", sliding_window=1000, head_dim=32)
    axes: dict[str, Any] = {
        "framework": "hf-trainer",
        "precision": ["bf16", "fp32"],
        "seq_len": [500, 1000, 1001, 4096],
        "batch_size": [1, 4],
        "gradient_accumulation_steps": 1,
    }
    table = MODEL.sweep(model, "h100", **axes)
    for index in range(len(table)):
        agree(model, table.row(index), list(axes))


def test_reasons_say_what_is_wrong() -> None:
    table = MODEL.sweep(small(), "h100", batch_size=[8, 9], dp_size=8, tp_size=[1, 3], zero_stage=[0, 1])
    by_reason = {str(reason): int((table["reason"] == reason).sum()) for reason in np.unique(table["reason"])}
    assert by_reason == {
        "": 2,
        "batch_size is not a multiple of dp x micro-batches": 4,
        "tp does not divide the attention heads": 2,
    }
    assert np.isnan(table["total_memory_bytes"][~table["valid"]]).all()
    refused = MODEL.sweep(small(), "h100", batch_size=8, framework=["fsdp2", "generic"], zero_stage=1, dp_size=8)
    assert refused["valid"].tolist() == [False, True]
    assert "is not a ZeRO stage of fsdp2" in refused["reason"][0]


def test_broadcast_walks_the_axes_together() -> None:
    table = MODEL.sweep(
        small(), "h100", product=False, batch_size=[8, 16, 32], dp_size=[1, 2, 4], precision=["bf16", "fp32", "bf16"]
    )
    assert len(table) == 3
    assert table["micro_batch"].tolist() == [8, 8, 8]
    assert table["precision"].tolist() == ["bf16", "fp32", "bf16"]
    with pytest.raises(ft.InputError, match="has 2 values where another axis has 3"):
        MODEL.sweep(small(), "h100", product=False, batch_size=[8, 16, 32], dp_size=[1, 2])


def test_the_best_row_fits() -> None:
    table = MODEL.sweep(small(), "t4", micro_batch=[1, 64, 4096, 65536], seq_len=[512, 4096])
    best = table.best("micro_batch", largest=True)
    assert best["feasible"]
    assert best["micro_batch"] == table["micro_batch"][table["feasible"]].max()
    assert table.best()["total_memory_bytes"] == np.nanmin(table["total_memory_bytes"])
    assert MODEL.sweep(small(), "t4", micro_batch=10**8).best() is None
    with pytest.raises(ft.InputError, match="is no column"):
        table.best("speed")


def test_columns_are_arrays_of_one_length() -> None:
    table = MODEL.sweep(small(), "h100", micro_batch=[1, 2], optimizer=["adamw", "sgd"])
    assert {len(column) for column in table.columns.values()} == {4}
    terms = [c for n, c in table.columns.items() if n.endswith("_bytes") and "_memory_" not in n]
    assert np.sum(terms, axis=0) == pytest.approx(table["total_memory_bytes"])
    lean = MODEL.sweep(small(), "h100", micro_batch=[1, 2], breakdown=False)
    assert "weights_bytes" not in lean.columns


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "batch_size is needed"),
        ({"batch_size": []}, "has no values"),
        ({"batch_size": [8, 0]}, "batch_size=0"),
        ({"batch_size": [8, True]}, "batch_size=True"),
        ({"batch_size": 8, "colour": [1]}, "is not a setting"),
        ({"batch_size": range(10**6), "seq_len": range(1, 10**4)}, "combinations are asked for|batch_size=0"),
    ],
)
def test_axes_that_cannot_be_used(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        MODEL.sweep(small(), "h100", **axes)


def test_a_data_frame_needs_polars(tmp_path: Path) -> None:
    table = MODEL.sweep(small(), "h100", micro_batch=[1, 2], optimizer=["adamw", "sgd"])
    if importlib.util.find_spec("polars") is None:
        with pytest.raises(ft.ExtraError, match=r"foretell\[sweep\]"):
            table.to_parquet(tmp_path / "t.parquet")
        return
    frame = table.to_polars()
    assert frame.height == 4
    table.to_parquet(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size > 0


def test_the_signature_is_the_documented_one() -> None:
    """Names, order and defaults that others rely on; ours come after."""
    documented = {
        "seq_len": 2048,
        "precision": "fp16",
        "optimizer": "adam",
        "activation_checkpointing": "selective",
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "zero_stage": 0,
        "gradient_accumulation_steps": 1,
        "trainable_fraction": 1.0,
        "communication_buffer_fraction": 0.05,
    }
    parameters = inspect.signature(MODEL.solve).parameters
    assert list(parameters)[:15] == ["model", "hardware", "batch_size", *documented]
    assert {name: parameters[name].default for name in documented} == documented


def test_axes_may_be_arrays() -> None:
    model = TrainingMemoryModel()
    arrays = model.sweep("gpt-2", "h100", batch_size=np.array([8, 16]), tp_size=np.arange(1, 3), zero_stage=np.array([0, 1]))
    lists = model.sweep("gpt-2", "h100", batch_size=[8, 16], tp_size=[1, 2], zero_stage=[0, 1])
    assert len(arrays) == 8
    assert (arrays["total_memory_bytes"] == lists["total_memory_bytes"]).all()
    assert len(model.sweep("gpt-2", "h100", batch_size=np.int64(8))) == 1


def test_a_table_prints_its_first_rows_and_finds_the_best_of_a_verdict() -> None:
    table = TrainingMemoryModel().sweep("llama-3-8b", "h100", batch_size=8, tp_size=[1, 2, 4, 8], precision=["bf16", "fp32"])
    text = str(table)
    assert "Table of 8 rows" in text
    assert "tp_size" in text
    assert len(text.splitlines()) == 10
    sure = table.best(verdict="fits")
    assert sure is None or sure["verdict"] == "fits"
    assert table.best("total_memory_bytes", verdict=("does_not_fit", "uncertain"))["verdict"] != "fits"
    with pytest.raises(ft.InputError, match="no verdict"):
        table.best(verdict="perhaps")


def test_a_pipeline_layout_is_a_setting_and_an_axis() -> None:
    model = TrainingMemoryModel()
    even = model.solve("gpt-2", "h100", 4, pp_size=2, gradient_accumulation_steps=4)
    uneven = model.solve("gpt-2", "h100", 4, pp_size=2, gradient_accumulation_steps=4, pp_layout=[8, 4])
    assert [stage["layers"] for stage in uneven.per_stage] == [8, 4]
    table = model.sweep("gpt-2", "h100", batch_size=4, pp_size=2, gradient_accumulation_steps=4, pp_layout=[None, (8, 4)])
    assert list(table["total_memory_bytes"]) == pytest.approx([even.total_memory_bytes, uneven.total_memory_bytes])


def test_defaults_left_alone_are_listed_and_quantities_are_found() -> None:
    result = TrainingMemoryModel().solve("gpt-2", "h100", 4)
    assert {"sequence of 2048", "fp16 mixed precision", "optimizer adam"} <= set(result.assumed)
    given = TrainingMemoryModel().solve("gpt-2", "h100", 4, seq_len=2048, precision="fp16")
    assert not {"sequence of 2048", "fp16 mixed precision"} & set(given.assumed)
    assert {"total_memory", "interval"} <= set(dir(result))
    assert max(len(line) for line in result.explain().splitlines()) <= 80


@pytest.mark.parametrize("framework", ["peft", "deepspeed", "torchtitan"])
@pytest.mark.parametrize("noted", [False, True])
def test_a_sweep_judges_as_solve_does(framework: str, noted: bool) -> None:
    """At every size of the device: the same errors stand for a run, whether it is asked alone or among many."""
    model = ft.load_model({**small().architecture.config, **({"num_experts_unknown": 4} if noted else {})})
    assert bool(model.notes) == noted
    asked: dict[str, Any] = {"framework": framework, "precision": "bf16", "batch_size": 1, "seq_len": 1024}
    need = MODEL.solve(model, "h100", **asked).total_memory_bytes
    for room in range(70, 145, 3):
        card = ft.HardwareNode("card", round(need * room / 100), 1e12, {"bf16": 1e14}, compute_capability="9.0")
        alone = MODEL.solve(model, card, **asked)
        assert MODEL.sweep(model, card, **asked).row(0)["verdict"] == alone.verdict
