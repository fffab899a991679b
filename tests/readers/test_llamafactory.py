"""LLaMA-Factory's files and commands: values with their lines, defaults, what is no run, and options written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError
from foretell.readers.llamafactory._keys import LLAMAFACTORY, MEGATRON, V1
from foretell.readers.read import COMMAND, read_texts

LORA = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
dataset: identity
template: llama3
cutoff_len: 4096
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-4
bf16: true
"""
FULL = LORA.replace("finetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,v_proj\n", "finetuning_type: full\n")
V1_FULL = """\
model: Qwen/Qwen3-0.6B
model_class: llm
train_dataset: data.yaml
dist_config:
  name: fsdp2
kernel_config:
  name: auto
micro_batch_size: 2
cutoff_len: 1024
"""
ZERO = json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"})


def read(text: str) -> Any:
    return read_texts([("run.yaml", text)])


def values(reading: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.settings.items()}


def doubts(reading: Any) -> dict[str, str]:
    return {one.key: one.effect for one in reading.unmodelled}


def test_adapters() -> None:
    made = read(LORA)
    assert (made.family, made.verb, made.model) == ("llamafactory", "train", "meta-llama/Meta-Llama-3-8B")
    assert values(made) == {
        "seq_len": 4096, "packing": False, "lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), "lora_dropout": 0.0,
        "micro_batch": 2, "grad_accum": 4, "optimizer": "adamw", "optimizer_impl": "fused", "recompute": "full",
        "attention": "sdpa", "framework": "hf-trainer", "precision": "bf16",
    }  # fmt: skip
    assert str(made.settings["lora_rank"].origin) == "run.yaml:5"
    assert "disable_gradient_checkpointing" in made.settings["recompute"].origin.why
    assert not made.unknown
    assert not made.unmodelled
    run = asked(made, model="llama-3-8b")
    assert run.recipe.adapter is not None
    assert run.recipe.adapter.targets == ("q_proj", "v_proj")


def test_defaults() -> None:
    made = read("model_name_or_path: a/b\nstage: sft\ndo_train: true\nbf16: true\n")
    got = values(made)
    assert (got["lora_rank"], got["lora_targets"], got["seq_len"], got["micro_batch"]) == (8, ("all-linear",), 2048, 8)
    assert "default of LLaMA-Factory" in str(made.settings["lora_rank"].origin)
    assert any("max_sample_len" in note for note in made.notes)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (FULL, "bf16"),  # what trains is cast to fp32, autocast runs over it
        (FULL.replace("bf16: true", "pure_bf16: true"), "bf16-true"),
        (FULL.replace("bf16: true", "fp16: true"), "fp16"),
        (FULL.replace("bf16: true\n", ""), "fp32"),
        (LORA.replace("bf16: true", "fp16: true"), "fp16"),
    ],
)
def test_precision(text: str, wanted: str) -> None:
    made = read(text)
    assert values(made)["precision"] == wanted
    assert asked(made, model="llama-3-8b").recipe.precision == wanted


def test_quantised_base() -> None:
    got = values(read(LORA + "quantization_bit: 4\n"))
    assert (got["quantization"], got["double_quant"]) == ("nf4", True)
    got = values(read(LORA + "quantization_bit: 4\nquantization_type: fp4\ndouble_quantization: false\n"))
    assert (got["quantization"], got["double_quant"]) == ("fp4", False)
    got = values(read(LORA + "quantization_bit: 8\nquantization_method: bnb\n"))
    assert (got["quantization"], "double_quant" in got) == ("int8", False)
    assert doubts(read(LORA + "quantization_bit: 4\nquantization_method: hqq\n"))["quantization_bit"] == "memory"
    run = asked(read(LORA.replace("bf16: true", "quantization_bit: 4")), model="llama-3-8b")
    assert run.recipe.framework == "peft"
    assert run.recipe.quantization is not None
    assert run.recipe.quantization.rest == "bf16"
    round_trip([("run.yaml", LORA)], {"quantization": "nf4"}, model="llama-3-8b")


def test_kernels_and_checkpointing() -> None:
    got = values(read(FULL + "enable_liger_kernel: true\nflash_attn: fa2\ndisable_gradient_checkpointing: true\n"))
    assert (got["loss"], got["attention"], got["recompute"]) == ("fused", "flash", "none")
    kept = read(FULL.replace("stage: sft", "stage: dpo") + "enable_liger_kernel: true\n")
    assert "loss" not in values(kept)
    assert doubts(kept)["enable_liger_kernel"] == "less"
    moved = values(read(FULL + "use_unsloth_gc: true\n"))
    assert (moved["recompute"], moved["offload"]) == ("full", ("activations",))


