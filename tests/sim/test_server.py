"""What holds of every simulation: nobody is lost, nothing is over its limit, seeds repeat, ends are clean."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.cost.serving_load import Load
from foretell.errors import CombinationError, InputError
from foretell.sim import requests_file
from foretell.sim.arrivals import ClosedLoop, Lengths, Offline, OnOff, OpenLoop, Request, Source
from foretell.sim.outcome import Served
from foretell.sim.requests_file import TraceFile
from foretell.sim.server import Prefill, Scheduler, simulate
from sim.sim_costs import Affine, Constant

LENGTHS = Lengths(300, 60, 0.8, 1.0, longest=2000)
HOW = Scheduler(max_seqs=16, max_tokens=512, kv_tokens=6000)
SOURCES: list[Source | ClosedLoop] = [
    OpenLoop(4.0, LENGTHS, cv=2.0, requests=200),
    OnOff(20.0, 2.0, 10.0, LENGTHS, requests=200),
    ClosedLoop(30, LENGTHS, requests=200, think_s=0.5, think_cv=1.0),
    Offline(200, LENGTHS),
]


class Watch(Affine):
    """Checks each load against what the scheduler allows."""

    def __init__(self, how: Scheduler) -> None:
        super().__init__()
        self.how = how
        self.prompt_tokens = 0.0

    def seconds(self, load: Load) -> float:
        how = self.how
        assert load.decode + load.prompts <= how.max_seqs
        assert load.decode * how.width + load.prefill <= how.max_tokens
        assert load.decode <= load.context <= load.decode * how.kv_tokens
        assert (load.prompts > 0) == (load.prefill > 0) == (load.pairs > 0)
        assert how.mixed or not (load.decode and load.prefill)
        self.prompt_tokens += load.prefill
        return super().seconds(load)


@settings(max_examples=40)
@given(
    st.sampled_from(SOURCES),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from(["round_robin", "least_loaded"]),
    st.sampled_from([1.0, 2.5]),
    st.booleans(),
)
def test_everyone_is_served_once_and_within_limits(
    source: Source | ClosedLoop, mixed: bool, reserve: bool, replicas: int, router: str, tokens: float, apart: bool
) -> None:
    how = Scheduler(16, 512, 6000, mixed=mixed, reserve=reserve, chunked=True, tokens_per_step=tokens, width=4)
    cost, reads = Watch(how), Watch(HOW)
    prefill = Prefill(HOW, reads, lambda n: n * 2.0**-16, replicas=2) if apart else None
    served: list[Served] = []
    out = simulate(source, how, cost, replicas=replicas, router=router, seed=11, prefill=prefill, log=served.append)
    assert sorted(one.request for one in served) == list(range(200))
    assert (out.requests, out.unfinished, out.rejected) == (200, 0, 0)
    assert all(one.arrival_s <= one.start_s <= one.first_token_s <= one.end_s for one in served)
    assert out.resident_max <= 16
    assert out.kv_max <= 1.0
    assert 0.0 < out.utilisation <= 1.0
    output, inputs = sum(one.output_tokens for one in served), sum(one.input_tokens for one in served)
    assert out.output_tokens_per_s * out.duration_s == pytest.approx(output)
    assert out.total_tokens_per_s * out.duration_s == pytest.approx(output + inputs)
    assert cost.prompt_tokens + reads.prompt_tokens >= inputs
    if not out.preemptions:
        assert cost.prompt_tokens + reads.prompt_tokens == inputs
        if not apart:  # Little's law: what is resident is what comes times how long it stays
            stays = sum(one.end_s - one.start_s for one in served)
            assert out.resident_mean * replicas * out.duration_s == pytest.approx(stays)
    assert not (reserve and out.preemptions)


@pytest.mark.parametrize("source", SOURCES)
def test_equal_seeds_give_equal_outcomes(source: Source | ClosedLoop) -> None:
    one, again, other = (simulate(source, HOW, Affine(), seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_more_servers_wait_less_and_the_least_loaded_evens_out() -> None:
    source = OpenLoop(8.0, LENGTHS, cv=2.0, requests=400)
    waits = [simulate(source, HOW, Affine(), replicas=n).wait.mean or 0.0 for n in (1, 2, 4)]
    assert waits[0] > waits[1] > waits[2]
    evened = simulate(source, HOW, Affine(), replicas=2, router="least_loaded").wait.mean or 0.0
    assert evened < waits[1]


def test_a_window_counts_what_is_inside() -> None:
    """One seat, 1 s a step, a request of 2 tokens every 4 s: 2 s busy of each 4."""
    asked = [Request(4.0 * i, 1, 2) for i in range(100)]
    served: list[Served] = []
    out = simulate(asked, Scheduler(1, 8, 1024), Constant(1.0), window=(99.0, 299.0), log=served.append)
    assert (out.requests, len(served)) == (50, 100)
    assert out.duration_s == 200.0
    assert (out.requests_per_s, out.output_tokens_per_s) == (0.25, 0.5)
    assert (out.utilisation, out.resident_mean) == (0.5, 0.5)


@pytest.mark.parametrize("source", [OpenLoop(4.0, LENGTHS), ClosedLoop(8, LENGTHS)])
def test_a_source_without_end_stops_when_it_is_told(source: Source | ClosedLoop) -> None:
    how = Scheduler(64, 512, 60_000)
    out = simulate(source, how, Affine(), until=60.0, window=(10.0, 50.0))
    single = simulate(source, how, Affine(), until=60.0, window=(10.0, 50.0), jump=False)
    assert out.duration_s == 40.0
    assert out.unfinished == single.unfinished > 0
    assert out.output_tokens_per_s == single.output_tokens_per_s
    assert (out.ttft, out.e2e, out.requests) == (single.ttft, single.e2e, single.requests)
    assert out.itl.count == pytest.approx(single.itl.count)
    assert (out.utilisation, out.resident_mean) == pytest.approx((single.utilisation, single.resident_mean))
    assert out.kv_mean == pytest.approx(single.kv_mean, rel=0.02)
    with pytest.raises(InputError, match="never ends"):
        simulate(source, HOW, Affine())


class Kinked(Affine):
    """Memory or compute bound, whichever is longer, and a curve on top: not linear in the context."""

    def seconds(self, load: Load) -> float:
        plain = super().seconds(load)
        context = float(load.context)
        return max(plain, 0.8 * plain + 2e-5 * context) + 1e-9 * context * math.sqrt(context)


def test_what_a_stretch_costs_where_the_price_is_no_line() -> None:
    source = OpenLoop(2.0, Lengths(300, 400, 0.8, 1.0), requests=300)
    how = Scheduler(64, 512, 200_000)
    quick = simulate(source, how, Kinked(), seed=1)
    single = simulate(source, how, Kinked(), seed=1, jump=False)
    for name in ("ttft", "itl", "tpot", "e2e"):
        a, b = getattr(quick, name), getattr(single, name)
        assert a.mean == pytest.approx(b.mean, rel=5e-4)
        assert a.p50 == pytest.approx(b.p50, rel=3e-3)
        assert a.p99 == pytest.approx(b.p99, rel=3e-3)
    assert quick.output_tokens_per_s == pytest.approx(single.output_tokens_per_s, rel=5e-4)
    assert quick.steps == pytest.approx(single.steps, rel=2e-3)


def test_who_can_never_be_held_is_refused_and_counted() -> None:
    asked = [Request(0.0, 100, 10), Request(0.0, 5000, 2000), Request(0.0, 100, 10)]
    out = simulate(asked, HOW, Affine())
    assert (out.requests, out.rejected, out.unfinished) == (2, 1, 0)
    assert any("6999 tokens of KV cache needed, 6000 there" in note for note in out.notes)
    whole = Scheduler(16, 512, 60_000, mixed=False)
    assert simulate(asked, whole, Affine()).rejected == 1  # the prompt fits in no step
    with pytest.raises(InputError, match="can hold none of the requests: 6999 tokens"):
        simulate(asked[1:2], HOW, Affine())
    with pytest.raises(InputError, match="can hold none of the requests"):
        simulate(ClosedLoop(4, Lengths(5000, 2000)), HOW, Affine(), until=1e9)


def test_progress_is_told_at_a_bounded_rate_and_may_stop_the_run() -> None:
    told: list[tuple[int, float]] = []
    started = time.monotonic()
    out = simulate(SOURCES[0], HOW, Affine(), progress=lambda done, now: told.append((done, now)))
    assert len(told) <= 2 + 10 * (time.monotonic() - started)
    assert told[-1][0] == 200
    assert told[-1][1] == pytest.approx(out.duration_s, abs=5.0)

    def stop(_done: int, _now: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SOURCES[0], HOW, Affine(), progress=stop)


def test_an_interrupted_run_closes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival,input_tokens,output_tokens\n" + "0,10,10\n" * 5000)

    class Tired(Affine):
        def seconds(self, load: Load) -> float:
            del load
            raise KeyboardInterrupt

    opened: list[Any] = []
    plain = requests_file._lines

    def lines(stream: Any, where: Any) -> Any:
        opened.append(stream)
        return plain(stream, where)

    source = OpenLoop(1.0, requests_file.FileLengths(path))
    for one in (TraceFile(path, speed=1.0), source):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests_file, "_lines", lines)
            with pytest.raises(KeyboardInterrupt):
                simulate(one, HOW, Tired())
    assert [stream.closed for stream in opened] == [True, True]


def test_a_bad_line_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival,input_tokens,output_tokens\n0,10,10\n1,10,zero\n")
    with pytest.raises(InputError) as raised:
        simulate(TraceFile(path), HOW, Affine())
    assert (raised.value.field, raised.value.value, raised.value.where) == ("output_tokens", "zero", f"{path}:3")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_seqs": 0}, "max_seqs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"mixed": 1}, "mixed"),
        ({"chunked": "no"}, "chunked"),
        ({"tokens_per_step": 0.5}, "tokens_per_step"),
        ({"tokens_per_step": float("nan")}, "tokens_per_step"),
        ({"width": 0}, "width"),
        ({"prefix_share": 1.0}, "prefix_share"),
    ],
)
def test_a_scheduler_is_checked(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as raised:
        Scheduler(**({"max_seqs": 4, "max_tokens": 64, "kv_tokens": 1024} | change))
    assert raised.value.field == field


def test_values_that_do_not_go_together() -> None:
    with pytest.raises(CombinationError, match="less than the tokens of max_seqs"):
        Scheduler(max_seqs=64, max_tokens=63, kv_tokens=1024)
    with pytest.raises(CombinationError, match="less than one block"):
        Scheduler(max_seqs=1, max_tokens=64, kv_tokens=8)
    assert Scheduler(max_seqs=64, max_tokens=63, kv_tokens=1024, mixed=False).pieces is False


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"router": "random"}, "router"),
        ({"seed": -1}, "seed"),
        ({"until": 0.0}, "until"),
        ({"until": float("nan")}, "until"),
        ({"window": (5.0, 5.0)}, "window"),
        ({"window": (-1.0, 5.0)}, "window start"),
        ({"window": (1e6, 2e6)}, "window"),
        ({"first_token_s": -0.1}, "first_token_s"),
        ({"jump": None}, "jump"),
        ({"cost": Constant(float("nan"))}, "cost.seconds"),
        ({"cost": Constant(-1.0)}, "cost.seconds"),
        ({"cost": Constant(0.0)}, "cost"),
        ({"source": []}, "source"),
        ({"source": [(0.0, 1, 1)]}, "source"),
        ({"source": [Request(1.0, 1, 1), Request(0.5, 1, 1)]}, "arrival_s"),
        ({"source": [Request(0.0, 0, 1)]}, "input_tokens"),
        ({"source": [Request(0.0, 1, 0)]}, "output_tokens"),
        ({"source": [Request(0.0, 4, 1, 4)]}, "cached_tokens"),
        ({"source": [Request(float("nan"), 1, 1)]}, "arrival_s"),
        ({"prefill": Prefill(HOW, Affine(), lambda _: -1.0)}, "transfer_s"),
        ({"prefill": Prefill(HOW, Affine(), lambda _: 1.0, replicas=0)}, "prefill.replicas"),
    ],
)
def test_a_simulation_is_checked(change: dict[str, Any], field: str) -> None:
    call: dict[str, Any] = {"source": [Request(0.0, 8, 8)], "scheduler": HOW, "cost": Affine()} | change
    with pytest.raises(InputError) as raised:
        simulate(**call)
    assert raised.value.field == field


def test_ten_thousand_requests_in_seconds() -> None:
    """2.5 million tokens; the bound is several times what it takes, for a slow machine."""
    started = time.process_time()
    out = simulate(OpenLoop(30.0, Lengths(512, 250, 0.5, 0.8), requests=10_000), Scheduler(256, 8192, 600_000), Affine(2**-8))
    assert time.process_time() - started < 10.0
    assert out.requests == 10_000


def test_the_engine_of_events_is_loaded_by_simulations_alone() -> None:
    code = "import sys, foretell, foretell.sim, foretell.sim.arrivals, foretell.sim.outcome; print('simpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
