"""One replica of a server as a queue sees it: how long a request stays, by how many there are, and what it spends the time on.

The steady states of :mod:`foretell.cost.serving_flow` have requests meet the prompts of all others as well as their own; of n
requests the n-th is not stalled by itself, so that (1 - 1/n^2) of the stall is left: within 3 % of simulated closed loops of 1 to
32 requests, alone exactly what it has to itself.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Final

from foretell.core.serving import Deployment
from foretell.cost.serving_flow import Flow, Traffic, at_decoding, largest_rate, prompt_s, resident_limit
from foretell.cost.serving_load import Load
from foretell.operations.shared_service import Sharing

__all__ = ["Replica"]

_FIRST: Final = 0.5
"""Sequences that decode at the first point."""
_GROWTH: Final = 2.0
"""... at one over those at the one before."""


@dataclass(frozen=True)
class Replica:
    """A replica under one kind of requests."""

    found: Deployment
    traffic: Traffic
    sharing: Sharing
    stalled: list[float]
    """Seconds that a request loses to the prompts of others, at the points of ``sharing``."""
    itl: list[float]
    """Mean seconds between two tokens of a request, there."""
    first: float
    """Seconds in which an idle replica reads a prompt."""
    prompt: float
    """Seconds of the replica that a prompt takes where prompts are always waiting."""
    bound: str
    """What holds its largest batch down."""
    client: float
    """Seconds between a client and the scheduler."""

    @classmethod
    def of(cls, found: Deployment, traffic: Traffic) -> Replica:
        """Price a replica, once; it has to hold one request."""
        return _priced(_Same(found, traffic))

    @classmethod
    def priced(cls, found: Deployment, traffic: Traffic) -> Replica:
        """Price a replica."""
        limits, speed = found.limits, {"width": found.width, "made": found.made}
        read = prompt_s(found, traffic, limits)
        top = largest_rate(found, traffic, limits, **speed)
        prompt = _saturated(found, traffic, top)
        steps = max(traffic.outputs - 1.0, 0.0) / found.made
        step = _step(found, traffic, 1.0)
        held, residence, stalled, itl = [1.0], [read + steps * step], [0.0], [step / found.made]
        for flow in _flows(found, traffic, top):
            there = flow.decoding + flow.reading
            if there <= held[-1]:
                continue
            lost = steps * max(flow.itl_s * found.made - _step(found, traffic, flow.decoding), 0.0)
            own = lost / (there * there)
            held.append(there)
            residence.append(there / flow.rate - own)
            stalled.append(lost - own)
            itl.append(flow.itl_s - own / (steps * found.made))
        most, _ = resident_limit(traffic, limits)
        if most > held[-1]:  # places beyond what a full server needs: requests wait in them
            rate = held[-1] / residence[-1] if steps else 1.0 / prompt
            held.append(most)
            residence.append(most / rate)
            stalled.append(stalled[-1])
            itl.append(itl[-1])
        client = found.steps.engine.request_s if found.steps.share is None else 0.0
        return cls(found, traffic, Sharing.of(held, residence), stalled, itl, read, prompt, top.bound, client)

    @property
    def alone(self) -> float:
        """Seconds of a request that has the replica to itself."""
        return self.client + float(self.sharing.residence[0])

    @property
    def reading(self) -> float:
        """Share of its time that a full replica reads prompts."""
        return min(1.0, self.sharing.largest_rate * self.prompt)


@dataclass(frozen=True, eq=False)
class _Same:
    """Deployments are the same for a replica whose steps have the same prices (one object for each) and the same limits."""

    found: Deployment
    traffic: Traffic

    @property
    def key(self) -> tuple[object, ...]:
        found = self.found
        return id(found.steps), id(found.draft), found.limits, found.width, found.made, self.traffic

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.key == other.key


@functools.lru_cache(maxsize=256)
def _priced(same: _Same) -> Replica:
    return Replica.priced(same.found, same.traffic)


def _flows(found: Deployment, traffic: Traffic, top: Flow) -> list[Flow]:
    """Steady states from few sequences that decode to the most that the replica holds."""
    if traffic.outputs <= 1.0:
        return []
    points, n = [], _FIRST
    while n < top.decoding:
        points.append(n)
        n *= _GROWTH
    speed = {"width": found.width, "made": found.made}
    return [at_decoding(found, traffic, found.limits, n, **speed) for n in (*points, top.decoding)]


def _step(found: Deployment, traffic: Traffic, decoding: float) -> float:
    """Seconds of a step in which so many sequences decode, without prompts."""
    return float(found.seconds(Load(decode=decoding, context=decoding * traffic.seen, width=found.width)))


def _saturated(found: Deployment, traffic: Traffic, top: Flow) -> float:
    """Seconds that one prompt takes of a replica whose steps are full of prompts."""
    if not found.limits.mixed:
        together = max(1.0, found.limits.tokens / traffic.computed)
        return prompt_s(found, traffic, found.limits, together) / together
    room = max(found.limits.tokens - top.decoding * found.width, 1.0)
    many = room / traffic.computed
    load = replace(top.load, prefill=room, pairs=traffic.pairs * many, prompts=max(many, 1.0))
    return float(found.seconds(load)) / many
