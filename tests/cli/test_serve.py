"""`foretell serve`: the answer and its ledgers, loads, simulations, sizing, exit codes, input that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.cli import serve

Config = Callable[..., str]
TRACE = "arrival,input_tokens,output_tokens\n" + "".join(f"{0.25 * i},{200 + i % 7},{20 + i % 5}\n" for i in range(200))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Two hundred requests in fifty seconds."""
    path = tmp_path / "requests.csv"
    path.write_text(TRACE)
    return str(path)


# -- the answer ----------------------------------------------------------------------------------------------


def test_a_model_is_enough_and_the_rest_is_said(cli: Any) -> None:
    ran = cli("serve", "llama-3-8b")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("FITS  TTFT ")
    text = " ".join(ran.out.split())
    for said in ("assumed: H100; 1024 tokens in, 256 out; vLLM; weights in bf16; 32 requests in flight", "max_num_seqs="):
        assert said in text
    for heading in ("latency and throughput", "of a mean step go", "memory of one GPU (GiB)", "over concurrency (closed loop)"):
        assert heading in ran.out
    assert "\n  vllm serve " in ran.out


def test_the_parts_add_up(cli: Any, config: Config) -> None:
    result = cli("serve", config(), "--tp", "2", "--dp", "3", "--concurrency", "12", "--json").result
    assert (result["gpus"], result["replicas"]) == (6, 3)
    assert result["ttft_s"] == pytest.approx(result["client_s"] + result["queue_s"] + result["prompt_s"])
    assert result["output_tokens_per_s"] == pytest.approx(6 * result["output_tokens_per_s_per_gpu"])
    assert result["output_tokens_per_s"] == pytest.approx(256 * result["requests_per_s"])
    assert result["total_tokens_per_s"] == pytest.approx((256 + 1024) * result["requests_per_s"])
    assert sum(result["step"]["ledger_s"].values()) == pytest.approx(result["step"]["total_s"])
    kv = result["kv"]
    assert sum(term["bytes"] for term in kv["ledger"]) == pytest.approx(kv["pool_bytes"], abs=len(kv["ledger"]))
    assert kv["tokens"] == kv["blocks"] * kv["block_size"]
    assert kv["interval_tokens"][0] <= kv["tokens"] <= kv["interval_tokens"][1]
    for name in ("ttft_s", "itl_s"):
        low, high = result[f"{name[:-2]}_interval_s"]
        assert low <= result[name] <= high
    low, high = result["output_tokens_per_s_interval"]
    assert low <= result["output_tokens_per_s"] <= high


def test_the_curve_passes_through_the_answer(cli: Any, config: Config) -> None:
    result = cli("serve", config(), "--concurrency", "16", "--json").result
    here = next(point for point in result["curve"] if point["concurrency"] == 16)
    assert (here["ttft_s"], here["itl_s"]) == pytest.approx((result["ttft_s"], result["itl_s"]))
    assert here["output_tokens_per_s"] == pytest.approx(result["output_tokens_per_s"])
    rates = [point["output_tokens_per_s"] for point in result["curve"]]
    assert rates == sorted(rates)
    last = result["curve"][-1]
    assert (last["pareto"], last["queue_s"] > 0) == (False, True)
    assert result["curve"][-2]["concurrency"] == int(result["max_resident"])


def test_every_option_of_the_help_is_echoed_in_the_inputs(cli: Any, config: Config) -> None:
    inputs = cli("serve", config(), "--json").document["inputs"]
    apart = {"json", "quiet", "no_advice", "plot", "qps"}  # the first change what is printed; qps is rate
    assert {p.name for p in serve.command.params} - set(inputs) == apart


