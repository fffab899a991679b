"""`foretell fit`: verdicts, what was assumed, the JSON object, inverse questions, suggestions."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.cli import fit

Config = Callable[..., str]
GIB = 2**30


def test_a_model_and_a_gpu_are_enough_and_the_rest_is_said(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "h100")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("FITS  needs ")
    for said in ("1 GPU", "micro-batch 1", "sequence of 2048 (the model's limit)", "bf16 mixed precision", "AdamW"):
        assert said in " ".join(ran.out.split())


def test_the_folder_the_file_and_the_catalog_name_the_same_model(cli: Any, config: Config) -> None:
    path = config()
    one = cli("fit", path, "--gpu", "h100", "--json").result
    two = cli("fit", str(Path(path).parent), "--gpu", "H100", "--json").result
    assert one == two
    assert cli("fit", "llama-3-8b", "--gpu", "h100", "--json").result["parameters"] == 8_030_261_248


def test_the_verdict_decides_the_exit_code(cli: Any, config: Config) -> None:
    path = config()
    small = cli("fit", path, "--gpu", "h100", "--json")
    assert (small.code, small.result["verdict"], small.result["fits"]) == (0, "fits", True)
    large = cli("fit", path, "--gpu", "t4", "--micro-batch", "512", "--json")
    assert (large.code, large.result["verdict"], large.result["fits"]) == (1, "does_not_fit", False)
    need, have = large.result["total_bytes"], large.result["available_bytes"]
    text = cli("fit", path, "--gpu", "t4", "--micro-batch", "512").out
    assert text.startswith(f"DOES NOT FIT  needs {need / GIB:.2f} of {have / GIB:.2f} GiB")


def test_uncertain_is_no_unless_it_is_allowed(cli: Any, config: Config) -> None:
    args = ["fit", config(), "--gpu", "t4", "--headroom", "90%", "--micro-batch", "4"]
    ran = cli(*args, "--json")
    assert (ran.code, ran.result["verdict"]) == (1, "uncertain")
    assert cli(*args, "--allow-uncertain").code == 0
    assert cli(*args).out.startswith("UNCERTAIN")


def test_the_object_holds_every_value_used_and_adds_up(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "h100", "--gpus", "8", "--framework", "fsdp2", "--json")
    document = ran.document
    inputs, result = document["inputs"], document["result"]
    assert (inputs["gpus"], inputs["dp"], inputs["zero"], inputs["sharding"]) == (8, 8, 3, "fsdp2")
    assert (inputs["seq_len"], inputs["headroom"], inputs["optimizer"]) == (2048, 0.1, "adamw")
    assert sum(result["breakdown"].values()) == pytest.approx(result["total_bytes"])
    assert result["allocated_bytes"] <= result["reserved_bytes"] <= result["total_bytes"] <= result["available_bytes"]
    low, high = result["interval_bytes"]
    assert low <= result["total_bytes"] <= high
    assert document["sources"]
    assert max(entry["allocated_bytes"] for entry in result["timeline"]) == pytest.approx(result["allocated_bytes"])


def test_every_option_of_the_help_is_echoed_in_the_inputs(cli: Any, config: Config) -> None:
    inputs = cli("fit", config(), "--gpu", "h100", "--json").document["inputs"]
    apart = {"json", "quiet", "no_advice"}  # they change what is printed, not the answer
    assert {p.name for p in fit.command.params} - set(inputs) == apart


def test_quiet_is_the_verdict_alone(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "h100", "--quiet")
    assert ran.out.count("\n") == 1
    assert ran.out.startswith("FITS")


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--gpu t4 --micro-batch 512",
        "--gpus 8 --pp 4 --tp 2 --framework megatron-core --global-batch 16",
        "--gpus 8 --framework fsdp2 --max micro-batch",
        "--lora-rank 8 --quantization nf4",
    ],
)
def test_the_answer_is_one_screen_of_80_columns(cli: Any, config: Config, more: str) -> None:
    lines = cli("fit", config(), "--gpu", "h100", *more.split()).out.splitlines()
    assert len(lines) <= 50
    assert max(len(line) for line in lines) <= 80
    assert any("GiB" in line for line in lines)
    assert ("pipeline stages" in "\n".join(lines)) == ("--pp" in more)


@pytest.mark.parametrize(
    ("given", "micro_batch", "grad_accum"),
    [
        ("--global-batch 64 --micro-batch 2", 2, 4),
        ("--global-batch 64 --grad-accum 2", 4, 2),
        ("--global-batch 64", 1, 8),
        ("--micro-batch 2 --grad-accum 3", 2, 3),
        ("--global-batch 48 --micro-batch 2 --grad-accum 3", 2, 3),
    ],
)
def test_the_batch_is_completed(cli: Any, config: Config, given: str, micro_batch: int, grad_accum: int) -> None:
    inputs = cli("fit", config(), "--gpu", "h100", "--gpus", "8", *given.split(), "--json").document["inputs"]
    assert (inputs["micro_batch"], inputs["grad_accum"]) == (micro_batch, grad_accum)
    assert inputs["global_batch"] == 8 * micro_batch * grad_accum


def test_dp_is_what_the_other_degrees_leave(cli: Any, config: Config) -> None:
    inputs = cli("fit", config(), "--gpu", "h100", "--gpus", "16", "--tp", "2", "--pp", "2", "--json").document["inputs"]
    assert (inputs["dp"], inputs["gpus"]) == (4, 16)
    inputs = cli("fit", config(), "--gpu", "h100", "--tp", "2", "--dp", "3", "--json").document["inputs"]
    assert (inputs["dp"], inputs["gpus"]) == (3, 6)


def test_where_samples_are_padded_the_longest_decides(cli: Any, config: Config) -> None:
    base = ["fit", config(), "--gpu", "h100", "--seq-len", "2048", "--json"]
    short = cli(*base, "--no-packing", "--max-sample-len", "512").document
    packed = cli(*base, "--packing", "--max-sample-len", "512").document
    assert short["inputs"]["seq_len"] == 512
    assert packed["inputs"]["seq_len"] == 2048
    assert short["result"]["total_bytes"] < packed["result"]["total_bytes"]
    assert any("longest sample decides" in note for note in short["notes"])
    assert any("longest sample does not matter" in note for note in packed["notes"])


def test_the_largest_micro_batch_fits_and_the_next_does_not(cli: Any, config: Config) -> None:
    base = ["fit", config(), "--gpu", "t4", "--json"]
    asked = cli(*base, "--max", "micro-batch")
    answer = asked.result["inverse"]
    assert (asked.code, asked.result["verdict"]) == (0, "fits")
    assert asked.document["inputs"]["micro_batch"] == answer["value"]
    assert cli(*base, "--micro-batch", str(answer["value"])).code == 0
    assert cli(*base, "--micro-batch", str(answer["next_value"])).code == 1
    assert answer["next_verdict"] in ("uncertain", "does_not_fit")


def test_the_longest_sequence_stops_at_the_models_limit(cli: Any, config: Config) -> None:
    asked = cli("fit", config(), "--gpu", "h100", "--max", "seq-len", "--json")
    assert asked.result["inverse"]["value"] == 2048
    asked = cli("fit", config(max_position_embeddings=2**22), "--gpu", "t4", "--max", "seq-len", "--json")
    value = asked.result["inverse"]["value"]
    assert 2048 < value < 2**22
    assert cli("fit", config(max_position_embeddings=2**22), "--gpu", "t4", "--seq-len", str(value), "--quiet").code == 0


def test_the_fewest_gpus_suffice_and_one_fewer_do_not(cli: Any) -> None:
    base = ["fit", "llama-3-8b", "--gpu", "h100", "--framework", "fsdp2", "--recompute", "full", "--json"]
    count = cli(*base, "--min", "gpus").result["inverse"]["value"]
    assert cli(*base, "--gpus", str(count)).code == 0
    assert cli(*base, "--gpus", str(count - 1)).code == 1


def test_no_number_of_gpus_helps_where_nothing_is_sharded(cli: Any) -> None:
    ran = cli("fit", "llama-3-70b", "--gpu", "h100", "--zero", "0", "--min", "gpus")
    assert ran.code == 1
    assert "min gpus: none; at 1 it does not fit, and more GPUs change nothing" in ran.out
    assert "what would help" in ran.out


@pytest.mark.parametrize(
    "more",
    [
        "--gpu rtx4090",
        "--gpu rtx4090 --gpus 8 --framework fsdp2 --micro-batch 8 --seq-len 4096",
        "--gpu a100-sxm-40gb --gpus 8 --tp 2 --framework megatron-core --micro-batch 4 --global-batch 64",
        "--gpu h100 --dp 4 --framework deepspeed --zero 1 --micro-batch 4",
    ],
)
def test_a_suggestion_added_to_the_command_gives_what_it_says(cli: Any, more: str) -> None:
    base = ["fit", "llama-3-8b", *more.split(), "--json"]
    now = cli(*base).result
    assert not now["fits"]
    assert len(now["suggestions"]) > 3
    assert any(entry["fits"] for entry in now["suggestions"])
    replayed = 5 if "deepspeed" in more else 99  # a replay is slow: the first suggestions alone are confirmed by one
    for number, entry in enumerate(now["suggestions"]):
        then = cli(*base, "--no-advice", *shlex.split(entry["flags"]))
        assert then.err == "", entry
        if number < replayed:
            assert then.result["total_bytes"] == pytest.approx(entry["total_bytes"], abs=2), entry
            assert then.result["verdict"] == entry["verdict"], entry
        assert now["total_bytes"] - entry["total_bytes"] == pytest.approx(entry["saved_bytes"], abs=2), entry
        assert entry["saved_bytes"] > 0


def test_one_that_fits_is_told_how_far_it_goes(cli: Any) -> None:
    base = ["fit", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--framework", "fsdp2", "--recompute", "full", "--json"]
    made = {entry["flags"]: entry for entry in cli(*base).result["suggestions"]}
    assert any(flags.startswith("--micro-batch") for flags in made)
    for flags, entry in made.items():
        assert (entry["kind"], entry["verdict"]) == ("relax", "fits")
        assert cli(*base, "--no-advice", *shlex.split(flags)).code == 0


def test_a_pipeline_is_filled_where_nothing_is_said(cli: Any, config: Config) -> None:
    base = ["fit", config(), "--gpu", "h100", "--framework", "megatron-core", "--pp", "4", "--json"]
    made = cli(*base)
    assert made.document["inputs"]["grad_accum"] == 4
    assert "4 micro-batches a step, which fill the pipeline" in made.result["assumed"]
    assert not any("do not fill" in note for note in made.document["notes"])
    assert cli(*base, "--vpp", "2").document["inputs"]["grad_accum"] % 4 == 0
    one = cli(*base, "--grad-accum", "1")
    assert one.document["inputs"]["grad_accum"] == 1
    assert any("not fill 4 pipeline stages" in note for note in one.document["notes"])
    assert one.result["per_stage"][0]["total_bytes"] < made.result["per_stage"][0]["total_bytes"]


def test_uneven_stages_are_met_with_a_layout(cli: Any, config: Config) -> None:
    base = ["fit", config(num_hidden_layers=10), "--gpu", "h100", "--framework", "megatron-core", "--pp", "4", "--json"]
    hint = cli(*base).error["hint"]
    assert "--pp-layout 2,3,3,2" in hint
    assert cli(*base, "--pp-layout", "2,3,3,2").code == 0


@pytest.mark.parametrize("gpu", ["t4", "v100"])
def test_a_device_without_bf16_gets_fp16(cli: Any, config: Config, gpu: str) -> None:
    base = ["fit", config(), "--gpu", gpu, "--json"]
    made = cli(*base)
    assert made.document["inputs"]["precision"] == "fp16"
    assert any(text.startswith("fp16 mixed precision (") for text in made.result["assumed"])
    assert any("emulated" in note for note in cli(*base, "--precision", "bf16").document["notes"])
    error = cli(*base, "--precision", "fp8").error
    assert (error["kind"], error["field"], error["allowed"]) == ("combination", "precision", ["fp32", "fp16"])


def test_uncertain_counts_in_inverse_questions_where_it_is_allowed(cli: Any, config: Config) -> None:
    base = ["fit", config(), "--gpu", "t4", "--json", "--max", "micro-batch"]
    sure, allowed = cli(*base), cli(*base, "--allow-uncertain")
    assert allowed.result["inverse"]["value"] > sure.result["inverse"]["value"]
    assert (allowed.code, allowed.result["verdict"]) == (0, "uncertain")


def test_an_inverse_question_says_what_ends_it(cli: Any, config: Config) -> None:
    base = ["fit", config(), "--json"]
    assert cli(*base, "--gpu", "h100", "--max", "seq-len").result["inverse"]["limited_by"] == "model"
    text = cli(*base[:-1], "--gpu", "h100", "--max", "seq-len").out
    assert "max seq-len: 2048, the longest that the model takes; memory is not the limit" in text
    assert "sequence of 2048" not in text
    assert cli(*base, "--gpu", "t4", "--max", "micro-batch").result["inverse"]["limited_by"] == "memory"
    none = cli("fit", "llama-3-8b", "--gpu", "t4", "--max", "micro-batch", "--json")
    assert none.code == 1
    assert (none.result["inverse"]["closest_value"], none.result["inverse"]["closest_verdict"]) == (1, "does_not_fit")
    assert none.result["suggestions"]
    assert any("the weights alone" in note for note in none.document["notes"])


def test_more_than_a_node_is_whole_nodes(cli: Any) -> None:
    base = ["fit", "llama-3-70b", "--gpu", "h100", "--framework", "fsdp2", "--recompute", "full", "--min", "gpus", "--json"]
    answer = cli(*base).result["inverse"]
    assert answer["value"] > 8
    assert answer["value"] % 8 == 0
    assert answer["next_value"] == answer["value"] - 8
    assert cli(*base, "--gpus-per-node", "4").result["inverse"]["value"] % 4 == 0


def test_bytes_are_whole_and_the_terms_sum_exactly(cli: Any, config: Config) -> None:
    result = cli("fit", config(), "--gpu", "h100", "--gpus", "4", "--framework", "fsdp2", "--json").result
    assert sum(result["breakdown"].values()) == result["total_bytes"]
    for value in (result["total_bytes"], *result["breakdown"].values(), *result["host"].values(), *result["interval_bytes"]):
        assert isinstance(value, int)


def test_what_the_framework_chose_is_in_the_inputs(cli: Any, config: Config) -> None:
    inputs = cli("fit", config(), "--gpu", "h100", "--gpus", "4", "--tp", "2", "--pp", "2", "--json").document["inputs"]
    for name in ("sp", "etp", "schedule", "zero", "expandable_segments", "packing", "attention", "loss"):
        assert inputs[name] is not None


def test_the_title_names_the_size_and_nothing_is_cut(cli: Any) -> None:
    text = cli("fit", "llama-3-8b", "--gpu", "h100", "--gpus", "16", "--tp", "2", "--pp", "4", "--framework", "megatron-core").out
    assert "Llama 3 8B (8.03 B parameters, 32 layers)" in text
    assert "…" not in text


@pytest.mark.parametrize("given", ["--attention eager", "--dropout 0.1"])
def test_a_setting_without_effect_is_named(cli: Any, given: str) -> None:
    notes = cli("fit", "resnet-50", "--gpu", "h100", *given.split(), "--json").document["notes"]
    assert any("has no effect: ResNet-50 has no" in note for note in notes)


def test_a_quantised_base_needs_no_full_copy_on_the_host(cli: Any) -> None:
    base = ["fit", "llama-3-8b", "--gpu", "h100", "--lora-rank", "8", "--no-advice", "--json"]
    plain, quantised = cli(*base), cli(*base, "--quantization", "nf4")
    assert quantised.result["host_memory_bytes"] < plain.result["host_memory_bytes"] - 8e9
    assert any("1 rank" in note and "no full copy" in note for note in quantised.document["notes"])


def test_columns_are_respected(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for command in (("fit", "--help"), ("catalog", "list", "frameworks")):
            lines = cli(*command).out.splitlines()
            assert max(len(line) for line in lines if "foretell fit" not in line) <= columns
    monkeypatch.setenv("COLUMNS", "many")
    assert max(len(line) for line in cli("fit", "--help").out.splitlines()) <= 80
