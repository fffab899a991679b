"""How late the late ones are: percentiles of time to first token, time per output token and whole requests of one replica.

The closed form (:mod:`foretell.cost.serving_flow`) has means; a percentile is built from what varies:

- how many requests a request meets: the law of a server that its requests share (:mod:`foretell.operations.shared_service`),
  which also says how long it waits for a place (max_num_seqs, or room for its keys and values);
- prompts that came before its own and are read first: one server whose service is one prompt in full steps
  (:class:`~foretell.operations.queueing.Queue`); where arrivals are burstier than Poisson ones, the exponent of the tail of
  a single server under gamma times between arrivals (Kingman 1964, "A martingale inequality in the theory of queues"), from a
  share of waiting that is exact for one server of exponential services;
- the rest of the step that runs when it comes;
- prompts that are read while it decodes: each delays it, and while it is delayed more come (the delay busy period of a single
  server: Takács 1962, "Introduction to the Theory of Queues"), up to full steps alone; their sum is taken as gamma.

Sums of what varies for different reasons have the deviations from their means added in squares.

Against 241 simulations of random deployments (1B to 70B, five engines' schedulers, prompts of 50 to 12,000 tokens, answers of 6
to 1,250, loads of 0.15 to 0.85) the 99th percentile is off by, median and the middle 80 %: under Poisson arrivals TTFT 10 % (-20
to +34 %), time per output token 5 % (-5 to +34 %), requests 6 % (-8 to +45 %); where the spread of arrivals is 2 or 3, TTFT 18 %
(-28 to +103 %), time per output token 12 % (-21 to +51 %), requests 15 % (-19 to +89 %).

NumPy arrays over rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foretell.core.serving import Deployment
from foretell.core.solver._replica import Replica
from foretell.cost.serving_flow import Traffic, at_decoding
from foretell.cost.serving_load import Load
from foretell.operations.approximations import peakedness
from foretell.operations.queueing import Queue
from foretell.operations.shared_service import Sharing, occupancy
from foretell.plan._tail_laws import exponent_of, gamma_quantile, mixed_quantile, over_mean, transform

__all__ = ["MEAN", "Late", "Tail"]

Array = NDArray[Any]

MEAN: Final = 0.0
"""In place of a share: the mean."""
_LEAST: Final = 0.2
"""Decoding sequences of a curve's first point."""
_GROWTH: Final = 2.0
"""... from one point to the next."""
_SPLITS: Final = np.array([0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 0.95, 1.0])
"""Shares of the answers, short ones first, between which one length stands for all."""
_FAR: Final = 0.999
"""Share of the requests from whose wait for a place the mean one is found."""
_MOST_STALL: Final = 0.97
"""Share of a request's time that prompts of others may take: beyond it only the full step bounds it."""


@dataclass(frozen=True, slots=True)
class Late:
    """What a share of the requests stays below (or their mean), by rate; seconds, infinite where the replica does not keep up."""

    ttft: Array
    tpot: Array
    """Mean time per output token after the first, of a request; 0 for answers of one token."""
    e2e: Array
    wait: Array
    """Of TTFT: prompts that came before."""
    seat: Array
    """... a place, at the same time."""
    beside: Array
    """... the step that runs, and slower reading beside sequences that decode."""
    stall: Array
    """Of TPOT: prompts that are read beside."""
    slower: Array
    """... the sequences that decode beside, over one alone."""

    def of(self, metric: str) -> Array:
        """Return ttft, itl or e2e."""
        found: Array = {"ttft": self.ttft, "itl": self.tpot, "e2e": self.e2e}[metric]
        return found


