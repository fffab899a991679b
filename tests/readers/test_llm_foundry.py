"""llm-foundry's files and commands: references, values with their lines, defaults, refusals, and options written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts

PRETRAIN = """\
variables:
  max_seq_len: 1024
  data:
max_seq_len: ${variables.max_seq_len}
run_name: one
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 512
  n_heads: 8
  n_layers: 4
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
tokenizer:
  name: EleutherAI/gpt-neox-20b
train_loader:
  name: text
  dataset:
    remote: ${variables.data}
    max_seq_len: ${variables.max_seq_len}
  drop_last: true
optimizer:
  name: decoupled_adamw
  lr: 6.0e-4
  betas: [0.9, 0.95]
scheduler:
  name: cosine_with_warmup
  t_warmup: 100ba
algorithms:
  gradient_clipping:
    clipping_type: norm
global_train_batch_size: 256
device_train_microbatch_size: 8
max_duration: 100ba
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: false
callbacks:
  speed_monitor:
    window_size: 10
"""
TUNE = """\
max_seq_len: 2048
model:
  name: hf_causal_lm
  pretrained: true
  pretrained_model_name_or_path: meta-llama/Meta-Llama-3-8B
  use_flash_attention_2: true
  peft_config:
    r: 16
    peft_type: LORA
    task_type: CAUSAL_LM
    target_modules: [q_proj, v_proj]
train_loader:
  dataset:
    max_seq_len: ${max_seq_len}
optimizer:
  name: decoupled_lionw
global_train_batch_size: 64
device_train_microbatch_size: 2
fsdp_config:
  activation_checkpointing: true
"""
JOB = """\
name: a-job
image: mosaicml/llm-foundry:latest
compute:
  gpus: 16
  cluster: one
command: |
  composer train/train.py /mnt/config/parameters.yaml
parameters:
  max_seq_len: 512
  model:
    name: mpt_causal_lm
    d_model: 256
    n_heads: 4
    n_layers: 2
  train_loader:
    dataset:
      max_seq_len: ${max_seq_len}
  optimizer: {name: decoupled_adamw}
  global_train_batch_size: 64
  device_train_microbatch_size: 4
  fsdp_config: {sharding_strategy: SHARD_GRAD_OP}
