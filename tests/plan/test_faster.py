"""Switches that shorten a step: what is named was tried, fits, and saves what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell as ft
from foretell.cost.topology import topology_of
from foretell.plan import Launch
from foretell.plan.faster import Faster, faster
from foretell.plan.pace import Pace
from foretell.recipe import Parallelism, Recompute, TrainingRecipe


def pace_of(model: str, gpu: str, recipe: TrainingRecipe, par: Parallelism, *given: str) -> Pace:
    hardware = ft.load_hardware(gpu)
    return Pace(Launch(ft.load_model(model), hardware, recipe, par, given=frozenset(given)), topology_of(hardware))


def found(pace: Pace, most: int = 20) -> dict[str, Faster]:
    return {one.command: one for one in faster(pace, pace.speed(), pace.launch.replayed(), most)}


def test_a_switch_saves_what_a_forecast_with_it_says() -> None:
    recipe = TrainingRecipe(framework="megatron-core", recompute=Recompute(mode="full"), grad_accum=16)
    pace = pace_of("llama-3-8b", "h100", recipe, Parallelism(dp=4, tp=2, zero=1))
    made = found(pace)["--recompute none"]
    then = pace.with_launch(pace.launch.with_recipe(recompute=Recompute()))
    assert made.step_s == then.speed().step_s
    assert made.saves_s == pytest.approx(pace.speed().step_s - made.step_s)
    assert made.verdict == then.launch.replayed().verdict == "fits"


def test_only_what_fits_is_named_and_best_comes_first() -> None:
    recipe = TrainingRecipe(framework="megatron-core", recompute=Recompute(mode="full"), seq_len=8192, grad_accum=16)
    pace = pace_of("llama-3.1-70b", "h100", recipe, Parallelism(dp=4, tp=4, pp=4, zero=1))
    made = list(found(pace).values())
    saved = [one.saves_s for one in made]
    assert saved == sorted(saved, reverse=True)
    assert {one.verdict for one in made} == {"fits"}
    assert not any(one.command.startswith("--recompute none") for one in made)  # 80 GB do not hold the activations
    assert faster(pace, pace.speed(), pace.launch.replayed()) == made[:3]


def test_one_of_each_kind() -> None:
    recipe = TrainingRecipe(framework="fsdp2", seq_len=1024, grad_accum=8)
    made = found(pace_of("llama-3.2-1b", "h100", recipe, Parallelism(dp=8, zero=3)))
    assert sum(command.startswith("--micro-batch") for command in made) == 1
    assert "--compile" in made


def test_the_global_batch_stays_where_it_was_given() -> None:
    recipe, par = TrainingRecipe(seq_len=512), Parallelism()
    free = found(pace_of("gpt-2", "h100", recipe, par))
    held = found(pace_of("gpt-2", "h100", recipe, par, "global_batch"))
    assert "--micro-batch 8" in free
    assert not any("--micro-batch" in command for command in held)
    # eight samples a pass: the step is longer, and a sample cheaper
    now = pace_of("gpt-2", "h100", recipe, par).speed().step_s
    assert free["--micro-batch 8"].step_s > now
    assert free["--micro-batch 8"].saves_s == pytest.approx(now - free["--micro-batch 8"].step_s / 8)


def test_degrees_keep_the_accelerators_and_the_batch() -> None:
    recipe = TrainingRecipe(framework="megatron-core", micro_batch=2, grad_accum=4)
    pace = pace_of("llama-3-8b", "h100", recipe, Parallelism(dp=2, tp=8, zero=1))
    split = next(one for command, one in found(pace).items() if command.startswith("--tp"))
    flags = split.flags
    tp, passes = int(flags["--tp"] or 0), int(flags["--grad-accum"] or 0)
    micro = int(flags.get("--micro-batch") or 2)
    assert tp < 8
    assert micro * passes * 16 // tp == pace.launch.global_batch == 16


def test_sequences_are_divided_less_where_that_is_faster() -> None:
    recipe = TrainingRecipe(framework="megatron-core", seq_len=4096, grad_accum=8)
    pace = pace_of("llama-3-8b", "h100", recipe, Parallelism(dp=2, tp=4, cp=4, zero=1, sp=True))
    one = next(one for command, one in found(pace).items() if command.startswith("--cp"))
    cp = int(one.flags["--cp"] or 0)
    assert cp < 4
    assert int(one.flags["--grad-accum"] or 0) * int(one.flags.get("--micro-batch") or 1) * (8 // cp) == 16


def test_a_faster_network_helps_where_the_job_crosses_nodes() -> None:
    recipe = TrainingRecipe(framework="megatron-core")
    wide = pace_of("llama-3-8b", "h100", recipe, Parallelism(dp=16, tp=4, zero=1))
    assert "--nic-gbps 800" in found(wide)
    inside = pace_of("llama-3-8b", "h100", recipe, Parallelism(dp=2, tp=4, zero=1))
    assert not any("--nic-gbps" in command for command in found(inside))


def test_low_precision_only_where_there_are_units() -> None:
    recipe, par = TrainingRecipe(framework="megatron-core"), Parallelism(tp=8, sp=True)
    assert "--precision fp8" in found(pace_of("llama-3-8b", "h100", recipe, par))
    assert not any("--precision" in command for command in found(pace_of("llama-3-8b", "a100", recipe, par)))


def test_a_measured_step_scales_what_is_saved() -> None:
    pace = pace_of("llama-3.2-1b", "h100", TrainingRecipe(framework="fsdp2", seq_len=1024), Parallelism(dp=8, zero=3))
    memory, now = pace.launch.replayed(), pace.speed()
    plain, scaled = faster(pace, now, memory), faster(pace, pace.speed(2 * now.step_s), memory)
    assert [one.command for one in plain] == [one.command for one in scaled]
    assert [2 * one.saves_s for one in plain] == pytest.approx([one.saves_s for one in scaled])


def test_the_input_pipeline_keeps_its_rate() -> None:
    pace = pace_of("gpt-2", "h100", TrainingRecipe(seq_len=512), Parallelism())
    slow = replace(pace, loader_s=10 * pace.speed().step_s)
    assert not any("--micro-batch" in command for command in found(slow))  # larger batches take as much longer to load


def test_a_run_that_does_not_fit_is_told_of_faster_ones_that_do() -> None:
    recipe = TrainingRecipe(framework="fsdp2", seq_len=8192)
    pace = pace_of("llama-3-8b", "h200", recipe, Parallelism(dp=8, zero=3))
    tight = replace(pace, launch=replace(pace.launch, headroom=0.36))
    now = tight.launch.replayed()
    assert now.verdict != "fits"
    made = found(tight)
    assert made
    assert all(one.verdict == "fits" or one.total_bytes <= now.total_bytes for one in made.values())


def test_a_model_of_many_different_layers_is_told_what_was_not_tried() -> None:
    pace = pace_of("sd-1.5-unet", "h100", TrainingRecipe(framework="fsdp2", seq_len=1), Parallelism(dp=8, zero=3))
    made = faster(pace, pace.speed(), pace.launch.replayed())
    assert made.untried > 0
    uniform = pace_of("gpt-2", "h100", TrainingRecipe(seq_len=512), Parallelism())
    assert faster(uniform, uniform.speed(), uniform.launch.replayed()).untried == 0
