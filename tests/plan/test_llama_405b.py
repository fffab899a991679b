"""Llama 3.1 405B from its public facts (arXiv 2407.21783, model card): what was published lies in the 80 % band."""

from __future__ import annotations

import pytest

from foretell import load_fleet, load_model
from foretell.core.speed import speed
from foretell.plan.business import Business
from foretell.plan.launch import Launch
from foretell.plan.whole_run import RunForecast, whole_run
from foretell.recipe import Parallelism, TrainingRecipe

GPUS = 16_384
PUBLISHED = {
    "gpu_hours": 30.84e6,
    "wall_days": 30.84e6 / GPUS / 24,
    "interruptions": 419 / 54 * 30.84e6 / GPUS / 24,
    "it_energy_kwh": 30.84e6 * 0.7,  # the card's: GPU-hours at 700 W
    "operational_carbon_kg": 8.93e6,
}
CHUNKS = {8: (0, *(1,) * 126, 0), 4: (1, *(2,) * 62, 1)}
"""Chunks a rank, which are not public -> layers of each chunk: 126 layers, one less on the first and the last stage."""


def run(chunks: int) -> RunForecast:
    fleet = load_fleet("hgx-h100", GPUS // 8)
    recipe = TrainingRecipe(precision="bf16", seq_len=8192, micro_batch=1, grad_accum=16, framework="megatron-core")
    par = Parallelism(dp=128, tp=8, pp=16, vpp=chunks, sp=True, zero=1, layout=CHUNKS[chunks])
    model = load_model("llama-3.1-405b")
    found = speed(model, recipe=recipe, parallelism=par, fleet=fleet)
    launch = Launch(model, fleet.accelerator, found.run.recipe, found.run.par)
    return whole_run(launch, found, fleet, 15.6e12, Business(failure_rate=3.789, region="us-average", node_power_w=5600.0))


@pytest.mark.parametrize("chunks", CHUNKS)
def test_what_was_published_lies_in_the_band(chunks: int) -> None:
    found = run(chunks)
    for name, value in PUBLISHED.items():
        band = found.bands[name]
        assert band.p10 <= value <= band.p90, (name, value, band)
    assert found.bands["goodput_ratio"].p90 >= 0.90  # "higher than 90 % effective training time"
    assert found.bands["mtbf_hours"].point == pytest.approx(3.0931, rel=1e-4)
