"""The answer of `serve` as data, as a screen, and as a picture."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import serve
from foretell.core.serving_split import serve_split
from foretell.errors import InputError
from foretell.plan.serving_curve import curve
from foretell.recipe.serving import ServingRecipe
from foretell.report._serve_figure import ServeFigure
from foretell.report.serve import result_of
from foretell.report.serve_plot import draw
from foretell.report.serve_screen import headline, show
from foretell.report.serve_split import joined, split_of
from foretell.sim.serving import play

LOAD = Demand("closed", 1000.0, 200.0, concurrency=16.0)


@pytest.fixture(scope="module")
def found() -> Deployment:
    return deployment("llama-3-8b", "h100")


def document(result: dict[str, Any]) -> dict[str, Any]:
    inputs = {
        "gpu": "h100-sxm-80gb", "dp": 1, "tp": 1, "pp": 1, "ep": 1, "engine": "vllm", "engine_version": "0.33.0",
        "weights": "bf16", "kv_dtype": "bf16", "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "max_model_len": 8192,
        "gpu_memory_utilization": 0.92,
    }  # fmt: skip
    return {"result": result, "inputs": inputs, "notes": [], "sources": []}


def screen(result: dict[str, Any]) -> str:
    out = io.StringIO()
    show(document(result), Console(file=out, width=80, highlight=False))
    return out.getvalue()


def test_means_are_the_simulations_where_there_is_one(found: Deployment) -> None:
    demand = Demand("open", 1000.0, 100.0, rate=5.0, requests=200)
    forecast, outcome = serve(found, demand), play(found, demand, seed=3)
    result = result_of(forecast, demand, (), outcome, seed=3)
    assert (result["basis"], result["ttft_s"], result["itl_s"]) == ("simulation", outcome.ttft.mean, outcome.tpot.mean)
    low, high = result["itl_interval_s"]
    assert (low / result["itl_s"], high / result["itl_s"]) == pytest.approx([
        end / (forecast.itl_s or math.nan) for end in forecast.itl_interval_s or ()
    ])  # fmt: skip
    assert result["simulation"]["seed"] == 3
    assert result["percentiles"]["request_s"]["p99"] == outcome.e2e.p99
    assert result_of(forecast, demand)["percentiles"] is None


def test_an_endless_queue_has_no_time(found: Deployment) -> None:
    demand = Demand("open", 1000.0, 100.0, rate=1e4)
    result = result_of(serve(found, demand), demand)
    assert (result["keeps_up"], result["ttft_s"], result["queue_s"]) == (False, None, None)
    assert result["backlog_growth_per_s"] > 9000
    line = headline(document(result)).plain
    assert line.startswith("DOES NOT KEEP UP  10,000 requests/s arrive, it can serve ")
    assert "the queue grows by " in line


def test_the_screen_of_a_forecast(found: Deployment) -> None:
    text = screen(result_of(serve(found, LOAD), LOAD, curve(found, LOAD), assumed=["vLLM"]))
    lines = text.splitlines()
    assert lines[0].startswith("FITS  TTFT ")
    assert lines[0].endswith(" tokens/s with 16 in flight")
    assert max(map(len, lines)) <= 80
    weights = next(line for line in lines if line.startswith("  weights in bf16              -14.96  layers 13.00, "))
    assert {"embedding 0.98", "head 0.98"} <= {part.strip() for part in weights.split(",")}
    ladder = lines[lines.index("over concurrency (closed loop)") + 2 :]
    assert [line.split()[0] for line in ladder[:6]] == ["1", "2", "4", "8", "16", "32"]


def test_both_sides_of_a_split_are_joined() -> None:
    reads, makes = (deployment("llama-3-8b", "h100", ServingRecipe(dp=n)) for n in (2, 1))
    demand = Demand("open", 1000.0, 100.0, rate=10.0)
    both = serve_split(reads, makes, demand, 50e9)
    whole = joined(both)
    assert (whole.gpus, whole.ttft_s, whole.capacity_requests_per_s) == (3, both.ttft_s, both.capacity_requests_per_s)
    assert whole.output_tokens_per_s_per_gpu == pytest.approx((both.decode.output_tokens_per_s or 0) / 3)
    result = result_of(whole, demand, split=split_of(both))
    assert result["ttft_s"] == pytest.approx(result["client_s"] + result["queue_s"] + result["prompt_s"])
    assert result["request_s"] == pytest.approx(result["ttft_s"] + 99 * result["itl_s"])
    one = serve(makes, demand)
    assert whole.mfu == pytest.approx((one.mfu or 0) / 3, rel=0.1)  # the same work on three devices


def test_a_split_that_does_not_fit_says_which_side() -> None:
    reads = deployment("llama-3.1-70b", "h100")
    makes = deployment("llama-3.1-70b", "h100", ServingRecipe(tp=4))
    both = serve_split(reads, makes, Demand("open", 1000.0, 100.0, rate=1.0), 50e9)
    whole = joined(both)
    assert (whole.feasible, whole.deployment is reads) == (False, True)
    assert split_of(both)["bound"] == "memory"


# -- the picture ---------------------------------------------------------------------------------------------


def drawn(found: Deployment, path: Path, **more: Any) -> bytes:
    result = result_of(serve(found, LOAD), LOAD, **more)
    draw(result, curve(found, LOAD, fine=True), path, title="Llama 3 8B on one H100")
    return path.read_bytes()


def test_a_picture_is_the_same_bytes_twice(found: Deployment, tmp_path: Path) -> None:
    for name in ("a.png", "a.svg"):
        assert drawn(found, tmp_path / name) == drawn(found, tmp_path / f"again.{name}")


def test_a_picture_has_the_targets_that_were_given(found: Deployment) -> None:
    targets = [{"name": "p99-itl", "metric": "itl", "statistic": "p99", "seconds": 0.02, "seen_s": 0.01, "met": True}]
    slo = {"targets": targets, "met": True, "judged_by": "simulation", "slo_share": 1.0}
    words = []
    for more in (None, slo):
        made = ServeFigure(result_of(serve(found, LOAD), LOAD, slo=more), curve(found, LOAD, fine=True), "any")
        words.append([text.get_text() for axes in made.figure.axes for text in axes.texts])
    assert sorted(set(words[1]) - set(words[0])) == ["p99 at most 20.0 ms"]
    assert {"1", "16", "128"} <= set(words[0])


@pytest.mark.parametrize("kind", ["static", "open", "offline"])
def test_a_picture_of_any_load(found: Deployment, tmp_path: Path, kind: str) -> None:
    demand = Demand(kind, 1000.0, 200.0, concurrency=8.0 if kind == "static" else None, rate=2.0 if kind == "open" else None,
                    requests=500 if kind == "offline" else None)  # fmt: skip
    path = tmp_path / "a.png"
    draw(result_of(serve(found, demand), demand), curve(found, demand, fine=True), path, title="any")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused(found: Deployment, tmp_path: Path) -> None:
    result, points = result_of(serve(found, LOAD), LOAD), curve(found, LOAD)
    for path, some, says in (
        (tmp_path / "a.pdf", points, "must end in one of these"),
        (tmp_path / "a.png", points[:1], "nothing to show"),
        (tmp_path / "none" / "a.png", points, "cannot be written"),
    ):
        with pytest.raises(InputError, match=says):
            draw(result, some, path, title="any")
    alone = [replace(one, itl_s=0.0) for one in points]
    with pytest.raises(InputError, match="nothing to show"):
        draw(result, alone, tmp_path / "a.png", title="any")
