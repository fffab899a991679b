"""torchtune's files and commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from foretell.readers.torchtune._models import _CATALOG, _CHANGED

FULL = """\
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 2048
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: True
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_files: [a.safetensors]
  model_type: LLAMA3
bs: 2
batch_size: ${bs}
gradient_accumulation_steps: 4
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 2e-5
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
clip_grad_norm: null
compile: True
enable_activation_checkpointing: True
enable_activation_offloading: False
optimizer_in_bwd: False
dtype: bf16
epochs: 1
"""
LORA = FULL.replace(
    "torchtune.models.llama3_1.llama3_1_8b",
    "torchtune.models.llama3_1.lora_llama3_1_8b\n  lora_attn_modules: ['q_proj', 'output_proj']\n  apply_lora_to_mlp: True\n"
    "  lora_rank: 16\n  lora_alpha: 32",
)


def reading(text: str, **changes: str) -> Any:
    """The reading of a text with lines changed: key=whole new value."""
    for key, value in changes.items():
        old = next(line for line in text.splitlines() if line.strip().startswith(f"{key}:"))
        text = text.replace(old, f"{old[: len(old) - len(old.lstrip())]}{key}: {value}", 1)
    return read_texts([("run.yaml", text)], family="torchtune")


def values(made: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in made.settings.items()}


def test_a_full_recipe_with_its_lines() -> None:
    made = reading(FULL)
    assert made.model == "llama-3.1-8b"
    assert values(made) == {
        "micro_batch": 2,
        "grad_accum": 4,
        "seq_len": 2048,
        "packing": True,
        "precision": "bf16-true",
        "loss": "chunked",
        "compile": True,
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "recompute": "full",
        "attention": "sdpa",
        "framework": "torchtune",
        "zero": 3,
        "fsdp_units": "root",
    }
    assert str(made.settings["micro_batch"].origin) == "run.yaml:14"  # where the reference leads
    assert str(made.settings["seq_len"].origin) == "run.yaml:6"
    assert "torchtune 0.7.0" in str(made.settings["zero"].origin)
    assert made.unmodelled == ()
    assert [row.key for row in made.unknown] == []
    launch = asked(made, "h100", gpus="4")
    assert (launch.par.dp, launch.par.zero, launch.recipe.grad_accum, launch.recipe.fsdp_units) == (4, 3, 4, "root")


def test_one_gpu_shards_nothing() -> None:
    alone, said = asked(reading(FULL), "h100", gpus="1"), asked(reading(FULL), "h100", gpus="1", zero="0")
    assert alone.forecast().total_bytes == said.forecast().total_bytes


def test_adapters() -> None:
    made = values(reading(LORA))
    assert made["lora_rank"] == 16
    assert made["lora_targets"] == ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert made["adapter_dtype"] == "bf16"
    assert made["lora_dropout"] == 0.0
    quantized = values(reading(LORA.replace("lora_llama3_1_8b", "qlora_llama3_1_8b")))
    assert (quantized["quantization"], quantized["double_quant"]) == ("nf4", True)
    launch = asked(reading(LORA.replace("lora_llama3_1_8b", "qlora_llama3_1_8b")), "a100")
    assert launch.recipe.adapter is not None
    assert launch.recipe.adapter.dtype == "bf16"
    with pytest.raises(ConfigError, match=r"no matrix of attention.*run\.yaml:3|run\.yaml:3.*no matrix"):
        reading(LORA.replace("'output_proj'", "'o_proj'"))


def test_length_is_the_datas_where_the_file_says_none() -> None:
    made = reading(FULL, max_seq_len="null", packed="False")
    assert "longest sample" in made.needs["seq_len"]
    assert "seq_len" not in made.settings
    with pytest.raises(ConfigError, match="max_seq_len"):
        reading(FULL, max_seq_len="null")
    padded = reading(FULL, packed="False")
    assert padded.settings["packing"].value is False
    assert any("longest of a batch" in note for note in padded.notes)


def test_losses_and_compilation() -> None:
    linear = reading(FULL.replace("CEWithChunkedOutputLoss", "LinearCrossEntropyLoss"))
    assert (values(linear)["loss"], linear.unmodelled) == ("linear-chunked", ())
    eager = {name: asked(reading(LORA.replace("CEWithChunkedOutputLoss", name), compile="False"), "h100").forecast().total_bytes
             for name in ("CEWithChunkedOutputLoss", "LinearCrossEntropyLoss")}  # fmt: skip
    logits = 2 * 2048 * 128256 * 2
    assert eager["CEWithChunkedOutputLoss"] - eager["LinearCrossEntropyLoss"] == pytest.approx(logits, rel=0.35)
    plain = FULL.replace("torchtune.modules.loss.CEWithChunkedOutputLoss", "torch.nn.CrossEntropyLoss")
    assert values(reading(plain))["loss"] == "compiled"
    assert values(reading(plain, compile="False"))["loss"] == "eager"
    apart = reading(FULL.replace("compile: True", "compile:\n  model: True\n  loss: False"))
    assert values(apart)["compile"] is True
    assert [row.key for row in apart.unmodelled] == ["compile.loss"]


def test_activations() -> None:
    some = FULL.replace("enable_activation_checkpointing: True", "ac_mode: selective\nac_option: 2")
    made = values(reading(some))
    assert (made["recompute"], made["recompute_scope"], made["recompute_layers"]) == ("selective", "layer", 2)
    none = values(reading(FULL + "ac_mode: full\n"))
    assert none["recompute"] == "none"
    moved = values(reading(FULL, enable_activation_offloading="True"))
    assert moved["offload"] == ("activations",)
    with pytest.raises(ConfigError, match="enable_activation_offloading"):
        reading(FULL, enable_activation_offloading="True", enable_activation_checkpointing="False")
    host = reading(FULL + "fsdp_cpu_offload: True\n")
    assert values(host)["offload"] == ("grads", "optimizer", "params")


def test_optimizers() -> None:
    text = FULL.replace("torch.optim.AdamW\n  fused: True", "bitsandbytes.optim.PagedAdamW8bit")
    assert values(reading(text, optimizer_in_bwd="True"))["optimizer_in_backward"] is True
    assert values(reading(text))["optimizer"] == "paged-adamw8bit"
    assert values(reading(FULL, fused="False"))["optimizer_impl"] == "foreach"
    with pytest.raises(ConfigError, match="clip_grad_norm"):
        reading(text, optimizer_in_bwd="True", clip_grad_norm="1.0")
    odd = reading(FULL.replace("torch.optim.AdamW", "my.own.Adam"))
    assert [(row.key, row.effect) for row in odd.unmodelled] == [("optimizer._component_", "both")]


def test_parallelism() -> None:
    made = reading(FULL + "tensor_parallel_dim: 2\ndata_parallel_shard_dim: 4\nfsdp_reshard_after_forward: False\n"
                   "custom_sharded_layers: ['tok_embeddings', 'output']\n")  # fmt: skip
    found = values(made)
    assert (found["tp"], found["gpus"], found["zero"], found["fsdp_units"]) == (2, 8, 2, "layers")
    launch = asked(made, "h100")
    assert (launch.par.dp, launch.par.tp) == (4, 2)
    assert launch.forecast() is not None


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ("teacher_model:\n  _component_: torchtune.models.llama3_1.llama3_1_70b\n", "teacher"),
        ("quantizer:\n  _component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer\n", "fake-quantised"),
    ],
)
def test_other_recipes_say_what_is_left_out(more: str, kind: str) -> None:
    made = reading(FULL + more)
    assert any(kind in row.why and row.effect == "more" for row in made.unmodelled)


def test_preferences_are_pairs() -> None:
    made = reading(FULL.replace("torchtune.modules.loss.CEWithChunkedOutputLoss", "torchtune.rlhf.loss.DPOLoss"))
    assert (values(made)["micro_batch"], values(made)["loss"]) == (4, "eager")
    assert any("reference" in row.why for row in made.unmodelled)


MODEL = "model: {_component_: torchtune.models.llama3.llama3_8b}\ndtype: bf16\n"


def test_a_file_that_trains_nothing() -> None:
    with pytest.raises(ConfigError, match="quantises"):
        read_texts([("run.yaml", MODEL + "quantizer: {_component_: x}\n")], family="torchtune")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("prompt: {user: hi}\nmax_new_tokens: 200\ntensor_parallel_dim: 4\n", {"batch": 1, "output_tokens": 200, "tp": 4}),
        ("tasks: [x]\nbatch_size: 8\nmax_seq_length: 4096\n", {"batch": 8, "input_tokens": 4095, "output_tokens": 1}),
    ],
)
def test_files_that_answer_are_inference(more: str, expected: dict[str, Any]) -> None:
    made = read_texts([("run.yaml", MODEL + more)], family="torchtune")
    assert made.verb == "serve"
    found = {name: setting.value for name, setting in made.settings.items()}
    assert expected.items() <= found.items()
    assert (found["engine"], found["weights"]) == ("other", "bf16")
    assert not made.unknown


def test_models() -> None:
    for name in {*_CATALOG.values()}:
        assert load_model(name).parameters > 0
    for base, (source, _) in _CHANGED.items():
        made = reading(FULL.replace("llama3_1.llama3_1_8b", f"any.{base}"))
        assert load_model(made.model).architecture.layers == load_model(source).architecture.layers
    sizes = "vocab_size: 32000\n  num_layers: 22\n  num_heads: 32\n  num_kv_heads: 4\n  embed_dim: 2048\n  intermediate_dim: 5632"
    small = reading(FULL.replace("llama3_1.llama3_1_8b", f"llama2.llama2\n  {sizes}\n  max_seq_len: 2048"))
    assert load_model(small.model).architecture.parameters == pytest.approx(1.1e9, rel=0.01)
    ninety = reading(FULL.replace("llama3_1.llama3_1_8b", "llama3_2_vision.llama3_2_vision_90b"))
    assert load_model(ninety.model).architecture.parameters == pytest.approx(88.6e9, rel=0.01)
    assert values(ninety)["trainable_fraction"] == pytest.approx(0.2036)
    own = reading(FULL.replace("torchtune.models.llama3_1.llama3_1_8b", "my.models.llama"))
    assert "Python, which is not executed" in own.needs["model"]


def test_unknown_and_bad_values() -> None:
    made = reading(FULL + "something_new: 3\nenable_fp8_training: True\n")
    assert [row.key for row in made.unknown] == ["something_new"]
    assert [(row.key, row.effect) for row in made.unmodelled] == [("enable_fp8_training", "both")]
    for key, value in (("batch_size", "two"), ("dtype", "fp16"), ("max_seq_len", "[1]"), ("compile", "maybe")):
        with pytest.raises(ConfigError, match=key):
            reading(FULL, **{key: value})


def test_every_key_ends_somewhere() -> None:
    made = reading(LORA + "custom_sharded_layers: ['output']\ndata_parallel_shard_dim: -1\nclip_grad_norm: 1.0\n")
    said = {s.origin.key for s in made.settings.values()} | {row.key for row in (*made.unmodelled, *made.unknown, *made.neutral)}
    said |= {made.model_origin.key, "batch_size"}
    document = made.documents[0]
    document.seen.clear()
    assert {found.key for found in document.untouched() if found.node.value is not None} <= said


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(LORA + "ac_mode: full\n")
    command = (
        "tune run --nnodes 2 --nproc_per_node 8 lora_finetune_distributed --config run.yaml batch_size=1 model.lora_rank=64"
        " model=torchtune.models.llama3_1.qlora_llama3_1_70b clip_grad_norm=None ~ac_mode"
    )
    made = read_texts([(COMMAND, command)], family="torchtune")
    found = values(made)
    assert made.model == "llama-3.1-70b"
    assert (found["gpus"], found["gpus_per_node"], found["micro_batch"], found["lora_rank"]) == (16, 8, 1, 64)
    assert (found["quantization"], found["recompute"]) == ("nf4", "full")
    assert made.unknown == ()
    one = read_texts([(COMMAND, "tune run lora_finetune_single_device --config run.yaml")], family="torchtune")
    assert (values(one)["gpus"], values(one)["zero"]) == (1, 0)
    torchrun = "torchrun --nproc_per_node 4 recipes/full_finetune_distributed.py --config run.yaml"
    assert values(read_texts([(COMMAND, torchrun)], family="torchtune"))["gpus"] == 4
    for wrong, problem in (
        ("tune download meta-llama/Llama-3.1-8B", "fetches a checkpoint"),
        ("tune run eleuther_eval --config run.yaml", "evaluates"),
        ("tune run full_finetune_distributed --config llama3_1/8B_full", "tune cp llama3_1/8B_full"),
        ("tune run full_finetune_distributed", "--config"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read_texts([(COMMAND, wrong)], family="torchtune")


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1"},
        {"micro_batch": "1", "grad_accum": "8"},
        {"seq_len": "1024"},
        {"packing": False},
        {"compile": False},
        {"recompute": "none"},
        {"offload": "activations"},
        {"offload": "grads,optimizer,params"},
        {"optimizer": "paged-adamw8bit"},
        {"optimizer": "adamw8bit"},
        {"precision": "fp32"},
        {"loss": "linear-chunked"},
        {"zero": "2"},
        {"hsdp_replicas": "2"},
        {"tp": "2"},
    ],
)
def test_edits_read_back(options: dict[str, str | bool]) -> None:
    text = FULL.replace("batch_size: ${bs}", "batch_size: 2")
    round_trip([("run.yaml", text)], options, "torchtune", gpus="8")


@pytest.mark.parametrize(
    "options", [{"lora_rank": "8"}, {"lora_targets": "q_proj,v_proj"}, {"lora_targets": "q_proj,gate_proj,up_proj,down_proj"}]
)
def test_edits_of_adapters_read_back(options: dict[str, str | bool]) -> None:
    round_trip([("run.yaml", LORA)], options, "torchtune")


def test_an_edit_of_a_reference_changes_the_key_itself() -> None:
    made = round_trip([("run.yaml", FULL)], {"micro_batch": "1"}, "torchtune")
    assert "batch_size: 1\n" in made.texts["run.yaml"]
