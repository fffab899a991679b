"""transformers' Trainer: command lines of scripts, and their arguments as YAML or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from foretell.readers.read import read as read_files
from hf_support import accounted, settings_of

MODEL = "meta-llama/Llama-3.1-8B"
RUN = """model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2e-5
num_train_epochs: 1
output_dir: out
bf16: true
gradient_checkpointing: true
max_seq_length: 2048
attn_implementation: flash_attention_2
"""
DS = json.dumps(
    {
        "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
)


def read(text: str, *others: tuple[str, str]) -> Any:
    made = read_texts([("run.yaml", text), *others], family="trainer")
    accounted(made)
    return made


def command(line: str, *others: tuple[str, str]) -> Any:
    made = read_texts([(COMMAND, line), *others], family="trainer")
    accounted(made)
    return made


def more(**keys: Any) -> str:
    return RUN + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


def changed(**keys: Any) -> str:
    lines = [line for line in RUN.splitlines() if line.split(":")[0] not in keys]
    return "\n".join(lines) + "\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items() if value is not None)


def test_values_come_with_their_lines_and_defaults_with_their_source() -> None:
    made = read(RUN)
    assert settings_of(made) == {
        "micro_batch": 2,
        "grad_accum": 4,
        "recompute": "full",
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "seq_len": 2048,
        "attention": "flash",
        "framework": "hf-trainer",
        "precision": "bf16-true",  # transformers 5 loads a bfloat16 checkpoint as such
        "weights": "auto",
        "autocast": "bf16",
    }
    assert str(made.settings["grad_accum"].origin) == "run.yaml:3"
    assert made.settings["optimizer"].origin.why == "default of transformers 5.24.0: adamw_torch_fused"
    assert (made.model, made.model_origin.line) == (MODEL, 1)
    assert not made.doubts
    assert not made.needs


def test_weights_decide_the_precision() -> None:
    wide = settings_of(read(more(torch_dtype="float32")))
    assert wide["precision"] == "bf16"
    assert settings_of(read(more(dtype="bfloat16")))["precision"] == "bf16-true"
    assert settings_of(read(changed(bf16=False, dtype="float32")))["precision"] == "fp32"
    assert settings_of(read(changed(bf16=None, fp16=True)))["precision"] == "fp16"
    checkpoint = asked(read(changed(model_name_or_path="gpt2", max_seq_length=512)))  # its config.json names no format
    assert checkpoint.recipe.precision in ("bf16", "bf16-true")


def test_adapters_and_a_quantised_base() -> None:
    made = read(more(use_lora=True, lora_r=32, lora_target_modules=["q_proj", "v_proj"], lora_dropout=0.1, load_in_4bit=True))
    run = asked(made)
    assert run.recipe.adapter is not None
    assert (run.recipe.adapter.rank, run.recipe.adapter.targets, run.recipe.adapter.dropout) == (32, ("q_proj", "v_proj"), 0.1)
    assert run.recipe.quantization is not None
    assert (run.recipe.quantization.kind, run.recipe.precision) == ("nf4", "bf16")
    alone = settings_of(read(changed(bf16=None, lora_r=8, lora_alpha=16)))
    assert (alone["framework"], alone["precision"], alone["lora_rank"]) == ("peft", "bf16", 8)
    assert settings_of(read(more(lora_r=8, torch_dtype="float32")))["param_dtype"] == "fp32"
    qlora = command(
        f"python qlora.py --model_name_or_path {MODEL} --bits 4 --double_quant --quant_type fp4 --lora_r 64 --bf16 "
        "--source_max_len 384 --target_max_len 128 --per_device_train_batch_size 1 --optim paged_adamw_32bit "
        "--max_memory_MB 80000"
    )
    made_of = settings_of(qlora)
    assert (made_of["quantization"], made_of["double_quant"], made_of["seq_len"]) == ("fp4", True, 512)
    assert (made_of["optimizer"], made_of["optim_dtype"]) == ("paged-adamw", "fp32")
    assert [d.key for d in qlora.doubts] == ["max_memory_MB"]


def test_a_command_with_fsdp() -> None:
    made = command(
        f"torchrun --nproc_per_node 8 run_clm.py --model_name_or_path {MODEL} --dataset_name wikitext --block_size=1024 "
        '--per-device-train-batch-size 2 --bf16 --do_train --fsdp "shard_grad_op auto_wrap offload" --gradient_checkpointing '
        """--fsdp_config '{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}' --output_dir out --report_to none"""
    )
    run = asked(made)
    assert (run.framework.name, run.par.dp, run.par.zero, run.recipe.offload) == ("fsdp2", 8, 2, frozenset({"params"}))
    assert (run.recipe.seq_len, run.recipe.precision, settings_of(made)["packing"]) == (1024, "bf16", True)
    assert not made.doubts
    first = settings_of(
        read(more(fsdp="full_shard auto_wrap", fsdp_config={"fsdp_version": 1, "backward_prefetch": "backward_pre"}))
    )
    assert (first["framework"], first["zero"]) == ("fsdp1", 3)
    assert settings_of(read(more(fsdp=["full_shard"], fsdp_config={"version": 2, "reshard_after_forward": False})))["zero"] == 2
    assert "framework" in settings_of(read(more(fsdp="", fsdp_config={"min_num_params": 0})))


def test_deepspeed_by_path_by_name_and_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(DS)
    line = f"deepspeed --num_gpus 4 train.py --model_name_or_path {MODEL} --deepspeed ds.json --bf16 True --model_max_length 4096"
    run = asked(command(line))
    assert (run.framework.name, run.par.dp, run.par.zero, run.recipe.reduce_bucket) == ("deepspeed", 4, 3, 4096**2)
    assert (run.recipe.micro_batch, run.recipe.precision, run.recipe.seq_len) == (8, "bf16", 4096)
    given = read(more(deepspeed="configs/other.json"), ("other.json", DS))
    assert settings_of(given)["zero"] == 3
    inside = read(more(deepspeed=json.loads(DS)))
    assert str(inside.settings["zero"].origin) == "run.yaml:11"
    gone = read(more(deepspeed="nowhere.json"))
    assert "zero" in gone.needs
    assert [d.key for d in gone.doubts] == ["deepspeed"]


def test_two_files_that_disagree_are_the_error_of_transformers() -> None:
    with pytest.raises(ConfigError, match="is not per_device_train_batch_size: 2") as caught:
        read(more(deepspeed={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}))
    assert caught.value.where == "run.yaml:11"
    with pytest.raises(ConfigError, match="DeepSpeed's configuration"):
        read(more(deepspeed={"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}))
    told = read(
        changed(gradient_accumulation_steps=None, deepspeed={"gradient_accumulation_steps": 3, "zero_optimization": {"stage": 3}})
    )
    assert settings_of(told)["grad_accum"] == 3
    assert any("transformers wants the same" in note for note in told.notes)


def test_an_accelerate_file_beside_it() -> None:
    acc = "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16\ndynamo_config: {dynamo_backend: inductor}\n"
    made = read(changed(bf16=None, torch_dtype="float32"), ("acc.yaml", acc))
    assert settings_of(made)["precision"] == "bf16"
    assert str(made.settings["precision"].origin) == "acc.yaml:3"
    assert (settings_of(made)["gpus"], settings_of(made)["compile"]) == (4, True)


@pytest.mark.parametrize(
    ("optim", "name", "impl"),
    [
        ("adamw_torch", "adamw", "foreach"),
        ("adamw_bnb_8bit", "adamw8bit", "fused"),
        ("paged_adamw_8bit", "paged-adamw8bit", "fused"),
        ("adafactor", "adafactor", "forloop"),
        ("galore_adamw_layerwise", "galore-adamw", "foreach"),
        ("schedule_free_adamw", "adamw", "foreach"),
    ],
)
def test_optimizers(optim: str, name: str, impl: str) -> None:
    made = read(changed(optim=optim, gradient_accumulation_steps=1))
    assert (settings_of(made)["optimizer"], settings_of(made)["optimizer_impl"]) == (name, impl)
    assert asked(made).recipe.optimizer_in_backward is optim.endswith("layerwise")


def test_options_that_are_not_modelled() -> None:
    made = read(more(
        eval_strategy="steps", per_device_eval_batch_size=8, auto_find_batch_size=True, torch_compile_mode="max-autotune",
        label_smoothing_factor=0.1, ddp_find_unused_parameters=False, gradient_checkpointing_kwargs={"use_reentrant": True},
        neftune_noise_alpha=5, my_own=3, optim="lion_8bit",
    ))  # fmt: skip
    assert {d.key: d.effect for d in made.unmodelled} == {
        "per_device_eval_batch_size": "more-memory",
        "auto_find_batch_size": "both",
        "torch_compile_mode": "both",
        "label_smoothing_factor": "more-memory",
        "gradient_checkpointing_kwargs": "speed",
        "optim": "less-memory",
    }
    assert [d.key for d in made.unknown] == ["my_own"]


def test_liger_tf32_and_flags_of_flash_attention() -> None:
    made = read(changed(use_liger_kernel=True, tf32=True, attn_implementation=None, use_flash_attn=True))
    assert (settings_of(made)["loss"], settings_of(made)["attention"]) == ("fused", "flash")
    assert not made.doubts
    assert not read(changed(bf16=None, dtype="float32", tf32=True)).doubts


def test_lengths() -> None:
    assert settings_of(read(changed(max_seq_length=None, model_max_length=512)))["seq_len"] == 512
    assert "seq_len" in read(changed(max_seq_length=None)).needs
    pair = read(changed(model_name_or_path="t5-base", max_seq_length=None, max_source_length=512, max_target_length=128))
    assert (settings_of(pair)["encoder_seq_len"], settings_of(pair)["seq_len"]) == (512, 128)
    image = command("python run_image_classification.py --model_name_or_path google/vit-base-patch16-224 --output_dir o")
    assert "seq_len" not in image.needs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(per_device_train_batch_size="two"), "must be a whole number"),
        (changed(bf16="sometimes"), "must be true or false"),
        (more(fp16=True), "transformers refuses both"),
        (more(optim="adamw_magic"), "is not known here"),
        (changed(attn_implementation="warp"), "is no attention"),
        (more(torch_dtype="int3"), "is no format"),
        (more(use_cpu=True), "trains on the CPU"),
        (more(load_in_4bit=True), "needs adapters"),
        (more(deepspeed="{broken"), "must be a mapping"),
        (more(fsdp="full_shard auto_wrap", fsdp_config=[1]), "must be a mapping"),
        (more(fsdp="hybrid_shard"), "is of FSDP1 alone"),
        (more(gradient_checkpointing_kwargs="x"), "must be a mapping"),
        (changed(gradient_accumulation_steps=0), "must be a whole number"),
        (more(fsdp="full_shard", fsdp_config={"activation_checkpointing": True}), "refuses both"),
    ],
)
def test_values_that_make_no_sense_are_one_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert str(caught.value.where).startswith("run.yaml:")


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1", "grad_accum": "8"},
        {"seq_len": "1024"},
        {"recompute": "none"},
        {"loss": "fused"},
        {"compile": True},
        {"attention": "sdpa"},
        {"optimizer": "adamw8bit"},
    ],
)
def test_what_is_written_reads_back(options: dict[str, str | bool]) -> None:
    round_trip([("run.yaml", RUN)], options, "trainer")
    line = (
        f"torchrun --nproc_per_node 8 train.py --model_name_or_path {MODEL} --per_device_train_batch_size 2 --bf16 "
        "--max_seq_length 2048 --gradient_checkpointing"
    )
    round_trip([(COMMAND, line)], options, "trainer")


def test_what_is_written_into_the_files_beside_it() -> None:
    zero = {"stage": 2, "overlap_comm": True}
    ds = json.dumps({"zero_optimization": zero, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}})
    for options in ({"zero": "3"}, {"micro_batch": "1", "grad_accum": "8"}, {"offload": "optimizer"}):
        made = round_trip([("run.yaml", more(deepspeed="ds.json")), ("ds.json", ds)], options, "trainer", gpus="8")  # type: ignore[arg-type]
        assert {edit.path for edit in made.edits} <= {"run.yaml", "ds.json"}
    acc = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 2\nmixed_precision: bf16\n"
    round_trip([("run.yaml", RUN), ("acc.yaml", acc)], {"zero": "3"}, "trainer")
    assert read(RUN).spell("lora_rank", "8") is None


def test_files_are_told_from_others() -> None:
    from foretell.readers.hf.trainer import FAMILY

    made = read_texts([("run.yaml", RUN)], family="trainer").documents[0]
    assert FAMILY.claims(made) >= 0.5
    other = read_texts([("acc.yaml", "distributed_type: FSDP\nnum_processes: 2\n")], family="accelerate").documents[0]
    assert FAMILY.claims(other) == 0


def test_scripts_with_zero_by_a_flag_and_loops_without_the_trainer() -> None:
    chat = command(
        f"deepspeed --num_gpus 8 main.py --model_name_or_path {MODEL} --per_device_train_batch_size 4 --max_seq_len 512 "
        "--zero_stage 3 --offload --deepspeed --gradient_checkpointing --lora_dim 0"
    )
    run = asked(chat)
    assert (run.framework.name, run.par.zero, run.recipe.precision) == ("deepspeed", 3, "fp16")
    assert {"optimizer", "params"} <= run.recipe.offload
    assert run.recipe.adapter is None
    loop = command(
        "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 run_clm_no_trainer.py --model_name_or_path gpt2 "
        "--block_size 512 --per_device_train_batch_size 2"
    )
    found = settings_of(loop)
    assert (found["gpus"], found["optimizer_impl"], found["packing"]) == (2, "foreach", True)
    assert asked(loop).recipe.precision == "bf16"  # the checkpoint is float32: autocast over fp32 weights
    again = command(
        f"torchrun --nproc_per_node 2 train.py --model_name_or_path {MODEL} --max_length 512 --use_reentrant True --bf16"
    )
    assert not again.doubts  # nothing is checkpointed
    once = command(f"python train.py --model_name_or_path {MODEL} --max_length 512 --use_reentrant True --gradient_checkpointing")
    assert [d.key for d in once.doubts] == ["use_reentrant"]


def test_a_deepspeed_file_behind_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(DS)
    (tmp_path / "fsdp.json").write_text('{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "xla": false}')
    (tmp_path / "args.json").write_text(json.dumps({"model_name_or_path": MODEL, "block_size": 256, "bf16": True}))
    line = f"deepspeed train.py --model_name_or_path {MODEL} --max_length 512 --bf16 --deepspeed --deepspeed_config ds.json"
    assert settings_of(command(line))["zero"] == 3
    made = command(
        f"torchrun --nproc_per_node 2 train.py --model_name_or_path {MODEL} --max_length 512 --bf16 "
        "--fsdp full_shard --fsdp_config fsdp.json"
    )
    assert (settings_of(made)["framework"], settings_of(made)["zero"]) == ("fsdp2", 3)
    assert not made.doubts
    alone = command("python run_clm.py args.json")
    assert (alone.model, settings_of(alone)["seq_len"]) == (MODEL, 256)


FP32 = changed(bf16=None, dtype="float32", attn_implementation="sdpa")
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    ("text", "gpu", "wanted"),
    [
        (FP32, "h100", ["speed"]),  # PyTorch's products are not TF32 by default
        (FP32 + "tf32: false\n", "h100", ["speed"]),
        (FP32 + "tf32: true\n", "h100", []),
        (FP32 + "torch_compile: true\n", "h100", []),
        (FP32, "t4", []),  # which has no TF32
        (RUN, "h100", []),
    ],
)
def test_full_fp32_is_not_tf32(text: str, gpu: str, wanted: list[str]) -> None:
    assert [one.effect for one in read_texts([("run.yaml", text)], family="trainer", given={"gpu": gpu}).doubts] == wanted


def test_a_checkpoint_that_is_known_to_be_fp32_is_said_to_be() -> None:
    made = read(changed(bf16=None, model_name_or_path="gpt2", attn_implementation="sdpa"))
    assert made.settings["precision"].value == "fp32"
    assert "as the checkpoint has them" in made.settings["precision"].origin.why
    assert "weights" not in made.settings
    assert [one.effect for one in made.doubts] == ["speed"]
    named = read_texts([("run.yaml", changed(model_name_or_path="nobody/knows"))], family="trainer", given={"model": "gpt2"})
    assert named.settings["precision"].value == "bf16"  # autocast over fp32 weights


def test_the_batch_of_deepspeed_says_how_many_gpus() -> None:
    zero = json.loads(DS) | BATCH
    made = read(more(deepspeed="ds.json"), ("ds.json", json.dumps(zero)))
    assert settings_of(made)["gpus"] == 8
    assert "8 GPUs" in made.settings["gpus"].origin.why
    assert asked(made, model="llama-3.1-8b").par.dp == 8
    with pytest.raises(ConfigError, match="is no multiple of micro-batch 2 x accumulation 4"):
        read(more(deepspeed="ds.json"), ("ds.json", json.dumps(zero | {"train_batch_size": 60})))
    said = command(
        "torchrun --nproc_per_node 4 train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
        " --deepspeed ds.json",
        ("ds.json", json.dumps(zero)),
    )
    assert settings_of(said)["gpus"] == 4  # the launch line's


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("torchrun --nproc_per_node gpu train.py", True),
        ("torchrun --nnodes 2 train.py", True),
        ("torchrun --nproc_per_node 4 train.py", False),
        ("deepspeed train.py", True),
        ("deepspeed --num_gpus 2 train.py", False),
        ("accelerate launch --multi_gpu train.py", False),
        ("accelerate launch --num_machines 2 train.py", True),
        ("python train.py", False),
    ],
)
def test_several_gpus_that_nobody_counts_are_asked_for(line: str, asks: bool) -> None:
    made = read_texts([(COMMAND, f"{line} --per_device_train_batch_size 2 --max_length 64 --model_name_or_path gpt2")])
    assert ("gpus" in made.needs) is asks


def test_all_gpus_of_an_accelerate_file_are_asked_for() -> None:
    beside = ("acc.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    assert "num_processes" in read(RUN, beside).needs["gpus"]
    assert "gpus" not in read(RUN, (beside[0], beside[1] + "num_processes: 2\n")).needs


def test_a_file_that_is_named_and_given_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "fsdp.yaml").write_text("distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\n")
    line = "accelerate launch --config_file conf/fsdp.yaml train.py --per_device_train_batch_size 2 --max_length 64"
    (tmp_path / "run.sh").write_text(f"{line} --model_name_or_path gpt2\n")
    for given in ("conf/fsdp.yaml", str(tmp_path / "conf" / "fsdp.yaml"), "./conf/../conf/fsdp.yaml"):
        made = read_files(["run.sh", given])
        assert settings_of(made)["gpus"] == 4
        assert not made.unknown
        assert len([one for one in made.documents if one.path.endswith("fsdp.yaml")]) == 1


def test_files_that_nobody_reads_are_named_or_refused() -> None:
    made = read(RUN, ("a.json", DS), ("b.json", DS))
    left = [one for one in made.unmodelled if one.key == "b.json"]
    assert [(one.effect, one.origin.path) for one in left] == [("both", "b.json")]
    assert not made.unknown
    axolotl = "base_model: a/b\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 64\n"
    with pytest.raises(ConfigError, match=r"describes a second run .*give one") as caught:
        read(RUN, ("other.yaml", axolotl))
    assert caught.value.where in ("run.yaml", "other.yaml")