def test_values_are_echoed_as_used(cli: Any, config: Config) -> None:
    given = (
        "--gpu a100 --engine sglang --engine-version 0.4.6 --weights int8 --kv-dtype fp8 --tp 4 --max-num-seqs 64 "
        "--max-num-batched-tokens 4096 --max-model-len 2000 --gpu-memory-utilization 80% --input-tokens 300 --output-tokens 50 "
        "--cached-tokens 100 --longest-output 100 --rate 2.5 --arrival-cv 2"
    )
    inputs = cli("serve", config(), *given.split(), "--json").document["inputs"]
    wanted: dict[str, object] = {
        "gpu": "a100-sxm-80gb", "engine": "sglang", "weights": "int8", "kv_dtype": "fp8", "tp": 4, "max_num_seqs": 64,
        "max_num_batched_tokens": 4096, "max_model_len": 2000, "gpu_memory_utilization": 0.8, "input_tokens": 300,
        "output_tokens": 50, "cached_tokens": 100, "longest_output": 100, "rate": 2.5, "arrival_cv": 2, "concurrency": None,
        "batch": None, "simulate": False, "trace": None, "slo": None,
    }  # fmt: skip
    assert {name: inputs[name] for name in wanted} == wanted


def test_weights_are_as_the_file_has_them(cli: Any, config: Config) -> None:
    stored = config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    document = cli("serve", stored, "--json").document
    assert document["inputs"]["weights"] == "fp8"
    assert "weights in fp8, as the model's file says" in document["result"]["assumed"]


def test_one_share_of_the_peak_has_no_interval(cli: Any, config: Config) -> None:
    result = cli("serve", config(), "--efficiency", "0.5", "--json").result
    assert (result["ttft_interval_s"], result["client_s"]) == (None, 0.0)
    assert result["interval_basis"].startswith("none")


def test_a_draft_is_counted_in_the_step(cli: Any, tmp_path: Path, config: Config) -> None:
    small = tmp_path / "draft" / "config.json"
    small.parent.mkdir()
    small.write_text(json.dumps(json.loads(Path(config()).read_text()) | {"num_hidden_layers": 2}))
    base = ("serve", config(), "--draft", str(small), "--json")
    result = cli(*base, "--acceptance", "0.8", "--draft-tokens", "3").result
    assert result["step"]["tokens_per_sequence"] == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert result["step"]["ledger_s"]["draft"] > 0
    own = cli("serve", config(), "--speculative", "mtp", "--json").result["step"]["ledger_s"]
    assert 0 < own["draft"] < sum(own.values())
    assert cli(*base, "--accepted-length", "2.5").document["inputs"]["accepted_length"] == 2.5
    assert any("acceptance 0.7 is assumed" in note for note in cli(*base).document["notes"])


