"""The picture of a trace: it is drawn, its words do not cover each other, and its peak is where the replay says."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.errors import ExtraError, InputError
from foretell.report import trace_picture
from foretell.report.trace_picture import draw
from foretell.trace.events import Phase, PhaseName, Recording, Storage
from foretell.trace.replay import replay
from small_trace import transformer

pytest.importorskip("matplotlib")
MIB, GIB = 1 << 20, 1 << 30


def rising(count: int = 60) -> Recording:
    """Steps of one allocation each; the peak is the last event."""
    names: list[PhaseName] = ["forward" if i % 2 else "backward" for i in range(1, count)]
    phases = [Phase("load", 0, 0, 0), *(Phase(name, i // 2, 0, i + 1) for i, name in enumerate(names))]
    return Recording([Storage(100 * MIB, "aten::mm", 0, "layer", "m.py:1", 0, "parameter")] * count, list(range(count)), phases)


def falling() -> Recording:
    """The peak is the first event, of a module with a long name."""
    first = Storage(MIB, "aten::mm", 0, "model." + "x" * 100 + "$_{\\bad\n\N{CJK UNIFIED IDEOGRAPH-4E2D}", "file.py:1")
    rest = [Storage(1000, "aten::add", 1) for _ in range(50)]
    order = [0, ~0, *itertools.chain.from_iterable((i, ~i) for i in range(1, 51))]
    return Recording([first, *rest], order, [Phase("load", 0, 0, 0), Phase("forward", 0, 0, 1)])


SCENES: dict[str, tuple[Recording, dict[str, Any], int | None]] = {
    "two steps": (transformer(8, 2), {"capacity": 17 * GIB}, None),
    "capacity just above": (transformer(8, 2), {"capacity": 12.2 * GIB}, None),
    "capacity far above": (transformer(4, 1), {"capacity": 80 * GIB, "title": "GPT-2 on an H100"}, None),
    "micro-steps": (transformer(12, 3, micro=4, chunks=4, hidden=8 * MIB), {}, None),
    "peak at the left": (falling(), {"capacity": 24 * GIB}, None),
    "peak at the right": (rising(), {"capacity": 6.1 * GIB}, None),
    "tiny phases": (transformer(2, 1, tail=50_000, hidden=MIB), {}, None),
    "out of memory": (transformer(8, 2), {}, 10 * GIB),
    "one event": (Recording([Storage(MIB, "aten::mm", 0)], [0], [Phase("load", 0, 0, 0)]), {}, None),
}


def figure_of(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compose the figure, and look at it instead of writing the file."""
    from foretell.report import _trace_figure

    kept = []

    class Kept(_trace_figure.TraceFigure):
        def save(self, path: Path) -> None:
            assert path.suffix == ".png"
            kept.append(self)
            self.figure.draw_without_rendering()

    monkeypatch.setattr(_trace_figure, "TraceFigure", Kept)
    recording, options, capacity = SCENES[name]
    draw(recording, replay(recording, capacity=capacity), path, **options)
    return kept[0]


@pytest.mark.parametrize("name", SCENES)
def test_no_words_cover_each_other_and_all_are_inside(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.text import Text

    made = figure_of(name, tmp_path / "a.png", monkeypatch)
    renderer = made.figure.canvas.get_renderer()
    axes = made.axes
    unseen = {
        id(tick.label1)
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in axis.get_major_ticks()
        if not low <= tick.get_loc() <= high
    }
    texts = [t for t in made.figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in unseen]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts]
    assert len(boxes) > 8
    for words, box in boxes:
        assert box.x0 >= 0, words
        assert box.y0 >= 0, words
        assert box.x1 <= made.figure.bbox.x1, words
        assert box.y1 <= made.figure.bbox.y1, words
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.shrunk(0.98, 0.9).overlaps(b.shrunk(0.98, 0.9)), (one, other)


@pytest.mark.parametrize("name", ["two steps", "micro-steps", "tiny phases", "peak at the right"])
def test_the_peak_is_drawn_where_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = figure_of(name, tmp_path / "a.png", monkeypatch)
    replayed = replay(SCENES[name][0])
    assert made.tops[-1].max() * GIB == pytest.approx(replayed.peak_allocated.bytes)
    assert made.scene.at[made.tops[-1].argmax()] == replayed.peak_allocated.event
    assert made.axes.get_ylim()[1] * GIB > replayed.peak_reserved.bytes
    assert len(made.scene.at) <= 6000


