"""vLLM's command lines and files of flags, read as `foretell check` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from foretell.cli._check_request import Given, options_of
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from foretell.readers.rewrite import rewrite
from foretell.recipe.engine_versions import CHECKED

if TYPE_CHECKING:
    from pathlib import Path

    from foretell.readers import Reading

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def reading(line: str, family: str | None = "vllm") -> Reading:
    return read_texts([(COMMAND, line)], family=family)


def options(line: str) -> dict[str, Any]:
    return {name: setting.option for name, setting in reading(line).settings.items()}


def unmodelled(found: Reading) -> dict[str, str]:
    return {row.key: row.effect for row in found.unmodelled}


def test_a_command_is_found_by_its_program_and_its_flags_become_options() -> None:
    found = reading(f"{SERVE} -tp 2 --max-model-len 32k --gpu-memory-utilization=0.85 --kv-cache-dtype fp8 --enforce-eager", None)
    assert (found.family, found.verb, found.model) == ("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct")
    values = {name: setting.value for name, setting in found.settings.items()}
    assert values == {
        "engine": "vllm", "tp": 2, "max_model_len": 32000, "gpu_memory_utilization": 0.85,
        "kv_dtype": "fp8", "enforce_eager": True,
    }  # fmt: skip
    assert str(found.settings["tp"].origin) == f"{COMMAND}:1"
    assert found.settings["tp"].said == "tensor_parallel_size: 2"
    assert not found.unmodelled
    assert not found.unknown


@pytest.mark.parametrize(
    ("flag", "tokens"),
    [("32k", 32000), ("32K", 32768), ("1M", 2**20), ("25.6k", 25600), ("4096", 4096), ("auto", "auto"), ("-1", "auto")],
)
def test_lengths_are_read_as_vllm_reads_them(flag: str, tokens: int | str) -> None:
    line = f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {SERVE} --max-model-len={flag}"
    assert reading(line).settings["max_model_len"].value == tokens


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 32768), ("Qwen/Qwen2.5-7B", 131072), ("Qwen/Qwen2.5-Coder-32B-Instruct", 32768),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 32768), ("Qwen/Qwen2-7B-Instruct", 32768), ("Qwen/Qwen2-7B", 131072),
    ],
)  # fmt: skip
def test_an_instruct_model_has_the_context_of_its_own_file(model: str, tokens: int) -> None:
    assert reading(f"vllm serve {model}").settings["max_model_len"].value == tokens


LLAMA_2 = "vllm serve meta-llama/Llama-2-7b-hf --max-model-len"


def test_a_sequence_longer_than_the_models_positions_does_not_start() -> None:
    assert reading(f"{LLAMA_2} 4096").settings["max_model_len"].value == 4096
    with pytest.raises(ConfigError, match="4096 positions of meta-llama/Llama-2-7b-hf: vLLM does not start") as error:
        reading(f"{LLAMA_2} 16384")
    assert error.value.where == f"{COMMAND}:1"
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in str(error.value.hint)
    with pytest.raises(ConfigError, match="positions"):
        reading(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=0 {LLAMA_2} 16384")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", ""), ("", "--trust-remote-code"),
        ("", """--hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'"""), ("", "--hf-overrides.x 1"),
        ("", """--rope-scaling '{"rope_type": "linear", "factor": 4.0}'"""),
    ],
)  # fmt: skip
def test_a_longer_sequence_is_taken_where_the_user_says_that_the_model_can(before: str, after: str) -> None:
    assert reading(f"{before} {LLAMA_2} 16384 {after}").settings["max_model_len"].value == 16384
    image = f"docker run {'-e ' if before else ''}{before} vllm/vllm-openai"
    inside = f"{image} --model meta-llama/Llama-2-7b-hf --max-model-len 16384 {after}"
    assert reading(inside).settings["max_model_len"].value == 16384


def test_scaling_in_the_models_own_file_counts() -> None:
    known = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len"
    assert reading(f"{known} 163840").settings["max_model_len"].value == 163840
    with pytest.raises(ConfigError, match="163840 positions"):
        reading(f"{known} 200000")


def test_the_version_is_that_of_the_image_or_the_newest_known() -> None:
    assert reading(SERVE).version == CHECKED["vllm"]
    found = reading("docker run vllm/vllm-openai:v0.8.5 --model meta-llama/Llama-3.1-8B-Instruct")
    assert found.version == "0.8.5"
    assert "default of vLLM 0.8.5" in str(found.settings["max_model_len"].origin)


def test_a_flag_that_is_spelt_wrong_is_named_with_the_one_that_was_meant() -> None:
    found = reading(f"{SERVE} --tensor-paralel-size 2 --warp-drive 9")
    reasons = {row.key: row.why for row in found.unknown}
    nowhere = "is in no table of vLLM, which does not start with what it does not have"
    assert reasons == {
        "tensor_paralel_size": f"{nowhere}: did you mean tensor_parallel_size?",
        "warp_drive": f"{nowhere}: what it does is not known",
    }


