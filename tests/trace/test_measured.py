"""A measured snapshot: its numbers, its history taken back and played forward, and everything that it may be instead."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

from foretell.errors import ConfigError, ForetellError, InputError
from foretell.trace import measured as module
from foretell.trace.events import Recording
from foretell.trace.measured import Measured, Totals, read_measured
from foretell.trace.model_check import check_model
from foretell.trace.replay import replay
from foretell.trace.snapshot import snapshot
from foretell.trace.stacks import Stacks
from small_trace import anything, transformer

MIB = 1 << 20
BASE = 1 << 40


def block(size: int, requested: int | None = None, state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "requested_size": size if requested is None else requested, "state": state, "frames": []}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"address": address, "total_size": sum(b["size"] for b in blocks), "blocks": list(blocks), "stream": 0, **more}


def event(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}


def read(segments: list[Any], *traces: list[Any], **more: Any) -> Measured:
    data = {"segments": segments, "device_traces": list(traces), **more}
    return read_measured(pickle.dumps(data), "run.pickle")


def freed(addr: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", addr, size), event("free_completed", addr, size)]


# -- a history by hand ----------------------------------------------------------------------------------------


def test_a_history_that_can_be_checked_by_hand() -> None:
    made = read(
        [segment(BASE, block(12 * MIB), block(8 * MIB, 0, "inactive"))],
        [
            event("segment_alloc", BASE, 20 * MIB),
            event("alloc", BASE, 12 * MIB),
            event("alloc", BASE + 12 * MIB, 7 * MIB + 100),  # the rest of the segment is not worth splitting off
            *freed(BASE + 12 * MIB, 7 * MIB + 100),
        ],
    )
    assert made.end == Totals(12 * MIB, 12 * MIB, 20 * MIB)
    assert made.peak == Totals(20 * MIB, 19 * MIB + 100, 20 * MIB)
    assert made.start == Totals(0, 0, 0)
    assert made.whole
    assert made.recording.order == [0, 1, ~1]
    assert made.allocated.tolist() == [12 * MIB, 20 * MIB, 12 * MIB]
    assert made.peak_at == 1
    assert made.notes == ()


def test_what_was_there_before_is_taken_back() -> None:
    made = read(
        [segment(BASE, block(20 * MIB, 0, "inactive")), segment(BASE + (1 << 30), block(2 * MIB, 0, "inactive"))],
        [
            *freed(BASE, 5 * MIB),  # allocated before the record began
            event("segment_alloc", BASE + (1 << 30), 2 * MIB),
            event("alloc", BASE + (1 << 30), 100),
            *freed(BASE + (1 << 30), 100),
        ],
    )
    assert made.start == Totals(5 * MIB, 5 * MIB, 20 * MIB)
    assert made.peak.reserved == 22 * MIB
    assert not made.whole
    assert made.before == 1
    assert [(p.name, p.start) for p in made.recording.phases] == [("load", 0), ("other", 1)]
    assert [s.phase for s in made.recording.storages] == [0, 1]


def test_a_block_that_waits_for_another_stream_is_pending() -> None:
    made = read(
        [
            segment(BASE, block(10 * MIB, None, "active_pending_free"), block(10 * MIB)),
            segment(BASE + (1 << 30), block(2 * MIB, 0, "inactive")),
        ],
        [
            event("segment_alloc", BASE, 20 * MIB),
            event("alloc", BASE, 10 * MIB),
            event("alloc", BASE + 10 * MIB, 10 * MIB),
            event("free_requested", BASE, 10 * MIB),
            event("segment_alloc", BASE + (1 << 30), 2 * MIB),
            event("alloc", BASE + (1 << 30), 9),
            *freed(BASE + (1 << 30), 9),
        ],
    )
    assert made.end.allocated == made.pending == 10 * MIB
    assert made.peak.allocated == 20 * MIB
    assert made.allocated.tolist() == [10 * MIB, 20 * MIB, 10 * MIB + 512, 10 * MIB]
    assert made.recording.order == [0, 1, 2, ~2]  # it cannot be used again yet


@pytest.mark.parametrize("missing", ["free_requested", "free_completed"])
def test_one_kind_of_free_is_enough(missing: str) -> None:
    recording = transformer(2, 1, hidden=MIB)
    data = snapshot(recording, replay(recording))
    whole = read_measured(pickle.dumps(data), "a")
    data["device_traces"] = [[e for e in data["device_traces"][0] if e["action"] != missing]]
    made = read_measured(pickle.dumps(data), "a")
    assert made.recording.order == whole.recording.order
    assert (made.allocated == whole.allocated).all()


def test_streams_and_private_pools_are_apart() -> None:
    made = read(
        [
            segment(BASE, block(2 * MIB)),
            segment(BASE + 4 * MIB, block(2 * MIB, MIB), stream=77),
            segment(BASE + 8 * MIB, block(2 * MIB, 0, "inactive"), segment_pool_id=(0, 3)),
        ]
    )
    assert made.by_stream == {
        0: Totals(2 * MIB, 2 * MIB, 2 * MIB),
        1: Totals(2 * MIB, MIB, 2 * MIB),
        2: Totals(0, 0, 2 * MIB),
    }


def test_no_history_is_said() -> None:
    made = read([segment(BASE, block(2 * MIB))])
    assert made.peak == made.end
    assert made.notes == ("No history was recorded (torch.cuda.memory._record_memory_history): only the end is known.",)
    assert len(made.recording.order) == 1
    empty = read([])
    assert empty.peak_at is None
    assert empty.end == Totals(0, 0, 0)
    assert check_model(empty).followed is None


def test_a_list_of_segments_alone_is_read() -> None:
    data = pickle.dumps([segment(BASE, block(2 * MIB))])  # torch.cuda.memory_snapshot()
    assert read_measured(data, "a").end.reserved == 2 * MIB


def test_a_record_that_stopped_early_says_so() -> None:
    made = read(
        [segment(BASE, block(20 * MIB, 0, "inactive"))],
        [event("segment_alloc", BASE, 20 * MIB), event("alloc", BASE, 5 * MIB)],
    )
    assert "1 blocks were freed without an event" in made.notes[0]


def test_unknown_events_are_named() -> None:
    made = read([], [event("segment_teleport", BASE, 1)])
    assert "1 events 'segment_teleport' are not known and were left out." in made.notes


@pytest.mark.parametrize(
    ("given", "expandable", "split", "note"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128"}, True, 128, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": 64 * MIB, "expandable_segments": False}, False, 64, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "roundup_power2_divisions": {}}, False, None, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "made_up:1"}, False, None, True),
        ({"max_split_size": 3}, False, None, True),
    ],
)
def test_settings(given: dict[str, Any], expandable: bool, split: int | None, note: bool) -> None:
    made = read([], allocator_settings=given)
    assert made.settings.expandable_segments == expandable
    assert made.settings.max_split_size_mb == split
    assert any("settings" in n for n in made.notes) == note


# -- histories without their beginning ------------------------------------------------------------------------


@pytest.mark.parametrize("recording", [transformer(4, 2, hidden=3 * MIB), anything(2500)], ids=["transformer", "anything"])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
def test_a_ring_that_lost_its_beginning_gives_the_same_levels(recording: Recording, share: float) -> None:
    replayed = replay(recording)
    data = snapshot(recording, replayed)
    trace = data["device_traces"][0]
    data["device_traces"] = [trace[int(len(trace) * share) :]]
    made = read_measured(pickle.dumps(data), "a")
    kept = len(made.recording.order) - made.before
    assert 0 < kept < len(recording.order)
    assert (made.reserved[made.before :] == replayed.reserved[-kept:]).all()
    assert (made.requested[made.before :] == replayed.requested[-kept:]).all()
    assert np.abs(made.allocated[made.before :] - replayed.allocated[-kept:]).max() == 0
    assert made.notes == ()
    followed = check_model(made).followed
    assert followed is not None
    assert followed.same_block == followed.allocations > 0
    assert followed.first_difference is None
    assert followed.peak_reserved.difference == followed.end_reserved.difference == 0


def test_a_model_that_decides_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = anything(2500)
    made = read_measured(pickle.dumps(snapshot(recording, replay(recording))), "a")
    monkeypatch.setattr("foretell.cost.allocator.SMALL", 4 * MIB)
    followed = check_model(made).followed
    assert followed is not None
    assert followed.same_block < followed.allocations
    assert followed.first_difference is not None


def test_the_model_from_empty_does_not_know_what_was_cached() -> None:
    recording = transformer(4, 2, hidden=3 * MIB)
    replayed = replay(recording)
    data = snapshot(recording, replayed)
    trace = data["device_traces"][0]
    data["device_traces"] = [trace[int(len(trace) * 0.9) :]]
    check = check_model(read_measured(pickle.dumps(data), "a"))
    assert check.unknown_cached > 0
    assert check.peak_reserved.difference < 0
    assert check.peak_reserved.relative is not None


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (7, "no dictionary"),
        ("text", "no dictionary"),
        ({}, "segments"),
        ({"segments": {}}, "segments is no list"),
        ({"segments": [7]}, r"Expected `object`, got `int` - at `\$\.segments\[0\]`"),
        ({"segments": [{"address": 1}]}, r"missing required field `total_size` - at `\$\.segments\[0\]`"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": "big"}]]}, r"device_traces\[0\]\[0\]\.size"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": -1}]]}, r"device_traces\[0\]\[0\]\.size"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": 2**80}]]}, r"device_traces\[0\]\[0\]\.size"),
        ({"segments": [], "device_traces": [[event("alloc", BASE, 2**61)] * 3]}, "more than any device"),
        ({"segments": [segment(BASE, block(2 * MIB)) | {"total_size": 5}]}, r"segments\[0\]\.total_size=5 is not the sum"),
        ({"segments": [segment(BASE, block(2 * MIB)), segment(BASE + MIB, block(2 * MIB))]}, r"segments\[1\]\.address.*overlaps"),
    ],
)
def test_what_is_no_snapshot_says_where(data: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        read_measured(pickle.dumps(data), "run.pickle")
    assert str(caught.value).startswith("run.pickle: ")


def test_one_list_a_million_times_is_counted_and_not_walked() -> None:
    trace = [event("alloc", BASE, 1)] * 10_000
    data = pickle.dumps({"segments": [], "device_traces": [trace] * 10_000})
    with pytest.raises(ConfigError, match=f"100010000 events and blocks, more than {module.LIMIT_EVENTS}"):
        read_measured(data, "a")


def test_the_device_must_be_said_where_there_are_several() -> None:
    segments = [segment(BASE, block(2 * MIB), device=0), segment(BASE, block(20 * MIB), device=3)]
    data = pickle.dumps({"segments": segments, "device_traces": [[], [], [], []]})
    with pytest.raises(InputError, match=r"allowed: 0, 3"):
        read_measured(data, "a")
    with pytest.raises(InputError, match=r"device=1 is not in the snapshot; allowed: 0, 3"):
        read_measured(data, "a", device=1)
    assert read_measured(data, "a", device=3).end.reserved == 20 * MIB
    assert read_measured(data, "a", device=0).end.reserved == 2 * MIB


def test_any_contradiction_is_an_error_of_ours_or_a_note() -> None:
    recording = anything(300)
    data = snapshot(recording, replay(recording))
    chance = random.Random(3)  # noqa: S311  # damage, no secrets
    noted = 0
    for _ in range(60):
        trace = [dict(e) for e in data["device_traces"][0]]
        for _ in range(chance.randint(1, 6)):
            kind = chance.randrange(4)
            at = chance.randrange(len(trace))
            if kind == 0:
                del trace[at]
            elif kind == 1:
                trace[at]["addr"] = chance.choice(trace)["addr"] + chance.choice([0, 512, -512, MIB])
            elif kind == 2:
                trace[at]["size"] = chance.choice([0, 1, 2**40, chance.choice(trace)["size"]])
            else:
                trace[at], trace[0] = trace[0], trace[at]
        try:
            made = read_measured(pickle.dumps(data | {"device_traces": [trace]}), "a")
            check_model(made)
        except ForetellError:
            continue
        noted += bool(made.notes)
    assert noted > 20


# -- stacks ---------------------------------------------------------------------------------------------------


def frame(name: str, filename: str = "??", line: int = 0) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([], ("", "")),
        (None, ("", "")),
        ([7, {"name": 1}], ("", "")),
        ([frame("at::_ops::empty_strided::call(...)")], ("aten::empty_strided", "")),
        (
            [frame("at::_ops::empty_strided::call(...)"), frame("at::_ops::mm::call(...)"), frame("at::_ops::linear::call(...)")],
            ("aten::mm", ""),
        ),
        (
            [
                frame("torch::unwind::unwind()"),
                frame("forward", "/x/site-packages/torch/nn/modules/linear.py", 5),
                frame("forward", "/x/site-packages/transformers/models/llama/modeling_llama.py", 176),
                frame("main", "/home/me/train.py", 9),
            ],
            ("", "transformers/models/llama/modeling_llama.py:176"),
        ),
        ([frame("main", "/a/b/c/d/train.py", 9)], ("", "c/d/train.py:9")),
        ([frame("<module>", "<ipython-input-3-abc>", 2)], ("", "<ipython-input-3-abc>:2")),
    ],
)
def test_places_of_stacks(frames: Any, place: tuple[str, str]) -> None:
    assert Stacks().place(frames) == place
