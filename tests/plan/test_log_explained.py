"""A log explained: the cause, the term, what to change, and the forecast held against what was measured."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.core.forecast import Forecast
from foretell.core.serving import Deployment, deployment
from foretell.plan.advice import advise
from foretell.plan.launch import Launch
from foretell.plan.log_explained import Explanation, explain
from foretell.readers.logs import read_log
from foretell.recipe import Parallelism, Recompute, TrainingRecipe
from foretell.recipe.serving import ServingRecipe
from foretell.units import GIB, MIB


def launch(gpu: str = "h100", par: Parallelism | None = None, **recipe: Any) -> Launch:
    from foretell import load_hardware, load_model

    asked: dict[str, Any] = {"framework": "fsdp2", "seq_len": 8192, "recompute": Recompute("full")} | recipe
    return Launch(load_model("llama-3-8b"), load_hardware(gpu), TrainingRecipe(**asked), par or Parallelism(dp=8, zero=3))


def written(amount: float) -> str:
    """As PyTorch writes it."""
    return f"{amount / GIB:.2f} GiB" if amount > GIB else f"{amount / MIB:.2f} MiB"


def failed(
    tried: float,
    allocated: float,
    *,
    free: float = 0.5 * GIB,
    unused: float = 0.1 * GIB,
    total: float = 79.18 * GIB,
    more: str = "",
) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {written(tried)}. GPU 0 has a total capacity of "
        f"{written(total)} of which {written(free)} is free. {more}Of the allocated memory {written(allocated)} is allocated by "
        f"PyTorch, and {written(unused)} is reserved by PyTorch but unallocated.\n"
    )


def above(text: str, *frames: tuple[str, str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for path, function, code in frames:
        lines += [f'  File "{path}", line 7, in {function}', f"    {code}"]
    return "\n".join([*lines, text])


LOSS = ("/env/torch/nn/functional.py", "cross_entropy", "return torch._C._nn.cross_entropy_loss(")


def said(made: Explanation, kind: str) -> str:
    return " | ".join(finding.text for finding in made.findings if finding.kind == kind)


# -- the cause ----------------------------------------------------------------------------------------------


def test_the_device_is_full() -> None:
    made = explain(read_log(failed(2 * GIB, 75 * GIB)))
    assert (made.verdict, made.cause, made.tried_bytes) == ("died", "full", 2 * GIB)
    assert made.short_bytes == 1.5 * GIB
    assert made.headline == "CUDA ran out of memory: 2.00 GiB were asked for, 512 MiB were free of 79.18 GiB"
    assert "75.00 GiB in tensors" in said(made, "ledger")
    assert "3.58 GiB outside PyTorch's allocator" in said(made, "ledger")


def test_memory_in_pieces_is_fragmentation() -> None:
    made = explain(read_log(failed(2 * GIB, 70 * GIB, unused=5 * GIB)))
    assert made.cause == "fragmentation"
    assert made.remedies[0].flags == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert made.remedies[0].saved_bytes == 5 * GIB


def test_segments_that_grow_already_are_not_advised() -> None:
    text = (
        "expandable_segments: memory mapping failed with OOM on device 0 while trying to map 20971520 bytes (free: 1, total: 2)\n"
    )
    made = explain(read_log(text + failed(2 * GIB, 70 * GIB, unused=5 * GIB)))
    assert not any("expandable" in remedy.flags for remedy in made.remedies)
    assert "tried again 1 times" in said(made, "retries")


def test_another_process_is_named_first() -> None:
    more = "Including non-PyTorch memory, this process has 45.00 GiB memory in use. Process 4711 has 33.00 GiB memory in use. "
    made = explain(read_log(failed(2 * GIB, 42 * GIB, unused=1 * GIB, more=more)))
    assert made.cause == "other-processes"
    assert "4711 (33.00 GiB); without them the request would have been served" in said(made, "other-processes")
    assert (made.remedies[0].saved_bytes, made.remedies[0].enough) == (33 * GIB, None)


def test_a_request_larger_than_the_gpu() -> None:
    made = explain(read_log(failed(184.13 * GIB, 38 * GIB)))
    assert made.cause == "request"
    assert "more than the whole GPU" in said(made, "request")


def test_more_was_free_than_asked_for() -> None:
    made = explain(read_log(failed(192 * MIB, 10 * GIB, free=13 * GIB, unused=0.0)))
    assert made.cause == "limit"
    assert "13.00 GiB were free, more than was asked for" in said(made, "limit")


def test_a_small_request_blames_nobody() -> None:
    made = explain(read_log(failed(20 * MIB, 78 * GIB, free=5 * MIB)), launch().forecast())
    assert "the request was small" in said(made, "request")
    assert not said(made, "arithmetic")


@pytest.mark.parametrize(
    ("frame", "flag"),
    [
        (("/env/transformers/trainer_pt_utils.py", "nested_concat", "x"), "eval_accumulation_steps"),
        (("/env/vllm/v1/worker/gpu_model_runner.py", "profile_run", "x"), "--max-num-batched-tokens, --max-num-seqs"),
        (("/env/vllm/v1/worker/gpu_model_runner.py", "capture_model", "x"), "--enforce-eager"),
    ],
)
def test_a_phase_has_its_own_remedies(frame: tuple[str, str, str], flag: str) -> None:
    made = explain(read_log(above(failed(2 * GIB, 75 * GIB), frame)))
    assert flag in [remedy.flags for remedy in made.remedies]


def test_an_engine_that_fails_later_is_given_less() -> None:
    text = "Desired GPU memory utilization is (0.95, 75.22 GiB)\n" + above(
        failed(2 * GIB, 75 * GIB), ("/env/vllm/v1/worker/gpu_worker.py", "execute_model", "x")
    )
    made = explain(read_log(text))
    assert [(remedy.flags, remedy.enough) for remedy in made.remedies] == [("--gpu-memory-utilization 0.93", None)]


def test_the_host() -> None:
    forecast = launch().forecast(host=True)
    made = explain(read_log("exitcode: -9 (pid: 33)\n"), forecast)
    assert (made.cause, made.anchor) == ("host", None)
    assert forecast.host_memory_bytes is not None
    assert f"{forecast.host_memory_bytes / GIB:.2f} GiB of host memory" in said(made, "host")


# -- beside a forecast --------------------------------------------------------------------------------------


def test_the_failed_size_is_found_among_the_tensors() -> None:
    forecast = launch().forecast()
    logits = 8192 * 128_256 * 4.0  # tokens x vocabulary in fp32
    tried = math.ceil(logits / (2 * MIB)) * 2 * MIB  # whole segments
    made = explain(read_log(above(failed(tried, 27 * GIB, total=32 * GIB), LOSS)), forecast)
    assert (made.phase, made.term) == ("loss", "logits_and_loss")
    arithmetic = said(made, "arithmetic")
    assert "head log_softmax" in arithmetic
    assert "513,024 B x tokens" in arithmetic
    assert "= 3.91 GiB" in arithmetic
    assert "it belongs to logits and loss, 5.87 GiB" in said(made, "term")


def test_another_size_says_how_many_tokens_there_were() -> None:
    made = explain(read_log(above(failed(6.54 * GIB, 60 * GIB), LOSS)), launch().forecast())
    assert "means 13,688 tokens; the forecast has 8,192 (1.67 times as many)" in said(made, "arithmetic")


def test_scores_betray_an_attention_that_is_not_fused() -> None:
    forecast = launch(seq_len=4096).forecast()
    scores = 4096 * 4096 * 32 * 4.0
    frame = ("/env/transformers/models/llama/modeling_llama.py", "eager_attention_forward", "nn.functional.softmax(attn_weights)")
    made = explain(read_log(above(failed(scores, 60 * GIB), frame)), forecast)
    assert "attention scores in fp32" in said(made, "arithmetic")


def test_a_single_weight_is_found_while_a_checkpoint_is_saved() -> None:
    frame = ("/env/torch/distributed/fsdp/fully_sharded_data_parallel.py", "state_dict", "x")
    made = explain(read_log(above(failed(128_256 * 4096 * 4.0, 60 * GIB), frame)), launch().forecast())
    assert "embed_tokens (525,336,576 elements of 4 B)" in said(made, "arithmetic")


def test_another_gpu_than_the_forecasts() -> None:
    made = explain(read_log(failed(2 * GIB, 35 * GIB, total=39.5 * GIB)), launch().forecast())
    assert "the log's GPU has 39.50 GiB" in said(made, "device")


def test_more_is_held_than_was_described() -> None:
    made = explain(read_log(above(failed(2 * GIB, 70 * GIB), LOSS)), launch().forecast())
    assert "the run needed 2.47 times that" in said(made, "phase")
    assert made.anchor is not None
    assert not made.anchor.agrees


def test_what_a_run_went_through_was_not_too_large() -> None:
    forecast = launch(seq_len=32768, recompute=Recompute("none")).forecast()
    forward = next(row["allocated_bytes"] for row in forecast.timeline if row["phase"] == "forward")
    assert forward > 80 * GIB
    made = explain(read_log(above(failed(4 * GIB, 60 * GIB), LOSS)), forecast)
    assert f"{forward / GIB:,.2f} GiB for (in the forward pass): it is smaller than described" in said(made, "phase")
    assert made.anchor is not None
    assert not made.anchor.agrees


def test_changes_are_held_against_the_log() -> None:
    plan = launch(recompute=Recompute("none"), micro_batch=1)
    forecast = plan.forecast()
    text = above(failed(3.92 * GIB, 74 * GIB), LOSS)
    tried = [one.to_dict() for one in advise(plan, forecast)]
    made = explain(read_log(text), forecast, tried)
    assert made.anchor is not None
    assert made.anchor.factor == pytest.approx(max(1.0, (74 + 3.92) * GIB / forecast.allocated_bytes), rel=2e-3)
    rows = {remedy.flags: remedy for remedy in made.remedies if remedy.source == "forecast"}
    assert set(rows) == {str(row["flags"]) for row in tried}
    for row in tried:
        remedy = rows[str(row["flags"])]
        assert remedy.total_bytes == pytest.approx(row["total_bytes"] * made.anchor.factor)  # type: ignore[operator]
        if remedy.enough:
            assert row["fits"]
            assert remedy.saved_bytes is not None
            assert made.short_bytes is not None
            assert remedy.saved_bytes >= made.short_bytes
    assert rows["--recompute full"].enough
    order = [remedy.enough for remedy in made.remedies]
    assert order == sorted(order, key=lambda enough: {True: 0, None: 1, False: 2}[enough])


# -- re-anchoring -------------------------------------------------------------------------------------------


def reserved(amount: float) -> str:
    return f"step: 10  loss: 1.0  memory: {amount / GIB:.2f}GiB(50.00%)  tps: 5,000  tflops: 300.00  mfu: 30.20%\n"


def anchor_of(text: str, forecast: Forecast) -> Any:
    made = explain(read_log(text), forecast).anchor
    assert made is not None
    return made


def test_a_healthy_peak_of_reserved_bytes_is_the_value_itself() -> None:
    forecast = launch().forecast()
    made = anchor_of(reserved(1.05 * forecast.reserved_bytes), forecast)
    assert (made.by.counter, made.by.bound, made.agrees) == ("reserved", False, True)
    assert made.factor == made.by.ratio == pytest.approx(1.05, rel=1e-3)
    outside = forecast.total_bytes - forecast.reserved_bytes
    assert made.total_bytes == pytest.approx(1.05 * forecast.reserved_bytes + outside, rel=1e-3)
    low, high = made.interval_bytes
    assert low < made.total_bytes < high
    assert high - low == pytest.approx(outside)
    assert high - low < forecast.interval_bytes[1] - forecast.interval_bytes[0]


def test_allocated_bytes_leave_the_slack_open() -> None:
    forecast = launch().forecast()
    made = anchor_of(f"Step 3 | loss:1.5 peak_memory_alloc:{0.98 * forecast.allocated_bytes / GIB:.2f}\n", forecast)
    assert (made.by.counter, made.by.bound) == ("allocated", False)
    assert made.factor == pytest.approx(0.98, rel=1e-3)
    above_allocated = forecast.total_bytes - forecast.allocated_bytes
    assert made.total_bytes == pytest.approx(0.98 * forecast.allocated_bytes + above_allocated, rel=1e-3)
    low, high = made.interval_bytes
    assert made.by.measured_bytes < low < made.total_bytes < high


def test_the_log_agrees_with_nothing_that_was_described() -> None:
    forecast = launch().forecast()
    made = explain(read_log(reserved(0.5 * forecast.reserved_bytes)), forecast)
    assert made.anchor is not None
    assert not made.anchor.agrees
    assert "forecast and log disagree" in said(made, "measured")


def test_a_run_that_died_needed_at_least_what_it_held_and_asked_for() -> None:
    forecast = launch(recompute=Recompute("none")).forecast()
    low, high = forecast.interval_bytes
    outside = forecast.total_bytes - forecast.reserved_bytes
    allocated = forecast.total_bytes - outside  # above the point, within the interval
    more = f"Including non-PyTorch memory, this process has {written(allocated + 0.1 * GIB + outside)} memory in use. "
    made = anchor_of(failed(2 * GIB, allocated, more=more, total=120 * GIB, free=2 * MIB), forecast)
    least = allocated + 2 * GIB + outside
    assert (made.by.bound, made.agrees) == (True, True)
    assert made.by.measured_bytes == pytest.approx(allocated + 2 * GIB, rel=1e-3)
    assert low < least < high
    assert made.interval_bytes[0] >= least * (1 - 1e-3)
    assert least < made.total_bytes < made.interval_bytes[1]


def test_a_bound_that_was_expected_changes_nothing() -> None:
    forecast = launch(recompute=Recompute("none")).forecast()
    made = anchor_of(failed(1 * GIB, 0.5 * forecast.allocated_bytes), forecast)
    assert (made.interval_bytes, made.total_bytes, made.factor) == (forecast.interval_bytes, forecast.total_bytes, 1.0)


def test_what_was_printed_before_the_first_step_is_a_bound() -> None:
    forecast = launch().forecast()
    made = anchor_of("[DEBUG] Memory usage after model load 5.000GB (+5.000GB allocated, +6.000GB reserved)\n", forecast)
    assert made.by.bound
    assert made.interval_bytes == forecast.interval_bytes


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(0.01, 30.0))
def test_every_anchor_is_an_interval_around_its_point(share: float, tried: float) -> None:
    forecast = _FORECAST
    for text in (
        failed(tried * GIB, share * forecast.allocated_bytes, total=400 * GIB),
        reserved(share * forecast.reserved_bytes),
    ):
        made = explain(read_log(text), forecast)
        assert made.anchor is not None
        low, high = made.anchor.interval_bytes
        assert 0 < low <= made.anchor.total_bytes * (1 + 1e-9)
        assert made.anchor.total_bytes <= high * (1 + 1e-9)
        if made.anchor.by.bound:
            assert low >= min(made.anchor.by.measured_bytes, forecast.interval_bytes[0])
            assert made.anchor.factor >= 1
        json.dumps(made.to_dict())


_FORECAST = launch().forecast()


# -- serving ------------------------------------------------------------------------------------------------


def served(**recipe: Any) -> Deployment:
    asked: dict[str, Any] = {"engine": "vllm", "version": "0.11.0", "max_model_len": 16000} | recipe
    return deployment("llama-3.1-8b", "h100", ServingRecipe(**asked))


def test_an_engines_account_beside_the_forecasts() -> None:
    text = (
        "INFO Model loading took 14.99 GiB and 3.1 seconds\nINFO Available KV cache memory: 51.38 GiB\n"
        "INFO GPU KV cache size: 420,880 tokens\n"
    )
    made = explain(read_log(text), served())
    assert made.headline == "no failure: vLLM has a KV pool of 51.38 GiB, 420,880 tokens"
    assert "as forecast" in said(made, "measured")
    assert not said(made, "part")
    parts = {part.name: part for part in made.parts}
    assert parts["weights"].more == pytest.approx(0, abs=0.02 * GIB)
    assert parts["kv_pool"].forecast_bytes == served().capacity.pool_bytes


def test_the_part_that_is_larger_is_named() -> None:
    text = (
        "the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB\n"
        "model weights take 19.86GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes 36.63GiB; the rest of "
        "the memory reserved for KV Cache is 14.64GiB.\n"
    )
    made = explain(read_log(text), served())
    parts = [finding for finding in made.findings if finding.kind == "part"]
    assert parts[0].text.startswith("activation: 36.63 GiB in the log")
    assert "images or audio" in parts[0].text
    assert parts[1].text.startswith("weights: 19.86 GiB in the log, 14.99 GiB forecast, 4.87 GiB more")


def test_a_negative_pool_says_which_flag_would_start_it() -> None:
    text = (
        "the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB\n"
        "model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the "
        "memory reserved for KV Cache is -1.05GiB.\n"
    )
    for ending in ("", "ValueError: No available memory for the cache blocks.\n"):
        made = explain(read_log(text + ending))
        assert made.cause == "refusal"
        assert (made.remedies[0].flags, made.remedies[0].enough) == ("--gpu-memory-utilization 0.87", True)


def test_where_no_flag_is_large_enough_it_says_so() -> None:
    text = (
        "the current vLLM instance can use total_gpu_memory (31.75GiB) x gpu_memory_utilization (0.95) = 30.16GiB\n"
        "model weights take 28.30GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes 4.00GiB; the rest of the "
        "memory reserved for KV Cache is -2.24GiB.\nValueError: No available memory for the cache blocks.\n"
    )
    made = explain(read_log(text))
    assert "cannot help: it would have to be 1.03" in made.remedies[0].price


def test_the_longest_request_that_does_not_fit() -> None:
    text = (
        "Desired GPU memory utilization is (0.9, 21.60 GiB)\nCUDA capacity: X with 24.00GiB memory\nValueError: To serve at least one "
        "request with the models's max seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (4.50 GiB). Based on the available memory, the estimated maximum model length is 32768.\n"
    )
    made = explain(read_log(text))
    flags = {remedy.flags: remedy for remedy in made.remedies}
    assert flags["--max-model-len 32768"].enough
    assert flags["--gpu-memory-utilization 0.95"].saved_bytes == pytest.approx(0.05 * 24 * GIB)
    assert flags["--kv-cache-dtype fp8"].saved_bytes == pytest.approx(2.81 * GIB)


def test_something_else_was_on_the_gpu_at_the_start() -> None:
    text = (
        "Free memory on device cuda:0 (20.00/24.00 GiB) on startup is less than desired GPU memory utilization (0.9, 21.60 GiB)."
    )
    made = explain(read_log(text))
    assert "something else is on the GPU" in made.headline
    assert [remedy.flags for remedy in made.remedies] == ["", "--gpu-memory-utilization 0.83"]
    assert made.remedies[0].saved_bytes == pytest.approx(1.6 * GIB)


def test_sglang_says_which_fraction_would_do() -> None:
    text = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={}. Raise it above x "
        "(minimum viable = 1 - available/pre = {})."
    )
    assert explain(read_log(text.format(0.85, 0.9127))).remedies[0].flags == "--mem-fraction-static 0.92"
    assert "cannot help" in explain(read_log(text.format(0.85, 1.0))).remedies[0].price


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**9), max_size=20))
def test_no_damaged_log_breaks_the_answer(places: list[int]) -> None:
    text = above(failed(3.92 * GIB, 60 * GIB), LOSS) + "model weights take 5.20GiB; reserved for KV Cache is -1.05GiB.\n"
    letters = list(text + reserved(40 * GIB))
    for place in places:
        letters[place % len(letters)] = ["", "0", "9", "-", ".", "\n"][place % 6]
    json.dumps(explain(read_log("".join(letters)), _FORECAST).to_dict(), allow_nan=False)


# -- the answer ---------------------------------------------------------------------------------------------


def test_a_log_that_says_nothing() -> None:
    made = explain(read_log("hello\n"), launch().forecast())
    assert (made.verdict, made.cause, made.anchor, made.remedies) == ("nothing", "", None, ())
    assert made.headline == "nothing in this log speaks of memory that is known here"


def test_the_answer_as_data_and_as_lines() -> None:
    made = explain(read_log(above(failed(2 * GIB, 75 * GIB), LOSS), "run.log"), launch().forecast())
    data = json.loads(json.dumps(made.to_dict()))
    assert data["explanation"][0] == made.headline
    assert any(line.endswith("[run.log:4]") for line in data["explanation"])
    assert data["anchor"]["ratio"] == pytest.approx(made.anchor.by.ratio if made.anchor else 0)
    assert data["measured"][0]["counter"] == "allocated"
