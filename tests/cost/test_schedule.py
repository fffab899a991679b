"""Step seconds of pipeline schedules in closed form: textbook bubbles, the simulation as judge, arrays, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from cost.pipelines import SCHEDULES, pipelines
from foretell.cost.schedule import bubble, idle, seconds, step_seconds
from foretell.cost.schedule_events import run
from foretell.cost.schedule_inputs import Pipeline, pipeline
from foretell.errors import CombinationError, InputError


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


@settings(max_examples=200, deadline=None)
@given(pipelines())
def test_the_closed_form_is_the_simulation(question: Pipeline) -> None:
    assert seconds(question) == pytest.approx(run(question).makespan, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_idle_seconds_are_those_of_the_simulation(question: Pipeline) -> None:
    found, exact = idle(question), run(question)
    assert found.ranks == pytest.approx(exact.idle, abs=0.02 * exact.makespan)
    assert 0 <= found.of_step < 1
    assert found.of_ideal == pytest.approx(found.of_step / (1 - found.of_step))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_micro_batches_over_uneven_ranks(schedule: str) -> None:
    rng = np.random.default_rng(7)
    vpp = {"interleaved-1f1b": 2, "zb-v": 2}.get(schedule, 1)
    for exposed in (0.0, 0.5, 1.0) * 5:
        times = rng.uniform(0.8, 1.2, (3, 8, vpp)).tolist()
        question = pipeline(schedule, *times, micro_batches=160, p2p=float(rng.uniform(0, 0.2)), exposed=exposed)
        assert seconds(question) == pytest.approx(run(question).makespan, rel=1e-9 if schedule == "gpipe" else 0.01)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrays_are_as_many_numbers(schedule: str) -> None:
    rng = np.random.default_rng(0)
    vpp, size = {"interleaved-1f1b": 2, "zb-v": 2}.get(schedule, 1), 40
    times = rng.uniform(0.5, 2.0, (3, 4, vpp, size))
    times[..., : size // 2] = [[[[1.0]]], [[[1.2]]], [[[0.8]]]]  # some equal, some not
    m = 4 * rng.integers(2, 20, size)
    p2p, exposed, together = (rng.uniform(low, high, size) for low, high in ((0, 0.3), (0, 1), (0.7, 1)))
    arrays = [[list(rank) for rank in table] for table in times]
    whole = bubble(schedule, *arrays, micro_batches=m, p2p=p2p, exposed=exposed, together=together)
    for i in range(size):
        numbers = [[[float(value[i]) for value in rank] for rank in table] for table in arrays]
        one = bubble(
            schedule,
            *numbers,
            micro_batches=int(m[i]),
            p2p=float(p2p[i]),
            exposed=float(exposed[i]),
            together=float(together[i]),
        )
        assert whole.step[i] == pytest.approx(one.step)
        assert whole.of_step[i] == pytest.approx(one.of_step)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_array_among_numbers_is_enough(schedule: str) -> None:
    vpp = {"interleaved-1f1b": 2, "zb-v": 2}.get(schedule, 1)
    times = [[[1.0 + rank / 9] * vpp for rank in range(4)] for _ in range(3)]
    counts = np.array([[8], [16], [200]])
    found = step_seconds(schedule, *times, micro_batches=counts, p2p=np.array([0.0, 0.1]), exposed=0.0)
    assert found.shape == (3, 2)
    assert found[2, 1] == pytest.approx(step_seconds(schedule, *times, micro_batches=200, p2p=0.1, exposed=0.0))


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
    with pytest.raises(CombinationError, match="micro_batches=10 does not divide .* multiples of 4"):
        step_seconds("interleaved-1f1b", times, times, micro_batches=np.array([4, 8, 10]))
