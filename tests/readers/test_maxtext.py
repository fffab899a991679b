"""MaxText's files and commands: their layers, the mesh, models by key or name, refusals, and options written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts

RUN = """\
base_config: base.yml
run_name: one
hardware: gpu
model_name: default
base_emb_dim: 1024
base_num_query_heads: 8
base_num_kv_heads: 4
base_mlp_dim: 4096
base_num_decoder_layers: 4
head_dim: 128
vocab_size: 32_000
per_device_batch_size: 4
max_target_length: 1024
attention: cudnn_flash_te
remat_policy: full
opt_type: adamw
dataset_type: synthetic
enable_checkpointing: false
"""
MODEL = """\
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_mlp_dim: 14336
base_num_decoder_layers: 32
head_dim: 128
mlp_activations: ["silu", "linear"]
vocab_size: 128256
decoder_block: llama2
rope_max_timescale: 500_000
"""
SPARSE = "num_experts: 8\nnum_experts_per_tok: 2\nbase_moe_mlp_dim: 512\nshared_experts: 1"


def read(text: str = RUN, *more: tuple[str, str]) -> Any:
    return read_texts([("run.yml", text), *more], family="maxtext")


def changed(old: str, new: str, text: str = RUN) -> str:
    assert old in text
    return text.replace(old, new)


def values(reading: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.settings.items()}


def test_every_value_with_its_line() -> None:
    reading = read()
    assert not reading.unknown
    assert [(row.key, row.effect) for row in reading.unmodelled] == [("XLA", "both")]
    assert values(reading) == {
        "zero": 3, "framework": "generic", "micro_batch": 4, "grad_accum": 1, "seq_len": 1024, "precision": "bf16",
        "param_dtype": "fp32", "grad_dtype": "fp32", "master_dtype": "none", "optimizer": "adamw", "recompute": "full",
        "attention": "flash",
    }  # fmt: skip
    assert str(reading.settings["seq_len"].origin) == "run.yml:13"
    assert "base.yml" in str(reading.settings["grad_accum"].origin)
    assert any("base.yml is not here" in note for note in reading.notes)
    recipe = asked(reading, gpus="8").recipe
    assert (recipe.param_dtype, recipe.master_dtype) == ("fp32", "none")
    assert load_model(reading.model).architecture.hidden == 1024


def test_a_batch_counts_devices_of_a_replica() -> None:
    text = RUN + "ici_tensor_parallelism: 4\nici_context_parallelism: 2\ngradient_accumulation_steps: 3\n"
    found = values(read(text))
    assert (found["tp"], found["cp"], found["micro_batch"], found["grad_accum"], found["sp"]) == (4, 2, 32, 3, True)
    half = changed("per_device_batch_size: 4", "per_device_batch_size: 0.5")
    assert "micro_batch" in read(half).needs
    assert values(read(half + "ici_tensor_parallelism: 2\n"))["micro_batch"] == 1


def test_a_pipeline_divides_the_batch() -> None:
    reading = read(RUN + "ici_pipeline_parallelism: 4\nnum_pipeline_microbatches: 8\n")
    found = values(reading)
    assert (found["pp"], found["micro_batch"], found["grad_accum"], found["schedule"]) == (4, 2, 8, "gpipe")
    assert "ici_pipeline_parallelism" in {row.key for row in reading.unmodelled}


def test_the_mesh_may_say_how_many_devices_there_are() -> None:
    text = RUN + "ici_fsdp_parallelism: 8\ndcn_data_parallelism: 2\n"
    found = values(read(text))
    assert (found["gpus"], found["hsdp_replicas"], found["zero"]) == (16, 2, 3)
    plain = values(read(RUN + "ici_fsdp_parallelism: 1\nici_data_parallelism: 8\ndcn_data_parallelism: 1\n"))
    assert (plain["zero"], plain["gpus"]) == (0, 8)
    compiled = values(read(RUN + "compile_topology: v5p-256\ncompile_topology_num_slices: 2\n"))
    assert (compiled["gpus"], compiled["gpu"]) == (256, "tpu-v5p")


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("weight_dtype: bfloat16", "precision", "bf16-true"),
        ("dtype: float32", "precision", "fp32"),
        ("quantization: fp8", "precision", "fp8"),
        ("num_vocab_tiling: 4", "loss", "chunked-head"),
        ("optimizer_memory_host_offload: true", "offload", ("optimizer",)),
        ("dropout_rate: 0.1", "dropout", 0.1),
        ("lora: {enable_lora: true, lora_rank: 8}", "lora_rank", 8),
    ],
)
def test_values(more: str, name: str, value: object) -> None:
    assert values(read(f"{RUN}{more}\n"))[name] == value


@pytest.mark.parametrize(
    ("policy", "mode", "effect"),
    [("minimal", "none", "less"), ("save_qkv_proj", "full", "more"), ("minimal_offloaded", "full", "speed")],
)
def test_what_is_recomputed(policy: str, mode: str, effect: str) -> None:
    reading = read(changed("remat_policy: full", f"remat_policy: {policy}"))
    assert values(reading)["recompute"] == mode
    assert ("remat_policy", effect) in {(row.key, row.effect) for row in reading.unmodelled}


def test_whose_files_they_are() -> None:
    for text in (RUN, MODEL):
        assert read_texts([("some.yaml", text)]).family == "maxtext"


def test_what_is_not_modelled_and_what_is_not_known() -> None:
    reading = read(RUN + "capacity_factor: 1.25\nsa_block_q: 1024\nsa_block_kv: 512\nuse_dpo: true\nnovel: 1\n")
    assert {row.key: row.effect for row in reading.unmodelled} == {
        "XLA": "both",
        "capacity_factor": "both",
        "sa_block_q": "speed",
        "use_dpo": "more",
    }
    assert [row.key for row in reading.unknown] == ["novel"]


def test_a_model_alone_describes_no_run() -> None:
    reading = read(MODEL)
    assert set(reading.needs) == {"micro_batch", "seq_len"}
    assert "no run" in reading.needs["micro_batch"]
    assert load_model(reading.model).architecture.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert reading.spell("recompute", "none") is None


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ("decoder_block: gemma2", "gemma2"),
        ("decoder_block: gemma3\nsliding_window_size: 512", "gemma3_text"),
        ("decoder_block: gemma4\nsliding_window_size: 512\nglobal_head_dim: 256", "gemma4_text"),
        ("decoder_block: gemma4_small\nsliding_window_size: 512\nglobal_head_dim: 256", "gemma4_text"),
        ("decoder_block: gpt3\ntrainable_position_size: 2048", "gpt-generic"),
        ("decoder_block: mixtral\nnum_experts: 8\nnum_experts_per_tok: 2", "mixtral"),
        ("decoder_block: qwen2\nattention_bias: true", "qwen2"),
        ("decoder_block: qwen3\nuse_qk_norm: true", "qwen3"),
        ("decoder_block: qwen3_moe\nnum_experts: 8\nnum_experts_per_tok: 2\nbase_moe_mlp_dim: 512", "qwen3_moe"),
        (
            f"decoder_block: qwen3_next\n{SPARSE}\ninhomogeneous_layer_cycle_interval: 4",
            "qwen3_next",
        ),
        ("decoder_block: gpt_oss\nnum_experts: 8\nnum_experts_per_tok: 2\nsliding_window_size: 128", "gpt_oss"),
        ("decoder_block: llama4\nnum_experts: 8\nnum_experts_per_tok: 1\nnope_layer_interval: 4", "llama4_text"),
        (
            f"decoder_block: deepseek\n{SPARSE}\nfirst_num_dense_layers: 1\nq_lora_rank: 512\nrouted_score_func: sigmoid",
            "deepseek_v3",
        ),
        ("decoder_block: olmo3\nsliding_window_size: 1024", "olmo3"),
        ("decoder_block: envy\nnum_experts: 8\nnum_experts_per_tok: 1\ninterleave_moe_layer_step: 2", "qwen3_moe"),
    ],
)
def test_decoder_blocks(keys: str, kind: str) -> None:
    reading = read(changed("decoder_block: llama2", keys, MODEL))
    assert reading.model["model_type"] == kind
    assert not reading.unknown
    load_model(reading.model)


def test_one_scale_for_all_sizes() -> None:
    assert read(MODEL + "global_parameter_scale: 8\n").model["num_hidden_layers"] == 64
    assert read(MODEL + "global_parameter_scale: 4\n").model["hidden_size"] == 8192
    with pytest.raises(ConfigError, match="power of 2"):
        read(MODEL + "global_parameter_scale: 3\n")


def test_a_model_by_its_name() -> None:
    text = changed("model_name: default", "model_name: llama3.1-8b-Instruct")
    reading = read(text)
    assert reading.model == "llama-3.1-8b"
    assert any("base_num_decoder_layers does nothing" in note for note in reading.notes)
    assert "model" in read(changed("model_name: default", "model_name: secret-7b")).needs


def test_a_model_beside_the_run() -> None:
    reading = read(RUN, ("llama.yml", MODEL))
    assert load_model(reading.model).architecture.parameters == pytest.approx(8.03e9, rel=1e-3)
    assert values(reading)["micro_batch"] == 4


def test_a_command_with_files_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.yml").write_text(MODEL)
    (tmp_path / "run.yml").write_text(RUN)
    (tmp_path / "base.yml").write_text("per_device_batch_size: 12.0\nmax_target_length: 512\nlog_period: 100\n")
    monkeypatch.chdir(tmp_path)
    command = "python3 -m maxtext.trainers.pre_train.train run.yml model_name=mine per_device_batch_size=2 steps=5"
    reading = read_texts([(COMMAND, command)], family="maxtext")
    assert not reading.unknown
    assert isinstance(reading.model, dict)
    assert reading.model["num_hidden_layers"] == 32
    assert values(reading)["micro_batch"] == 2
    assert str(reading.settings["micro_batch"].origin) == f"{COMMAND}:1"
    with pytest.raises(ConfigError, match="override_model_config"):
        read_texts([(COMMAND, f"{command} base_num_decoder_layers=2")], family="maxtext")
    smaller = read_texts([(COMMAND, f"{command} base_num_decoder_layers=2 override_model_config=true")], family="maxtext")
    assert isinstance(smaller.model, dict)
    assert smaller.model["num_hidden_layers"] == 2


def test_a_command_without_its_files() -> None:
    command = "python3 MaxText/train.py MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=1"
    reading = read_texts([(COMMAND, command)], family="maxtext")
    assert (reading.model, values(reading)["micro_batch"]) == ("llama-2-7b", 1)
    with pytest.raises(ConfigError, match="no training run"):
        read_texts([(COMMAND, "python3 -m maxtext.inference.decode base.yml")], family="maxtext")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server_host: a\nserver_port: 1\n", "evaluation"),
        ("base_config: base.yml\nmodel_call_mode: inference\n", "inference"),
        ("base_config: inference/one.yml\nmodel_name: llama2-7b\n", "inference"),
        ("trainer_devices_fraction: 0.5\n", "reinforcement"),
        ("mesh_axes: [a]\nlogical_axis_rules: []\n", "mesh"),
        ("default: a\n", "no key"),
    ],
)
def test_files_that_are_no_run(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*no training run"):
        read(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hardware: gpu", "hardware: cpu", "accelerator"),
        ("hardware: gpu", "hardware: abacus", "hardware"),
        ("remat_policy: full", "remat_policy: half", "remat_policy"),
        ("per_device_batch_size: 4", "per_device_batch_size: some", "per_device_batch_size"),
        ("model_name: default", "decoder_block: other", "decoder_block"),
        ("opt_type: adamw", "lora: {enable_lora: true}", "lora_rank"),
    ],
)
def test_values_that_cannot_be(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(changed(old, new))


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "2"},
        {"micro_batch": "2", "grad_accum": "2"},
        {"seq_len": "512"},
        {"recompute": "none"},
        {"attention": "eager"},
        {"optimizer": "sgd"},
        {"offload": "optimizer"},
        {"loss": "chunked-head"},
    ],
)
def test_options_written_back(options: dict[str, Any]) -> None:
    round_trip([("run.yml", RUN)], options, "maxtext", gpus="8")


def test_a_micro_batch_written_back_for_several_devices() -> None:
    made = round_trip([("run.yml", RUN + "ici_tensor_parallelism: 8\n")], {"micro_batch": "4"}, "maxtext", gpus="8")
    assert "per_device_batch_size: 0.5" in made.texts["run.yml"]
