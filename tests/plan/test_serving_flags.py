"""Command lines of serving engines: what was asked for is in them, what the engine decides is not; a shell reads them back."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from foretell.core.serving import deployment
from foretell.core.serving_demand import Demand
from foretell.plan.serving_flags import CONFIG, DRAFT, MODEL, Command, flags, launch_command
from foretell.plan.serving_size import size
from foretell.recipe.serving import ServingRecipe, Speculation

HUB = "meta-llama/Llama-3.1-8B-Instruct"
ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp", "tgi")


def command(engine: str, model: str | None = HUB, *, name: str = "llama-3.1-8b", gpu: str = "h100", **recipe: Any) -> Command:
    spec = recipe.get("speculation")
    draft = "llama-3.2-1b" if spec is not None and spec.method == "draft" else None
    made = launch_command(deployment(name, gpu, ServingRecipe(engine=engine, **recipe), draft=draft), model=model)
    assert made is not None
    return made


def value(made: Command, name: str) -> str | None:
    words = list(made.argv)
    return words[words.index(name) + 1] if name in words else None


STARTS = {
    "vllm": ["vllm", "serve", HUB],
    "sglang": ["python", "-m", "sglang.launch_server", "--model-path", HUB],
    "tensorrt-llm": ["trtllm-serve", HUB],
    "lmdeploy": ["lmdeploy", "serve", "api_server", HUB],
    "llama.cpp": ["llama-server", "--model", HUB],
    "tgi": ["text-generation-launcher", "--model-id", HUB],
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engines_own_choices_are_left_to_it(engine: str) -> None:
    made = command(engine)
    start = STARTS[engine]
    assert list(made.argv)[: len(start)] == start
    if engine == "llama.cpp":  # slots and context have no useful default
        assert set(made.argv[len(start) :]) == {"--n-gpu-layers", "999", "--parallel", "1", "--ctx-size", "131072"}
    else:
        assert list(made.argv) == start
    assert made.files == ()
    assert made.copies == 1


NAMES = {
    # engine: tp, sequences, tokens, length, memory
    "vllm": (
        "--tensor-parallel-size",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--max-model-len",
        "--gpu-memory-utilization",
    ),
    "sglang": ("--tp-size", "--max-running-requests", "--chunked-prefill-size", "--context-length", "--mem-fraction-static"),
    "tensorrt-llm": ("--tp_size", "--max_batch_size", "--max_num_tokens", "--max_seq_len", "--kv_cache_free_gpu_memory_fraction"),
    "lmdeploy": ("--tp", "--max-batch-size", "--max-prefill-token-num", "--session-len", "--cache-max-entry-count"),
    "tgi": ("--num-shard", "--max-batch-size", "--max-batch-prefill-tokens", "--max-total-tokens", "--cuda-memory-fraction"),
}


@pytest.mark.parametrize("engine", NAMES)
def test_what_was_asked_for_is_written_once(engine: str) -> None:
    made = command(engine, tp=2, max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=16384, memory_share=0.85)
    for name, wanted in zip(NAMES[engine], ("2", "64", "4096", "16384", "0.85"), strict=True):
        assert value(made, name) == wanted
        assert made.argv.count(name) == 1
    assert shlex.split(made.line) == list(made.argv)


def test_llama_cpp_counts_the_context_of_all_slots() -> None:
    made = command("llama.cpp", "models/llama.gguf", tp=2, max_num_seqs=4, max_num_batched_tokens=1024, max_model_len=8192,
                   kv="q8_0", weights="q4_k_m")  # fmt: skip
    assert value(made, "--ctx-size") == "32768"
    assert value(made, "--parallel") == "4"
    assert value(made, "--ubatch-size") == "1024"
    assert value(made, "--cache-type-k") == value(made, "--cache-type-v") == "q8_0"
    assert value(made, "--flash-attn") == "on"
    assert value(made, "--split-mode") == "row"


def test_a_model_that_no_engine_can_load_has_a_placeholder() -> None:
    for name in (None, "llama-3.1-8b"):
        made = command("vllm", name)
        assert made.argv[2] == MODEL
        assert any(note.startswith(f"{MODEL}: ") for note in made.notes)
    assert command("vllm", "./my models/config.json").argv[2] == "./my models"
    assert shlex.split(command("vllm", "./my models/x; rm -rf ~").line)[2] == "./my models/x; rm -rf ~"


@pytest.mark.parametrize(
    ("engine", "weights", "flag", "wanted"),
    [
        ("vllm", "fp8", "--quantization", "fp8"),
        ("sglang", "fp8", "--quantization", "fp8"),
        ("tgi", "fp8", "--quantize", "fp8"),
        ("lmdeploy", "int4", "--model-format", "awq"),
        ("vllm", "fp16", "--dtype", "float16"),
        ("vllm", "fp32", "--dtype", "float32"),
        ("vllm", "int4", "--quantization", None),
        ("tensorrt-llm", "fp8", "--quantization", None),
    ],
)
def test_formats_are_named_as_the_engine_names_them(engine: str, weights: str, flag: str, wanted: str | None) -> None:
    made = command(engine, weights=weights)
    assert value(made, flag) == wanted
    if wanted is None:
        assert any(f"stored in {weights}" in note for note in made.notes)


@pytest.mark.parametrize(
    ("engine", "kv", "flag", "wanted"),
    [
        ("vllm", "fp8", "--kv-cache-dtype", "fp8"),
        ("vllm", "fp8_e5m2", "--kv-cache-dtype", "fp8_e5m2"),
        ("vllm", "bf16", "--kv-cache-dtype", None),
        ("sglang", "fp8", "--kv-cache-dtype", "fp8_e4m3"),
        ("lmdeploy", "int8", "--quant-policy", "8"),
        ("tgi", "fp8", "--kv-cache-dtype", "fp8_e4m3fn"),
    ],
)
def test_keys_and_values(engine: str, kv: str, flag: str, wanted: str | None) -> None:
    assert value(command(engine, kv=kv), flag) == wanted


def test_a_format_that_an_engine_does_not_keep_is_said() -> None:
    assert any("keys and values in int4" in note for note in command("vllm", kv="int4").notes)


def test_what_trtllm_serve_has_no_flag_for_is_in_its_file() -> None:
    made = command("tensorrt-llm", kv="fp8", memory_share=0.8, enforce_eager=True, block_size=64)
    assert value(made, "--extra_llm_api_options") == CONFIG
    assert "--kv_cache_free_gpu_memory_fraction" not in made.argv  # the file's section would take its place
    ((name, text),) = made.files
    assert name == CONFIG
    assert yaml.safe_load(text) == {
        "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64, "free_gpu_memory_fraction": 0.8},
        "cuda_graph_config": None,
    }
    lines = made.text.splitlines()
    assert lines[0] == f"cat > {CONFIG} <<'EOF'"
    assert lines[-2] == "EOF"
    assert shlex.split(lines[-1]) == list(made.argv)
    assert yaml.safe_load("\n".join(lines[1:-2])) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph"), ("lmdeploy", "--eager-mode"), ("tgi", "--cuda-graphs")],
)
def test_no_graphs(engine: str, flag: str) -> None:
    assert flag in command(engine, enforce_eager=True).argv
    assert flag not in command(engine).argv


def test_chunked_prefill_is_written_where_it_was_chosen() -> None:
    assert "--no-enable-chunked-prefill" in command("vllm", chunked_prefill=False).argv
    assert "--enable-chunked-prefill" in command("vllm", chunked_prefill=True).argv
    assert value(command("sglang", chunked_prefill=False), "--chunked-prefill-size") == "-1"
    assert "--enable_chunked_prefill" in command("tensorrt-llm", chunked_prefill=True).argv


@pytest.mark.parametrize("method", ["draft", "mtp", "eagle"])
def test_speculation(method: str) -> None:
    spec = Speculation(method=method, tokens=3)
    found = {engine: command(engine, speculation=spec) for engine in ("vllm", "sglang", "tensorrt-llm")}
    config = json.loads(value(found["vllm"], "--speculative-config") or "")
    assert config["num_speculative_tokens"] == 3
    assert config["method"] == {"draft": "draft_model", "mtp": "mtp", "eagle": "eagle3"}[method]
    assert value(found["sglang"], "--speculative-num-steps") == "3"
    assert value(found["sglang"], "--speculative-num-draft-tokens") == "4"
    written = yaml.safe_load(found["tensorrt-llm"].files[0][1])["speculative_config"]
    assert written["max_draft_len"] == 3
    own = method == "mtp"
    assert ("model" in config) is not own
    assert ("speculative_model" in written) is not own
    for made in found.values():
        assert any(note.startswith(DRAFT) for note in made.notes) is not own


def test_a_draft_is_named_as_it_was_given() -> None:
    found = deployment("llama-3.1-8b", "h100", ServingRecipe(speculation=Speculation(tokens=5)), draft="llama-3.2-1b")
    made = launch_command(found, model=HUB, draft="meta-llama/Llama-3.2-1B")
    assert made is not None
    assert json.loads(value(made, "--speculative-config") or "")["model"] == "meta-llama/Llama-3.2-1B"
    assert not any(note.startswith(DRAFT) for note in made.notes)


def test_old_versions_have_old_names() -> None:
    spec = Speculation(tokens=5)
    old = command("vllm", version="0.5.0", speculation=spec, max_model_len=4096)
    assert old.argv[:3] == ("python", "-m", "vllm.entrypoints.openai.api_server")
    assert value(old, "--num-speculative-tokens") == "5"
    assert "--speculative-config" not in old.argv
    assert command("vllm", version="0.11.0").argv[0] == "vllm"
    assert value(command("llama.cpp", "a.gguf", version="b6000", speculation=spec), "--draft-max") == "5"
    assert value(command("llama.cpp", "a.gguf", speculation=spec), "--spec-draft-n-max") == "5"


def test_experts_and_attention_in_parallel() -> None:
    recipe: dict[str, Any] = {"name": "mixtral-8x7b", "tp": 2, "dp": 4, "ep": 8, "dp_kind": "attention"}
    vllm = command("vllm", "mistralai/Mixtral-8x7B-v0.1", **recipe)
    assert value(vllm, "--tensor-parallel-size") == "2"
    assert value(vllm, "--data-parallel-size") == "4"
    assert "--enable-expert-parallel" in vllm.argv
    sglang = command("sglang", "mistralai/Mixtral-8x7B-v0.1", **recipe)
    assert value(sglang, "--tp-size") == "8"  # all ranks
    assert value(sglang, "--dp-size") == "4"
    assert "--enable-dp-attention" in sglang.argv
    assert value(sglang, "--ep-size") == "8"
    tensorrt = command("tensorrt-llm", "mistralai/Mixtral-8x7B-v0.1", **recipe)
    assert value(tensorrt, "--tp_size") == "8"
    assert yaml.safe_load(tensorrt.files[0][1]) == {"enable_attention_dp": True}


def test_replicas_are_one_start_inside_a_node_and_several_beyond() -> None:
    inside = command("vllm", tp=2, dp=4)
    assert value(inside, "--data-parallel-size") == "4"
    assert inside.copies == 1
    beyond = command("vllm", tp=2, dp=12)
    assert "--data-parallel-size" not in beyond.argv
    assert beyond.copies == 12
    assert any("start it 12 times" in note for note in beyond.notes)
    experts = command("vllm", "mistralai/Mixtral-8x7B-v0.1", name="mixtral-8x7b", tp=2, dp=4)
    assert experts.copies == 4  # data-parallel ranks of one vLLM share the experts
    assert command("sglang", dp=8).copies == 1
    assert command("tensorrt-llm", dp=8).copies == 8


def test_stages() -> None:
    made = command("vllm", tp=2, pp=2)
    assert value(made, "--pipeline-parallel-size") == "2"
    assert value(command("sglang", tp=2, pp=2), "--pp-size") == "2"


def test_an_engine_without_a_known_command_line_has_none() -> None:
    found = deployment("llama-3.1-8b", "h100", ServingRecipe(engine="other"))
    assert launch_command(found) is None
    assert flags(found) == []


def test_words_and_plain_data() -> None:
    found = deployment("llama-3.1-8b", "h100", ServingRecipe(max_num_seqs=8))
    words = flags(found, model=HUB)
    assert words == ["vllm", "serve", HUB, "--max-num-seqs", "8"]
    made = launch_command(found, model=HUB)
    assert made is not None
    assert json.loads(json.dumps(made.to_dict()))["argv"] == words
    assert made.text == made.line == shlex.join(words)


def test_a_fleet_that_was_sized_has_its_flags() -> None:
    found = size("llama-3.1-8b", Demand("open", 3000, 60, rate=30.0), "ttft=800ms,itl=100ms", hardware="l40s", tp=[1])
    best = found.best
    assert best is not None
    assert best.fleet is not None
    made = launch_command(best.fleet, model=HUB)
    assert made is not None
    for name, wanted in best.flags:
        assert value(made, "--" + name.replace("_", "-")) == str(wanted)
    assert made.copies == best.replicas
