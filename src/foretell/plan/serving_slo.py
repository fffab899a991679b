"""Targets of a service: which latency, of which share of the requests, at most how long.

A bare target is one of the 99th percentile, as MLPerf's server scenario and most service agreements have it.  ITL is that of a
request: its mean time per output token after the first (TPOT), not the gap between two tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError
from foretell.plan.serving_tail import MEAN
from foretell.sim.outcome import Outcome, Slo, Summary
from foretell.units import parse

__all__ = ["METRICS", "SHARES", "SloTargets", "Target", "parse_slo"]

METRICS: Final = ("ttft", "itl", "e2e")
SHARES: Final = {"mean": MEAN, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Statistic -> share of the requests that it bounds."""
USUAL: Final = "p99"
"""Where a target names none."""
_NAMES: Final = {"tpot": "itl", "latency": "e2e", "request": "e2e", **{name: name for name in METRICS}}
_MOST: Final = 12
"""Targets at a time."""
_LONGEST: Final = 1e6
"""Seconds."""
_ALLOWED: Final = "ttft, itl (or tpot), e2e, each bare (p99) or as mean-, p50-, p90-, p95-, p99-: ttft=500ms,itl=50ms,p90-e2e=10s"


@dataclass(frozen=True, slots=True)
class Target:
    """One latency, and what it may be at most."""

    metric: str
    """ttft, itl or e2e."""
    seconds: float
    statistic: str = USUAL

    def __post_init__(self) -> None:
        """Check every value; a target of no time is none."""
        if self.metric not in METRICS:
            raise InputError("is no latency", field="slo", value=self.metric, allowed=METRICS)
        if self.statistic not in SHARES:
            raise InputError("is no statistic", field="slo", value=self.statistic, allowed=list(SHARES))
        if not 0.0 < self.seconds <= _LONGEST:
            raise InputError("leaves no time" if self.seconds <= 0 else "is no target", field="slo",
                             value=f"{self.name}={self.seconds:g} s", allowed=f"above 0 and at most {_LONGEST:g} s")  # fmt: skip

    @property
    def share(self) -> float:
        """Of the requests; :data:`~foretell.plan.serving_tail.MEAN` for the mean."""
        return SHARES[self.statistic]

    @property
    def name(self) -> str:
        """As it is written.

        >>> Target("ttft", 0.5).name
        'p99-ttft'
        """
        return f"{self.statistic}-{self.metric}"

    def seen(self, outcome: Outcome) -> float | None:
        """Return what a simulation has for it; None where no request says."""
        summary: Summary = {"ttft": outcome.ttft, "itl": outcome.tpot, "e2e": outcome.e2e}[self.metric]
        found: float | None = getattr(summary, self.statistic)
        return found


@dataclass(frozen=True, slots=True)
class SloTargets:
    """Targets that all have to be met."""

    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        """Check that there is one, and none twice."""
        names = [target.name for target in self.targets]
        if not names:
            raise InputError("needs a target", field="slo", allowed=_ALLOWED)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError("names a target twice", field="slo", value=twice)

    def __iter__(self) -> Iterator[Target]:
        """Yield each target."""
        return iter(self.targets)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the requests that any target bounds, each once."""
        return tuple(dict.fromkeys(target.share for target in self.targets))

    @property
    def tightest(self) -> Slo:
        """The shortest time for each latency, as simulations count goodput."""
        least = {metric: min((t.seconds for t in self.targets if t.metric == metric), default=None) for metric in METRICS}
        return Slo(ttft_s=least["ttft"], tpot_s=least["itl"], e2e_s=least["e2e"])

    def to_dict(self) -> dict[str, float]:
        """Return seconds by name."""
        return {f"{target.name}_s": target.seconds for target in self.targets}

    def __str__(self) -> str:
        """Return the targets as they are written."""
        return ", ".join(f"{target.name} {target.seconds:g} s" for target in self.targets)


def parse_slo(text: str) -> SloTargets:
    """Return the targets that a text names: ``ttft=500ms,itl=50ms,p90-e2e=10s``; InputError with what is allowed.

    >>> print(parse_slo("ttft=500ms, mean-tpot=50ms"))
    p99-ttft 0.5 s, mean-itl 0.05 s
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError("names no target", field="slo", value=text, allowed=_ALLOWED)
    parts = text.split(",")
    if len(parts) > _MOST:
        raise InputError(f"names more than {_MOST} targets", field="slo", value=text, allowed=_ALLOWED)
    return SloTargets(tuple(_target(part.strip(), text) for part in parts))


_LONG: Final = 60.0
"""Seconds above which a bare number is more likely milliseconds."""
_PART: Final = re.compile(
    r"(?:(?P<before>mean|p\d+)-)?(?P<metric>[a-z0-9]+)(?:-(?P<after>mean|p\d+))?\s*(?:<?=|<)\s*(?P<time>.+)"
)


def _target(part: str, text: str) -> Target:
    found = _PART.fullmatch(part.casefold())
    metric = None if found is None else _NAMES.get(found["metric"])
    if found is None or metric is None or (found["before"] and found["after"]):
        raise InputError("is no target", field="slo", value=part or text, allowed=_ALLOWED)
    statistic = found["before"] or found["after"] or USUAL
    if statistic not in SHARES:
        raise InputError("is no statistic that is known", field="slo", value=part, allowed=list(SHARES))
    given = part[found.start("time") :].strip()
    seconds = parse(given, "s", "slo")
    if seconds > _LONG and given.replace(".", "", 1).isdecimal():
        hint = f"for instance {metric}={given}ms"
        raise InputError("names no unit, and seconds would be long", field="slo", value=part, hint=hint)
    return Target(metric, seconds, statistic)
