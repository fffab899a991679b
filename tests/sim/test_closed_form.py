"""The closed form and the simulator are two ways to the same numbers: a server in its steady state."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import point, serve
from foretell.recipe.serving import ServingRecipe
from foretell.sim.serving import play

MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3-8b", "h100", {}),
    ("llama-3-8b", "a100", {"version": "0.7.3"}),
    ("mixtral-8x7b", "h200", {"tp": 2}),
    ("llama-3-70b", "h200", {"tp": 4, "weights": "fp8", "engine": "tensorrt-llm"}),
    ("qwen2.5-7b", "l40s", {}),
)


def drawn(seed: int) -> tuple[Deployment, Demand]:
    rng = random.Random(seed)  # noqa: S311  # no secret
    model, gpu, flags = MODELS[seed % len(MODELS)]
    found = deployment(model, gpu, ServingRecipe(max_model_len=16384, **flags))
    inputs, outputs = rng.randint(64, 4000), rng.randint(64, 800)
    load: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "longest": 3 * outputs, "input_cv": 0.5}
    if seed % 2:
        return found, Demand("closed", concurrency=float(rng.choice((1, 4, 16, 48, 96))), **load)
    top = serve(found, Demand("offline", **load)).capacity_requests_per_s
    assert top is not None
    return found, Demand("open", rate=top * rng.uniform(0.2, 0.7), **load)


@pytest.mark.parametrize("seed", range(20))
def test_they_agree_in_the_steady_state(seed: int) -> None:
    found, demand = drawn(seed)
    said = point(found, demand)
    in_flight = demand.concurrency or (demand.rate or 0.0) * (said.ttft + demand.outputs * said.itl)
    requests = int(max(2000 if demand.kind == "open" else 400, 12 * in_flight))
    whole = requests / (said.rate * found.replicas)
    seen = play(found, demand, requests=requests, seed=seed, window=(0.25 * whole, 0.8 * whole))
    assert seen.tpot.mean == pytest.approx(said.itl, rel=0.10)
    # counted over a window of few requests, a rate has its own spread
    counted = seen.ttft.count
    assert seen.output_tokens_per_s == pytest.approx(said.rate * demand.outputs, rel=0.10 + 2.0 / math.sqrt(counted))


def test_a_job_takes_as_long_as_it_is_said_to() -> None:
    found = deployment("llama-3-8b", "h100", ServingRecipe(max_model_len=4096, max_num_seqs=128), offline=True)
    for requests, longest in ((100, 512), (100, None), (1000, 512), (3000, 512)):
        demand = Demand("offline", inputs=256, outputs=348, longest=longest, requests=requests)
        said = serve(found, demand)
        seen = play(found, demand)
        assert said.requests_per_s is not None
        assert requests / said.requests_per_s == pytest.approx(seen.duration_s, rel=0.10)
