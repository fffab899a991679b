"""`serve --simulate`: the load event by event, with a progress bar on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foretell.errors import InputError
from foretell.sim.serving import play, scheduler_of, source_of

if TYPE_CHECKING:
    from foretell.cli._serve_request import ServeRequest
    from foretell.core.serving_forecast import ServingForecast
    from foretell.plan.serving_trace import TraceLoad
    from foretell.sim.arrivals import ClosedLoop, Source
    from foretell.sim.outcome import Outcome, Slo

__all__ = ["played"]

_FEWEST: Final = 1000
"""Requests where nothing is said: and at least as many for each place as ``_WAVES``, up to ``_MOST``."""
_WAVES: Final = 10
_MOST: Final = 20_000
_LARGEST: Final = 300_000
"""Requests that are played at most, about a minute."""
_EVER: Final = (0.0, math.inf)
LONG: Final = 50_000
"""Requests of a trace beyond which only its busiest time is played, where it is not said how many."""


def played(
    made: ServeRequest, forecast: ServingForecast, *, seed: int = 0, slo: Slo | None = None, quiet: bool = False
) -> Outcome:
    """Return what a simulation of the load tells.

    Where the number of requests is not given, the server is looked at in its steady state: without the time in which it fills
    and that in which it empties.
    """
    demand, trace = made.demand, made.trace
    if trace is not None and trace.arrivals is not None and trace.arrivals.requests > LONG and not made.counted:
        return _around(made, trace.arrivals, seed=seed, slo=slo, quiet=quiet)
    count = demand.requests or _enough(forecast)
    if count > _LARGEST and trace is None:
        hint = "the closed form answers for any number: leave out --simulate"
        raise InputError("takes minutes to play", field="requests", value=count, allowed=f"at most {_LARGEST}", hint=hint)
    window = _EVER if demand.requests is not None or trace is not None else _steady(made, forecast, count)
    with _progress(count, quiet=quiet) as progress:
        if made.prefill is not None:
            return _apart(made, count, progress, seed=seed, slo=slo, window=window)
        return play(
            made.deployment,
            demand,
            source=_source(made),
            requests=count,
            seed=seed,
            slo=slo,
            progress=progress,
            window=window,
        )


def _around(made: ServeRequest, load: TraceLoad, *, seed: int, slo: Slo | None, quiet: bool) -> Outcome:
    """Play what comes around the busiest time of a long trace."""
    start = load.lead_s
    with _progress(load.busiest.requests, quiet=quiet) as progress:
        found = play(
            made.deployment,
            None,
            source=load.around_peak(),
            seed=seed,
            slo=slo,
            progress=progress,
            window=(start, start + load.window_s),
        )
    busiest = f"those of its busiest {load.window_s:g} s count"
    said = f"the trace has {load.requests:,} requests: {busiest}; --requests N plays the first ones"
    return replace(found, notes=(said, *found.notes))


def _apart(
    made: ServeRequest,
    count: int,
    progress: Callable[[int, float], None] | None,
    *,
    seed: int,
    slo: Slo | None,
    window: tuple[float, float],
) -> Outcome:
    """Play prompts and decoding on servers of their own."""
    from foretell.core.serving_split import cache_bytes  # noqa: PLC0415
    from foretell.sim.server import Prefill, simulate  # noqa: PLC0415

    split, found = made.prefill, made.deployment
    assert split is not None  # noqa: S101  # asked only then
    reads = split.deployment
    each = cache_bytes(reads, made.demand.inputs) / made.demand.inputs
    return simulate(
        _source(made) or source_of(made.demand, count),
        scheduler_of(found),
        found,
        replicas=found.replicas,
        seed=seed,
        slo=slo,
        first_token_s=reads.steps.engine.request_s if reads.steps.share is None else 0.0,
        prefill=Prefill(scheduler_of(reads), reads, lambda tokens: tokens * each / split.bytes_per_s, reads.replicas),
        progress=progress,
        window=window,
    )


def _enough(forecast: ServingForecast) -> int:
    places = max(forecast.resident or 0.0, forecast.waiting or 0.0, 1.0) * forecast.replicas
    return int(min(max(_FEWEST, _WAVES * places), _MOST)) if math.isfinite(places) else _FEWEST


def _steady(made: ServeRequest, forecast: ServingForecast, count: int) -> tuple[float, float]:
    """From when and until when the load is what it is meant to be."""
    demand = made.steady
    if demand.kind == "open" and demand.rate is not None and forecast.stable:
        last = count / demand.rate
        return min(forecast.request_s or 0.0, 0.2 * last), last
    if demand.kind == "closed" and forecast.requests_per_s and demand.concurrency is not None:
        last = max(count - demand.concurrency, 1.0) / forecast.requests_per_s
        return min(forecast.request_s or 0.0, 0.3 * last), last
    return _EVER


def _source(made: ServeRequest) -> Source | ClosedLoop | None:
    """Return the requests of a file, or None where lengths and arrivals are the demand's."""
    trace, demand = made.trace, made.demand
    if trace is None:
        return None
    from foretell.sim.arrivals import ClosedLoop, Offline, OnOff, OpenLoop  # noqa: PLC0415  # SimPy's room
    from foretell.sim.requests_file import FileLengths, TraceFile  # noqa: PLC0415

    if trace.arrivals is not None:
        return TraceFile(trace.path, trace.speed, demand.requests)
    count = demand.requests or trace.about.requests
    lengths = FileLengths(trace.path, repeat=True)
    if demand.kind == "open" and demand.rate is not None:
        if demand.burst is not None:
            b = demand.burst
            return OnOff(b["peak_rate_per_s"], b["duration_s"], b["period_s"], lengths, demand.rate, count)
        return OpenLoop(demand.rate, lengths, demand.arrival_cv, count)
    if demand.kind == "closed":
        users = max(1, round(demand.concurrency or 1))
        return ClosedLoop(users, lengths, max(count, users))
    return Offline(int(demand.concurrency or 1), lengths)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[int, float], None] | None]:
    """Give what is told of progress: a bar on stderr that is gone in the end; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda done, _: bar.update(task, completed=done)
