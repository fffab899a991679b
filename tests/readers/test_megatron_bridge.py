"""Megatron-Bridge's and NeMo's nested configurations: dumps, recipes by class, Hydra files and commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, rewritten, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers._document import parse_document
from foretell.readers.bridge._classes import CLASSES
from foretell.readers.bridge.reader import FAMILY
from foretell.readers.read import COMMAND, read_texts

BRIDGE = """\
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: 128
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  hidden_dropout: 0.0
  attention_dropout: 0.0
  seq_length: 8192
  vocab_size: 128256
  should_pad_vocab: false
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: true
  recompute_granularity: null
  cross_entropy_loss_fusion: true
  cross_entropy_fusion_impl: te
  params_dtype: {_call_: false, _target_: torch.bfloat16}
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _call_: true, _args_: [1], _name_: flash}
  apply_rope_fusion: true
  bias_activation_fusion: true
  gradient_accumulation_fusion: true
  moe_hybridep_num_sms_preprocessing: 108
  overlap_moe_expert_parallel_comm: false
train:
  micro_batch_size: 1
  global_batch_size: 512
  train_iters: 1000
optimizer:
  optimizer: adam
  lr: 0.0003
  use_distributed_optimizer: true
ddp:
  use_distributed_optimizer: true
  grad_reduce_in_fp32: true
  overlap_grad_reduce: true
  gradient_reduce_div_fusion: true
comm_overlap:
  _target_: megatron.bridge.training.comm_overlap.CommOverlapConfig
  tp_comm_overlap: true
mixed_precision: bf16_mixed
dataset:
  seq_length: 8192
  num_workers: 8
logger: {log_interval: 10}
peft: null
"""
NEMO_2 = """\
trainer:
  devices: 8
  num_nodes: 2
  max_steps: 100
  strategy:
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 1
    sequence_parallel: true
  plugins:
    precision: bf16-mixed
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B
data:
  micro_batch_size: 1
  global_batch_size: 128
  seq_length: 8192
optim:
  config:
    optimizer: adam
    use_distributed_optimizer: true
"""
NEMO_1 = """\
name: megatron_gpt
trainer:
  devices: 4
  num_nodes: 1
  precision: bf16
exp_manager:
  name: ${name}
model:
  mcore_gpt: true
  micro_batch_size: 4
  global_batch_size: 16
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 1024
  ffn_hidden_size: 2816
  num_attention_heads: 16
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  hidden_dropout: 0.0
  attention_dropout: 0.0
  ffn_dropout: 0.0
  megatron_amp_O2: true
  transformer_engine: true
  activations_checkpoint_granularity: null
  activations_checkpoint_method: null
  activations_checkpoint_num_layers: null
  tokenizer:
    library: huggingface
    type: meta-llama/Meta-Llama-3-8B
  data:
    data_prefix: ???
    seq_length: ${model.encoder_seq_length}
  optim:
    name: distributed_fused_adam
    lr: 2e-4
    sched: {name: CosineAnnealing}
"""


def read(text: str, path: str = "run.yaml", **more: Any) -> Any:
    """Read one text."""
    return read_texts([(path, text)], family="megatron_bridge", **more)


def values(reading: Any) -> dict[str, Any]:
    """The settings as plain values."""
    return {name: setting.value for name, setting in reading.settings.items()}


def test_claims() -> None:
    """Each dialect is claimed; Megatron-LM's own tests and other files are not."""
    for text in (BRIDGE, NEMO_2, NEMO_1, "MODEL_ARGS:\n  trainer.devices: 8\n"):
        assert FAMILY.claims(parse_document(text, "a.yaml")) >= 0.9
    for text in ("MODEL_ARGS:\n  --num-layers: 8\n", "model: x\nlr: 1\n", "a: 1\n", "- 1\n"):
        assert FAMILY.claims(parse_document(text, "a.yaml")) == 0.0
    partial = "model: {seq_length: 4096}\ntrain: {micro_batch_size: 1}\noptimizer: {lr: 1}\nscheduler: {}\ndist: {}\nddp: {}\n"
    assert FAMILY.claims(parse_document(partial, "a.yaml")) > 0.5


