"""`foretell check`: other people's files and launch lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_linear: true
datasets:
  - path: a/b
    type: alpaca
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
learning_rate: 2e-4
bf16: auto
flash_attention: true
gradient_checkpointing: true
output_dir: ./out
"""


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def made(text: str = AXOLOTL, name: str = "run.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return made


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    """One value that was understood."""
    rows: list[dict[str, Any]] = document["result"]["understood"]
    (found,) = [r for r in rows if r["name"] == name]
    return found


def test_a_file_is_answered_with_the_line_of_each_value(cli: Any, config: Any) -> None:
    path = config()
    ran = cli("check", path, "--gpu", "a100", "--json")
    assert ran.code == 0
    result = ran.document["result"]
    assert (result["family"], result["verb"], result["verdict"]) == ("axolotl", "train", "fits")
    assert (row(ran.document, "seq_len")["value"], row(ran.document, "seq_len")["line"]) == ("2048", 9)
    assert row(ran.document, "model")["path"] == path
    assert result["total_bytes"] > result["allocated_bytes"] > 5e9
    assert result["speed"]["step_s"] > 0
    assert {r["key"] for r in result["neutral"]} >= {"learning_rate", "output_dir"}


def test_the_answer_is_that_of_fit(cli: Any, config: Any) -> None:
    checked = cli("check", config(), "--gpu", "a100", "--json").document
    i = checked["inputs"]
    words = [
        "--micro-batch",
        i["micro_batch"],
        "--grad-accum",
        i["grad_accum"],
        "--seq-len",
        i["seq_len"],
        "--framework",
        i["framework"],
    ]
    words += [
        "--precision",
        i["precision"],
        "--optimizer",
        i["optimizer"],
        "--recompute",
        i["recompute"],
        "--lora-rank",
        i["lora_rank"],
    ]
    words += ["--lora-targets", ",".join(i["lora_targets"]), "--quantization", i["quantization"], "--attention", i["attention"]]
    words += ["--double-quant"] if i["double_quant"] else []
    words += ["--lora-dropout", i["lora_dropout"]] if i["lora_dropout"] is not None else []
    asked = cli("fit", "llama-3.1-8b", "--gpu", "a100", *map(str, words), "--json").document["result"]
    # what has no option (formats of adapters and of what is not quantised) may differ by little
    assert checked["result"]["total_bytes"] == pytest.approx(asked["total_bytes"], rel=0.03)


def test_without_a_gpu_it_says_what_it_understood(cli: Any, config: Any) -> None:
    ran = cli("check", config(), "--json")
    assert ran.code == 1
    assert ran.document["result"]["verdict"] == "unknown"
    assert set(ran.document["result"]["needs"]) == {"gpu"}
    assert row(ran.document, "lora_rank")["value"] == "32"
    assert "NO ANSWER YET  give --gpu" in cli("check", config(), "--quiet").out


def test_an_unknown_key_makes_it_uncertain_with_its_line(cli: Any, config: Any) -> None:
    ran = cli("check", config(AXOLOTL + "warp_drive: 3\n"), "--gpu", "a100", "--json")
    result = ran.document["result"]
    assert (ran.code, result["verdict"], result["memory_verdict"]) == (1, "uncertain", "fits")
    (found,) = result["unknown"]
    assert (found["key"], found["line"]) == ("warp_drive", AXOLOTL.count("\n") + 1)
    assert any("warp_drive" in reason for reason in result["reasons"])
    assert cli("check", config(AXOLOTL + "warp_drive: 3\n"), "--gpu", "a100", "--allow-uncertain", "--quiet").code == 0


def test_a_suggestion_is_the_edit_to_make(cli: Any, config: Any) -> None:
    text = AXOLOTL.replace("gradient_checkpointing: true", "gradient_checkpointing: false").replace(
        "micro_batch_size: 2", "micro_batch_size: 16"
    )
    path = config(text)
    ran = cli("check", path, "--gpu", "a100-40gb", "--json")
    result = ran.document["result"]
    assert result["memory_verdict"] == "does_not_fit"
    (found,) = [s for s in result["suggestions"] if s["flags"] == "--recompute full"]
    (edit,) = found["edits"]
    assert edit["old"] == ["gradient_checkpointing: false"]
    lines = Path(path).read_text().split("\n")
    lines[edit["line"] - 1 : edit["line"] - 1 + len(edit["old"])] = edit["new"]
    Path(path).write_text("\n".join(lines))
    after = cli("check", path, "--gpu", "a100-40gb", "--json").document["result"]
    assert after["total_bytes"] == pytest.approx(found["total_bytes"], rel=0.02)


@pytest.mark.parametrize(
    ("given", "code", "holds"),
    [
        ("total_bytes < 75 GiB", 0, True),
        ("total_bytes < 1 GB", 1, False),
        ("step_s > 1 ms", 0, True),
        ("verdict == fits", 0, True),
        ("fits == false", 1, False),
        ("speed.mfu < 100%", 0, True),
        ("tokens_per_second_per_device > 1_000_000", 1, False),
    ],
)
def test_assertions_are_a_gate(cli: Any, config: Any, given: str, code: int, *, holds: bool) -> None:
    ran = cli("check", config(), "--gpu", "a100", "--no-advice", "--assert", given, "--json")
    assert ran.code == code
    assert [one["holds"] for one in ran.document["result"]["asserts"]] == [holds]


def test_assertions_before_an_answer_and_commas(cli: Any, config: Any) -> None:
    ran = cli("check", config(), "--assert", "total_bytes < 75 GiB", "--json")
    assert ran.code == 1
    assert [one["holds"] for one in ran.document["result"]["asserts"]] == [None]
    assert cli("check", config(), "--gpu", "a100", "--assert", "total_bytes < 1,5 GiB").code == 2
    ran = cli("check", config(), "--gpu", "a100", "--no-advice", "--quiet", "--assert", "total_bytes < 1 GiB")
    assert ran.code == 1
    assert "FAILS" in ran.out


def test_what_the_user_says_stands_above_the_file(cli: Any, config: Any) -> None:
    ran = cli("check", config(), "--gpu", "a100", "--no-advice", "--set", "micro-batch=1", "--json")
    assert row(ran.document, "micro_batch")["said"] == "given with the question"
    assert ran.document["inputs"]["micro_batch"] == 1
    assert cli("check", config(), "--gpu", "a100", "--set", "gpu=h100").code == 2


def test_a_script_that_starts_two_programs_is_uncertain(cli: Any, config: Any) -> None:
    line = "python run_clm.py --model_name_or_path gpt2 --bf16 --block_size 512 --output_dir out\n"
    ran = cli("check", config("#!/bin/sh\n" + line + line, "two.sh"), "--gpu", "h100", "--no-advice", "--json")
    assert (ran.code, ran.document["result"]["verdict"]) == (1, "uncertain")
    assert any("more than one program" in reason for reason in ran.document["result"]["reasons"])


def test_a_failure_in_the_log_is_truer_than_the_forecast(cli: Any, config: Any, tmp_path: Path) -> None:
    log = tmp_path / "oom.txt"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.25 GiB of "
        "which 512.00 MiB is free. Including non-PyTorch memory, this process has 78.70 GiB memory in use. Of the allocated "
        "memory 77.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.\n"
    )
    ran = cli("check", config(), "--gpu", "a100", "--oom", str(log), "--json")
    result = ran.document["result"]
    assert (ran.code, result["verdict"], result["memory_verdict"]) == (1, "does_not_fit", "fits")
    assert result["suggestions"]
    assert all(one["saved_bytes"] > 0 for one in result["suggestions"])
    assert "RAN OUT" in cli("check", config(), "--gpu", "a100", "--oom", str(log), "--quiet").out


