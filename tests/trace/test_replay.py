"""Recordings replayed: levels, peaks, segments, the end of memory, and how much of it is enough."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.cost.allocator import AllocatorSettings, CachingAllocator, Chunk, DeviceFullError
from foretell.errors import InputError
from foretell.trace.events import Phase, Recording, Storage
from foretell.trace.oom import format_size
from foretell.trace.replay import BlockState, Fragmentation, Peak, Replay, SegmentEvent, SegmentState, replay, required_capacity
from small_trace import transformer

MIB = 1 << 20
GIB = 1 << 30


def storage(nbytes: int, stream: int = 0) -> Storage:
    return Storage(nbytes, "aten::mm", 0, "model.layers.0", "model.py:7", stream)


def recording(sizes: list[float], order: list[int], starts: tuple[int, ...] = (0,), streams: tuple[int, ...] = ()) -> Recording:
    """Sizes in MiB; a phase begins at each of ``starts``."""
    made = [storage(int(size * MIB), stream) for size, stream in itertools.zip_longest(sizes, streams, fillvalue=0)]
    return Recording(made, order, [Phase("other", 0, i, start) for i, start in enumerate(starts)])


# -- levels ----------------------------------------------------------------------------------------------------


def test_levels_after_each_event() -> None:
    seen = replay(recording([12.5, 4, 19.5], [0, 1, ~0, 2, ~1]))
    assert (seen.allocated / MIB).tolist() == [12.5, 16.5, 4, 24, 20]  # the last block keeps the 0.5 that is left of 20
    assert (seen.requested / MIB).tolist() == [12.5, 16.5, 4, 23.5, 19.5]
    assert (seen.reserved / MIB).tolist() == [14, 34, 34, 54, 54]
    assert seen.peak_allocated == Peak(24 * MIB, 3)
    assert seen.peak_reserved == Peak(54 * MIB, 3)
    assert (seen.block / MIB).tolist() == [12.5, 4, 20]
    assert seen.addresses.tolist() == [seen.address[i] for i in (0, 1, 0, 2, 1)]
    assert (seen.retries, seen.oom) == (0, None)


def test_a_storage_of_no_bytes_is_nothing() -> None:
    seen = replay(recording([0, 1], [0, 1, ~0, ~1]))
    assert seen.allocated.tolist() == [0, MIB, MIB, 0]
    assert seen.address[0] == -1
    assert seen.block[0] == 0
    assert seen.addresses.tolist() == [-1, seen.address[1], -1, seen.address[1]]


def test_a_storage_can_come_back() -> None:
    seen = replay(recording([3, 3], [0, 1, ~0, ~1, 0]))
    assert (seen.allocated / MIB).tolist() == [3, 6, 3, 0, 3]
    assert [(block.storage, block.size / MIB) for segment in seen.at_end for block in segment.blocks] == [(0, 3), (None, 17)]


def test_a_recording_without_events() -> None:
    seen = replay(Recording([], [], [Phase("load", 0, 0, 0)]))
    assert seen.peak_allocated == Peak(0, None)
    assert seen.at_peak == ()
    assert seen.fragmentation == Fragmentation(0, 0)
    assert [(p.allocated, p.reserved, p.requested) for p in seen.phases] == [(0, 0, 0)]
    assert required_capacity(seen.recording) == 0


def test_a_phase_begins_with_what_the_one_before_left() -> None:
    seen = replay(recording([30, 10, 50], [0, 1, ~0, 2, ~1], starts=(0, 2, 3, 5)))
    assert [p.phase.start for p in seen.phases] == [0, 2, 3, 5]
    assert [p.allocated / MIB for p in seen.phases] == [40, 40, 60, 50]
    assert [p.reserved / MIB for p in seen.phases] == [40, 40, 90, 90]


def test_streams_do_not_share() -> None:
    seen = replay(recording([30, 30, 30], [0, ~0, 1, ~1, 2], streams=(0, 1, 0)))
    assert seen.reserved[-1] == 60 * MIB
    assert seen.address[2] == seen.address[0]
    assert {segment.stream for segment in seen.at_end} == {0, 1}


# -- segments --------------------------------------------------------------------------------------------------


def test_segments_and_blocks_at_the_peak_and_at_the_end() -> None:
    seen = replay(recording([5, 30, 7], [0, 1, 2, ~1]))
    low, high = (int(a) for a in (seen.address[1], seen.address[0]))
    used = BlockState(high, 5 * MIB, 5 * MIB, 0), BlockState(high + 5 * MIB, 7 * MIB, 7 * MIB, 2)
    large = SegmentState(
        high, 20 * MIB, 0, small=False, expandable=False, blocks=(*used, BlockState(high + 12 * MIB, 8 * MIB, 0, None))
    )
    assert seen.at_peak == (
        SegmentState(low, 30 * MIB, 0, small=False, expandable=False, blocks=(BlockState(low, 30 * MIB, 30 * MIB, 1),)),
        large,
    )
    assert seen.at_end[0].blocks == (BlockState(low, 30 * MIB, 0, None),)
    assert seen.at_end[1] == large
    assert seen.fragmentation == Fragmentation(8 * MIB, 8 * MIB)
    assert seen.events == (
        SegmentEvent(0, "segment_alloc", high, 20 * MIB, 0, small=False),
        SegmentEvent(1, "segment_alloc", low, 30 * MIB, 0, small=False),
    )


def test_an_expandable_segment_is_told_by_its_mapped_stretches() -> None:
    seen = replay(recording([20, 40, 20, 60], [0, 1, 2, ~1, 3]), AllocatorSettings(expandable_segments=True), capacity=100 * MIB)
    start = int(seen.address[0])
    assert [(s.address - start, s.size, s.expandable) for s in seen.at_end] == [
        (0, 20 * MIB, True),
        (60 * MIB, 80 * MIB, True),
    ]
    assert [(e.event, e.action, e.address - start, e.change) for e in seen.events] == [
        (0, "segment_map", 0, 20 * MIB),
        (1, "segment_map", 20 * MIB, 40 * MIB),
        (2, "segment_map", 60 * MIB, 20 * MIB),
        (4, "segment_unmap", 20 * MIB, -40 * MIB),
        (4, "segment_map", 80 * MIB, 60 * MIB),
    ]
    assert [s.size for s in seen.segments(2)] == [80 * MIB]
    assert seen.retries == 1


# -- the end of memory -----------------------------------------------------------------------------------------


def test_the_message_is_that_of_pytorch() -> None:
    made = recording([600, 1.5, 900.25, 1200], [0, 1, 2, ~2, 3])
    seen = replay(made, capacity=int(1.75 * GIB), total=2 * GIB)
    assert (seen.allocated / MIB).tolist() == [600, 601.5, 1501.75, 601.5]
    assert seen.oom is not None
    assert (seen.oom.event, seen.oom.index, seen.oom.storage) == (4, 3, made.storages[3])
    assert (seen.oom.tried, seen.oom.allocated, seen.oom.reserved) == (1200 * MIB, int(601.5 * MIB), 620 * MIB)
    assert seen.oom.message(context=256 * MIB) == (
        "CUDA out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 2.00 GiB of which 1.14 GiB is free. "
        "Including non-PyTorch memory, this process has 876.00 MiB memory in use. "
        "Of the allocated memory 601.50 MiB is allocated by PyTorch, and 18.50 MiB is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    assert "GPU 3 has a total capacity of 2.00 GiB" in seen.oom.message(gpu=3)
    assert [segment.size for segment in seen.at_end] == [20 * MIB, 600 * MIB]  # by address; the 902 were given back
    assert seen.events[-1].event == 4
    assert seen.retries == 1


def test_a_device_of_unknown_size_is_one_of_the_capacity_and_the_context() -> None:
    oom = replay(recording([100], [0]), capacity=64 * MIB).oom
    assert oom is not None
    assert "total capacity of 80.00 MiB of which 64.00 MiB is free" in oom.message(context=16 * MIB)


def test_a_memory_fraction_is_said_as_allowed() -> None:
    allowed = AllocatorSettings(per_process_memory_fraction=0.25)
    oom = replay(recording([100, 200], [0, 1]), allowed, total=1000 * MIB).oom
    assert oom is not None
    text = oom.message(context=100 * MIB)
    assert "of which 800.00 MiB is free" in text
    assert "this process has 200.00 MiB memory in use. 250.00 MiB allowed; Of the allocated memory 100.00 MiB" in text


def test_phases_that_did_not_begin_have_no_peak() -> None:
    seen = replay(recording([30, 40, 50], [0, 1, ~0, 2, ~1], starts=(0, 2, 3, 4)), capacity=80 * MIB)
    assert seen.oom is not None
    assert seen.oom.event == 3
    assert [p.phase.start for p in seen.phases] == [0, 2, 3]
    assert len(seen.allocated) == 3


def test_bad_limits_are_refused() -> None:
    made = recording([1], [0])
    with pytest.raises(InputError, match="capacity"):
        replay(made, capacity=-1)
    with pytest.raises(InputError, match="per_process_memory_fraction:0.5"):
        replay(made, AllocatorSettings(per_process_memory_fraction=0.5))
    with pytest.raises(InputError, match="per_process_memory_fraction:0.5"):
        required_capacity(made, AllocatorSettings(per_process_memory_fraction=0.5))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"), (1024, "1024 bytes"), (1025, "1.00 KiB"), (MIB, "1024.00 KiB"), (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"), (GIB + 1, "1.00 GiB"), (1500 * MIB, "1.46 GiB"),
    ],
)  # fmt: skip
def test_sizes_as_pytorch_writes_them(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


# -- how much is enough ----------------------------------------------------------------------------------------


def test_less_than_the_reserved_peak_can_be_enough() -> None:
    made = recording([60, 80], [0, ~0, 1])
    assert replay(made).peak_reserved.bytes == 140 * MIB
    assert required_capacity(made) == 80 * MIB
    assert replay(made, capacity=80 * MIB).retries == 1


def test_expandable_segments_need_no_more_than_their_granules() -> None:
    made = recording([30, 35], [0, 1])
    assert required_capacity(made) == 66 * MIB  # 30 and 36
    assert required_capacity(made, AllocatorSettings(expandable_segments=True)) == 80 * MIB  # 40, and 25 more in 40


def test_more_memory_can_be_less_enough() -> None:
    made = recording([5, 20, 5, 24, 11, 24], [0, ~0, 1, 2, ~2, ~1, 3, 4, 5, ~5])
    survives = {size for size in range(56, 90, 2) if replay(made, capacity=size * MIB).oom is None}
    assert survives == {60, 62, *range(68, 90, 2)}
    assert required_capacity(made) == 68 * MIB


def test_no_capacity_is_enough_where_a_fraction_forbids_it() -> None:
    made = recording([60], [0])
    assert required_capacity(made, AllocatorSettings(per_process_memory_fraction=0.5), total=100 * MIB) is None
    assert required_capacity(made, AllocatorSettings(per_process_memory_fraction=0.6), total=100 * MIB) == 60 * MIB


# -- for all recordings ----------------------------------------------------------------------------------------

SETTINGS = [
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(max_split_size_mb=24),
    AllocatorSettings(roundup_power2_divisions=4),
    AllocatorSettings(per_process_memory_fraction=0.9, garbage_collection_threshold=0.05),
]
TOTAL = 10 * GIB


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    sizes = draw(st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 40 * MIB)), min_size=1, max_size=40))
    streams = draw(st.integers(1, 2))
    rng = draw(st.randoms(use_true_random=False))
    order: list[int] = []
    live: list[int] = []
    for i in range(len(sizes)):
        order.append(i)
        live.append(i)
        while live and rng.random() < 0.45:
            order.append(~live.pop(rng.randrange(len(live))))
    return Recording([storage(size, i % streams) for i, size in enumerate(sizes)], order, [Phase("other", 0, 0, 0)])


def pieces(memory: CachingAllocator, stream: int) -> list[tuple[int, int]]:
    """Address and size of every free chunk of a stream."""
    free = [(chunk.address, chunk.size) for pool in memory.pools.values() for _, _, chunk in pool.chunks if pool.stream == stream]
    return sorted(free)


@given(recordings(), st.sampled_from(SETTINGS), st.sampled_from([None, 100 * MIB]))
def test_segments_are_those_of_the_allocator(made: Recording, chosen: AllocatorSettings, capacity: int | None) -> None:
    seen = replay(made, chosen, capacity=capacity, total=TOTAL)
    memory = CachingAllocator(chosen, capacity=capacity or math.inf, total=TOTAL)
    held: dict[int, Chunk] = {}
    for event, entry in enumerate(made.order):
        if seen.oom is not None and event == seen.oom.event:
            with pytest.raises(DeviceFullError):
                memory.malloc(made.storages[entry].bytes, made.storages[entry].stream)
            break
        if entry >= 0 and made.storages[entry].bytes:
            held[entry] = memory.malloc(made.storages[entry].bytes, made.storages[entry].stream)
        elif ~entry in held:
            memory.free(held.pop(~entry))
        assert (seen.allocated[event], seen.reserved[event]) == (memory.allocated, memory.reserved)
        assert seen.requested[event] == sum(made.storages[i].bytes for i in held)
        if event % 7 == 0:
            same_as(seen, event, memory, held)
    same_as(seen, None, memory, held)


def same_as(seen: Replay, event: int | None, memory: CachingAllocator, held: dict[int, Chunk]) -> None:
    """The segments of a replay are the allocator's."""
    told = seen.segments(event)
    for stream in (0, 1):
        free = [(b.address, b.size) for s in told if s.stream == stream for b in s.blocks if b.storage is None]
        assert free == pieces(memory, stream)
    used = {b.storage: (b.address, b.size) for s in told for b in s.blocks if b.storage is not None}
    assert used == {i: (chunk.address, chunk.size) for i, chunk in held.items()}
    assert sum(s.size for s in told) == memory.reserved
    assert all(sum(b.size for b in s.blocks) == s.size for s in told)


