"""Steady state of a server that batches continuously, in closed form: how many sequences are resident, and what a step then
takes.

Little's law (Little 1961) ties them: requests in the system = rate x time in it.  A request is read in one or more steps, its
prompt cut to the token budget of a step, and then makes a token a step.  Reading slows the sequences that decode beside it: in
steps that carry a share of a prompt (chunked prefill; Agrawal et al. 2024, arXiv 2403.02310), or by steps of its own that they
wait for.  Every function takes plain numbers; :mod:`foretell.sim.server` plays the same server event by event.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from foretell.cost.serving_load import Load, StepCost

__all__ = [
    "Flow",
    "Limits",
    "Traffic",
    "at_concurrency",
    "at_decoding",
    "at_rate",
    "job_s",
    "largest_rate",
    "prompt_s",
    "resident_limit",
]

_ROUNDS = 60
_CLOSE = 1e-4
"""Relative width at which a bisection ends."""
_PIECES = 12
"""Parts of a batch's life, in which the sequences that are left are taken as constant."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one kind: mean tokens."""

    inputs: float
    outputs: float
    cached: float = 0.0
    """Of the input, found in the prefix cache: not computed, but seen and held."""
    longest: float | None = None
    """Output tokens at which an answer is cut; None: all are equally long."""

    @property
    def computed(self) -> float:
        """Prompt tokens that are run; the last one always is."""
        return max(self.inputs - self.cached, 1.0)

    @property
    def pairs(self) -> float:
        """Query-key pairs of them."""
        n = self.computed
        return n * (n + 1.0) / 2.0 + n * (self.inputs - n)

    @property
    def decay(self) -> float:
        """Mean of the exponential law that answers would have if none was cut at ``longest``, tokens (infinite: equally long).

        >>> round(Traffic(100, 348, longest=512).decay)
        617
        """
        return _decay(self.outputs, self.longest)

    @property
    def seen(self) -> float:
        """Tokens that a decoding sequence sees on average, its own included; long answers are met more often than they come.

        >>> Traffic(100, 49).seen, round(Traffic(100, 49, longest=1e6).seen)
        (125.0, 149)
        """
        m, cap = self.decay, self.longest
        if math.isinf(m) or cap is None:
            return self.inputs + (self.outputs + 1.0) / 2.0
        square = 2.0 * m * m * (-math.expm1(-cap / m) - cap / m * math.exp(-cap / m))
        return self.inputs + square / (2.0 * self.outputs)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler admits."""

    sequences: float
    """Resident at a time (max_num_seqs)."""
    tokens: float
    """Run in one step (max_num_batched_tokens)."""
    kv_tokens: float
    """Kept at a time."""
    mixed: bool = True
    """Prompts are read in the steps of sequences that decode; else in steps of their own, which come first."""
    reserve: bool = False
    """A sequence is admitted with the room for all of its tokens; else it takes blocks as it grows."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Steady state of one server."""

    rate: float
    """Requests a second that end."""
    decoding: float
    """Sequences that decode, on average."""
    reading: float
    """Requests whose prompt is read."""
    waiting: float
    """Requests that are not admitted yet."""
    ttft_s: float
    """Mean time to first token: the queue, and the steps that read the prompt."""
    queue_s: float
    prompt_s: float
    itl_s: float
    """Mean time between two tokens of a request."""
    gap_s: float
    """The usual gap between two tokens: a step that reads no prompt, or one that does where most do."""
    load: Load
    """Mean load of a step."""
    bound: str
    """What holds the resident batch down: the demand, max_num_seqs, kv, tokens (the step's budget)."""
    stable: bool = True
    steps: tuple[tuple[float, Load], ...] = ()
    """How often steps of each kind come, for every step that decodes: the mean step is the sum of their seconds."""
    top: float | None = None
    """Requests a second that the server can at most serve, where that was worked out."""


def _bisect(reached: Callable[[float], bool], low: float, high: float) -> float:
    """Smallest value between two at which something is reached."""
    for _ in range(_ROUNDS):
        middle = (low + high) / 2.0
        if reached(middle):
            high = middle
        else:
            low = middle
        if high - low <= _CLOSE * high:
            break
    return high


@functools.lru_cache(maxsize=256)
def _decay(outputs: float, longest: float | None) -> float:
    if longest is None or longest <= outputs:
        return math.inf
    return _bisect(lambda mean: mean * -math.expm1(-longest / mean) >= outputs, outputs, 1e4 * longest)