def test_dump_of_bridge() -> None:
    """A whole configuration: the model, the run, nothing left over."""
    reading = read(BRIDGE)
    found = values(reading)
    assert (found["tp"], found["cp"], found["sp"], found["zero"]) == (2, 2, True, 1)
    assert (found["framework"], found["loss"], found["attention"]) == ("megatron-bridge", "te-fused", "flash")
    assert found["tp_overlap"] is True
    assert found["precision"] == "bf16"
    assert found["seq_len"] == 8192
    assert reading.settings["micro_batch"].origin.line == 37
    assert load_model(reading.model).architecture.parameters == load_model("llama-3-8b").architecture.parameters
    assert reading.doubts == ()
    assert any("--gpus says it" in note for note in reading.notes)
    assert asked(reading, gpus="32").par.dp == 8


def test_native_loss_is_megatron_cores() -> None:
    """The profile of Bridge fuses the loss with Transformer Engine; its native fusion is Megatron-Core's."""
    found = values(read(BRIDGE.replace("impl: te", "impl: native")))
    assert (found["framework"], found["loss"]) == ("megatron-core", "fused")


def test_defaults_that_a_dump_writes_are_nothing() -> None:
    """Values that are the class's own say nothing; those that differ do, false ones too."""
    text = BRIDGE.replace("preprocessing: 108", "preprocessing: 64").replace("parallel_comm: false", "parallel_comm: true")
    text = text.replace("gradient_reduce_div_fusion: true", "gradient_reduce_div_fusion: false")
    text = text.replace("apply_rope_fusion: true", "apply_rope_fusion: false")
    assert {row.key.rpartition(".")[2] for row in read(text).doubts} == {
        "moe_hybridep_num_sms_preprocessing",
        "overlap_moe_expert_parallel_comm",
        "gradient_reduce_div_fusion",
        "apply_rope_fusion",
    }


def test_unknown_and_neutral() -> None:
    """A field of no table is named; logging and schedules are neutral."""
    reading = read(BRIDGE + "scheduler: {lr_warmup_iters: 5}\nmystery: 3\n")
    assert [row.key for row in reading.unknown] == ["mystery"]
    assert {"logger.log_interval", "scheduler.lr_warmup_iters", "model.params_dtype._target_"} <= {
        row.key for row in reading.neutral
    }


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bf16_mixed", "bf16_with_mxfp8_mixed", {"precision": "mxfp8"}),
        ("bf16_mixed", "bf16_with_fp8_current_scaling_mixed", {"precision": "fp8", "fp8_recipe": "tensorwise"}),
        ("bf16_mixed", "fp16_mixed", {"precision": "fp16", "grad_dtype": "fp16"}),
        ("bf16_mixed", "bf16_with_nvfp4_mixed", {"precision": "nvfp4"}),
        ("mixed_precision: bf16_mixed", "mixed_precision: {bf16: true, grad_reduce_in_fp32: false}", {"grad_dtype": "bf16"}),
        ("recompute_granularity: null", "recompute_granularity: full\n  recompute_method: uniform\n  recompute_num_layers: 1",
         {"recompute": "full"}),
        ("recompute_granularity: null", "recompute_granularity: selective\n  recompute_modules: [mlp, layernorm]",
         {"recompute": "selective", "recompute_modules": ("mlp", "layernorm")}),
        ("  gradient_accumulation_fusion: true", "  gradient_accumulation_fusion: false", {"grad_accum_fusion": False}),
        ("peft: null", "peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 16, target_modules: [linear_proj, linear_fc2]}",
         {"lora_rank": 16, "lora_kind": "lora", "lora_targets": ("o_proj", "down_proj")}),
        ("peft: null", "peft: {_target_: megatron.bridge.peft.dora.DoRA}",
         {"lora_rank": 32, "lora_kind": "dora", "lora_targets": ("all-linear",)}),
        ("  pipeline_model_parallel_size: 1", ("  pipeline_model_parallel_size: 2\n  pipeline_model_parallel_layout: "
         "[[embedding, decoder, decoder], [decoder, loss]]"), {"pp": 2, "pp_layout": "Et*2|tL"}),
        ("  use_distributed_optimizer: true\n  grad_reduce", ("  use_megatron_fsdp: true\n  data_parallel_sharding_strategy: "
         "optim_grads_params\n  grad_reduce"), {"sharding": "megatron-fsdp", "zero": 3}),
    ],
)  # fmt: skip
def test_settings(old: str, new: str, expected: dict[str, Any]) -> None:
    """One section after the other."""
    assert old in BRIDGE
    found = values(read(BRIDGE.replace(old, new)))
    assert {name: found.get(name) for name in expected} == {
        name: ("Et*2|t*1L" if value == "Et*2|tL" else value) for name, value in expected.items()
    }


