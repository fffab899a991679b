"""What a trace of requests asks of a fleet: lengths, and how many come in its busiest minute.  One pass, in bounded memory.

A mean rate sizes a fleet for no moment of the day: the busiest window counts, with the spread of the times between its own
arrivals (that of the whole file has the day's ups and downs in it).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from foretell.core.serving_demand import Demand
from foretell.errors import InputError
from foretell.sim.arrivals import Request
from foretell.sim.requests_file import read_requests
from foretell.validation import MAX_DEGREE, number, positive_int

__all__ = ["WINDOW_S", "TraceLoad", "read_trace"]

WINDOW_S: Final = 60.0
"""Seconds of the window whose busiest place is looked for."""
_PIECES: Final = 60
"""Into which a window is cut: it slides by one of them."""
_VARIED: Final = 0.3
"""Spread of answers from which on they are taken as exponential and cut at the longest, instead of equal."""


@dataclass(frozen=True, slots=True)
class Busiest:
    """The window with most arrivals."""

    start_s: float
    """Since the file's first arrival."""
    requests: int
    rate_per_s: float
    arrival_cv: float
    """Standard deviation over mean of the times between its arrivals."""


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """A file of requests as a demand."""

    path: str
    speed: float
    requests: int
    inputs: float
    """Mean tokens of a prompt."""
    outputs: float
    cached: float
    input_cv: float
    """Standard deviation over mean."""
    output_cv: float
    longest: int
    """Tokens of the longest request, prompt and answer."""
    longest_output: int
    start_s: float
    """Of the first arrival."""
    span_s: float
    """From the first arrival to the last."""
    arrival_cv: float
    window_s: float
    busiest: Busiest

    @property
    def rate_per_s(self) -> float:
        """Mean rate of arrivals."""
        return (self.requests - 1) / self.span_s

    def demand(self, *, peak: bool = True) -> Demand:
        """Return the load of the busiest window, or the mean one of the whole file."""
        return Demand(
            "open",
            inputs=self.inputs,
            outputs=self.outputs,
            cached=min(self.cached, self.inputs - 1.0),
            longest=float(self.longest_output) if self.output_cv > _VARIED else None,
            rate=self.busiest.rate_per_s if peak else self.rate_per_s,
            arrival_cv=self.busiest.arrival_cv if peak else self.arrival_cv,
            input_cv=self.input_cv,
        )

    def around_peak(self) -> Iterator[Request]:
        """Yield the requests of the busiest window and of one before it, from time 0."""
        begin = self.start_s + max(0.0, self.busiest.start_s - self.window_s)
        end = self.start_s + self.busiest.start_s + self.window_s
        with closing(read_requests(self.path, speed=self.speed)) as found:
            for one in found:
                if one.arrival_s >= end:
                    break
                if one.arrival_s >= begin:
                    yield Request(one.arrival_s - begin, one.input_tokens, one.output_tokens, one.cached_tokens)

    @property
    def lead_s(self) -> float:
        """Seconds of :meth:`around_peak` before the busiest window."""
        return min(self.window_s, self.busiest.start_s)