def test_the_command_is_the_engines_own(cli: Any, config: Config) -> None:
    launch = cli("serve", "llama-3.1-70b", "--tp", "4", "--max-num-seqs", "64", "--kv-dtype", "fp8", "--json").result["launch"]
    assert launch["argv"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-70B"]
    assert launch["argv"][3:] == ["--tensor-parallel-size", "4", "--max-num-seqs", "64", "--kv-cache-dtype", "fp8"]
    own = cli("serve", config(), "--json").result["launch"]
    assert own["argv"][2] == str(Path(config()).parent)
    text = cli("serve", "llama-3-8b", "--engine", "tensorrt-llm", "--kv-dtype", "fp8").out
    assert "  cat > config.yaml <<'EOF'\n  kv_cache_config:\n    dtype: fp8\nEOF\n  trtllm-serve " in text
    assert cli("serve", config(), "--engine", "other", "--json").result["launch"] is None


# -- memory --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_an_answer_with_a_way_out(cli: Any) -> None:
    ran = cli("serve", "llama-3.1-70b", "--json")
    result = ran.result
    assert (ran.code, result["feasible"], result["ttft_s"], result["curve"]) == (1, False, None, [])
    assert result["shortfall_bytes"] == pytest.approx(-result["kv"]["pool_bytes"], rel=0.01)
    assert result["fixes"]
    for fix in result["fixes"]:
        again = cli("serve", "llama-3.1-70b", *fix["option"].split(), "--json")
        assert (again.code, again.result["gpus"]) == (0, fix["gpus"])
        assert again.result["kv"]["max_requests"] == pytest.approx(fix["admitted"], rel=0.02)
    text = cli("serve", "llama-3.1-70b")
    assert text.code == 1
    assert text.out.startswith("DOES NOT FIT  ")
    assert "GiB are missing on each GPU" in text.out
    assert "what would make it fit" in text.out
    assert cli("serve", "llama-3.1-70b", "--no-advice", "--json").result["fixes"] == []


def test_the_longest_request_is_cut_to_what_fits_unless_it_was_asked_for(cli: Any) -> None:
    base = ("serve", "llama-3.1-8b", "--gpu", "rtx4090")
    ran = cli(*base, "--json")
    assert (ran.code, ran.result["starts"]) == (0, True)
    assert ran.result["kv"]["max_model_len"] < 131072
    assert any("what fits (the model takes 131072)" in text for text in ran.result["assumed"])
    asked = cli(*base, "--max-model-len", "131072")
    assert asked.code == 1
    assert asked.out.startswith("DOES NOT START  max_model_len 131,072 needs more KV than there is")
    (fix,) = cli(*base, "--max-model-len", "131072", "--json").result["fixes"]
    assert fix["option"] == f"--max-model-len {ran.result['kv']['max_model_len']}"


def test_the_memory_flag_has_an_interval(cli: Any, config: Config) -> None:
    base = ("serve", "llama-3-8b", "--json")
    flag = cli(*base).result["kv"]["memory_flag"]
    assert flag["name"] == "gpu_memory_utilization"
    assert 0 < flag["low"] < flag["value"] < flag["high"] <= 1
    low = cli(*base, "--gpu-memory-utilization", str(flag["low"]))
    assert (low.code, low.result["starts"]) == (0, True)
    below = cli(*base, "--gpu-memory-utilization", str(round(flag["low"] - 0.002, 3)), "--max-model-len", "8192")
    assert (below.code, below.result["starts"]) == (1, False)
    assert cli("serve", config(), "--engine", "sglang", "--json").result["kv"]["memory_flag"]["name"] == "mem_fraction_static"
    assert cli("serve", config(), "--engine", "llama.cpp", "--json").result["kv"]["memory_flag"] is None


# -- loads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind"),
    [("", "closed"), ("--concurrency 4", "closed"), ("--batch 4", "static"), ("--rate 4", "open"), ("--requests 500", "offline")],
)
def test_a_load_of_each_kind(cli: Any, config: Config, given: str, kind: str) -> None:
    result = cli("serve", config(), *given.split(), "--json").result
    assert result["load"]["kind"] == kind
    assert result["basis"] == "closed form"
    assert result["requests_per_s"] > 0
    assert (result["duration_s"] is not None) == (kind == "offline")


def test_more_than_it_can_serve_is_no(cli: Any, config: Config) -> None:
    most = cli("serve", config(), "--json").result["capacity_requests_per_s"]
    assert cli("serve", config(), "--rate", str(0.9 * most), "--json").code == 0
    ran = cli("serve", config(), "--rate", str(1.1 * most), "--json")
    assert (ran.code, ran.result["keeps_up"], ran.result["ttft_s"]) == (1, False, None)
    assert any("the queue grows for ever" in note for note in ran.document["notes"])
    assert cli("serve", config(), "--rate", str(1.1 * most)).out.startswith("DOES NOT KEEP UP  ")


def test_answers_of_one_token_have_no_itl(cli: Any, config: Config) -> None:
    result = cli("serve", config(), "--output-tokens", "1", "--json").result
    assert (result["itl_s"], result["itl_interval_s"]) == (None, None)
    assert "ITL" not in cli("serve", config(), "--output-tokens", "1", "--quiet").out