def test_stages() -> None:
    assert values(read(LORA.replace("stage: sft", "stage: pt")))["packing"] is True
    assert values(read(LORA + "neat_packing: true\n"))["packing"] is True
    pairs = read(LORA.replace("stage: sft", "stage: dpo"))
    assert [one.effect for one in pairs.unmodelled] == ["more"]
    assert not read(LORA.replace("stage: sft", "stage: dpo") + "pref_loss: simpo\n").unmodelled
    assert doubts(read(LORA.replace("stage: sft", "stage: ppo") + "reward_model: x\n")) == {
        "stage": "both",
        "reward_model": "more",
    }


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("optim: paged_adamw_8bit\n", "paged-adamw8bit"),
        ("use_badam: true\nbadam_mode: layer\n", "badam"),
        ("use_galore: true\ngalore_rank: 128\n", "galore-adamw"),
        ("use_galore: true\noptim: adamw_8bit\ngalore_rank: 64\n", "galore-adamw8bit"),
        ("use_muon: true\n", "muon"),
        ("use_adam_mini: true\n", "adagrad"),
    ],
)
def test_optimizers(lines: str, wanted: str) -> None:
    made = read(FULL + lines)
    assert values(made)["optimizer"] == wanted
    assert ("galore_rank" in doubts(made)) == ("64" in lines)
    asked(made, model="llama-3-8b")


def test_methods_that_are_not_modelled() -> None:
    assert doubts(read(FULL.replace("full", "freeze") + "freeze_trainable_layers: 4\n")) == {"freeze_trainable_layers": "less"}
    assert doubts(read(FULL.replace("full", "freeze"))) == {"freeze_trainable_layers": "less"}
    made = read(FULL.replace("full", "oft"))
    assert doubts(made) == {"finetuning_type": "both"}
    assert values(made)["lora_rank"] == 8
    host = read(LORA + "use_kt: true\nkt_config:\n  kt_num_threads: 96\n")
    assert doubts(host) == {"use_kt": "both", "kt_config.kt_num_threads": "both"}
    assert [one.key for one in read(LORA + "warp_drive: 9\n").unknown] == ["warp_drive"]