def resident_limit(traffic: Traffic, limits: Limits) -> tuple[float, str]:
    """Return how many sequences the scheduler holds, and what decides.

    A sequence that reserves holds all of its tokens from the start; one that grows holds half of its output on average.

    >>> resident_limit(Traffic(1000, 199), Limits(256, 8192, 110_000))
    (100.0, 'kv')
    """
    held = traffic.inputs + (traffic.longest or traffic.outputs) if limits.reserve else traffic.seen
    fits = limits.kv_tokens / max(held, 1.0)
    if fits < 1.0 <= limits.kv_tokens / (traffic.inputs + 1.0):
        fits = 1.0
    return (limits.sequences, "max_num_seqs") if limits.sequences <= fits else (fits, "kv")


def prompt_s(cost: StepCost, traffic: Traffic, limits: Limits, together: float = 1.0) -> float:
    """Return the seconds in which an idle server reads so many prompts, in steps of at most the budget."""
    todo = traffic.computed * together
    steps = float(max(1, math.ceil(todo / limits.tokens)))
    load = Load(prefill=todo / steps, pairs=traffic.pairs * together / steps, prompts=max(together / steps, 1.0))
    return steps * float(cost.seconds(load))


@dataclass(frozen=True, slots=True)
class _Pace:
    """What steps take with so many sequences that decode."""

    step: float
    """The mean step."""
    gap: float
    read: float
    """One prompt, from its admission to its first token."""
    occupied: float
    """Of the reading of prompts: how much of its capacity is used."""
    steps: tuple[tuple[float, Load], ...]


