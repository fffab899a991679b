"""Questions about queues: the textbook's answers, the law that is named, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.evidence.operations_queueing import ANSWERS
from foretell.operations.approximations import deterministic_mean_wait
from foretell.operations.queueing import Queue
from foretell.sim.queue import Times, simulate_queue

# servers, load, Erlang C, mean wait, p99 of the wait, p50 and p99 of the response; mean service 1; as printed
EXACT = [
    (1, 0.8, "0.8", "4", "21.910133", "3.4657359", "23.025851"),
    (2, 1.0, "0.3333333333", "0.3333333333", "3.506557897", "0.9744116", "5.665960684"),
    (5, 4.0, "0.5541125541", "0.5541125541", "4.014782739", "1.2043949", "6.079662525"),
    (10, 9.0, "0.6687315241", "0.6687315241", "4.202797577", "1.3290919", "6.249876699"),
    (32, 28.8, "0.4581966215", "0.1431864442", "1.195222907", "0.8557553", "4.794356231"),
    (100, 80.0, "0.01964642663", "0.0009823213", "0.0337655", "0.6941807", "4.606203674"),
    (100, 95.0, "0.5064568539", "0.1012913708", "0.7849708", "0.8079159", "4.724387049"),
    (1000, 990.0, "0.6590804219", "0.0659080422", "0.4188260", "0.7637505", "4.675844058"),
]


def ask(name: str, **inputs: Any) -> float:
    return ANSWERS[f"queueing.{name}"](inputs)


def queue(servers: int, load: float, **others: Any) -> dict[str, Any]:
    return {"servers": servers, "utilisation_fraction": load, "mean_service_time_s": 1.0} | others


def printed(text: str) -> Any:
    """The number, to half a unit of its last digit and 1e-9 of itself."""
    digits = len(text.partition(".")[2])
    return pytest.approx(float(text), rel=1e-9, abs=0.5 * 10.0**-digits if digits else 0.0)


@pytest.mark.parametrize(("servers", "load", "waits", "mean", "w99", "t50", "t99"), EXACT)
def test_exponential_queues_are_the_textbooks(
    servers: int, load: float, waits: str, mean: str, w99: str, t50: str, t99: str
) -> None:
    given = {"servers": servers, "offered_load_erlang": load, "mean_service_time_s": 1.0}
    assert ask("erlang_c", **given) == printed(waits)
    assert ask("mmc_mean_wait", **given) == printed(mean)
    assert ask("mmc_mean_response", **given) == pytest.approx(ask("mmc_mean_wait", **given) + 1, rel=1e-12)
    assert ask("mmc_wait_percentile", **given, percentile=99) == printed(w99)
    assert ask("mmc_response_percentile", **given, percentile=50) == printed(t50)
    assert ask("mmc_response_percentile", **given, percentile=99) == printed(t99)


def test_lost_calls_also_where_more_come_than_are_served() -> None:
    assert ask("erlang_b", servers=2, offered_load_erlang=1.0, mean_service_time_s=1.0) == pytest.approx(0.2, rel=1e-12)
    assert ask("erlang_b", servers=1, offered_load_erlang=3.0, mean_service_time_s=1.0) == pytest.approx(0.75, rel=1e-12)


def test_a_load_may_be_given_in_three_forms_and_a_service_in_two() -> None:
    forms: list[dict[str, Any]] = [
        {"offered_load_erlang": 9.0, "mean_service_time_s": 0.2},
        {"utilisation_fraction": 0.9, "mean_service_time_ms": 200.0},
        {"arrival_rate_per_s": 45.0, "mean_service_time_s": 0.2},
    ]
    exact = Queue.of(45.0, 0.2, 10)
    for form in forms:
        assert ask("mmc_mean_wait", servers=10, **form) == pytest.approx(exact.mean_wait, rel=1e-12)
        found = ask("mmc_response_percentile", servers=10, percentile=90, **form)
        assert found == pytest.approx(exact.response_quantile(0.9), rel=1e-9)


def test_equal_services_are_exact() -> None:
    equal = {"service_distribution": "deterministic", "service_scv": 0.0, "arrival_scv": 1.0}
    assert ask("mdc_mean_wait", **queue(10, 0.9)) == pytest.approx(0.344582, abs=5e-7)
    assert ask("ggc_mean_wait", **queue(10, 0.9), **equal) == pytest.approx(deterministic_mean_wait(9.0, 1.0, 10), rel=1e-9)
    wait = ask("ggc_wait_percentile", **queue(10, 0.9), **equal, percentile=90)
    assert ask("ggc_response_percentile", **queue(10, 0.9), **equal, percentile=90) == pytest.approx(wait + 1, rel=1e-12)
    assert ask("ggc_wait_percentile", **queue(100, 0.95), **equal, percentile=50) == 0.0


def test_exponential_laws_are_exact_by_every_name() -> None:
    exact = Queue.of(9.0, 1.0, 10)
    for law, scv in (("exponential", 1.0), ("erlang-1", 1.0), ("gamma", 1.0)):
        given = queue(10, 0.9, service_distribution=law, service_scv=scv, arrival_scv=1.0)
        assert ask("ggc_mean_wait", **given) == pytest.approx(exact.mean_wait, rel=1e-12)
        assert ask("ggc_wait_percentile", **given, percentile=99) == pytest.approx(exact.wait_quantile(0.99), rel=1e-12)


def test_one_server_and_poisson_arrivals_have_a_mean_by_the_spread_alone() -> None:
    given = queue(1, 0.8, service_distribution="lognormal", service_scv=4.0, arrival_scv=1.0)
    assert ask("ggc_mean_wait", **given) == pytest.approx(10.0, rel=1e-12)


def test_other_laws_are_simulated_and_scaled_by_the_service() -> None:
    given = {"servers": 4, "utilisation_fraction": 0.8, "mean_service_time_ms": 500.0}
    laws = {"service_distribution": "erlang-3", "service_scv": 0.3333, "arrival_scv": 2.0}
    run = simulate_queue(4, 0.8, Times("gamma", 1 / 3), Times("hyperexponential", 2.0))
    assert ask("ggc_mean_wait", **given, **laws) == pytest.approx(0.5 * run.mean_wait.value, rel=1e-12)
    assert ask("ggc_wait_percentile", **given, **laws, percentile=90) == pytest.approx(0.5 * run.wait_quantile(0.9).value)
    assert ask("ggc_response_percentile", **given, **laws, percentile=90) == pytest.approx(0.5 * run.response_quantile(0.9).value)


def test_near_a_load_of_one_the_answer_is_that_of_heavy_traffic() -> None:
    given = queue(10, 0.999, service_distribution="lognormal", service_scv=4.0, arrival_scv=1.0)
    expected = Queue.of(9.99, 1.0, 10, 2.0, 1.0)
    assert ask("ggc_mean_wait", **given) == pytest.approx(expected.mean_wait)
    assert ask("ggc_wait_percentile", **given, percentile=99) == pytest.approx(expected.wait_quantile(0.99))


GENERAL = queue(2, 0.5, service_distribution="lognormal", service_scv=2.0, arrival_scv=1.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"service_distribution": "pareto"}, "service_distribution"),
        ({"service_distribution": "hyperexponential-3"}, "service_distribution"),
        ({"service_distribution": "erlang-4"}, "service_scv"),
        ({"service_distribution": "exponential"}, "service_scv"),
        ({"service_distribution": None}, "service_distribution"),
        ({"service_scv": None}, "service_scv"),
        ({"service_scv": -1.0}, "service_scv"),
        ({"arrival_scv": None}, "arrival_scv"),
        ({"arrival_distribution": "batch"}, "arrival_distribution"),
        ({"utilisation_fraction": 1.0}, "utilisation_fraction"),
        ({"utilisation_fraction": math.nan}, "utilisation_fraction"),
        ({"servers": None}, "servers"),
        ({"servers": 1.5}, "servers"),
        ({"mean_service_time_s": 0.0}, "mean_service_time_s"),
        ({"queue_limit": 10}, "queue_limit"),
        ({"percentile": 50}, "percentile"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    inputs = {name: value for name, value in (GENERAL | change).items() if value is not None}
    with pytest.raises(InputError) as caught:
        ask("ggc_mean_wait", **inputs)
    assert caught.value.field == field


def test_percentiles_are_asked_for_and_a_load_is_given_once() -> None:
    with pytest.raises(InputError, match="percentile is needed"):
        ask("ggc_wait_percentile", **GENERAL)
    with pytest.raises(InputError, match="percentile"):
        ask("mmc_wait_percentile", **queue(2, 0.5), percentile=100)
    with pytest.raises(InputError, match="one of them"):
        ask("mmc_mean_wait", **queue(2, 0.5), offered_load_erlang=1.0)
    with pytest.raises(InputError, match="one of them"):
        ask("mmc_mean_wait", servers=2, offered_load_erlang=1.0)
