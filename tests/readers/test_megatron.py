"""Megatron-LM's arguments: a script, a command, a test's YAML; what they say, what not, and edits that read back."""

from __future__ import annotations

from typing import Any

import pytest

from check_support import asked, rewritten, round_trip
from foretell.arch import load_model
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts

YAML = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  NCCL_ALGO: Ring
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
TEST_TYPE: regular
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-file: ${DATA_PATH}/vocab.json
  --merge-file: ${DATA_PATH}/merges.txt
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 1
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --bf16: true
  --attention-backend: unfused
  --lr: 0.00015
  --deterministic-mode: true
"""
SCRIPT = """\
#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0
    --seq-length 4096 --max-position-embeddings 8192
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B
)
TRAIN=(
    --micro-batch-size 2 --global-batch-size 256 --bf16 --lr 1e-4 --train-iters 1000
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --no-create-attention-mask-in-dataloader
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} --save $1
"""


def read(text: str, path: str = "a.yaml") -> Any:
    """Read one text."""
    return read_texts([(path, text)], family="megatron")


def more(**arguments: object) -> Any:
    """Read the YAML with arguments changed, added or (None) left out."""
    lines = [line for line in YAML.splitlines() if line.partition(":")[0].strip(" -").replace("-", "_") not in arguments]
    lines += [f"  --{name.replace('_', '-')}: {value}" for name, value in arguments.items() if value is not None]
    return read("\n".join(lines) + "\n")


def values(reading: Any) -> dict[str, Any]:
    """The settings as plain values."""
    return {name: setting.value for name, setting in reading.settings.items()}


def doubts(reading: Any) -> set[str]:
    """Keys that make the answer uncertain, without dashes."""
    return {row.key.lstrip("-").replace("-", "_") for row in reading.doubts}


# -- what is understood ---------------------------------------------------------------------------------------------


def test_yaml_of_a_test() -> None:
    """Values with their lines, Megatron's defaults, and the runner's number of GPUs."""
    reading = read(YAML)
    found = values(reading)
    assert (found["tp"], found["sp"], found["zero"], found["precision"]) == (2, True, 1, "bf16")
    assert (found["micro_batch"], found["global_batch"], found["seq_len"], found["gpus"]) == (4, 32, 1024, 8)
    assert found["attention"] == "eager"
    assert found["expandable_segments"] is True
    assert found["dropout"] == 0.1
    assert str(reading.settings["tp"].origin) == "a.yaml:16"
    assert "core_v0.19" in str(reading.settings["pp"].origin) or reading.settings["pp"].origin.line == 17
    assert "_run_training.sh" in str(reading.settings["gpus"].origin)
    assert reading.unknown == ()
    assert {"deterministic_mode", "ENV_VARS.NCCL_ALGO"} <= doubts(reading)
    launch = asked(reading)
    assert launch.par.dp == 4
    assert launch.recipe.grad_accum == 2


def test_default_model_is_gpt2_with_padded_vocabulary() -> None:
    """Learned positions, LayerNorm, biases, tied embeddings, GPT-2's BPE padded to 128 x tp."""
    model = load_model(read(YAML).model).architecture
    assert model.model_type == "gpt2"
    assert model.vocab == 50432
    layer = 12 * 512 * 512 + 13 * 512
    assert model.parameters == 50432 * 512 + 1024 * 512 + 12 * layer + 2 * 512


def test_script_with_arrays() -> None:
    """A script's arrays and variables; the world is torchrun's; the model is Llama 3 8B with a padded vocabulary."""
    reading = read(SCRIPT, "train.sh")
    found = values(reading)
    assert (found["gpus"], found["gpus_per_node"], found["tp"], found["pp"]) == (16, 8, 4, 2)
    padding = 2 * (128512 - 128256) * 4096
    assert load_model(reading.model).architecture.parameters == load_model("llama-3-8b").architecture.parameters + padding
    assert reading.settings["micro_batch"].origin.line == 13
    assert found["attention"] == "te"
    assert reading.doubts == ()
    assert asked(reading).par.dp == 2


def test_command() -> None:
    """The same arguments as a command, equals signs and opaque words at the end."""
    text = (
        "torchrun --nproc-per-node=4 pretrain_gpt.py --num-layers=2 --hidden-size=64 --num-attention-heads=4 --bf16 "
        "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --lr 1e-4 $MORE"
    )
    reading = read(text, COMMAND)
    assert values(reading)["gpus"] == 4
    assert values(reading)["grad_accum"] == 1
    assert [row.key for row in reading.unknown] == ["(arguments)"]


