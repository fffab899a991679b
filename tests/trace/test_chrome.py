"""The trace for Perfetto: counters that lose no peak, phases as slices, and nothing that claims to be a time."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from foretell.trace.chrome import POINTS, write_chrome
from foretell.trace.events import CATEGORIES, Phase, Recording, Storage
from foretell.trace.levels import stretches, thin
from foretell.trace.replay import replay
from small_trace import anything, transformer

MIB = 1 << 20


def counters(events: list[dict[str, Any]]) -> dict[str, list[tuple[int, dict[str, int]]]]:
    out = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            out[event["name"]].append((event["ts"], event["args"]))
    return out


def test_a_small_trace_has_every_level() -> None:
    recording = transformer(2, 2, hidden=MIB)
    replayed = replay(recording)
    document = json.loads(write_chrome(recording, replayed))
    tracks = counters(document["traceEvents"])
    assert set(tracks) == {"allocated", "reserved", "allocated by category"}
    for name, level in (("allocated", replayed.allocated), ("reserved", replayed.reserved)):
        shown, at = 0, dict(tracks[name])
        for event in range(len(level)):
            shown = at.get(event, {"bytes": shown})["bytes"]
            assert shown == level[event]
    for event, sizes in tracks["allocated by category"]:
        assert sum(sizes.values()) == replayed.allocated[event]
    assert set(tracks["allocated by category"][0][1]) < set(CATEGORIES)


def test_the_axis_is_said_to_be_no_time() -> None:
    recording = transformer(1, 1, hidden=MIB)
    document = json.loads(write_chrome(recording, replay(recording)))
    assert "no time is predicted" in document["otherData"]["unit of time"]
    assert document["otherData"]["torch"] == "2.13.0"
    (process,) = [e for e in document["traceEvents"] if e["name"] == "process_name"]
    assert "no time is predicted" in process["args"]["name"]


def test_phases_and_steps_are_slices() -> None:
    recording = transformer(1, 2, hidden=MIB, micro=2)
    events = json.loads(write_chrome(recording, replay(recording)))["traceEvents"]
    slices = [(e["name"], e["ts"], e["ts"] + e["dur"], e["args"]) for e in events if e["ph"] == "X" and e["tid"] == 2]
    assert [name for name, *_ in slices[:5]] == ["load", "forward", "backward", "forward", "backward"]
    assert slices[3][3] == {"step": 0, "micro": 1}
    assert [start for _, start, *_ in slices[1:]] == [end for *_, end, _ in slices[:-1]]
    steps = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert [name for name, *_ in steps] == ["step 0", "step 1"]
    assert steps[1][2] == len(recording.order)


def test_a_long_trace_is_thinned_out_and_keeps_its_peaks() -> None:
    recording = anything(60_000, streams=1)
    replayed = replay(recording)
    tracks = counters(json.loads(write_chrome(recording, replayed))["traceEvents"])
    for name, peak in (("allocated", replayed.peak_allocated), ("reserved", replayed.peak_reserved)):
        assert len(tracks[name]) <= POINTS
        assert (peak.event, {"bytes": peak.bytes}) in tracks[name]
    assert 10_000 < len(tracks["allocated by category"]) <= POINTS


def test_the_peak_names_its_owners() -> None:
    recording = Recording(
        [
            Storage(30 * MIB, "aten::empty", 0, "embed", "m.py:1", 0, "parameter"),
            *(Storage(20 * MIB, "aten::mm", 1, "layer", "m.py:2", 0, "activation") for _ in range(3)),
        ],
        [0, 1, 2, ~1, 3],
        [Phase("load", 0, 0, 0), Phase("forward", 4, 1, 1)],
    )
    events = json.loads(write_chrome(recording, replay(recording)))["traceEvents"]
    (peak,) = [e for e in events if e["ph"] == "i"]
    assert peak["ts"] == 2
    assert peak["name"] == "peak: 0.07 GiB allocated"
    assert peak["args"] == {
        "bytes": 70 * MIB,
        "phase": "forward",
        "step": 4,
        "micro": 1,
        "owners": [
            {
                "bytes": 40 * MIB,
                "count": 2,
                "category": "activation",
                "op": "aten::mm",
                "module": "layer",
                "line": "m.py:2",
            },
            {
                "bytes": 30 * MIB,
                "count": 1,
                "category": "parameter",
                "op": "aten::empty",
                "module": "embed",
                "line": "m.py:1",
            },
        ],
    }


def test_the_end_of_memory_is_an_instant() -> None:
    recording = transformer(4, 1, hidden=8 * MIB)
    replayed = replay(recording, capacity=700 * MIB)
    assert replayed.oom is not None
    events = json.loads(write_chrome(recording, replayed))["traceEvents"]
    (end,) = [e for e in events if e["name"] == "out of memory"]
    assert end["ts"] == replayed.oom.event
    assert end["args"]["message"].startswith("CUDA out of memory. Tried to allocate")


def test_nothing_at_all_is_a_trace() -> None:
    recording = Recording([], [], [Phase("load", 0, 0, 0)])
    assert counters(json.loads(write_chrome(recording, replay(recording)))["traceEvents"]) == {}


def test_thinning_keeps_the_ends_and_every_curves_extremes() -> None:
    recording = anything(5000)
    replayed = replay(recording)
    curves = [replayed.allocated, replayed.reserved]
    for most in (50, 500, 4999):
        kept = thin(curves, most)
        assert len(kept) <= most
        assert {0, len(recording.order) - 1} <= set(kept.tolist())
        for curve in curves:
            assert curve[kept].max() == curve.max()
    assert len(thin(curves, 5000)) == 5000


def test_phases_without_an_event_are_left_out() -> None:
    storages = [Storage(MIB, "aten::mm", 0)]
    phases = [Phase("load", 0, 0, 0), Phase("forward", 0, 0, 0), Phase("backward", 0, 0, 1), Phase("other", 0, 0, 2)]
    recording = Recording(storages, [0, ~0], phases)
    assert [(phase.name, end) for phase, end in stretches(recording, 2)] == [("forward", 1), ("backward", 2)]
    assert [(phase.name, end) for phase, end in stretches(recording, 1)] == [("forward", 1)]
