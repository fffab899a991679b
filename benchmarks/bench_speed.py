"""Questions of speed: one training step and one forward pass warm, mixed sweeps from cold, and plain loops beside them.

Times are CPU seconds of this process, which has one thread: what one core does, whoever else uses the machine.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import foretell as ft
from foretell.core.solver import DistributedModel, MoERoutingModel, SingleNodeModel

SOLVE_LIMIT_LOOPS = 12_000
"""A training step takes as long as so many turns of the plain loop (2 ms on a core of 2024)."""
SWEEP_LIMIT_PER_S = 100_000
RSS_LIMIT_BYTES = 2e9
AXES: dict[str, Any] = {
    "batch_size": [512 * i for i in range(1, 41)],
    "microbatch_count": [1, 2, 4, 5, 8, 10, 16, 20, 32, 40],
    "seq_len": [1024 * i for i in range(1, 17)],
    "tp_size": [1, 2, 4, 8],
    "pp_size": [1, 2, 4, 8],
    "zero_stage": [0, 1],
}


def loop_per_s(seconds: float = 0.5) -> float:
    """Return answers per second of a plain Python loop over the textbook formula: 6 N D over half the peak, ring, bubble."""
    n, done, end = 8.03e9, 0, time.process_time() + seconds
    while time.process_time() < end:
        for seq in range(1, 101):
            compute = 6 * n * seq * 8 / (2 * 4 * 0.5 * 989e12)
            ring = 2 * 7 / 8 * 2 * n / (2 * 4) / 50e9
            step = compute * (1 + 3 / 8) + ring
            done += step > 0
    return done / seconds


def spent(call: Callable[[], object], times: int) -> float:
    """Return the fewest CPU seconds of a call over three rounds."""
    call()
    found = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(times):
            call()
        found.append((time.process_time() - start) / times)
    return min(found)


def main() -> int:
    """Measure, print, and return how many limits are passed."""
    loop, over = loop_per_s(), 0
    large, small = ft.load_model("llama-3-70b"), ft.load_model("llama-3-8b")
    experts, fleet = ft.load_model("mixtral-8x7b"), ft.load_fleet("dgx-h100", 64)
    node = fleet.accelerator
    steps: dict[str, tuple[ft.Workload, dict[str, Any]]] = {
        "8B data-parallel": (small, {"batch_size": 512}),
        "70B tp 8 pp 4": (large, {"batch_size": 1024, "tp_size": 8, "pp_size": 4, "microbatch_count": 16}),
        "8x7B ep 8": (experts, {"batch_size": 512, "ep_size": 8}),
    }
    for name, (model, asked) in steps.items():
        took = spent(lambda: DistributedModel().solve(model, fleet, efficiency="calibrated", **asked), 50)  # noqa: B023
        over += took * loop > SOLVE_LIMIT_LOOPS
        print(f"step of {name}: {took * 1e3:.2f} ms, {took * loop:,.0f} turns of the plain loop, limit {SOLVE_LIMIT_LOOPS:,}")
    took = spent(lambda: SingleNodeModel().solve(small, node, batch_size=32), 200)
    print(f"forward pass: {took * 1e3:.2f} ms, {took * loop:,.0f} turns of the plain loop")
    took = spent(lambda: MoERoutingModel().solve(experts, 8, 4096, ep_size=8, fleet=fleet), 200)
    print(f"routing: {took * 1e3:.2f} ms, {took * loop:,.0f} turns of the plain loop")
    for share in (0.5, "calibrated"):
        start = time.process_time()
        table = DistributedModel().sweep(small, fleet, efficiency=share, **AXES)
        rate = len(table) / (time.process_time() - start)
        over += rate < SWEEP_LIMIT_PER_S
        valid = int(table["valid"].sum())
        print(f"sweep of {len(table):,} steps ({valid:,} can run), {share}: {rate:,.0f}/s, limit {SWEEP_LIMIT_PER_S:,}/s")
    start = time.process_time()
    batches = SingleNodeModel().sweep(small, node, batch_size=list(range(1, 513)), seq_len=[64 * i for i in range(1, 129)])
    print(f"sweep of {len(batches):,} forward passes: {len(batches) / (time.process_time() - start):,.0f}/s")
    print(f"the textbook formula in a plain loop {loop:,.0f}/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak memory {peak / 1e9:.2f} GB, limit {RSS_LIMIT_BYTES / 1e9:.0f} GB")
    return over + int(peak > RSS_LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