@pytest.mark.parametrize("name", ["two steps", "out of memory"])
def test_it_is_a_picture_of_many_colours(name: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    recording, options, capacity = SCENES[name]
    path = tmp_path / "a.PNG"
    draw(recording, replay(recording, capacity=capacity), path, **options)
    with image.open(path) as opened:
        pixels = np.asarray(opened.convert("RGB")).reshape(-1, 3)
        assert opened.size == (2400, 1280)
    for colour in ((0x00, 0x72, 0xB2), (0x56, 0xB4, 0xE9), (0xE6, 0x9F, 0x00)):  # parameter, optimizer, activation
        share = (pixels == colour).all(axis=1).mean()
        assert share > 0.02


def test_the_words_are_those_of_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.text import Text

    made = figure_of("two steps", tmp_path / "a.png", monkeypatch)
    words = {t.get_text() for t in made.figure.findobj(Text)}
    replayed = replay(SCENES["two steps"][0])
    allocated, reserved = (f"{p.bytes / GIB:.2f} GiB" for p in (replayed.peak_allocated, replayed.peak_reserved))
    assert f"Peak {allocated} allocated, {reserved} reserved" in words
    assert f"{allocated} allocated at the peak" in words
    assert "in the backward pass, step 1" in words
    assert "my_project/train.py:88" in words
    assert {"activation", "parameter", "optimizer", "forward", "step 0", "step 1", "capacity 17.00 GiB"} <= words
    assert "allocation events (no time is predicted)" in words


def test_more_than_the_device_holds_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENES, "over", (transformer(8, 2), {"capacity": 8 * GIB}, None))
    made = figure_of("over", tmp_path / "a.png", monkeypatch)
    assert any("more than the device holds" in t.get_text() for t in made.figure.texts)
    made = figure_of("out of memory", tmp_path / "a.png", monkeypatch)
    assert any(t.get_text().startswith("Out of memory: ") for t in made.figure.texts)


def test_an_svg_is_the_same_every_time(tmp_path: Path) -> None:
    recording = transformer(2, 1)
    for name in ("a.svg", "b.svg"):
        draw(recording, replay(recording), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.startswith("<?xml")


def test_a_hundred_thousand_events_take_seconds_at_most(tmp_path: Path) -> None:
    recording = transformer(2, 1, tail=100_000, hidden=MIB)
    replayed = replay(recording)
    start = time.monotonic()
    draw(recording, replayed, tmp_path / "a.svg")
    assert time.monotonic() - start < 15
    assert (tmp_path / "a.svg").stat().st_size < 2_000_000


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.txt"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    recording = rising(3)
    with pytest.raises(InputError, match=r"\.png, \.svg"):
        draw(recording, replay(recording), tmp_path / name)


def test_what_cannot_be_drawn_or_written_is_refused(tmp_path: Path) -> None:
    recording = rising(3)
    with pytest.raises(InputError, match="cannot be written: No such file"):
        draw(recording, replay(recording), tmp_path / "no" / "a.png")
    empty = Recording([], [], [Phase("load", 0, 0, 0)])
    nothing = Recording([Storage(0, "aten::empty", 0)], [0], [Phase("load", 0, 0, 0)])
    for recorded in (empty, nothing):
        with pytest.raises(InputError, match="allocates nothing"):
            draw(recorded, replay(recorded), tmp_path / "a.png")
    for capacity in (0, -1, math.nan, math.inf):
        with pytest.raises(InputError, match="capacity"):
            draw(recording, replay(recording), tmp_path / "a.png", capacity=capacity)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "foretell.report._trace_figure", raising=False)
    monkeypatch.delattr("foretell.report._trace_figure", raising=False)
    recording = rising(3)
    with pytest.raises(ExtraError, match=r"foretell\[plot\]"):
        draw(recording, replay(recording), tmp_path / "a.png")


def test_matplotlib_is_imported_only_to_draw_and_pyplot_never(tmp_path: Path) -> None:
    script = f"""
import sys
from foretell.report.trace_picture import draw
from foretell.trace.replay import replay
from foretell.trace.events import *
assert "matplotlib" not in sys.modules
r = Recording([Storage(9, "aten::mm", 0)], [0], [Phase("load", 0, 0, 0)])
draw(r, replay(r), {str(tmp_path / "a.png")!r})
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
    assert trace_picture.SUFFIXES == (".png", ".svg")
