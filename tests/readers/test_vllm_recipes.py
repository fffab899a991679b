"""Recipes of vLLM, read as `foretell check` reads them."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.cli._check_request import Given, options_of
from foretell.errors import ConfigError
from foretell.readers.engines.vllm_recipes import amount
from foretell.readers.read import read_texts
from foretell.readers.rewrite import rewrite
from foretell.recipe.engine_versions import CHECKED

RECIPE = """\
meta:
  title: "A model"
  hardware: {h200: verified}
model:
  model_id: "Qwen/Qwen3-30B-A3B"
  min_vllm_version: "0.9.0"
  architecture: moe
  parameter_count: "30.5B"
  active_parameters: "3.3B"
  context_length: 40960
  base_args:
    - "--max-model-len"
    - "32768"
    - "--trust-remote-code"
  base_env: {VLLM_LOGGING_LEVEL: "DEBUG"}
features:
  reasoning:
    args: ["--reasoning-parser", "qwen3"]
  spec_decoding:
    args: ["--speculative-config", '{"method":"ngram","num_speculative_tokens":3}']
opt_in_features: [spec_decoding]
variants:
  default: {precision: bf16, vram_minimum_gb: 74}
  fp8: {model_id: "Qwen/Qwen3-30B-A3B-FP8", precision: fp8, vram_minimum_gb: 37}
compatible_strategies: [single_node_tp, single_node_tep]
hardware_overrides:
  amd: {extra_args: ["--block-size", "64"], extra_env: {VLLM_ROCM_USE_AITER: "1"}}
  hopper: {extra_args: ["--async-scheduling", "--kv-cache-dtype", "fp8"]}
strategy_overrides:
  single_node_tp:
    tp: 2
"""


def reading(text: str = RECIPE, **given: str) -> Any:
    return read_texts([("recipe.yaml", text)], given=given)


def test_the_version_is_that_of_the_image_or_the_newest_known() -> None:
    assert reading().version == CHECKED["vllm"]
    text = RECIPE.replace("  architecture: moe\n", "  architecture: moe\n  docker_image: vllm/vllm-openai:v0.11.0\n")
    assert reading(text).version == "0.11.0"


def test_a_length_that_vllm_does_not_start_with_is_refused_unless_the_recipe_allows_it() -> None:
    text = RECIPE.replace('"32768"\n    - "--trust-remote-code"', '"65536"')
    with pytest.raises(ConfigError, match="more than the 40960 positions"):
        reading(text)
    allowed = text.replace("{VLLM_LOGGING_LEVEL:", '{VLLM_ALLOW_LONG_MAX_MODEL_LEN: "1", VLLM_LOGGING_LEVEL:')
    assert reading(allowed).settings["max_model_len"].value == 65536


def test_a_recipe_is_the_command_that_it_recommends() -> None:
    found = reading()
    assert (found.family, found.verb, found.model) == ("vllm_recipes", "serve", "Qwen/Qwen3-30B-A3B")
    values = {name: setting.value for name, setting in found.settings.items()}
    assert values == {
        "weights": "bf16", "gpu": "h200-sxm", "gpus_per_node": 8, "engine": "vllm", "kv_dtype": "fp8", "tp": 2,
        "max_model_len": 32768,
    }  # fmt: skip
    assert str(found.settings["max_model_len"].origin) == "recipe.yaml:13"
    assert str(found.settings["tp"].origin) == "recipe.yaml:31"
    assert {row.key: row.effect for row in found.unmodelled} == {}
    assert not found.unknown
    assert any("variant default, single_node_tp on 8 x h200; other variants: fp8" in note for note in found.notes)


def test_another_accelerator_takes_its_own_words() -> None:
    found = reading(gpu="mi300x")
    assert found.settings["gpu"].value == "mi300x"
    assert found.settings["block_size"].value == 64
    assert "kv_dtype" not in found.settings
    assert [row.key for row in found.unmodelled] == ["hardware_overrides.amd.extra_env.VLLM_ROCM_USE_AITER"]


def test_tensor_parallelism_follows_from_the_stated_minimum() -> None:
    text = RECIPE.replace("strategy_overrides:\n  single_node_tp:\n    tp: 2\n", "")
    assert reading(text).settings["tp"].value == 1
    large = text.replace("vram_minimum_gb: 74", "vram_minimum_gb: 300")
    assert reading(large).settings["tp"].value == 8
    spread = reading(f"default_strategy: single_node_tep\n{text}").settings
    assert (spread["tp"].value, spread["ep"].value) == (8, 8)


def test_several_nodes_are_taken_where_one_is_too_small() -> None:
    text = RECIPE.replace("vram_minimum_gb: 74", "vram_minimum_gb: 2000").replace("single_node_tep]", "multi_node_tp]")
    found = reading(text).settings
    assert (found["tp"].value, found["gpus_per_node"].value) == (16, 8)


def test_what_is_stated_is_compared() -> None:
    assert any(note.startswith("stated minimum 74 GB; 30.53 B parameters in bf16 take 61.1 GB") for note in reading().notes)
    low = reading(RECIPE.replace("vram_minimum_gb: 74", "vram_minimum_gb: 50"))
    assert any("rule of thumb" in note and "too low here" in note for note in low.notes)
    other = reading(RECIPE.replace('"30.5B"', '"40B"'))
    assert any(note.startswith("stated 40B parameters; ours 30.53 B (-23.7 %)") for note in other.notes)
    mtp = RECIPE.replace("Qwen/Qwen3-30B-A3B", "zai-org/GLM-4.5").replace('"30.5B"', '"358B"')
    assert any("that propose tokens" in note for note in reading(mtp).notes)


def test_numbers_of_parameters() -> None:
    assert amount("1.6T") == 1.6e12
    assert amount("many") is None


def test_features_that_are_off_count_where_a_variant_wants_them() -> None:
    text = RECIPE.replace("opt_in_features: [spec_decoding]", "opt_in_features: []")
    assert {row.key: row.effect for row in reading(text).unmodelled} == {"speculative_config.method": "speed"}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (
            'base_args:\n    - "--max-model-len"\n    - "32768"',
            'base_args:\n    - "--max-model-len"\n    - "long"',
            "max_model_len",
        ),
        ("    tp: 2", "    tp: two", "strategy_overrides.single_node_tp.tp"),
        ('args: ["--reasoning-parser", "qwen3"]', "args: {a: 1}", "features.reasoning.args"),
    ],
)
def test_values_that_are_none_are_refused_with_their_place(old: str, new: str, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        reading(RECIPE.replace(old, new))
    assert error.value.field == field
    assert str(error.value.where).startswith("recipe.yaml:")


def test_a_recipe_without_its_default_is_refused() -> None:
    with pytest.raises(ConfigError, match="no variant 'default'"):
        read_texts([("recipe.yaml", RECIPE.replace("  default:", "  other:"))], family="vllm_recipes")


@pytest.mark.parametrize(("change", "line"), [({"max_model_len": "16384"}, '    - "16384"'), ({"tp": "4"}, "    tp: 4")])
def test_options_are_written_where_the_recipe_has_them(change: dict[str, str | bool], line: str) -> None:
    before = reading()
    made = rewrite(before, change, lambda texts: reading(texts["recipe.yaml"]))
    assert made is not None
    assert options_of(made.reading, Given(None, {})) == options_of(before, Given(None, change))
    assert line in made.texts["recipe.yaml"].split("\n")
    assert before.spell("enforce_eager", value=True) is None
