"""OLMo's files and commands: values with their lines, defaults, what is not modelled, and options written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts

RUN = """\
run_name: one
seed: 1
wandb:
  name: ${run_name}
model:
  d_model: 512
  n_heads: 8
  n_layers: 4
  mlp_hidden_size: 3072
  weight_tying: false
  rope: true
  flash_attention: true
  attention_dropout: 0.0
  residual_dropout: 0.0
  embedding_dropout: 0.0
  attention_layer_norm: true
  norm_after: true
  include_bias: false
  layer_norm_type: rms
  activation_type: swiglu
  max_sequence_length: 2048
  vocab_size: 50280
  embedding_size: 50304
  init_device: meta
optimizer:
  name: adamw
  learning_rate: 3.0e-4
scheduler:
  name: cosine_with_warmup
data:
  paths: [a.npy]
tokenizer:
  identifier: some.json
save_folder: ${oc.env:CHECKPOINTS,/tmp}
global_train_batch_size: 512
device_train_microbatch_size: 4
precision: amp_bf16
fused_loss: true
activation_checkpointing: one_in_four
fsdp:
  wrapping_strategy: by_block
  precision: mixed
eval_interval: ${save_interval}
save_interval: 1_000
"""


def read(text: str = RUN) -> Any:
    return read_texts([("run.yaml", text)], family="olmo")


def changed(old: str, new: str, text: str = RUN) -> str:
    assert old in text
    return text.replace(old, new)


def values(reading: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.settings.items()}


def line(text: str, word: str) -> int:
    return text[: text.index(word)].count("\n") + 1


def test_every_value_with_its_line() -> None:
    reading = read()
    assert not reading.unknown
    assert [(row.key, row.effect) for row in reading.unmodelled] == [("framework", "memory")]
    assert values(reading) == {
        "attention": "flash", "seq_len": 2048, "framework": "fsdp1", "zero": 3, "micro_batch": 4, "global_batch": 512,
        "precision": "bf16", "optimizer": "adamw", "recompute": "selective", "recompute_scope": "layer",
        "recompute_layers": 4, "loss": "compiled", "fsdp_units": "root",
    }  # fmt: skip
    assert str(reading.settings["seq_len"].origin) == f"run.yaml:{line(RUN, 'max_sequence_length')}"
    assert "OLMo 0.6" in str(reading.settings["zero"].origin)
    launch = asked(reading, gpus="16")
    assert (launch.recipe.grad_accum, launch.recipe.recompute.layers) == (8, 4)


def test_olmo_2_is_built_from_its_keys() -> None:
    layer = 4 * 512 * 512 + 3 * 512 * 1536 + 4 * 512  # norms behind both parts, and of queries and keys
    architecture = load_model(read().model).architecture
    assert architecture.model_type == "olmo2"
    assert architecture.parameters == 2 * 50304 * 512 + 4 * layer + 512


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"norm_after: true": "norm_after: false", "attention_layer_norm: true": "attention_layer_norm: false"}, "llama"),
        (
            {
                "norm_after: true": "norm_after: false",
                "attention_layer_norm: true": "attention_layer_norm: false",
                "layer_norm_type: rms": "layer_norm_with_affine: false",
            },
            "olmo",
        ),
        ({"norm_after: true": "norm_after: false", "rope: true": "rope: false"}, "gpt-generic"),
    ],
)
def test_models(changes: dict[str, str], kind: str) -> None:
    text = RUN
    for old, new in changes.items():
        text = changed(old, new, text)
    reading = read(text)
    assert reading.model["model_type"] == kind
    load_model(reading.model)


def test_defaults_of_everything() -> None:
    reading = read("run_name: one\nmodel: {d_model: 768, n_layers: 12}\ndata: {}\nprecision: fp32\nscheduler: {}\n")
    found = values(reading)
    assert (found["optimizer"], found["optimizer_impl"], found["dropout"]) == ("lion", "forloop", 0.1)
    assert (found["micro_batch"], found["global_batch"], found["seq_len"]) == (16, 512, 1024)
    assert reading.model["vocab_size"] == 50304
    assert "fsdp.wrapping_strategy" in {row.key for row in reading.unmodelled}
    assert "precision" in read(changed("precision: amp_bf16\n", "")).needs


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("activation_checkpointing: one_in_four", "activation_checkpointing: whole_layer", "recompute", "full"),
        ("activation_checkpointing: one_in_four", "activation_checkpointing: true", "recompute", "full"),
        ("activation_checkpointing: one_in_four", "activation_checkpointing: false", "recompute", "none"),
        ("activation_checkpointing: one_in_four", "activation_checkpointing: null", "recompute", "none"),
        ("activation_checkpointing: one_in_four", "activation_checkpointing: fine_grained", "recompute_scope", "attention"),
        ("flash_attention: true", "flash_attention: false", "attention", "sdpa"),
        ("flash_attention: true", "block_type: llama", "attention", "eager"),
        ("seed: 1", "compile: {fullgraph: false}", "compile", True),
        ("seed: 1", "distributed_strategy: ddp", "framework", "hf-trainer"),
        ("seed: 1", "distributed_strategy: single", "gpus", 1),
        ("  precision: mixed", "  sharding_strategy: SHARD_GRAD_OP", "zero", 2),
        ("by_block", "by_block_and_size", "fsdp_units", "layers"),
        ("name: adamw", "name: lionw", "optimizer", "lion"),
    ],
)
def test_values(old: str, new: str, name: str, value: object) -> None:
    assert values(read(changed(old, new)))[name] == value


def test_whose_files_they_are() -> None:
    for text in (RUN,):
        assert read_texts([("some.yaml", text)]).family == "olmo"


def test_what_is_not_modelled_and_what_is_not_known() -> None:
    text = changed("by_block", "one_in_three").replace("seed: 1", "odd: 1\nsoftmax_auxiliary_loss: true")
    text = text.replace("fused_loss: true", "fused_loss: false").replace("one_in_four", "two_in_three")
    reading = read(text)
    assert {row.key: row.effect for row in reading.unmodelled} == {
        "framework": "memory",
        "fsdp.wrapping_strategy": "more",
        "softmax_auxiliary_loss": "more-memory",
        "activation_checkpointing": "more",
    }
    assert [row.key for row in reading.unknown] == ["odd"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("precision: amp_bf16", "precision: bf16", "precision"),
        ("one_in_four", "one_in_seven", "activation_checkpointing"),
        ("by_block", "by_hand", "wrapping_strategy"),
        ("d_model: 512", "d_model: wide", "model.d_model"),
        ("activation_type: swiglu", "activation_type: mish", "activation_type"),
    ],
)
def test_values_that_cannot_be(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        read(changed(old, new))
    assert str(raised.value).startswith("run.yaml")


def test_a_command_with_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    command = (
        "torchrun --nproc_per_node=8 --nnodes=2 scripts/train.py run.yaml --device_train_microbatch_size=64 "
        "--fsdp.sharding_strategy=HYBRID_SHARD --save_overwrite"
    )
    reading = read_texts([(COMMAND, command)], family="olmo")
    assert not reading.unknown
    found = values(reading)
    assert (found["gpus"], found["hsdp_replicas"], found["micro_batch"], found["grad_accum"]) == (16, 2, 32, 1)
    assert "share" in reading.settings["micro_batch"].origin.why
    with pytest.raises(ConfigError, match="is not here"):
        read_texts([(COMMAND, "torchrun scripts/train.py other.yaml")], family="olmo")
    with pytest.raises(ConfigError, match="less than 16"):
        read_texts([(COMMAND, f"{command} --global_train_batch_size=8")], family="olmo")


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "2"},
        {"micro_batch": "2", "grad_accum": "32"},
        {"global_batch": "1024"},
        {"seq_len": "1024"},
        {"recompute": "full", "recompute_scope": None, "recompute_layers": None},
        {"zero": "2"},
        {"attention": "sdpa"},
        {"compile": True},
        {"precision": "fp32"},
    ],
)
def test_options_written_back(options: dict[str, Any]) -> None:
    text = RUN if "recompute" not in options else changed("activation_checkpointing: one_in_four\n", "")
    given = {name: value for name, value in options.items() if value is not None}
    round_trip([("run.yaml", text)], given, "olmo", gpus="8")


def test_options_that_the_file_cannot_say() -> None:
    assert read().spell("optimizer", "adamw8bit") is None
    assert read().spell("tp", "2") is None
