"""The verdict, its levels and its ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from core_models import llama, mixtral, small
from foretell.core.forecast import forecast
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.host_memory import host_memory
from foretell.cost.overheads import Regime, available_bytes, interval, p_oom
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.errors import CombinationError
from foretell.recipe import Adapter, Parallelism, Recompute, TrainingRecipe
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve


def test_the_terms_sum_to_the_total_and_the_levels_are_in_order() -> None:
    recipe = TrainingRecipe(framework="torchtitan", seq_len=8192, recompute=Recompute("full"))
    found = forecast(llama(), "h100", recipe, Parallelism(dp=8, zero=3), gpus=8)
    assert sum(found.breakdown.values()) == pytest.approx(found.total_bytes, rel=1e-12)
    assert found.allocated_bytes < found.reserved_bytes < found.total_bytes < found.available_bytes
    low, high = found.interval_bytes
    assert low < found.total_bytes < high
    assert found.verdict == "fits"
    assert found.fits
    assert found.p_oom < 0.01
    assert {row["phase"] for row in found.timeline} >= {"forward", "loss", "backward", "optimizer", "between_steps"}
    assert max(row["allocated_bytes"] for row in found.timeline) == found.allocated_bytes
    assert found.host_memory_bytes is not None
    assert found.host_memory_bytes > 8 * 2**30


def test_verdicts() -> None:
    recipe = TrainingRecipe(seq_len=2048)
    assert forecast(llama(), "t4", recipe).verdict == "does_not_fit"
    found = forecast(small(), "h100", recipe)
    assert found.verdict == "fits"
    # a device that holds exactly the point: neither yes nor no
    exact = ft.HardwareNode("exact", round(found.total_bytes), 1e12, {"bf16": 1e14}, compute_capability="9.0")
    assert forecast(small(), exact, recipe).verdict == "uncertain"
    assert 0.2 < forecast(small(), exact, recipe).p_oom < 0.8


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2"])
def test_a_larger_device_never_needs_more(framework: str) -> None:
    """What is held does not depend on the room there is: each term is the same on every card of one generation."""
    recipe = TrainingRecipe(framework=framework, recompute=Recompute("full"))
    needs = [forecast(llama(), gpu, recipe, Parallelism(dp=64, zero=3), gpus=64) for gpu in ("h100", "h200", "b200")]
    for found in needs:
        assert sum(found.breakdown.values()) == pytest.approx(found.total_bytes, rel=1e-12)
        assert max(row["allocated_bytes"] for row in found.timeline) == pytest.approx(found.allocated_bytes, rel=1e-12)
    assert needs[1].total_bytes == pytest.approx(needs[0].total_bytes, rel=0.01)
    assert needs[2].total_bytes == pytest.approx(needs[0].total_bytes, rel=0.02)


@pytest.mark.parametrize("pp", [1, 2])
def test_generic_zero_3_shards_gradients_in_a_pipeline_too(pp: int) -> None:
    share = [forecast(llama(), "b200", TrainingRecipe(), Parallelism(dp=8, pp=pp, zero=z)).breakdown["gradients"] for z in (2, 3)]
    assert share[1] <= share[0] * 1.001


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        (TrainingRecipe(optimizer_in_backward=True, grad_accum=4), "grad_accum"),
        (TrainingRecipe(optimizer="lomo", grad_accum=4), "grad_accum"),
        (TrainingRecipe(adapter=Adapter(rank=8), trainable_fraction=0.5), "trainable_fraction"),
    ],
)
def test_settings_that_contradict_each_other(recipe: TrainingRecipe, field: str) -> None:
    with pytest.raises(CombinationError) as caught:
        forecast(small(), "h100", recipe)
    assert caught.value.field == field


def test_the_result_is_a_mapping_a_dict_and_a_text() -> None:
    found = forecast(small(), "h100", TrainingRecipe(seq_len=512))
    data = found.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["total_bytes"] == found.total_bytes
    assert dict(found)["total"] == found.total
    assert found["total_bytes"] == found.total_bytes
    assert found.total.to("byte").magnitude == found.total_bytes
    assert len(found) == len(list(found)) == len(found.keys())
    with pytest.raises(AttributeError):
        _ = found.nothing
    with pytest.raises(KeyError):
        _ = found["nothing"]
    text = found.explain()
    for term in found.breakdown:
        assert term in text
    assert f"verdict: {found.verdict}" in text


def test_assumptions_are_said_when_they_are_made() -> None:
    assert any("flash" in line for line in forecast(small(), "h100").assumed)
    said = TrainingRecipe(seq_len=512, attention="eager", loss="eager", optimizer_impl="fused", expandable_segments=True)
    assert forecast(small(), "h100", said).assumed == ()
    late = forecast(small(), "h100", TrainingRecipe(seq_len=16384))
    assert any("longer than the model's 8192 positions" in note for note in late.notes)


def test_on_a_device_without_cuda_only_allocated_memory_is_answered() -> None:
    found = forecast(small(), "tpu-v5p", TrainingRecipe(seq_len=512))
    assert found.total_bytes == found.reserved_bytes == found.allocated_bytes
    assert "not-cuda" in found.regime
    assert any("not CUDA-like" in note for note in found.notes)
    low, high = found.interval_bytes
    assert high / low > 1.5


def test_a_package_of_several_devices_is_answered_for_one_of_them() -> None:
    card = ft.load_hardware("mi250x")
    assert card.logical_devices == 2
    assert available_bytes(card) < card.available_bytes


def test_host_memory_counts_copies_and_offloaded_states() -> None:
    model = small().architecture
    recipe = TrainingRecipe(seq_len=512, framework="deepspeed", offload=frozenset({"optimizer"}))
    run = resolve(recipe, Parallelism(dp=8, zero=2), profile("deepspeed"))
    every, first = (host_memory(model, run, 8, load=how) for how in ("every-rank", "rank0"))
    assert every.load - first.load == pytest.approx(7 * 2 * model.parameters)
    # masters and two moments, and the gradients that the host's step takes in fp32 (DeepSpeed stage_1_and_2.py)
    assert every.terms["offloaded_optimizer"] == pytest.approx(16 * model.parameters, rel=0.01)


@given(
    st.lists(st.floats(-0.5, 0.5), min_size=5, max_size=5, unique=True).map(sorted),
    st.floats(1, 1e12),
    st.floats(0.2, 5),
)
def test_the_probability_of_running_out_is_one_and_falls(errors: list[float], point: float, share: float) -> None:
    spread = Regime("x", (0.05, 0.25, 0.5, 0.75, 0.95), tuple(errors))
    here, more = (p_oom(point, point * s, spread) for s in (share, share * 1.1))
    assert 0 <= more <= here <= 1
    low, high = interval(point, spread)
    assert low <= high


SIZES = {"dp": [1, 2, 4], "tp": [1, 2, 4], "pp": [1, 2, 4], "cp": [1, 2], "zero": [0, 1, 2, 3]}


def states(recipe: TrainingRecipe, parallelism: Parallelism) -> float:
    """Bytes of parameters, gradients, master weights and moments on the rank that has most."""
    found = forecast(small(), "h100", recipe, parallelism, host=False)
    basis = Basis(sizes_of(found.run))
    return max(
        float(evaluate((fold.base.resident() + fold.base.gradients).by_monomial(), basis))
        for fold in fold_run(small().architecture, found.run)
    )


@settings(max_examples=40)
@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SIZES.items()}), st.data())
def test_more_sharding_never_raises_states(degrees: dict[str, int], data: st.DataObject) -> None:
    more = dict(degrees)
    name = data.draw(st.sampled_from(sorted(SIZES)))
    more[name] = min(2 * more[name] if name != "zero" else more[name] + 1, max(SIZES[name]))
    recipe = TrainingRecipe(seq_len=512, grad_accum=2)
    two: list[dict[str, Any]] = [degrees, more]
    before, after = (states(recipe, Parallelism(**d)) for d in two)
    assert after <= before * (1 + 1e-9)


@settings(max_examples=40)
@given(
    st.sampled_from(["generic", "torchtitan", "megatron-core", "deepspeed", "fsdp1", "hf-trainer", "torchtune"]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_terms_sum_in_every_framework(framework: str, mode: Any, accum: int, adapter: bool) -> None:
    chosen = profile(framework)
    lora = Adapter(targets=("q_proj",)) if adapter and chosen.supports_adapters else None
    recipe = TrainingRecipe(framework=framework, seq_len=512, grad_accum=accum, recompute=Recompute(mode), adapter=lora)
    par = Parallelism(dp=2 if chosen.zero != (0,) else 1, zero=chosen.default_zero)
    found = forecast(small(), "a100-sxm-80gb", recipe, par, host=False)
    assert sum(found.breakdown.values()) == pytest.approx(found.total_bytes, rel=1e-12)
    assert all(size >= 0 for size in found.breakdown.values())


def test_experts_are_noted() -> None:
    model = mixtral(hidden_size=256, num_hidden_layers=2, intermediate_size=512)
    found = forecast(model, "h100", TrainingRecipe(seq_len=512), Parallelism(dp=4, ep=4))
    assert any("hot expert" in note for note in found.notes)
    assert found.breakdown["nccl"] > 2**30


def test_a_forecast_imports_neither_numpy_nor_pint() -> None:
    code = (
        "import sys, foretell as ft\n"
        "from foretell.core.solver import TrainingMemoryModel\n"
        "config = dict(model_type='llama', hidden_size=64, num_hidden_layers=2, num_attention_heads=4,"
        " intermediate_size=128, vocab_size=100)\n"
        "TrainingMemoryModel().solve(config, 'h100', 8).explain()\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'pint', 'torch', 'polars')))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_fused_loss_says_which_other_kernels_come_with_it() -> None:
    def says(framework: str) -> bool:
        found = forecast(small(), "h100", TrainingRecipe(framework=framework, loss="liger"))
        return any("Liger" in note for note in found.assumed)

    assert says("hf-trainer")
    assert not says("torchtitan")
