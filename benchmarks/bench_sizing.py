"""Sizing a fleet over some 200 configurations, tables made and warm, and a plain loop over a textbook formula beside it.

Times are CPU seconds of this process, which has one thread: what one core does, whoever else uses the machine.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported

import sys
import time
from typing import Any

import foretell as ft
from foretell.core.serving_demand import Demand
from foretell.plan.serving_size import size

LIMIT_LOOPS = 4_000_000
"""200 configurations take as long as so many turns of the plain loop (1 s on a core of 2024)."""
SPACE: dict[str, Any] = {
    "hardware": ["h100", "h200"],
    "weights": ["bf16", "fp8"],
    "tp": [1, 2, 4, 8],
    "max_num_seqs": [None, 32, 128, 256],
    "max_num_batched_tokens": [None, 2048, 16384],
}


def loop_per_s(seconds: float = 0.5) -> float:
    """Return turns per second of a plain Python loop over the textbook formula of a decoding step: two roofs."""
    done, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        for batch in range(1, 101):
            step = max(16.06e9 / 3.35e12 + batch * 2048 * 131072 / 3.35e12, 2 * 8.03e9 * batch / 989e12)
            done += step > 0
    return done / seconds


def main() -> int:
    """Measure, print, and return how many limits are passed."""
    loop, over = loop_per_s(), 0
    model = ft.load_model("llama-3.1-8b")
    for name, slo in (
        ("p99 TTFT and ITL", "ttft=1s,itl=50ms"),
        ("p99, mean and whole requests", "ttft=1s,mean-itl=50ms,e2e=30s"),
    ):
        took = []
        for _ in range(4):
            start = time.process_time()
            found = size(model, Demand("open", 1000, 300, rate=30.0), slo, **SPACE)
            took.append((time.process_time() - start) * 200 / len(found.options))
        first, best = took[0] * loop, min(took) * loop
        over += best > LIMIT_LOOPS
        print(f"{name}: 200 configurations in {took[0]:.2f} s the first time, then {min(took):.2f} s")
        print(f"  {first:,.0f} and {best:,.0f} turns of the plain loop, limit {LIMIT_LOOPS:,}")
    return over


if __name__ == "__main__":
    sys.exit(main())