def test_a_simulation_has_percentiles_and_the_means_are_its(cli: Any, config: Config) -> None:
    base = ("serve", config(), "--rate", "20", "--output-tokens", "64", "--requests", "300", "--json")
    plain, played = cli(*base).result, cli(*base, "--simulate").result
    assert (plain["basis"], played["basis"]) == ("closed form", "simulation")
    assert plain["percentiles"] is None
    found = played["percentiles"]["ttft_s"]
    assert found["p50"] <= found["p90"] <= found["p95"] <= found["p99"] <= found["maximum"]
    assert played["ttft_s"] == found["mean"]
    assert played["itl_s"] == pytest.approx(plain["itl_s"], rel=0.1)
    assert played["simulation"]["requests"] == 300
    again, other = cli(*base, "--simulate").result, cli(*base, "--simulate", "--seed", "1").result
    assert again == played
    assert other["percentiles"] != played["percentiles"]


def test_a_burst_is_played(cli: Any, config: Config) -> None:
    base = ("serve", config(), "--rate", "5", "--output-tokens", "32", "--requests", "400", "--json")
    even = cli(*base, "--simulate").result
    burst = cli(*base, "--burst", "50,2s,10s").document
    assert burst["inputs"]["burst"] == {"peak_rate_per_s": 50, "duration_s": 2, "period_s": 10}
    assert burst["result"]["basis"] == "simulation"
    assert burst["result"]["percentiles"]["ttft_s"]["p99"] > even["percentiles"]["ttft_s"]["p99"]


def test_a_trace_is_played_as_it_is(cli: Any, config: Config, trace: str) -> None:
    result = cli("serve", config(), "--trace", trace, "--json").result
    assert (result["basis"], result["simulation"]["requests"]) == ("simulation", 200)
    assert result["load"]["requests_per_s"] == pytest.approx(4.0)
    assert result["load"]["input_tokens"] == pytest.approx(203, abs=1)
    fast = cli("serve", config(), "--trace", trace, "--trace-speed", "10", "--json").result
    assert fast["load"]["requests_per_s"] == pytest.approx(40.0)
    assert fast["simulation"]["duration_s"] < 0.2 * result["simulation"]["duration_s"]
    few = cli("serve", config(), "--trace", trace, "--requests", "50", "--json").result
    assert few["simulation"]["requests"] == 50


