"""Questions about failing jobs and their checkpoints -> the library's own formulas, in seconds, bytes and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.evidence.operations_given import Given
from foretell.operations import failures, goodput, intervals, saving

__all__ = ["ANSWERS", "DAY_S", "HOUR_S", "YEAR_D"]

Answer = float | tuple[float, float, float]
DAY_S: Final = 86400.0
HOUR_S: Final = 3600.0
YEAR_D: Final = 365.0
_RATE = "failures_per_1000_node_days"


# -- reliability --------------------------------------------------------------------------------------------------------------


def _nodes(given: Given) -> float:
    """Return the nodes, stated or from GPUs."""
    if given.has("nodes"):
        return given.number("nodes")
    return given.number("gpus", "accelerators") / given.number("gpus_per_node", default=8.0)


def _failures(given: Given) -> float:
    return given.number("failures_count", "interruptions_count", "failures", "interruptions")


def _observed(given: Given) -> float:
    return given.time("observation", "duration")


def _job_rate(given: Given, ending: str = "") -> float:
    """Return failures of the job a second."""
    mtbf_s = HOUR_S * failures.job_mtbf_h(given.number(_RATE + ending), _nodes(given))
    return 1.0 / float(mtbf_s)


def _ettr(given: Given, ending: str = "") -> float:
    """Return the effective training time ratio at one end of the rate, and of the times that have ends."""
    between = given.time("interval", "checkpoint_interval") if given.matching("interval") else None
    restart, block = (_end(given, ending, *stems) for stems in (("restart", "recovery"), ("checkpoint_block", "block")))
    return float(goodput.ettr(_job_rate(given, ending), restart, block, between))


def _end(given: Given, ending: str, *stems: str) -> float:
    """Return a time that may be given as one, or as a low and a high one (`restart_low_s`)."""
    return given.time(*(f"{stem}{ending}" for stem in stems)) if _ended(given, stems) else given.time(*stems)


def _ended(given: Given, stems: tuple[str, ...]) -> bool:
    return any(given.matching(f"{stem}_high") for stem in stems)


def _ettr_range(given: Given) -> Answer:
    worst, best = _ettr(given, "_high"), _ettr(given, "_low")
    return worst, (worst + best) / 2, best


def _expected(given: Given, ending: str = "") -> float:
    return given.time("duration", "observation") * _job_rate(given, ending)


def _expected_range(given: Given) -> Answer:
    low, high = _expected(given, "_low"), _expected(given, "_high")
    return low, (low * high) ** 0.5, high


def _uptime(given: Given) -> float:
    """Return the share of time that a job is up: failures x the time of each over all, M/(M + R), or the times themselves."""
    if given.matching("uptime"):
        return given.time("uptime") / given.time("total", "observation", "duration")
    down = given.time("restart", "recovery", "downtime", "mttr", "repair")
    if given.matching("mtbf") or given.matching("mttf"):
        return float(failures.availability(given.time("mtbf", "mttf", "job_mtbf"), down))
    if given.has(_RATE):
        return float(failures.availability(1.0 / _job_rate(given), down))
    count = _failures(given) if given.matching("failures") or given.matching("interruptions") else 1.0
    return 1.0 - count * down / given.time("observation", "duration", "total")


def _any_failure(given: Given) -> float:
    share = given.number("annual_failure_fraction") * given.time("duration") / (YEAR_D * DAY_S)
    return float(failures.with_units(share, given.number("units", "gpus", "nodes")))


# -- checkpoints --------------------------------------------------------------------------------------------------------------


def _block(given: Given) -> tuple[float, float]:
    return given.time("checkpoint_block", "block"), given.time("mtbf")


def _four(given: Given) -> tuple[float, float, float, float]:
    block, mtbf = _block(given)
    return given.time("interval"), block, mtbf, given.time("restart", "recovery")


def _size(given: Given) -> float:
    return given.count("parameters") * given.number("bytes_per_parameter")


ANSWERS: Final[Mapping[str, Callable[[Given], Any]]] = {
    "reliability.mean_time_to_interruption": lambda g: _observed(g) / _failures(g),
    "reliability.failure_rate": lambda g: failures.rate_of(_failures(g), _nodes(g), _observed(g) / DAY_S),
    "reliability.gpu_hours_per_interruption": lambda g: g.number("gpus") * _observed(g) / HOUR_S / _failures(g),
    "reliability.expected_interruptions": _expected,
    "reliability.expected_interruptions_range": _expected_range,
    "reliability.job_mttf": lambda g: 1.0 / _job_rate(g),
    "reliability.job_mttf_scaled": lambda g: g.time("reference_mttf") * g.number("reference_gpus") / g.number("gpus"),
    "reliability.probability_of_failure": _any_failure,
    "reliability.probability_exponential": lambda g: failures.failure_probability(g.number("duration_over_mean"), 1.0),
    "reliability.probability_weibull": lambda g: failures.weibull_probability(
        g.number("duration_over_mean"), 1.0, g.number("weibull_shape")
    ),
    "reliability.first_failure_of_fresh_units": lambda g: failures.first_of_fresh(g.number("units"), g.number("weibull_shape")),
    "reliability.ettr": _ettr,
    "reliability.ettr_range": _ettr_range,
    "reliability.job_uptime": _uptime,
    "reliability.gpu_hours_lost": lambda g: g.number("gpus") * g.time("lost") / HOUR_S,
    "reliability.maximum_lost_work": lambda g: g.number("interval_iterations") * g.time("step"),
    "checkpoint.size": _size,
    "checkpoint.size_per_gpu": lambda g: _size(g) / g.number("gpus"),
    "checkpoint.write_time": lambda g: saving.transfer_s(_size(g), g.only_rate()),
    "checkpoint.write_bandwidth": lambda g: _size(g) / g.time("write"),
    "checkpoint.blocking_fraction": lambda g: saving.blocked_share(g.time("checkpoint_block"), g.time("interval")),
    "checkpoint.relative_mfu": lambda g: 1.0 - saving.blocked_share(g.time("checkpoint_block"), g.time("step")),
    "checkpoint.interval.square_root": lambda g: intervals.square_root(*_block(g)),
    "checkpoint.interval.first_order": lambda g: intervals.first_order(*_block(g)),
    "checkpoint.interval.higher_order": lambda g: intervals.higher_order(*_block(g)),
    "checkpoint.interval.exact": lambda g: intervals.exact(*_block(g)),
    "checkpoint.interval.availability_optimal": lambda g: intervals.availability_optimal(*_block(g), g.time("restart")),
    "checkpoint.efficiency.complete_model": lambda g: intervals.complete_efficiency(*_four(g)),
    "checkpoint.efficiency.first_order": lambda g: intervals.first_order_efficiency(*_four(g)),
    "checkpoint.waste.first_order": lambda g: intervals.first_order_waste(*_block(g)),
}
"""`checkpoint.blocking_fraction` counts the block against work and block together, as `mfu_penalty_fraction` does."""
