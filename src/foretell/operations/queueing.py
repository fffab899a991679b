"""Queues in front of c equal servers, first come first served: how many wait, how long, and how long until the answer.

Exact for M/M/c (Poisson arrivals, exponential services); elsewhere the approximations of
:mod:`foretell.operations.approximations`.  Rates and times in any matching units (1/s and s); numbers or arrays.
A queue that is not stable (load of 1 or more) has no steady state: infinite waits, and a backlog that grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foretell.cost.arrays import Value, exp, is_array, maximum, where
from foretell.operations.approximations import arrival_factor, peakedness, service_factor
from foretell.operations.erlang import erlang_b, erlang_c
from foretell.operations.exponentials import Law, crossing, log

__all__ = [
    "Queue",
    "backlog_growth",
    "erlang_b",
    "erlang_c",
    "mean_wait",
    "response_quantile",
    "response_tail",
    "wait_probability",
    "wait_quantile",
    "wait_tail",
]

_LEAST_PEAK = 0.05
"""Evener arrivals than these count as these: the scaled queue would have so many servers that nobody waits at all."""
_MOST_SERVERS = 1e9
"""... of the scaled queue, which bounds the time of an answer."""
_LEAST_FACTOR = 1e-9


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue in its steady state.  ``P(wait > t) = probability * exp(-decay t / mean_service)``: exact for M/M/c."""

    servers: Value
    mean_service: Value
    offered: Value
    """Load in servers' worth: rate x mean service."""
    stable: Value
    probability: Value
    """That a request waits; 1 where the queue is not stable."""
    decay: Value
    """1 / mean wait of those that wait, in mean services; 0 where the queue is not stable."""
    cv_service: Value
    law: Law
    """Of service times."""

    @classmethod
    def of(cls, rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0) -> Queue:
        """Return the queue of requests that arrive at `rate`, with `mean_service` each, at `servers`.

        ``cv_service``, ``cv_arrival``: standard deviation over mean of service times and of times between arrivals.
        Waiting: Erlang C, at other than Poisson arrivals that of a queue with servers and load divided by the arrivals'
        peakedness (Hayward; Fredericks 1980, Bell System Technical Journal 59).  Duration: exponential with the mean of
        the approximations; exact for M/M/c.  Errors of the 99th percentile of the response (see
        :func:`~foretell.operations.approximations.response_error`): median 6 %, a tenth beyond 21 %.
        """
        cv_s, cv_a = cv_service * 1.0, cv_arrival * 1.0
        offered = rate * mean_service * 1.0
        stable = offered < servers
        busy = where(stable, offered, 0.5 * servers)  # any stable load: where it is not, nothing below is used
        load = busy / servers
        peak = maximum(peakedness(cv_s, cv_a), maximum(_LEAST_PEAK, servers / _MOST_SERVERS))
        even = (cv_s == 0) & (cv_a == 0)  # equal services at equal distances: nobody waits
        waits = where(even, 0.0, erlang_c(servers / peak, busy / peak))
        factor = service_factor(servers * 1.0, load, cv_s) * arrival_factor(load, peak, cv_s, cv_a)
        return cls(
            servers=servers,
            mean_service=mean_service * 1.0,
            offered=offered,
            stable=stable,
            probability=where(stable, waits, 1.0),
            decay=where(stable, (servers - busy) / maximum(factor, _LEAST_FACTOR), 0.0),
            cv_service=cv_s,
            law=Law.of(cv_s),
        )

    @property
    def utilization(self) -> Value:
        """Load per server, above 1 where more arrives than can be served."""
        return self.offered / self.servers

    @property
    def mean_wait(self) -> Value:
        """Mean over all requests, those that do not wait among them."""
        return self._finite(self.probability / self._decay * self.mean_service)

    @property
    def mean_response(self) -> Value:
        """Mean wait and mean service."""
        return self.mean_wait + self.mean_service

    def wait_tail(self, time: Value) -> Value:
        """Return the share of requests that wait longer than `time`."""
        return self.probability * exp(-self.decay * time / self.mean_service)

    def wait_quantile(self, p: Value) -> Value:
        """Return the time that a share `p` of the requests waits at most, 0 <= p < 1."""
        waits = log(maximum(self.probability / (1.0 - p), 1.0)) / self._decay
        return self._finite(waits * self.mean_service)

    def response_tail(self, time: Value) -> Value:
        """Return the share of requests whose wait and service together take longer than `time`."""
        return self.law.response(time / self.mean_service, self.probability, self.decay)[0]

    def response_quantile(self, p: Value) -> Value:
        """Return the time that a share `p` of the requests takes at most, wait and service together, 0 <= p < 1.

        A quantile of the sum is not the quantile of the wait plus the mean service: it is solved for.
        """
        if not is_array(self.stable) and not self.stable:
            return math.inf
        probability, decay = self.probability, self._decay
        mean = 1.0 + probability / decay
        variance = self.cv_service * self.cv_service + probability * (2.0 - probability) / (decay * decay)
        most = mean * 1.001 + (variance * p / (1.0 - p)) ** 0.5 * 1.001  # Cantelli's inequality
        found = crossing(lambda x: self.law.response(x, probability, decay), 1.0 - p, mean, most)
        return self._finite(found * self.mean_service)

    @property
    def _decay(self) -> Value:
        """Decay, or 1 where that is 0."""
        return where(self.stable, self.decay, 1.0)

    def _finite(self, time: Value) -> Value:
        """Return a time, infinite where the queue is not stable."""
        return where(self.stable, time, math.inf)


def backlog_growth(rate: Value, mean_service: Value, servers: Value) -> Value:
    """Return the requests by which the backlog grows in a unit of time, lambda - c mu; 0 where the servers keep up.

    >>> backlog_growth(200.0, 0.1, 10), backlog_growth(50.0, 0.1, 10)
    (100.0, 0.0)
    """
    return maximum(rate - servers / mean_service, 0.0)


def wait_probability(rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0) -> Value:
    """Return the share of requests that wait.

    >>> round(wait_probability(4.0, 1.0, 5), 10)
    0.5541125541
    """
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).probability


def mean_wait(rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0) -> Value:
    """Return the mean wait over all requests, in the unit of `mean_service`.

    >>> round(mean_wait(9.0, 1.0, 10), 10), mean_wait(11.0, 1.0, 10)
    (0.6687315241, inf)
    """
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).mean_wait


def wait_tail(
    time: Value, rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0
) -> Value:
    """Return the share of requests that wait longer than `time`."""
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).wait_tail(time)


def wait_quantile(
    p: Value, rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0
) -> Value:
    """Return the time that a share `p` of the requests waits at most, 0 <= p < 1.

    >>> round(wait_quantile(0.99, 95.0, 1.0, 100), 7)
    0.7849708
    """
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).wait_quantile(p)


def response_tail(
    time: Value, rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0
) -> Value:
    """Return the share of requests whose wait and service together take longer than `time`."""
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).response_tail(time)


def response_quantile(
    p: Value, rate: Value, mean_service: Value, servers: Value, cv_service: Value = 1.0, cv_arrival: Value = 1.0
) -> Value:
    """Return the time that a share `p` of the requests takes at most, wait and service together, 0 <= p < 1.

    >>> round(response_quantile(0.99, 95.0, 1.0, 100), 9)
    4.724387049
    """
    return Queue.of(rate, mean_service, servers, cv_service, cv_arrival).response_quantile(p)