@dataclass(frozen=True, slots=True)
class _Server:
    """One server under one kind of requests."""

    cost: StepCost
    traffic: Traffic
    limits: Limits
    width: float
    made: float

    @property
    def steps(self) -> float:
        """Steps in which a request decodes: its first token comes with the prompt."""
        return max(self.traffic.outputs - 1.0, 0.0) / self.made

    def decoding(self, n: float) -> Load:
        """Load of n sequences that decode."""
        return Load(decode=n, context=n * self.traffic.seen, width=self.width)

    def pace(self, n: float, others: float | None = None) -> _Pace:
        """Return what steps take for one of n sequences that decode; ``others``: requests whose prompts come while it makes its
        answer (None: as many)."""
        t, limits = self.traffic, self.limits
        load = self.decoding(n)
        alone = float(self.cost.seconds(load)) if n > 0 else 0.0
        prompts = max(n if others is None else others, 0.0) / self.steps  # to be read for every step that decodes
        if not limits.mixed:
            batch = max(1.0, min(limits.tokens / t.computed, prompts))  # those that came since the last step go together
            spent = prompt_s(self.cost, t, limits, batch)
            reading = prompts * spent / batch
            parts = max(1.0, math.ceil(t.computed * batch / limits.tokens)) if batch > 1.0 else 1.0
            reads = Load(prefill=t.computed * batch / parts, pairs=t.pairs * batch / parts, prompts=max(batch / parts, 1.0))
            steps = ((1.0, load), (prompts / batch * parts, reads))
            return _Pace(alone + reading, alone, spent, reading / (alone + reading), steps)
        room = max(limits.tokens - n * self.width, 1.0)
        chunks = float(max(1, math.ceil(t.computed / room)))
        each = t.computed / chunks
        together = max(1.0, min(prompts * chunks, room / each))  # chunks of several prompts share a step
        share = min(prompts * chunks / together, 1.0)
        read = Load(n, load.context, each * together, t.pairs / chunks * together, max(1.0, together), self.width)
        full = float(self.cost.seconds(read))
        gap = alone if share < 0.5 else full
        steps = ((1.0 - share, load), (share, read))
        return _Pace((1.0 - share) * alone + share * full, gap, chunks * full, self.filled(n), steps)

    def filled(self, n: float) -> float:
        """Share of the steps' budget beside n decoding sequences that their successors' prompts need; 1 or more: prompts wait."""
        room = max(self.limits.tokens - n * self.width, 1.0)
        return n / self.steps * self.traffic.computed / room

    def most(self) -> float:
        """Sequences that decode where prompts fill every step: no more of them can be read in time."""
        return _bisect(lambda n: self.filled(n) >= 1.0, 0.0, self.limits.tokens) if self.limits.mixed else math.inf

    def flow(
        self, n: float, waiting: float, bound: str, wait_s: float = 0.0, *, more: float = 0.0, others: float | None = None
    ) -> Flow:
        """Return the steady state with n sequences that decode; ``more``: how many more a sequence meets than there are."""
        t = self.traffic
        if self.steps <= 0:
            return self._reading_only(waiting, bound)
        pace = self.pace(n + more, others)
        rate = n / (self.steps * pace.step)
        prompts = n / self.steps
        load = self.decoding(n)
        queue = waiting / rate + wait_s
        return Flow(
            rate=rate,
            decoding=n,
            reading=rate * pace.read,
            waiting=waiting,
            ttft_s=queue + pace.read,
            queue_s=queue,
            prompt_s=pace.read,
            itl_s=pace.step / self.made,
            gap_s=pace.gap,
            load=replace(load, prefill=prompts * t.computed, pairs=prompts * t.pairs, prompts=prompts),
            bound=bound,
            steps=pace.steps,
        )

    def in_step(self, n: float, waiting: float, bound: str) -> Flow:
        """Return the state of n equal requests that a server keeps in step: it reads all of their prompts before any of them
        decodes, so that all end together and their successors' prompts come together again."""
        t = self.traffic
        spent = prompt_s(self.cost, t, self.limits, n)
        parts = float(max(1, math.ceil(t.computed * n / self.limits.tokens)))
        load = self.decoding(n)
        alone = float(self.cost.seconds(load))
        after = (parts - 1.0) / (2.0 * parts)  # of the reading: what comes behind a prompt's own part
        reads = Load(prefill=t.computed * n / parts, pairs=t.pairs * n / parts, prompts=max(n / parts, 1.0))
        step = alone + after * spent / self.steps
        rate = n / (spent + self.steps * alone)
        queue, own = waiting / rate, (1.0 - after) * spent
        prompts = n / self.steps
        return Flow(
            rate=rate,
            decoding=rate * self.steps * step,
            reading=rate * own,
            waiting=waiting,
            ttft_s=queue + own,
            queue_s=queue,
            prompt_s=own,
            itl_s=step / self.made,
            gap_s=alone,
            load=replace(load, prefill=prompts * t.computed, pairs=prompts * t.pairs, prompts=prompts),
            bound=bound,
            steps=((1.0, load), (after * parts / self.steps, reads)),
        )

    def _reading_only(self, waiting: float, bound: str) -> Flow:
        """Requests of one token: prompts are all there is, as many in a step as its budget holds."""
        together = max(1.0, min(self.limits.tokens / self.traffic.computed, waiting))
        spent = prompt_s(self.cost, self.traffic, self.limits, together)
        rate = together / spent
        queue = max(waiting - together, 0.0) / rate
        load = Load(prefill=self.traffic.computed * together, pairs=self.traffic.pairs * together, prompts=together)
        return Flow(rate, 0.0, together, waiting - together, queue + spent, queue, spent, 0.0, 0.0, load, bound)


def at_concurrency(
    cost: StepCost,
    traffic: Traffic,
    limits: Limits,
    concurrency: float,
    *,
    width: float = 1.0,
    made: float = 1.0,
    staggered: bool = False,
) -> Flow:
    """Return the steady state with a constant number of requests in flight (closed loop).

    ``width`` and ``made``: tokens of a sequence that a step runs, and that it makes on average (speculation).  ``staggered``:
    requests did not begin together; else those of equal length go in step on a server that reads prompts first.
    """
    server = _Server(cost, traffic, limits, width, made)
    most, bound = resident_limit(traffic, limits)
    if server.steps <= 0:
        return server.flow(0.0, concurrency, "concurrency")
    resident = min(concurrency, most)
    if not (staggered or limits.mixed) and math.isinf(traffic.decay) and made == 1.0:
        return server.in_step(resident, max(0.0, concurrency - resident), bound if concurrency > most else "concurrency")
    others = resident - 1.0  # a user asks again only when the answer is there: nobody waits for a prompt of his own

    def full(n: float) -> bool:
        pace = server.pace(n, others)
        return n + n / (server.steps * pace.step) * pace.read >= resident

    n, top = _bisect(full, 0.0, resident), server.most()
    if n >= top:  # prompts fill every step: those that cannot be read yet wait
        found = server.flow(top, 0.0, "tokens")
        waiting = max(0.0, concurrency - top - found.reading)
        return server.flow(top, waiting, "tokens")
    bound = bound if concurrency > most else "concurrency"
    return server.flow(n, max(0.0, concurrency - resident), bound, others=others)


