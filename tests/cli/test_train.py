"""`foretell train`: the step and its ledger, the JSON object, anchors, whole runs, exit codes, input that cannot be used."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.cli import train
from foretell.cli._options import TRAIN, WHOLE, names

Config = Callable[..., str]


def test_a_model_and_a_gpu_are_enough_and_the_rest_is_said(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "h100")
    assert (ran.code, ran.err) == (0, "")
    assert " a step (" in ran.out.splitlines()[0]
    for said in ("1 GPU", "micro-batch 1", "sequence of 2048 (the model's limit)", "bf16 mixed precision", "AdamW"):
        assert said in " ".join(ran.out.split())


def test_the_object_adds_up(cli: Any, config: Config) -> None:
    result = cli("train", config(), "--gpu", "h100", "--gpus", "8", "--pp", "4", "--tp", "2", "--json").result
    step = result["step_s"]
    assert sum(result["breakdown"].values()) == pytest.approx(step)
    assert sum(result["shares"].values()) == pytest.approx(1)
    assert result["bottleneck"] == max(result["shares"], key=result["shares"].__getitem__)
    low, high = result["interval_s"]
    assert low < step < high
    assert result["tokens_per_second"] == pytest.approx(8 * result["tokens_per_second_per_device"])
    assert result["tokens_per_second"] == pytest.approx(2048 * result["samples_per_second"])
    assert result["mfu"] == pytest.approx(result["model_flops"] / (step * 8 * result["peak_flops_per_s"]))
    assert result["mfu"] < result["mfu_full_attention"]
    assert 0 <= result["exposed_communication_s"] <= step
    assert [row["stage"] for row in result["per_stage"]] == [0, 1, 2, 3]
    for row in result["per_stage"]:
        parts = sum(row[name] for name in ("compute_s", "memory_s", "exchanges_s", "host_s"))
        assert parts == pytest.approx(row["micro_batch_s"])


def test_recomputation_separates_the_utilisations(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "h100", "--json")
    plain, full = cli(*base).result, cli(*base, "--recompute", "full").result
    assert full["model_flops"] == plain["model_flops"]
    assert full["hfu"] / full["mfu"] > 1.15 * plain["hfu"] / plain["mfu"]


def test_memory_is_what_fit_says(cli: Any, config: Config) -> None:
    base = (config(), "--gpu", "h100", "--gpus", "8", "--framework", "fsdp2", "--json")
    fit, memory = cli("fit", *base).result, cli("train", *base).result["memory"]
    assert memory == {name: fit[name] for name in memory}


def test_every_option_of_the_help_is_echoed_in_the_inputs(cli: Any, config: Config) -> None:
    inputs = cli("train", config(), "--gpu", "h100", "--json").document["inputs"]
    apart = {"json", "quiet", "no_advice", "operators", "plot"}  # they change what is printed, not the answer
    renamed = {"loader_time": "loader_time_s", "measured_step": "measured_step_s"}
    whole = set(names({WHOLE: TRAIN[WHOLE]})) - apart
    assert {renamed.get(p.name, p.name) for p in train.command.params} - set(inputs) == apart | whole
    assert inputs["run"] is None
    run = cli("train", config(), "--gpu", "h100", "--tokens", "1T", "--json").document["inputs"]["run"]
    also = {"own": "mode", "price": "price_usd_per_device_hour", "node_price": "node_price_usd", "node_power": "node_power_w"}
    also |= {"recovery_time": "recovery_time_s", "checkpoint_interval": "checkpoint_interval_s"}
    also |= {"storage_bandwidth": "storage_bytes_per_s"}
    assert {also.get(name, name) for name in whole} == set(run)


def test_values_are_echoed_as_used(cli: Any, config: Config) -> None:
    given = (
        "--gpu h100 --gpus 16 --nic-gbps 200 --nics-per-node 4 --congestion 1.5 --algorithm ring --jitter 2% --loader-time 90ms "
        "--software-date 2025-06 --cuda-graphs full --efficiency 0.4 --tokens 2.5M --measured-step 1.5s"
    )
    inputs = cli("train", config(), *given.split(), "--json").document["inputs"]
    wanted: dict[str, object] = {
        "gpus": 16, "nic_gbps": 200, "nics_per_node": 4, "congestion": 1.5, "algorithm": "ring", "jitter": 0.02,
        "loader_time_s": 0.09, "software_date": "2025-06", "cuda_graphs": "full", "efficiency": 0.4, "tokens": 2.5e6,
        "measured_step_s": 1.5, "network": "ib", "gpus_per_node": 8, "imbalance": 1.0, "tp_overlap": None, "dispatcher": None,
    }  # fmt: skip
    assert {name: inputs[name] for name in wanted} == pytest.approx(wanted)


# -- the machine ---------------------------------------------------------------------------------------------


def test_a_system_is_its_accelerators_and_its_network(cli: Any, config: Config) -> None:
    document = cli("train", config(), "--system", "aws-p4d-24xlarge", "--json").document
    inputs = document["inputs"]
    assert (inputs["gpu"], inputs["gpus"], inputs["network"], inputs["nic_gbps"]) == ("a100-sxm-40gb", 8, "efa", 100)
    assert any(text.startswith("8 GPUs, all of ") for text in document["result"]["assumed"])
    more = cli("train", config(), "--system", "aws-p4d-24xlarge", "--tp", "8", "--pp", "2", "--json").document
    assert more["inputs"]["gpus"] == 16


def test_the_accelerator_of_another_system_is_refused(cli: Any, config: Config) -> None:
    assert cli("train", config(), "--system", "dgx-h100", "--gpu", "h100", "--json").code == 0
    error = cli("train", config(), "--system", "dgx-h100", "--gpu", "a100", "--json").error
    assert (error["field"], error["where"]) == ("gpu", "option --gpu")


def test_a_slower_network_takes_longer(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "h100", "--gpus", "32", "--zero", "3", "--json")
    steps = [cli(*base, *more).result["step_s"] for more in ((), ("--nic-gbps", "50"), ("--nic-gbps", "50", "--congestion", "4"))]
    assert steps == sorted(steps)
    assert steps[0] < steps[1] < steps[2]


# -- questions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "tokens"), [("1e12", 1e12), ("15T", 15e12), ("300b", 3e11), ("2.5 M", 2.5e6), ("4096", 4096)])
def test_a_number_of_tokens(cli: Any, config: Config, text: str, tokens: float) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--gpus", "8", "--tokens", text, "--json")
    result, batch = ran.result, ran.document["inputs"]["global_batch"]
    assert result["tokens"] == tokens
    assert result["steps"] == -(-tokens // (batch * 2048))
    assert result["hours"] == pytest.approx(result["steps"] * result["step_s"] / 3600)
    assert result["days"] == pytest.approx(result["hours"] / 24)
    assert result["gpu_hours"] == pytest.approx(8 * result["hours"])
    low, high = result["days_interval"]
    assert low < result["days"] < high
    assert low / result["days"] == pytest.approx(result["interval_s"][0] / result["step_s"])


def test_nothing_is_said_of_a_run_that_nobody_asked_for(cli: Any, config: Config) -> None:
    result = cli("train", config(), "--gpu", "h100", "--json").result
    assert {result[name] for name in ("tokens", "steps", "hours", "days", "days_interval", "gpu_hours")} == {None}


def test_a_measured_step_scales_everything(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "h100", "--gpus", "8", "--json")
    was = cli(*base).result
    now = cli(*base, "--measured-step", f"{2 * was['step_s']}s").result
    assert now["anchor"] == pytest.approx(2)
    assert now["step_s"] == pytest.approx(2 * was["step_s"])
    assert now["mfu"] == pytest.approx(was["mfu"] / 2)
    assert sum(now["breakdown"].values()) == pytest.approx(now["step_s"])
    assert now["per_stage"][0]["micro_batch_s"] == pytest.approx(2 * was["per_stage"][0]["micro_batch_s"])
    width = [(high - low) / step for (low, high), step in ((r["interval_s"], r["step_s"]) for r in (was, now))]
    assert width[1] < width[0]
    saved = {s["option"]: s["saves_pct"] for s in was["suggestions"]}
    assert saved == pytest.approx({s["option"]: s["saves_pct"] for s in now["suggestions"]})
    assert "re-scaled by 2.00" in cli(*base[:-1], "--measured-step", f"{2 * was['step_s']}s").out


def test_a_measured_step_that_no_device_reaches_is_refused(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--measured-step", "1us", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error["field"], ran.error["where"]) == ("measured_step", "option --measured-step")
    assert "which no device reaches" in ran.error["message"]


def test_the_operators_are_the_layers_share_of_the_step(cli: Any, config: Config) -> None:
    result = cli("train", config(), "--gpu", "h100", "--grad-accum", "4", "--json").result
    found = result["operators"]
    assert found["layers"] == 8
    spent = sum(row["forward_s"] + row["backward_s"] for row in found["rows"])
    device = sum(result["breakdown"][name] for name in ("matmul", "attention", "stream"))
    assert 4 * 8 * spent < device  # the head and the embedding are the rest
    assert 4 * 8 * spent > 0.5 * device
    bounds = {row["name"]: row["bound"] for row in found["rows"]}
    assert set(bounds.values()) <= {"compute", "memory", "launch"}
    text = cli("train", "llama-3-8b", "--gpu", "h100", "--operators").out
    assert "ridge point 295 FLOP/byte" in text
    line = next(line for line in text.splitlines() if line.startswith("  norm1"))
    assert line.endswith("memory")


# -- exit codes and the screen -------------------------------------------------------------------------------


def test_a_run_that_does_not_fit_is_1_and_its_speed_is_marked(cli: Any) -> None:
    ran = cli("train", "llama-3-8b", "--gpu", "h100", "--json")
    assert (ran.code, ran.result["runs"], ran.result["memory"]["verdict"]) == (1, False, "does_not_fit")
    assert all(s["verdict"] == "fits" for s in ran.result["suggestions"])
    text = cli("train", "llama-3-8b", "--gpu", "h100")
    assert text.code == 1
    assert text.out.startswith("DOES NOT FIT  would be ")
    assert "the run does not fit: this is the speed that it would have" in " ".join(text.out.split())


def test_uncertain_is_0_with_a_note(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "t4", "--headroom", "90%", "--micro-batch", "4", "--json")
    assert (ran.code, ran.result["memory"]["verdict"]) == (0, "uncertain")
    assert any("whether the run fits is uncertain" in note for note in ran.document["notes"])


def test_quiet_is_one_line(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--quiet")
    assert ran.out.count("\n") == 1
    assert "tokens/s, MFU " in ran.out
    assert "samples/s, MFU " in cli("train", "resnet-50", "--gpu", "h100", "--quiet").out


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--gpus 8 --pp 4 --tp 2 --framework megatron-core --global-batch 16 --tokens 300B",
        "--gpus 64 --framework fsdp2 --measured-step 1s",
        "--gpus 8 --operators --jitter 0.05 --loader-time 3s",
        "--lora-rank 8 --quantization nf4",
    ],
)
def test_the_answer_is_one_screen_of_80_columns(cli: Any, config: Config, more: str) -> None:
    lines = cli("train", config(), "--gpu", "h100", *more.split()).out.splitlines()
    assert len(lines) <= (100 if "--tokens" in more else 70)
    assert max(len(line) for line in lines) <= 80
    text = "\n".join(lines)
    assert ("pipeline stages" in text) == ("--pp" in more)
    assert ("operators of the main layer" in text) == ("--operators" in more)
    assert ("GPU-hours" in text) == ("--tokens" in more)
    assert all(f"  {name}" in text for name in ("MFU, causal", "MFU, full attention", "HFU"))


@pytest.mark.parametrize(
    "given",
    [
        "--congestion 2",
        "--nic-gbps 100",
        "--imbalance 1.5",
        "--dispatcher flex",
        "--tp-overlap",
        "--loader-time 1us",
        "--jitter 0.1",
        "--algorithm tree",
    ],
)
def test_a_setting_without_effect_is_named(cli: Any, config: Config, given: str) -> None:
    ran = cli("train", config(), "--gpu", "h100", *given.split(), "--json")
    assert any("without effect" in note and given.split(maxsplit=1)[0] in note for note in ran.document["notes"])


# -- input that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ("--gpus 6 --tp 4", "gpus", "is no multiple of tp x pp x cp"),
        ("--gpus 8 --dp 4", "gpus", "is not dp x tp x pp x cp"),
        ("--tp 3", "tp", "must divide the model's 8 attention heads"),
        ("--pp 64", "pp", "more than the model's 8 layers"),
        ("--gpus 8 --global-batch 4", "global_batch", "is no multiple of dp 8"),
        ("--micro-batch 32 --global-batch 16", "global_batch", "is no multiple of"),
        ("--pp 4 --vpp 2 --grad-accum 6", "micro_batches", "does not divide into groups of pp"),
        ("--efficiency 0", "efficiency", "would never end"),
        ("--efficiency 1.5", "efficiency", "is no efficiency"),
        ("--efficiency nan", "efficiency", "is no efficiency"),
        ("--efficiency fast", "efficiency", "calibrated"),
        ("--congestion -1", "congestion", "must be a finite number in range"),
        ("--congestion 0.5", "congestion", "1 to 10000"),
        ("--imbalance 0", "imbalance", "1 to 10000"),
        ("--jitter -0.1", "jitter", "must be a share"),
        ("--jitter 20", "jitter", "must be a share"),
        ("--algorithm rign", "algorithm", "Did you mean ring?"),
        ("--cuda-graphs all", "cuda_graphs", "none, partial, layer, full"),
        ("--dispatcher deepep", "dispatcher", "alltoall, flex"),
        ("--software-date 2026", "software_date", "is no month"),
        ("--software-date 2026-13", "software_date", "is no month"),
        ("--loader-time -1s", "loader_time", "must be finite and not negative"),
        ("--loader-time 3GB", "loader_time", "is a size, not a time"),
        ("--nic-gbps 0", "nic_gbps", "must be a finite number in range"),
        ("--nics-per-node 0", "nics_per_node", "is below the smallest"),
        ("--measured-step 0", "measured_step", "must be a finite number in range"),
        ("--tokens 0", "tokens", "15T, 300B, 2.5M"),
        ("--tokens many", "tokens", "15T, 300B, 2.5M"),
        ("--tokens -5B", "tokens", "15T, 300B, 2.5M"),
        ("--tokens 1e40", "tokens", "15T, 300B, 2.5M"),
        ("--efficiency 0.5 --operators", "operators", "Leave out --efficiency"),
    ],
)
def test_input_that_cannot_be_used(cli: Any, config: Config, given: str, field: str, says: str) -> None:
    ran = cli("train", config(), "--gpu", "h100", *given.split(), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"] == field
    assert says in ran.error["message"] + str(ran.error["hint"])


def test_a_precision_that_the_gpu_lacks_is_met_with_what_it_has(cli: Any, config: Config) -> None:
    error = cli("train", config(), "--gpu", "a100", "--precision", "fp8", "--json").error
    assert error["field"] == "precision"
    assert "bf16" in error["allowed"]


def test_an_unknown_system_names_the_near_ones(cli: Any, config: Config) -> None:
    error = cli("train", config(), "--system", "dgx-h10", "--json").error
    assert "dgx-h100" in error["allowed"]
    assert cli("train", config()).code == 2


def test_tokens_of_a_model_that_reads_none(cli: Any) -> None:
    error = cli("train", "resnet-50", "--gpu", "h100", "--tokens", "1B", "--json").error
    assert (error["field"], error["hint"]) == ("tokens", "Leave it out")


# -- suggestions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "llama-3-8b --gpu h100 --gpus 8 --framework fsdp2 --seq-len 2048 --recompute full",
        "llama-3-8b --gpu h100 --gpus 16 --tp 8 --framework megatron-core --zero 1 --global-batch 64",
        "llama-3.1-70b --gpu h100 --gpus 64 --tp 4 --pp 4 --framework megatron-core --zero 1 --seq-len 8192 --recompute full",
        "gpt-2 --gpu a100 --framework hf-trainer --attention eager",
        "mixtral-8x7b --gpu h200 --gpus 64 --ep 8 --framework megatron-core --zero 1 --nic-gbps 100",
    ],
)
def test_a_suggestion_added_to_the_command_gives_what_it_says(cli: Any, line: str) -> None:
    base = ("train", *line.split())
    now = cli(*base, "--json").result
    assert now["suggestions"]
    saved = [s["saves_s"] for s in now["suggestions"]]
    assert saved == sorted(saved, reverse=True)
    for entry in now["suggestions"]:
        then = cli(*base, *shlex.split(entry["option"]), "--json").result
        assert then["step_s"] == pytest.approx(entry["step_s"]), entry
        assert then["memory"]["verdict"] == entry["verdict"] == "fits"
        rate = then["samples_per_second"] / now["samples_per_second"]
        assert 1 - 1 / rate == pytest.approx(entry["saves_pct"] / 100)
        assert entry["saves_s"] == pytest.approx(now["step_s"] * entry["saves_pct"] / 100)


def test_train_imports_neither_numpy_nor_pint_nor_torch() -> None:
    code = (
        "import sys; from foretell.cli import main; main(['train','llama-3-8b','--gpu','h100','--gpus','8','--operators']);"
        "print(sorted({'numpy','pint','torch','yaml','msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--framework deepspeed --zero 2 --offload optimizer", "copies to and from host memory (grads, optimizer)"),
        ("--lora-rank 8 --quantization nf4", "converting the nf4 base"),
        ("--framework fsdp2 --optimizer-impl forloop", "parameter by parameter"),
    ],
)
def test_what_is_left_out_of_the_speed_is_said(cli: Any, config: Config, given: str, says: str) -> None:
    notes = cli("train", config(), "--gpu", "h100", "--gpus", "8", *given.split(), "--json").document["notes"]
    assert any(note.startswith("speed: ") and says in note for note in notes)


def test_a_layout_in_letters_is_the_one_in_numbers(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "h100", "--pp", "4", "--framework", "megatron-core", "--json", "--pp-layout")
    numbers, letters = cli(*base, "1,3,3,1").document, cli(*base, "Et|(t*3|)*2tL").document
    assert numbers == letters
    assert numbers["inputs"]["pp_layout"] == [1, 3, 3, 1]
    for wrong in ("Et|tL|", "Et|ttt|tttmL", "|"):
        assert cli(*base, wrong).error["field"] == "pp_layout"


def test_no_help_is_said_to_be_none(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--micro-batch", "64", "--global-batch", "64", "--json")
    assert ran.result["suggestions"] == [] or all(s["saves_s"] > 0 for s in ran.result["suggestions"])
    helped = [note for note in ran.document["notes"] if note.startswith("no single change")]
    assert bool(helped) == (not ran.result["suggestions"])


def test_a_model_of_images_is_like_no_measured_run(cli: Any) -> None:
    ran = cli("train", "resnet-50", "--gpu", "a100", "--json")
    assert ran.result["regime"] == "elsewhere"
    assert ran.result["tokens_per_second"] is None
    text = cli("train", "resnet-50", "--gpu", "a100").out
    assert "6N" not in text
    assert "samples/s" in text


def test_imbalance_takes_the_place_of_the_assumption(cli: Any) -> None:
    base = ("train", "mixtral-8x7b", "--gpu", "h200", "--gpus", "64", "--ep", "8", "--zero", "1", "--no-advice", "--json")
    even, hot = cli(*base).result, cli(*base, "--imbalance", "1.5").result
    assert "tokens spread evenly over the experts" in even["assumed"]
    assert "tokens spread evenly over the experts" not in hot["assumed"]
    assert hot["breakdown"]["experts"] > 1.2 * even["breakdown"]["experts"]


# -- the whole run -------------------------------------------------------------------------------------------


def test_a_whole_run_is_a_chain(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "h100", "--gpus", "16", "--tokens", "1T", "--region", "us-iowa", "--json")
    result = cli(*base, "--price", "2", "--failure-rate", "5", "--recovery-time", "10min").result
    run, step = result["run"], result["step_s"]
    at = {name: band["point"] for name, band in run["quantities"].items()}
    assert at["productive_days"] == pytest.approx(result["steps"] * step / 86400)
    assert at["mtbf_hours"] == pytest.approx(24_000 / (5 * 2))
    assert at["wall_days"] == pytest.approx(at["productive_days"] / at["goodput_ratio"])
    assert at["interruptions"] == pytest.approx(24 * at["wall_days"] / at["mtbf_hours"])
    assert at["gpu_hours"] == pytest.approx(24 * at["wall_days"] * 16)
    assert at["cost_usd"] == pytest.approx(2 * at["gpu_hours"])
    assert at["total_energy_kwh"] == pytest.approx(1.25 * at["it_energy_kwh"])
    assert at["operational_carbon_kg"] == pytest.approx(0.41272 * at["total_energy_kwh"])
    assert sum(run["losses"].values()) == pytest.approx(1)
    assert all(band["p10"] <= band["p50"] <= band["p90"] for band in run["quantities"].values())
    again = cli(*base, "--price", "2", "--failure-rate", "5", "--recovery-time", "10min").result["run"]
    assert again == run  # the samples are those of a seed


def test_a_run_without_a_price_has_no_cost_and_says_so(cli: Any, config: Config) -> None:
    base = ("train", config(), "--gpu", "gaudi3", "--tokens", "1T")
    document = cli(*base, "--json").document
    assert "cost_usd" not in document["result"]["run"]["quantities"]
    assert any("--price" in note for note in document["notes"])
    assert "cost: unknown" in cli(*base).out
    asked = cli(*base, "--own")
    assert (asked.code, "--node-price" in asked.err) == (2, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--region quebec", "Add --tokens"),
        ("--tokens 1T --region atlantis", "nearest"),
        ("--tokens 1T --pue 0.9", "pue=0.9"),
        ("--tokens 1T --failure-rate 0", "failure_rate="),
        ("--tokens 1T --failure-rate 6,2", "a low and then a high rate"),
        ("--tokens 1T --failure-rate 3 --record rsc-1", "record="),
        ("--tokens 1T --record rsc-9", "nearest"),
        ("--tokens 1T --checkpoint-interval 0", "checkpoint_interval"),
        ("--tokens 1T --checkpoint-mode lazy", "sync, async, memory"),
        ("--tokens 1T --price -2", "price="),
        ("--tokens 1T --own --price 2", "Leave out --own"),
        ("--tokens 1T --node-price 300000", "Add --own"),
        ("--tokens 1T --provider nobody", "provider"),
        ("--tokens 1T --node-power 7.7kWh", "node_power"),
        ("--tokens 1T --storage-bandwidth 200GiB", "storage_bandwidth"),
        ("--tokens 1T --samples 5", "samples=5"),
        ("--tokens 1T --boundary marginal", "operational, lifecycle, market"),
        ("--tokens 1T --boundary market", "boundary='market'"),
    ],
)
def test_what_a_whole_run_cannot_be_asked(cli: Any, config: Config, given: str, said: str) -> None:
    ran = cli("train", config(), "--gpu", "h100", *given.split())
    assert ran.code == 2
    assert said in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ("--provider lambda --price 2", "--provider"),
        ("--price-kind spot --price 2", "--price-kind"),
        ("--storage-bandwidth 200GB/s --checkpoint-mode memory", "--storage-bandwidth"),
        ("--price-kind on-demand --price 2", ""),  # what holds anyhow
        ("--region quebec --carbon-intensity 20 --storage-bandwidth 200GB/s --node-power 8kW --seed 3 --samples 500", ""),
        ("--recovery-time 5min --checkpoint-interval 1 --failure-rate 2,3 --own --node-price 300000", ""),
    ],
)
def test_an_option_that_does_not_change_the_run_is_named(cli: Any, config: Config, given: str, idle: str) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--tokens", "1T", *given.split(), "--no-advice", "--json")
    notes = [note for note in ran.document["notes"] if "without effect" in note]
    assert notes == ([f"given, and without effect on this answer: {idle}"] if idle else [])


def test_a_run_that_fails_faster_than_it_saves_makes_no_progress(cli: Any, config: Config) -> None:
    ran = cli("train", config(), "--gpu", "h100", "--tokens", "1T", "--failure-rate", "1e7", "--no-advice")
    assert "NO PROGRESS" in ran.out
    assert ran.code == 1


def test_a_picture_is_drawn_where_it_is_asked_for(cli: Any, config: Config, tmp_path: Path) -> None:
    base = ("train", config(), "--gpu", "h100", "--tokens", "1B", "--quiet", "--plot")
    assert cli(*base, str(tmp_path / "run.svg")).code == 0
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
    for bad, said in ((tmp_path / "run.gif", ".png, .svg"), (tmp_path / "no" / "run.png", "does not exist")):
        ran = cli(*base, str(bad))
        assert (ran.code, said in ran.err) == (2, True)
