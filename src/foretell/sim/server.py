"""A discrete-event simulation of servers that batch continuously (SimPy): who waits, who is served, and for how long.

Three kinds of processes: the arrivals (or the users of a closed loop), one server for each replica (``replica``), and the
transfers of KV caches where prompts have servers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from math import inf, nextafter
from typing import Any, Final

import simpy

from foretell.cost.serving_load import StepCost
from foretell.errors import ForetellError, InputError
from foretell.sim.arrivals import ClosedLoop, Request, Source
from foretell.sim.batch import Batch, Sequence
from foretell.sim.outcome import Outcome, Served, Slo
from foretell.sim.recorder import Meter, Progress, Recorder, Window
from foretell.sim.replica import Events, Replica
from foretell.sim.scheduler import Scheduler
from foretell.validation import MAX_SEQUENCE, choice, flag, number, positive_int

__all__ = ["ROUTERS", "Prefill", "Scheduler", "simulate"]

ROUTERS: Final = ("round_robin", "least_loaded")
MAX_REPLICAS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Prefill:
    """Servers that only read prompts (disaggregated serving): they make the first token and hand the KV cache over.

    The client gets the first token when the cache has arrived, as in engines whose decode server answers.  Until then the
    cache holds blocks of the prefill server; afterwards it waits, outside both caches, for a seat where it is decoded.
    """

    scheduler: Scheduler
    cost: StepCost
    transfer_s: Callable[[int], float]
    """Seconds to move the cache of so many tokens; transfers do not slow each other down."""
    replicas: int = 1


def simulate(
    source: Source | ClosedLoop | Iterable[Request],
    scheduler: Scheduler,
    cost: StepCost,
    *,
    replicas: int = 1,
    router: str = "round_robin",
    seed: int = 0,
    until: float | None = None,
    window: tuple[float, float] = (0.0, inf),
    slo: Slo | None = None,
    first_token_s: float = 0.0,
    prefill: Prefill | None = None,
    progress: Progress | None = None,
    log: Callable[[Served], None] | None = None,
    jump: bool = True,
) -> Outcome:
    """Serve the requests of a source and return what their users saw.

    Args:
        source: of requests; any sequence of them, sorted by arrival, will do.
        scheduler: how each replica fills its steps.
        cost: seconds of a step.
        replicas: servers that share nothing, behind one router.
        router: ``round_robin``, or ``least_loaded`` (fewest requests, the first of equals).
        seed: of what the source draws; equal seeds give equal outcomes.
        until: seconds after which the simulation stops; None: when all requests are finished.
        window: seconds that count, for a steady state without warm-up and cool-down.
        slo: targets that goodput is counted against.
        first_token_s: of client and API, added to TTFT and end-to-end.
        prefill: servers for the prompts; then ``scheduler`` and ``replicas`` are those that decode.
        progress: called at most ten times a second of real time; what it raises ends the simulation.
        log: is given every finished request.
        jump: False prices each step by itself; see ``ramp.stretch`` for what the jump costs.

    Raises:
        InputError: a value cannot be used, the source never ends and ``until`` is not given, or no request can be held.

    """
    choice(router, "router", ROUTERS)
    seconds = _end(source, until)
    recorder = Recorder(_window(window), slo, number(first_token_s, "first_token_s"), log, progress,
                        Meter(_window(window)), Meter(_window(window)))  # fmt: skip
    env = simpy.Environment()
    cluster = _Cluster(env, recorder, _edges(window, seconds), jump=flag(jump, "jump"))
    cluster.build(scheduler, cost, positive_int(replicas, "replicas", maximum=MAX_REPLICAS), router, prefill)
    requests = _start(env, cluster, source, positive_int(seed, "seed", minimum=0, maximum=2**63))
    try:
        _run(env, seconds)
    finally:
        if hasattr(requests, "close"):  # a generator, with the file that it reads
            requests.close()
    if not recorder.arrived and not cluster.sources:
        raise InputError("sends no request", field="source", value=type(source).__name__)
    return cluster.outcome(seconds)


class _Cluster:
    """All servers, and the ways between them."""

    def __init__(self, env: Any, recorder: Recorder, edges: list[float], *, jump: bool) -> None:
        self.env = env
        self.recorder = recorder
        self.edges = edges
        self.jump = jump
        self.main: list[Replica] = []
        self.prefill: list[Replica] = []
        self.sources = 0
        """Processes that may still send requests."""
        self._transfer_s: Callable[[int], float] = lambda _: 0.0
        self._routes: list[Iterator[Replica]] = []
        self._waiters: dict[int, Any] = {}  # events of the users of a closed loop
        self._least = False

    def build(self, scheduler: Scheduler, cost: StepCost, replicas: int, router: str, prefill: Prefill | None) -> None:
        """Start the servers."""
        meters = self.recorder.main, self.recorder.prefill
        self.main = [Replica(self, n, Batch(scheduler), cost, meters[0]) for n in range(replicas)]
        if prefill is not None:
            count = positive_int(prefill.replicas, "prefill.replicas", maximum=MAX_REPLICAS)
            self.prefill = [
                Replica(self, n, Batch(prefill.scheduler, hands_over=True), prefill.cost, meters[1]) for n in range(count)
            ]
            self._transfer_s = prefill.transfer_s
        self._least = router == "least_loaded"
        self._routes = [cycle(self.main), cycle(self.prefill)]

    def _route(self, pool: int) -> Replica:
        """Return the server that gets the next request: pool 0 decodes (and reads where 1 is empty), pool 1 reads."""
        if self._least:
            return min(self.prefill if pool else self.main, key=lambda server: server.load)
        return next(self._routes[pool])

    def submit(self, arrival: float, tokens: tuple[int, int, int], event: Any = None) -> None:
        """Take a request in; the event is triggered when it is over, or at once where no server could ever hold it."""
        index = self.recorder.arrive(arrival)
        entry = self.prefill or self.main
        inputs, outputs, cached = tokens
        share = entry[0].batch.scheduler.prefix_share
        seq = Sequence(index, arrival, inputs, outputs, cached or min(int(share * inputs), inputs - 1))
        why = entry[0].batch.refusal(seq)
        if why is None and self.prefill and outputs > 1:
            seq.landed = True
            why = self.main[0].batch.refusal(seq)
            seq.landed = False
        if why is not None:
            self.recorder.reject(arrival, why)
            if event is not None:
                event.succeed()
            return
        if event is not None:
            self._waiters[index] = event
        self._route(1 if self.prefill else 0).submit(seq)

    def hand_over(self, server: Replica, seq: Sequence) -> None:
        """Send the KV cache of a sequence to a server that decodes it."""
        self.env.process(self._transfer(server, seq))

    def _transfer(self, server: Replica, seq: Sequence) -> Events:
        yield self.env.timeout(number(self._transfer_s(seq.input_tokens), "transfer_s"))
        server.batch.hand_back(seq)
        server.wake()
        seq.first_s = seq.last_s = self.env.now
        seq.landed = True
        self._route(0).submit(seq)

    def finish(self, seq: Sequence, now: float, replica: int) -> None:
        """A request is over."""
        self.recorder.finish(seq, now, replica)
        event = self._waiters.pop(seq.index, None)
        if event is not None:
            event.succeed()

    def population(self) -> tuple[int, int]:
        """Requests that wait and that are resident, over all servers."""
        waiting = resident = 0
        for server in (*self.prefill, *self.main):
            waiting += len(server.batch.waiting)
            resident += len(server.batch.running)
        return waiting, resident

    def outcome(self, until: float) -> Outcome:
        """Count what was running when the simulation stopped, and put the outcome together."""
        recorder = self.recorder
        left = recorder.arrived > recorder.finished + recorder.rejected
        end = until if left or self.sources else recorder.last_end_s
        late = 0
        for server in (*self.prefill, *self.main):
            if server.running is not None:
                start, step = server.running
                server.meter.add(start, end, len(server.batch.running), (step.held, step.held))
            late += sum(self._late(seq, end) for seq in (*server.batch.waiting, *server.batch.running))
        if recorder.progress is not None:
            recorder.progress(recorder.finished, end)
        servers = [self.main, self.prefill]
        blocks = [pool[0].batch.scheduler.blocks if pool else 0 for pool in servers]
        preemptions = sum(server.batch.preemptions for server in self.main)
        return recorder.outcome(end, (blocks[0], blocks[1]), (len(self.main), len(self.prefill)), preemptions, late)

    def _late(self, seq: Sequence, end: float) -> bool:
        """Whether an unfinished request already misses the target of its first token."""
        slo = self.recorder.slo
        if slo is None or slo.ttft_s is None or seq.first_s is not None or not self.recorder.window.holds(seq.arrival_s):
            return False
        return end - seq.arrival_s + self.recorder.overhead_s > slo.ttft_s


def _start(env: Any, cluster: _Cluster, source: Source | ClosedLoop | Iterable[Request], seed: int) -> Iterator[Any]:
    """Start the processes that send requests; returns the iterator that they draw from."""
    if isinstance(source, ClosedLoop):
        lengths = source.pairs(seed)
        think = source.thinking(seed)
        for _ in range(min(source.users, source.requests or source.users)):
            env.process(_user(env, cluster, lengths, think))
        return lengths
    requests = source.stream(seed) if hasattr(source, "stream") else _checked(source)
    env.process(_arrivals(env, cluster, requests))
    return requests


def _arrivals(env: Any, cluster: _Cluster, requests: Iterator[Request]) -> Events:
    """Send each request at its time."""
    cluster.sources += 1
    for request in requests:
        delay = request.arrival_s - env.now
        if delay > 0.0:
            yield env.timeout(delay)
        cluster.submit(request.arrival_s, (request.input_tokens, request.output_tokens, request.cached_tokens))
    cluster.sources -= 1


def _user(env: Any, cluster: _Cluster, lengths: Iterator[tuple[int, int, int]], think: Callable[[], float]) -> Events:
    """Send a request, wait for its end, think, and so on."""
    cluster.sources += 1
    for tokens in lengths:
        over = env.event()
        cluster.submit(env.now, tokens, over)
        yield over
        pause = think()
        if pause > 0.0:
            yield env.timeout(pause)
    cluster.sources -= 1


def _checked(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield requests that come from anywhere, each checked."""
    last = 0.0
    for index, request in enumerate(requests):
        where = f"request {index}"
        if not isinstance(request, Request):
            raise InputError("is no Request", field="source", value=request, where=where)
        number(request.arrival_s, "arrival_s", minimum=last, where=where)
        positive_int(request.input_tokens, "input_tokens", maximum=MAX_SEQUENCE, where=where)
        positive_int(request.output_tokens, "output_tokens", maximum=MAX_SEQUENCE, where=where)
        positive_int(request.cached_tokens, "cached_tokens", minimum=0, maximum=request.input_tokens - 1, where=where)
        last = request.arrival_s
        yield request


def _end(source: Any, until: float | None) -> float:
    """Seconds after which the simulation stops."""
    if until is not None:
        return number(until, "until", minimum=1e-9)
    if not getattr(source, "finite", True):
        raise InputError("must be given: the source never ends", field="until", value=until, hint="Or say how many requests")
    return inf


def _window(window: tuple[float, float]) -> Window:
    """Check the window."""
    start, end = window
    number(start, "window start")
    if not end > start:
        raise InputError("must end after it starts", field="window", value=window)
    return Window(float(start), float(end))


def _edges(window: tuple[float, float], until: float) -> list[float]:
    """Moments that no stretch of steps passes over."""
    return sorted({moment for moment in (*window, until) if 0.0 < moment < inf})


def _run(env: Any, until: float) -> None:
    """Run to the end.  SimPy raises a copy of what a process raised, made of its message alone: the original is put back."""
    try:
        env.run(until=None if until == inf else nextafter(until, inf))  # what ends at that very moment is over
    except ForetellError as error:
        original = error.__cause__
        if type(original) is type(error):
            raise original from original.__cause__
        raise
