"""Measured rows and Python calls with values of every wrong kind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell as ft
from attack_small import SMALL
from foretell.core.forecast import forecast
from foretell.core.solver import TrainingMemoryModel
from foretell.evidence.memory_replay import score
from foretell.recipe import Adapter, Quantization, Recompute

ROW: dict[str, Any] = {
    "id": "mine-1",
    "confidence": 3,
    "source": {"title": "a measured run", "date": "2025-01-01"},
    "software": {"framework": "fsdp2", "version": "2.7", "date": "2025-04-23"},
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 2},
    "model": {"name": "small", "config": SMALL},
    "training": {"micro_batch": 1, "seq_len": 512, "optimizer": "adamw", "dtypes": {"compute": "bf16"}},
    "parallel": {"dp": 2, "zero": 3},
    "measured": {"metric": "allocated", "gib": 1.0},
}
JUNK: tuple[Any, ...] = (
    None, -1, 0, True, 1.5, 10**30, math.nan, math.inf, "x", "", "8", [], [1], {}, {"a": 1}, b"x", object(), 1j,
    np.array([1, 2]), np.float32(4), range(3), "a" * 10**6,
)  # fmt: skip
JSON = tuple(value for value in JUNK if value is None or isinstance(value, bool | int | float | str | list | dict))


def _paths(data: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    out = []
    for key, value in data.items():
        out.append((*above, key))
        if isinstance(value, dict) and key != "config":
            out += _paths(value, (*above, key))
    return out


@pytest.mark.parametrize("path", [path for path in _paths(ROW) if path != ("id",)], ids=".".join)
def test_a_row_of_the_wrong_shape_is_left_out_with_a_reason(path: tuple[str, ...]) -> None:
    for value in (*JSON, ...):
        row = json.loads(json.dumps(ROW))
        place = row
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        if value is ...:
            del place[path[-1]]
        found = score(row)
        if found.skipped is None:
            assert found.predicted is not None
            assert 0 < found.predicted < math.inf
        else:
            assert found.skipped.startswith(("underspecified: ", "not-modelled: "))


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"3", b"{}", b'{"id": 1', b"[" * 100_000, b"\xff\xfe", b"\0", b'{"id":"a","measured":{},"id":"b"}', b"9" * 5000],
)
def test_a_line_that_is_no_row(cli: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    assert cli("validate", "memory", "--data", path, "--json").error["where"] == f"{path}:1"


def test_a_file_of_rows_that_cannot_be_read(cli: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", tmp_path, "/dev/zero", "/nowhere", "\0", ""):
        assert cli("validate", "memory", "--data", name, "--json").error["field"] == "data"


def test_rows_are_printed_without_terminal_codes(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | {"id": "\x1b[31m-1"}) + "\n" + json.dumps(ROW | {"training": 3, "id": "\x07"}))
    assert not set(cli("validate", "memory", "--data", path).out) & set("\x1b\x07")


def _try(call: Any) -> Any:
    """Return what a call gives; errors of ours are fine, others are not."""
    with contextlib.suppress(ft.ForetellError):
        return call()
    return None


@pytest.mark.parametrize("name", [spec.name for spec in dataclasses.fields(ft.TrainingRecipe)])
def test_recipes(name: str) -> None:
    for value in JUNK:
        made = ft.TrainingRecipe(**{name: value})
        found = _try(lambda made=made: forecast(SMALL, "h100", made))
        assert found is None or 0 < found.total_bytes < math.inf


@pytest.mark.parametrize("name", [spec.name for spec in dataclasses.fields(ft.Parallelism)])
def test_parallelisms(name: str) -> None:
    for value in JUNK:
        made = ft.Parallelism(**{name: value})
        found = _try(lambda made=made: forecast(SMALL, "h100", None, made))
        assert found is None or 0 < found.total_bytes < math.inf


@pytest.mark.parametrize("kind", [Adapter, Quantization, Recompute])
def test_parts_of_a_recipe(kind: type) -> None:
    for spec in dataclasses.fields(kind):
        for value in JUNK:
            parts: dict[str, Any] = {"adapter": Adapter()} if kind is Quantization else {}
            parts[kind.__name__.casefold()] = kind(**({"mode": "selective"} if kind is Recompute else {}) | {spec.name: value})
            found = _try(lambda parts=parts: forecast(SMALL, "h100", ft.TrainingRecipe(**parts)))
            assert found is None or 0 < found.total_bytes < math.inf


@pytest.mark.parametrize("name", [spec.name for spec in dataclasses.fields(ft.HardwareNode)])
def test_cards(name: str) -> None:
    card: dict[str, Any] = {"name": "c", "memory_bytes": 80e9, "memory_bandwidth_bytes_per_s": 2e12, "peak_flops": {"bf16": 4e14}}
    for value in JUNK:
        found = _try(lambda value=value: forecast(SMALL, ft.HardwareNode(**card | {name: value})))
        assert found is None or 0 < found.available_bytes < math.inf


@pytest.mark.parametrize(
    "name", ["trainable_fraction", "communication_buffer_fraction", "hsdp_replicas", "recompute_layers", "dropout"]
)
def test_sweeps(name: str) -> None:
    for value in JUNK:
        found = _try(
            lambda value=value: TrainingMemoryModel().sweep(SMALL, "h100", batch_size=[8, 16], dp_size=2, **{name: value})
        )
        if found is not None:
            total = found["total_memory_bytes"]
            assert np.all((total > 0) | np.isnan(total))
            assert np.all(np.isfinite(total[np.asarray(found["valid"])]))


def test_a_sweep_refuses_what_a_single_run_refuses() -> None:
    found = TrainingMemoryModel().sweep(SMALL, "h100", batch_size=8, dp_size=[2, 4], framework="fsdp2", hsdp_replicas=4)
    assert list(found["valid"]) == [False, True]


def test_no_sequence_length_means_the_default() -> None:
    solver = TrainingMemoryModel()
    assert solver.solve(SMALL, "h100", 8, seq_len=None).total_memory_bytes == solver.solve(SMALL, "h100", 8).total_memory_bytes  # type: ignore[arg-type]


def test_references() -> None:
    for value in JUNK:
        if isinstance(value, dict) or value is None:
            continue
        for load in (ft.load_model, ft.load_hardware, ft.load_fleet, ft.load_datacenter):
            _try(lambda load=load, value=value: load(value))
        _try(lambda value=value: ft.register("hardware", value))
        _try(lambda value=value: ft.register(value, {"id": "x"}))


@pytest.mark.parametrize("name", ["architecture", "name", "layers", "parameters"])
def test_workloads(name: str) -> None:
    plain: dict[str, Any] = {"name": "x", "layers": 4, "hidden_dim": 512, "heads": 8, "ffn_dim": 1024, "vocab_size": 1000}
    for value in (value for value in JUNK if not isinstance(value, np.ndarray)):
        found = _try(lambda value=value: ft.TransformerWorkload(**plain | {name: value}))
        assert found is None or found.parameters > 0