def test_deepspeed() -> None:
    made = read_texts([("run.yaml", FULL + "deepspeed: zero.json\n"), ("zero.json", ZERO)])
    got = values(made)
    assert (got["framework"], got["zero"], got["precision"], got["expandable_segments"]) == ("deepspeed", 3, "bf16", True)
    assert asked(made, model="llama-3-8b", gpus="8").par.zero == 3
    assert "zero" in read(FULL + "deepspeed: gone.json\n").needs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model_name_or_path: a\ntemplate: t\nexport_dir: out\nadapter_name_or_path: b\n", "merges adapters"),
        ("model_name_or_path: a\ntemplate: t\nexport_dir: out\nexport_quantization_bit: 4\n", "quantises a model"),
        ("model_name_or_path: a\ntemplate: t\ninfer_backend: huggingface\n", "generates with transformers"),
        ("model_name_or_path: a\nstage: sft\ndo_predict: true\nfinetuning_type: lora\n", "generates or evaluates"),
        ("model_name_or_path: a\nstage: sft\ndo_train: false\n", "trains nothing"),
        ("model: a\npeft_config:\n  name: lora\n  export_dir: out\n", "merges adapters"),
    ],
)
def test_what_is_no_training_run(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("stage: sft", "stage: sftt", 2, "is not known here"),
        ("lora_rank: 16", "lora_rank: wide", 5, "whole number"),
        ("bf16: true", "quantization_bit: 3", 14, "4 or 8"),
        ("bf16: true", "quantization_bit: 4\nquantization_method: magic", 15, "is no library"),
        ("bf16: true", "flash_attn: fa9", 14, "is not known here"),
        ("bf16: true", "fp16: true\nbf16: true", 14, "cannot be on beside"),
        ("finetuning_type: lora", "quantization_bit: 4\nfinetuning_type: full", 4, "needs finetuning_type lora"),
    ],
)
def test_values_that_cannot_be_used(old: str, new: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(LORA.replace(old, new))
    assert str(caught.value.where) == f"run.yaml:{line}"


# -- Megatron-Core and the second engine --------------------------------------------------------------------------------------


def test_megatron() -> None:
    lines = "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nsequence_parallel: true\n"
    made = read(FULL + lines + "use_distributed_optimizer: true\nrecompute_granularity: full\nbias_activation_fusion: true\n")
    got = values(made)
    assert (got["framework"], got["tp"], got["pp"], got["sp"], got["zero"]) == ("megatron-core", 2, 2, True, 1)
    assert (got["recompute"], got["precision"]) == ("full", "bf16")
    assert "attention" not in got
    assert not made.unknown
    assert asked(made, model="llama-3-8b", gpus="8").par.dp == 2
    for option, value in (("recompute", "full"), ("tp", "4"), ("zero", "0"), ("micro_batch", "1")):
        round_trip([("run.yaml", FULL + lines)], {option: value}, model="llama-3-8b", gpus="8")
    bridge = values(read(LORA + "tensor_model_parallel_size: 1\nmixed_precision: bf16_mixed\n"))
    assert (bridge["framework"], bridge["recompute"], bridge["zero"], bridge["lora_rank"]) == ("megatron-bridge", "none", 1, 16)


def test_second_engine() -> None:
    made = read(V1_FULL)
    assert values(made) == {
        "micro_batch": 2, "seq_len": 1024, "grad_accum": 1, "packing": False, "attention": "sdpa", "recompute": "full",
        "optimizer": "adamw", "optimizer_impl": "foreach", "framework": "fsdp2", "zero": 3, "precision": "bf16",
    }  # fmt: skip
    assert not made.unknown
    assert not made.unmodelled
    tuned = values(read(V1_FULL + "peft_config:\n  name: lora\n  r: 4\n  target_modules: all\n"))
    assert (tuned["lora_rank"], tuned["lora_targets"], tuned["param_dtype"]) == (4, ("all-linear",), "bf16")
    alone = values(read(V1_FULL.replace("dist_config:\n  name: fsdp2\n", "")))
    assert (alone["framework"], alone["precision"]) == ("hf-trainer", "fp32")
    assert doubts(read(V1_FULL + "batching_strategy: dynamic_batching\ncp_size: 2\n")) == {
        "batching_strategy": "both",
        "cp_size": "both",
    }
    round_trip([("run.yaml", V1_FULL)], {"micro_batch": "1"}, model="llama-3-8b")
    round_trip([("run.yaml", V1_FULL)], {"recompute": "none"}, model="llama-3-8b")
    round_trip([("run.yaml", V1_FULL)], {"offload": "params"}, model="llama-3-8b", gpus="8")


# -- commands -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(LORA + "deepspeed: zero.json\n")
    (tmp_path / "zero.json").write_text(ZERO)
    (tmp_path / "serve.yaml").write_text("model_name_or_path: a/b\ntemplate: t\ninfer_backend: vllm\nvllm_enforce_eager: true\n")
    return tmp_path


@pytest.mark.usefixtures("here")
def test_command_over_the_file() -> None:
    made = read_texts(
        [(COMMAND, "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train run.yaml lora_rank=8 deepspeed=null")]
    )
    got = values(made)
    assert (got["lora_rank"], got["gpus"], got["gpus_per_node"], got["framework"]) == (8, 16, 8, "hf-trainer")
    assert got["expandable_segments"] is True
    assert str(made.settings["lora_rank"].origin) == f"{COMMAND}:1"
    assert not made.unknown


@pytest.mark.usefixtures("here")
def test_flags_without_a_file() -> None:
    line = "torchrun --nproc_per_node 4 src/train.py --stage sft --do_train --model_name_or_path a/b --bf16"
    line += " --finetuning_type full"
    made = read_texts([(COMMAND, line)])
    got = values(made)
    assert (made.model, got["gpus"], got["precision"], "expandable_segments" in got) == ("a/b", 4, "bf16", False)
    assert not made.unknown


@pytest.mark.usefixtures("here")
def test_servers() -> None:
    made = read_texts([(COMMAND, "CUDA_VISIBLE_DEVICES=0,1 lmf api serve.yaml vllm_maxlen=8192")])
    assert made.verb == "serve"
    assert values(made) == {
        "engine": "vllm",
        "tp": 2,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.7,
        "enforce_eager": True,
    }
    other = read_texts([(COMMAND, "llamafactory-cli api serve.yaml infer_backend=sglang sglang_tp_size=4")])
    assert (values(other)["engine"], values(other)["tp"]) == ("sglang", 4)
    assert "tp" in read_texts([(COMMAND, "llamafactory-cli api serve.yaml")]).needs


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "line", ["llamafactory-cli export run.yaml", "llamafactory-cli webui", "llamafactory-cli", "llamafactory-cli train gone.yaml"]
)
def test_commands_that_train_nothing(line: str) -> None:
    with pytest.raises(ConfigError):
        read_texts([(COMMAND, line)])


