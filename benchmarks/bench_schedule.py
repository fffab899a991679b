"""Pipeline schedules: one step of 16 ranks and 512 micro-batches pass by pass, and a sweep, beside plain loops.

Times are CPU seconds of this process, which has one thread: what one core does, whoever else uses the machine.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported

import sys
import time
from collections.abc import Callable

import numpy as np

from foretell.cost.schedule import step_seconds
from foretell.cost.schedule_events import simulate

PP, MICRO_BATCHES = 16, 512
LOOP_LIMIT = 80  # simulation over the plain loop of as many passes
STEP_LIMIT_S = 0.5
SWEEP_LIMIT_PER_S = {"1f1b": 200_000, "interleaved-1f1b": 100_000, "zb-h1": 15_000}
CHUNKS = {"interleaved-1f1b": 4, "zb-v": 2}
KINDS = {"zb-h1": 3, "zb-v": 3}


def best(call: Callable[[], object], times: int = 3) -> float:
    """Return the fewest CPU seconds of a few calls."""
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def loop(passes: int) -> float:
    """Run what no simulation can do without: for every pass a look at its input, a comparison and a sum."""
    done = [0.0] * (passes + 1)
    now = 0.0
    for i in range(passes):
        ready = done[i] + 0.1
        now = (ready if ready > now else now) + 1.0  # noqa: FURB136  # as the simulation writes it
        done[i + 1] = now
    return now


def simulations() -> int:
    """Simulate every schedule; return how many are over a limit."""
    over = 0
    for schedule in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe"):
        chunks = CHUNKS.get(schedule, 1)
        times = [[1.0 / chunks] * chunks for _ in range(PP)]
        seconds = best(lambda: simulate(schedule, times, times, times, micro_batches=MICRO_BATCHES, p2p=0.01))  # noqa: B023
        passes = PP * MICRO_BATCHES * chunks * KINDS.get(schedule, 2)
        ratio = seconds / best(lambda: loop(passes))  # noqa: B023
        over += seconds > STEP_LIMIT_S or ratio > LOOP_LIMIT
        print(
            f"{schedule}, {passes:,} passes: {seconds * 1e3:.0f} ms, {ratio:.1f} times the plain loop, limit {LOOP_LIMIT} times"
        )
    return over


def sweeps(size: int = 2000) -> int:
    """Ask for the step of many configurations at once; return how many sweeps are below their limit."""
    over = 0
    rng = np.random.default_rng(0)
    for schedule, limit in SWEEP_LIMIT_PER_S.items():
        chunks = CHUNKS.get(schedule, 1)
        layer = rng.uniform(0.5, 2.0, size)
        times = [[layer for _ in range(chunks)] for _ in range(PP)]
        times[-1][-1] = layer * 1.5
        m = PP * rng.integers(1, 33, size)
        seconds = best(lambda: step_seconds(schedule, times, times, times, micro_batches=m, p2p=0.01, exposed=0.0))  # noqa: B023
        over += size / seconds < limit
        print(f"sweep of {schedule}, {PP} ranks of {chunks}: {size / seconds:,.0f}/s, limit {limit:,}/s")
    return over


if __name__ == "__main__":
    sys.exit(simulations() + sweeps())