def at_decoding(
    cost: StepCost, traffic: Traffic, limits: Limits, decoding: float, *, width: float = 1.0, made: float = 1.0
) -> Flow:
    """Return the steady state with so many sequences that decode at a time, and the prompts that this takes; two outputs or more.

    The pace of a server at any occupancy, without looking for the one that a demand leads to.
    """
    return _Server(cost, traffic, limits, width, made).flow(decoding, 0.0, "concurrency")


def largest_rate(cost: StepCost, traffic: Traffic, limits: Limits, *, width: float = 1.0, made: float = 1.0) -> Flow:
    """Return the steady state of a server with requests always waiting, without their wait."""
    most, bound = resident_limit(traffic, limits)
    found = at_concurrency(cost, traffic, limits, most, width=width, made=made, staggered=True)
    return found if found.bound == "tokens" else replace(found, bound=bound)


def at_rate(
    cost: StepCost,
    traffic: Traffic,
    limits: Limits,
    rate: float,
    *,
    arrival_cv: float = 1.0,
    width: float = 1.0,
    made: float = 1.0,
) -> Flow:
    """Return the steady state under arrivals at a rate (open loop); unstable, with an infinite queue, where it cannot keep up.

    The resident batch is where as many requests end as arrive.  A sequence meets more others than there are on average: of a
    number that varies as that of independent arrivals does, one more than its mean (Poisson; (1 + cv^2) / 2 where they are
    bursty).  A request waits for the rest of the step that runs when it comes and for prompts that came before it: the reading of
    prompts is one server of constant service (Kingman 1961).
    """
    server = _Server(cost, traffic, limits, width, made)
    top = largest_rate(cost, traffic, limits, width=width, made=made)
    if rate >= top.rate:
        return replace(top, stable=False, waiting=math.inf, queue_s=math.inf, ttft_s=math.inf, top=top.rate)
    if server.steps <= 0:
        own = prompt_s(cost, traffic, limits)
        load = Load(prefill=traffic.computed, pairs=traffic.pairs, prompts=1.0)
        busy = rate * own / max(1.0, limits.tokens // traffic.computed)
        queue = busy / (1.0 - min(busy, 0.999)) * (arrival_cv**2) / 2.0 * own
        return Flow(rate, 0.0, rate * own, rate * queue, own + queue, queue, own, 0.0, 0.0, load, "rate", top=top.rate)
    more = (1.0 + arrival_cv**2) / 2.0
    n = _bisect(lambda n: n / (server.steps * server.pace(n + more).step) >= rate, 0.0, top.decoding)
    pace = server.pace(n + more)
    busy = min(pace.occupied, 0.999)
    wait = busy / (1.0 - busy) * arrival_cv**2 / 2.0 * pace.read + min(n, 1.0) * pace.step / 2.0
    return replace(server.flow(n, 0.0, "rate", wait, more=more), waiting=rate * wait, top=top.rate)


def job_s(
    cost: StepCost,
    traffic: Traffic,
    limits: Limits,
    requests: float,
    concurrency: float | None = None,
    *,
    width: float = 1.0,
    made: float = 1.0,
) -> float:
    """Return the seconds in which a server is done with so many requests that are all there at the start.

    While requests wait, the server is in its steady state; then the last batch runs out, its sequences ending as the law of
    their lengths says.
    """
    server = _Server(cost, traffic, limits, width, made)
    most, _ = resident_limit(traffic, limits)
    n = min(requests, most, concurrency or math.inf)
    spent = 0.0
    if requests > n:
        spent = (requests - n) / at_concurrency(cost, traffic, limits, n, width=width, made=made, staggered=True).rate
    together = max(1.0, min(n, limits.tokens / traffic.computed))
    spent += n / together * prompt_s(cost, traffic, limits, together)
    decay = traffic.decay
    last = traffic.outputs if math.isinf(decay) else float(traffic.longest or traffic.outputs)
    for i in range(_PIECES if server.steps > 0 else 0):
        at = last * (i + 0.5) / _PIECES
        left = max(n * math.exp(-at / decay), 1.0)
        load = Load(decode=left, context=left * (traffic.inputs + at), width=width)
        spent += last / _PIECES / made * float(cost.seconds(load))
    return spent
