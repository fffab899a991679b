"""Step seconds of pipeline schedules in closed form: textbook bubbles, the simulation as judge, arrays, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.cost.schedule import bubble, step_seconds
from foretell.cost.schedule_events import simulate
from foretell.errors import CombinationError, InputError

SCHEDULES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe"]


def equal(pp: int, value: float, vpp: int = 1) -> list[list[float]]:
    return [[value / vpp] * vpp for _ in range(pp)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "m"), [(1, 1), (2, 1), (4, 3), (8, 64), (16, 5)])
def test_bubble_of_equal_stages_is_one_micro_batch_less_than_ranks(schedule: str, pp: int, m: int) -> None:
    # arXiv 2104.04473, section 2.2.1: (p - 1)(f + b), and (p - 1)/m of the ideal time
    found = bubble(schedule, [1.0] * pp, [1.25] * pp, [0.75] * pp, micro_batches=m)
    assert found.seconds == pytest.approx((pp - 1) * 3.0)
    assert found.of_ideal == pytest.approx((pp - 1) / m)
    assert found.of_step == pytest.approx((pp - 1) / (m + pp - 1))


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 2), (4, 2, 4), (4, 3, 16), (8, 4, 64), (1, 2, 3)])
def test_interleaving_divides_the_bubble_by_its_chunks(pp: int, vpp: int, m: int) -> None:
    found = bubble("interleaved-1f1b", equal(pp, 1.0, vpp), equal(pp, 2.0, vpp), micro_batches=m)
    assert found.seconds == pytest.approx((pp - 1) * 3.0 / vpp)
    assert found.of_ideal == pytest.approx((pp - 1) / (vpp * m))


def test_zb_h1_runs_weight_gradients_in_the_bubble() -> None:
    # arXiv 2401.10241, table 2: (p - 1)(f + b_input - w)
    found = bubble("zb-h1", [1.0] * 8, [1.2] * 8, [0.9] * 8, micro_batches=24)
    assert found.seconds == pytest.approx(7 * (1.0 + 1.2 - 0.9))


@pytest.mark.parametrize(("w", "together"), [(1.0, 1.0), (0.8, 1.0), (1.0, 0.9)])
def test_dualpipe_halves_the_ranks_in_the_bubble(w: float, together: float) -> None:
    # arXiv 2412.19437, table 2: (p/2 - 1)(F&B + B - 3W), B the whole backward pass; exact where F is B - W
    pp, f, b = 8, 1.0, 1.0 + w
    found = bubble("dualpipe", [f] * pp, [f] * pp, [w] * pp, micro_batches=40, together=together)
    assert max(found.ranks) == pytest.approx((pp / 2 - 1) * ((f + b) * together + b - 3 * w))


@st.composite
def pipelines(draw: st.DrawFn, schedules: list[str] = SCHEDULES) -> tuple[str, list[Any], dict[str, Any]]:
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.integers(1, 6))
    m = draw(st.integers(1, 20))
    vpp = 1
    if schedule == "interleaved-1f1b":
        vpp, m = draw(st.integers(1, 3)), pp * (1 + m // pp)
    elif schedule == "zb-v":
        vpp = 2
    elif schedule == "dualpipe":
        pp += pp % 2
        m = 2 * (pp + m)
    one = st.floats(0.5, 2.0)
    row = st.lists(one, min_size=vpp, max_size=vpp)
    rows = st.lists(row, min_size=pp, max_size=pp)
    times = [draw(rows) for _ in range(3)]
    return schedule, times, {"micro_batches": m, "p2p": draw(st.floats(0, 0.3)), "exposed": draw(st.floats(0, 1))}


@settings(max_examples=150, deadline=None)
@given(pipelines(["gpipe", "1f1b", "zb-h1", "zb-v", "dualpipe"]))
def test_the_closed_form_is_the_simulation(question: tuple[str, list[Any], dict[str, Any]]) -> None:
    schedule, times, settings_ = question
    assert step_seconds(schedule, *times, **settings_) == pytest.approx(
        simulate(schedule, *times, **settings_).makespan, rel=0.02
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
def test_arrays_are_as_many_numbers(schedule: str) -> None:
    rng = np.random.default_rng(0)
    times = rng.uniform(0.5, 2.0, (3, 4, 50))
    m, p2p, exposed = rng.integers(1, 40, 50), rng.uniform(0, 0.3, 50), rng.uniform(0, 1, 50)
    whole = step_seconds(schedule, *(list(t) for t in times), micro_batches=m, p2p=p2p, exposed=exposed)
    one_by_one = [
        step_seconds(
            schedule,
            *([float(x) for x in t[:, i]] for t in times),
            micro_batches=int(m[i]),
            p2p=float(p2p[i]),
            exposed=float(exposed[i]),
        )
        for i in range(50)
    ]
    np.testing.assert_allclose(whole, one_by_one)


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "m", "field"),
    [
        ("pipedream", 2, 1, 4, "schedule"),
        ("1f1b", 2, 1, 0, "micro_batches"),
        ("1f1b", 2, 1, 2.5, "micro_batches"),
        ("1f1b", 2, 2, 4, "vpp"),
        ("interleaved-1f1b", 4, 2, 6, "micro_batches"),
        ("zb-v", 2, 1, 4, "vpp"),
        ("dualpipe", 3, 1, 6, "pp"),
        ("dualpipe", 4, 1, 6, "micro_batches"),
        ("dualpipe", 2, 1, 5, "micro_batches"),
    ],
)
def test_what_a_schedule_cannot_run_is_refused(schedule: str, pp: int, vpp: int, m: float, field: str) -> None:
    times = equal(pp, 1.0, vpp)
    with pytest.raises(InputError) as caught:
        step_seconds(schedule, times, times, times, micro_batches=m)
    assert caught.value.field == field
    assert caught.value.allowed


def test_one_bad_count_among_many_is_refused() -> None:
    times = equal(4, 1.0, 2)
    with pytest.raises(CombinationError, match="multiples of 4"):
        step_seconds("interleaved-1f1b", times, times, micro_batches=np.array([4, 8, 10]))
