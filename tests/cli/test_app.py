"""The edges of the command line: verbs, exit codes, faults of our own, start-up."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell import __version__
from foretell.cli import _app, carbon, catalog, check, checkpoint, cost, fit, reliability, serve, trace, train, validate
from read_samples import AXOLOTL, DEEPSPEED, MEGATRON

TRACE_FLAGS = """
--alloc-conf --allow-uncertain --attention --chrome --clip --compare --density --device --evaluate --experts --full --gpu --gpus
--grad-accum --headroom --image-size --json --lora-rank --lora-targets --memory-limit --micro-batch --model --optimizer --plot
--precision --quantization --quiet --recompute --recording --save --sdpa --seq-len --sharding --skew --snapshot --steps
--time-limit
"""
FIT_FLAGS = """
--allow-uncertain --attention --compile --cp --double-quant --dp --dropout --encoder-seq-len --ep --etp
--expandable-segments --framework --global-batch --gpu --gpus --gpus-per-node --grad-accum --headroom
--hsdp-replicas --json --lora-dropout --lora-kind --lora-rank --lora-targets --loss --max --max-sample-len
--micro-batch --min --modules-to-save --no-advice --no-expandable-segments --no-packing --no-sp --offload
--optimizer --optimizer-impl --optimizer-in-backward --packing --pp --pp-layout --precision --quantization
--quiet --recompute --recompute-layers --recompute-modules --recompute-scope --schedule --seq-len --sharding
--sp --tp --trainable-fraction --vpp --zero
"""
SERVE_FLAGS = """
--acceptance --accepted-length --activations --arrival-cv --batch --block-size --burst --cached-tokens --chunked-prefill
--concurrency --dp --dp-kind --draft --draft-tokens --efficiency --enforce-eager --engine --engine-version --ep --gpu
--gpu-memory-utilization --gpus-per-node --input-cv --input-tokens --json --kv-dtype --longest-output --max-gpus
--max-model-len --max-num-batched-tokens --max-num-seqs --no-advice --no-chunked-prefill --objective --output-tokens --plot
--pp --prefill-gpu --prefill-gpus --prefill-tp --price --qps --quiet --rate --requests --seed --simulate --slo --speculative
--system --tp --trace --trace-speed --transfer-gbps --weights
"""
TRAIN_FLAGS = """
--boundary --carbon-intensity --checkpoint-interval --checkpoint-mode --failure-rate --node-power --node-price --operator --own
--plot --price --price-kind --provider --pue --record --recovery-time --region --samples --seed --storage-bandwidth
--algorithm --attention --compile --congestion --cp --cuda-graphs --dispatcher --double-quant --dp --dropout
--efficiency --encoder-seq-len --ep --etp --expandable-segments --expert-spread --framework --global-batch --gpu --gpus
--gpus-per-node --grad-accum --headroom --hsdp-replicas --imbalance --jitter --json --loader-time --lora-dropout
--lora-kind --lora-rank --lora-targets --loss --max-sample-len --measured-step --micro-batch --modules-to-save
--nic-gbps --nics-per-node --no-advice --no-expandable-segments --no-packing --no-sp --no-tp-overlap --offload
--operators --optimizer --optimizer-impl --optimizer-in-backward --packing --pp --pp-layout --precision --quantization
--quiet --recompute --recompute-layers --recompute-modules --recompute-scope --schedule --seq-len --sharding
--software-date --sp --system --tokens --tp --tp-overlap --trainable-fraction --vpp --zero
"""
FLEET_FLAGS = "--days --gpu --gpus --gpus-per-node --hours --json --nodes --quiet --system"
RELIABILITY_FLAGS = f"""
{FLEET_FLAGS} --causes --checkpoint-time --failure-rate --interval --lag --mtbf --record --recovery-time --repair-time --spares
--weibull-shape
"""
CHECKPOINT_FLAGS = """
--content --devices --filesystem --format --framework --gpu --interval --json --keep --lora-rank --mode --optimizer --precision
--quiet --read-bandwidth --writer-bandwidth --writers --zero
"""
COST_FLAGS = f"""
{FLEET_FLAGS} --colocation --discount --kwh-price --life --maintenance --network-price --node-power --node-price --operator --own
--price --price-kind --provider --pue --regime --region --rent --residual --staff --tokens-per-second --utilisation
"""
CARBON_FLAGS = f"""
{FLEET_FLAGS} --boundary --carbon-intensity --life --node-power --operator --pue --regime --region --utilisation --wue
"""
"""Frozen: it may grow; what is here does not go and does not change its meaning."""


def flags(command: Any) -> list[str]:
    return sorted(name for p in command.params for name in (*p.opts, *p.secondary_opts) if name.startswith("--"))


CHECK_FLAGS = """--allow-uncertain --assert --family --gpu --gpus --headroom --json --model --no-advice --online --oom --quiet
--root --seq-len --set"""


def test_the_flags_are_frozen() -> None:
    assert flags(fit.command) == sorted(FIT_FLAGS.split())
    assert flags(train.command) == sorted(TRAIN_FLAGS.split())
    assert flags(serve.command) == sorted(SERVE_FLAGS.split())
    assert flags(reliability.command) == sorted(RELIABILITY_FLAGS.split())
    assert flags(checkpoint.command) == sorted(CHECKPOINT_FLAGS.split())
    assert flags(cost.command) == sorted(COST_FLAGS.split())
    assert flags(carbon.command) == sorted(CARBON_FLAGS.split())
    assert flags(validate.command) == ["--data", "--json", "--max-mape", "--quiet"]
    assert flags(catalog.command.commands["list"]) == ["--json", "--quiet"]
    assert flags(catalog.command.commands["show"]) == ["--json", "--kind", "--quiet"]
    assert flags(trace.command) == sorted(TRACE_FLAGS.split())
    assert flags(check.command) == sorted(CHECK_FLAGS.split())
    operations = ["reliability", "checkpoint", "cost", "carbon"]
    assert list(_app.Group.lazy) == ["fit", "train", "serve", "check", "trace", *operations, "catalog", "validate"]


VERBS: dict[str, Any] = {
    "fit": fit.command,
    "train": train.command,
    "serve": serve.command,
    "check": check.command,
    "reliability": reliability.command,
    "checkpoint": checkpoint.command,
    "cost": cost.command,
    "carbon": carbon.command,
    "validate": validate.command,
    "catalog list": catalog.command.commands["list"],
    "catalog show": catalog.command.commands["show"],
}
EXAMPLES = [line for verb in VERBS.values() for line in verb.examples]


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_of_the_help_run_as_printed(cli: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 1024, "vocab_size": 1000}))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row()) + "\n")
    requests = [f"{0.3 * i:.1f},{300 + 7 * (i % 9)},{40 + i % 5}" for i in range(100)]
    (tmp_path / "requests.csv").write_text("\n".join(["arrival,input_tokens,output_tokens", *requests]) + "\n")
    for name, sample in (("run.yaml", AXOLOTL), ("train.sh", MEGATRON), ("ds_config.json", DEEPSPEED)):
        (tmp_path / name).write_text(sample)
    (tmp_path / "oom.txt").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line)
    ran = cli(*arguments)
    assert program == "foretell"
    assert (ran.code in (0, 1), ran.err) == (True, "")
    assert ran.out


def row() -> dict[str, Any]:
    """A measured row of a small model."""
    config = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    return {
        "id": "mine-1",
        "kind": "memory",
        "confidence": 3,
        "source": {"name": "mine"},
        "model": {"config": config | {"intermediate_size": 1024, "vocab_size": 1000}},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "software": {"framework": "torchtitan"},
        "parallel": {"dp": 1},
        "training": {"micro_batch": 1, "seq_len": 512, "grad_accum": 1, "optimizer": "adamw"},
        "measured": {"metric": "allocated", "bytes": 2**28},
    }


@pytest.mark.parametrize("verb", ["", *VERBS, "catalog"])
def test_help_is_help(cli: Any, verb: str) -> None:
    for flag in ("--help", "-h"):
        ran = cli(*verb.split(), flag)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage: foretell" in ran.out
        assert max(len(line) for line in ran.out.splitlines()) <= 90
    for example in getattr(VERBS.get(verb), "examples", ()):
        assert f"\n  {example}\n" in ran.out + "\n"


def test_the_version_is_printed_by_either_way_in(cli: Any) -> None:
    assert cli("--version").out == f"foretell {__version__}\n"
    assert cli("--version", "fit").out == f"foretell {__version__}\n"  # through click


@pytest.mark.parametrize("arguments", [[], ["fti"], ["fit"], ["catalog"], ["fit", "a", "b"], ["--nonsense"]])
def test_a_command_that_is_not_one(cli: Any, arguments: list[str]) -> None:
    assert cli(*arguments).code == 2
    ran = cli(*arguments, "--json")
    assert ran.code == 2


def test_an_unknown_verb_is_met_with_the_near_one(cli: Any) -> None:
    assert "Did you mean fit?" in cli("fti").err


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        message = "cannot happen"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(fit.command, "callback", fail)


@pytest.mark.usefixtures("broken")
def test_a_fault_of_ours_is_3_and_asks_to_be_reported(cli: Any) -> None:
    ran = cli("fit", "llama-3-8b", "--gpu", "h100")
    assert (ran.code, ran.out) == (3, "")
    assert "ZeroDivisionError: cannot happen" in ran.err
    assert "please report" in ran.err
    error = cli("fit", "llama-3-8b", "--gpu", "h100", "--json").error
    assert (error["kind"], error["message"]) == ("internal", "ZeroDivisionError: cannot happen")


@pytest.mark.usefixtures("broken")
def test_the_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORETELL_DEBUG", "1")
    assert _app.run(["fit", "x", "--gpu", "h100"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_it_runs_as_a_program_and_survives_a_reader_that_leaves() -> None:
    done = subprocess.run([sys.executable, "-m", "foretell", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"foretell {__version__}\n"
    command = f"{sys.executable} -m foretell catalog list models | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_terminal_without_block_characters_gets_plain_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "foretell", "fit", "gpt-2", "--gpu", "h100"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "####" in done.stdout


def test_a_program_answers_with_its_exit_code(tmp_path: Path) -> None:
    base = [sys.executable, "-m", "foretell", "fit", "llama-3.2-1b", "--gpu"]
    for gpu, code in (("h100", 0), ("t4", 1), ("h10", 2)):
        done = subprocess.run([*base, gpu, "--seq-len", "8192"], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_the_version_imports_no_library() -> None:
    code = (
        "import sys; from foretell.cli import main; main(['--version']);"
        "print(sorted({'click', 'rich', 'numpy', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_fit_imports_neither_numpy_nor_pint_nor_torch() -> None:
    code = (
        "import sys; from foretell.cli import main; main(['fit','llama-3-8b','--gpu','h100','--gpus','8','--quiet']);"
        "print(sorted({'numpy','pint','torch','yaml','msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("--zero 9", "option --zero"),
        ("--seq-len=0", "option --seq-len"),
        ("--gpu h1000", "option --gpu"),
        ("--pp 64", "option --pp"),
    ],
)
def test_a_value_is_traced_to_its_option(cli: Any, arguments: str, where: str) -> None:
    base = [] if "--gpu" in arguments else ["--gpu", "h100"]
    error = cli("fit", "llama-3-8b", *base, *arguments.split(), "--json").error
    assert error["where"] == where
    assert error["hint"].startswith("See: foretell ")