# -- options written back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1", "grad_accum": "8"},
        {"seq_len": "2048"},
        {"recompute": "none"},
        {"optimizer": "adamw8bit"},
        {"loss": "fused"},
        {"attention": "flash"},
        {"offload": "activations"},
        {"packing": True},
    ],
)
@pytest.mark.parametrize("text", [FULL, LORA])
def test_options(text: str, options: dict[str, str | bool]) -> None:
    round_trip([("run.yaml", text)], options, model="llama-3-8b")


@pytest.mark.parametrize("options", [{"lora_rank": "8"}, {"lora_targets": "all-linear"}, {"lora_targets": "o_proj"}])
def test_options_of_adapters(options: dict[str, str | bool]) -> None:
    round_trip([("run.yaml", LORA)], options, model="llama-3-8b")


def test_option_of_deepspeed() -> None:
    round_trip([("run.yaml", FULL + "deepspeed: zero.json\n"), ("zero.json", ZERO)], {"zero": "2"}, model="llama-3-8b", gpus="8")


def test_what_the_file_cannot_say() -> None:
    made = read(FULL)
    for name, value in (("pp", "2"), ("lora_rank", "8"), ("recompute", "selective"), ("attention", "te"), ("loss", "chunked")):
        assert made.spell(name, value) is None


def test_no_key_is_in_two_tables() -> None:
    for tables in (LLAMAFACTORY, MEGATRON, V1):
        assert not tables.neutral & tables.unmodelled.keys()


@pytest.mark.parametrize(
    ("more", "micro", "effects"),
    [
        ("stage: dpo", 4, ["more"]),  # the reference model
        ("stage: dpo\npref_loss: orpo", 4, []),
        ("stage: dpo\npref_loss: simpo", 4, []),
        ("stage: rm", 4, ["less"]),
        ("stage: kto", 2, ["speed", "more"]),  # one answer a sample, and a second pass without gradients
    ],
)
def test_pairs_are_two_sequences(more: str, micro: int, effects: list[str]) -> None:
    made = read(LORA.replace("stage: sft", more))
    assert values(made)["micro_batch"] == micro
    assert [one.effect for one in made.unmodelled] == effects
    assert ("pairs" in made.settings["micro_batch"].origin.why) is (micro == 4)


def test_pairs_are_written_as_half() -> None:
    text = LORA.replace("stage: sft", "stage: dpo")
    made = round_trip([("run.yaml", text)], {"micro_batch": "2", "grad_accum": "8"}, model="llama-3-8b")
    assert "per_device_train_batch_size: 1" in made.texts["run.yaml"]
    assert read(text).spell("micro_batch", "1") is None


def test_pairs_of_the_second_engine() -> None:
    made = read(V1_FULL + "pref_loss: orpo\n")
    assert values(made)["micro_batch"] == 4
    assert [(one.document.path, one.key, one.value) for one in made.spell("micro_batch", "2")] == [
        ("run.yaml", "micro_batch_size", 1)
    ]
    assert made.spell("micro_batch", "3") is None


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ("FORCE_TORCHRUN=1 NNODES=2", None),
        ("FORCE_TORCHRUN=1", None),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4", 8),
        ("FORCE_TORCHRUN=1 NNODES=2 CUDA_VISIBLE_DEVICES=0,1", 4),
        ("CUDA_VISIBLE_DEVICES=0,1", 2),
    ],
)
@pytest.mark.parametrize("text", [FULL, V1_FULL])
def test_several_gpus_that_nobody_counts_are_asked_for(
    environment: str, gpus: int | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    made = read_texts([(COMMAND, f"{environment} llamafactory-cli train run.yaml")])
    assert values(made).get("gpus") == gpus
    assert ("gpus" in made.needs) is (gpus is None)


def test_the_batch_of_deepspeed_is_in_pairs_too() -> None:
    zero = {"zero_optimization": {"stage": 2}, "train_batch_size": 64, "gradient_accumulation_steps": 4}
    zero |= {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": "auto"}}
    text = FULL.replace("stage: sft", "stage: dpo") + "deepspeed: ds.json\n"
    made = read_texts([("run.yaml", text), ("ds.json", json.dumps(zero))])
    assert {name: values(made)[name] for name in ("gpus", "micro_batch", "global_batch")} == {
        "gpus": 8, "micro_batch": 4, "global_batch": 128,
    }  # fmt: skip
    assert asked(made, model="llama-3-8b").par.dp == 8