def test_unknown_script_with_megatron_arguments_is_claimed() -> None:
    """Two of Megatron's arguments tell the family of any script; a claim needs a block or flat keys."""
    text = "torchrun my_train.py --tensor-model-parallel-size 2 --micro-batch-size 1 --num-layers 2"
    assert read_texts([(COMMAND, text)], family="megatron").family == "megatron"
    flat = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nmicro_batch_size: 1\ntensor_model_parallel_size: 1\n"
    reading = read_texts([("flat.yaml", flat + "seq_length: 64\nsomething_else: 3\n")], family="megatron")
    assert [row.key for row in reading.unknown] == ["something_else"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"recompute_activations": "true"}, {"recompute": "selective"}),
        (
            {"recompute_granularity": "selective", "recompute_modules": "[mlp layernorm]"},
            {"recompute_modules": ("mlp", "layernorm")},
        ),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, {"recompute": "full"}),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
            {"recompute": "full", "recompute_scope": "block", "recompute_layers": 3},
        ),
        ({"cross_entropy_loss_fusion": "true"}, {"loss": "fused"}),
        ({"cross_entropy_loss_fusion": "true", "cross_entropy_fusion_impl": "te"}, {"loss": "te-fused"}),
        ({"bf16": None, "fp16": "true"}, {"precision": "fp16", "grad_dtype": "fp16"}),
        ({"bf16": None}, {"precision": "fp32"}),
        ({"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}, {"precision": "fp8", "fp8_recipe": "tensorwise"}),
        ({"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}, {"precision": "mxfp8"}),
        ({"grad_reduce_in_bf16": "true"}, {"grad_dtype": "bf16"}),
        ({"use_distributed_optimizer": None}, {"zero": 0}),
        ({"use_megatron_fsdp": "true"}, {"sharding": "megatron-fsdp", "zero": 3}),
        ({"use_megatron_fsdp": "true", "data_parallel_sharding_strategy": "optim_grads"}, {"zero": 2}),
        ({"num_distributed_optimizer_instances": 2}, {"hsdp_replicas": 2}),
        ({"optimizer": "muon"}, {"optimizer": "muon"}),
        ({"optimizer_cpu_offload": "true", "use_precision_aware_optimizer": "true"}, {"offload": ("optimizer",)}),
        (
            {"use_precision_aware_optimizer": "true", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
            {"optim_dtype": "bf16"},
        ),
        ({"tp_comm_overlap": "true"}, {"tp_overlap": True}),
        ({"no_gradient_accumulation_fusion": "true"}, {"grad_accum_fusion": False}),
        ({"tensor_model_parallel_size": 1}, {"sp": False}),
        ({"attention_backend": "flash"}, {"attention": "flash"}),
        ({"attention_backend": None, "transformer_impl": "local"}, {"attention": "eager"}),
        ({"cuda_graph_impl": "local"}, {"cuda_graphs": "layer"}),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": "[attn mlp]"}, {"cuda_graphs": "partial"}),
        ({"cuda_graph_impl": "full_iteration"}, {"cuda_graphs": "full"}),
        ({"global_batch_size": None, "step_batch_size_schedule": '"0:8 1B:16 2B:64"'}, {"global_batch": 64}),
    ],
)
def test_settings(arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    """One argument after the other."""
    found = values(more(**arguments))
    assert {name: found.get(name) for name in expected} == expected


def test_gradients_unused_formats_are_ignored() -> None:
    """Formats of states count with the precision-aware optimizer only, bf16 gradients accumulate in fp32."""
    found = values(more(exp_avg_dtype="bf16"))
    assert "optim_dtype" not in found
    assert "grad_dtype" not in found


# -- the pipeline ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "vpp", "layout"),
    [
        ({"num_layers_per_virtual_pipeline_stage": 1}, 3, None),
        ({"num_virtual_stages_per_pipeline_rank": 3}, 3, None),
        ({"pipeline_model_parallel_layout": "Et*2|(tt|)*4ttL"}, None, None),
        ({"pipeline_model_parallel_layout": "Et*3|t*3|t*3|t*3L"}, None, "Et*3|t*3|t*3|t*3L"),
        ({"decoder_first_pipeline_num_layers": 2, "decoder_last_pipeline_num_layers": 2}, None, "Et*2|t*4|t*4|t*2L"),
        (
            {"num_layers": 14, "account_for_embedding_in_pipeline_split": "true", "account_for_loss_in_pipeline_split": "true"},
            None,
            "Et*3|t*4|t*4|t*3L",
        ),
    ],
)
def test_pipeline(arguments: dict[str, Any], vpp: int | None, layout: str | None) -> None:
    """Virtual stages and uneven stages as layers of each chunk; a layout must be shared evenly by the stages."""
    given = {"pipeline_model_parallel_size": 4, "tensor_model_parallel_size": 1} | arguments
    if layout is None and "pipeline_model_parallel_layout" in arguments:
        with pytest.raises(ConfigError, match="6 parts"):
            more(**given)
        return
    found = values(more(**given))
    assert found.get("vpp") == vpp
    assert found.get("pp_layout") == layout


def test_prediction_layers() -> None:
    """The letter m of a layout needs the layers that it places; they are the recipe's."""
    given: dict[str, Any] = {
        "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": "Et*6|t*6mL",
        "position_embedding_type": "rope",
    }
    with pytest.raises(ConfigError, match="prediction layers"):
        more(**given)
    reading = more(**given, mtp_num_layers=1)
    assert values(reading)["mtp_layers"] == 1
    assert values(reading)["pp_layout"] == "Et*6|t*6L"
    assert asked(reading).forecast().total_bytes > 0


# -- models ---------------------------------------------------------------------------------------------------------


def test_mixture_of_experts() -> None:
    """Latent attention, a dense first layer, a shared expert: DeepSeek-V2-Lite to the last parameter."""
    reading = more(
        num_layers=27, hidden_size=2048, num_attention_heads=16, ffn_hidden_size=10944, kv_channels=None,
        multi_latent_attention="true", kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128,
        num_experts=64, moe_layer_freq="([0]*1+[1]*26)", moe_ffn_hidden_size=1408, moe_router_topk=6,
        moe_shared_expert_intermediate_size=2816, normalization="RMSNorm", swiglu="true", disable_bias_linear="true",
        untie_embeddings_and_output_weights="true", position_embedding_type="rope", padded_vocab_size=102400,
        expert_model_parallel_size=8, expert_tensor_parallel_size=1, moe_token_dispatcher_type="alltoall",  # noqa: S106  # no password
        moe_grouped_gemm="true", tensor_model_parallel_size=1,
    )  # fmt: skip
    assert load_model(reading.model).architecture.parameters == load_model("deepseek-v2-lite").architecture.parameters
    assert values(reading)["dispatcher"] == "alltoall"
    assert values(reading)["etp"] == 1
    assert asked(reading).par.ep == 8


def test_layers_of_experts_at_intervals() -> None:
    """N: one layer of experts in each N; a pattern must be as long as the model."""
    model = load_model(more(num_experts=4, moe_layer_freq=3).model).architecture
    sparse = [model.main.blocks[i].name for i in model.main.pattern]
    assert sparse == (["moe", "dense", "dense"] * 4)
    with pytest.raises(ConfigError, match="gives 4 layers a number, and there are 12"):
        more(num_experts=4, moe_layer_freq="([0]*2+[1]*2)")
    with pytest.raises(ConfigError, match="pattern"):
        more(num_experts=4, moe_layer_freq="'__import__(1)[0]'")
    with pytest.raises(ConfigError, match="pattern"):
        more(num_experts=4, moe_layer_freq="'[1]*99999*99999*99999'")


def test_hybrid() -> None:
    """A stack of Mamba, attention and experts; bars are pipeline stages, a slash begins the prediction layers."""
    reading = more(
        hybrid_layer_pattern="'ME*E|MEME/*E'", num_layers=None, num_experts=4, moe_router_topk=2, squared_relu="true",
        normalization="RMSNorm", disable_bias_linear="true", pipeline_model_parallel_size=2, mamba_num_heads=16,
        mamba_head_dim=64, position_embedding_type="none",
    )  # fmt: skip
    assert reading.model["model_type"] == "megatron-hybrid"
    assert reading.model["hybrid_layer_pattern"] == "ME*EMEME"
    assert values(reading)["pp_layout"] == "Et*4|t*4L"
    assert values(reading)["mtp_layers"] == 1
    assert asked(reading).forecast().total_bytes > 0
    strange = more(hybrid_layer_pattern="MG*-", num_layers=None)
    assert "'G'" in strange.needs["model"]


def test_gated_delta_net_windows_and_sinks() -> None:
    """Other mixers than full attention."""
    given: dict[str, Any] = {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 3}
    model = more(**given).model
    assert model["layer_types"] == (["linear_attention", "linear_attention", "full_attention"] * 4)
    windows = more(window_size="127,0", window_attn_skip_freq=2, softmax_type="learnable").model
    assert windows["sliding_window"] == 128
    assert windows["layer_types"][:2] == ["sliding_attention", "full_attention"]
    assert windows["attention_sinks"] is True
    assert "experimental_attention_variant" in doubts(more(experimental_attention_variant="dsa"))


def test_bert_and_t5() -> None:
    """Models by their script or by what only they have."""
    words = "torchrun --nproc_per_node 8 pretrain_bert.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --fp16 "
    words += "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 4 --global-batch-size 32 --vocab-file v.txt"
    bert = read(words, COMMAND)
    assert bert.model["model_type"] == "bert"
    assert bert.model["vocab_size"] == 30592
    t5 = more(encoder_num_layers=12, num_layers=None, decoder_num_layers=6, encoder_seq_length=512, seq_length=None,
              decoder_seq_length=128)  # fmt: skip
    assert t5.model["model_type"] == "megatron-t5"
    assert (values(t5)["seq_len"], values(t5)["encoder_seq_len"]) == (128, 512)
    assert asked(t5).recipe.encoder_seq_len == 512


def test_vocabularies() -> None:
    """Tokenizers whose size is known, and one whose is not."""

    def rows(**arguments: object) -> int:
        return int(more(vocab_file=None, merge_file=None, tensor_model_parallel_size=1, **arguments).model["vocab_size"])

    assert rows(tokenizer_type="NullTokenizer", vocab_size=131073) == 131200
    assert rows(tokenizer_type="Llama2Tokenizer", tokenizer_model="/x/tokenizer.model") == 32000
    assert rows(tokenizer_type="GPTSentencePieceTokenizer", tokenizer_model="${D}/nemotron_2_256k.model") == 256000
    assert rows(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="Qwen/Qwen3-8B") == 151936
    assert rows(padded_vocab_size=201088) == 201088
    reading = more(tokenizer_type="SentencePieceTokenizer", tokenizer_model="/data/own.model", vocab_file=None, merge_file=None)
    assert "tokenizer_model" in doubts(reading)
    assert any("131,072 are taken" in row.why for row in reading.unmodelled)


def test_vocabulary_that_the_tokenizer_does_not_have() -> None:
    """``--vocab-size`` counts where the tokenizer takes it, or where no tokenizer is known; else the note names both."""
    words = (
        "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    )
    words += "--max-position-embeddings 128 --micro-batch-size 1 --vocab-size 128256"
    own = read(words, COMMAND)
    assert own.model["vocab_size"] == 50304
    assert [row.key for row in own.neutral if "vocab" in row.key] == ["vocab_size"]
    assert any("128,256" in note and "50,257" in note for note in own.notes)
    null = read(f"{words} --tokenizer-type NullTokenizer", COMMAND)
    other = read(words.replace("pretrain_gpt.py", "my_train.py"), COMMAND)
    for reading in (null, other):
        assert reading.model["vocab_size"] == 128256
        assert not any("ignored" in note for note in reading.notes)


def test_offload_is_written_where_megatron_takes_it() -> None:
    """It needs the distributed optimizer, which then has to stay."""
    given = {"optimizer_cpu_offload": None, "use_precision_aware_optimizer": None}
    assert more(**given, use_distributed_optimizer="true").spell("offload", "optimizer")
    assert more(**given, use_distributed_optimizer=None).spell("offload", "optimizer") is None
    precise = more(use_distributed_optimizer="true", use_precision_aware_optimizer="true")
    assert precise.spell("zero", "0") is None


def test_query_groups_need_their_flag() -> None:
    """``--num-query-groups`` alone does nothing."""
    reading = more(num_query_groups=2, position_embedding_type="rope")
    assert reading.model["num_key_value_heads"] == 8
    assert any("group_query_attention" in note for note in reading.notes)
    assert more(num_query_groups=2, group_query_attention="true").model["num_key_value_heads"] == 2


def test_models_of_scripts_are_asked_for() -> None:
    """Models that arguments do not describe are needed from the user."""
    assert "images" in more(language_model_type="x").needs["model"]
    assert "checkpoint" in more(num_layers=None, use_checkpoint_args="true").needs["model"]


# -- what is not ----------------------------------------------------------------------------------------------------


def test_every_argument_ends_somewhere() -> None:
    """Neutral, unmodelled and unknown arguments; a flag that is off, and a default, are not worth a word."""
    reading = more(
        log_interval=1, overlap_moe_expert_parallel_comm="true", empty_unused_memory_level=0, no_such_argument=3,
        moe_flex_dispatcher_backend="hybridep", delay_wgrad_compute="false",
    )  # fmt: skip
    assert [row.key for row in reading.unknown] == ["--no-such-argument"]
    assert "overlap_moe_expert_parallel_comm" in doubts(reading)
    assert not {"empty_unused_memory_level", "delay_wgrad_compute", "moe_flex_dispatcher_backend"} & doubts(reading)
    assert any(row.key == "--log-interval" for row in reading.neutral)
    assert all(
        row.effect in ("memory", "more-memory", "less-memory", "speed", "both", "more", "less") for row in reading.unmodelled
    )


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"no_rope_fusion": "true", "position_embedding_type": "rope"}, "no_rope_fusion"),
        ({"no_bias_swiglu_fusion": "true", "swiglu": "true"}, "no_bias_swiglu_fusion"),
        ({"perform_rl_step": "true"}, "perform_rl_step"),
        ({"rampup_batch_size": "[16 16 1000]"}, "rampup_batch_size"),
        ({"context_parallel_size": 2, "cp_comm_type": "a2a"}, "cp_comm_type"),
        ({"num_experts": 4, "moe_expert_capacity_factor": 1.0}, "moe_expert_capacity_factor"),
        ({"use_torch_fsdp2": "true"}, "use_torch_fsdp2"),
        ({"seq_length": 32768, "max_position_embeddings": 32768}, "create_attention_mask_in_dataloader"),
        ({"recompute_granularity": "selective", "recompute_modules": "[mhc]"}, "recompute_modules"),
        ({"cpu_offloading_num_layers": 4}, "cpu_offloading_num_layers"),
        ({"spec": "[my.package my_spec]"}, "spec"),
    ],
)
def test_unmodelled(arguments: dict[str, Any], key: str) -> None:
    """What changes memory or speed and is not modelled is named."""
    assert key in doubts(more(**arguments))


