"""Checkpoints: their bytes, the time that training waits, the time until they are safe, the time to read them back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretell as ft
from core_models import llama, llama_2_7b, mixtral, small
from foretell.core.solver import CheckpointModel, CheckpointResult
from foretell.operations.saving import MODES, transfer_s
from foretell.units import quantity
from sweep_rows import agree, unsaid

MODEL = CheckpointModel()
GIB, TIB = 2**30, 2**40


def ask(model: Any = None, **settings: Any) -> CheckpointResult:
    return MODEL.solve(llama() if model is None else model, "h100", **settings)


def test_bloom_s_checkpoints_are_14_bytes_a_parameter() -> None:
    """176e9 parameters: 2.3 TiB, 329 GiB of bf16 weights, 40 s by 384 writers (61.6 GB/s together)."""
    asked: dict[str, Any] = {"framework": "megatron-deepspeed", "precision": "bf16", "n_writers": 384}
    found = MODEL.solve("bloom-176b", "a100-80gb", filesystem_limit_gbs=61.6, **asked)
    parameters = ft.load_model("bloom-176b").parameters
    assert found.checkpoint_size_bytes == 14 * parameters
    assert found.checkpoint_size_bytes / TIB == pytest.approx(2.3, abs=0.06)
    assert found.checkpoint_size.to("GiB").magnitude == pytest.approx(2294.78, rel=0.002)
    weights = MODEL.solve("bloom-176b", "a100-80gb", content="weights", **asked)
    assert weights.checkpoint_size_bytes / GIB == pytest.approx(329, rel=0.005)
    assert found.blocking_time_s == pytest.approx(40, rel=0.01)
    assert found.mfu_penalty_pct < 0.4
    open_storage = MODEL.solve("bloom-176b", "a100-80gb", **asked)
    low, high = open_storage.blocking_time_interval_s
    assert low < 40 < high * 1.01


def test_530_billion_parameters_at_20_gbit_take_42_minutes() -> None:
    """Megatron-Turing NLG: 12 bytes a parameter, since the framework keeps no 16-bit copy."""
    mt_nlg = ft.load_model(
        {"model_type": "gpt2", "n_embd": 20480, "n_layer": 105, "n_head": 128, "n_positions": 2048, "vocab_size": 51200}
    )
    assert mt_nlg.parameters == pytest.approx(530e9, rel=0.002)
    found = MODEL.solve(mt_nlg, "a100-80gb", n_writers=280, filesystem_limit_gbs=2.5, framework="deepspeed", zero_stage=3)
    assert found.checkpoint_size_bytes == pytest.approx(12 * mt_nlg.parameters)
    assert found.save_time.to("minute").magnitude == pytest.approx(42, rel=0.015)
    assert transfer_s(530e9 * 12, 20e9 / 8) / 60 == pytest.approx(42.4)
    assert found.stalls_collectives
    assert any("600 s that collectives wait" in line for line in found.constraint_trace)


def test_three_times_of_one_checkpoint() -> None:
    """405B on 8,960 GPUs (ByteCheckpoint): still for 0.59 s, safe after 51.06 s, read back in 129.49 s."""
    found = MODEL.solve("llama-3.1-405b", "h100", n_writers=8960, mode="async", precision="bf16", framework="megatron")
    block, write, load = found.blocking_time_interval_s, found.write_time_interval_s, found.load_time_interval_s
    assert block[0] < 0.59 < block[1]
    assert write[0] + block[0] < 51.06 < write[1] + block[1]
    assert load[0] < 129.49 < load[1]
    assert found.save_time_s == pytest.approx(found.blocking_time_s + found.write_time_s)
    assert found.durability_lag_s == pytest.approx(found.write_time_s)
    assert found.load_time_s > found.save_time_s


def test_beside_training_the_block_shrinks_and_the_save_does_not() -> None:
    sync, beside, memory = (ask(n_writers=8, mode=mode) for mode in MODES)
    assert beside.blocking_time_s < 0.1 * sync.blocking_time_s
    assert beside.save_time_s > sync.save_time_s
    assert sync.durability_lag_s == memory.durability_lag_s == 0
    assert memory.save_time_s == memory.load_time_s == memory.blocking_time_s == beside.blocking_time_s
    assert any("lost with them" in note for note in memory.notes)
    assert not any("storage takes in" in text or "writer takes in" in text for text in memory.assumed)
    assert "to the memory of the hosts" in memory.constraint_trace[0]
    told = ask(mode="memory", writer_bandwidth=1e9, read_bandwidth="5 GB/s")
    assert "no effect on a copy in memory: writer_bandwidth, read_bandwidth" in told.notes


@pytest.mark.parametrize(
    ("asked", "bytes_per_parameter"),
    [
        ({}, 14),
        ({"precision": "fp32"}, 12),
        ({"precision": "bf16-true"}, 6),
        ({"optimizer": "sgd", "precision": "bf16"}, 6),
        ({"optimizer": "adamw8bit", "precision": "bf16"}, 8.03),
        ({"framework": "deepspeed", "zero_stage": 3}, 12),
        ({"content": "weights"}, 2),
        ({"trainable_fraction": 0}, 2),
    ],
)
def test_bytes_of_a_parameter_follow_the_run(asked: dict[str, Any], bytes_per_parameter: float) -> None:
    found = ask(llama_2_7b(), **asked)
    assert found.checkpoint_size_bytes / llama_2_7b().parameters == pytest.approx(bytes_per_parameter, rel=0.01)
    assert sum(found.breakdown_bytes.values()) == pytest.approx(found.checkpoint_size_bytes)
    assert sum(term.bytes for term in found.terms()) == pytest.approx(found.checkpoint_size_bytes)


def test_of_an_adapter_run_the_adapters_are_saved() -> None:
    whole, adapters = ask(), ask(lora_rank=16)
    assert adapters.checkpoint_size_bytes < 0.02 * whole.checkpoint_size_bytes
    assert "frozen base is not saved again" in adapters.notes[0]


def test_every_expert_is_saved_once() -> None:
    assert ask(mixtral()).checkpoint_size_bytes == pytest.approx(14 * mixtral().parameters)


@pytest.mark.parametrize("rate", ["2 GB/s", "16 Gbit/s", 2e9, quantity(2e9, "byte/s")])
def test_a_rate_says_its_unit_or_is_bytes_a_second(rate: Any) -> None:
    assert ask(writer_bandwidth=rate).write_time_s == pytest.approx(14 * llama().parameters / 2e9)
    binary = ask(writer_bandwidth="2 GiB/s")
    assert binary.write_bandwidth_bytes_per_s == 2 * GIB
    assert binary.write_bandwidth.to("GiB/s").magnitude == pytest.approx(2)


def test_writers_share_the_storage_until_it_is_full() -> None:
    times = [ask(n_writers=n, writer_bandwidth="2 GB/s", filesystem_limit_gbs=100).write_time_s for n in (1, 10, 50, 1000)]
    size = 14 * llama().parameters
    assert times == pytest.approx([size / 2e9, size / 20e9, size / 100e9, size / 100e9])
    one = ask(n_writers=64, writer_bandwidth="2 GB/s", format="consolidated")
    assert (one.files, one.file_bytes, one.per_device_bytes) == (1, size, size)
    assert one.write_time_s == times[0]
    assert "1 file of" in one.explain()
    assert "64 files of" in ask(n_writers=64).explain()


def test_a_save_that_is_late_for_the_next_is_not_feasible() -> None:
    late = ask(checkpoint_interval_hours=0.01, mode="async", writer_bandwidth="1 GB/s")
    assert (late.feasible, late.storage_bottleneck) == (False, True)
    assert late.constraint_trace[-1].startswith("the save is not done when the next one is due")
    slow = ask(checkpoint_interval_hours=1, writer_bandwidth="1 GB/s")
    assert (slow.feasible, slow.storage_bottleneck) == (True, True)
    needed = slow.required_bandwidth_bytes_per_s
    enough = ask(checkpoint_interval_hours=1, writer_bandwidth=needed)
    assert enough.mfu_penalty_pct == pytest.approx(1)
    assert not enough.storage_bottleneck


@given(
    writers=st.integers(1, 10**9),
    hours=st.floats(1e-6, 1e5),
    limit=st.one_of(st.none(), st.floats(1e-6, 1e6)),
    rate=st.one_of(st.none(), st.floats(1e3, 1e15)),
    read=st.one_of(st.none(), st.floats(1e3, 1e15)),
    devices=st.one_of(st.none(), st.integers(1, 10**9)),
    mode=st.sampled_from(MODES),
    format=st.sampled_from(["sharded", "consolidated"]),
)
def test_any_storage_has_an_answer_within_its_interval(**asked: Any) -> None:
    names = {"writers": "n_writers", "hours": "checkpoint_interval_hours", "limit": "filesystem_limit_gbs"}
    names |= {"rate": "writer_bandwidth", "read": "read_bandwidth"}
    found = ask(small(), **{names.get(name, name): value for name, value in asked.items()})
    for name in ("write_time", "blocking_time", "load_time"):
        low, high = getattr(found, f"{name}_interval_s")
        assert low * (1 - 1e-12) <= getattr(found, f"{name}_s") <= high * (1 + 1e-12)
    assert 0 <= found.mfu_penalty_fraction <= 1
    assert found.save_time_s >= found.blocking_time_s
    assert found.durability_lag_s == pytest.approx(found.save_time_s - found.blocking_time_s, rel=1e-6, abs=1e-9)
    plain = found.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == json.loads(json.dumps(plain))
    assert not unsaid(found.explain())


def test_what_is_assumed_is_said_and_what_is_given_is_not() -> None:
    given_all: dict[str, Any] = {"writer_bandwidth": "1 GB/s", "filesystem_limit_gbs": 100, "read_bandwidth": "50 GB/s"}
    plain = ask(**given_all, precision="bf16", framework="megatron")
    assert plain.assumed == ()
    assert plain.load_time_interval_s[0] == plain.load_time_interval_s[1] == plain.load_time_s
    assert plain.write_time_interval_s[0] == plain.write_time_interval_s[1]
    opened = ask()
    assert [text.split(" takes")[0] for text in opened.assumed[:3]] == ["one writer", "the storage", "loading"]
    assert any("arXiv" in source for source in opened.sources)
    tpu = MODEL.solve(llama(), "tpu-v5p", mode="async")
    assert any("PCIe 4.0 x16 taken" in note for note in tpu.notes)


def test_a_result_is_a_mapping_with_quantities() -> None:
    found = ask(keep=3)
    assert set(found) >= {"checkpoint_size", "write_time", "blocking_time", "load_time", "mfu_penalty_pct"}
    assert found["checkpoint_size"].to("GB").magnitude == pytest.approx(112.42, abs=0.01)
    assert found["write_bandwidth"].to("GB/s").magnitude == pytest.approx(1)
    assert found.disk_bytes == pytest.approx(4 * found.checkpoint_size_bytes)
    assert "training stands still" in found.explain()
    assert all(len(line) < 200 for line in found.explain().splitlines())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"checkpoint_interval_hours": float("nan")}, "checkpoint_interval_hours=nan"),
        ({"checkpoint_interval_hours": "4 h"}, "checkpoint_interval_hours='4 h'"),
        ({"checkpoint_interval_hours": True}, "checkpoint_interval_hours=True"),
        ({"checkpoint_interval_hours": np.array([1.0, 2.0])}, "checkpoint_interval_hours=array"),
        ({"checkpoint_interval_hours": 1e300}, "allowed: 1e-06 to 100000"),
        ({"n_writers": 0}, "n_writers=0"),
        ({"n_writers": 1.5}, "n_writers=1.5 must be a whole number"),
        ({"filesystem_limit_gbs": 0}, "filesystem_limit_gbs=0"),
        ({"filesystem_limit_gbs": "100 GiB/s"}, "filesystem_limit_gbs='100 GiB/s'"),
        ({"writer_bandwidth": "2 GB"}, "is a size, not a data rate"),
        ({"writer_bandwidth": 0}, "writer_bandwidth=0"),
        ({"writer_bandwidth": True}, "writer_bandwidth=True"),
        ({"read_bandwidth": -1}, "read_bandwidth=-1"),
        ({"devices": 0}, "devices=0"),
        ({"keep": -1}, "keep=-1"),
        ({"mode": "asinc"}, "Did you mean async"),
        ({"format": None}, "allowed: sharded, consolidated"),
        ({"content": "weight"}, "Did you mean weights"),
        ({"optimizer": None}, "optimizer must be a name"),
        ({"optimizer": True}, "optimizer=True"),
        ({"precision": "bf17"}, "bf17"),
        ({"zero_stage": 9}, "zero_stage=9"),
        ({"quantization": "nf4"}, "needs an adapter"),
        ({"interval": 1}, "interval=1 is not a setting; allowed: checkpoint_interval_hours"),
        ({"hardware": "h1000"}, "nearest: .*h100"),
        ({"model": 5}, "model"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"model": small(), "hardware": "h100"}
    with pytest.raises(ft.ForetellError, match=words):
        MODEL.solve(**(plain | asked))


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "optimizer": ["adam", "sgd", "banana"],
        "checkpoint_interval_hours": [1e-4, 4.0, -1],
        "n_writers": [1, 64],
        "writer_bandwidth": [None, "2 GB/s", "2 GB"],
        "read_bandwidth": [None, 1e9],
        "mode": ["sync", "async", "memory", "tape"],
        "format": ["sharded", "consolidated"],
    }
    assert agree(MODEL, [small(), "h100"], axes) == 2 * 2 * 2 * 2 * 2 * 3 * 2
    more: dict[str, Any] = {
        "content": ["full", "weights"],
        "devices": [None, 8],
        "filesystem_limit_gbs": [None, 0.001],
        "keep": [0, 3],
        "precision": ["bf16", "fp32", 5],
        "zero_stage": [0, 3, 9],
        "framework": ["generic", "deepspeed"],
    }
    assert agree(MODEL, [small(), "h100"], more) == 2 * 2 * 2 * 2 * 2 * 2 * 2


@given(
    axes=st.fixed_dictionaries(
        {
            "checkpoint_interval_hours": st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=2),
            "n_writers": st.lists(st.integers(1, 10**9), min_size=1, max_size=2),
            "filesystem_limit_gbs": st.lists(st.one_of(st.none(), st.floats(1e-6, 1e6)), min_size=1, max_size=2),
            "writer_bandwidth": st.lists(st.one_of(st.none(), st.floats(1e3, 1e15)), min_size=1, max_size=2),
            "mode": st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
        }
    )
)
def test_any_row_is_what_solve_says(axes: dict[str, Any]) -> None:
    agree(MODEL, [small(), "h100"], axes)


def test_a_sweep_chooses_the_shortest_block() -> None:
    table = MODEL.sweep(llama(), "h100", n_writers=[1, 8, 64], mode=["sync", "async"])
    best = table.best()
    assert (best["n_writers"], best["mode"], best["blocking_time_s"]) == (64, "async", table["blocking_time_s"].min())
    assert table["feasible"].all()
    late = MODEL.sweep(llama(), "h100", checkpoint_interval_hours=0.01, mode="async")
    assert late["reason"].tolist() == ["the save is not done when the next one is due"]
    with pytest.raises(ft.InputError, match="writers=2 is not a setting"):
        MODEL.sweep(llama(), "h100", writers=2)