"""


def read(text: str = PRETRAIN) -> Any:
    return read_texts([("run.yaml", text)], family="llm_foundry")


def changed(old: str, new: str, text: str = PRETRAIN) -> str:
    assert old in text
    return text.replace(old, new)


def values(reading: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.settings.items()}


def test_every_value_with_its_line() -> None:
    reading = read()
    assert not reading.unknown
    assert not reading.unmodelled
    assert values(reading) == {
        "attention": "flash", "seq_len": 1024, "global_batch": 256, "micro_batch": 8, "precision": "bf16",
        "optimizer": "adamw", "optimizer_impl": "forloop", "framework": "llm-foundry", "zero": 3, "recompute": "none",
        "expandable_segments": True,
    }  # fmt: skip
    assert str(reading.settings["seq_len"].origin) == "run.yaml:2"
    assert "llm-foundry 0.22" in str(reading.settings["expandable_segments"].origin)
    launch = asked(reading, gpus="8")
    assert (launch.recipe.micro_batch, launch.recipe.grad_accum, launch.par.dp) == (8, 4, 8)


def test_the_model_is_built_from_its_keys() -> None:
    # embeddings and positions; a layer: fused qkv, output, two products of the network with biases, two norms; a norm
    layer = 512 * 1536 + 1536 + 512 * 512 + 512 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
    assert load_model(read().model).architecture.parameters == 50368 * 512 + 1024 * 512 + 4 * layer + 2 * 512


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ("no_bias: true", "mlp_bias", False),
        ("attn_config: {alibi: true}", "position_embedding", "none"),
        ("attn_config: {rope: true}", "position_embedding", "rope"),
        ("attn_config: {attn_type: multiquery_attention}", "num_key_value_heads", 1),
        ("attn_config: {attn_type: grouped_query_attention, kv_n_heads: 2}", "num_key_value_heads", 2),
        ("ffn_config: {ffn_type: mptglu, ffn_hidden_size: 1000}", "intermediate_size", 1000),
        ("ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 8, moe_top_k: 2}", "num_experts", 8),
        ("norm_type: low_precision_rmsnorm", "norm", "rmsnorm"),
    ],
)
def test_shapes(keys: str, name: str, value: object) -> None:
    text = PRETRAIN.replace("  attn_config:\n    attn_impl: flash\n", f"  {keys}\n")
    reading = read(text)
    assert reading.model[name] == value
    load_model(reading.model)


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("attn_impl: flash", "attn_impl: torch", "attention", "eager"),
        ("name: decoupled_adamw", "name: decoupled_lionw", "optimizer", "lion"),
        ("precision: amp_bf16", "precision: amp_fp8", "precision", "fp8"),
        ("init_device: meta", "master_weights_dtype: bf16", "precision", "bf16-true"),
        ("FULL_SHARD", "SHARD_GRAD_OP", "zero", 2),
        ("FULL_SHARD", "NO_SHARD", "framework", "hf-trainer"),
        ("activation_checkpointing: false", "activation_checkpointing: true", "recompute", "full"),
        ("mixed_precision: PURE", "data_parallel_replicate_degree: 2", "hsdp_replicas", 2),
        ("run_name: one", "compile_config: {}", "compile", True),
        ("run_name: one", "expandable_segments: false", "expandable_segments", False),
    ],
)
def test_values(old: str, new: str, name: str, value: object) -> None:
    assert values(read(changed(old, new)))[name] == value


def test_without_fsdp_it_is_ddp() -> None:
    reading = read(PRETRAIN[: PRETRAIN.index("fsdp_config")])
    assert (values(reading)["framework"], values(reading)["zero"]) == ("hf-trainer", 0)
    assert [row.key for row in reading.unmodelled] == ["framework"]


def test_whose_files_they_are() -> None:
    for text in (PRETRAIN, TUNE, JOB):
        assert read_texts([("some.yaml", text)]).family == "llm_foundry"


def test_what_is_not_modelled_and_what_is_not_known() -> None:
    text = changed("run_name: one", "max_split_size_mb: 128\nmystery: 1").replace("PURE", "FULL")
    reading = read(text)
    assert {row.key: row.effect for row in reading.unmodelled} == {
        "max_split_size_mb": "memory",
        "fsdp_config.mixed_precision": "more",
    }
    assert [row.key for row in reading.unknown] == ["mystery"]


def test_adapters_on_a_model_of_the_hub() -> None:
    reading = read(TUNE)
    found = values(reading)
    assert reading.model == "meta-llama/Meta-Llama-3-8B"
    assert (found["lora_rank"], found["lora_targets"], found["framework"]) == (16, ("q_proj", "v_proj"), "fsdp1")
    assert found["attention"] == "flash"
    assert values(read(changed("  use_flash_attention_2: true\n", "", TUNE)))["attention"] == "eager"
    assert asked(reading, gpus="4").recipe.adapter is not None
    with pytest.raises(ConfigError, match="peft_type"):
        read(changed("peft_type: LORA", "peft_type: IA3", TUNE))
    assert "lora_targets" in read(changed("    target_modules: [q_proj, v_proj]\n", "", TUNE)).needs


def test_overrides_of_a_model_of_the_hub() -> None:
    text = changed("  pretrained: true\n", "  config_overrides: {max_seq_len: 4096, num_hidden_layers: 2}\n", TUNE)
    assert [(row.key, row.effect) for row in read(text).unmodelled] == [("model.config_overrides.num_hidden_layers", "both")]


def test_a_batch_that_composer_finds_out() -> None:
    reading = read(changed("device_train_microbatch_size: 8", "device_train_microbatch_size: auto"))
    assert "auto" in reading.needs["micro_batch"]
    assert asked(reading, gpus="8", micro_batch="4").recipe.grad_accum == 8


def test_a_share_that_is_less_than_the_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(PRETRAIN)
    monkeypatch.chdir(tmp_path)

    def started(words: str) -> Any:
        return read_texts([(COMMAND, f"composer -n 8 train/train.py run.yaml {words}")], family="llm_foundry")

    found = values(started("global_train_batch_size=32"))
    assert (found["micro_batch"], found["grad_accum"], found["gpus"]) == (4, 1, 8)
    assert "last has 4" in str(started("global_train_batch_size=160").settings["grad_accum"].origin.why)
    with pytest.raises(ConfigError, match="does not divide"):
        started("global_train_batch_size=36")


def test_a_command_with_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(PRETRAIN)
    monkeypatch.chdir(tmp_path)
    command = "composer train/train.py run.yaml variables.max_seq_len=2048 model.attn_config.attn_impl=torch save_folder=x"
    reading = read_texts([(COMMAND, command)], family="llm_foundry")
    assert not reading.unknown
    assert values(reading)["seq_len"] == 2048
    assert isinstance(reading.model, dict)
    assert reading.model["max_position_embeddings"] == 2048
    assert reading.settings["attention"].value == "eager"
    assert str(reading.settings["attention"].origin) == f"{COMMAND}:1"
    with pytest.raises(ConfigError, match=r"eval\.py"):
        read_texts([(COMMAND, "composer eval/eval.py run.yaml")], family="llm_foundry")


def test_a_job_around_it() -> None:
    reading = read(JOB)
    assert not reading.unknown
    found = values(reading)
    assert (found["gpus"], found["micro_batch"], found["zero"], found["seq_len"]) == (16, 4, 2, 512)
    assert found["grad_accum"] == 1
    round_trip([("job.yaml", JOB)], {"recompute": "full"}, "llm_foundry")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_seq_len: 4\nmodels:\n- model_name: a\n", "evaluates models"),
        ("icl_tasks:\n- label: one\n", "tasks of an evaluation"),
        ("eval_gauntlet: {}\n", "describes an evaluation"),
        ("batch_sizes: [1]\nmax_seq_len: 4\n", "measures inference"),
        ("name: a\ncommand: |\n  echo\ncompute: {gpus: 8}\nparameters: {}\n", "whose command holds the run"),
    ],
)
def test_files_that_are_no_run(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*no training run"):
        read(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("precision: amp_bf16", "precision: bf8", "precision"),
        ("sharding_strategy: FULL_SHARD", "sharding_strategy: SOME", "sharding_strategy"),
        ("max_seq_len: 1024", "max_seq_len: ${other}", "refers to a key"),
        ("max_seq_len: 1024", "max_seq_len: ${variables.max_seq_len}", "refers to itself"),
        ("mixed_precision: PURE", "cpu_offload: true", "not supported"),
        ("expansion_ratio: 4", "expansion_ratio: 1.001", "whole number"),
    ],
)
def test_values_that_cannot_be(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(changed(old, new))


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "4"},
        {"micro_batch": "4", "grad_accum": "8"},
        {"global_batch": "512"},
        {"seq_len": "512"},
        {"recompute": "full"},
        {"zero": "2"},
        {"expandable_segments": False},
        {"compile": True},
        {"attention": "eager"},
        {"precision": "bf16-true"},
        {"precision": "fp32"},
    ],
)
def test_options_written_back(options: dict[str, Any]) -> None:
    round_trip([("run.yaml", PRETRAIN)], options, "llm_foundry", gpus="8")


def test_options_written_back_for_a_model_of_the_hub() -> None:
    every: list[dict[str, str | bool]] = [{"lora_rank": "8"}, {"attention": "sdpa"}, {"recompute": "none"}]
    for options in every:
        round_trip([("run.yaml", TUNE)], options, "llm_foundry", gpus="4")
    assert read(TUNE).spell("optimizer", "adamw8bit") is None


def test_a_model_without_a_loader_is_not_taken_for_olmo() -> None:
    start, end = PRETRAIN.index("train_loader:"), PRETRAIN.index("optimizer:")
    made = read_texts([("run.yaml", PRETRAIN[:start] + PRETRAIN[end:] + "data: x\n")])
    assert made.family == "llm_foundry"
    assert made.settings["seq_len"].value == 1024


def test_composer_takes_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(PRETRAIN)
    assert "composer" in read_texts([(COMMAND, "composer train/train.py run.yaml")]).needs["gpus"]
    assert "gpus" not in read_texts([(COMMAND, "composer -n 8 train/train.py run.yaml")]).needs
