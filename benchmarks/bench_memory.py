"""Memory questions: one answer warm, a mixed sweep from cold, its memory, and plain loops beside it.

Times are CPU seconds of this process, which has one thread: what one core does, whoever else uses the machine.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported

import resource
import sys
import time

import foretell as ft
from foretell.core.solver import TrainingMemoryModel

SOLVE_LIMIT_S = 1e-3
SWEEP_LIMIT_PER_S = 300_000
RSS_LIMIT_BYTES = 2e9
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
AXES = {
    "pp_size": [1, 2, 4, 8],
    "zero_stage": [0, 1, 2, 3],
    "tp_size": [1, 2, 4, 8],
    "dp_size": [1, 2, 4, 8, 16, 32, 64, 128],
    "gradient_accumulation_steps": [1, 2, 4, 8, 16],
    "micro_batch": [1, 2, 3, 4, 6, 8, 12, 16],
    "seq_len": [512 * i for i in range(1, 50)],
}


def loop_per_s(seconds: float = 0.5) -> float:
    """Return answers per second of a plain Python loop over the textbook formula (2+2+12 bytes, 34 s b h)."""
    n, done, end = 8.03e9, 0, time.process_time() + seconds
    while time.process_time() < end:
        for seq in range(1, 101):
            shard = n / (2 * 4)
            total = 2 * shard + 2 * shard / 8 + 12 * shard / 8 + 34.0 * seq * 4096 * 32 / 4 / 2
            done += total > 0
    return done / seconds


def main() -> int:
    """Measure, print, and return how many limits are passed."""
    model, device, solver = ft.load_model(CONFIG), ft.load_hardware("h100"), TrainingMemoryModel()
    worst = 0.0
    for settings in ({}, {"framework": "torchtitan", "zero_stage": 3}, {"pp_size": 8, "framework": "megatron-core"}):
        one = {"batch_size": 64, "dp_size": 8, "precision": "bf16", "gradient_accumulation_steps": 8} | settings
        solver.solve(model, device, **one)
        start = time.process_time()
        for _ in range(200):
            solver.solve(model, device, **one)
        worst = max(worst, (time.process_time() - start) / 200)
    print(f"solve, warm, slowest of three: {worst * 1e6:.0f} us, limit {SOLVE_LIMIT_S * 1e6:.0f} us")
    start = time.process_time()
    table = solver.sweep(model, device, precision="bf16", **AXES)
    cold = len(table) / (time.process_time() - start)
    start = time.process_time()
    solver.sweep(model, device, precision="bf16", **AXES)
    warm = len(table) / (time.process_time() - start)
    print(f"sweep of {len(table):,}: {cold:,.0f}/s cold, {warm:,.0f}/s warm, limit {SWEEP_LIMIT_PER_S:,}/s")
    print(
        f"one by one: solve {1 / worst:,.0f}/s (the sweep: {cold * worst:,.0f} times that), "
        f"the textbook formula in a plain loop {loop_per_s():,.0f}/s"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak memory {peak / 1e9:.2f} GB, limit {RSS_LIMIT_BYTES / 1e9:.0f} GB")
    return int(worst > SOLVE_LIMIT_S) + int(cold < SWEEP_LIMIT_PER_S) + int(peak > RSS_LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
