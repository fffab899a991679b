"""TailLatencyModel: requests that queue for replicas: how long most of them take, and how many take too long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.core.solver._result import Result
from foretell.errors import InputError
from foretell.operations.approximations import response_error
from foretell.operations.queueing import Queue, backlog_growth
from foretell.units import parse
from foretell.validation import number, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["CHECKS", "TailLatencyModel", "TailLatencyResult", "seconds_of"]

MOST_RATE: Final = 1e12
"""Requests per second; more are no meant rate."""
LEAST_S: Final = 1e-12
"""Shortest service that is taken for a meant one, seconds."""
MOST_S: Final = 1e9
"""... and longest time."""
MOST_CV: Final = 1000.0
UNSTABLE: Final = "unstable: requests arrive as fast as the replicas serve them, or faster"


@dataclass(frozen=True)
class TailLatencyResult(Result):
    """Requests at replicas.  Seconds; the names without `_s` are pint quantities.  Infinite where the queue is unstable.

    A latency is a request's whole time: its wait and its service.
    """

    title: ClassVar[str] = "latency"

    p50_latency_s: float
    """Half of the requests are answered within this."""
    p90_latency_s: float
    p95_latency_s: float
    p99_latency_s: float
    """99 of 100 requests are answered within this."""
    p99_interval_s: tuple[float, float] | None
    """The formula's own error at these spreads, 90 % of simulations; None where none was measured or the queue is unstable."""
    mean_latency_s: float
    mean_wait_s: float
    """Of all requests, those that find a free replica among them."""
    p99_wait_s: float
    """99 of 100 requests wait no longer; not the latency less the service."""
    wait_probability: float
    """Share of requests that find all replicas busy; 1 where the queue is unstable."""
    queue_utilization: float
    """Arrivals over what the replicas serve at most; above 1 where they fall behind."""
    is_stable: bool
    """Whether the replicas keep up."""
    backlog_growth_per_s: float
    """Requests by which the backlog grows every second; 0 where it does not."""
    feasible: bool
    """As `is_stable`."""
    arrival_rate_per_s: float
    service_latency_s: float
    """Mean time that a replica works on a request."""
    num_replicas: int
    service_time_cv: float
    """Standard deviation over mean of service times."""
    arrival_cv: float
    """... of the times between arrivals."""
    constraint_trace: list[str]
    """Load, and whether the replicas keep up."""
    notes: list[str]
    """Formulas used, and their error."""
    _queue: Queue

    def slo_violation_probability(self, slo_ms: object) -> float:
        """Return the share of requests that take longer than a limit: milliseconds, "250 ms" or a quantity.

        >>> round(TailLatencyModel().solve(5, 100).slo_violation_probability(921.034), 6)
        0.01
        """
        return float(self._queue.response_tail(seconds_of(slo_ms, "slo_ms", minimum=0.0)))

    def latency_quantile_s(self, p: float) -> float:
        """Return the seconds within which a share `p` of the requests is answered, 0 to below 1."""
        return float(self._queue.response_quantile(number(p, "p", maximum=1.0 - 1e-12)))

    def explain(self) -> str:
        """Return what a request's time is made of, as text."""
        p50, p90, p95, p99, mean, wait, waits, service = (
            _shown(seconds)
            for seconds in (
                *(self.p50_latency_s, self.p90_latency_s, self.p95_latency_s, self.p99_latency_s),
                *(self.mean_latency_s, self.mean_wait_s, self.p99_wait_s, self.service_latency_s),
            )
        )
        many = f"{self.num_replicas} replica{'s' if self.num_replicas > 1 else ''}"
        share = f"{100 * self.wait_probability:.4g} % of the requests wait"
        lines = [
            f"p99 {self.title} {p99}, half of the requests within {p50}: {many}, {100 * self.queue_utilization:.4g} % busy",
            f"  service {service} on average, spread {self.service_time_cv:g}",
            f"  wait    {wait} on average, {share}, 99 of 100 at most {waits}",
            f"  whole   {mean} on average, p90 {p90}, p95 {p95}",
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class TailLatencyModel:
    """How long do requests take that queue for replicas, and how many take too long?

    `arrival_rate_qps` requests a second arrive at one queue in front of `num_replicas` equal replicas, which work on one request
    at a time for `service_latency_ms` on average (a number of milliseconds, "100 ms" or a quantity).  A spread (cv) is the
    standard deviation over the mean: `service_time_cv` of service times, `arrival_cv` of the times between arrivals; 1 is
    exponential times and Poisson arrivals (exact), 0 equal ones, above 1 bursts.
    """

    def solve(
        self,
        arrival_rate_qps: float,
        service_latency_ms: object,
        num_replicas: int = 1,
        service_time_cv: float = 1.0,
        arrival_cv: float = 1.0,
    ) -> TailLatencyResult:
        """Answer for one load; InputError for numbers that mean nothing.

        >>> result = TailLatencyModel().solve(9, "100 ms")
        >>> round(result.p99_latency_s, 6), round(result.mean_wait_s, 6), result.queue_utilization
        (4.60517, 0.9, 0.9)
        """
        rate, service, replicas, cv_s, cv_a = (
            check(value)
            for check, value in zip(
                CHECKS.values(), (arrival_rate_qps, service_latency_ms, num_replicas, service_time_cv, arrival_cv), strict=True
            )
        )
        queue = Queue.of(rate, service, replicas, cv_s, cv_a)
        growth = 0.0 if queue.stable else backlog_growth(rate, service, replicas)
        p50, p90, p95, p99 = (queue.response_quantile(p) for p in (0.5, 0.9, 0.95, 0.99))
        error = response_error(queue.utilization, cv_s, cv_a) if queue.stable else None
        return TailLatencyResult(
            p50_latency_s=p50,
            p90_latency_s=p90,
            p95_latency_s=p95,
            p99_latency_s=p99,
            p99_interval_s=None if error is None else (p99 * (1.0 - error), p99 * (1.0 + error)),
            mean_latency_s=queue.mean_response,
            mean_wait_s=queue.mean_wait,
            p99_wait_s=queue.wait_quantile(0.99),
            wait_probability=queue.probability,
            queue_utilization=queue.utilization,
            is_stable=queue.stable,
            backlog_growth_per_s=growth,
            feasible=queue.stable,
            arrival_rate_per_s=rate,
            service_latency_s=service,
            num_replicas=replicas,
            service_time_cv=cv_s,
            arrival_cv=cv_a,
            constraint_trace=_trace(queue, rate, growth),
            notes=_notes(queue, cv_s, cv_a, error),
            _queue=queue,
        )

    def sweep(
        self,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that mean nothing are marked with their reason; those whose queue is unstable are not `feasible`.
        """
        from foretell.core.solver._tail_sweep import sweep  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep(axes, product=product)


def seconds_of(value: object, field: str, *, minimum: float = LEAST_S) -> float:
    """Return the seconds of a time given as a number of milliseconds, as text (without a unit, milliseconds too) or a quantity.

    >>> seconds_of(100, "slo_ms"), seconds_of("2 min", "slo_ms"), seconds_of("250", "slo_ms")
    (0.1, 120.0, 0.25)
    """
    allowed = f"{minimum * 1e3:g} to {MOST_S * 1e3:g} milliseconds, as a number or as text like '100 ms'"
    plain = not hasattr(value, "units") and not (isinstance(value, str) and value.rstrip()[-1:].isalpha())
    try:
        found = parse(value, "s", field) / (1e3 if plain else 1.0)
    except InputError as error:
        raise InputError(error.problem, field=field, value=error.value, allowed=allowed, hint=error.hint) from None
    if not minimum <= found <= MOST_S:
        raise InputError("is out of range", field=field, value=value, allowed=allowed)
    return found


def _rate(value: object) -> float:
    return number(parse(value, "1/s", "arrival_rate_qps"), "arrival_rate_qps", maximum=MOST_RATE)


CHECKS: Final[dict[str, Callable[[object], Any]]] = {
    "arrival_rate_qps": _rate,
    "service_latency_ms": lambda value: seconds_of(value, "service_latency_ms"),
    "num_replicas": lambda value: positive_int(value, "num_replicas"),
    "service_time_cv": lambda value: number(value, "service_time_cv", maximum=MOST_CV),
    "arrival_cv": lambda value: number(value, "arrival_cv", maximum=MOST_CV),
}
"""Parameter -> what takes it as it may come and gives the plain number: requests per second, seconds, a count, shares."""


def _shown(seconds: float) -> str:
    """Write seconds with a unit that suits them."""
    if not math.isfinite(seconds):
        return "infinite"
    return f"{seconds:.4g} s" if seconds >= 1 or not seconds else f"{seconds * 1e3:.4g} ms"


def _trace(queue: Queue, rate: float, growth: float) -> list[str]:
    """Return load, and whether the replicas keep up."""
    most = queue.servers / queue.mean_service
    load = f"{rate:.6g} requests/s of the {most:.6g} that {queue.servers} can serve: {100 * queue.utilization:.4g} %"
    if queue.stable:
        return [load]
    return [load, f"{UNSTABLE}; the backlog grows by {growth:.6g} requests/s" if growth else UNSTABLE]


def _notes(queue: Queue, cv_service: float, cv_arrival: float, error: float | None) -> list[str]:
    """Return which formulas were used, and their error."""
    if not queue.stable:
        return ["no steady state: a backlog grows for as long as requests arrive at this rate"]
    if cv_service == 1 and cv_arrival == 1:
        return ["M/M/c, exact: Poisson arrivals, exponential service times, first come first served, nobody gives up"]
    out = []
    if cv_service != 1:
        out.append("mean wait from mean and spread of service times (Kimura); their law beyond these is assumed")
    if cv_arrival != 1:
        out.append("arrivals by their peakedness (Hayward), at one replica as Allen and Cunneen; gaps independent of each other")
    if error is None:
        out.append("spreads beyond those simulated (2 of services, 4 of arrivals): percentiles may be far off; simulate them")
    else:
        out.append(f"p99: 90 % of simulations with these kinds of spreads lie within {100 * error:.0f} % of the formula")
    return out