def test_what_no_flag_says_is_the_default_of_vllm() -> None:
    found = reading(SERVE).settings["max_model_len"]
    assert found.value == 131072
    assert "default of vLLM" in str(found.origin)
    assert reading("vllm serve --port 8000").model == "Qwen/Qwen3-0.6B"


def test_the_module_and_the_container_start_the_same_server() -> None:
    module = options("python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64")
    assert module["max_num_seqs"] == "64"
    found = reading(
        "docker run --gpus all -v ~/.cache:/root -p 8000:8000 -e VLLM_LOGGING_LEVEL=DEBUG --ipc=host vllm/vllm-openai:v0.11.0 "
        "--model meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64"
    )
    assert found.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.settings["engine_version"].value == "0.11.0"
    assert not found.unknown


def test_experts_are_spread_over_all_ranks() -> None:
    found = options("vllm serve deepseek-ai/DeepSeek-V3 -tp 2 -dp 4 --enable-expert-parallel")
    assert (found["tp"], found["dp"], found["dp_kind"], found["ep"]) == ("2", "4", "attention", "8")
    dense = options(f"{SERVE} -dp 4 --enable-expert-parallel")
    assert dense["dp"] == "4"
    assert "ep" not in dense
    assert "dp_kind" not in dense


def test_nodes_share_the_ranks() -> None:
    assert options("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -pp 2 --nnodes 2 --node-rank 0")["gpus_per_node"] == "8"


def test_json_and_dotted_flags_say_the_same() -> None:
    tail = "deepseek-ai/DeepSeek-V3 --speculative-config"
    as_json = options(f"""vllm serve {tail} '{{"method": "mtp", "num_speculative_tokens": 2}}'""")
    dotted = options(f"vllm serve {tail}.method deepseek_mtp {tail.split()[1]}.num_speculative_tokens 2")
    assert as_json["speculative"] == dotted["speculative"] == "mtp"
    assert as_json["draft_tokens"] == dotted["draft_tokens"] == "2"


def test_draft_models_are_options_where_they_are_known() -> None:
    config = """'{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5, "method": "draft_model"}'"""
    found = options(f"vllm serve meta-llama/Llama-3.1-70B -tp 4 --speculative-config {config}")
    assert (found["speculative"], found["draft"], found["draft_tokens"]) == ("draft", "meta-llama/Llama-3.2-1B", "5")
    other = reading(f"""{SERVE} --speculative-config '{{"model": "me/own", "num_speculative_tokens": 5}}'""")
    assert unmodelled(other) == {"speculative_config.model": "more"}
    text = reading(f"""{SERVE} --speculative-config '{{"method": "ngram", "num_speculative_tokens": 5}}'""")
    assert unmodelled(text) == {"speculative_config.method": "speed"}


@pytest.mark.parametrize(
    ("name", "flags", "model", "weights"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "", "meta-llama/Llama-3.1-8B-Instruct", "fp8"),
        ("Qwen/Qwen3-8B-AWQ", "--quantization awq_marlin --dtype half", "Qwen/Qwen3-8B", "int4"),
        ("Qwen/Qwen3-8B", "--quantization fp8", "Qwen/Qwen3-8B", "fp8"),
        ("Qwen/Qwen3-8B", "--dtype float16", "Qwen/Qwen3-8B", "fp16"),
    ],
)
def test_formats_of_weights(name: str, flags: str, model: str, weights: str) -> None:
    found = reading(f"vllm serve {name} {flags}")
    assert str(found.model).casefold().replace("meta-llama-3", "llama-3") == model.casefold()
    assert found.settings["weights"].value == weights
    assert not found.doubts


def test_a_stored_format_stays_what_the_models_file_says() -> None:
    found = reading("vllm serve deepseek-ai/DeepSeek-V3 --dtype bfloat16 --quantization fp8")
    assert "weights" not in found.settings
    assert {row.key for row in found.neutral} >= {"dtype", "quantization"}


def test_graphs_are_off() -> None:
    for flag in ("-O0", "--enforce-eager", """-cc '{"cudagraph_mode": "NONE"}'""", "--optimization-level 0"):
        assert reading(f"{SERVE} {flag}").settings["enforce_eager"].value is True
    found = reading(f"""{SERVE} -O3 --compilation-config '{{"cudagraph_mode": "PIECEWISE"}}'""")
    assert unmodelled(found) == {"compilation_config.cudagraph_mode": "both"}