@dataclass(frozen=True)
class Tail:
    """One replica under requests of one kind."""

    replica: Replica
    sharing: Sharing
    """The replica as a queue, with the places that hold whatever happens."""
    arrival_cv: float
    output_cv: float
    there: Array
    """Requests in the replica, at which the rest is known."""
    read: Array
    """Seconds in which a prompt is read."""
    alone: Array
    """... of a step that reads none."""
    step: Array
    """... of the mean one."""
    full: Array
    """... of one whose budget prompts fill."""
    prompt: Array
    """... of a full step for each prompt in it."""
    delay: Array
    """Seconds by which a prompt delays those that decode."""
    decoding: Array
    spread: float
    """Of the seconds of a prompt: standard deviation over mean."""

    @classmethod
    def of(cls, found: Deployment, traffic: Traffic, *, input_cv: float = 0.0, arrival_cv: float = 1.0) -> Tail:
        """Price a replica's steps; it has to hold one request."""
        replica = Replica.of(found, traffic)
        sharing = _kept(replica.sharing, _held(found, traffic, input_cv))
        n, there, read, step = _curve(found, traffic, replica, sharing.places)
        mixed, width = found.limits.mixed, found.width
        alone = _seconds(found, Load(decode=n, context=n * traffic.seen, width=width)) if traffic.outputs > 1 else 0.0 * n
        beside = n if mixed else 0.0 * n
        room = np.maximum(found.limits.tokens - beside * width, 1.0)
        many = room / traffic.computed
        pairs = traffic.pairs * many * (1.0 + input_cv**2)  # long prompts see more: the mean of a square
        load = Load(beside, beside * traffic.seen, room, pairs, np.maximum(many, 1.0), width)
        full = _seconds(found, load)
        seeing = float(full[0] - _seconds(found, Load(beside, beside * traffic.seen, room, pairs * 1e-9, load.prompts, width))[0])
        power = 1.0 + seeing / float(full[0])  # of its length, to which a prompt's time grows
        longest, mean = traffic.longest, traffic.outputs
        square = 2.0 * mean * (traffic.seen - traffic.inputs)
        return cls(
            replica=replica,
            sharing=sharing,
            arrival_cv=arrival_cv,
            output_cv=0.0 if longest is None or math.isinf(traffic.decay) else math.sqrt(max(square / mean**2 - 1.0, 0.0)),
            there=there,
            read=read,
            alone=alone,
            step=step,
            full=full,
            prompt=full / many,
            delay=np.maximum(step - alone, 0.0) * max(traffic.outputs - 1.0, 0.0) / found.made / n,
            decoding=n,
            spread=math.sqrt((1.0 + input_cv**2) ** (power * power) - 1.0),
        )

    @property
    def steps(self) -> float:
        """Steps after the first token."""
        return max(self.replica.traffic.outputs - 1.0, 0.0) / self.replica.found.made

    @property
    def idle(self) -> tuple[float, float, float]:
        """TTFT, TPOT and the whole of a request that has the replica to itself."""
        r = self.replica
        step = float(self.alone[0]) / r.found.made
        return r.client + r.first, step, r.client + r.first + self.steps * r.found.made * step

    def at(self, rate: Array, share: float, *, whole: bool = False) -> Late:
        """Return what a share of the requests stays below at arrival rates; :data:`MEAN`: their mean.

        ``whole``: whole requests too, which take as long again; else they are left infinite.
        """
        r, made = self.replica, self.replica.found.made
        mean = share == MEAN
        peak = float(peakedness(self.output_cv, self.arrival_cv))
        usual, met, seat, stable = self._met(rate, share, max(peak, 1.0))
        here = usual if mean else met

        def curve(values: Array, at: Array) -> Array:
            found: Array = np.interp(at, self.there, values)
            return found

        prompt, read = curve(self.prompt, usual), curve(self.read, here)
        wait, keeps = self._waited(rate, share, prompt)
        busy = -np.expm1(-np.maximum(curve(self.decoding, usual), 1e-9))  # whether a step runs at all
        step = curve(self.step, usual)
        rest = busy * step / 2.0 if mean else step * np.maximum(0.0, 1.0 - (1.0 - share) / busy)
        own = np.maximum(read, prompt)
        ttft = r.client + np.maximum(wait, seat) + own + (rest if self.steps else 0.0)
        alone = curve(self.alone, here)
        delay = curve(self.delay, usual)
        if mean or self.output_cv == 0.0 or not self.steps:
            stall = self._stalled(rate, share, peak, alone, delay, wait + read)
        else:
            stall = self._stalled_short(rate, share, peak, alone, delay, self._waited(rate, MEAN, prompt)[0] + read)
        if r.found.limits.mixed:
            stall = np.minimum(stall, np.maximum(curve(self.full, here) - alone, 0.0) / made)
        tpot = alone / made + stall if self.steps else 0.0 * alone
        out = self.steps * made
        e2e = np.full(len(rate), np.inf)
        if whole:
            e2e = ttft + out * tpot if mean or not self.steps else self._whole(rate, share, ttft, tpot)
        fine = stable & keeps
        ttft, tpot, e2e = (np.where(fine, value, np.inf) for value in (ttft, tpot, e2e))
        return Late(ttft, tpot, e2e, wait, seat, own + rest - self.replica.first, stall, (alone - self.alone[0]) / made)

    def _met(self, rate: Array, share: float, peak: float) -> tuple[Array, Array, Array, Array]:
        """Mean requests in the replica, those that a late one meets, its wait for a place; bursts: Hayward's scaled server."""
        sharing = _scaled(self.sharing, peak)
        work = np.full(len(rate), self.output_cv)
        mean = share == MEAN
        found = occupancy(sharing, rate / peak, np.ones(len(rate)), _FAR if mean else share, work)
        places = self.sharing.places
        usual = np.clip(np.where(found.stable, found.mean, 1.0) * peak, 1e-6, places)
        seat = np.where(found.stable, found.wait, 0.0)
        if mean:  # the wait of those that wait is exponential
            over = np.log(np.maximum(found.waits / (1.0 - _FAR), 1.0))
            seat = np.where(over > 0.0, found.waits * seat / np.maximum(over, 1e-9), 0.0)
        return usual, np.clip(found.met * peak, 1.0, places), seat, found.stable

    def _waited(self, rate: Array, share: float, prompt: Array) -> tuple[Array, Array]:
        """Wait for prompts that came before (with what the own one takes more than usual), and whether they are kept up with."""
        one = np.ones(len(rate))
        queue = Queue.of(rate, prompt, one, one * self.spread, one * self.arrival_cv)
        if share == MEAN:
            return np.where(queue.stable, queue.mean_wait, 0.0), queue.stable
        if self.arrival_cv <= 1.0:
            wait = np.where(queue.stable, queue.wait_quantile(share), 0.0)
        else:
            busy = np.minimum(rate * prompt, 0.999)
            exponent = exponent_of(busy, self.spread, self.arrival_cv) / prompt
            begun = np.maximum(busy, transform(exponent, rate, self.arrival_cv))
            wait = np.log(np.maximum(begun / (1.0 - share), 1.0)) / exponent
        more = prompt * over_mean(self.spread, share)
        late: Array = np.where(queue.stable, np.hypot(wait, more), 0.0)
        return late, queue.stable

    def _stalled(self, rate: Array, share: float, peak: float, alone: Array, delay: Array, first: Array) -> Array:
        """Seconds that prompts of others add to each output token of a late request; ``first``: its own time to first token."""
        if not self.steps:
            return 0.0 * rate
        out = self.steps * self.replica.found.made
        busy = np.minimum(rate * delay, _MOST_STALL)
        mean: Array = busy * (first + self.steps * alone) / (1.0 - busy) / out
        if share == MEAN:
            return mean
        variance = self.steps * alone * rate * delay**2 * (1.0 + self.spread**2) * peak / (1.0 - busy) ** 3 / out**2
        return gamma_quantile(mean, variance, share)

    def _stalled_short(self, rate: Array, share: float, peak: float, alone: Array, delay: Array, first: Array) -> Array:
        """The same where answers differ: late ones are short ones that a single prompt stalls.  ``first``: as it usually is."""
        t, made = self.replica.traffic, self.replica.found.made
        none = -math.expm1(-1.5 / t.decay)  # answers of one token, to the nearest whole number
        shares = none + (1.0 - none) * (_SPLITS[1:] + _SPLITS[:-1]) / 2.0
        out = np.maximum(np.minimum(-t.decay * np.log1p(-shares), t.longest or math.inf) - 1.0, 1.0)[:, None]
        busy = np.minimum(rate * delay, _MOST_STALL)
        stalled = first + out / made * alone  # seconds in which prompts that come delay it
        mean = busy * stalled / (1.0 - busy) / out
        variance = out / made * alone * rate * delay**2 * (1.0 + self.spread**2) * peak / (1.0 - busy) ** 3 / out**2
        count = rate * stalled / (1.0 - busy) / max(peak, 1.0)
        return mixed_quantile(mean, variance, count, np.diff(_SPLITS)[:, None], share)

    def _whole(self, rate: Array, share: float, ttft: Array, tpot: Array) -> Array:
        """Seconds of a whole request: the parts' deviations from their means, added in squares."""
        usual = self.at(rate, MEAN)
        t = self.replica.traffic
        out, length = self.steps * self.replica.found.made, 0.0
        if math.isfinite(t.decay) and t.longest is not None:
            length = min(float(t.longest), -t.decay * math.log(1.0 - share)) - t.outputs
        first, each = (np.where(np.isfinite(value), value, 0.0) for value in (usual.ttft, usual.tpot))
        parts = ttft - first, out * (tpot - each), length * each
        off = np.sqrt(sum(part**2 for part in parts))
        found: Array = first + out * each + np.where(sum(parts) >= 0.0, off, -off)
        return found


