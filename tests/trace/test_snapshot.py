"""What is written is a memory snapshot: PyTorch's own tools read it, and find in it the numbers of the replay."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import pickletools
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from foretell.cost.allocator import AllocatorSettings
from foretell.trace.events import Phase, Recording, Storage
from foretell.trace.measured import read_measured
from foretell.trace.model_check import check_model
from foretell.trace.replay import Replay, replay
from foretell.trace.snapshot import snapshot, write_snapshot
from small_trace import anything, transformer, waiting

MIB = 1 << 20
SETTINGS = {
    "default": AllocatorSettings(),
    "expandable": AllocatorSettings(expandable_segments=True),
    "max_split": AllocatorSettings(max_split_size_mb=64),
    "roundup": AllocatorSettings(roundup_power2_divisions=4),
}
RECORDINGS = {"transformer": transformer(4, 2, hidden=3 * MIB), "anything": anything(1500), "waiting": waiting(1500)}


@pytest.fixture(scope="module")
def viz() -> ModuleType:
    """torch's ``cuda/_memory_viz.py`` alone: it needs nothing else of torch, whose import takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        pytest.skip("torch is not installed")
    path = Path(found.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("memory_viz_of_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=[(r, s) for r in RECORDINGS for s in SETTINGS], ids="-".join)
def made(request: pytest.FixtureRequest) -> tuple[Recording, Replay, dict[str, Any]]:
    recording = RECORDINGS[request.param[0]]
    replayed = replay(recording, SETTINGS[request.param[1]])
    return recording, replayed, snapshot(recording, replayed)


Made = tuple[Recording, Replay, dict[str, Any]]


# -- PyTorch's tools ------------------------------------------------------------------------------------------


def test_torchs_summary_agrees(made: Made, viz: ModuleType) -> None:
    _, replayed, data = made
    summary = viz.segsum(data)  # adds up every segment, and stops where it is not the sum of its blocks
    said = dict(re.findall(r"^(segments|total_\w+): (\S+)", summary, re.MULTILINE))
    assert int(said["segments"]) == len(replayed.at_end)
    assert said["total_reserved"] == viz._format_size(int(replayed.reserved[-1]))
    assert said["total_allocated"] == viz._format_size(int(replayed.requested[-1]))
    assert sum(viz.calc_active(segment) for segment in data["segments"]) == replayed.allocated[-1]
    assert sum(segment["total_size"] for segment in data["segments"]) == replayed.reserved[-1]


def test_torchs_trace_has_every_event(made: Made, viz: ModuleType) -> None:
    recording, replayed, data = made
    text = viz.trace(data)
    assert f"{len(data['device_traces'][0])} entries" in text
    assert text.count("del ") == sum(entry < 0 for entry in recording.order)
    assert text.count(" = cudaMalloc(") == sum(e.action == "segment_alloc" for e in replayed.events)
    assert len(re.findall(r"^\w+ = (seg_|MEM|\w+)\S*\[", text, re.MULTILINE)) == len(recording.storages)


def test_torchs_flame_graphs_add_up(made: Made, viz: ModuleType) -> None:
    _, replayed, data = made
    for graph in (viz.memory, viz.segments):
        lines = [line.rsplit(" ", 1) for line in graph(data, format_flamegraph=str).splitlines()]
        assert sum(int(size) for _, size in lines) == replayed.reserved[-1]
        asked = sum(int(size) for stack, size in lines if "active_allocated" in stack and "<gaps>" not in stack)
        assert asked == replayed.requested[-1]
    viz.compare(data["segments"], data["segments"], format_flamegraph=str)


def test_torchs_plots_take_it(made: Made, viz: ModuleType) -> None:
    data = made[2]
    for page in (viz.trace_plot(data), viz.trace_plot(data, plot_segments=True), viz.segment_plot(data)):
        assert "snapshot.pickle" in page
    left = viz.filter_alloc_free_pairs(copy.deepcopy(data))["device_traces"][0]
    live = sum(1 if entry >= 0 else -1 for entry in made[0].order)
    assert sum(event["action"] == "alloc" for event in left) == live


PAGE = {
    *("PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET", "BININT", "BININT1"),
    *("BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "BINPUT"),
    *(
        "LONG_BINPUT",
        "SETITEMS",
        "SETITEM",
        "DICT",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "STOP",
        "EMPTY_TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "BINFLOAT",
    ),
}
"""Opcodes that torch's ``utils/viz/MemoryViz.js`` reads, in protocols 2 to 4."""


def test_the_page_can_read_it(made: Made) -> None:
    recording, replayed, _ = made
    ops = list(pickletools.genops(write_snapshot(recording, replayed)))
    assert {op.name for op, _, _ in ops} <= PAGE
    assert ops[0][1] in (2, 3, 4)
    numbers = [arg for _, arg, _ in ops if isinstance(arg, int)]
    assert max(numbers) < 2**53  # its numbers are doubles


def test_the_page_finds_a_category_for_everything(made: Made) -> None:
    trace = made[2]["device_traces"][0]
    found = {event["category"] for event in trace if "category" in event}
    assert "unknown" in found
    assert len(found) <= 10  # its colours
    assert all("category" in event for event in trace if event["action"] == "alloc")


# -- what is in it --------------------------------------------------------------------------------------------


def test_it_is_read_back_to_the_byte(made: Made) -> None:
    recording, replayed, _ = made
    measured = read_measured(write_snapshot(recording, replayed), "a")
    assert measured.whole
    assert measured.recording.order == recording.order
    assert [s.bytes for s in measured.recording.storages] == [s.bytes for s in recording.storages]
    for name in ("allocated", "requested", "reserved"):
        assert (getattr(measured, name) == getattr(replayed, name)).all(), name
    assert measured.settings.max_split_size_mb == replayed.settings.max_split_size_mb
    assert measured.settings.divisions == replayed.settings.divisions
    check = check_model(measured)
    assert check.peak_reserved.difference == check.peak_allocated.difference == check.unknown_cached == 0
    if replayed.settings.expandable_segments:
        assert check.followed is None
    else:
        assert check.followed is not None
        assert check.followed.same_block == check.followed.allocations == len(recording.storages)


def test_frames_name_operator_line_and_module() -> None:
    storage = Storage(5 * MIB, "aten::mm", 1, "layers.3.mlp", "pkg/model.py:41", 0, "activation")
    recording = Recording([storage], [0], [Phase("load", 0, 0, 0), Phase("forward", 2, 0, 0)])
    data = snapshot(recording, replay(recording))
    (block,) = [b for s in data["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert block["frames"] == [
        {"filename": "pkg/model.py", "line": 41, "name": "aten::mm"},
        {"filename": "layers.3.mlp", "line": 0, "name": "forward, step 2"},
    ]
    assert block["requested_size"] == block["size"] == 5 * MIB
    assert data["device_traces"][0][-1]["frames"] is block["frames"]


def test_phases_are_annotations() -> None:
    recording = transformer(2, 1, hidden=MIB)
    data = snapshot(recording, replay(recording))
    notes = data["external_annotations"]
    assert [(n["name"], n["stage"]) for n in notes[:4]] == [
        ("load", "START"),
        ("load", "END"),
        ("forward 0.0", "START"),
        ("forward 0.0", "END"),
    ]
    assert notes[-1]["time_us"] == len(recording.order)


def test_nothing_is_nowhere() -> None:
    recording = Recording([Storage(0, "aten::empty", 0), Storage(8, "aten::empty", 0)], [0, 1, ~0], [Phase("load", 0, 0, 0)])
    trace = snapshot(recording, replay(recording))["device_traces"][0]
    assert [event["action"] for event in trace] == ["segment_alloc", "alloc"]


def test_the_end_of_memory_is_an_event(viz: ModuleType) -> None:
    recording = Recording([Storage(n * MIB, "aten::mm", 0) for n in (30, 40, 50)], [0, ~0, 1, 2], [Phase("forward", 0, 0, 0)])
    replayed = replay(recording, capacity=80 * MIB)
    assert replayed.oom is not None
    data = snapshot(recording, replayed)
    actions = [event["action"] for event in data["device_traces"][0]]
    assert actions[:5] == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_alloc"]
    assert actions[-2:] == ["segment_free", "oom"]  # what was free was given back first, in vain
    assert data["device_traces"][0][-1]["device_free"] == 40 * MIB
    assert "raise OutOfMemoryError # 50.0MiB requested, 40.0MiB free" in viz.trace(data)
    assert read_measured(pickle.dumps(data), "a").notes == ("The allocator ran out of memory 1 times.",)


def test_no_events_are_a_snapshot_too(viz: ModuleType) -> None:
    recording = Recording([], [], [Phase("load", 0, 0, 0)])
    data = snapshot(recording, replay(recording))
    assert data["segments"] == []
    assert "segments: 0" in viz.segsum(data)