def test_experts_of_a_dump() -> None:
    """A list for each layer, latent attention, padding of the vocabulary."""
    text = BRIDGE.replace("  num_layers: 32\n", "  num_layers: 3\n  num_moe_experts: 8\n  moe_layer_freq: [0, 1, 1]\n"
                          "  moe_ffn_hidden_size: 512\n  moe_router_topk: 2\n  moe_grouped_gemm: true\n")  # fmt: skip
    text = text.replace("should_pad_vocab: false", "should_pad_vocab: true").replace("vocab_size: 128256", "vocab_size: 128250")
    model = read(text).model
    assert model["mlp_layer_types"] == ["dense", "sparse", "sparse"]
    assert model["vocab_size"] == 128256
    with pytest.raises(ConfigError, match="gives 2 layers a number"):
        read(text.replace("[0, 1, 1]", "[0, 1]"))


def test_recipe_without_a_model() -> None:
    """An override file leaves the model, and more, to the recipe."""
    reading = read(
        "model: {seq_length: 4096}\ntrain: {global_batch_size: 8, micro_batch_size: 1}\noptimizer: {}\nddp: {}\ndist: {}\n"
    )
    assert "model" in reading.needs
    assert "micro_batch" not in reading.needs
    found = values(reading)
    assert (found["precision"], found["zero"], found["dropout"], reading.unknown) == ("bf16", 1, 0.0, ())
    towers = read(BRIDGE.replace("gpt_provider.GPTModelProvider", "qwen_vl.Qwen3VLModelProvider"))
    assert "Qwen3VLModelProvider" in towers.needs["model"]


def test_nemo_2_names_models_by_class() -> None:
    """The class has the model's shape; another number of layers changes it."""
    reading = read(NEMO_2)
    found = values(reading)
    assert reading.model == "llama-3-8b"
    assert (found["gpus"], found["gpus_per_node"], found["loss"], found["dropout"]) == (16, 8, "fused", 0.0)
    assert asked(reading).par.dp == 8
    short = read(NEMO_2.replace("Llama3Config8B", "Llama3Config8B\n    num_layers: 2"))
    assert load_model(short.model).architecture.layers == 2
    assert reading.unknown == ()


PROVIDER = """\
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider70B
  seq_length: 4096
  tensor_model_parallel_size: 4
train: {micro_batch_size: 1, global_batch_size: 8}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
"""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Llama31ModelProvider70B", "llama-3.1-70b"),
        ("Llama2ModelProvider7B", "llama-2-7b"),
        ("Qwen25ModelProvider7B", "qwen2.5-7b"),
        ("Qwen3MoEModelProvider30B_A3B", "qwen3-30b-a3b"),
        ("DeepSeekV3ModelProvider", "deepseek-v3"),
        ("DeepSeekV2LiteProvider", "deepseek-v2-lite"),
        ("Gemma2ModelProvider9B", "gemma-2-9b"),
        ("GPTOSSProvider20B", "gpt-oss-20b"),
        ("MistralModelProvider", "mistral-7b-v0.3"),
        ("NemotronNano9Bv2Provider", "nemotron-nano-9b-v2"),
    ],
)
def test_bridge_names_models_by_class(name: str, model: str) -> None:
    """Providers of named models have the model's shape, and no dropout."""
    reading = read(PROVIDER.replace("Llama31ModelProvider70B", name))
    assert (reading.model, values(reading)["dropout"]) == (model, 0.0)
    assert (reading.needs, reading.unknown, reading.doubts) == ({}, (), ())
    assert reading.model_origin.line == 2


