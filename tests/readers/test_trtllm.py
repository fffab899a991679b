"""TensorRT-LLM's command line and its file, read as `foretell check` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foretell.cli._check_request import Given, options_of
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from foretell.readers.rewrite import rewrite
from foretell.recipe.engine_versions import CHECKED

if TYPE_CHECKING:
    from pathlib import Path

    from foretell.readers import Reading

SERVE = "trtllm-serve meta-llama/Llama-3.1-8B-Instruct"
FILE = """\
enable_attention_dp: true
kv_cache_config:
  dtype: fp8
  free_gpu_memory_fraction: 0.85
  enable_block_reuse: false
cuda_graph_config:
  enable_padding: true
moe_config: {backend: CUTLASS}
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
print_iter_log: true
own_key: 1
"""


def reading(line: str, family: str | None = "trtllm") -> Reading:
    return read_texts([(COMMAND, line)], family=family)


def test_flags_become_options() -> None:
    found = reading(
        f"mpirun -n 2 --mca btl tcp trtllm-llmapi-launch {SERVE} --tp_size 2 "
        "--max_seq_len 32768 --max_batch_size 64 --max_num_tokens 4096 "
        "--kv_cache_free_gpu_memory_fraction 0.9 --enable_chunked_prefill --port 8000 --backend pytorch",
        None,
    )
    assert (found.family, found.verb, found.model) == ("trtllm", "serve", "meta-llama/Llama-3.1-8B-Instruct")
    assert {name: setting.value for name, setting in found.settings.items()} == {
        "engine": "tensorrt-llm", "tp": 2, "max_model_len": 32768, "max_num_seqs": 64, "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.9, "chunked_prefill": True,
    }  # fmt: skip
    assert not found.doubts


def test_a_file_stands_above_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "extra.yaml").write_text(FILE)
    found = reading("trtllm-serve serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --extra_llm_api_options extra.yaml")
    values = {name: setting.value for name, setting in found.settings.items()}
    assert (values["tp"], values["dp"], values["dp_kind"], values["ep"]) == (1, 8, "attention", 8)
    assert (values["kv_dtype"], values["gpu_memory_utilization"]) == ("fp8", 0.85)
    assert (values["speculative"], values["draft_tokens"]) == ("mtp", 3)
    assert str(found.settings["kv_dtype"].origin).endswith("extra.yaml:3")
    assert {row.key: row.effect for row in found.unmodelled} == {
        "cuda_graph_config.enable_padding": "speed", "moe_config.backend": "speed",
    }  # fmt: skip
    assert [row.key for row in found.unknown] == ["own_key"]
    with pytest.raises(ConfigError, match="is not here"):
        reading(f"{SERVE} --config none.yaml")


def test_the_version_is_the_newest_known_and_a_key_that_is_spelt_wrong_is_named_with_the_one_that_was_meant() -> None:
    text = "kv_cache_config:\n  dtype: fp8\nmax_num_tokenz: 4096\n"
    found = read_texts([("extra.yaml", text)], family="trtllm")
    assert found.version == CHECKED["tensorrt-llm"]
    (row,) = found.unknown
    nowhere = "is in no table of TensorRT-LLM, which does not start with what it does not have"
    assert row.why == f"{nowhere}: did you mean max_num_tokens?"


def test_a_null_turns_graphs_off() -> None:
    found = read_texts([("extra.yaml", "kv_cache_config:\n  dtype: auto\ncuda_graph_config: null\n")])
    assert found.family == "trtllm"
    assert found.settings["enforce_eager"].value is True
    assert "kv_dtype" not in found.settings
    assert "model" in found.needs


@pytest.mark.parametrize("flags", ["--tp_size x", "--max_batch_size 0", "--free_gpu_memory_fraction 2"])
def test_values_that_are_none_are_refused_with_their_place(flags: str) -> None:
    with pytest.raises(ConfigError) as error:
        reading(f"{SERVE} {flags}")
    assert error.value.where == f"{COMMAND}:1"


def test_other_commands_start_no_server_of_tokens() -> None:
    with pytest.raises(ConfigError, match="no server of tokens"):
        reading("trtllm-serve disaggregated -c x.yaml")


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"tp": "2"}, f"{SERVE} --tp_size 2"),
        ({"max_model_len": "8192"}, f"{SERVE} --max_seq_len 8192"),
        ({"gpu_memory_utilization": "0.8"}, f"{SERVE} --free_gpu_memory_fraction 0.8"),
    ],
)
def test_options_are_written_as_flags(change: dict[str, str | bool], after: str) -> None:
    before = reading(SERVE)
    made = rewrite(before, change, lambda texts: reading(texts[COMMAND]))
    assert made is not None
    assert options_of(made.reading, Given(None, {})) == options_of(before, Given(None, change))
    assert made.texts[COMMAND] == after
