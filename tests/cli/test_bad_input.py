"""Everything that cannot be used: exit code 2, one clear message, nothing hangs, nothing is ignored."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Config = Callable[..., str]
DENSE = ["--gpu", "h100"]
SIZES = ("-1", "0", "1.5", "true", "nan", "inf", "1e30", "9" * 31, "9" * 5000, "", "x", "0x10")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("option", ["--micro-batch", "--seq-len", "--tp", "--gpus"])
def test_a_size_that_is_no_positive_whole_number(cli: Any, config: Config, option: str, size: str) -> None:
    ran = cli("fit", config(), *DENSE, option, size, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"] == option.lstrip("-").replace("-", "_")
    assert ran.error["kind"] == "input"
    assert len(ran.error["message"]) < 400


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ("--tp 3", "tp", "8 attention heads"),
        ("--tp 8 --framework torchtitan", "tp", "4 key-value heads"),
        ("--pp 9", "pp", "more than the model's 8 layers"),
        ("--pp 4 --vpp 4", "pp", "more than the model's 8 layers"),
        ("--ep 2 --gpus 2", "ep", "dense"),
        ("--gpus 8 --dp 3", "gpus", "is not dp x tp x pp x cp"),
        ("--gpus 6 --tp 4", "gpus", "no multiple of tp x pp x cp"),
        ("--zero 3 --framework megatron-core", "zero_stage", "megatron-fsdp"),
        ("--zero 3 --framework deepspeed --pp 2", "pp", "pipeline parallelism"),
        ("--zero 3 --pp 2 --schedule zb-h1", "zero_stage", "zb-h1"),
        ("--zero 4", "zero", "0 to 3"),
        ("--pp 2 --framework fsdp2", "pp", "pipeline parallelism"),
        ("--headroom 10", "headroom", "0% to 90%"),
        ("--headroom -5%", "headroom", "0% to 90%"),
        ("--headroom nan", "headroom", "0% to 90%"),
        ("--headroom x", "headroom", "0% to 90%"),
        ("--dropout 2", "dropout", "0 to 1"),
        ("--lora-rank 8 --lora-targets nothing", "lora_targets", "matches no matrix"),
        ("--lora-rank 8 --lora-targets q_proj,,v_proj", "lora_targets", "empty part"),
        ("--lora-targets q_proj", "lora_targets", "--lora-rank"),
        ("--quantization nf4", "quantization", "adapter"),
        ("--quantization nf5 --lora-rank 8", "quantization", "Did you mean nf4?"),
        ("--double-quant", "double_quant", "quantised base"),
        ("--recompute ful", "recompute", "Did you mean full?"),
        ("--recompute-layers 4", "recompute_layers", "nothing is"),
        ("--precision bf61", "precision", "bf16"),
        ("--optimizer adamv", "optimizer", "adam"),
        ("--framework megatron-cor", "framework", "megatron-core"),
        ("--attention flsh", "attention", "flash"),
        ("--loss fuse", "loss", "fused"),
        ("--sharding fdsp2", "sharding", "fsdp2"),
        ("--schedule 1f2b", "schedule", "1f1b"),
        ("--offload disk", "offload", "optimizer"),
        ("--pp 2 --pp-layout 4,5", "pp_layout", "8 layers"),
        ("--pp 2 --pp-layout 4,x", "pp_layout", "whole number"),
        ("--global-batch 7 --gpus 2", "global_batch", "no multiple of dp 2"),
        ("--global-batch 8 --micro-batch 2 --grad-accum 3", "global_batch", "dp 1 x micro-batch 2 x grad-accum 3"),
        ("--encoder-seq-len 128", "encoder_seq_len", "no encoder"),
        ("--max-sample-len 128", "max_sample_len", "--no-packing"),
        ("--max gpus", "max", "micro-batch"),
        ("--min seq-len", "min", "gpus"),
        ("--max seq-len --min gpus", "min", "one question too many"),
        ("--gpu h10", "hardware", "h100"),
        ("--micro-batchs 2", "--micro-batchs", "--micro-batch"),
    ],
)
def test_a_run_that_cannot_be_started(cli: Any, config: Config, given: str, field: str, says: str) -> None:
    started = time.monotonic()
    ran = cli("fit", config(), *DENSE, *given.split(), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"] == field
    assert says in ran.error["message"]
    text = cli("fit", config(), *DENSE, *given.split())
    assert (text.code, text.out) == (2, "")
    assert text.err == f"error: {ran.error['message']}\n"
    assert time.monotonic() - started < 5


def test_experts_are_divided_evenly_or_not_at_all(cli: Any) -> None:
    ran = cli("fit", "mixtral-8x7b", "--gpu", "h100", "--gpus", "16", "--ep", "3", "--json")
    assert (ran.code, ran.error["field"]) == (2, "ep")
    assert "8 experts" in ran.error["message"]


def test_an_unknown_gpu_names_the_near_ones(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "a10", "--json")
    assert (ran.code, ran.error["kind"]) == (2, "catalog")
    assert any("a100" in name for name in ran.error["allowed"])
    assert cli("fit", config(), "--json").error["field"] == "gpu"


def test_an_unknown_model_names_the_near_ones(cli: Any) -> None:
    ran = cli("fit", "lama-3-8b", *DENSE, "--json")
    assert (ran.code, ran.error["kind"]) == (2, "catalog")
    assert "llama-3-8b" in ran.error["allowed"]


@pytest.mark.parametrize("model", ["vit-base", "resnet-50"])
def test_a_vision_model_has_no_sequence(cli: Any, model: str) -> None:
    for option in ("--seq-len", "--max-sample-len"):
        ran = cli("fit", model, *DENSE, option, "512", "--no-packing", "--json")
        assert (ran.code, ran.error["field"]) == (2, option.lstrip("-").replace("-", "_"))
    assert cli("fit", model, *DENSE, "--max", "seq-len").code == 2
    assert cli("fit", model, *DENSE, "--json").document["inputs"]["seq_len"] is None


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "llama", "hidden_size": 4',
        "",
        "[]",
        "7",
        "null",
        '"llama"',
        "{}",
        "[" * 200_000,
        '{"a": ' * 200_000,
        '{"hidden_size": ' + "9" * 5000 + "}",
        "\x00\x01",
        '{"model_type": "nobody-knows-it"}',
        '{"model_type": ["llama"]}',
    ],
)
def test_a_file_that_is_no_config(cli: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = cli("fit", str(path), *DENSE, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert str(path) in ran.error["message"]
    assert len(ran.error["message"]) < 1500


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": -512},
        {"hidden_size": 0},
        {"hidden_size": 512.5},
        {"hidden_size": True},
        {"hidden_size": "512"},
        {"hidden_size": 10**30},
        {"num_hidden_layers": -1},
        {"num_attention_heads": [8]},
        {"vocab_size": {}},
        {"quantization_config": {"quant_method": "magic"}},
        {"quantization_config": "nf4"},
        {"quantization_config": {"bits": 4}},
    ],
)
def test_a_config_with_an_unusable_value(cli: Any, config: Config, changes: dict[str, object]) -> None:
    ran = cli("fit", config(**changes), *DENSE, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"].startswith(next(iter(changes)))
    assert "config.json" in ran.error["where"]


def test_a_huge_file_is_refused_unread(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(200 * 2**20)  # takes no space on the disk
    started = time.monotonic()
    ran = cli("fit", str(path), *DENSE)
    assert (ran.code, ran.out) == (2, "")
    assert "is larger than" in ran.err
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("name", ["missing.json", "folder"])
def test_a_path_that_leads_nowhere(cli: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    ran = cli("fit", str(tmp_path / name), *DENSE)
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be read" in ran.err


def test_a_pipe_is_not_waited_for(cli: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert cli("fit", str(tmp_path), *DENSE).code == 2


def test_an_error_in_json_has_the_seven_keys(cli: Any, config: Config) -> None:
    for given in ((), ("--gpu", "h10"), ("--gpu", "h100", "--tp", "3"), ("--nonsense",), ("--gpu",)):
        ran = cli("fit", config(), *given, "--json")
        assert ran.code == 2
        assert list(json.loads(ran.err)) == ["error"]
        assert set(ran.error) == {"kind", "field", "value", "allowed", "where", "hint", "message"}
