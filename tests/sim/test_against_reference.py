"""The simulator against one written the long way, on random small servers: every time equal, to the last bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.sim.arrivals import Request
from foretell.sim.outcome import Served
from foretell.sim.server import Scheduler, simulate
from sim.sim_costs import Affine
from sim.sim_reference import serve


@st.composite
def schedulers(draw: st.DrawFn, tokens_per_step: tuple[float, ...] = (1.0, 2.0)) -> Scheduler:
    seqs = draw(st.integers(1, 6))
    mixed, reserve = draw(st.booleans()), draw(st.booleans())
    width = draw(st.integers(1, 3))
    block = draw(st.sampled_from([1, 3, 4, 16]))
    return Scheduler(
        max_seqs=seqs,
        max_tokens=seqs * width + draw(st.integers(0, 40)),
        kv_tokens=max(block, draw(st.integers(20, 160))),
        block_size=block,
        mixed=mixed,
        reserve=reserve,
        chunked=draw(st.sampled_from([None, True, False])),
        tokens_per_step=draw(st.sampled_from(tokens_per_step)),
        width=width,
    )


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    now = 0.0
    made = []
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0, 0, 1, 5, 17, 64, 300])) / 64
        tokens = draw(st.integers(1, 60))
        made.append(Request(now, tokens, draw(st.integers(1, 40)), draw(st.integers(0, tokens - 1))))
    return made


def check(asked: list[Request], how: Scheduler, *, jump: bool) -> None:
    expected = serve(asked, how, Affine())
    served: list[Served] = []
    if not expected.served:
        with pytest.raises(InputError, match="can hold none of the requests"):
            simulate(asked, how, Affine(), jump=jump)
        return
    out = simulate(asked, how, Affine(), jump=jump, log=served.append)
    assert sorted(served) == sorted(expected.served)
    assert out.rejected == expected.refused
    assert out.preemptions == sum(one.preemptions for one in expected.served)
    assert out.steps == len(expected.loads)
    assert out.itl.count == pytest.approx(len(expected.gaps))
    if expected.gaps:
        assert out.itl.mean == pytest.approx(sum(expected.gaps) / len(expected.gaps))
        assert out.itl.maximum == pytest.approx(max(expected.gaps))
    assert out.kv_max == max(expected.blocks) / how.blocks
    tokens = sum(one.output_tokens for one in expected.served)
    assert out.output_tokens_per_s * out.duration_s == pytest.approx(tokens)
    inputs = sum(one.input_tokens for one in expected.served)
    assert out.total_tokens_per_s * out.duration_s == pytest.approx(tokens + inputs)


@settings(max_examples=300)
@given(requests(), schedulers())
def test_stretches_of_steps_end_as_single_ones_do(asked: list[Request], how: Scheduler) -> None:
    check(asked, how, jump=True)


@settings(max_examples=150)
@given(requests(), schedulers((1.0, 1.5, 2.75)))
def test_single_steps_with_any_speculation(asked: list[Request], how: Scheduler) -> None:
    check(asked, how, jump=False)
