"""From forecasts of speed and memory to the `result` of `train`: plain data, keys with their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from foretell.core.forecast import Forecast
from foretell.core.speed import SpeedForecast
from foretell.cost.operator_times import Operators, OperatorTime
from foretell.cost.software import calibration
from foretell.plan import Launch
from foretell.plan.faster import Faster
from foretell.report.fit import STAGED
from foretell.report.run import run_of

if TYPE_CHECKING:
    from foretell.plan.whole_run import RunForecast

__all__ = ["CONVENTIONS", "result_of"]

CONVENTIONS: Final = {
    "mfu": "model FLOP of a causal model, 6N + 6Lds a token, over the peak; nothing that is computed again",
    "mfu_full_attention": "the same with the pairs that the mask leaves out counted too, 6N + 12Lds a token",
    "hfu": "everything that runs, recomputation included, over the peak",
}
"""What each utilisation counts (N parameters that multiply, L layers, d width, s sequence)."""
_HOUR: Final = 3600.0


def result_of(
    launch: Launch,
    speed: SpeedForecast,
    memory: Forecast,
    operators: Operators | None = None,
    suggestions: Sequence[Faster] = (),
    tokens: float | None = None,
    assumed: Sequence[str] = (),
    run: RunForecast | None = None,
) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/train.json` describes it."""
    model = launch.workload
    return {
        "model": model.name,
        "parameters": model.parameters,
        "layers": None if model.architecture.family in STAGED else model.architecture.layers,
        "gpu": launch.hardware.name,
        "runs": memory.verdict != "does_not_fit",
        "step_s": speed.step_s,
        "interval_s": list(speed.interval_s),
        "interval_basis": interval_basis(speed),
        "samples_per_second": speed.samples_per_second,
        "tokens_per_second": speed.tokens_per_second,
        "tokens_per_second_per_device": speed.tokens_per_second_per_device,
        "mfu": speed.mfu,
        "mfu_full_attention": speed.mfu_full_attention,
        "hfu": speed.hfu,
        "conventions": CONVENTIONS,
        "model_flops": speed.model_flops,
        "peak_flops_per_s": speed.peak_flops_per_s,
        "breakdown": dict(speed.breakdown),
        "bottleneck": speed.bottleneck,
        "shares": dict(speed.shares),
        "bubble_s": speed.bubble_s,
        "bubble_fraction": speed.bubble_fraction,
        "communication_s": speed.communication_s,
        "exposed_communication_s": speed.exposed_communication_s,
        "per_stage": _stages(speed, memory),
        "operators": None if operators is None else _operators(operators),
        "memory": _memory(memory),
        "suggestions": [suggestion.to_dict() for suggestion in suggestions],
        **_run(launch, speed, tokens),
        "run": None if run is None else run_of(run),
        "measured_step_s": speed.measured_step_s,
        "anchor": speed.anchor,
        "regime": speed.regime,
        "assumed": list(assumed),
    }


def interval_basis(speed: SpeedForecast) -> str:
    """Say where the interval comes from."""
    if speed.anchor is not None:
        return "90 %, what repeated runs of one configuration differ by"
    rows = calibration()["regimes"][speed.regime].get("rows", 0)
    if speed.regime.endswith("elsewhere"):
        return "90 %, of set-ups that no measured run is like, widened" + (f" ({rows} runs)" if rows else "")
    return f"90 % of {rows} measured runs ({speed.regime})" if rows else f"90 %, preliminary ({speed.regime})"


def _memory(memory: Forecast) -> dict[str, Any]:
    low, high = memory.interval_bytes
    return {
        "verdict": memory.verdict,
        "fits": memory.fits,
        "total_bytes": round(memory.total_bytes),
        "interval_bytes": [round(low), round(high)],
        "available_bytes": round(memory.available_bytes),
        "headroom_bytes": round(memory.headroom_bytes),
        "peak_phase": memory.peak_phase,
    }


def _stages(speed: SpeedForecast, memory: Forecast) -> list[dict[str, Any]]:
    """Return what each pipeline rank spends on one micro-batch, forward and backward, and what it holds."""
    scale = speed.anchor or 1.0
    held = {row["stage"]: row for row in memory.per_stage}
    out = []
    for row, spent in zip(speed.per_stage, speed.time.passes, strict=True):
        about = held.get(row["stage"], {})
        exchanged = spent.tp + spent.ep + spent.cp + spent.dp
        out.append(
            {
                "stage": row["stage"],
                "layers": about.get("layers"),
                "micro_batch_s": row["micro_batch_s"],
                "compute_s": scale * (spent.matmul + spent.experts + spent.attention),
                "memory_s": scale * spent.stream,
                "exchanges_s": scale * exchanged,
                "host_s": scale * spent.host,
                "total_bytes": round(about["total_bytes"]) if about else None,
            }
        )
    return out


def _operators(found: Operators) -> dict[str, Any]:
    return {
        "layers": found.layers,
        "recompute": found.recompute,
        "ridge_flops_per_byte": found.ridge,
        "rows": [_operator(row) for row in found.rows],
    }


def _operator(row: OperatorTime) -> dict[str, Any]:
    return {
        "name": row.name,
        "forward_s": row.forward_s,
        "backward_s": row.backward_s,
        "flops": row.flops,
        "bytes": row.moved_bytes,
        "flops_per_byte": row.intensity,
        "ridge_flops_per_byte": row.ridge,
        "bound": row.bound,
        "computed_again": row.again,
    }


def _run(launch: Launch, speed: SpeedForecast, tokens: float | None) -> dict[str, Any]:
    """Return how long a run of so many tokens takes; without failures and restarts."""
    names = ("tokens", "steps", "hours", "days", "days_interval", "gpu_hours", "gpu_hours_interval")
    if tokens is None:
        return dict.fromkeys(names)
    steps = math.ceil(tokens / (launch.global_batch * launch.recipe.seq_len))
    hours, low, high = (steps * seconds / _HOUR for seconds in (speed.step_s, *speed.interval_s))
    gpus = launch.gpus
    values = (tokens, steps, hours, hours / 24, [low / 24, high / 24], hours * gpus, [low * gpus, high * gpus])
    return dict(zip(names, values, strict=True))
