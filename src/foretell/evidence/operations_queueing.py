"""Answers to questions about queues: what is asked by name, from inputs whose names carry their units.

Exact where the law of the wait is known (Poisson arrivals, with exponential or equal services; the mean before one server),
else a simulated run: a question that names its law asks more than two moments tell.  What is neither exact nor within reach of
a run (loads near 1) is the approximation of :mod:`foretell.operations.queueing`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import InputError
from foretell.operations.approximations import deterministic_mean_wait
from foretell.operations.erlang import erlang_b, erlang_c
from foretell.operations.queueing import Queue
from foretell.validation import number, positive_int

if TYPE_CHECKING:
    from foretell.sim.queue import Times

__all__ = ["ANSWERS"]

_LOADS: Final = ("offered_load_erlang", "utilisation_fraction", "utilization_fraction", "arrival_rate_per_s")
_SERVICE_SECONDS: Final = {"mean_service_time_s": 1.0, "mean_service_time_ms": 1e-3}
_QUEUE: Final = frozenset({"servers", *_LOADS, *_SERVICE_SECONDS})
_LAWS: Final = frozenset({"service_distribution", "service_scv", "arrival_distribution", "arrival_scv"})
_MOST_SERVERS: Final = 10**6
_MOST_PERCENTILE: Final = 99.99
_MOST_EXACT_LOAD: Final = 0.9999
_HEAVY: Final = 0.97
"""From this load on the approximations are within 11 % of simulated means and 99th percentiles of the wait, at squared
coefficients of variation up to 4 and 1 to 100 servers."""
_VAGUE: Final = 0.1
"""Relative standard error beyond which a simulated answer is left for that of the approximations there."""
_NAMES: Final = {
    "deterministic": "deterministic",
    "constant": "deterministic",
    "exponential": "exponential",
    "gamma": "gamma",
    "lognormal": "lognormal",
    "hyperexponential-2": "hyperexponential",
    "hyperexponential-2 (balanced means)": "hyperexponential",
}
"""Laws by their names in questions; two exponential laws have balanced means where nothing else is said."""
_FIXED: Final = {"deterministic": 0.0, "exponential": 1.0}
_SAME: Final = 1e-3
"""Relative difference to the spread of an Erlang law that is rounding (0.333 of three phases)."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The queue of a question: offered load in servers' worth, mean service in seconds."""

    servers: int
    offered: float
    service_s: float

    @property
    def load(self) -> float:
        """Per server."""
        return self.offered / self.servers

    @property
    def exponential(self) -> Queue:
        """M/M/c, in seconds."""
        return Queue.of(self.offered / self.service_s, self.service_s, self.servers)


