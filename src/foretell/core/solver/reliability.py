"""ReliabilityModel: how often a job is interrupted, how often to save it, and how much of the time it trains."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.core.failing import MOST_RATE, node_rate
from foretell.core.solver._open import MACHINES, Check, maybe
from foretell.core.solver._result import Result
from foretell.cost.arrays import Value, known, maximum, otherwise, where
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.operations.failures import enough_up, failure_probability, job_mtbf_h, weibull_probability
from foretell.operations.goodput import best_interval, losses
from foretell.operations.intervals import FIRST_ORDER_HOLDS, LONG_BLOCK, higher_order, square_root
from foretell.operations.ranges import Range
from foretell.operations.restart_times import restart_range
from foretell.units import fmt_s, parse
from foretell.validation import number, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["ReliabilityModel", "ReliabilityResult"]

_HOUR: Final = 3600.0
_DAY: Final = 86400.0
_LONGEST_S: Final = 1e9
_NOTHING: Final = 1e-250
_LEAST: Final = 0.01
"""Share of the time below which nothing gets done."""
_MOST_SPARES: Final = 10_000
NO_PROGRESS: Final = "no progress: less than a hundredth of the time trains"
_SHORT: Final = "is shorter than the save takes: the next checkpoint would begin before this one is safe"
_USELESS: Final = "has no use where mtbf_hours is given"


@dataclass(frozen=True)
class ReliabilityResult(Result):
    """A job on a fleet that fails.  Seconds; the names without `_s` are pint quantities.  An interval is of the rate's range.

    Failures are those that stop the job; planned stops are none.
    """

    title: ClassVar[str] = "reliability"

    feasible: bool
    """The job gets on: a hundredth of the time trains, or more."""
    fleet_mtbf_s: float
    """Mean time between failures of the job."""
    fleet_mtbf_interval_s: tuple[float, float]
    failure_probability: float
    """Of at least one failure in the job's duration; with a Weibull shape, of fresh nodes."""
    failure_probability_interval: tuple[float, float]
    expected_failures: float
    """In the job's duration, at the long-run rate."""
    expected_failures_interval: tuple[float, float]
    optimal_checkpoint_interval_s: float
    """Work between two checkpoints that loses least: the exact optimum, at least the durability lag."""
    young_interval_s: float
    """Square-root rule (Young 1974)."""
    daly_interval_s: float
    """Higher order (Daly 2006)."""
    checkpoint_interval_s: float
    """The one that the answer is of: the one given, or the optimum."""
    goodput_ratio: float
    """Share of the wall time that trains, lost work counted: 0 to 1."""
    goodput_interval: tuple[float, float]
    """At the ends of the failure rates and of the recovery times."""
    losses: Mapping[str, float]
    """Shares of the wall time: useful, checkpoints, rework, restarts; they sum to one."""
    useful_time_s: float
    """Training within the job's duration."""
    wall_time_s: float
    """That a job needs which trains for the whole of its duration; infinite where it makes no progress at all."""
    wall_time_interval_s: tuple[float, float]
    failures_per_1000_node_days: float
    failures_per_1000_node_days_interval: tuple[float, float]
    recovery_time_s: float
    """From a failure until training goes on: finding it, a new start, loading the checkpoint."""
    spares: int
    enough_nodes_probability: float | None
    """Share of the time that as many nodes as the job needs are up, the spares counted; None without a repair time."""
    first_order_holds: bool
    """Whether formulas of first order are within a point here."""
    nodes: int
    constraint_trace: list[str]
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]

    def explain(self) -> str:
        """Return where the time goes, as text."""
        low, high = self.goodput_interval
        lines = [f"{self.title}: {100 * self.goodput_ratio:.3g} % of the time trains ({100 * low:.3g} to {100 * high:.3g} %)"]
        lines += [f"  {name:12s} {100 * share:6.2f} %" for name, share in self.losses.items()]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class ReliabilityModel:
    """How often does a job on this fleet stop, and what does that cost?

    Every node's parts fail independently and the job stops with any of them.  Without a rate of its own the fleet fails as public
    ones did, which differ threefold: a low and a high end come with every answer.  Checkpoints block training for
    `checkpoint_time_s`; where the save goes on beside training, give its rest as `durability_lag_s`.
    """

    def solve(
        self,
        fleet: Fleet | str | os.PathLike[str],
        job_duration_hours: float,
        checkpoint_time_s: object = 60.0,
        *,
        recovery_time_s: object = None,
        failure_rate: object = None,
        mtbf_hours: float | None = None,
        record: str | None = None,
        causes: str | None = None,
        checkpoint_interval_s: object = None,
        durability_lag_s: object = 0.0,
        weibull_shape: float = 1.0,
        spares: int = 0,
        repair_hours: float | None = None,
        nodes: int | None = None,
    ) -> ReliabilityResult:
        """Answer for one job.

        Times are numbers of seconds, text ("5 min") or quantities; `job_duration_hours` is wall time in hours.  `failure_rate`:
        failures per 1,000 node-days, one or (low, high); `mtbf_hours`: of the whole job instead; `record`: a fleet of the catalog
        (`rsc-1`, `llama3-405b-run` ...); `causes`: which set of the public records.  `recovery_time_s`: None is what was
        published, 5 to 20 minutes.  `weibull_shape` below 1: fresh nodes fail more often (0.7 to 0.8 were measured).  `spares`:
        nodes held ready, `repair_hours`: until a failed one is back.

        Raises InputError or CatalogError for what means nothing.

        >>> r = ReliabilityModel().solve("dgx-h100", 54 * 24, 5, nodes=2048, failure_rate=3.789, recovery_time_s=600)
        >>> round(r.expected_failures), round(r.fleet_mtbf_s / 3600, 3), round(r.goodput_ratio, 3)
        (419, 3.093, 0.919)
        """
        system = load_fleet(fleet, nodes)
        settings = {
            "job_duration_hours": job_duration_hours,
            "checkpoint_time_s": checkpoint_time_s,
            "recovery_time_s": recovery_time_s,
            "mtbf_hours": mtbf_hours,
            "checkpoint_interval_s": checkpoint_interval_s,
            "durability_lag_s": durability_lag_s,
            "weibull_shape": weibull_shape,
        }
        plain: dict[str, Any] = {name: check(settings[name]) for name, check in CHECKS.items() if name in settings}
        plain["nodes"] = system.nodes
        ready = positive_int(spares, "spares", minimum=0, maximum=_MOST_SPARES)
        repair = None if repair_hours is None else number(repair_hours, "repair_hours", minimum=1e-6, maximum=1e6) * _HOUR
        if ready and repair is None:
            raise InputError(
                "need the time until a failed node is back",
                field="spares",
                value=spares,
                hint="Give repair_hours (--repair-time)",
            )
        if mtbf_hours is not None:
            for name, value in (("failure_rate", failure_rate), ("record", record), ("causes", causes)):
                if value is not None:
                    raise InputError(_USELESS, field=name, value=value)
            rate = job_mtbf_h(1.0, system.nodes) / plain["mtbf_hours"]
            rates = Range.exact(rate, notes=("mean time between failures as given",))
        else:
            rates = node_rate(system, failure_rate, source=record, causes=causes)
        return _result(system, plain, rates, ready, repair)

    def sweep(
        self,
        fleet: Fleet | str | os.PathLike[str],
        *,
        product: bool = True,
        **axes: Any,  # any numeric parameter of `solve`, as one value or as a sequence of values; record and causes too
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        The axes are the numeric parameters of `solve` but spares and repair_hours, and `record` and `causes`.  Combinations that
        mean nothing are marked with their reason; those that make no progress are not `feasible`.
        """
        from foretell.core.solver._numeric_sweep import Numeric  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        system = load_fleet(fleet)
        how = Numeric(
            CHECKS,
            DEFAULTS | {"nodes": system.nodes},
            lambda settings: _columns(system, settings),
            by="wall_time_s",
            unfit=NO_PROGRESS,
            walked=("record", "causes"),
            rules=_contradictions,
        )
        return how.sweep(axes, product=product)


def _seconds(field: str, minimum: float = 0.0) -> Check:
    """Return the check of a time in seconds."""
    return lambda value: number(parse(value, "s", field), field, minimum=minimum, maximum=_LONGEST_S)


CHECKS: Final[dict[str, Check]] = {
    "job_duration_hours": lambda value: number(value, "job_duration_hours", minimum=1e-9, maximum=_LONGEST_S / _HOUR),
    "checkpoint_time_s": _seconds("checkpoint_time_s", 1e-6),
    "recovery_time_s": maybe(_seconds("recovery_time_s")),
    "failure_rate": maybe(lambda value: number(value, "failure_rate", minimum=1e-9, maximum=MOST_RATE)),
    "mtbf_hours": maybe(lambda value: number(value, "mtbf_hours", minimum=1e-9, maximum=_LONGEST_S / _HOUR)),
    "checkpoint_interval_s": maybe(_seconds("checkpoint_interval_s", 1e-6)),
    "durability_lag_s": _seconds("durability_lag_s"),
    "weibull_shape": lambda value: number(value, "weibull_shape", minimum=0.05, maximum=20.0),
    "nodes": MACHINES["nodes"],
}
"""Numeric parameters -> what gives their plain number; NaN for one that is left open."""
DEFAULTS: Final[dict[str, Any]] = {
    "checkpoint_time_s": 60.0,
    "recovery_time_s": None,
    "failure_rate": None,
    "mtbf_hours": None,
    "checkpoint_interval_s": None,
    "durability_lag_s": 0.0,
    "weibull_shape": 1.0,
    "record": None,
    "causes": None,
}


def answers(settings: Mapping[str, Any], mtbf: Value, recovery: Value) -> dict[str, Any]:
    """Return the numbers of an answer at a mean time between failures and a recovery time; all may be arrays."""
    block, lag = settings["checkpoint_time_s"], settings["durability_lag_s"]
    duration = settings["job_duration_hours"] * _HOUR
    best = best_interval(block, mtbf, lag)
    interval = otherwise(settings["checkpoint_interval_s"], best)
    shares = losses(interval, block, mtbf, recovery, lag)
    shape = settings["weibull_shape"]
    return {
        "feasible": (block < mtbf) & (shares.useful >= _LEAST),
        "fleet_mtbf_s": mtbf,
        "failure_probability": _probability(duration, mtbf, shape, settings["nodes"]),
        "expected_failures": duration / mtbf,
        "optimal_checkpoint_interval_s": best,
        "young_interval_s": square_root(block, mtbf),
        "daly_interval_s": higher_order(block, mtbf),
        "checkpoint_interval_s": interval,
        "goodput_ratio": shares.useful,
        "checkpoint_share": shares.checkpoints,
        "rework_share": shares.rework,
        "restart_share": shares.restarts,
        "useful_time_s": shares.useful * duration,
        "wall_time_s": where(shares.useful > _NOTHING, duration / maximum(shares.useful, _NOTHING), float("inf")),
    }


def _probability(duration: Value, mtbf: Value, shape: Value, nodes: Value) -> Value:
    """Return the chance of a failure; fresh nodes where their law is no exponential."""
    if isinstance(shape, float):
        if shape == 1.0:
            return failure_probability(duration, mtbf)
        return weibull_probability(duration, mtbf * nodes, shape, nodes)
    out = failure_probability(duration, mtbf) + shape * 0.0
    for one in {float(value) for value in shape if value != 1.0}:
        out = where(shape == one, weibull_probability(duration, mtbf * nodes, one, nodes), out)
    return out


def _contradictions(settings: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield where the settings of a sweep contradict one another, as `solve` would say."""
    yield settings["checkpoint_interval_s"] < settings["durability_lag_s"], f"checkpoint_interval_s {_SHORT}"
    yield known(settings["mtbf_hours"]) & known(settings["failure_rate"]), f"failure_rate {_USELESS}"
    for name in ("record", "causes"):
        if settings[name] is not None:
            yield known(settings["mtbf_hours"]), f"{name} {_USELESS}"
            yield known(settings["failure_rate"]), f"{name} has no use where the rate itself is given"


def _columns(system: Fleet, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of some rows of a sweep."""
    usual = node_rate(system, source=settings["record"], causes=settings["causes"]).point
    rate = otherwise(settings["failure_rate"], usual)
    mtbf = otherwise(settings["mtbf_hours"] * _HOUR, job_mtbf_h(rate, settings["nodes"]) * _HOUR)
    return answers(settings, mtbf, otherwise(settings["recovery_time_s"], restart_range().point))


def _result(system: Fleet, plain: dict[str, Any], rates: Range, spares: int, repair: float | None) -> ReliabilityResult:
    """Return the answer to one question, with its ends."""
    open_recovery = not known(plain["recovery_time_s"])
    times = restart_range() if open_recovery else Range.exact(plain["recovery_time_s"], "s")
    mtbfs = [job_mtbf_h(rate, system.nodes) * _HOUR for rate in (rates.low, rates.point, rates.high)]
    best, found, worst = (
        answers(plain, mtbf, recovery) for mtbf, recovery in zip(mtbfs, (times.low, times.point, times.high), strict=True)
    )
    if plain["checkpoint_interval_s"] < plain["durability_lag_s"]:
        allowed = f"{plain['durability_lag_s']:g} s (durability_lag_s) or more"
        raise InputError(_SHORT, field="checkpoint_interval_s", value=plain["checkpoint_interval_s"], allowed=allowed)
    mtbf, block = found["fleet_mtbf_s"], plain["checkpoint_time_s"]
    enough = None if repair is None else enough_up(mtbf * system.nodes / (mtbf * system.nodes + repair), system.nodes, spares)
    shares = ("feasible", "failure_probability", "expected_failures", "goodput_ratio")
    names = (*shares, *(name for name in found if name.endswith("_s")))
    return ReliabilityResult(
        **{name: found[name] for name in names},
        fleet_mtbf_interval_s=(worst["fleet_mtbf_s"], best["fleet_mtbf_s"]),
        failure_probability_interval=(best["failure_probability"], worst["failure_probability"]),
        expected_failures_interval=(best["expected_failures"], worst["expected_failures"]),
        goodput_interval=(worst["goodput_ratio"], best["goodput_ratio"]),
        wall_time_interval_s=(best["wall_time_s"], worst["wall_time_s"]),
        losses={
            "useful": found["goodput_ratio"],
            "checkpoints": found["checkpoint_share"],
            "rework": found["rework_share"],
            "restarts": found["restart_share"],
        },
        failures_per_1000_node_days=rates.point,
        failures_per_1000_node_days_interval=(rates.low, rates.high),
        recovery_time_s=times.point,
        spares=spares,
        enough_nodes_probability=enough,
        first_order_holds=block <= FIRST_ORDER_HOLDS * mtbf,
        nodes=system.nodes,
        constraint_trace=_trace(system, found, block),
        notes=[*rates.notes, *_notes(plain, mtbf, spares, repair)],
        assumed=_assumed(times) if open_recovery else (),
        sources=tuple(dict.fromkeys(f"{one.title}, {one.url}" for one in rates.sources)),
    )


_TAKES: Final = {
    "checkpoint": "saving takes",
    "rework": "work done once more after failures takes",
    "restart": "starting again takes",
}


def _trace(system: Fleet, found: Mapping[str, Any], block: float) -> list[str]:
    mtbf = found["fleet_mtbf_s"]
    nodes = f"{system.nodes} node{'s' if system.nodes > 1 else ''}"
    out = [
        f"{nodes} of {system.node.accelerators_per_node} accelerators: a failure every {fmt_s(mtbf)}",
        f"a checkpoint after every {fmt_s(found['checkpoint_interval_s'])} of work blocks {fmt_s(block)}",
    ]
    if found["goodput_ratio"] < _LEAST:
        most = max(("checkpoint", "rework", "restart"), key=lambda name: float(found[f"{name}_share"]))
        out.append(f"{NO_PROGRESS}, {_TAKES[most]} {100 * found[f'{most}_share']:.3g} %")
    if block >= mtbf:
        out.append(f"no progress: a checkpoint takes {fmt_s(block)}, longer than the job runs between failures")
    elif block > LONG_BLOCK * mtbf:
        out.append("checkpoints take more than half the time between failures: rules of thumb for the interval do not hold")
    return out


def _notes(plain: Mapping[str, Any], mtbf: float, spares: int, repair: float | None) -> list[str]:
    """Say what the answer takes for granted and leaves out."""
    out = ["goodput by Daly's complete model (2006): exponential failures that may come in checkpoints and restarts too"]
    if plain["durability_lag_s"]:
        out.append("a failure before a checkpoint is safe loses the work since the one before: the lag counts once a failure")
    if plain["weibull_shape"] != 1.0:
        out.append(
            f"failure_probability: nodes that are all fresh, Weibull shape {plain['weibull_shape']:g}; counts and goodput are of"
            " the long run, where many nodes fail as if exponentially"
        )
    if repair is None:
        out.append("waiting for a spare node or for a place in the queue is not in it: give spares and a repair time")
    elif not spares:
        out.append("no spares: a job that needs all nodes waits for each repair, which is not in the goodput")
    if mtbf > 365 * _DAY:
        out.append("failures are rarer than one a year: the interval is longer than most people would wait")
    return out


def _assumed(times: Range) -> tuple[str, ...]:
    ends = f"{fmt_s(times.low)} to {fmt_s(times.high)}, as published"
    return (f"{fmt_s(times.point)} from a failure until training goes on ({ends})",)