def test_every_flag_is_accounted_for() -> None:
    found = reading(
        f"{SERVE} --cpu-offload-gb 4 --enable-lora --max-loras 4 --lora-modules a=/x b=/y --no-enable-prefix-caching "
        "--limit-mm-per-prompt '{\"image\": 2}' --swap-space 8 --host 0.0.0.0 --not-a-flag 3 --disable-log-requests"
    )
    assert unmodelled(found) == {"cpu_offload_gb": "less", "enable_lora": "more", "limit_mm_per_prompt.image": "both"}
    assert [row.key for row in found.unknown] == ["not_a_flag"]
    assert {row.key for row in found.neutral} >= {
        "swap_space",
        "host",
        "lora_modules",
        "enable_prefix_caching",
        "disable_log_requests",
    }
    assert "room for 4 adapters of rank 16" in next(row.why for row in found.unmodelled if row.key == "enable_lora")


def test_beginnings_of_flags_are_completed() -> None:
    assert options(f"{SERVE} --tensor-parallel 2 --gpu-memory 0.8")["tp"] == "2"


def test_variables_are_accounted_for() -> None:
    found = reading(f"VLLM_USE_V1=0 VLLM_LOGGING_LEVEL=DEBUG VLLM_MLA_DISABLE=0 VLLM_USE_TRITON_AWQ=1 {SERVE}")
    assert unmodelled(found) == {"VLLM_USE_V1": "both", "VLLM_USE_TRITON_AWQ": "speed"}
    assert not found.unknown


def test_a_file_stands_below_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "model: Qwen/Qwen3-8B\ntensor-parallel-size: 4\nmax_num_seqs: 128\nspeculative-config:\n  method: ngram\nport: 8000\n"
    (tmp_path / "serve.yaml").write_text(text)
    found = reading("vllm serve --config serve.yaml -tp 2")
    assert found.model == "Qwen/Qwen3-8B"
    assert found.settings["tp"].value == 2
    assert str(found.settings["max_num_seqs"].origin).endswith("serve.yaml:3")
    assert unmodelled(found) == {"speculative_config.method": "speed"}
    with pytest.raises(ConfigError, match="is not here"):
        reading("vllm serve --config none.yaml")


def test_a_file_alone_is_a_server() -> None:
    found = read_texts([("serve.yaml", "kv-cache-dtype: fp8\nmax-num-batched-tokens: 8192\nno-enable-prefix-caching: true\n")])
    assert found.family == "vllm"
    assert found.settings["max_num_batched_tokens"].value == 8192
    assert "model" in found.needs
    assert not found.unknown


@pytest.mark.parametrize(
    "flags",
    [
        "-tp two", "--kv-cache-dtype int99", "--gpu-memory-utilization 92", "--max-model-len 2.5K", "--quantization magic",
        """--speculative-config '{"method": "guess"}'""", "--speculative-config '{method: mtp'", "--max-num-seqs 0", "-dp -1",
    ],
)  # fmt: skip
def test_values_that_are_none_are_refused_with_their_place(flags: str) -> None:
    with pytest.raises(ConfigError) as error:
        reading(f"{SERVE} {flags}")
    assert error.value.where == f"{COMMAND}:1"


@pytest.mark.parametrize("line", ["vllm bench serve --model x", "vllm chat", "vllm", "vllm collect-env"])
def test_other_commands_start_no_server(line: str) -> None:
    with pytest.raises(ConfigError, match="no server is started"):
        reading(line)


@pytest.mark.parametrize(
    ("line", "change", "after"),
    [
        (SERVE, {"tp": "2"}, f"{SERVE} --tensor-parallel-size 2"),
        (f"{SERVE} -tp 2", {"tp": "4", "pp": "2"}, f"{SERVE} -tp 4 --pipeline-parallel-size 2"),
        (f"{SERVE} --max-model-len 64k", {"max_model_len": "8192"}, f"{SERVE} --max-model-len 8192"),
        (SERVE, {"kv_dtype": "fp8", "weights": "fp8"}, f"{SERVE} --quantization fp8 --kv-cache-dtype fp8"),
        (f"{SERVE} --gpu-memory-utilization=0.5", {"gpu_memory_utilization": "0.9"}, f"{SERVE} --gpu-memory-utilization=0.9"),
        (SERVE, {"enforce_eager": True}, f"{SERVE} --enforce-eager"),
        (f"{SERVE} --no-enable-chunked-prefill", {"chunked_prefill": True}, f"{SERVE} --enable-chunked-prefill"),
    ],
)
def test_options_are_written_as_flags(line: str, change: dict[str, str | bool], after: str) -> None:
    before = reading(line)
    made = rewrite(before, change, lambda texts: reading(texts[COMMAND]))
    assert made is not None
    assert options_of(made.reading, Given(None, {})) == options_of(before, Given(None, change))
    assert made.texts[COMMAND] == after


def test_what_no_flag_says_is_not_written() -> None:
    assert reading(SERVE).spell("dp_kind", "attention") is None
    assert reading("vllm serve Qwen/Qwen3-8B-AWQ").spell("weights", "fp8") is None