def test_a_model_outside_the_folders_is_not_opened(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "config.json").write_text('{"model_type": "llama"}')
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "run.yaml").write_text(AXOLOTL.replace("meta-llama/Llama-3.1-8B", str(secret)))
    monkeypatch.chdir(inside)
    ran = cli("check", "run.yaml", "--gpu", "a100")
    assert (ran.code, "outside the folders" in ran.err) == (2, True)
    assert cli("check", "run.yaml", "--gpu", "a100", "--root", str(secret), "--no-advice").code in (0, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--assert", "total_bytes"), "is no comparison"),
        (("--assert", "total_bites < 3"), "allowed: total_bytes"),
        (("--assert", "total_bytes < 3 furlongs"), "assert"),
        (("--assert", "breakdown < 3"), "no single value"),
        (("--assert", "verdict < fits"), "compares text"),
        (("--set", "warp=3"), "is no option"),
        (("--family", "emacs"), "is no family"),
        (("--gpu", "h1000"), "h100"),
        (("--gpus", "0"), "gpus"),
        (("--model", "no-such-model"), "no-such-model"),
    ],
)
def test_bad_options(cli: Any, config: Any, words: tuple[str, ...], said: str) -> None:
    ran = cli("check", config(), "--gpu", "a100", *words)
    assert ran.code in (1, 2)
    assert said in ran.err + ran.out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "a: [", "a.yaml:"),
        ("a.yaml", "hello: 1\n", "of no framework"),
        ("a.py", "import os", "not executed"),
        ("a.json", "{", "a.json:1"),
        ("a.sh", "echo hi", "starts no run"),
        ("a.yaml", "base_model: m\nmicro_batch_size: many\nadapter: lora\nsequence_len: 3\ndatasets: []\n", "a.yaml:2"),
        ("a.yaml", "a: !!python/object/apply:os.system ['id']\n", "tag"),
    ],
)
def test_bad_files_are_one_error(cli: Any, config: Any, name: str, text: str, said: str) -> None:
    ran = cli("check", config(text, name), "--gpu", "a100", "--json")
    assert ran.code == 2
    assert said in json.loads(ran.err)["error"]["message"]


def test_a_command_behind_two_dashes(cli: Any) -> None:
    ran = cli(
        "check",
        "--gpu",
        "h100",
        "--json",
        "--",
        "vllm",
        "serve",
        "meta-llama/Llama-3.1-8B-Instruct",
        "-tp",
        "2",
        "--json-thing",
        "x",
    )
    result = ran.document["result"]
    assert (result["family"], result["verb"]) == ("vllm", "serve")
    assert row(ran.document, "tp")["value"] == "2"
    assert [r["key"] for r in result["unknown"]] == ["json_thing"]
    assert result["kv"]["tokens"] > 100_000


def test_nothing_given(cli: Any) -> None:
    ran = cli("check")
    assert ran.code == 2
    assert "name the files" in ran.err
