"""axolotl's files and commands: values with their lines, defaults, what is not modelled, and options written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError, ForetellError
from foretell.readers.axolotl._keys import NEUTRAL, UNMODELLED
from foretell.readers.hf._targets import spelled_out
from foretell.readers.read import COMMAND, read_texts

FULL = """\
base_model: meta-llama/Meta-Llama-3-8B
datasets:
  - path: some/data
    type: alpaca
val_set_size: 0.05
micro_batch_size: 2
gradient_accumulation_steps: 4
sequence_len: 4096
sample_packing: true
attn_implementation: flash_attention_2
optimizer: adamw_torch_fused
learning_rate: 2e-5
bf16: auto
gradient_checkpointing: true
"""
QLORA = """\
base_model: meta-llama/Meta-Llama-3-8B
datasets:
  - path: some/data
micro_batch_size: 1
sequence_len: 2048
sample_packing: true
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
flash_attention: true
bf16: true
lora_mlp_kernel: false
gradient_checkpointing: true
"""
ZERO = json.dumps({
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
})  # fmt: skip


def read(text: str, **more: str) -> Any:
    """The reading of a file, with others beside it."""
    return read_texts([("run.yml", text), *((f"{name}.json", body) for name, body in more.items())])


def values(reading: Any) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.settings.items()}


def doubts(reading: Any) -> dict[str, str]:
    return {one.key: one.effect for one in reading.unmodelled}


def test_full_fine_tuning() -> None:
    made = read(FULL)
    assert (made.family, made.verb, made.model) == ("axolotl", "train", "meta-llama/Meta-Llama-3-8B")
    assert values(made) == {
        "micro_batch": 2, "grad_accum": 4, "seq_len": 4096, "packing": True, "optimizer": "adamw", "optimizer_impl": "fused",
        "attention": "flash", "expandable_segments": True, "recompute": "full", "framework": "hf-trainer",
        "precision": "bf16-true",
    }  # fmt: skip
    assert str(made.settings["seq_len"].origin) == "run.yml:8"
    assert made.settings["seq_len"].said == "sequence_len: 4096"
    assert "resolve_dtype" in made.settings["precision"].origin.why
    assert not made.unknown
    assert not made.unmodelled
    assert {one.key for one in made.neutral} >= {"datasets[0].path", "val_set_size", "learning_rate"}
    run = asked(made, model="llama-3-8b")
    assert (run.recipe.micro_batch, run.recipe.precision, run.recipe.recompute.mode) == (2, "bf16-true", "full")


def test_qlora() -> None:
    made = read(QLORA)
    assert values(made) | {"expandable_segments": True} == values(made)
    got = values(made)
    assert {name: value for name, value in got.items() if name.startswith(("lora", "qu", "double", "prec"))} == {
        "lora_rank": 32, "lora_targets": ("all-linear",), "lora_dropout": 0.05, "quantization": "nf4", "double_quant": True,
        "precision": "bf16",
    }  # fmt: skip
    assert not made.unmodelled
    run = asked(made, model="llama-3-8b")
    assert run.recipe.quantization is not None
    assert run.recipe.adapter is not None
    assert run.recipe.adapter.targets == ("all-linear",)


def test_defaults_and_their_sources() -> None:
    made = read("base_model: a/b\ndatasets: [{path: x}]\nval_set_size: 0\n")
    got = values(made)
    assert (got["micro_batch"], got["grad_accum"], got["seq_len"], got["packing"]) == (1, 1, 512, False)
    assert (got["recompute"], got["attention"], got["optimizer"], got["precision"]) == ("none", "sdpa", "adamw", "bf16-true")
    assert all("default of" in str(made.settings[name].origin) for name in ("micro_batch", "seq_len", "optimizer", "precision"))
    assert doubts(made) == {"attn_implementation": "more-memory"}
    assert any("max_sample_len" in note for note in made.notes)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("bf16: false\nfp16: true\n", "fp16-true"),
        ("bf16: false\n", "fp32"),
        ("bf16:\n", "fp32"),
        ("bf16: full\n", "bf16-true"),
        ("bf16: auto\nfp16: true\n", "fp16-true"),
        ("bf16: false\nbfloat16: true\n", "bf16-true"),
        ("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n", "bf16-true"),
        ("fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_offload_params: false\n", "bf16"),
        ("fp8: true\nfsdp_config:\n  fsdp_version: 2\n", "fp8"),
    ],
)
def test_precision_follows_what_is_loaded(lines: str, wanted: str) -> None:
    made = read(FULL.replace("bf16: auto\n", lines if "bf16" in lines else f"bf16: auto\n{lines}"))
    assert values(made)["precision"] == wanted


def test_fsdp_by_either_spelling() -> None:
    plain = "fsdp_version: 2\nfsdp_config:\n  offload_params: true\n  state_dict_type: FULL_STATE_DICT\n"
    prefixed = "fsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
    for lines in (plain, prefixed):
        made = read(QLORA + lines)
        got = values(made)
        assert (got["framework"], got["zero"], got["offload"], got["param_dtype"]) == ("fsdp2", 3, ("params",), "bf16")
        assert not made.unknown
    old = read(QLORA + "fsdp_config:\n  offload_params: false\n")
    assert values(old)["framework"] == "fsdp1"
    assert "FSDP1" in old.settings["framework"].origin.why


def test_recomputation_asked_for_twice_is_read_once() -> None:
    made = read(FULL + "fsdp_version: 2\nfsdp_config:\n  activation_checkpointing: true\n")
    assert values(made)["recompute"] == "full"
    assert made.settings["recompute"].said.startswith("fsdp_config.activation_checkpointing")
    assert any("transformers stops" in note for note in made.notes)


def test_deepspeed_file_beside_it() -> None:
    made = read(FULL + "deepspeed: zero.json\n", zero=ZERO)
    got = values(made)
    assert (got["framework"], got["zero"], got["precision"], got["reduce_bucket"]) == ("deepspeed", 2, "bf16", "auto")
    assert not made.needs
    assert not made.unknown
    assert str(made.settings["zero"].origin) == "zero.json:1"
    asked(made, model="llama-3-8b", gpus="8")


def test_deepspeed_file_that_is_not_here() -> None:
    made = read(FULL + "deepspeed: deepspeed_configs/zero3.json\n")
    assert "zero" in made.needs
    assert doubts(made)["deepspeed"] == "both"


def test_activation_offloading_with_and_without_adapters() -> None:
    assert values(read(FULL + "activation_offloading: true\n"))["offload"] == ("activations",)
    assert values(read(FULL + "activation_offloading: true\n"))["recompute"] == "full"
    tuned = values(read(QLORA + "activation_offloading: true\n"))
    assert (tuned["recompute"], tuned["offload"]) == ("none", ("activations",))
    hidden = values(read(QLORA + "activation_offloading: hidden_states\n"))
    assert (hidden["recompute"], hidden["offload"]) == ("full", ("activations",))
    old = values(read(QLORA.replace("gradient_checkpointing: true", "gradient_checkpointing: unsloth")))
    assert (old["recompute"], old["offload"]) == ("full", ("activations",))
    sharded = read(FULL + "activation_offloading: true\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n")
    assert "offload" not in values(sharded)
    assert doubts(sharded)["activation_offloading"] == "both"


def test_losses_of_plugins() -> None:
    liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\nliger_fused_linear_cross_entropy: true\n"
    cut = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
    assert values(read(FULL + liger + "liger_rms_norm: true\nliger_glu_activation: true\n"))["loss"] == "fused"
    assert values(read(FULL + liger))["loss"] == "chunked-head"
    assert values(read(FULL + cut))["loss"] == "chunked-head"
    assert "loss" not in values(read(FULL + cut + "cut_cross_entropy: false\n"))
    idle = read(FULL + "liger_fused_linear_cross_entropy: true\n")
    assert "loss" not in values(idle)
    assert any("LigerPlugin" in note for note in idle.notes)
    assert doubts(read(FULL + "plugins: [my.own.Plugin]\n"))["plugins"] == "unknown"


def test_lora_kernels_are_on_by_default() -> None:
    assert doubts(read(QLORA.replace("lora_mlp_kernel: false\n", "")))["lora_mlp_kernel"] == "less"
    assert "lora_mlp_kernel" not in doubts(read(QLORA.replace("lora_mlp_kernel: false", "trust_remote_code: true")))
    assert doubts(read(QLORA.replace("lora_mlp_kernel: false", "lora_qkv_kernel: true")))["lora_qkv_kernel"] == "less"


def test_groups_of_ranks() -> None:
    lines = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    lines += "dp_replicate_size: 2\ndp_shard_size: 4\ntensor_parallel_size: 2\n"
    made = read(FULL + lines)
    got = values(made)
    assert (got["gpus"], got["tp"], got["hsdp_replicas"], got["sp"]) == (16, 2, 2, False)
    run = asked(made, model="llama-3-8b")
    assert (run.par.world, run.par.dp) == (16, 8)
    cut = read(FULL + "context_parallel_size: 2\n")
    assert doubts(cut)["context_parallel_size"] == "both"
    assert "context_parallel_size" not in doubts(read(FULL + "context_parallel_size: 1\n"))


def test_what_is_not_modelled_and_what_is_not_known() -> None:
    made = read(
        FULL
        + "unfrozen_parameters: [^lm_head]\ntiled_mlp: true\nrl: dpo\nwarp_drive: true\ntorch_compile: true\n".replace(
            "rl: dpo\n", ""
        )
    )
    assert doubts(made) == {"unfrozen_parameters": "less", "tiled_mlp": "both"}
    assert [one.key for one in made.unknown] == ["warp_drive"]
    assert values(made)["compile"] is True
    pairs = read(FULL.replace("sample_packing: true\n", "") + "rl: dpo\n")
    assert [one.effect for one in pairs.unmodelled] == ["more"]
    assert (values(pairs)["micro_batch"], values(read(FULL))["micro_batch"]) == (4, 2)
    assert doubts(read(FULL + "rl: grpo\ntrl:\n  num_generations: 8\n  beta: 0.1\n")) == {
        "rl": "both",
        "trl.num_generations": "both",
    }


def test_targets_from_a_pattern() -> None:
    pattern = r"lora_target_modules: 'model.layers.[\d]+.(mlp|self_attn).(up|down|q)_proj'"
    made = read(QLORA.replace("lora_target_linear: true", pattern))
    assert values(made)["lora_targets"] == ("up_proj", "down_proj", "q_proj")
    some = read(QLORA.replace("lora_target_linear: true", r"lora_target_modules: '.*\.layers\.(3|7)\.self_attn\.(q|k)_proj'"))
    assert values(some)["lora_targets"] == ("q_proj", "k_proj")
    assert doubts(some)["lora_target_modules"] == "less-memory"
    hard = read(QLORA.replace("lora_target_linear: true", r"lora_target_modules: '(?!model).*proj'"))
    assert values(hard)["lora_targets"] == ("all-linear",)
    assert doubts(hard)["lora_target_modules"] == "memory"


@pytest.mark.parametrize(
    "pattern", ["(" * 40, "a{3", "[", "(a|b" * 5, "(" + "|".join("abcdefgh") + ")" * 1 * 8, "a" * 5000, "(?i)x", "(a|b)*"]
)
def test_patterns_that_are_not_simple(pattern: str) -> None:
    assert spelled_out(pattern) is None


def test_bounded_patterns() -> None:
    assert spelled_out("(a|b)" * 20) is None
    assert spelled_out(r"mlp\.fc[12]") == ["mlp.fc1", "mlp.fc2"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("micro_batch_size: 2", "micro_batch_size: two", 6, "whole number"),
        ("micro_batch_size: 2", "micro_batch_size: 2\nbatch_size: 8", 7, "cannot be beside gradient_accumulation_steps"),
        ("optimizer: adamw_torch_fused", "optimizer: adamw_bnb_9bit", 11, "is not known here"),
        ("attn_implementation: flash_attention_2", "attn_implementation: flash", 10, "is no attention"),
        ("attn_implementation: flash_attention_2", "attn_implementation: sdpa\nflash_attention: true", 10, "cannot be beside"),
        ("gradient_checkpointing: true", "activation_offloading: true", 14, "needs gradient_checkpointing"),
        ("gradient_checkpointing: true", "gradient_checkpointing: true\nactivation_offloading: moon", 15, "is no way"),
        ("bf16: auto", "bf16: maybe", 13, "true or false"),
        ("bf16: auto", "deepspeed: {}\nfsdp: [full_shard]\ndeepspeed: a.json", 15, "cannot be beside"),
        ("bf16: auto", "adapter: qlora", 13, "needs load_in_4bit"),
    ],
)
def test_values_that_cannot_be_used(old: str, new: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(FULL.replace(old, new))
    assert str(caught.value.where) == f"run.yml:{line}"


def test_a_cloud_file_is_no_run() -> None:
    with pytest.raises(ConfigError, match="no training run"):
        read("provider: somewhere\ngpu: h100\ngpu_count: 8\nsecrets: [TOKEN]\nvolumes: []\n")


@pytest.mark.parametrize(
    "text",
    [
        "base_model: [1]\ndatasets: x\nadapter: {a: 1}\n",
        "base_model: a\nadapter: lora\nlora_r: 1\nlora_target_modules: {a: 1}\n",
        "base_model: a\nsequence_len: 1\nadapter: x\nfsdp_config: 3\n",
        "base_model: a\nlora_r: 8\nplugins: {a: 1}\nadapter:\n",
        "base_model: a\nsequence_len: [1]\nval_set_size: 1\n",
    ],
)
def test_garbage_is_one_clear_error(text: str) -> None:
    with pytest.raises(ForetellError, match=r"run\.yml:\d"):
        read(text)


def test_no_key_is_in_two_tables() -> None:
    assert not NEUTRAL & UNMODELLED.keys()


# -- commands -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text(FULL)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_command_with_options_and_a_launcher() -> None:
    line = "axolotl train run.yml --micro-batch-size 4 --no-sample-packing --launcher torchrun -- --nproc_per_node=8 --nnodes=2"
    made = read_texts([(COMMAND, line)])
    got = values(made)
    assert (got["micro_batch"], got["packing"], got["gpus"], got["gpus_per_node"]) == (4, False, 16, 8)
    assert str(made.settings["micro_batch"].origin) == f"{COMMAND}:1"
    assert not made.unknown


@pytest.mark.usefixtures("here")
def test_module_under_a_launcher() -> None:
    line = "PYTORCH_CUDA_ALLOC_CONF=backend:native torchrun --nproc_per_node 4 -m axolotl.cli.train run.yml --sequence-len=8192"
    made = read_texts([(COMMAND, line)])
    got = values(made)
    assert (got["seq_len"], got["gpus"]) == (8192, 4)
    assert "expandable_segments" not in got


def test_server_of_a_run(here: Path) -> None:
    (here / "run.yml").write_text(FULL + "vllm:\n  gpu_memory_utilization: 0.8\n  tensor_parallel_size: 2\n")
    made = read_texts([(COMMAND, "axolotl vllm-serve run.yml --max-model-len 4096")])
    assert made.verb == "serve"
    assert values(made) == {"engine": "vllm", "tp": 2, "gpu_memory_utilization": 0.8, "max_model_len": 4096}
    assert not made.unknown


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "line", ["axolotl preprocess run.yml", "axolotl merge-lora run.yml", "axolotl", "axolotl train", "axolotl train gone.yml"]
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
        {"optimizer": "paged-adamw8bit"},
        {"loss": "fused"},
        {"loss": "chunked-head"},
        {"attention": "sdpa"},
        {"compile": True},
        {"offload": "activations"},
        {"packing": False},
    ],
)
def test_options_of_a_full_fine_tuning(options: dict[str, str | bool]) -> None:
    round_trip([("run.yml", FULL)], options, model="llama-3-8b")


@pytest.mark.parametrize(
    "options",
    [
        {"lora_rank": "8"},
        {"lora_targets": "q_proj,v_proj"},
        {"offload": "activations"},
        {"micro_batch": "4"},
        {"attention": "eager"},
        {"optimizer": "adamw8bit"},
    ],
)
def test_options_of_adapters(options: dict[str, str | bool]) -> None:
    round_trip([("run.yml", QLORA)], options, model="llama-3-8b")


def test_a_plugin_is_added_to_those_there() -> None:
    text = FULL + "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\nseed: 1\n"
    made = round_trip([("run.yml", text)], {"loss": "fused"}, model="llama-3-8b")
    assert "LigerPlugin" in made.texts["run.yml"]
    assert "seed: 1" in made.texts["run.yml"]


def test_a_quantised_base_is_written() -> None:
    text = QLORA.replace("adapter: qlora", "adapter: lora").replace("load_in_4bit: true", "load_in_4bit: false")
    round_trip([("run.yml", text)], {"quantization": "nf4"}, model="llama-3-8b")
    round_trip([("run.yml", text)], {"quantization": "int8"}, model="llama-3-8b")


def test_options_of_sharded_runs() -> None:
    speed = [("run.yml", FULL + "deepspeed: zero.json\n"), ("zero.json", ZERO)]
    round_trip(speed, {"zero": "3"}, model="llama-3-8b", gpus="8")
    round_trip(speed, {"micro_batch": "1"}, model="llama-3-8b", gpus="8")
    sharded = FULL + "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
    made = round_trip([("run.yml", sharded)], {"offload": "params"}, model="llama-3-8b", gpus="8")
    assert "fsdp_offload_params: true" in made.texts["run.yml"]
    round_trip([("run.yml", sharded)], {"zero": "2"}, model="llama-3-8b", gpus="8")
    spelled = read(sharded).spell("optimizer", "adamw8bit")  # bitsandbytes' own does not run with FSDP2
    assert [(one.key, one.value) for one in spelled] == [("optimizer", "adamw_torch_8bit")]


def test_what_the_file_cannot_say() -> None:
    made = read(FULL)
    for name, value in (
        ("pp", "2"),
        ("zero", "3"),
        ("lora_rank", "8"),
        ("recompute", "selective"),
        ("tp", "2"),
        ("attention", "te"),
    ):
        assert made.spell(name, value) is None


def test_pairs_are_two_sequences_and_written_as_half() -> None:
    text = FULL.replace("sample_packing: true\n", "")
    for kind, micro in (("dpo", 4), ("orpo", 4), ("simpo", 4), ("kto", 2)):
        assert values(read(text + f"rl: {kind}\n"))["micro_batch"] == micro
    assert values(read(text + "reward_model: true\n"))["micro_batch"] == 4
    made = round_trip([("run.yml", text + "rl: orpo\n")], {"micro_batch": "2", "grad_accum": "8"}, model="llama-3-8b")
    assert "micro_batch_size: 1" in made.texts["run.yml"]
    assert read(text + "rl: orpo\n").spell("micro_batch", "1") is None


@pytest.mark.parametrize(("gpu", "emulated"), [("t4", True), ("v100", True), ("h100", False), ("mi300x", False)])
def test_bf16_auto_is_emulated_where_a_gpu_has_none(gpu: str, emulated: bool) -> None:
    for text in (FULL, FULL.replace("bf16: auto\n", "")):
        made = read_texts([("run.yml", text)], given={"gpu": gpu})
        assert values(made)["precision"] == "bf16-true"
        assert ("bf16" in doubts(made)) is emulated
        assert "fp16" not in made.settings["precision"].origin.why
    assert "bf16" not in doubts(read_texts([("run.yml", FULL.replace("bf16: auto", "fp16: true"))], given={"gpu": gpu}))


@pytest.mark.parametrize(("words", "asks"), [("--nproc-per-node gpu", True), ("--nproc-per-node 4", False), ("--nnodes 2", True)])
def test_several_gpus_that_nobody_counts_are_asked_for(
    words: str, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text(FULL)
    made = read_texts([(COMMAND, f"axolotl train run.yml --launcher torchrun -- {words}")])
    assert ("gpus" in made.needs) is asks


def test_a_deepspeed_file_that_is_named_and_given_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zero = json.loads(ZERO) | {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    (tmp_path / "zero.json").write_text(json.dumps(zero))
    text = FULL + "deepspeed: zero.json\n"
    made = read_texts([("run.yml", text), (str(tmp_path / "zero.json"), json.dumps(zero))])
    assert values(made)["gpus"] == 8
    assert not made.unknown