def _held(found: Deployment, traffic: Traffic, input_cv: float) -> float:
    """Requests whose keys and values fit whatever the lengths they are at: their sum stays below the pool by three deviations.

    Engines that let sequences grow put the youngest back where the pool overflows, and read its prompt again.
    """
    limits = found.limits
    if limits.reserve:
        return math.inf
    grown = max(traffic.seen - traffic.inputs, 0.5)
    varied = grown if math.isfinite(traffic.decay) else grown / math.sqrt(3.0)  # exponential; evenly between 0 and twice that
    spread = math.hypot(varied, input_cv * traffic.inputs)
    # n seen + 3 sqrt(n) spread = pool
    root = (math.sqrt(9.0 * spread**2 + 4.0 * traffic.seen * limits.kv_tokens) - 3.0 * spread) / (2.0 * traffic.seen)
    return max(root**2, 1.0)


def _kept(server: Sharing, most: float) -> Sharing:
    """The server with no more places than these."""
    if most >= server.places:
        return server
    held = [*server.held[server.held < most], most] if most > 1.0 else [1.0, 1.0 + 1e-6]
    return Sharing.of(held, list(np.interp(held, server.held, server.residence)))


def _curve(found: Deployment, traffic: Traffic, replica: Replica, places: float) -> tuple[Array, Array, Array, Array]:
    """Decoding sequences, requests there, seconds to read a prompt, seconds of the mean step."""
    if traffic.outputs <= 1.0:
        spent = np.array([replica.first, replica.first])
        return np.array([1e-6, 1e-6]), np.array([1.0, max(places, 1.0 + 1e-9)]), spent, spent
    points: list[tuple[float, float, float, float]] = []
    n = _LEAST
    while not points or points[-1][1] < places:
        flow = at_decoding(found, traffic, found.limits, n, width=found.width, made=found.made)
        there = flow.decoding + flow.reading
        if points and there <= points[-1][1]:
            break
        points.append((n, there, flow.prompt_s, flow.itl_s * found.made))
        n *= _GROWTH
    n_, there_, read, step = (np.array(column) for column in zip(*points, strict=True))
    return n_, there_, read, step


def _seconds(found: Deployment, load: Load) -> Array:
    spent: Array = np.asarray(found.seconds(load), float)
    return spent


def _scaled(server: Sharing, peak: float) -> Sharing:
    """The server that a request in ``peak`` of them sees: bursts of so many count as one (Hayward)."""
    if peak <= 1.0:
        return server
    held = server.held / peak
    points = [1.0, *held[held > 1.0]]
    if len(points) == 1:
        points.append(1.0 + 1e-6)
    return Sharing.of(points, list(np.interp(np.array(points) * peak, server.held, server.residence)))
