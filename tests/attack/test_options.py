"""Every option of `fit` and of `train` changes the answer, is noted, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Config = Callable[..., str]
BASES = {
    "generic": "",
    "fsdp2": "--gpus 8 --framework fsdp2",
    "megatron": "--gpus 16 --framework megatron-core --tp 2 --pp 2",
    "deepspeed": "--gpus 8 --framework deepspeed --zero 3",
    "trainer": "--framework hf-trainer",
    "full": "--recompute full",
    "selective": "--recompute selective",
    "qlora": "--lora-rank 8 --quantization nf4",
}
OPTIONS = """
--gpus-per-node 4 | --headroom 20% | --micro-batch 2 | --global-batch 64 | --grad-accum 4 | --seq-len 1024
--encoder-seq-len 256 | --packing | --no-packing | --max-sample-len 512 | --vpp 2 | --cp 2 | --ep 4 | --etp 1
--etp 2 | --sp | --no-sp | --zero 1 | --zero 3 | --sharding ddp | --sharding deepspeed | --sharding distopt
--sharding megatron-fsdp | --hsdp-replicas 2 | --pp-layout 3,5 | --schedule gpipe | --schedule 1f1b
--schedule interleaved-1f1b | --schedule zb-h1 | --precision fp16 | --precision fp32 | --precision bf16-true
--optimizer sgd | --optimizer adamw8bit | --optimizer lion | --optimizer-impl fused | --optimizer-impl forloop
--optimizer-in-backward | --recompute full | --recompute selective | --recompute-scope layer
--recompute-scope uniform | --recompute-scope op | --recompute-scope modules | --recompute-layers 2
--recompute-modules core_attn | --recompute-modules nothing | --attention eager | --attention sdpa | --loss eager
--loss fused | --loss chunked | --compile | --dropout 0.1 | --offload optimizer | --offload activations
--expandable-segments | --no-expandable-segments | --lora-rank 16 | --lora-targets q_proj | --lora-kind dora
--lora-dropout 0.1 | --modules-to-save lm_head | --modules-to-save nothing | --quantization int8 | --double-quant
--trainable-fraction 0.5
"""
ODD = ("", " ", "a\nb", "\x1b[31mred", "[bold]", "x" * 10_000, "\x00", "%s{}", "../../etc/passwd", "--x")
NAMED = ("--gpu", "--framework", "--optimizer", "--precision", "--attention", "--offload", "--zero", "--max")
GIVEN = [text.strip() for line in OPTIONS.strip().splitlines() for text in line.split("|")]


SPEED_OPTIONS = """
--nic-gbps 100 | --nics-per-node 2 | --congestion 2 | --algorithm ring | --algorithm tree | --algorithm nvls | --algorithm deepep
--software-date 2024-01 | --cuda-graphs layer | --cuda-graphs full | --tp-overlap | --no-tp-overlap | --dispatcher alltoall
--expert-spread 0.5 | --efficiency 0.5 | --imbalance 1.5 | --jitter 2%
--loader-time 1us | --loader-time 10s | --tokens 1B | --measured-step 10s
--vpp 4 | --precision fp8 | --system dgx-h100
"""
FASTER = [text.strip() for line in SPEED_OPTIONS.strip().splitlines() for text in line.split("|")]


@pytest.mark.parametrize(("verb", "base"), [(verb, base) for verb in ("fit", "train") for base in BASES])
def test_no_option_is_ignored(cli: Any, config: Config, verb: str, base: str) -> None:
    start = [verb, config(), "--gpu", "h100", "--no-advice", "--json", *BASES[base].split()]
    plain = cli(*start).document
    ignored = []
    for given in GIVEN if verb == "fit" else GIVEN + FASTER:
        ran = cli(*start, *given.split())
        if ran.code == 2:
            assert ran.error["field"]
            continue
        found = ran.document
        name = given.split()[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        name = {"loader_time": "loader_time_s", "measured_step": "measured_step_s"}.get(name, name)
        said_again = found["inputs"][name] == plain["inputs"][name] and found["inputs"][name] is not None
        if not said_again and all(found[key] == plain[key] for key in ("result", "notes")):
            ignored.append(given)
    assert not ignored


def test_an_option_without_effect_is_named(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "h100", "--no-advice", "--json", "--schedule", "gpipe")
    assert "given, and without effect on this answer: --schedule" in ran.document["notes"]
    ran = cli("fit", config(), "--gpu", "h100", "--no-advice", "--json", "--tp", "2", "--zero", "0")
    assert not any("without effect" in note for note in ran.document["notes"])


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("--max micro-batch --micro-batch 2", "micro_batch"),
        ("--max seq-len --seq-len 128", "seq_len"),
        ("--min gpus --gpus 8", "gpus"),
        ("--min gpus --dp 8", "dp"),
        ("--recompute full --recompute-scope op", "recompute_scope"),
        ("--recompute selective --recompute-scope uniform", "recompute_scope"),
        ("--recompute full --recompute-layers 2", "recompute_layers"),
        ("--recompute full --recompute-scope block --recompute-layers 9", "recompute_layers"),
        ("--recompute full --recompute-modules mlp", "recompute_modules"),
        ("--recompute selective --recompute-modules nothing", "recompute_modules"),
        ("--lora-rank 8 --modules-to-save nothing", "modules_to_save"),
        ("--lora-rank 0", "lora_rank"),
        ("--gpus 8 --framework torchtune --sharding deepspeed", "sharding"),
        ("--gpus 8 --framework deepspeed --sharding fsdp2", "sharding"),
        ("--gpus 8 --framework fsdp2 --sharding megatron-fsdp", "sharding"),
        ("--gpus 8 --framework megatron-core --sharding deepspeed", "sharding"),
        ("--gpus 4 --framework fsdp2 --hsdp-replicas 3", "hsdp_replicas"),
    ],
)
def test_what_has_no_use_is_refused(cli: Any, config: Config, given: str, field: str) -> None:
    assert cli("fit", config(), "--gpu", "h100", "--json", *given.split()).error["field"] == field


def test_a_global_batch_that_an_answer_moves_is_noted(cli: Any, config: Config) -> None:
    ran = cli("fit", config(), "--gpu", "h100", "--json", "--max", "micro-batch", "--global-batch", "3")
    assert any("the global batch becomes" in note for note in ran.document["notes"])


@pytest.mark.parametrize(
    "text", ["", " ", "a\nb", "\x1b[31mred", "[bold]", "x" * 10_000, "\x00", "%s{}", "../../etc/passwd", "--x"]
)
@pytest.mark.parametrize(
    "option", ["--gpu", "--framework", "--optimizer", "--precision", "--attention", "--offload", "--zero", "--max"]
)
def test_odd_text(cli: Any, config: Config, option: str, text: str) -> None:
    assert cli("fit", config(), "--gpu", "h100", "--json", option, text).error["message"]


def test_a_number_is_a_number(cli: Any, config: Config) -> None:
    for size in ("nan", "inf", "1e30", "-1", "0", "1.5", "true", "9" * 5000, "[1]", "0b1"):
        for option in ("--cp", "--ep", "--dp", "--vpp", "--grad-accum", "--global-batch", "--gpus-per-node", "--lora-rank"):
            assert cli("fit", config(), "--gpu", "h100", "--json", option, size).error["field"]
    json.dumps(cli("fit", config(), "--gpu", "h100", "--json").document, allow_nan=False)


@pytest.mark.parametrize(
    "text", ["", " ", "a\nb", "\x1b[31mred", "x" * 10_000, "\x00", "--x", "nan", "inf", "-1", "1e400", "[1]", "9" * 5000]
)
def test_odd_text_in_what_decides_speed(cli: Any, config: Config, text: str) -> None:
    for option in (
        *("--system", "--nic-gbps", "--nics-per-node", "--congestion", "--algorithm", "--software-date", "--cuda-graphs"),
        *(
            "--dispatcher",
            "--efficiency",
            "--imbalance",
            "--expert-spread",
            "--jitter",
            "--loader-time",
            "--tokens",
            "--measured-step",
        ),
    ):
        ran = cli("train", config(), "--gpu", "h100", "--json", option, text)
        assert (ran.code, ran.out) == (2, ""), option
        assert ran.error["field"] or text == "--x"
