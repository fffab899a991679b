"""The roofline of the main layer: its rows are the pass."""

from __future__ import annotations

import pytest

from foretell.arch import load_model
from foretell.core.speed import SpeedForecast, speed
from foretell.cost.operator_times import Operators, operator_times
from foretell.cost.stage_time import recomputed, stage_works
from foretell.cost.step_time import device_parts
from foretell.recipe import Parallelism, Recompute, TrainingRecipe

RUNS = {
    "eager": ("llama-3-8b", "h100", TrainingRecipe(framework="fsdp2", seq_len=2048), Parallelism(dp=8, zero=3)),
    "again": (
        "llama-3-8b",
        "h100",
        TrainingRecipe(framework="megatron-core", recompute=Recompute(mode="full")),
        Parallelism(dp=2, tp=4),
    ),
    "some again": ("llama-3-8b", "h100", TrainingRecipe(recompute=Recompute(mode="selective")), Parallelism()),
    "experts": ("mixtral-8x7b", "b200", TrainingRecipe(framework="megatron-core", precision="fp8"), Parallelism(dp=8, ep=8)),
    "images": ("resnet-50", "a100", TrainingRecipe(micro_batch=32, seq_len=1), Parallelism()),
}


def asked(name: str) -> tuple[SpeedForecast, Operators]:
    model, gpu, recipe, par = RUNS[name]
    found = speed(model, gpu, recipe, par)
    made = operator_times(load_model(model).architecture, found.run, found.priced)
    assert made is not None
    return found, made


@pytest.mark.parametrize("name", RUNS)
def test_the_rows_sum_to_the_pass(name: str) -> None:
    found, made = asked(name)
    pricer, soft = found.priced.pricer, found.priced.software(found.run)
    assert pricer is not None
    architecture = load_model(RUNS[name][0]).architecture
    sums = []
    for stage in stage_works(architecture, found.run):
        for chunk in stage.chunks:
            for _, mode, works in chunk:
                passes = pricer.block(works, recomputed(found.run, mode))
                back = passes.again + passes.backward + passes.weights
                flops = passes.forward.flops + back.flops
                sums.append((device_parts(passes.forward, soft).total, device_parts(back, soft).total, flops))
    rows = made.rows
    here = (sum(r.forward_s for r in rows), sum(r.backward_s for r in rows), sum(r.flops for r in rows))
    assert any(here == pytest.approx(one) for one in sums)


def test_a_row_is_its_shape() -> None:
    _, made = asked("eager")
    assert made.layers == 32
    row = next(r for r in made.rows if r.name == "q_proj")
    tokens, width = 2048, 4096
    assert row.flops == 3 * 2 * tokens * width * width
    assert row.moved_bytes == 3 * 2 * (2 * tokens * width + width * width)  # bf16: two operands and a result, three times
    assert row.intensity == pytest.approx(row.flops / row.moved_bytes)
    assert row.ridge == pytest.approx(989.4e12 / 3.35e12, rel=0.01)
    assert row.bound == "compute"
    assert {r.bound for r in made.rows if r.name.startswith("norm")} == {"memory"}


def test_what_runs_again_is_said_and_counted() -> None:
    _, none = asked("eager")
    _, full = asked("again")
    _, some = asked("some again")
    assert not any(r.again for r in none.rows)
    assert all(r.again for r in full.rows if r.forward_s)
    assert {r.name for r in some.rows if r.again} == {"attn"}
    down = next(r for r in full.rows if r.name == "down_proj")
    assert down.flops == 4 * 2 * 4096 * 14336 / 4 * 4096


def test_small_kernels_are_bound_by_their_launch() -> None:
    found = speed("gpt-2", "h100", TrainingRecipe(seq_len=16), Parallelism())
    made = operator_times(load_model("gpt-2").architecture, found.run, found.priced)
    assert made is not None
    assert {r.bound for r in made.rows} == {"launch"}


def test_one_rate_for_all_has_no_operators() -> None:
    found = speed("gpt-2", "h100", TrainingRecipe(seq_len=16), Parallelism(), efficiency=0.5)
    assert operator_times(load_model("gpt-2").architecture, found.run, found.priced) is None
