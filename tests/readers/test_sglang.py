"""SGLang's command lines, read as `foretell check` reads them."""

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

LAUNCH = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"


def reading(line: str, family: str | None = "sglang") -> Reading:
    return read_texts([(COMMAND, line)], family=family)


def options(line: str) -> dict[str, Any]:
    return {name: setting.option for name, setting in reading(line).settings.items()}


def test_flags_become_options() -> None:
    found = reading(
        f"{LAUNCH} --tp 2 --context-length 32768 --mem-fraction-static 0.8 --max-running-requests 64 --page-size 16 "
        "--kv-cache-dtype fp8_e5m2 --disable-cuda-graph --host 0.0.0.0 --log-level info",
        None,
    )
    assert (found.family, found.verb, found.model) == ("sglang", "serve", "Qwen/Qwen3-8B")
    assert {name: setting.value for name, setting in found.settings.items()} == {
        "engine": "sglang", "tp": 2, "max_model_len": 32768, "gpu_memory_utilization": 0.8, "max_num_seqs": 64, "block_size": 16,
        "kv_dtype": "fp8_e5m2", "enforce_eager": True,
    }  # fmt: skip
    assert not found.doubts


@pytest.mark.parametrize("layout", ["--dp-size 8 --enable-dp-attention", "--attn-dp-size 8"])
def test_attention_has_copies_on_the_ranks_of_tensor_parallelism(layout: str) -> None:
    line = f"sglang serve deepseek-ai/DeepSeek-V3 --tp-size 8 {layout} --max-running-requests 256 --chunked-prefill-size 32768"
    found = options(line)
    assert (found["tp"], found["dp"], found["dp_kind"]) == ("1", "8", "attention")
    assert (found["max_num_seqs"], found["max_num_batched_tokens"]) == ("32", "4096")


def test_copies_that_share_nothing() -> None:
    found = options(f"{LAUNCH} --data-parallel-size 4")
    assert found["dp"] == "4"
    assert "dp_kind" not in found


def test_experts_are_spread_where_tokens_are_sent_to_them() -> None:
    found = reading("sglang serve deepseek-ai/DeepSeek-V3 --tp 8 --moe-a2a-backend deepep --ep-size 2")
    assert found.settings["ep"].value == 8
    assert [row.key for row in found.unmodelled] == ["moe_a2a_backend"]
    assert "ep" not in options(f"{LAUNCH} --tp 8 --ep 8")


@pytest.mark.parametrize(
    ("flags", "kind", "tokens"),
    [
        ("--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-num-draft-tokens 4", "mtp", "3"),
        ("--speculative-algorithm EAGLE --speculative-num-draft-tokens 4", "mtp", "3"),
        ("--speculative-algo EAGLE3 --speculative-draft-model-path a/b --speculative-num-steps 2", "eagle", "2"),
        (
            "--speculative-algorithm STANDALONE --speculative-draft-model-path Qwen/Qwen3-0.6B --speculative-num-steps 5",
            "draft",
            "5",
        ),
    ],
)
def test_who_proposes_tokens(flags: str, kind: str, tokens: str) -> None:
    found = options(f"{LAUNCH} {flags}")
    assert (found["speculative"], found["draft_tokens"]) == (kind, tokens)


def test_every_flag_is_accounted_for() -> None:
    found = reading(
        f"SGLANG_ENABLE_JIT_DEEPGEMM=1 {LAUNCH} --lora-paths a=/x b=/y --max-loras-per-batch 2 --disable-radix-cache "
        "--attention-backend fa3 --json-model-override-args '{\"max_position_embeddings\": 8}' --enable-metrics --own-flag"
    )
    assert {row.key: row.effect for row in found.unmodelled} == {
        "lora_paths": "more", "disable_radix_cache": "speed", "attention_backend": "speed",
        "json_model_override_args.max_position_embeddings": "both", "SGLANG_ENABLE_JIT_DEEPGEMM": "speed",
    }  # fmt: skip
    assert [row.key for row in found.unknown] == ["own_flag"]


def test_the_version_is_the_newest_known_and_a_flag_that_is_spelt_wrong_is_named_with_the_one_that_was_meant() -> None:
    found = reading(f"{LAUNCH} --mem-fraction-statik 0.8")
    assert found.version == CHECKED["sglang"]
    assert (
        reading("docker run lmsysorg/sglang:v0.4.7 python -m sglang.launch_server --model-path Qwen/Qwen3-8B").version == "0.4.7"
    )
    (row,) = found.unknown
    assert (
        row.why == "is in no table of SGLang, which does not start with what it does not have: did you mean mem_fraction_static?"
    )


def test_a_file_stands_below_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.yaml").write_text("model-path: Qwen/Qwen3-8B\ntensor-parallel-size: 4\nmem-fraction-static: 0.7\n")
    found = reading("python -m sglang.launch_server --config server.yaml --tp 2")
    assert found.model == "Qwen/Qwen3-8B"
    assert found.settings["tp"].value == 2
    assert str(found.settings["gpu_memory_utilization"].origin).endswith("server.yaml:3")
    alone = read_texts([("server.yaml", (tmp_path / "server.yaml").read_text())])
    assert alone.family == "sglang"


@pytest.mark.parametrize(
    "flags",
    ["--tp x", "--kv-cache-dtype int3", "--quantization magic", "--speculative-algorithm GUESS", "--tp 4 --attn-dp-size 3",
     "--mem-fraction-static 80"],
)  # fmt: skip
def test_values_that_are_none_are_refused_with_their_place(flags: str) -> None:
    with pytest.raises(ConfigError) as error:
        reading(f"{LAUNCH} {flags}")
    assert error.value.where == f"{COMMAND}:1"


def test_no_model_is_a_need_and_other_commands_are_refused() -> None:
    assert "model" in reading("python -m sglang.launch_server --tp 2").needs
    with pytest.raises(ConfigError, match="starts no server"):
        reading("sglang generate --model-path x")


@pytest.mark.parametrize(
    ("line", "change", "after"),
    [
        (LAUNCH, {"tp": "2"}, f"{LAUNCH} --tp-size 2"),
        (f"{LAUNCH} --tp 2", {"tp": "4"}, f"{LAUNCH} --tp 4"),
        (LAUNCH, {"gpu_memory_utilization": "0.9"}, f"{LAUNCH} --mem-fraction-static 0.9"),
        (LAUNCH, {"max_model_len": "8192", "enforce_eager": True}, f"{LAUNCH} --disable-cuda-graph --context-length 8192"),
    ],
)
def test_options_are_written_as_flags(line: str, change: dict[str, str | bool], after: str) -> None:
    before = reading(line)
    made = rewrite(before, change, lambda texts: reading(texts[COMMAND]))
    assert made is not None
    assert options_of(made.reading, Given(None, {})) == options_of(before, Given(None, change))
    assert made.texts[COMMAND] == after