def test_every_class_has_a_model() -> None:
    """All names of the table are the catalog's."""
    for name, model in CLASSES.items():
        reading = read(PROVIDER.replace("Llama31ModelProvider70B", name.replace("config", "provider")))
        assert reading.needs == {}, name
        assert load_model(reading.model).parameters > 0, model


def test_sizes_beside_a_class() -> None:
    """Sizes stand above those of the class; what only the class can say is named; text models of larger ones are taken alone."""
    other = read(
        PROVIDER.replace("  seq_length", "  num_layers: 4\n  hidden_size: 1024\n  normalization: LayerNorm\n  seq_length")
    )
    assert load_model(other.model).architecture.layers == 4
    assert other.model["hidden_size"] == 1024
    assert [row.key for row in other.doubts] == ["model.normalization"]
    text = read(PROVIDER.replace("Llama31ModelProvider70B", "Gemma3ModelProvider4B"))
    assert text.model["model_type"] == "gemma3_text"
    ahead = read(PROVIDER.replace("  seq_length", "  mtp_num_layers: 1\n  seq_length"))
    assert "left out" in ahead.unmodelled[0].why
    deep = read(PROVIDER.replace("Llama31ModelProvider70B", "DeepSeekV3ModelProvider\n  mtp_num_layers: 1"))
    assert values(deep)["mtp_layers"] == 1
    mamba = read(PROVIDER.replace("Llama31ModelProvider70B", "NemotronNano9Bv2Provider\n  num_layers: 4"))
    assert [row.key for row in mamba.doubts] == ["model.num_layers"]


def test_class_that_is_not_known() -> None:
    """It is named, and the user says the model; then nothing of other models is told."""
    text = PROVIDER.replace("Llama31ModelProvider70B", "MyProvider")
    assert read(text).needs["model"].startswith("run.yaml:2: MyProvider ")
    given = read(text, given={"model": "llama-3.1-70b"})
    assert values(given)["dropout"] == 0.0
    assert not any("token table" in note for note in given.notes)


def test_dropout_and_vocabulary_that_nothing_says() -> None:
    """Megatron-Core's own configurations drop 0.1; recipes and providers of models do not.  A vocabulary is not guessed."""
    bare = BRIDGE.replace("  hidden_dropout: 0.0\n  attention_dropout: 0.0\n", "")
    assert values(read(bare))["dropout"] == 0.1
    assert values(read(bare.replace("gpt_provider.GPTModelProvider", "x.MyProvider")))["dropout"] == 0.0
    half = values(
        read(bare.replace("x: 1", "").replace("gpt_provider.GPT", "x.My").replace("  seq_", "  hidden_dropout: 0.0\n  seq_", 1))
    )
    assert half["dropout"] == 0.0
    assert values(read(NEMO_1.replace("  hidden_dropout: 0.0\n  attention_dropout: 0.0\n", "")))["dropout"] == 0.1
    unsaid = read(BRIDGE.replace("  vocab_size: 128256\n", ""))
    assert unsaid.model is None
    assert "write model.vocab_size" in unsaid.needs["model"]


def test_tests_of_nemo() -> None:
    """Dotted arguments of a test's YAML, also with Hydra's plus."""
    text = (
        "ENV_VARS:\n  NVTE_APPLY_QK_LAYER_SCALING: 1\nMODEL_ARGS:\n  trainer.devices: 8\n  trainer.num_nodes: 1\n"
        "  trainer.strategy.tensor_model_parallel_size: 2\n  model.config.num_layers: 4\n  model.config.hidden_size: 256\n"
        "  model.config.num_attention_heads: 4\n  ++model.config.num_moe_experts: 4\n  data.micro_batch_size: 1\n"
        "  data.global_batch_size: 8\n  data.seq_length: 512\n"
        "  model.virtual_pipeline_model_parallel_size: 'null'\nTEST_TYPE: x\n"
    )
    reading = read(text)
    assert values(reading)["gpus"] == 8
    assert reading.model["num_experts"] == 4
    assert reading.unknown == ()
    assert any("recipe" in row.why for row in reading.unmodelled)
    made = rewritten([("run.yaml", text)], {"micro_batch": "2"}, "megatron_bridge")
    assert values(made.reading)["micro_batch"] == 2