@settings(max_examples=60)
@given(recordings(), st.sampled_from(SETTINGS))
def test_the_required_capacity_is_enough_and_a_byte_less_is_not(made: Recording, chosen: AllocatorSettings) -> None:
    enough = required_capacity(made, chosen, total=TOTAL)
    assert enough is not None
    whole = replay(made, chosen, total=TOTAL)
    assert whole.requested.max() <= enough <= whole.peak_reserved.bytes
    assert replay(made, chosen, capacity=enough, total=TOTAL).oom is None
    if enough:
        assert replay(made, chosen, capacity=enough - 1, total=TOTAL).oom is not None


# -- time ------------------------------------------------------------------------------------------------------


def test_40_000_events_are_replayed_in_a_quarter_of_a_second() -> None:
    """A quarter of a second on a core whose loop of half a million additions takes 20 ms; as a multiple of that loop."""
    made = transformer(layers=64, chunks=6)
    assert len(made.order) > 39_000
    spent, loop = [], []
    for _ in range(3):
        start = time.process_time()
        sum(i & 7 for i in range(500_000))
        middle = time.process_time()
        seen = replay(made)
        loop.append(middle - start)
        spent.append(time.process_time() - middle)
    assert min(spent) < 12 * min(loop)
    start = time.process_time()
    enough = required_capacity(made)
    assert time.process_time() - start < 130 * min(loop)
    assert enough is not None
    assert seen.peak_allocated.bytes <= enough < seen.peak_reserved.bytes