def test_of_a_long_trace_the_busiest_time_is_played(
    cli: Any, config: Config, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.cli._serve_play.LONG", 100)
    document = cli("serve", config(), "--trace", trace, "--json").document
    assert any("the trace has 200 requests: those of its busiest " in note for note in document["notes"])
    assert cli("serve", config(), "--trace", trace, "--requests", "150", "--json").result["simulation"]["requests"] == 150


def test_the_lengths_of_a_trace_under_another_load(cli: Any, config: Config, trace: str) -> None:
    rate = cli("serve", config(), "--trace", trace, "--rate", "8", "--simulate", "--json").result
    assert rate["load"] | {"requests": None} == rate["load"] | {"kind": "open", "requests_per_s": 8.0, "requests": None}
    assert rate["load"]["input_tokens"] == pytest.approx(203, abs=1)
    users = cli("serve", config(), "--trace", trace, "--concurrency", "8", "--json").result
    assert (users["basis"], users["load"]["kind"]) == ("closed form", "closed")


# -- targets and fleets --------------------------------------------------------------------------------------


def test_targets_are_judged_by_a_simulation_or_by_means(cli: Any, config: Config) -> None:
    base = ("serve", config(), "--concurrency", "8", "--output-tokens", "32", "--json")
    ran = cli(*base, "--slo", "ttft=10s,p50-itl=1s,e2e=60s")
    slo = ran.result["slo"]
    assert (ran.code, slo["met"], slo["judged_by"], slo["slo_share"]) == (0, True, "simulation", 1.0)
    assert [row["name"] for row in slo["targets"]] == ["p99-ttft", "p50-itl", "p99-e2e"]
    assert slo["targets"][0]["seen_s"] == ran.result["percentiles"]["ttft_s"]["p99"]
    means = cli(*base, "--slo", "mean-ttft=1us,mean-itl=1s")
    assert (means.code, means.result["slo"]["judged_by"], means.result["percentiles"]) == (1, "closed form", None)
    assert [row["met"] for row in means.result["slo"]["targets"]] == [False, True]
    text = cli(*base[:-1], "--slo", "mean-ttft=1us")
    assert text.out.startswith("MISSES THE TARGETS  mean-ttft ")


def test_a_rate_and_targets_find_a_fleet(cli: Any) -> None:
    ran = cli("serve", "llama-3-8b", "--rate", "60", "--slo", "ttft=1s,itl=50ms", "--json")
    sizing = ran.result["sizing"]
    assert (ran.code, sizing["feasible"], ran.result["slo"]["met"]) == (0, True, True)
    best = sizing["best"]
    assert best["gpus"] == best["replicas"] * best["tp"] == ran.result["gpus"]
    assert best["gpus"] == min(option["gpus"] for option in sizing["options"] if option["feasible"])
    assert ran.document["inputs"]["dp"] == best["replicas"]
    assert ran.result["keeps_up"]
    same = cli("serve", "llama-3-8b", "--qps", "60", "--slo", "ttft=1s,itl=50ms", "--json")
    assert same.result["sizing"] == sizing
    given = cli("serve", "llama-3-8b", "--rate", "60", "--slo", "ttft=1s,itl=50ms", "--dp", str(best["replicas"]), "--json")
    assert (given.code, given.result["sizing"], given.result["slo"]["judged_by"]) == (0, None, "simulation")


def test_the_screen_of_a_fleet(cli: Any) -> None:
    text = cli("serve", "llama-3-8b", "--qps", "60", "--slo", "ttft=1s,itl=50ms", "--gpu", "h100,a100")
    first = text.out.splitlines()[0]
    assert first.endswith(" serve 60.0 requests/s within p99-ttft 1.00 s, p99-itl 50.0 ms")
    assert "fleets (" in text.out
    assert "a100-sxm-80gb, tp " in text.out
    assert max(len(line) for line in text.out.splitlines() if not line.startswith("      --")) <= 80
    quiet = cli("serve", "llama-3-8b", "--qps", "60", "--slo", "ttft=1s,itl=50ms", "--gpu", "h100,a100", "--quiet")
    assert quiet.out.strip() == first


def test_targets_that_nothing_meets(cli: Any) -> None:
    ran = cli("serve", "llama-3-8b", "--qps", "10", "--slo", "ttft=1ms", "--json")
    sizing = ran.result["sizing"]
    assert (ran.code, sizing["feasible"], sizing["best"], sizing["binding"]) == (1, False, None, "base latency")
    assert sizing["advice"]
    text = cli("serve", "llama-3-8b", "--qps", "10", "--slo", "ttft=1ms")
    assert text.code == 1
    assert text.out.startswith("NO FLEET serves 10.0 requests/s within p99-ttft 1.00 ms")
    few = cli("serve", "llama-3-8b", "--qps", "200", "--max-gpus", "2", "--json")
    assert (few.code, few.result["sizing"]["feasible"]) == (1, False)
    assert any(text.startswith("targets of MLPerf's server scenario") for text in few.result["assumed"])


def test_prices_choose_by_cost(cli: Any) -> None:
    given = ("--qps", "60", "--slo", "ttft=1s,itl=50ms", "--gpu", "h100,a100", "--price", "h100=100,a100=0.5")
    document = cli("serve", "llama-3-8b", *given, "--json").document
    sizing = document["result"]["sizing"]
    assert (sizing["objective"], sizing["best"]["gpu"]) == ("cost", "a100-sxm-80gb")
    assert sizing["best"]["usd_per_h"] == pytest.approx(0.5 * sizing["best"]["gpus"])
    assert document["inputs"]["gpu"] == "a100-sxm-80gb"


def test_a_trace_is_sized_for_its_busiest_time_and_played(cli: Any, config: Config, trace: str) -> None:
    result = cli("serve", config(), "--trace", trace, "--slo", "ttft=1s,itl=100ms", "--json").result
    assert result["sizing"]["best"]["confirmed"]["requests"] == 200
    assert result["slo"]["judged_by"] == "simulation"
    assert result["simulation"]["slo_share"] > 0.98


def test_prompts_and_decoding_apart(cli: Any, config: Config) -> None:
    base = ("serve", config(), "--tp", "2", "--rate", "20", "--prefill-gpus", "4", "--json")
    document = cli(*base).document
    result, split = document["result"], document["result"]["split"]
    assert (result["gpus"], split["prefill"]["replicas"], split["decode"]["replicas"], result["curve"]) == (6, 2, 1, [])
    sides = {side: split[side]["capacity_requests_per_s"] for side in ("prefill", "decode")}
    assert split["bound"] == min(sides, key=sides.__getitem__)
    assert result["capacity_requests_per_s"] == min(sides.values())
    assert result["ttft_s"] == pytest.approx(result["client_s"] + result["queue_s"] + result["prompt_s"])
    assert result["output_tokens_per_s"] == pytest.approx(6 * result["output_tokens_per_s_per_gpu"])
    slow = cli(*base, "--transfer-gbps", "1").result
    assert slow["split"]["transfer_s"] == pytest.approx(split["cache_bytes"] * 8e-9)
    assert slow["ttft_s"] > result["ttft_s"]
    played = cli(*base, "--simulate", "--requests", "300").result
    assert played["ttft_s"] == pytest.approx(result["ttft_s"], rel=0.5)
    assert "prompts and decoding apart" in cli(*base[:-1]).out


# -- the screen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--rate 5 --simulate",
        "--rate 100000",
        "--requests 500",
        "--batch 16 --tp 2 --dp 2",
        "--output-tokens 1",
        "--gpu-memory-utilization 0.01",
        "--speculative mtp --gpu h200 --engine llama.cpp",
        "--rate 5 --burst 50,1s,10s",
    ],
)
def test_the_answer_is_one_screen_of_80_columns(cli: Any, config: Config, more: str) -> None:
    model = config()
    lines = cli("serve", model, *more.split()).out.splitlines()
    shown = [line for line in lines if not line.startswith("      --") and str(Path(model).parent) not in line]
    assert max(len(line) for line in shown) <= 80
    assert 15 < len(lines) <= 90
    text = "\n".join(lines)
    assert ("simulated: " in text) == ("--simulate" in more or "--burst" in more)
    assert "nan" not in text.casefold().replace("nano", "")