def _one(inputs: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return which of the names is given; one must be."""
    given = [name for name in names if name in inputs]
    if len(given) == 1:
        return given[0]
    value = ", ".join(given) or "none of them"
    raise InputError("is needed, in one form", field=" or ".join(names), value=value, allowed="one of them")


def _line(inputs: Mapping[str, Any], others: frozenset[str] = frozenset(), *, stable: bool = True) -> _Line:
    """Read a queue; an input that is not read is refused, and so is a load of 1 or more where a steady state is asked."""
    for name, value in inputs.items():
        if name not in _QUEUE | others:
            raise InputError("is not an input of this question", field=name, value=value, allowed=sorted(_QUEUE | others))
    if "servers" not in inputs:
        raise InputError("is needed", field="servers")
    servers = positive_int(inputs["servers"], "servers", maximum=_MOST_SERVERS)
    service = _one(inputs, tuple(_SERVICE_SECONDS))
    service_s = number(inputs[service], service) * _SERVICE_SECONDS[service]
    if not service_s:
        raise InputError("takes no time", field=service, value=inputs[service], allowed="more than 0")
    name = _one(inputs, _LOADS)
    value = number(inputs[name], name)
    offered = value * {"offered_load_erlang": 1.0, "arrival_rate_per_s": service_s}.get(name, servers)
    if stable and offered >= servers:
        problem = "is more than the servers keep up with: there is no steady state, and waits grow without end"
        raise InputError(problem, field=name, value=inputs[name], allowed="a load per server below 1")
    return _Line(servers, offered, service_s)


def _share(inputs: Mapping[str, Any]) -> float:
    """Read the percentile, as a share."""
    if "percentile" not in inputs:
        raise InputError("is needed", field="percentile")
    return number(inputs["percentile"], "percentile", maximum=_MOST_PERCENTILE) / 100.0


def _law(inputs: Mapping[str, Any], of: str) -> Times:
    """Read a law of services or of times between arrivals."""
    from foretell.sim.queue import Times  # noqa: PLC0415  # numpy costs 100 ms

    law, spread = f"{of}_distribution", f"{of}_scv"
    scv = number(inputs[spread], spread) if spread in inputs else None
    if law not in inputs:
        if of == "arrival" and scv is not None:
            return Times.of_arrivals(scv)
        raise InputError("is needed", field=law if of == "service" else spread)
    name = str(inputs[law]).strip().lower()
    phases = re.fullmatch(r"erlang-([1-9]\d{0,3})", name)
    if phases is None and name not in _NAMES:
        raise InputError("is a law that is not modelled", field=law, value=inputs[law], allowed=["erlang-k", *_NAMES])
    fixed = 1.0 / int(phases[1]) if phases else _FIXED.get(_NAMES[name])
    if fixed is not None and scv is not None and not math.isclose(scv, fixed, rel_tol=_SAME):
        raise InputError(f"is not the spread of {name}", field=spread, value=inputs[spread], allowed=f"{fixed:g}")
    scv = scv if fixed is None else fixed
    if scv is None:
        raise InputError("is needed", field=spread)
    return Times("gamma" if phases else _NAMES[name], scv)


def _general(inputs: Mapping[str, Any], *, ask: str) -> float:
    """Answer for any laws: the ``mean`` wait, or a percentile of the ``wait`` or of the ``response``."""
    line = _line(inputs, _LAWS if ask == "mean" else _LAWS | {"percentile"})
    p = 0.0 if ask == "mean" else _share(inputs)
    services, arrivals = _law(inputs, "service"), _law(inputs, "arrival")
    poisson = arrivals.scv == 1 and arrivals.law in ("exponential", "gamma")
    if poisson and services.scv == 1 and services.law in ("exponential", "gamma"):
        queue = line.exponential
        return float(queue.mean_wait if ask == "mean" else (queue.wait_quantile if ask == "wait" else queue.response_quantile)(p))
    if poisson and line.servers == 1 and ask == "mean":
        found = Queue.of(line.offered, 1.0, 1, math.sqrt(services.scv)).mean_wait  # Pollaczek-Khinchine
    elif poisson and services.scv == 0 and line.load <= _MOST_EXACT_LOAD:
        found = _equal(line, ask, p)
    else:
        found = _simulated(line, services, arrivals, ask, p)
    return float(found) * line.service_s


def _equal(line: _Line, ask: str, p: float) -> float:
    """Return the exact answer of equal services and Poisson arrivals, in mean services."""
    from foretell.operations.equal_services import EqualServices  # noqa: PLC0415  # numpy costs 100 ms

    queue = EqualServices.of(line.servers, line.load)
    return queue.mean_wait if ask == "mean" else queue.wait_quantile(p) + (1.0 if ask == "response" else 0.0)


def _simulated(line: _Line, services: Times, arrivals: Times, ask: str, p: float) -> float:
    """Return the answer of a simulated run, in mean services; the questions about one queue share its run.

    Near a load of 1 a queue forgets too slowly for a run to tell its longest waits; these are those of heavy traffic.
    """
    from foretell.sim.queue import MOST_LOAD, simulate_queue  # noqa: PLC0415  # numpy costs 100 ms

    if line.load <= MOST_LOAD:
        run = simulate_queue(line.servers, line.load, services, arrivals)
        found = run.mean_wait if ask == "mean" else (run.wait_quantile if ask == "wait" else run.response_quantile)(p)
        if line.load < _HEAVY or found.standard_error <= _VAGUE * found.value:
            return found.value
    queue = Queue.of(line.offered, 1.0, line.servers, math.sqrt(services.scv), math.sqrt(arrivals.scv))
    return float(queue.mean_wait if ask == "mean" else (queue.wait_quantile if ask == "wait" else queue.response_quantile)(p))


def _lost(inputs: Mapping[str, Any]) -> float:
    line = _line(inputs, stable=False)
    return float(erlang_b(line.servers, line.offered))


def _delayed(inputs: Mapping[str, Any]) -> float:
    line = _line(inputs, stable=False)
    return float(erlang_c(line.servers, line.offered))


def _equal_mean(inputs: Mapping[str, Any]) -> float:
    line = _line(inputs)
    return deterministic_mean_wait(line.offered, 1.0, line.servers) * line.service_s


def _with_percentile(inputs: Mapping[str, Any]) -> tuple[Queue, float]:
    return _line(inputs, frozenset({"percentile"})).exponential, _share(inputs)


def _wait_at(inputs: Mapping[str, Any]) -> float:
    queue, p = _with_percentile(inputs)
    return float(queue.wait_quantile(p))


def _response_at(inputs: Mapping[str, Any]) -> float:
    queue, p = _with_percentile(inputs)
    return float(queue.response_quantile(p))


ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any]], float]]] = {
    "queueing.erlang_b": _lost,
    "queueing.erlang_c": _delayed,
    "queueing.mmc_mean_wait": lambda inputs: float(_line(inputs).exponential.mean_wait),
    "queueing.mmc_mean_response": lambda inputs: float(_line(inputs).exponential.mean_response),
    "queueing.mmc_wait_percentile": _wait_at,
    "queueing.mmc_response_percentile": _response_at,
    "queueing.mdc_mean_wait": _equal_mean,
    "queueing.ggc_mean_wait": lambda inputs: _general(inputs, ask="mean"),
    "queueing.ggc_wait_percentile": lambda inputs: _general(inputs, ask="wait"),
    "queueing.ggc_response_percentile": lambda inputs: _general(inputs, ask="response"),
}
"""By the name of what is asked: seconds, or a fraction, of the inputs.  InputError where an input is missing or not modelled.

>>> round(ANSWERS["queueing.erlang_c"]({"servers": 5, "offered_load_erlang": 4.0, "mean_service_time_s": 1.0}), 10)
0.5541125541
>>> ANSWERS["queueing.mdc_mean_wait"]({"servers": 1, "utilisation_fraction": 0.5, "mean_service_time_ms": 200.0})
0.1
"""
