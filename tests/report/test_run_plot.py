"""The picture of a whole run: a file of its kind, the same bytes for the same answer, refused before the long part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ExtraError, InputError
from foretell.report.run_plot import check, draw

Drawn = tuple[dict[str, Any], dict[str, Any]]
NAMES = ("step_s", "wall_days", "interruptions", "goodput_ratio", "total_energy_kwh", "operational_carbon_kg", "cost_usd")


@pytest.fixture
def answer() -> Drawn:
    import numpy as np

    rng = np.random.default_rng(0)
    samples = {name: rng.lognormal(2.0, 0.3, 1000) for name in NAMES}
    samples["interruptions"] = np.zeros(1000)
    bands = {}
    for name, values in samples.items():
        low, middle, high = (float(one) for one in np.quantile(values, (0.1, 0.5, 0.9)))
        bands[name] = {"point": middle, "p10": low, "p50": middle, "p90": high}
    bands["step_s"] |= {"p90": 1e9}  # beyond the axis
    losses = {"useful": 0.9, "checkpoints": 0.05, "rework": 0.0499, "restarts": 0.0001}
    run = {"quantities": bands, "losses": losses, "gpus": 16, "nodes": 2, "region": "Somewhere", "boundary": "operational"}
    run |= {"mode": "rent", "samples": 1000}
    return {"run": run, "model": "a model with $ in its name", "gpu": "a card", "tokens": 1e12}, samples


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_a_picture_is_a_file_of_its_kind(tmp_path: Path, answer: Drawn, suffix: str, start: bytes) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw(*answer, first)
    draw(*answer, second)
    assert first.read_bytes().startswith(start)
    assert 10_000 < first.stat().st_size < 1_000_000
    assert first.read_bytes() == second.read_bytes()


def test_the_words_are_those_of_the_answer(tmp_path: Path, answer: Drawn) -> None:
    import matplotlib as mpl

    result, samples = answer
    del result["run"]["quantities"]["cost_usd"], samples["cost_usd"]  # no price is known: energy in its place
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(result, samples, tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text("utf-8")
    for said in ("1.00 T tokens", "a model with $ in its name", "trains 90.0 %", "below 0.1 %", "... of the building", "2 nodes"):
        assert said in text


def test_what_cannot_be_written_is_refused(tmp_path: Path, answer: Drawn) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg"):
        check(tmp_path / "run.gif")
    with pytest.raises(InputError, match="does not exist"):
        check(tmp_path / "nowhere" / "run.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        draw(*answer, tmp_path / "folder.png")


def test_without_matplotlib_its_extra_is_named(tmp_path: Path, answer: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "foretell.report._run_figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtraError, match=r"foretell\[plot\]"):
        draw(*answer, tmp_path / "run.png")
