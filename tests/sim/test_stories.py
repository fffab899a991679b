"""Whole courses of tiny servers, worked by hand: a step takes 1 s, and 1/8 s more for each prompt token that it reads."""

from __future__ import annotations

import pytest

from foretell.cost.serving_load import Load
from foretell.sim.arrivals import ClosedLoop, Lengths, Request
from foretell.sim.outcome import Outcome, Served
from foretell.sim.server import Prefill, Scheduler, simulate

ABC = [Request(0.0, 8, 3), Request(0.5, 12, 2), Request(1.0, 4, 1)]
AB = [Request(0.0, 7, 4), Request(0.0, 6, 4)]


class Cost:
    """Remembers the loads that it has priced."""

    def __init__(self) -> None:
        self.loads: list[Load] = []

    def seconds(self, load: Load) -> float:
        self.loads.append(load)
        return 1.0 + float(load.prefill) / 8.0


def story(requests: list[Request] | ClosedLoop, how: Scheduler, prefill: Prefill | None = None) -> tuple[list[str], Outcome]:
    """One line a request: admitted, first token, end."""
    served: list[Served] = []
    out = simulate(requests, how, Cost(), prefill=prefill, log=served.append)
    return [f"{'ABCD'[s.request]} {s.start_s:g} {s.first_token_s:g} {s.end_s:g}" for s in sorted(served)], out


def test_prompts_share_the_steps_of_those_who_decode() -> None:
    """0-2 A's prompt; 2-3.875 A and 7 tokens of B; 3.875-5.5 A and 5 of B, C finds no seat; 5.5-7 B and C's prompt."""
    log, out = story(ABC, Scheduler(max_seqs=2, max_tokens=8, kv_tokens=1024))
    assert log == ["A 0 2 5.5", "B 2 5.5 7", "C 5.5 7 7"]
    assert (out.ttft.mean, out.ttft.p50, out.ttft.maximum) == ((2 + 5 + 6) / 3, 5.0, 6.0)
    assert (out.itl.count, out.itl.mean, out.itl.maximum) == (3, (1.875 + 1.625 + 1.5) / 3, 1.875)
    assert (out.tpot.count, out.tpot.maximum) == (2, 1.75)
    assert out.wait.maximum == 4.5
    assert out.e2e.p50 == 6.0
    assert out.duration_s == 7.0
    assert out.output_tokens_per_s == 6 / 7
    assert out.total_tokens_per_s == 30 / 7
    assert out.requests_per_s == 3 / 7
    assert out.resident_mean == pytest.approx((2 * 1 + 5 * 2) / 7)
    assert out.resident_max == 2
    assert out.utilisation == 1.0
    assert (out.requests, out.unfinished, out.rejected, out.preemptions, out.steps) == (3, 0, 0, 0, 4)


def test_prompts_first_in_steps_of_their_own_stop_those_who_decode() -> None:
    """0-2 A's prompt; 2-4.5 B's; 4.5-5.5 both decode and B ends; 5.5-7 C's prompt; 7-8 A decodes."""
    log, out = story(ABC, Scheduler(max_seqs=2, max_tokens=12, kv_tokens=1024, mixed=False))
    assert log == ["A 0 2 8", "B 2 4.5 5.5", "C 5.5 7 7"]
    assert (out.itl.count, out.itl.maximum) == (3, 3.5)  # A waited for B's prompt
    assert out.itl.mean == pytest.approx((3.5 + 2.5 + 1.0) / 3)


def test_the_youngest_is_put_back_when_blocks_run_out() -> None:
    """4 blocks of 4 tokens.  0-2.625 both prompts; -3.625 both decode; A's 9th token needs a block: B goes; -5.625 A ends;
    -7.625 B's prompt and its two tokens are read anew; -8.625 B ends.
    """
    log, out = story(AB, Scheduler(max_seqs=2, max_tokens=16, kv_tokens=16, block_size=4))
    assert log == ["A 0 2.625 5.625", "B 0 2.625 8.625"]
    assert (out.preemptions, out.kv_max) == (1, 1.0)
    assert out.itl.maximum == 4.0
    assert (out.itl.count, out.itl.mean) == (6, (1 + 1 + 1 + 1 + 4 + 1) / 6)