def test_fusions_that_mean_nothing_are_not_named() -> None:
    """GELU's bias is not fused where there is no bias, rope's where there is none."""
    reading = more(no_bias_gelu_fusion="true", disable_bias_linear="true", no_rope_fusion="true")
    assert not {"no_bias_gelu_fusion", "no_rope_fusion"} & doubts(reading)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batch_size": "many"}, "micro-batch-size='many' must be a whole number"),
        ({"seq_length": "${SEQ}"}, "write the value itself"),
        ({"recompute_granularity": "partial"}, "recompute-granularity='partial' is not known here"),
        ({"optimizer": "adamw8bit"}, "optimizer='adamw8bit' is not known here"),
        ({"fp16": "true"}, "exclude each other"),
        ({"pipeline_model_parallel_layout": "Q"}, "is not a layout"),
        ({"window_size": "wide"}, "pair of numbers"),
        ({"pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": 2}, "does not divide"),
        ({"pipeline_model_parallel_size": 4, "decoder_first_pipeline_num_layers": 5}, "leaves 7 layers for 3 stages"),
        ({"step_batch_size_schedule": "x"}, "schedule of batch sizes"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    """One clear error, with the line."""
    with pytest.raises(ConfigError) as found:
        more(**arguments)
    assert message in str(found.value)
    assert "a.yaml:" in str(found.value)


def test_a_test_without_arguments() -> None:
    """Is no run."""
    with pytest.raises(ConfigError, match="without arguments"):
        read("ENV_VARS: {}\nMODEL_ARGS:\n")


def test_a_test_of_several_runs() -> None:
    """The first one is read, on the GPUs that it is given."""
    text = YAML + "MODEL_ENV_VARS:\n  MODEL_ARGS:\n    GPUS_PER_NODE: 2\nMODEL_ARGS_2:\n  --num-layers: 4\n"
    reading = read(text)
    assert values(reading)["gpus"] == 2
    assert any("first run" in note for note in reading.notes)
    assert reading.unknown == ()


def test_gpus_where_nothing_says() -> None:
    """Experts need ranks: the fewest that tp x cp and etp x ep share, with a note."""
    text = SCRIPT.replace("--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES", "--nproc_per_node gpu")
    assert "gpus" not in values(read(text, "train.sh"))
    moe = text.replace("--sequence-parallel", "--num-experts 16 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1")
    reading = read(moe, "train.sh")
    assert values(reading)["gpus"] == 32
    assert any("--gpus says it" in note for note in reading.notes)


# -- servers --------------------------------------------------------------------------------------------------------


def test_inference() -> None:
    """A test in the mode inference is a server."""
    reading = more(
        inference_max_seq_length=4096, inference_dynamic_batching_buffer_size_gb=20, enable_chunked_prefill="true",
        inference_dynamic_batching_max_requests=64, num_tokens_to_generate=30, prompts='"Hello"',
    )  # fmt: skip
    assert reading.verb == "serve"
    found = values(reading)
    assert (found["engine"], found["tp"], found["max_model_len"], found["max_num_seqs"]) == ("other", 2, 4096, 64)
    assert found["chunked_prefill"] is True
    assert found["enforce_eager"] is True
    assert reading.unknown == ()
    assert "inference_dynamic_batching_buffer_size_gb" in doubts(reading)
    assert "use_distributed_optimizer" not in doubts(reading)


# -- edits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["yaml", "sh"])
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "1"}, {"global_batch": "64"}, {"zero": "0"}, {"recompute": "full"}, {"recompute": "selective"},
        {"recompute": "selective", "recompute_scope": "modules", "recompute_modules": "core_attn,mlp"}, {"sp": False},
        {"seq_len": "512"}, {"attention": "flash"}, {"loss": "fused"}, {"offload": "optimizer"},
        {"precision": "fp16"}, {"precision": "fp8"}, {"dropout": "0.2"}, {"optimizer": "muon"}, {"cp": "2"},
    ],
    ids=str,
)  # fmt: skip
def test_round_trips(form: str, options: dict[str, str | bool]) -> None:
    """An edit, applied and read again, is the run with the option."""
    texts = [("a.yaml", YAML)] if form == "yaml" else [("train.sh", SCRIPT.replace(" --save $1", " --seed 1"))]
    round_trip(texts, options, "megatron")