def test_quiet_is_one_line(cli: Any, config: Config) -> None:
    for more in ("", "--rate 2", "--gpu-memory-utilization 0.01", "--rate 2 --simulate"):
        ran = cli("serve", config(), *more.split(), "--quiet")
        assert ran.out.count("\n") == 1
    assert "tokens/s with 32 in flight" in cli("serve", config(), "--quiet").out


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ("--dp-kind attention", ["--dp-kind"]),
        ("--block-size 32 --input-cv 1", ["--block-size", "--input-cv"]),
        ("--concurrency 4 --requests 100", ["--requests"]),
        ("--concurrency 4 --requests 100 --simulate", []),
        ("--engine-version 0.4.0 --chunked-prefill", []),
    ],
)
def test_a_setting_without_effect_is_named(cli: Any, config: Config, given: str, idle: list[str]) -> None:
    notes = cli("serve", config(), *given.split(), "--json").document["notes"]
    found = [note for note in notes if "without effect" in note]
    assert found == ([f"given, and without effect on this answer: {', '.join(idle)}"] if idle else [])


def test_a_count_of_requests_does_nothing_where_only_lengths_are_read(cli: Any, config: Config, trace: str) -> None:
    asked = ("serve", config(), "--trace", trace, "--rate", "2", "--requests", "50")
    said = "given, and without effect on this answer: --requests"
    assert said in cli(*asked, "--json").document["notes"]
    assert said not in cli(*asked, "--simulate", "--json").document["notes"]


def test_flags_that_vllm_does_not_start_with_are_refused(cli: Any, config: Config) -> None:
    flags = ("--max-num-seqs", "512", "--max-num-batched-tokens")
    ran = cli("serve", config(), *flags, "256")
    assert ran.code == 2
    assert "max_num_seqs=512 exceeds max_num_batched_tokens" in ran.err
    assert cli("serve", config(), *flags, "512").code == 0
    assert cli("serve", config(), *flags, "256", "--engine", "sglang").code == 0