def test_nemo_1() -> None:
    """Names of its own, references to other fields, a Hugging Face tokenizer."""
    reading = read(NEMO_1)
    found = values(reading)
    assert (found["seq_len"], found["gpus"], found["zero"], found["precision"]) == (2048, 4, 1, "bf16")
    assert reading.model["gated_mlp"] is True
    assert reading.model["norm"] == "rmsnorm"
    assert reading.model["vocab_size"] == 128256
    assert reading.model["max_position_embeddings"] == 2048
    assert reading.unknown == ()
    plain = values(read(NEMO_1.replace("megatron_amp_O2: true", "megatron_amp_O2: false")))
    assert (plain["param_dtype"], plain["master_dtype"]) == ("fp32", "none")


def test_adapters_of_nemo_1() -> None:
    """LoRA by scheme; other schemes are named."""
    lora = "  peft:\n    peft_scheme: lora\n    lora_tuning: {adapter_dim: 8, target_modules: [attention_qkv]}\n"
    found = values(read(NEMO_1 + lora))
    assert (found["lora_rank"], found["lora_targets"]) == (8, ("q_proj", "k_proj", "v_proj"))
    other = read(NEMO_1 + "  peft:\n    peft_scheme: ptuning\n")
    assert [row.key for row in other.unmodelled if "peft" in row.key] == ["model.peft.peft_scheme"]


def test_command_above_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's pairs stand above the file that the command names."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "gpt.yaml").write_text(NEMO_1)
    monkeypatch.chdir(tmp_path)
    command = "torchrun --nproc_per_node=8 megatron_gpt_pretraining.py --config-path=conf --config-name=gpt "
    reading = read(command + "trainer.devices=8 model.micro_batch_size=2 +model.seed=1", COMMAND)
    found = values(reading)
    assert (found["gpus"], found["micro_batch"], found["tp"]) == (8, 2, 2)
    assert reading.settings["tp"].origin.path.endswith("gpt.yaml")
    assert reading.settings["micro_batch"].origin.path == COMMAND
    assert reading.unknown == ()


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (BRIDGE, "torch.nn.functional.silu", "my.function", "activation function"),
        (BRIDGE, "micro_batch_size: 1", "micro_batch_size: one", "must be a whole number"),
        (NEMO_1, "fast-swiglu", "mystery", "is not known here"),
        (NEMO_1, "distributed_fused_adam", "adafactor", "is not known here"),
    ],
)
def test_bad_values(text: str, old: str, new: str, message: str) -> None:
    """One clear error, with the line."""
    with pytest.raises(ConfigError, match=message) as found:
        read(text.replace(old, new))
    assert "run.yaml:" in str(found.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bridge", {"micro_batch": "2"}), ("bridge", {"tp": "4"}), ("bridge", {"zero": "0"}), ("bridge", {"recompute": "full"}),
        ("bridge", {"recompute": "selective", "recompute_scope": "modules", "recompute_modules": "core_attn,mlp"}),
        ("bridge", {"sp": False}), ("bridge", {"seq_len": "4096"}), ("bridge", {"pp": "2", "vpp": "2"}),
        ("bridge", {"micro_batch": "2", "grad_accum": "32"}), ("nemo2", {"micro_batch": "2"}), ("nemo2", {"tp": "4"}),
        ("nemo2", {"recompute": "full"}), ("nemo2", {"zero": "0"}), ("nemo1", {"micro_batch": "2"}),
        ("nemo1", {"recompute": "selective"}), ("nemo1", {"recompute": "full"}),
    ],
    ids=str,
)  # fmt: skip
def test_round_trips(name: str, options: dict[str, str | bool]) -> None:
    """An edit, applied and read again, is the run with the option; positions of a dump are as long as its samples."""
    text = {"bridge": BRIDGE, "nemo2": NEMO_2, "nemo1": NEMO_1}[name]
    texts = [("run.yaml", text)]
    if "seq_len" in options:
        made = rewritten(texts, options, "megatron_bridge")
        assert [edit.new for edit in made.edits] == [("  seq_length: 4096",)] * 2
        return
    round_trip(texts, options, "megatron_bridge", **({"gpus": "32"} if name == "bridge" else {}))
