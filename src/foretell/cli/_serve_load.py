"""From the options of `serve` to its load: a rate, a batch, a closed loop, a job, or a file of requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._values import duration, listed, real, whole
from foretell.core.serving_demand import Demand, checked_demand
from foretell.errors import CombinationError, InputError
from foretell.sim.requests_summary import RequestsSummary
from foretell.validation import MAX_SEQUENCE

if TYPE_CHECKING:
    from foretell.arch.architecture import Architecture
    from foretell.core.serving import Deployment
    from foretell.plan.serving_trace import TraceLoad

__all__ = ["Assumed", "Options", "Trace", "asked_of", "check_length", "demand_of", "read_once", "usual_concurrency"]

_INPUTS, _OUTPUTS, _CONCURRENCY = 1024, 256, 32
_LOADS: Final = ("batch", "concurrency", "rate")
_LENGTHS: Final = ("input_tokens", "output_tokens", "cached_tokens", "longest_output", "input_cv")
_FASTEST: Final = 1e7
_VARIED: Final = 0.3
"""Spread of answers from which on they are taken as exponential and cut at the longest, instead of equal."""

Options = dict[str, Any]


class Assumed(list[str]):
    """What was not given and is taken so."""

    def take(self, value: Any, default: Any, text: str) -> Any:  # whatever the option holds
        """Return the value, or the default with a line that says so."""
        if value is not None:
            return value
        self.append(text)
        return default


@dataclass(frozen=True)
class Trace:
    """A file of requests, and what it amounts to."""

    path: str
    speed: float
    about: TraceLoad | RequestsSummary
    asked: tuple[Any, ...]
    """The options that decided what was read."""

    @property
    def arrivals(self) -> TraceLoad | None:
        """The file as a load; None where only its lengths count."""
        return None if isinstance(self.about, RequestsSummary) else self.about


def demand_of(options: Options, trace: Trace | None, arch: Architecture, assumed: Assumed) -> Demand:
    """Return what is asked of the server; a closed loop without a number of requests gets one later."""
    rate = _rate(options)
    given = [name for name in _LOADS if (options[name] if name != "rate" else rate) is not None]
    if len(given) > 1:
        problem = f"and --{given[0]} are two loads"
        raise CombinationError(problem, field=given[1], value=options[given[1]] or rate, hint="Give one of them")
    _check_arrivals(options, rate)
    requests = whole(options["requests"], "requests", maximum=100_000_000)
    lengths = _read_lengths(options, trace) if trace is not None else _lengths(options, arch, assumed)
    if "batch" in given:
        return _made("static", lengths, concurrency=float(whole(options["batch"], "batch") or 1), requests=requests)
    if "concurrency" in given:
        users = float(whole(options["concurrency"], "concurrency") or 1)
        return _made("closed", lengths, concurrency=users, requests=requests)
    if rate is not None:
        cv = real(options["arrival_cv"], "arrival_cv", maximum=100.0)
        return _made(
            "open",
            lengths,
            rate=rate,
            arrival_cv=1.0 if cv is None else cv,
            burst=_burst(options["burst"], rate),
            requests=requests,
        )
    if trace is not None:
        return _traced(trace)
    if requests is not None:
        return _made("offline", lengths, requests=requests)
    return Demand("closed", **lengths)


def _rate(options: Options) -> float | None:
    rate, qps = (real(options[name], name, maximum=_FASTEST) for name in ("rate", "qps"))
    if rate is not None and qps is not None and rate != qps:
        raise CombinationError("and --rate name the same thing", field="qps", value=options["qps"], hint="Give one of them")
    found = qps if rate is None else rate
    if found is not None and found < 1e-9:
        name = "rate" if rate is not None else "qps"
        problem = "must be above 0"
        raise InputError(problem, field=name, value=options[name], allowed="requests a second")
    return found


def _check_arrivals(options: Options, rate: float | None) -> None:
    """Refuse what describes arrivals where nothing arrives at a rate."""
    for name in ("arrival_cv", "burst"):
        if options[name] is not None and rate is None:
            raise InputError("describes arrivals, and there is no rate", field=name, value=options[name], hint="Add --rate")
    if options["trace_speed"] is not None and options["trace"] is None:
        raise InputError(
            "is of a trace, and there is none", field="trace_speed", value=options["trace_speed"], hint="Add --trace"
        )


def _made(kind: str, lengths: dict[str, Any], **more: Any) -> Demand:  # fields of a Demand
    return checked_demand(Demand(kind, **lengths, **more))


def _read_lengths(options: Options, trace: Trace) -> dict[str, Any]:
    """Return the mean lengths of a file's requests."""
    for name in _LENGTHS:
        if options[name] is not None:
            raise CombinationError("is read from the trace", field=name, value=options[name], hint="Leave it out")
    a = trace.about
    longest = float(a.longest_output) if a.output_cv > _VARIED else None
    cached = min(a.cached, a.inputs - 1.0)
    return {"inputs": a.inputs, "outputs": a.outputs, "cached": cached, "longest": longest, "input_cv": min(a.input_cv, 10.0)}


