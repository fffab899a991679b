"""A measured run beside a predicted one: what only one side has is named, and nothing else."""

from __future__ import annotations

import json

import msgspec

from foretell.trace.compare import compare
from foretell.trace.events import Phase, Recording, Storage
from foretell.trace.measured import Measured, read_measured
from foretell.trace.model_check import Level
from foretell.trace.replay import replay
from foretell.trace.snapshot import write_snapshot
from small_trace import transformer

MIB = 1 << 20


def measured(recording: Recording) -> Measured:
    return read_measured(write_snapshot(recording, replay(recording)), "run.pickle")


def held(*storages: Storage) -> Recording:
    """All of them at once, in one forward pass."""
    return Recording(list(storages), list(range(len(storages))), [Phase("forward", 3, 0, 0)])


def one(size: int, line: str, op: str = "aten::mm") -> Storage:
    return Storage(size, op, 0, "layer", line, 0, "activation")


def test_a_prediction_that_is_right_has_no_difference() -> None:
    recording = transformer(4, 2, hidden=3 * MIB)
    replayed = replay(recording)
    made = compare(measured(recording), recording, replayed)
    assert made.one_sided == ()
    assert made.peak_allocated == Level(replayed.peak_allocated.bytes, replayed.peak_allocated.bytes)
    assert made.peak_reserved.difference == made.peak_requested.difference == 0
    assert made.same == replayed.requested[replayed.peak_allocated.event]
    assert made.predicted_phase == "backward, step 1"
    assert made.notes == ()


def test_what_only_one_side_has_is_named_by_size_and_line() -> None:
    run = held(one(30 * MIB, "a.py:1"), one(30 * MIB, "a.py:1"), one(30 * MIB, "a.py:2"), one(8 * MIB, "a.py:3", "aten::silu"))
    ours = held(one(30 * MIB, "a.py:1"), one(16 * MIB, "a.py:3", "aten::silu"), one(4 * MIB, "a.py:4"))
    made = compare(measured(run), ours, replay(ours))
    shown = [(g.side, g.size, g.count, g.line, g.bytes) for g in made.one_sided]
    assert shown == [
        ("measured", 30 * MIB, 1, "a.py:1", 30 * MIB),
        ("measured", 30 * MIB, 1, "a.py:2", 30 * MIB),
        ("predicted", 16 * MIB, 1, "a.py:3", 16 * MIB),
        ("measured", 8 * MIB, 1, "a.py:3", 8 * MIB),
        ("predicted", 4 * MIB, 1, "a.py:4", 4 * MIB),
    ]
    assert made.same == 30 * MIB
    predicted = next(g for g in made.one_sided if g.side == "predicted")
    assert (predicted.op, predicted.module, predicted.category) == ("aten::silu", "layer", "activation")
    assert next(g for g in made.one_sided if g.side == "measured").category == ""  # a snapshot does not tell
    parts = {side: sum(g.bytes for g in made.one_sided if g.side == side) for side in ("measured", "predicted")}
    assert parts["predicted"] - parts["measured"] == made.peak_requested.difference


def test_blocks_of_one_size_match_wherever_they_were_made() -> None:
    run, ours = held(one(30 * MIB, "")), held(one(30 * MIB, "pkg/model.py:7"))  # backward passes have no line in a snapshot
    made = compare(measured(run), ours, replay(ours))
    assert made.one_sided == ()
    assert made.same == 30 * MIB


def test_the_line_decides_which_of_equal_blocks_is_left() -> None:
    run = held(one(30 * MIB, "me/pkg/model.py:7"), one(30 * MIB, "me/pkg/model.py:9"))
    ours = held(one(30 * MIB, "other/pkg/model.py:9"))
    (left,) = compare(measured(run), ours, replay(ours)).one_sided
    assert left.line == "me/pkg/model.py:7"


def test_the_smallest_groups_are_summed_up() -> None:
    run, ours = held(*(one((i + 1) * MIB, f"a.py:{i}") for i in range(9))), held(one(100 * MIB, "a.py:1"))
    made = compare(measured(run), ours, replay(ours), most=4)
    assert len(made.one_sided) == 4
    assert made.notes == (f"6 smaller groups of one-sided blocks, {sum(range(1, 7)) * MIB} bytes in all, are not listed.",)


def test_it_can_be_printed_as_json() -> None:
    recording = transformer(1, 1, hidden=MIB)
    made = compare(measured(recording), recording, replay(recording))
    assert json.loads(msgspec.json.encode(made))["peak_allocated"] == {
        "measured": made.peak_allocated.measured,
        "model": made.peak_allocated.model,
    }


def test_nothing_beside_nothing() -> None:
    empty = Recording([], [], [Phase("load", 0, 0, 0)])
    made = compare(measured(empty), empty, replay(empty))
    assert made.one_sided == ()
    assert made.predicted_phase == ""
    assert made.peak_allocated.relative is None
