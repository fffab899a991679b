"""TRL: its files, its commands, and recipes in the alignment-handbook's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError
from foretell.readers._launch import launchers
from foretell.readers.hf.trl import FAMILY
from foretell.readers.read import COMMAND, read_texts
from hf_support import accounted, settings_of

NEW = """model_name_or_path: Qwen/Qwen2.5-7B
dataset_name: a/b
per_device_train_batch_size: 2
learning_rate: 2.0e-5
output_dir: out
"""
OLD = """model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: bfloat16
attn_implementation: flash_attention_2
dataset_mixture:
  datasets:
    - id: a/b
      split: train
      columns: [messages]
  seed: 0
bf16: true
gradient_accumulation_steps: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: False
learning_rate: 2.0e-05
max_seq_length: 2048
per_device_train_batch_size: 8
output_dir: data/x
"""


def read(text: str, path: str = "run.yaml", *others: tuple[str, str]) -> Any:
    made = read_texts([(path, text), *others], family="trl")
    accounted(made)
    return made


def more(text: str, **keys: Any) -> str:
    return text + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


def test_defaults_of_today() -> None:
    made = read(NEW)
    assert settings_of(made) == {
        "micro_batch": 2,
        "grad_accum": 1,
        "recompute": "full",
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "seq_len": 1024,
        "packing": False,
        "framework": "hf-trainer",
        "precision": "bf16",  # autocast over weights loaded as float32
        "loss": "chunked-head",
    }
    assert made.version == "1.9.0"
    assert made.settings["recompute"].origin.why == "default of TRL 1.9.0"
    assert not made.doubts
    assert asked(made).recipe.loss == "chunked-head"


def test_files_of_the_handbook_have_the_defaults_of_their_time() -> None:
    made = read(OLD)
    assert made.version == "0.19.1"
    found = settings_of(made)
    assert (found["precision"], found["seq_len"], found["recompute"], found["optimizer_impl"]) == (
        "bf16-true",
        2048,
        "full",
        "foreach",
    )
    assert "loss" not in found
    assert str(made.settings["precision"].origin) == "run.yaml:10"
    assert not made.doubts
    assert settings_of(read(OLD.replace("torch_dtype: bfloat16", "torch_dtype: null")))["precision"] == "bf16"  # fp32 weights
    off = read(
        OLD.replace("gradient_checkpointing: true\n", "").replace("gradient_checkpointing_kwargs:\n  use_reentrant: False\n", "")
    )
    assert settings_of(off)["recompute"] == "none"


def test_qlora() -> None:
    made = read(more(NEW, use_peft=True, load_in_4bit=True, dtype="bfloat16", lora_target_modules="all-linear"))
    run = asked(made)
    assert run.recipe.adapter is not None
    assert (run.recipe.adapter.rank, run.recipe.adapter.targets, run.recipe.adapter.dtype) == (16, ("all-linear",), "bf16")
    assert run.recipe.quantization is not None
    assert (run.recipe.quantization.kind, run.recipe.quantization.rest) == ("nf4", "bf16")
    idle = read(more(NEW, lora_r=64, lora_alpha=16))
    assert "lora_rank" not in settings_of(idle)
    default = asked(read(more(NEW, use_peft=True, dtype="bfloat16")))
    assert default.recipe.adapter is not None
    assert default.recipe.adapter.targets == ("q_proj", "v_proj")
    assert settings_of(read(more(NEW, use_peft=True)))["param_dtype"] == "fp32"
    regular = read(more(NEW, use_peft=True, lora_target_modules=".*(q|v)_proj"))
    assert "lora_targets" in regular.needs


def test_a_quantised_base_is_sharded_only_in_a_format_that_floats() -> None:
    acc = (
        "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
    )
    text = more(NEW, use_peft=True, load_in_4bit=True, dtype="bfloat16")
    assert [d.key for d in read(text, "run.yaml", ("acc.yaml", acc)).doubts] == ["bnb_4bit_quant_storage"]
    assert not read(more(text, bnb_4bit_quant_storage="bfloat16"), "run.yaml", ("acc.yaml", acc)).doubts


def test_losses_of_sft() -> None:
    assert "loss" not in settings_of(read(more(NEW, loss_type="nll")))
    assert settings_of(read(more(NEW, use_liger_kernel=True)))["loss"] == "fused"
    assert [d.key for d in read(more(NEW, loss_type="dft")).doubts] == ["loss_type"]
    with pytest.raises(ConfigError, match="TRL refuses both"):
        read(more(NEW, use_liger_kernel=True, loss_type="chunked_nll"))


@pytest.mark.parametrize(
    ("path", "keys", "batch", "doubts"),
    [
        ("recipes/dpo/run.yaml", {"beta": 0.1}, 4, {"reference model": "more"}),
        ("run.yaml", {"beta": 0.1, "loss_type": "sigmoid"}, 4, {"reference model": "more"}),
        ("dpo.yaml", {"use_peft": True}, 4, {"reference model": "speed"}),
        ("dpo.yaml", {"precompute_ref_log_probs": True}, 4, {"precompute_ref_log_probs": "more-memory"}),
        ("orpo.yaml", {"beta": 0.1}, 4, {}),
        ("kto.yaml", {"desirable_weight": 1.0}, 2, {"reference model": "more"}),
        ("reward.yaml", {"center_rewards_coefficient": 0.01}, 4, {"head": "less-memory"}),
        ("run.yaml", {"num_generations": 8, "max_prompt_length": 512}, 2, {"num_generations": "both", "generation": "more"}),
    ],
)
def test_methods(path: str, keys: dict[str, Any], batch: int, doubts: dict[str, str]) -> None:
    made = read(more(NEW, **keys), path)
    assert settings_of(made)["micro_batch"] == batch
    assert {d.key: d.effect for d in made.doubts} == doubts


def test_lengths() -> None:
    assert "seq_len" in read(more(NEW, max_length=None)).needs
    grpo = read(more(NEW, num_generations=4, max_prompt_length=512, max_completion_length=1024))
    assert settings_of(grpo)["seq_len"] == 1536
    assert "seq_len" in read(more(NEW, num_generations=4)).needs
    assert settings_of(read(more(NEW, packing=True, max_length=4096)))["packing"] is True


def test_a_command_with_a_file_and_a_configuration_of_trls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(NEW)
    line = "trl sft --config run.yaml --per_device_train_batch_size 1 --accelerate_config zero3 --num_processes 4"
    made = read_texts([(COMMAND, line)], family="trl")
    accounted(made)
    run = asked(made)
    assert (run.framework.name, run.par.zero, run.par.dp, run.recipe.micro_batch) == ("deepspeed", 3, 4, 1)
    assert run.recipe.seq_len == 1024
    assert made.model == "Qwen/Qwen2.5-7B"
    gone = read_texts([(COMMAND, "trl sft --config none.yaml --model_name_or_path gpt2")], family="trl")
    accounted(gone)
    assert [d.key for d in gone.doubts] == ["config"]


def test_a_script_under_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(OLD)
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nmixed_precision: bf16\n"
        "num_processes: 8\nnum_machines: 1\n"
    )
    made = read_texts(
        [(COMMAND, "accelerate launch --config_file acc.yaml scripts/sft.py --config run.yaml --seed 1")], family="trl"
    )
    accounted(made)
    run = asked(made)
    assert made.family == "trl"
    launch = next(iter(launchers("accelerate launch scripts/sft.py --config run.yaml", "x")))
    assert FAMILY.starts is not None
    assert FAMILY.starts(launch)
    assert (run.framework.name, run.par.zero, run.par.dp, run.recipe.precision) == ("deepspeed", 3, 8, "bf16")
    assert not made.doubts


def test_environment_and_offloading() -> None:
    made = read(
        NEW + "env:\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True\n  WANDB_MODE: offline\nactivation_offloading: true\n"
    )
    assert settings_of(made)["expandable_segments"] is True
    assert settings_of(made)["offload"] == ("activations",)
    assert not made.doubts


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss_type": "mse"}, "is no loss of sft"),
        ({"max_length": "long"}, "must be a whole number"),
        ({"use_peft": True, "lora_r": 0}, "must be a whole number"),
        ({"use_peft": True, "load_in_4bit": True, "bnb_4bit_quant_type": "q4"}, "is not known here"),
        ({"dtype": "bf17"}, "is no format"),
        ({"packing": "perhaps"}, "must be true or false"),
    ],
)
def test_values_that_make_no_sense_are_one_error(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(more(NEW, **keys))
    assert str(caught.value.where).startswith("run.yaml:")


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1", "grad_accum": "2"},
        {"seq_len": "512"},
        {"recompute": "none"},
        {"loss": "fused"},
        {"packing": True},
        {"attention": "sdpa"},
        {"optimizer": "adamw8bit"},
        {"compile": True},
    ],
)
def test_what_is_written_reads_back(options: dict[str, str | bool]) -> None:
    round_trip([("run.yaml", NEW)], options, "trl")
    if "optimizer" not in options:  # foreach in 0.19.1, where 8-bit AdamW has one kernel
        round_trip([("run.yaml", OLD)], options, "trl")


def test_pairs_are_written_as_half() -> None:
    made = round_trip([("dpo/run.yaml", more(NEW, beta=0.1))], {"micro_batch": "2", "grad_accum": "2"}, "trl")
    assert "per_device_train_batch_size: 1" in made.texts["dpo/run.yaml"]
    assert read(more(NEW, beta=0.1), "dpo/run.yaml").spell("micro_batch", "1") is None


def test_garbage_is_an_error_and_never_a_traceback() -> None:
    for text in ("[]", "a", "per_device_train_batch_size: {a: 1}\nmodel_name_or_path: x\n", "model_name_or_path: [1]\n"):
        with pytest.raises(ConfigError):
            read_texts([("run.yaml", text)], family="trl")


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name a --num_processes 4 --num_machines 1", 4),
        ("python -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name a", None),
        ("accelerate launch --num_processes 8 -m trl.scripts.dpo --model_name_or_path Qwen/Qwen2.5-7B --dataset_name a", 8),
    ],
)
def test_ways_to_start_it(command: str, gpus: int | None) -> None:
    made = read_texts([(COMMAND, command)])
    assert made.family == "trl"
    assert not made.unknown
    assert made.model == "Qwen/Qwen2.5-7B"
    assert (made.settings["gpus"].value if "gpus" in made.settings else None) == gpus
