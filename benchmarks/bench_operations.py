"""Operations: one answer of each solver, and its sweeps in rows a second, beside a reference loop on the same core."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable

import numpy as np
from clock import best, reference

from foretell import load_hardware, load_model
from foretell.core.solver import CheckpointModel, EconomicsModel, ReliabilityModel, SustainabilityModel
from foretell.machine import load_fleet

SOLVE_LIMIT_S = 0.5e-3
ROWS_LIMIT = {"reliability": 300_000, "checkpoint": 300_000, "cost": 300_000, "footprint": 300_000}
"""Least rows a second."""
TODAY = dt.date(2026, 11, 30)
AXIS = 100
"""Values of each of three axes."""


def main() -> int:
    """Print all and fail over a limit."""
    fleet, model, gpu = load_fleet("dgx-h100", 2048), load_model("llama-3-8b"), load_hardware("h100")
    times, counts, shares = np.linspace(1.0, 300.0, AXIS), range(1, AXIS + 1), np.linspace(0.1, 1.0, AXIS)
    fails, saves, costs, prints = ReliabilityModel(), CheckpointModel(), EconomicsModel(), SustainabilityModel()
    work: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "reliability": (
            lambda: fails.solve(fleet, 720, 60),
            lambda: fails.sweep(fleet, job_duration_hours=times, checkpoint_time_s=times, nodes=counts),
        ),
        "checkpoint": (
            lambda: saves.solve(model, gpu, n_writers=64),
            lambda: saves.sweep(model, gpu, checkpoint_interval_hours=times, n_writers=counts, filesystem_limit_gbs=times),
        ),
        "cost": (
            lambda: costs.solve(fleet, 30, datacenter="us-iowa", today=TODAY),
            lambda: costs.sweep(fleet, duration_days=times, nodes=counts, utilisation=shares, today=TODAY),
        ),
        "footprint": (
            lambda: prints.solve(fleet, 30, "us-iowa"),
            lambda: prints.sweep(fleet, duration_days=times, nodes=counts, utilisation=shares, datacenter="us-iowa"),
        ),
    }
    loop, over = reference(), False
    for name, (solve, sweep) in work.items():
        solve()
        one = best(solve, 200)
        rows = AXIS**3 / best(sweep, 2)
        limits = f"limits {1e3 * SOLVE_LIMIT_S:.1f} ms and {ROWS_LIMIT[name]:,} rows/s"
        print(f"{name:12s} one answer {1e3 * one:6.3f} ms, {one / loop:.4f} reference loops; {rows:12,.0f} rows/s  ({limits})")
        over = over or one > SOLVE_LIMIT_S or rows < ROWS_LIMIT[name]
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