@dataclass(slots=True)
class _Moments:
    """Mean and variance, a value at a time (Welford 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)

    @property
    def cv(self) -> float:
        return math.sqrt(self.squares / self.count) / self.mean if self.mean else 0.0


@dataclass(slots=True)
class _Piece:
    """Arrivals of a piece of a window, and the times since the ones before them."""

    at: int
    arrivals: int = 0
    gaps: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, gap: float | None) -> None:
        self.arrivals += 1
        if gap is not None:
            self.gaps += 1
            self.total += gap
            self.squares += gap * gap

    def take(self, other: _Piece, sign: int) -> None:
        self.arrivals += sign * other.arrivals
        self.gaps += sign * other.gaps
        self.total += sign * other.total
        self.squares += sign * other.squares

    @property
    def cv(self) -> float:
        """Standard deviation over mean; 1 (Poisson) where fewer than two times are known."""
        mean = self.total / self.gaps if self.gaps > 1 else 0.0
        return math.sqrt(max(self.squares / self.gaps - mean * mean, 0.0)) / mean if mean > 0.0 else 1.0


class _Windows:
    """Counts of a sliding window, in pieces: arrivals, and the times since the ones before them."""

    def __init__(self, window: float) -> None:
        self.piece = window / _PIECES
        self.window = window
        self.pieces: deque[_Piece] = deque()
        self.sums = _Piece(0)
        self.best: Busiest | None = None

    def add(self, time: float, gap: float | None) -> None:
        """Count an arrival at a time since the first; ``gap``: since the one before, if there was one."""
        at = int(time / self.piece)
        if not self.pieces or self.pieces[-1].at != at:
            self._settle()
            while self.pieces and self.pieces[0].at <= at - _PIECES:
                self.sums.take(self.pieces.popleft(), -1)
            self.pieces.append(_Piece(at))
        between = gap if gap is not None and gap < self.window else None  # a longer one lies between windows
        for one in (self.pieces[-1], self.sums):
            one.add(between)

    def _settle(self) -> None:
        """Remember the window that ends here, if it is the busiest yet."""
        found = self.sums
        if self.pieces and (self.best is None or found.arrivals > self.best.requests):
            start = max(0.0, (self.pieces[-1].at + 1 - _PIECES) * self.piece)
            self.best = Busiest(start, found.arrivals, found.arrivals / self.window, found.cv)

    def busiest(self) -> Busiest:
        """Return the busiest window."""
        self._settle()
        assert self.best is not None  # noqa: S101  # something was counted
        return self.best


def read_trace(path: str | Path, *, window_s: float = WINDOW_S, speed: float = 1.0, requests: int | None = None) -> TraceLoad:
    """Read a file of requests once (the first ``requests`` of them) and say what it asks.

    ``speed``: arrivals come this many times as fast as they did.  A file shorter than the window is its own window.

    Raises:
        InputError: as :func:`foretell.sim.requests_file.read_requests`; a file of one request, or whose requests all come at
            once, has no rate.

    """
    number(speed, "speed", minimum=1e-6, maximum=1e6)
    number(window_s, "window_s", minimum=1e-3, maximum=1e9)
    if requests is not None:
        positive_int(requests, "requests", maximum=MAX_DEGREE)
    inputs, outputs, gaps, windows = _Moments(), _Moments(), _Moments(), _Windows(window_s)
    cached, longest, output, first, last = 0, 0, 0, 0.0, 0.0
    with closing(read_requests(path, speed=speed)) as found:
        for one in islice(found, requests):
            gap = one.arrival_s - last if inputs.count else 0.0
            if inputs.count:
                gaps.add(gap)
            else:
                first = one.arrival_s
            last = one.arrival_s
            windows.add(last - first, gap if inputs.count else None)
            inputs.add(one.input_tokens)
            outputs.add(one.output_tokens)
            cached += one.cached_tokens
            longest = max(longest, one.input_tokens + one.output_tokens)
            output = max(output, one.output_tokens)
    span = last - first
    if not span:
        problem = "holds one request" if inputs.count == 1 else "has all requests at one time"
        raise InputError(f"{problem}, which is no rate", field="requests", value=str(path), hint="Give a rate beside the lengths")
    busiest = windows.busiest()
    if span < window_s:
        busiest = Busiest(0.0, inputs.count, (inputs.count - 1) / span, gaps.cv)
    return TraceLoad(
        path=str(path),
        speed=speed,
        requests=inputs.count,
        inputs=inputs.mean,
        outputs=outputs.mean,
        cached=cached / inputs.count,
        input_cv=inputs.cv,
        output_cv=outputs.cv,
        longest=longest,
        longest_output=output,
        start_s=first,
        span_s=span,
        arrival_cv=gaps.cv,
        window_s=min(window_s, span),
        busiest=busiest,
    )
