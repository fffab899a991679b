"""Serving: one forecast of a deployment, and a simulation of 10,000 requests, beside a reference loop on the same core."""

from __future__ import annotations

import sys

from clock import best, reference

from foretell import load_hardware, load_model
from foretell.core.serving import deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import serve
from foretell.recipe.serving import ServingRecipe
from foretell.sim.serving import play

SOLVE_LIMIT_S = 2e-3
SIMULATION_LIMIT_S = 10.0


def main() -> int:
    """Print both and fail over the limits."""
    model, gpu = load_model("llama-3-8b"), load_hardware("h100")
    found = deployment(model, gpu, ServingRecipe(max_model_len=8192))
    demand = Demand("open", inputs=500, outputs=250, rate=20.0)
    serve(found, demand)
    solve = best(lambda: serve(deployment(model, gpu, ServingRecipe(max_model_len=8192)), demand), 50)
    simulated = best(lambda: play(found, demand, requests=10_000), 1)
    loop = reference()
    limits = (f"limit {1e3 * SOLVE_LIMIT_S:.0f} ms", f"limit {SIMULATION_LIMIT_S:.0f} s")
    print(f"one serving forecast        {1e3 * solve:8.3f} ms  ({limits[0]}), {solve / loop:.3f} reference loops")
    print(f"10,000 requests simulated   {simulated:8.3f} s   ({limits[1]}), {simulated / loop:.1f} reference loops")
    return int(solve > SOLVE_LIMIT_S or simulated > SIMULATION_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