def test_a_reservation_lets_the_second_wait() -> None:
    log, out = story(AB, Scheduler(max_seqs=2, max_tokens=16, kv_tokens=16, block_size=4, reserve=True))
    assert log == ["A 0 1.875 4.875", "B 4.875 6.625 9.625"]
    assert (out.preemptions, out.kv_max, out.kv_mean) == (0, 0.75, 0.75)


def test_a_user_thinks_before_the_next_request() -> None:
    loop = ClosedLoop(1, Lengths(8, 2), requests=2, think_s=0.5)
    log, out = story(loop, Scheduler(max_seqs=2, max_tokens=8, kv_tokens=1024))
    assert log == ["A 0 2 3", "B 3.5 5.5 6.5"]
    assert out.utilisation == 6 / 6.5


def test_an_arrival_cuts_a_stretch_of_steps_at_the_end_of_the_running_one() -> None:
    asked = [Request(0.0, 8, 1000), Request(10.25, 8, 1), Request(12.0, 8, 1)]
    log, out = story(asked, Scheduler(max_seqs=3, max_tokens=16, kv_tokens=2048))
    assert log == ["A 0 2 1003", "B 11 13 13", "C 13 15 15"]
    assert out.steps == 1000


def test_speculation_makes_several_tokens_a_step() -> None:
    """2.5 tokens a step: 1 token after the prompt, then 3, 6 and 8."""
    log, out = story([Request(0.0, 8, 8)], Scheduler(max_seqs=1, max_tokens=8, kv_tokens=1024, tokens_per_step=2.5, width=4))
    assert log == ["A 0 2 5"]
    assert (out.itl.mean, out.tpot.mean) == (1.0, 3 / 7)
    assert out.output_tokens_per_s == 8 / 5


def test_cached_tokens_are_not_read_but_seen() -> None:
    """Tokens 9 to 16 see 9 to 16 others: 100 pairs.  Blocks hold all 16."""
    cost = Cost()
    out = simulate([Request(0.0, 16, 1, cached_tokens=8)], Scheduler(1, 16, 64), cost)
    assert cost.loads == [Load(prefill=8.0, pairs=100.0, prompts=1.0)]
    assert (out.duration_s, out.kv_max) == (2.0, 0.25)
    assert out.total_tokens_per_s == 17 / 2
    shared = Cost()
    simulate([Request(0.0, 16, 1)], Scheduler(1, 16, 64, prefix_share=0.5), shared)
    assert shared.loads == cost.loads


def test_prefill_servers_hand_over() -> None:
    """The prompts are read 0-2 and 2-4; a cache travels 0.25 s and brings the first token; A decodes 2.25-4.25, B 4.25-5.25."""
    how = Scheduler(max_seqs=8, max_tokens=8, kv_tokens=1024)
    asked = [Request(0.0, 8, 3), Request(0.0, 8, 2), Request(0.0, 8, 1)]
    log, out = story(asked, how, Prefill(how, Cost(), lambda tokens: tokens / 32))
    assert log == ["A 0 2.25 4.25", "B 2 4.25 5.25", "C 4 6 6"]  # C's only token comes from the prompt
    assert out.prefill_utilisation == 1.0
    assert out.utilisation == 3 / 6
    assert out.resident_max == 1


def test_client_overhead_is_in_the_latencies_and_not_in_the_clock() -> None:
    out = simulate([Request(0.0, 8, 3)], Scheduler(1, 8, 1024), Cost(), first_token_s=0.5)
    assert (out.ttft.mean, out.e2e.mean, out.tpot.mean, out.duration_s) == (2.5, 4.5, 1.0, 4.0)