def test_a_picture_is_drawn(cli: Any, config: Config, tmp_path: Path) -> None:
    for name, begins in (("curve.png", b"\x89PNG"), ("curve.svg", b"<?xml")):
        ran = cli("serve", config(), "--plot", str(tmp_path / name), "--quiet")
        assert (ran.code, ran.err) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(begins)
    ran = cli("serve", "llama-3.1-70b", "--plot", str(tmp_path / "none.png"), "--json")
    assert (ran.code, (tmp_path / "none.png").exists()) == (1, False)
    assert "no picture: nothing is served that a curve could show" in ran.document["notes"]


# -- input that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ("--cached-tokens 1024", "cached_tokens", "must be shorter than the input"),
        ("--input-tokens 100 --cached-tokens 200 --rate 3", "cached_tokens", "must be shorter than the input"),
        ("--input-tokens 0", "input_tokens", "1 to"),
        ("--input-tokens 3000", "input_tokens", "beyond what the model's file states (2048)"),
        ("--input-tokens 900 --max-model-len 1000", "input_tokens", "beyond max_model_len (1000)"),
        ("--output-tokens nan", "output_tokens", "finite"),
        ("--longest-output 10", "longest_output", "256 to"),
        ("--rate 0", "rate", "above 0"),
        ("--rate -3", "rate", "0 to"),
        ("--rate inf", "rate", "finite"),
        ("--qps 0", "qps", "above 0"),
        ("--qps 3 --rate 4", "qps", "name the same thing"),
        ("--concurrency 0", "concurrency", "1 to"),
        ("--batch 1.5", "batch", "whole"),
        ("--rate 3 --concurrency 4", "rate", "are two loads"),
        ("--batch 3 --concurrency 4", "concurrency", "are two loads"),
        ("--arrival-cv 2", "arrival_cv", "there is no rate"),
        ("--burst 40,5s,60s", "burst", "there is no rate"),
        ("--rate 5 --burst 40,5s", "burst", "three parts"),
        ("--rate 5 --burst 4,5s,60s", "burst", "no peak above the rate"),
        ("--rate 5 --burst 40,60s,5s", "burst", "less than its period"),
        ("--trace-speed 2", "trace_speed", "there is none"),
        ("--seed 3", "seed", "Add --simulate"),
        ("--engine vlm", "engine", "Did you mean vllm?"),
        ("--weights q5", "weights", "is not a format of served weights"),
        ("--kv-dtype q5", "kv", "is not known"),
        ("--activations fp8 --gpu a100", "activations", "has no known peak on"),
        ("--tp 3", "tp", "must divide the attention heads"),
        ("--pp 9", "pp", "exceeds the layers"),
        ("--ep 2", "ep", "routed experts"),
        ("--dp-kind both", "dp_kind", "replica, attention"),
        ("--gpu-memory-utilization 0", "gpu_memory_utilization", "leaves nothing"),
        ("--gpu-memory-utilization 1.2", "gpu_memory_utilization", "must be a share"),
        ("--acceptance 0.5", "acceptance", "there is none"),
        ("--speculative mtp --acceptance 1.5", "acceptance", "0 to 1"),
        ("--speculative mtp --acceptance -0.5", "acceptance", "0 to 1"),
        ("--speculative mtp --accepted-length 9", "accepted_length", "1 to 2"),
        ("--speculative mtp --accepted-length 2 --acceptance 1", "accepted_length", "say the same"),
        ("--speculative draft", "speculative", "Add --draft MODEL"),
        ("--speculative eagle --draft gpt-2", "draft", "eagle has none"),
        ("--speculative magic", "speculative", "draft, mtp, eagle"),
        ("--efficiency 0", "efficiency", "would never end"),
        ("--efficiency fast", "efficiency", "is no efficiency"),
        ("--system dgx-h100 --gpu a100", "gpu", "is not the accelerator of"),
        ("--gpu h100,h100 --qps 3", "gpu", "names one twice"),
        ("--gpu h100,a100", "gpu", "nothing to choose by"),
        ("--slo ttft", "slo", "is no target"),
        ("--slo ttft=0s", "slo", "leaves no time"),
        ("--slo ttft=1s,ttft=2s", "slo", "twice"),
        ("--slo p12-ttft=1s --rate 4", "slo", "is no statistic"),
        ("--qps 4 --dp 2", "dp", "is what is asked for"),
        ("--qps 4 --draft gpt-2", "draft", "cannot be sized"),
        ("--max-gpus 4", "max_gpus", "none is"),
        ("--qps 4 --max-gpus 0", "max_gpus", "1 to"),
        ("--qps 4 --objective cost", "objective", "needs prices"),
        ("--qps 4 --objective money", "objective", "gpus, cost, latency"),
        ("--qps 4 --price h100", "price", "is no price"),
        ("--qps 4 --price h100=-1", "price", "finite"),
        ("--qps 4 --price a100=1", "prices", "is not among"),
        ("--prefill-gpus 2", "prefill_gpus", "Add --rate"),
        ("--prefill-gpus 3 --tp 2 --rate 4", "prefill_gpus", "no multiple"),
        ("--prefill-tp 2 --rate 4", "prefill_tp", "Add --prefill-gpus"),
        ("--qps 4 --prefill-gpus 2", "prefill_gpus", "cannot be sized"),
        ("--gpu h1000", "hardware", "h100"),
        ("--plot curve.pdf", "plot", ".png, .svg"),
        ("--plot /nowhere/curve.png", "plot", "does not exist"),
        ("--trace /nowhere.csv", "trace", "is not a file"),
        ("--requests 0", "requests", "1 to"),
        ("--concurency 2", "--concurency", "--concurrency"),
    ],
)
def test_what_cannot_be_served(cli: Any, config: Config, given: str, field: str, says: str) -> None:
    ran = cli("serve", config(), *given.split(), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"] == field
    assert says in ran.error["message"]
    text = cli("serve", config(), *given.split())
    assert (text.code, text.out) == (2, "")
    assert text.err == f"error: {ran.error['message']}\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("arrival,input_tokens\n1,2\n", "output_tokens"),
        ("arrival,input_tokens,output_tokens\n1,10,5\n0,10,5\n", "comes before the one above it"),
        ("arrival,input_tokens,output_tokens\n-1,10,5\n", ":2"),
        ("arrival,input_tokens,output_tokens\n0,10,5\n1,ten,5\n", ":3"),
        ("arrival,input_tokens,output_tokens\n0,10,5\n", "which is no rate"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": 0}\n', "is no number of tokens"),
        ("\x00\x01\x02", "missing"),
    ],
)
def test_a_trace_that_cannot_be_read_names_file_and_line(
    cli: Any, config: Config, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    ran = cli("serve", config(), "--trace", str(path), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.error["message"]
    assert "bad.csv" in ran.error["message"]


@pytest.mark.parametrize("model", ["resnet-50", "bert-base", "flan-t5-base"])
def test_what_makes_no_tokens_is_refused(cli: Any, model: str) -> None:
    ran = cli("serve", model, "--json")
    assert (ran.code, ran.error["field"]) == (2, "model")


def test_more_ranks_than_kv_heads_are_legal_with_a_note(cli: Any, config: Config) -> None:
    document = cli("serve", config(), "--tp", "8", "--json").document
    assert any("each of the 4 key and value heads is held by 2 ranks" in note for note in document["notes"])


def test_an_unknown_version_is_taken_as_the_nearest_and_widens(cli: Any, config: Config) -> None:
    new = cli("serve", config(), "--engine-version", "99.1", "--json").document
    assert any("is newer than the newest known" in note for note in new["notes"])
    assert new["result"]["regime"].endswith("elsewhere")


def test_a_model_without_simulation_imports_no_simulator() -> None:
    code = (
        "import sys; from foretell.cli import main; main(['serve','llama-3-8b','--quiet']);"
        "print(sorted({'simpy','pint','torch','matplotlib','yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"