def _lengths(options: Options, arch: Architecture, assumed: Assumed) -> dict[str, Any]:
    """Return the lengths of requests: the given ones, and usual ones that the model takes."""
    inputs, outputs, longest = (
        real(options[name], name, minimum=1.0, maximum=MAX_SEQUENCE)
        for name in ("input_tokens", "output_tokens", "longest_output")
    )
    usual, made = _INPUTS, _OUTPUTS
    limit = whole(options["max_model_len"], "max_model_len", maximum=MAX_SEQUENCE) or arch.max_positions
    if limit is not None and limit < usual + made:
        usual, made = max(limit // 2, 1), max(limit // 4, 1)
    said = [*([f"{usual} tokens in"] if inputs is None else []), *([f"{made} out"] if outputs is None else [])]
    if said:
        assumed.append(", ".join(said) if inputs is None else f"{made} tokens out")
    return {
        "inputs": float(usual if inputs is None else inputs),
        "outputs": float(made if outputs is None else outputs),
        "cached": real(options["cached_tokens"], "cached_tokens", maximum=MAX_SEQUENCE) or 0.0,
        "longest": longest,
        "input_cv": real(options["input_cv"], "input_cv", maximum=10.0) or 0.0,
    }


def _burst(text: str | None, rate: float) -> dict[str, float] | None:
    """Return a burst from "40,5s,60s": requests a second at its height, how long it lasts, how often it comes."""
    if text is None:
        return None
    parts = listed(text, "burst")
    form = "PEAK,ON,PERIOD, as 40,5s,60s"
    if len(parts) != 3:
        raise InputError("has not three parts", field="burst", value=text, allowed=form)
    peak = real(parts[0], "burst", maximum=_FASTEST) or 0.0
    on, period = (duration(part, "burst") or 0.0 for part in parts[1:])
    if peak <= rate:
        raise InputError(f"has no peak above the rate of {rate:g}", field="burst", value=text, allowed=form)
    if not 0.0 < on < period:
        raise InputError("must last, and less than its period", field="burst", value=text, allowed=form)
    return {"peak_rate_per_s": peak, "duration_s": on, "period_s": period}


def asked_of(options: Options) -> tuple[Any, ...]:
    """Return all that decides what is read of a file."""
    replaced = bool(_replaced(options))  # then lengths alone are read, of the whole file
    return options["trace"], options["trace_speed"], None if replaced else options["requests"], replaced


def _replaced(options: Options) -> list[str]:
    """Return the options that give arrivals in place of a file's."""
    return [name for name in (*_LOADS, "qps") if options[name] is not None]


def read_once(options: Options) -> Trace:
    """Read the file once: every line is checked before anything is said."""
    from foretell.plan.serving_trace import read_trace  # noqa: PLC0415  # only where there is a file
    from foretell.sim.requests_summary import summarize  # noqa: PLC0415

    path, speed = str(options["trace"]), real(options["trace_speed"], "trace_speed", minimum=1e-6, maximum=1e6)
    others = _replaced(options)
    if others and speed is not None:
        problem = f"is of the file's arrivals, which --{others[0]} replaces"
        raise CombinationError(problem, field="trace_speed", value=options["trace_speed"], hint="Leave one of them out")
    most = whole(options["requests"], "requests", maximum=100_000_000)
    try:
        about = summarize(path) if others else read_trace(path, speed=speed or 1.0, requests=most)
    except InputError as error:
        if error.field == "requests":  # as a file's reader calls it
            error.field = "trace"
        raise
    return Trace(path, speed or 1.0, about, asked_of(options))


def _traced(trace: Trace) -> Demand:
    """Return the demand that a file's requests amount to, on average over the whole file."""
    load = trace.arrivals
    assert load is not None  # noqa: S101  # nothing replaces them
    mean = load.demand(peak=False)
    return checked_demand(
        replace(mean, requests=load.requests, arrival_cv=min(mean.arrival_cv, 100.0), input_cv=min(mean.input_cv, 10.0))
    )


def check_length(options: Options, arch: Architecture, longest: int) -> None:
    """Refuse requests that the engine would refuse."""
    given = whole(options["max_model_len"], "max_model_len", maximum=MAX_SEQUENCE)
    limit = given or arch.max_positions
    if limit is None or longest <= limit:
        return
    what = "output_tokens" if options["output_tokens"] is not None and options["input_tokens"] is None else "input_tokens"
    whose = "max_model_len" if given else "what the model's file states"
    problem = f"makes requests of {longest} tokens, beyond {whose} ({limit})"
    hint = f"--max-model-len {longest}" + ("" if given else " says that it takes more")
    raise CombinationError(problem, field=what, value=options[what] or longest, allowed=f"{limit} in all", hint=hint)


def usual_concurrency(found: Deployment, demand: Demand, assumed: Assumed) -> float:
    """Return how many requests are in flight where nothing is said: as many as fit, and 32 a replica at most."""
    from foretell.cost.serving_flow import resident_limit  # noqa: PLC0415

    most, _ = resident_limit(demand.traffic, found.limits)
    if not found.capacity.feasible or most < 1.0:
        return 1.0
    users = found.replicas * max(1, min(_CONCURRENCY, math.floor(most)))
    assumed.append(f"{users} requests in flight (closed loop)" if users > 1 else "one request after the other")
    return float(users)