def test_edit_of_tensor_parallelism_pads_the_vocabulary_anew() -> None:
    """The table of tokens grows with tp, so that the edited run has a model of its own."""
    made = rewritten([("a.yaml", YAML)], {"tp": "4"}, "megatron")
    assert values(made.reading)["tp"] == 4
    model: Any = made.reading.model
    assert model["vocab_size"] == 50688


def test_dropouts_that_differ_are_the_models() -> None:
    """GPT-2's description has one for each; others get the hidden one, with a word."""
    reading = more(attention_dropout=0.0)
    assert "dropout" not in values(reading)
    assert reading.model["attn_pdrop"] == 0.0
    assert "attention_dropout" in doubts(more(attention_dropout=0.0, normalization="RMSNorm"))


def test_edit_takes_a_flag_out() -> None:
    """A flag of a YAML goes with its line."""
    made = rewritten([("a.yaml", YAML)], {"zero": "0"}, "megatron")
    assert [edit.old for edit in made.edits] == [("  --use-distributed-optimizer: true",)]


def test_what_cannot_be_written() -> None:
    """Positions are the model's; a full sharding has no argument of this optimizer."""
    reading = read(YAML)
    assert reading.spell("seq_len", "4096") is None
    assert reading.spell("zero", "3") is None
    assert reading.spell("lora_rank", "8") is None
    assert reading.spell("grad_accum", "4") == []


@pytest.mark.parametrize(
    ("launcher", "tensor", "waits"),
    [("--nproc_per_node 8", 8, False), ("--nproc_per_node 8", 4, True), ("", 4, False)],
)
def test_only_replicas_reduce_gradients(launcher: str, tensor: int, waits: bool) -> None:
    script = (
        SCRIPT.replace(" --overlap-grad-reduce", "")
        .replace(" --nnodes $NNODES", "")
        .replace("-model-parallel-size 2", "-model-parallel-size 1")
    )
    script = script.replace("--tensor-model-parallel-size 4", f"--tensor-model-parallel-size {tensor}")
    reading = read(script.replace("--nproc_per_node $GPUS_PER_NODE", launcher), "run.sh")
    assert ("overlap_grad_reduce" in {row.key for row in reading.unmodelled}) is waits


def test_more_layers_than_any_model_has() -> None:
    line = "torchrun pretrain_gpt.py --num-layers 100000000 --hidden-size 512 --num-attention-heads 8 --moe-layer-freq 2"
    with pytest.raises(ConfigError, match="num_layers"):
        read_texts([(COMMAND, line)])
