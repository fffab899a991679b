"""What cannot run is refused with one message that names the field; nothing is silently ignored."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest

import foretell as ft
from core_models import llama, mixtral, small, vit
from foretell.core._request import DEFAULTS
from foretell.core.forecast import forecast
from foretell.core.solver import TrainingMemoryModel
from foretell.recipe import Adapter, Parallelism, Quantization, Recompute, TrainingRecipe


def run(model: ft.Workload, parallelism: dict[str, Any], gpus: int | None = None, **recipe: Any) -> object:
    made = TrainingRecipe(**({"seq_len": 512} | recipe))
    return forecast(model, "h100", made, Parallelism(**parallelism), gpus=gpus)


@pytest.mark.parametrize(
    ("parallelism", "recipe", "message"),
    [
        ({"tp": 3}, {}, "tp=3 must divide the model's 8 attention heads"),
        ({"tp": 16}, {}, "tp=16 must divide the model's 8 attention heads"),
        (
            {"tp": 8, "zero": 3},
            {"framework": "torchtitan"},
            "framework torchtitan: tp=8 must divide the model's 4 key-value heads",
        ),
        ({"pp": 5}, {}, "pp"),
        ({"pp": 3, "zero": 1}, {"framework": "megatron-core"}, "does not divide the model's 4 layers"),
        ({"pp": 2, "vpp": 4}, {}, "8 stages are more than the model's 4 layers"),
        ({"dp": 8, "ep": 2}, {}, "ep=2 needs a model with experts; this one is dense"),
        ({"dp": 2, "zero": 1}, {"framework": "fsdp2"}, "zero_stage=1 is not a ZeRO stage of fsdp2"),
        ({"dp": 2, "zero": 3}, {"framework": "megatron-core"}, "zero_stage=3 Megatron-Core shards .* only with"),
        ({"dp": 2, "pp": 2, "zero": 3, "schedule": "dualpipe"}, {}, "zero_stage=3 cannot run under dualpipe"),
        ({"pp": 2, "zero": 1, "schedule": "gpipe"}, {"framework": "megatron-core"}, "is not a schedule of Megatron"),
        ({"pp": 2, "schedule": "interleaved-1f1b"}, {}, "needs vpp > 1"),
        ({"pp": 2, "zero": 1}, {"framework": "hf-trainer"}, "hf-trainer"),
        ({"cp": 3}, {}, "seq_len=512 must be a multiple of cp = 3"),
        ({"cp": 2, "tp": 4, "zero": 1}, {"framework": "megatron-core", "seq_len": 510}, "seq_len=510 must be"),
        ({"dp": 4, "hsdp_replicas": 3, "zero": 3}, {}, "hsdp_replicas=3 must divide dp x cp = 4"),
        ({}, {"quantization": Quantization()}, "needs an adapter"),
        ({}, {"adapter": Adapter(targets=("c_attn",))}, "matches no matrix of the model"),
        ({}, {"precision": "fp2"}, "precision='fp2'"),
        ({}, {"optimizer": "adamm"}, "nearest: "),
        ({}, {"framework": "megatrn"}, "nearest: .*megatron"),
        ({}, {"attention": "fast"}, "attention='fast'"),
        ({}, {"loss": "huge"}, "loss='huge'"),
        ({}, {"recompute": Recompute("some")}, "recompute='some'"),  # type: ignore[arg-type]
        ({}, {"offload": frozenset({"everything"})}, "offload='everything'"),
        ({}, {"trainable_fraction": 1.5}, "trainable_fraction=1.5"),
        ({}, {"image_size": (224, 224)}, "means nothing for a text model"),
    ],
)
def test_a_combination_that_cannot_run(parallelism: dict[str, Any], recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ft.InputError, match=message) as caught:
        run(small(), parallelism, **recipe)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.field is not None


def test_experts() -> None:
    model = mixtral(hidden_size=256, num_hidden_layers=2, intermediate_size=512)
    with pytest.raises(ft.CombinationError, match="ep=3 must divide the model's 8 experts"):
        run(model, {"dp": 6, "ep": 3})
    with pytest.raises(ft.CombinationError, match="carved out of these ranks"):
        run(model, {"dp": 2, "ep": 4})
    run(model, {"dp": 4, "ep": 4})


def test_the_degrees_must_multiply_to_the_gpus() -> None:
    with pytest.raises(ft.CombinationError, match="gpus=16 is not dp x tp x pp x cp = 2 x 2 x 1 x 1 = 4; dp=8 would be"):
        run(small(), {"dp": 2, "tp": 2}, gpus=16)
    run(small(), {"dp": 8, "tp": 2}, gpus=16)


def test_key_value_heads_fewer_than_tp_are_noted_where_they_are_copied() -> None:
    found = forecast(small(), "h100", TrainingRecipe(seq_len=512), Parallelism(tp=8))
    assert any("key-value heads are fewer than tp" in note for note in found.notes)


BAD = [0, -1, 1.5, True, math.nan, math.inf, 10**30, "8", None]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", ["micro_batch", "seq_len", "grad_accum"])
def test_bad_sizes_of_a_recipe(field: str, value: Any) -> None:
    with pytest.raises(ft.InputError) as caught:
        run(small(), {}, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", ["dp", "tp", "pp", "cp", "ep", "vpp"])
def test_bad_degrees(field: str, value: Any) -> None:
    with pytest.raises(ft.InputError) as caught:
        run(small(), {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    "field", ["batch_size", "seq_len", "tp_size", "pp_size", "dp_size", "ep_size", "gradient_accumulation_steps"]
)
def test_bad_sizes_of_the_solver(field: str, value: Any) -> None:
    given: dict[str, Any] = {"batch_size": 8, "seq_len": 512} | {field: value}
    if field == "seq_len" and value is None:
        pytest.skip("None leaves it out")
    with pytest.raises(ft.InputError):
        TrainingMemoryModel().solve(small(), "h100", **given)


@pytest.mark.parametrize("zero", [-1, 4, 1.5, True, "3"])
def test_bad_zero_stages(zero: Any) -> None:
    with pytest.raises(ft.InputError, match="zero_stage"):
        TrainingMemoryModel().solve(small(), "h100", 8, zero_stage=zero)


def test_the_global_batch_must_divide_into_whole_micro_batches() -> None:
    model = TrainingMemoryModel()
    with pytest.raises(ft.InputError, match="batch_size=10 must be a multiple of dp x gradient"):
        model.solve(small(), "h100", 10, dp_size=4)
    with pytest.raises(ft.CombinationError, match="batch_size=16 is not dp x micro-batch x accumulation"):
        model.solve(small(), "h100", 16, dp_size=4, micro_batch=3)
    found = model.solve(small(), "h100", 64, dp_size=4, micro_batch=2)
    assert found.micro_batch == 2


def test_a_vision_model_has_no_sequence_length() -> None:
    solver = TrainingMemoryModel()
    assert solver.solve(vit(), "h100", 8).total_memory_bytes > 0
    with pytest.raises(ft.InputError, match="seq_len=2048 means nothing for this model"):
        solver.solve(vit(), "h100", 8, seq_len=2048)
    with pytest.raises(ft.InputError, match="means nothing for this model"):
        run(vit(), {}, seq_len=512)
    table = solver.sweep(vit(), "h100", batch_size=8, seq_len=[128, 256])
    assert not table["valid"].any()


def test_unknown_names() -> None:
    with pytest.raises(ft.CatalogError, match="nearest: .*h100"):
        TrainingMemoryModel().solve(small(), "h1000", 1)
    with pytest.raises(ft.InputError, match="tp=8 is not a setting; allowed: .*tp_size"):
        TrainingMemoryModel().solve(small(), "h100", 8, tp=8)
    with pytest.raises(ft.InputError, match="lora_targets"):
        TrainingMemoryModel().solve(small(), "h100", 8, lora_targets=("q_proj",))


def test_infeasible_is_raised_on_request_only() -> None:
    solver = TrainingMemoryModel()
    assert not solver.solve(llama(), "t4", 1).feasible
    with pytest.raises(ft.OOMError) as caught:
        solver.solve(llama(), "t4", 1, raise_errors=True)
    assert caught.value.exit_code == 1
    assert caught.value.required_bytes is not None
    assert caught.value.available_bytes == ft.load_hardware("t4").available_bytes


JUNK = [None, [], {}, (), "x", "", -1, 1.5, math.nan, -math.inf, 10**30, True, b"x", object(), ["a", 1], lambda: 0]


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_no_setting_makes_anything_but_an_answer_or_a_clear_error(name: str) -> None:
    for value in JUNK:
        given: dict[str, Any] = {"batch_size": 8, "seq_len": 512, "dp_size": 2, "pp_size": 2} | {name: value}
        with contextlib.suppress(ft.ForetellError):
            assert TrainingMemoryModel().solve(small(), "h100", **given).total_memory_bytes > 0


def test_megatron_experts_with_tensor_parallelism_need_sequence_parallelism() -> None:
    recipe = TrainingRecipe(framework="megatron-core", seq_len=512)
    config = {"model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512}
    assert forecast(config, "h100", recipe, Parallelism(dp=4, tp=2, ep=4)).run.par.sp
    with pytest.raises(ft.CombinationError, match="cannot be off"):
        forecast(config, "h100", recipe, Parallelism(dp=4, tp=2, ep=4, sp=False))
