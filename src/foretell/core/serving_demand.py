"""What is asked of a server: how many requests, when, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.cost.serving_flow import Traffic
from foretell.errors import CombinationError, InputError
from foretell.validation import MAX_SEQUENCE, choice, number, positive_int

__all__ = ["KINDS", "Demand", "checked_demand"]

KINDS: Final = ("single", "static", "closed", "open", "offline")
_LARGEST: Final = 1e7


@dataclass(frozen=True, slots=True)
class Demand:
    """A load; tokens are means."""

    kind: str
    """single: one request after the other; static: one batch, started together; closed: a constant number in flight; open:
    arrivals at a rate; offline: all there at the start."""
    inputs: float
    outputs: float
    cached: float = 0.0
    """Input tokens found in the prefix cache."""
    longest: float | None = None
    """Output tokens at which an answer is cut; lengths then vary, exponentially below the cut."""
    concurrency: float | None = None
    """Requests in flight, or of the batch."""
    rate: float | None = None
    """Requests a second."""
    arrival_cv: float = 1.0
    """Standard deviation of the time between arrivals over its mean: 1 Poisson, 0 constant."""
    burst: Mapping[str, float] | None = None
    """peak_rate_per_s, duration_s and period_s of bursts on top."""
    requests: int | None = None
    """In all; None: for ever."""
    input_cv: float = 0.0
    """Standard deviation of the input's length over its mean."""

    @property
    def traffic(self) -> Traffic:
        """The requests."""
        return Traffic(self.inputs, self.outputs, self.cached, self.longest)


def checked_demand(given: Demand) -> Demand:
    """Return the demand; InputError or CombinationError for what cannot be asked."""
    choice(given.kind, "load", KINDS)
    inputs = number(given.inputs, "input_tokens", minimum=1.0, maximum=MAX_SEQUENCE)
    outputs = number(given.outputs, "output_tokens", minimum=1.0, maximum=MAX_SEQUENCE)
    cached = number(given.cached, "cached_tokens", maximum=MAX_SEQUENCE)
    if cached >= inputs:
        problem = "must be shorter than the input: its last token is always computed"
        raise CombinationError(problem, field="cached_tokens", value=given.cached, allowed=f"below {inputs:g}")
    number(given.arrival_cv, "arrival_cv", maximum=100.0)
    number(given.input_cv, "input_cv", maximum=10.0)
    if given.requests is not None:
        positive_int(given.requests, "requests", maximum=100_000_000)
    if given.longest is not None:
        number(given.longest, "longest_output", minimum=outputs, maximum=MAX_SEQUENCE)
    if given.kind == "open":
        if given.rate is None:
            raise InputError("needs a rate", field="rate", value="None", allowed="requests a second")
        number(given.rate, "rate", minimum=1e-9, maximum=_LARGEST)
    elif given.kind in ("static", "closed"):
        if given.concurrency is None:
            raise InputError("needs a number of requests in flight", field="concurrency", value="None", allowed="1 or more")
        number(given.concurrency, "concurrency", minimum=1.0, maximum=_LARGEST)
    return replace(given, inputs=inputs, outputs=outputs, cached=cached)


def plain(given: Demand) -> dict[str, Any]:
    """Return what was asked, as JSON holds it."""
    return {name: getattr(given, name) for name in Demand.__slots__}
