"""accelerate's configurations and the flags of accelerate launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError
from foretell.readers.read import COMMAND, read_texts
from hf_support import accounted, settings_of

FSDP1 = """distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: false
  fsdp_state_dict_type: SHARDED_STATE_DICT
mixed_precision: bf16
num_machines: 2
num_processes: 16
downcast_bf16: 'no'
"""
FSDP2 = """distributed_type: FSDP
fsdp_config:
  version: 2
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: true
  offload_params: true
  activation_checkpointing: true
mixed_precision: bf16
num_processes: 4
"""
ZERO = """distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 4
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
mixed_precision: fp16
num_processes: 8
num_machines: 1
"""
REST = {"seq_len": "2048", "micro_batch": "1"}


def read(text: str) -> Any:
    made = read_texts([("acc.yaml", text)], family="accelerate")
    accounted(made)
    return made


def test_fsdp1_with_its_strategies() -> None:
    made = read(FSDP1)
    assert settings_of(made) == {"gpus": 16, "gpus_per_node": 8, "framework": "fsdp1", "zero": 2, "precision": "bf16"}
    assert str(made.settings["zero"].origin) == "acc.yaml:5"
    assert set(made.needs) == {"model", "micro_batch", "seq_len"}
    assert not made.doubts
    for strategy, zero in (("FULL_SHARD", 3), ("1", 3), ("2", 2)):
        assert settings_of(read(FSDP1.replace("SHARD_GRAD_OP", strategy)))["zero"] == zero
    hybrid = settings_of(read(FSDP1.replace("SHARD_GRAD_OP", "HYBRID_SHARD")))
    assert (hybrid["zero"], hybrid["hsdp_replicas"]) == (3, 2)
    whole = settings_of(read(FSDP1.replace("SHARD_GRAD_OP", "NO_SHARD")))
    assert (whole["framework"], whole["zero"]) == ("hf-trainer", 0)


def test_fsdp2_without_prefixes() -> None:
    made = read(FSDP2)
    assert settings_of(made) == {
        "gpus": 4,
        "framework": "fsdp2",
        "zero": 3,
        "offload": ("params",),
        "recompute": "full",
        "precision": "bf16",
    }
    assert not made.doubts
    run = asked(made, model="llama-3-8b", **REST)
    assert (run.framework.name, run.par.dp, run.par.zero) == ("fsdp2", 4, 3)
    assert settings_of(read(FSDP2.replace("forward: true", "forward: false")))["zero"] == 2


def test_what_accelerate_leaves_unwrapped() -> None:
    made = read("distributed_type: FSDP\nnum_processes: 2\n")
    assert {d.key for d in made.unmodelled} == {"fsdp_auto_wrap_policy", "fsdp_backward_prefetch"}
    assert settings_of(made)["precision"] == "fp32"


def test_a_deepspeed_configuration_of_its_own() -> None:
    made = read(ZERO)
    assert settings_of(made) == {
        "gpus": 8,
        "gpus_per_node": 8,
        "framework": "deepspeed",
        "zero": 3,
        "grad_accum": 4,
        "offload": ("optimizer",),
        "precision": "fp16",
    }
    plain = read("distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n")
    assert settings_of(plain)["zero"] == 2
    assert [d.effect for d in plain.doubts] == ["less"]


def test_one_process_whatever_else_is_said() -> None:
    made = read("distributed_type: 'NO'\nnum_processes: 8\nmixed_precision: bf16\n")
    assert settings_of(made) == {"gpus": 1, "framework": "hf-trainer", "precision": "bf16"}
    assert settings_of(read("distributed_type: NO\nnum_processes: 1\nfp16: true\n"))["gpus"] == 1


def test_compilation_fp8_and_other_plugins() -> None:
    made = read(
        "distributed_type: MULTI_GPU\nnum_processes: 2\ndynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default}\n"
    )
    assert settings_of(made)["compile"] is True
    fp8 = read("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp8\nfp8_config: {backend: TE}\n")
    assert [d.effect for d in fp8.doubts] == ["both"]
    assert settings_of(fp8)["precision"] == "bf16"
    text = (
        "distributed_type: MEGATRON_LM\nnum_processes: 8\nmixed_precision: bf16\nmegatron_lm_config:\n"
        "  megatron_lm_tp_degree: 2\n"
        "  megatron_lm_pp_degree: 2\n  megatron_lm_num_micro_batches: 4\n  megatron_lm_recompute_activations: true\n"
        "  megatron_lm_sequence_parallelism: true\n  megatron_lm_use_distributed_optimizer: true\n"
    )
    run = asked(read(text), model="llama-3-8b", **REST)
    assert (run.framework.name, run.par.tp, run.par.pp, run.par.dp, run.par.zero) == ("megatron-core", 2, 2, 2, 1)
    mesh = read(FSDP2 + "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_cp_size: 2\n")
    assert settings_of(mesh)["hsdp_replicas"] == 2
    assert settings_of(mesh)["cp"] == 2
    assert not mesh.doubts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixed_precision: bf16\nnum_processes: 2\n", "lacks distributed_type"),
        ("distributed_type: XLA\n", "is not modelled"),
        ("distributed_type: MANY\n", "is no distributed type"),
        (FSDP1.replace("SHARD_GRAD_OP", "SOME"), "is not known here"),
        (FSDP1.replace("TRANSFORMER_BASED_WRAP", "ANY"), "is no way to wrap"),
        (FSDP1.replace("bf16\nnum", "bf17\nnum"), "is not known here"),
        (ZERO.replace("zero_stage: 3", "zero_stage: 9"), "must be a whole number"),
        (ZERO.replace("num_processes: 8", "num_processes: many"), "must be a whole number"),
    ],
)
def test_values_that_make_no_sense_are_one_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert str(caught.value.where).startswith("acc.yaml")


def test_flags_of_the_launch_line_are_above_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acc.yaml").write_text(ZERO)
    line = "accelerate launch --config_file acc.yaml --num_processes 4 --zero_stage 2 --mixed_precision bf16 own.py --steps 3"
    made = read_texts([(COMMAND, line)], family="accelerate")
    accounted(made)
    assert settings_of(made) == {
        "gpus": 4,
        "framework": "deepspeed",
        "zero": 2,
        "grad_accum": 4,
        "offload": ("optimizer",),
        "precision": "bf16",
    }
    assert [d.key for d in made.unknown] == ["steps"]
    bare = read_texts([(COMMAND, "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 own.py")], family="accelerate")
    accounted(bare)
    assert settings_of(bare)["framework"] == "fsdp2"
    gone = read_texts([(COMMAND, "accelerate launch --config_file none.yaml own.py")], family="accelerate")
    assert [d.key for d in gone.unmodelled] == ["config_file"]


def test_a_deepspeed_file_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 1e8}}')
    named = "deepspeed_config: {deepspeed_config_file: ds.json}\n"
    made = read(f"distributed_type: DEEPSPEED\n{named}mixed_precision: bf16\nnum_processes: 8\n")
    assert settings_of(made)["zero"] == 1
    assert settings_of(made)["reduce_bucket"] == 100_000_000
    assert settings_of(made)["precision"] == "bf16"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (ZERO, {"zero": "1"}),
        (ZERO, {"offload": "optimizer,params"}),
        (ZERO, {"gpus": "16"}),
        (ZERO, {"grad_accum": "2"}),
        (FSDP1, {"offload": "params"}),
        (FSDP1, {"recompute": "full"}),
        (FSDP2, {"recompute": "none"}),
        (FSDP2, {"compile": True}),
    ],
)
def test_what_is_written_reads_back(text: str, options: dict[str, str | bool]) -> None:
    round_trip([("acc.yaml", text)], options, "accelerate", "llama-3-8b", **REST)
