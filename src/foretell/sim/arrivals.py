"""Where requests come from: open loops of any burstiness, on/off bursts, a closed loop, everything at once.

A source is a description; ``stream(seed)`` or, of a closed loop, ``pairs(seed)`` makes it requests, one at a time, so that a
long run needs no memory.  Draws come from ``random.Random``, one generator for the arrivals and another for the lengths: two
runs with one seed are equal, and a change of the rate leaves the lengths what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final, Protocol

from foretell.errors import InputError
from foretell.validation import MAX_DEGREE, MAX_SEQUENCE, choice, number, positive_int

__all__ = ["ClosedLoop", "LengthSource", "Lengths", "Offline", "OnOff", "OpenLoop", "Request", "Source", "Tokens"]

LAWS: Final = ("lognormal", "gamma")
MAX_RATE: Final = 1e9
"""Requests a second beyond which a rate is taken for a slip."""
MAX_CV: Final = 1e3
MAX_SECONDS: Final = 1e12

Tokens = tuple[int, int, int]
"""Input tokens, output tokens, and those of the input that are cached."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its first output token is made by the step that reads its last input token."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of the input, found in the prefix cache: not computed again, but in KV blocks as the rest."""


class LengthSource(Protocol):
    """Lengths of one request after the other."""

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        ...

    def pairs(self, rng: Random) -> Iterator[Tokens]:
        """Yield the tokens of each request."""
        ...


class Source(Protocol):
    """Requests in the order of their arrival."""

    @property
    def requests(self) -> int | None:
        """How many there will be, where that is known."""
        ...

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        ...

    def stream(self, seed: int) -> Iterator[Request]:
        """Yield each request."""
        ...


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths drawn independently around means (tokens); a coefficient of variation (CV) of 0 fixes one.

    Draws are rounded and kept within 1 and ``longest``, which moves the mean where much of the law lies beyond.

    >>> next(Lengths(512, 128).pairs(Random(0)))
    (512, 128, 0)
    """

    input_mean: float
    output_mean: float
    input_cv: float = 0.0
    output_cv: float = 0.0
    law: str = "lognormal"
    """lognormal or gamma."""
    cached: float = 0.0
    """Share of the input that is found in the prefix cache, at least one token less than all."""
    longest: int = MAX_SEQUENCE

    def __post_init__(self) -> None:
        """Check every value; InputError names the one that cannot be used."""
        for field in ("input_mean", "output_mean"):
            number(getattr(self, field), field, minimum=1.0, maximum=MAX_SEQUENCE)
        for field in ("input_cv", "output_cv"):
            number(getattr(self, field), field, maximum=MAX_CV)
        choice(self.law, "law", LAWS)
        share_cached(self.cached, "cached")
        positive_int(self.longest, "longest", maximum=MAX_SEQUENCE)

    @property
    def finite(self) -> bool:
        """There are always more."""
        return False

    def pairs(self, rng: Random) -> Iterator[Tokens]:
        """Yield lengths without end."""
        inputs = _law(rng, self.law, self.input_mean, self.input_cv)
        outputs = _law(rng, self.law, self.output_mean, self.output_cv)
        cached, longest = self.cached, self.longest
        while True:
            tokens = min(longest, max(1, round(inputs())))
            yield tokens, min(longest, max(1, round(outputs()))), min(int(cached * tokens), tokens - 1)


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals at a rate, whatever the server does; the times between them are gamma with this CV.

    1 is a Poisson process, 0 a constant pace; bursty traffic has more (published traces: 1.1 and 13).  Load generators that
    have a "burstiness" mean 1/cv^2.  The first request comes after the first of these times.
    """

    rate_per_s: float
    lengths: LengthSource
    cv: float = 1.0
    requests: int | None = None
    """How many; None: until the lengths end, or the simulation."""

    def __post_init__(self) -> None:
        """Check every value."""
        number(self.rate_per_s, "rate_per_s", minimum=1e-9, maximum=MAX_RATE)
        number(self.cv, "cv", maximum=MAX_CV)
        _count(self.requests)

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return self.requests is not None or self.lengths.finite

    def stream(self, seed: int) -> Iterator[Request]:
        """Yield each request."""
        gap = gaps(_generator(seed, "arrivals"), 1.0 / self.rate_per_s, self.cv)
        now = 0.0
        for tokens in _lengths(self.lengths, seed, self.requests):
            now += gap()
            yield Request(now, *tokens)


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts: a Poisson process at the peak rate for ``on_s`` of every ``period_s`` seconds, at another one in between."""

    peak_per_s: float
    on_s: float
    period_s: float
    lengths: LengthSource
    base_per_s: float = 0.0
    requests: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        number(self.peak_per_s, "peak_per_s", minimum=1e-9, maximum=MAX_RATE)
        number(self.base_per_s, "base_per_s", maximum=MAX_RATE)
        number(self.period_s, "period_s", minimum=1e-6, maximum=MAX_SECONDS)
        number(self.on_s, "on_s", minimum=1e-6, maximum=self.period_s)
        _count(self.requests)

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return self.requests is not None or self.lengths.finite

    def stream(self, seed: int) -> Iterator[Request]:
        """Yield each request: a process of rate 1 on the integral of the rate, read back as time."""
        rng = _generator(seed, "arrivals")
        burst = self.peak_per_s * self.on_s
        whole = burst + self.base_per_s * (self.period_s - self.on_s)
        periods, mass = 0, 0.0
        for tokens in _lengths(self.lengths, seed, self.requests):
            mass += rng.expovariate(1.0)
            turns = int(mass / whole)
            periods, mass = periods + turns, max(0.0, mass - turns * whole)
            if mass <= burst or not self.base_per_s:
                inside = min(mass, burst) / self.peak_per_s
            else:
                inside = self.on_s + (mass - burst) / self.base_per_s
            yield Request(periods * self.period_s + inside, *tokens)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A constant number of users, each of whom sends the next request a think time after the end of the last one."""

    users: int
    lengths: LengthSource
    requests: int | None = None
    """Of all users together; None: until the lengths end, or the simulation."""
    think_s: float = 0.0
    """Mean seconds from the end of a request to the next one of the same user."""
    think_cv: float = 0.0
    """0: always the mean; 1: exponential."""

    def __post_init__(self) -> None:
        """Check every value."""
        positive_int(self.users, "users")
        number(self.think_s, "think_s", maximum=MAX_SECONDS)
        number(self.think_cv, "think_cv", maximum=MAX_CV)
        _count(self.requests)

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return self.requests is not None or self.lengths.finite

    def pairs(self, seed: int) -> Iterator[Tokens]:
        """Yield the lengths of the requests, whoever sends them."""
        return _lengths(self.lengths, seed, self.requests)

    def thinking(self, seed: int) -> Callable[[], float]:
        """Return what draws think times (seconds)."""
        return gaps(_generator(seed, "think"), self.think_s, self.think_cv)


@dataclass(frozen=True, slots=True)
class Offline:
    """Everything is there at time 0."""

    requests: int | None
    """None: as many as there are lengths."""
    lengths: LengthSource

    def __post_init__(self) -> None:
        """Check every value: a queue without end fits nowhere."""
        _count(self.requests)
        if not self.finite:
            raise InputError("must be given: the lengths never end", field="requests", value=self.requests)

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return self.requests is not None or self.lengths.finite

    def stream(self, seed: int) -> Iterator[Request]:
        """Yield each request."""
        for tokens in _lengths(self.lengths, seed, self.requests):
            yield Request(0.0, *tokens)


def share_cached(value: object, field: str) -> float:
    """Return the share of an input that is cached; at least a little is always read."""
    share = number(value, field, maximum=1.0)
    if share >= 1.0:
        raise InputError("leaves nothing to read: the last token is always computed", field=field, value=value,
                         allowed="0 or more and less than 1")  # fmt: skip
    return share


def gaps(rng: Random, mean: float, cv: float) -> Callable[[], float]:
    """Return what draws gamma times with this mean (seconds) and CV: exponential at 1, constant at 0.

    >>> gaps(Random(0), 2.0, 0.0)()
    2.0
    """
    if cv == 1.0 and mean > 0.0:
        return lambda: rng.expovariate(1.0 / mean)
    return _law(rng, "gamma", mean, cv)


def _law(rng: Random, law: str, mean: float, cv: float) -> Callable[[], float]:
    """Return what draws numbers of a law with this mean and CV."""
    if cv == 0.0 or mean == 0.0:
        return lambda: mean
    if law == "gamma":
        shape, scale = 1.0 / cv**2, mean * cv**2
        return lambda: rng.gammavariate(shape, scale)
    variance = math.log1p(cv**2)  # of the logarithm
    middle, spread = math.log(mean) - variance / 2.0, math.sqrt(variance)
    return lambda: rng.lognormvariate(middle, spread)


def _lengths(lengths: LengthSource, seed: int, most: int | None) -> Iterator[Tokens]:
    yield from islice(lengths.pairs(_generator(seed, "lengths")), most)


def _generator(seed: int, use: str) -> Random:
    return Random(f"{seed}/{use}")  # noqa: S311  # a simulation is no secret


def _count(requests: int | None) -> None:
    if requests is not None:
        positive_int(requests, "requests", maximum=MAX_DEGREE)
