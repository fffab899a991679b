"""DeepSpeed configurations: "auto", absent keys, spellings of every age, and what cannot be understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from check_support import asked, round_trip
from foretell.errors import ConfigError
from foretell.readers.read import read_texts
from hf_support import accounted, settings_of

AUTO = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": "5e8",
        "sub_group_size": 1e9,
    },
}


def read(config: dict[str, Any] | str) -> Any:
    text = config if isinstance(config, str) else json.dumps(config, indent=1)
    made = read_texts([("ds.json", text)], family="deepspeed")
    accounted(made)
    return made


def own(**zero: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, **zero}}


def test_auto_is_filled_in_as_transformers_does() -> None:
    made = read(AUTO)
    assert settings_of(made) == {
        "framework": "deepspeed",
        "zero": 3,
        "reduce_bucket": "auto",
        "live_parameters": 500_000_000,
        "sub_group": 1_000_000_000,
    }
    assert str(made.settings["zero"].origin) == "ds.json:13"
    assert set(made.needs) == {"model", "seq_len", "micro_batch"}
    assert not made.doubts
    run = asked(made, model="llama-3-8b", seq_len="2048", micro_batch="1", gpus="8")
    assert run.recipe.reduce_bucket == 4096**2
    assert (run.recipe.precision, run.par.zero, run.framework.name) == ("bf16", 3, "deepspeed")


def test_absent_keys_have_deepspeeds_defaults() -> None:
    made = read({"train_micro_batch_size_per_gpu": 4})
    assert settings_of(made) == {"framework": "deepspeed", "zero": 0, "micro_batch": 4, "grad_accum": 1, "precision": "fp32"}
    assert made.settings["zero"].origin.why.startswith("default of DeepSpeed")
    assert asked(read(own()), model="llama-3-8b", seq_len="2048", gpus="8").recipe.reduce_bucket is None  # 5e8


def test_two_numbers_of_the_batch_decide_the_third() -> None:
    made = read({"train_batch_size": 64, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}})
    run = asked(made, model="llama-3-8b", seq_len="1024", gpus="8")
    assert (run.recipe.micro_batch, run.recipe.grad_accum) == (4, 2)
    alone = asked(read({"train_batch_size": 64, "fp16": {"enabled": True}}), model="llama-3-8b", seq_len="1024", gpus="8")
    assert (alone.recipe.micro_batch, alone.recipe.grad_accum, alone.recipe.precision) == (8, 1, "fp16")


@pytest.mark.parametrize(
    ("zero", "offload"),
    [
        ({"offload_optimizer": {"device": "cpu", "pin_memory": True}}, ("optimizer",)),
        (
            {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme", "nvme_path": "/d"}},
            ("optimizer", "params"),
        ),
        ({"offload_optimizer": "none", "offload_param": {"device": "none"}}, None),
        ({"cpu_offload": True, "cpu_offload_params": True}, ("optimizer", "params")),
        ({"stage": 2, "cpu_offload": True, "overlap_comm": True}, ("optimizer",)),
        ({"stage": 2, "offload_param": {"device": "cpu"}, "overlap_comm": True}, None),
    ],
)
def test_offloading_in_every_spelling(zero: dict[str, Any], offload: tuple[str, ...] | None) -> None:
    assert settings_of(read(own(**zero))).get("offload") == offload


def test_zero_optimization_as_a_flag() -> None:
    assert settings_of(read({"train_batch_size": 8, "fp16": {"enabled": True}, "zero_optimization": True}))["zero"] == 1
    assert not read(own(stage=0, reduce_bucket_size=5e8, cpu_offload=True)).doubts


def test_number_formats() -> None:
    config = own() | {"data_types": {"grad_accum_dtype": "fp32"}}
    assert settings_of(read(config))["grad_dtype"] == "fp32"
    config = own() | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    made = settings_of(read(config))
    assert (made["master_dtype"], made["grad_dtype"], made["optim_dtype"]) == ("bf16", "bf16", "bf16")


def test_optimizers() -> None:
    def optimizer(kind: str, **params: Any) -> Any:
        return read(own() | {"optimizer": {"type": kind, "params": {"lr": 1e-4, **params}}})

    assert settings_of(optimizer("AdamW"))["optimizer_impl"] == "fused"
    assert settings_of(optimizer("Adam", torch_adam=True, adam_w_mode=True))["optimizer_impl"] == "foreach"
    assert settings_of(optimizer("SGD", momentum=0.9))["optimizer"] == "sgdm"
    assert [d.effect for d in optimizer("OneBitAdam").doubts] == ["both"]


def test_what_is_not_modelled_is_named() -> None:
    made = read(own(stage=2, overlap_comm=False, zero_hpz_partition_size=8, ignore_unused_parameters=False) | {"mine": 1})
    assert {d.key: d.effect for d in made.unmodelled} == {
        "zero_optimization.overlap_comm": "less",
        "zero_optimization.zero_hpz_partition_size": "both",
    }
    assert [d.key for d in made.unknown] == ["mine"]
    assert [d.key for d in read(own(stage=2)).unmodelled] == ["zero_optimization.overlap_comm"]
    assert [d.effect for d in read(own(stage3_param_persistence_threshold=1e9)).unmodelled] == ["more-memory"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (own(stage=4), "zero_optimization.stage=4 must be a whole number"),
        (own(stage="three"), "must be a whole number"),
        (own(reduce_bucket_size="big"), "must be a whole number"),
        (own(offload_optimizer={"device": "gpu"}), "is no place for states"),
        (own(overlap_comm="maybe"), "must be true or false"),
        (own() | {"optimizer": {"type": "Magic"}}, "is not known here"),
        (own() | {"fp16": {"enabled": True}}, "DeepSpeed refuses both"),
        (own() | {"train_micro_batch_size_per_gpu": 0}, "must be a whole number"),
        ({"zero_optimization": [1]}, "must be a mapping"),
    ],
)
def test_values_that_make_no_sense_are_one_error(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(config)
    assert str(caught.value.where).startswith("ds.json:")


@pytest.mark.parametrize(
    "options",
    [
        {"zero": "2"},
        {"micro_batch": "1"},
        {"offload": "optimizer"},
        {"offload": "optimizer,params"},
        {"micro_batch": "1", "zero": "1"},
    ],
)
def test_what_is_written_reads_back(options: dict[str, str | bool]) -> None:
    texts = [("ds.json", json.dumps(own(overlap_comm=True), indent=2))]
    round_trip(texts, options, "deepspeed", "llama-3-8b", seq_len="1024", gpus="8")


def test_what_it_cannot_say() -> None:
    assert read(AUTO).spell("seq_len", "1024") is None
    assert read(AUTO).spell("micro_batch", "1") is None


def test_three_numbers_of_the_batch_say_how_many_gpus() -> None:
    made = read(own() | {"train_batch_size": 64, "gradient_accumulation_steps": 4})
    assert settings_of(made)["gpus"] == 8
    assert (made.settings["gpus"].origin.key, made.settings["gpus"].origin.line > 0) == ("train_batch_size", True)
    assert "gpus" not in read(own() | {"train_batch_size": 64}).settings
    with pytest.raises(ConfigError, match="is no multiple of"):
        read(own() | {"train_batch_size": 63, "gradient_accumulation_steps": 4})


def test_limits_of_zero_elements_say_what_they_mean() -> None:
    made = read(own(stage3_max_live_parameters=0, sub_group_size=0))
    for name, words in (("live_parameters", "those in use"), ("sub_group", "each parameter is a group")):
        assert made.settings[name].value == 1
        assert words in made.settings[name].origin.why
    assert not read(own(stage3_max_live_parameters=5)).settings["live_parameters"].origin.why
