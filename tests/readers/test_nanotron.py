"""nanotron's files and commands: values with their lines, defaults, what is not modelled, and options written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts

RUN = """\
general:
  project: small
  seed: 42
data_stages:
- name: all
  start_training_step: 1
  data:
    dataset: null
    num_loading_workers: 1
    seed: 42
model:
  dtype: bfloat16
  init_method:
    std: 0.02
  make_vocab_size_divisible_by: 64
  model_config:
    is_llama_config: true
    hidden_size: 1024
    intermediate_size: 2816
    num_hidden_layers: 8
    num_attention_heads: 16
    num_key_value_heads: 4
    vocab_size: 32001
    tie_word_embeddings: true
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  optimizer_factory:
    name: adamW
    torch_adam_is_fused: true
    adam_beta1: 0.9
  weight_decay: 0.1
  zero_stage: 0
parallelism:
  dp: 4
  pp: 1
  tp: 2
  tp_mode: REDUCE_SCATTER
tokens:
  micro_batch_size: 2
  batch_accumulation_per_replica: 4
  sequence_length: 2048
  train_steps: 100
"""


def read(text: str = RUN) -> Any:
    return read_texts([("run.yaml", text)], family="nanotron")


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
    assert not reading.unmodelled
    assert values(reading) == {
        "tp": 2, "pp": 1, "gpus": 8, "framework": "nanotron", "sp": True, "recompute": "none", "micro_batch": 2,
        "grad_accum": 4, "seq_len": 2048, "precision": "bf16", "zero": 0, "optimizer": "adamw", "optimizer_impl": "fused",
        "attention": "flash",
    }  # fmt: skip
    assert str(reading.settings["micro_batch"].origin) == f"run.yaml:{line(RUN, 'micro_batch_size')}"
    assert "0.4" in str(reading.settings["recompute"].origin)
    launch = asked(reading)
    assert (launch.par.dp, launch.par.tp, launch.par.sp) == (4, 2, True)


def test_the_vocabulary_is_padded_for_tensor_parallelism() -> None:
    assert read().model["vocab_size"] == 32128  # a multiple of 64 x 2
    assert load_model(read().model).architecture.vocab == 32128


def test_defaults_that_are_not_in_the_file() -> None:
    text = changed("  tp_mode: REDUCE_SCATTER\n", "").replace("pp: 1", "pp: 2")
    found = values(read(text))
    assert found["sp"] is False
    assert found["schedule"] == "gpipe"
    assert found["gpus"] == 16


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false", "precision", "bf16-true"),
        ("dtype: bfloat16", "dtype: float32", "precision", "fp32"),
        ("zero_stage: 0", "zero_stage: 1", "zero", 1),
        ("zero_stage: 0", "zero_stage: 3", "zero", 1),
        ("torch_adam_is_fused: true", "torch_adam_is_fused: false", "optimizer_impl", "foreach"),
        ("name: adamW", "name: sgd", "optimizer", "sgd"),
        ("  tp: 2\n", "  tp: 2\n  recompute_layer: true\n", "recompute", "full"),
        ("vocab_size: 32001", "_attn_implementation: sdpa", "attention", "sdpa"),
        ("  pp: 1\n", "  pp: 2\n  pp_engine: 1f1b\n", "schedule", "1f1b"),
    ],
)
def test_values(old: str, new: str, name: str, value: object) -> None:
    assert values(read(changed(old, new)))[name] == value


def test_whose_files_they_are() -> None:
    for text in (RUN,):
        assert read_texts([("some.yaml", text)]).family == "nanotron"


def test_what_is_not_modelled_and_what_is_not_known() -> None:
    text = changed("  tp: 2\n", "  tp: 2\n  tp_linear_async_communication: true\n  expert_parallel_size: 2\n  fancy: 1\n")
    reading = read(text)
    assert {row.key: row.effect for row in reading.unmodelled} == {
        "parallelism.tp_linear_async_communication": "speed",
        "parallelism.expert_parallel_size": "both",
        "framework": "memory",
    }
    assert [row.key for row in reading.unknown] == ["parallelism.fancy"]
    assert values(reading)["framework"] == "generic"
    assert values(reading)["gpus"] == 16


@pytest.mark.parametrize(("keys", "bias"), [("attention_bias: true", 1536), ("rope_theta: 1.0e+6", 0)])
def test_parameters_of_its_models(keys: str, bias: int) -> None:
    found = load_model(read(changed("is_llama_config: true", f"is_qwen2_config: true\n    {keys}")).model).architecture
    layer = 1024 * 1536 + bias + 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024
    assert found.parameters == 32128 * 1024 + 8 * layer + 1024


def test_experts() -> None:
    more = "is_qwen2_config: true\n    moe_config: {num_experts: 4, top_k: 2, moe_intermediate_size: 512, layers: [1, 3]}"
    architecture = load_model(read(changed("is_llama_config: true", more)).model).architecture
    assert (architecture.experts, architecture.top_k) == (4, 2)
    assert read(changed("is_llama_config: true", more)).model["mlp_only_layers"] == [0, 2, 4, 5, 6, 7]


def test_starcoder_and_mamba() -> None:
    start = RUN.index("    is_llama_config")
    end = RUN.index("optimizer:")
    coder = RUN[:start] + "    is_starcoder2_config: true\n    num_attention_heads: 16\n" + RUN[end:]
    assert load_model(read(coder).model).architecture.kv_heads == 1
    mamba = RUN[:start] + "    is_mamba_config: true\n    d_model: 256\n    num_hidden_layers: 2\n" + RUN[end:]
    assert load_model(read(mamba).model).architecture.model_type == "mamba"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tp_mode: REDUCE_SCATTER", "tp_mode: RING", "parallelism.tp_mode"),
        ("micro_batch_size: 2", "micro_batch_size: many", "tokens.micro_batch_size"),
        ("  dp: 4\n", "", "parallelism.dp"),
        ("name: adamW", "name: lamb", "optimizer.optimizer_factory.name"),
        ("zero_stage: 0", "zero_stage: 7", "optimizer.zero_stage"),
        ("hidden_size: 1024", "hidden_size: [1]", "model.model_config.hidden_size"),
    ],
)
def test_values_that_cannot_be(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        read(changed(old, new))
    assert str(raised.value).startswith("run.yaml")


def test_files_that_are_no_run() -> None:
    with pytest.raises(ConfigError, match="no training run"):
        read("model:\n  model_config:\n    hidden_size: 4\n")
    with pytest.raises(ConfigError, match="no optimizer"):
        read(RUN[: RUN.index("optimizer:")] + RUN[RUN.index("parallelism:") :])


def test_a_vocabulary_that_the_data_decides() -> None:
    assert "model" in read(changed("vocab_size: 32001", "vocab_size: -1")).needs
    text = changed("vocab_size: 32001", "vocab_size: -1").replace("dataset: null", "dataset: {vocab_size: 1000}")
    assert read(text).model["vocab_size"] == 1024


def test_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    command = "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node={} run_train.py --config-file run.yaml"
    reading = read_texts([(COMMAND, command.format(8))], family="nanotron")
    assert reading.settings["gpus_per_node"].value == 8
    assert not reading.unknown
    with pytest.raises(ConfigError, match="starts 4"):
        read_texts([(COMMAND, command.format(4))], family="nanotron")
    with pytest.raises(ConfigError, match="is not here"):
        read_texts([(COMMAND, "torchrun run_train.py --config-file other.yaml")], family="nanotron")


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1", "grad_accum": "8"},
        {"seq_len": "1024"},
        {"recompute": "full"},
        {"zero": "1"},
        {"sp": False},
        {"precision": "bf16-true"},
        {"optimizer_impl": "foreach"},
        {"attention": "sdpa"},
        {"tp": "4"},
        {"pp": "2", "schedule": "1f1b"},
        {"gpus": "16"},
    ],
)
def test_options_written_back(options: dict[str, Any]) -> None:
    text = changed("vocab_size: 32001", "vocab_size: 32768")  # no padding, whatever the tensor parallelism
    round_trip([("run.yaml", text)], options, "nanotron")


def test_options_that_the_file_cannot_say() -> None:
    reading = read()
    assert reading.spell("offload", "optimizer") is None
    assert reading.spell("precision", "fp8") is None
    assert reading.spell("tp", "16") is None
