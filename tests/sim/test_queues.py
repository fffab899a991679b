"""Servers that are exact queues: every step takes the same time, so a seat is a server and the tokens are the service.

A request that finds a seat free while others are served waits for the end of the running step, 1/1000 of the mean service
here: that is all that the server may differ by from a queue.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev

import pytest

from foretell.sim.arrivals import OpenLoop, Request
from foretell.sim.outcome import Outcome, Served
from foretell.sim.server import Scheduler, simulate
from sim.sim_costs import Constant

STEP_S = 1e-3
"""With 1000 tokens the mean service is 1 s."""
RUNS = 16
STUDENT_99 = 2.947
"""Two-sided 99 % point of Student's t with 15 degrees of freedom."""


@dataclass(frozen=True)
class Service:
    """Geometric (memoryless) or constant tokens of mean 1000."""

    memoryless: bool
    finite: bool = False

    def pairs(self, rng: Random) -> Iterator[tuple[int, int, int]]:
        rate = -math.log1p(-STEP_S)
        while True:
            yield 1, (1 + int(rng.expovariate(rate)) if self.memoryless else 1000), 0


def seats(servers: int) -> Scheduler:
    return Scheduler(max_seqs=servers, max_tokens=10**6, kv_tokens=10**9)


def waits(requests: list[Request], servers: int) -> list[float]:
    """Of a first-come first-served queue, by the recursion over the times at which servers are free."""
    free = [0.0] * servers
    out = []
    for request in requests:
        start = max(request.arrival_s, heapq.heappop(free))
        heapq.heappush(free, start + request.output_tokens * STEP_S)
        out.append(start - request.arrival_s)
    return out


@pytest.mark.parametrize("memoryless", [True, False])
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("servers", [1, 2, 10, 100])
def test_every_request_waits_as_in_the_queue(servers: int, cv: float, memoryless: bool) -> None:
    source = OpenLoop(1.05 * servers, Service(memoryless), cv=cv, requests=1000)
    served: list[Served] = []
    simulate(source, seats(servers), Constant(STEP_S), seed=3, log=served.append)
    expected = waits(list(source.stream(3)), servers)
    assert max(expected) > 0.1
    for one, wait in zip(sorted(served), expected, strict=True):
        assert -1e-6 <= one.start_s - one.arrival_s - wait <= STEP_S + 1e-6
        assert one.end_s - one.start_s == pytest.approx(one.output_tokens * STEP_S)


def runs(servers: int, load: float, *, memoryless: bool, seconds: float) -> list[Outcome]:
    """Independent runs; the first 100 s do not count."""
    source = OpenLoop(load, Service(memoryless))
    how = seats(servers)
    return [simulate(source, how, Constant(STEP_S), seed=seed, until=seconds, window=(100, seconds)) for seed in range(RUNS)]


def near(values: list[float | None], exact: float, *, at_most: float) -> None:
    """The exact value is in the 99 % interval, and the interval is narrow enough to tell.  Seeds are fixed."""
    got = [value for value in values if value is not None]
    half = STUDENT_99 * stdev(got) / math.sqrt(len(got))
    assert half <= at_most * exact, f"too wide: {fmean(got):.5g} +- {half:.2g}"
    assert fmean(got) == pytest.approx(exact, abs=half + STEP_S / 2)


@pytest.mark.parametrize(
    ("servers", "load", "wait", "wait_p99", "response_p50", "response_p99"),
    [(2, 1.0, 1 / 3, 3.506557897, 0.9744116, 5.665960684), (5, 4.0, 0.5541125541, 4.014782739, 1.2043949, 6.079662525)],
)
def test_poisson_arrivals_and_memoryless_service(
    servers: int, load: float, wait: float, wait_p99: float, response_p50: float, response_p99: float
) -> None:
    """Exact values by Erlang's formula."""
    got = runs(servers, load, memoryless=True, seconds=3000 / load + 100)
    near([out.wait.mean for out in got], wait, at_most=0.2)
    near([out.wait.p99 for out in got], wait_p99, at_most=0.2)
    near([out.e2e.p50 for out in got], response_p50, at_most=0.1)
    near([out.e2e.p99 for out in got], response_p99, at_most=0.15)
    near([out.resident_mean for out in got], load, at_most=0.05)
    near([out.output_tokens_per_s for out in got], 1000 * load, at_most=0.05)


def test_poisson_arrivals_and_constant_service() -> None:
    """Exact mean of M/D/2 at 80 %."""
    got = runs(2, 1.6, memoryless=False, seconds=2500)
    near([out.wait.mean for out in got], 0.903284, at_most=0.15)
    near([out.tpot.p99 for out in got], STEP_S, at_most=0.001)


def test_more_than_it_can_serve_grows_a_queue() -> None:
    """2 seats, 3 arrivals a second: one more waits every second."""
    out = simulate(OpenLoop(3.0, Service(memoryless=False)), seats(2), Constant(STEP_S), until=1000)
    assert out.queue[-1].waiting == pytest.approx(1000, rel=0.15)
    assert out.unfinished == pytest.approx(1000, rel=0.15)
    assert out.requests_per_s == pytest.approx(2.0, rel=0.01)
    assert any("not finished" in note for note in out.notes)
