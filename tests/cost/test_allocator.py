"""The caching allocator: segment sizes, best fit, splitting, merging, ties and expandable segments, by hand."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.allocator import (
    MIB,
    Action,
    AllocatorSettings,
    CachingAllocator,
    Chunk,
    DeviceFullError,
    Segment,
    round_size,
)
from foretell.errors import InputError


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB, 12), (513 * MIB + 1, 514),
    ],
)  # fmt: skip
def test_segments_by_request(size: int, segment: int) -> None:
    memory = CachingAllocator()
    memory.malloc(size)
    assert memory.reserved == segment * MIB


def test_sizes_are_rounded_to_512_bytes() -> None:
    memory = CachingAllocator()
    memory.malloc(1)
    memory.malloc(513)
    assert memory.allocated == 512 + 1024
    assert memory.reserved == 2 * MIB


def test_a_large_block_is_split_only_when_more_than_a_mebibyte_is_left() -> None:
    memory = CachingAllocator()
    memory.free(memory.malloc(20 * MIB))
    whole = memory.malloc(19 * MIB)  # 1 MiB left: stays with the block
    assert whole.size == 20 * MIB
    memory.free(whole)
    part = memory.malloc(18 * MIB)
    assert part.size == 18 * MIB
    assert memory.malloc(2 * MIB).size == 2 * MIB  # the remainder serves it
    assert memory.reserved == 20 * MIB


def test_the_smallest_sufficient_block_is_taken() -> None:
    memory = CachingAllocator()
    big, small = memory.malloc(64 * MIB), memory.malloc(32 * MIB)
    memory.free(big)
    memory.free(small)
    assert memory.malloc(30 * MIB).address == small.address


def test_neighbours_merge_but_segments_do_not() -> None:
    memory = CachingAllocator()
    a, b = memory.malloc(30 * MIB), memory.malloc(30 * MIB)
    memory.free(a)
    memory.free(b)
    memory.malloc(60 * MIB)
    assert memory.reserved == 120 * MIB
    memory = CachingAllocator()
    memory.free(memory.malloc(60 * MIB))
    a, b = memory.malloc(30 * MIB), memory.malloc(30 * MIB)
    memory.free(a)
    memory.free(b)
    memory.malloc(60 * MIB)
    assert memory.reserved == 60 * MIB


@pytest.mark.parametrize(("descending", "first"), [(True, 1), (False, 0)])
def test_ties_go_to_the_lowest_address(*, descending: bool, first: int) -> None:
    memory = CachingAllocator(descending=descending)
    blocks = [memory.malloc(30 * MIB), memory.malloc(30 * MIB)]
    for block in blocks:
        memory.free(block)
    assert memory.malloc(30 * MIB).address == blocks[first].address


def test_streams_do_not_share_blocks() -> None:
    memory = CachingAllocator()
    memory.free(memory.malloc(30 * MIB, stream=1))
    memory.malloc(30 * MIB)
    assert memory.reserved == 60 * MIB


def test_expandable_segments_grow_from_the_free_end() -> None:
    memory = CachingAllocator(expandable=True)
    memory.free(memory.malloc(60 * MIB))
    memory.malloc(100 * MIB)
    assert memory.reserved == 100 * MIB


def test_a_shared_chunk_is_freed_by_its_last_holder() -> None:
    memory = CachingAllocator()
    chunk = memory.malloc(4 * MIB)
    chunk.refs += 1
    memory.free(chunk)
    assert memory.allocated == 4 * MIB
    memory.free(chunk)
    assert memory.allocated == 0


def test_a_full_device_gets_free_segments_back_before_it_fails() -> None:
    memory = CachingAllocator(capacity=100 * MIB)
    memory.free(memory.malloc(60 * MIB))
    memory.malloc(80 * MIB)  # 60 + 80 do not fit together
    assert (memory.reserved, memory.retries, memory.top) == (80 * MIB, 1, 80 * MIB)
    with pytest.raises(DeviceFullError, match="31457280 bytes do not fit"):
        memory.malloc(30 * MIB)


def test_split_segments_cannot_be_given_back() -> None:
    memory = CachingAllocator(capacity=100 * MIB)
    memory.free(memory.malloc(60 * MIB))
    memory.malloc(20 * MIB)
    with pytest.raises(DeviceFullError):
        memory.malloc(50 * MIB)


@given(st.lists(st.integers(1, 40 * MIB), max_size=60), st.booleans(), st.randoms(use_true_random=False))
def test_everything_freed_leaves_whole_segments(sizes: list[int], expandable: bool, random: object) -> None:
    memory = CachingAllocator(expandable=expandable)
    chunks = []
    for size in sizes:
        chunks.append(memory.malloc(size))
        assert memory.allocated <= memory.reserved
        if len(chunks) > 5:
            memory.free(chunks.pop(random.randrange(len(chunks))))  # type: ignore[attr-defined]
    for chunk in chunks:
        memory.free(chunk)
    assert memory.allocated == 0
    assert sum(size for pool in memory.pools.values() for size, _, _ in pool.chunks) == memory.reserved


# -- rounding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (5000, 4, 5120),  # 4096 to 8192 in steps of 1024
        (3 * MIB + 1, 4, 3 * MIB + MIB // 2),  # 2 to 4 MiB in steps of 512 KiB
        (3 * MIB + 1, 2, 4 * MIB),
        (4 * MIB, 4, 4 * MIB),  # a power of two stays
        (2048, 4, 2048), (2049, 4, 2560),  # only above 512 bytes a step
        (700, 8, 1024), (1, 8, 512), (511, 2, 512),
    ],
)  # fmt: skip
def test_steps_between_powers_of_two(size: int, divisions: int, rounded: int) -> None:
    settings = AllocatorSettings(roundup_power2_divisions=divisions)
    assert round_size(size, settings.divisions) == rounded
    assert CachingAllocator(settings).malloc(size).size == rounded


def test_divisions_by_interval_are_chosen_by_the_power_of_two_below_the_size() -> None:
    table = (2, 4, 8, *(0,) * 13)
    assert round_size(MIB + 1, table) == MIB + MIB // 2
    assert round_size(100_000, table) == 131_072  # below 1 MiB: the first interval's
    assert round_size(2 * MIB + 1, table) == 2 * MIB + MIB // 2
    assert round_size(4 * MIB + 1, table) == 4 * MIB + MIB // 2
    assert round_size(8 * MIB + 1, table) == 8 * MIB + 512
    assert round_size((1 << 40) + 1, (0,) * 15 + (2,)) == 3 << 39  # above 64 GiB: the last interval's


def test_nothing_is_given_the_smallest_block() -> None:
    assert CachingAllocator().malloc(0).size == 512


# -- blocks that are never split -------------------------------------------------------------------------------

NO_SPLIT = AllocatorSettings(max_split_size_mb=40)


def cached(settings: AllocatorSettings, *sizes: int, **more: Any) -> CachingAllocator:
    memory = CachingAllocator(settings, **more)
    for chunk in [memory.malloc(size * MIB) for size in sizes]:
        memory.free(chunk)
    return memory


def test_a_block_above_the_limit_is_not_given_to_a_request_below_it() -> None:
    memory = cached(NO_SPLIT, 100)
    assert memory.malloc(30 * MIB).size == 30 * MIB
    assert memory.reserved == 130 * MIB


def test_a_block_above_the_limit_serves_whole_what_is_less_than_20_mib_smaller() -> None:
    memory = cached(NO_SPLIT, 100)
    assert memory.malloc(80 * MIB + 512).size == 100 * MIB
    assert memory.reserved == 100 * MIB
    memory = cached(NO_SPLIT, 100)
    assert memory.malloc(80 * MIB).size == 80 * MIB
    assert memory.reserved == 180 * MIB


def test_how_much_smaller_can_be_set() -> None:
    memory = cached(AllocatorSettings(max_split_size_mb=40, max_non_split_rounding_mb=30), 100)
    assert memory.malloc(71 * MIB).size == 100 * MIB


def test_one_cached_block_that_is_large_enough_makes_room() -> None:
    memory = cached(NO_SPLIT, 60, 110, capacity=180 * MIB)
    memory.malloc(80 * MIB)  # 110 is 20 or more larger than 80, and there is no room for a new segment
    assert (memory.reserved, memory.retries) == (140 * MIB, 0)


def test_the_largest_cached_blocks_go_until_they_make_room() -> None:
    memory = cached(NO_SPLIT, 50, 60, 70, capacity=190 * MIB)
    memory.malloc(120 * MIB)  # 70 and 60 go, 50 stays
    assert (memory.reserved, memory.retries) == (170 * MIB, 0)


def test_when_blocks_above_the_limit_do_not_suffice_all_that_is_free_goes() -> None:
    memory = cached(NO_SPLIT, 50, 30, capacity=90 * MIB)
    memory.malloc(70 * MIB)
    assert (memory.reserved, memory.retries) == (70 * MIB, 1)


def test_medium_requests_share_larger_segments_on_request() -> None:
    memory = CachingAllocator(AllocatorSettings(large_segment_size_mb=64))
    for _ in range(7):
        memory.malloc(9 * MIB)
    assert memory.reserved == 64 * MIB


# -- garbage collection ----------------------------------------------------------------------------------------


def test_the_oldest_cached_segments_go_past_the_threshold() -> None:
    settings = AllocatorSettings(per_process_memory_fraction=0.5, garbage_collection_threshold=0.23)
    memory = CachingAllocator(settings, total=2000 * MIB)  # 1000 MiB allowed, threshold 230 MiB
    a, b, _ = (memory.malloc(60 * MIB) for _ in range(3))
    memory.free(a)
    memory.malloc(100 * MIB)  # 180 MiB are below the threshold: nothing goes
    memory.free(b)
    assert memory.reserved == 280 * MIB
    memory.malloc(100 * MIB)  # 280 - 230 = 50 MiB too much: a has waited for 2 searches, b for 1
    assert memory.reserved == 320 * MIB
    assert memory.malloc(60 * MIB).address == b.address
    assert memory.retries == 0


def test_collection_goes_on_until_enough_is_gone() -> None:
    settings = AllocatorSettings(per_process_memory_fraction=0.5, garbage_collection_threshold=0.2)
    memory = CachingAllocator(settings, total=2000 * MIB)
    a, b, _ = (memory.malloc(60 * MIB) for _ in range(3))
    memory.free(a)
    memory.malloc(100 * MIB)
    memory.free(b)
    memory.malloc(100 * MIB)  # 80 MiB too much: a, then b
    assert memory.reserved == 260 * MIB


def test_nothing_is_collected_without_a_memory_fraction() -> None:
    memory = CachingAllocator(AllocatorSettings(garbage_collection_threshold=0.1), capacity=1000 * MIB, total=1000 * MIB)
    memory.free(memory.malloc(60 * MIB))
    memory.malloc(300 * MIB)
    assert memory.reserved == 360 * MIB


def test_a_memory_fraction_limits_what_is_reserved() -> None:
    memory = CachingAllocator(AllocatorSettings(per_process_memory_fraction=0.5), total=100 * MIB)
    memory.free(memory.malloc(30 * MIB))
    memory.malloc(48 * MIB)
    assert (memory.reserved, memory.retries) == (48 * MIB, 1)
    with pytest.raises(DeviceFullError) as caught:
        memory.malloc(3 * MIB)
    assert (caught.value.size, caught.value.allocated, caught.value.reserved) == (20 * MIB, 48 * MIB, 48 * MIB)


def test_a_memory_fraction_needs_the_device() -> None:
    with pytest.raises(InputError, match="total memory"):
        CachingAllocator(AllocatorSettings(per_process_memory_fraction=0.5))


# -- expandable segments ---------------------------------------------------------------------------------------


def test_a_hole_is_filled_before_the_range_grows() -> None:
    memory = CachingAllocator(expandable=True, capacity=120 * MIB)
    a, b, _ = (memory.malloc(size * MIB) for size in (20, 40, 20))
    memory.free(b)
    d = memory.malloc(60 * MIB)  # only by unmapping b's 40 MiB; it goes to the end
    assert (memory.reserved, memory.retries) == (100 * MIB, 1)
    assert d.address - a.address == 80 * MIB
    e = memory.malloc(20 * MIB)
    assert e.address - a.address == 20 * MIB
    assert memory.reserved == 120 * MIB
    with pytest.raises(DeviceFullError, match="20971520 bytes do not fit: 125829120 allocated, 125829120 reserved"):
        memory.malloc(2 * MIB)


def test_a_hole_counts_with_the_free_block_before_it() -> None:
    memory = CachingAllocator(expandable=True)
    a, b, _ = (memory.malloc(size * MIB) for size in (20, 40, 20))
    memory.free(b)
    memory.release()
    assert memory.reserved == 40 * MIB
    assert memory.malloc(10 * MIB).address - a.address == 20 * MIB  # maps 20 of the 40
    assert memory.malloc(25 * MIB).address - a.address == 30 * MIB  # 10 MiB there, 20 more mapped
    assert memory.reserved == 80 * MIB


def test_only_whole_granules_are_unmapped() -> None:
    memory = CachingAllocator(expandable=True)
    a, b = memory.malloc(5 * MIB), memory.malloc(30 * MIB)
    assert memory.reserved == 40 * MIB
    memory.free(b)
    memory.release()
    assert memory.reserved == 20 * MIB
    memory.free(a)
    memory.release()
    assert memory.reserved == 0
    assert not memory.segments


def test_what_was_mapped_before_a_failure_is_unmapped_again() -> None:
    memory, told = heard(expandable=True, capacity=60 * MIB)
    _, b, c = (memory.malloc(20 * MIB) for _ in range(3))
    memory.free(b)
    memory.release()
    memory.free(c)  # now: 20 in use, a hole of 20, 20 free, the rest of the range
    told.clear()
    with pytest.raises(DeviceFullError):
        memory.malloc(60 * MIB)  # the hole can be mapped, 20 MiB of the rest cannot
    assert told == [("segment_map", 20 * MIB, 20), ("segment_unmap", 20 * MIB, 40)]
    assert memory.reserved == 20 * MIB


def test_the_growing_end_is_taken_only_for_want_of_others() -> None:
    memory = CachingAllocator(expandable=True)
    a = memory.malloc(12 * MIB)
    memory.malloc(20 * MIB)
    memory.free(a)  # free: 12 MiB at the start, 8 MiB at the end
    assert memory.malloc(8 * MIB).address == a.address


def test_small_requests_grow_by_2_mib() -> None:
    memory = CachingAllocator(expandable=True)
    for _ in range(5):
        memory.malloc(MIB)
    assert memory.reserved == 6 * MIB


def test_a_range_spans_nine_eighths_of_the_device() -> None:
    memory = CachingAllocator(expandable=True, total=800 * MIB)
    assert memory.malloc(20 * MIB).segment.size == 900 * MIB


# -- segments --------------------------------------------------------------------------------------------------


def test_a_chunk_knows_its_segment() -> None:
    memory = CachingAllocator()
    chunk, other = memory.malloc(3 * MIB, stream=7), memory.malloc(512)
    rest = memory.malloc(4 * MIB, stream=7)
    segment = chunk.segment
    assert rest.segment is segment
    assert (segment.address, segment.size, segment.stream) == (chunk.address, 20 * MIB, 7)
    assert (segment.small, segment.expandable) == (False, False)
    assert other.segment.small


def heard(**more: Any) -> tuple[CachingAllocator, list[tuple[Action, int, int]]]:
    told: list[tuple[Action, int, int]] = []

    def listen(action: Action, segment: Segment, address: int, size: int) -> None:
        told.append((action, address - segment.address, size // MIB))

    return CachingAllocator(listener=listen, **more), told


def test_a_listener_hears_of_segments() -> None:
    memory, told = heard(capacity=100 * MIB)
    memory.free(memory.malloc(60 * MIB))
    memory.malloc(80 * MIB)
    memory.malloc(1)
    assert told == [("segment_alloc", 0, 60), ("segment_free", 0, 60), ("segment_alloc", 0, 80), ("segment_alloc", 0, 2)]


def test_a_listener_hears_of_mapped_and_unmapped_memory() -> None:
    memory, told = heard(expandable=True)
    memory.malloc(5 * MIB)
    memory.free(memory.malloc(30 * MIB))
    memory.release()
    assert told == [("segment_map", 0, 20), ("segment_map", 20 * MIB, 20), ("segment_unmap", 20 * MIB, 20)]


# -- for all sequences -----------------------------------------------------------------------------------------

SETTINGS = [
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(max_split_size_mb=24),
    AllocatorSettings(expandable_segments=True, max_split_size_mb=24),
    AllocatorSettings(roundup_power2_divisions=4),
    AllocatorSettings(per_process_memory_fraction=0.5, garbage_collection_threshold=0.3),
]
TOTAL = 600 * MIB


def check(memory: CachingAllocator, live: list[tuple[Chunk, int]]) -> None:
    """Nothing overlaps, nothing is lost, and the sums are those of the pieces."""
    ranges = sorted((chunk.address, chunk.address + chunk.size) for chunk, _ in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert all(chunk.size >= size for chunk, size in live)
    assert memory.allocated == sum(chunk.size for chunk, _ in live)
    free = sum(size for pool in memory.pools.values() for size, _, _ in pool.chunks)
    assert memory.reserved == memory.allocated + free
    assert memory.reserved <= memory.top


@given(
    st.lists(st.tuples(st.integers(1, 48 * MIB), st.integers(0, 1)), max_size=60),
    st.sampled_from(SETTINGS),
    st.sampled_from([TOTAL, 200 * MIB]),
    st.randoms(use_true_random=False),
)
def test_no_bytes_are_lost(
    requests: list[tuple[int, int]], settings: AllocatorSettings, capacity: int, rng: random.Random
) -> None:
    memory = CachingAllocator(settings, capacity=capacity, total=TOTAL)
    live: list[tuple[Chunk, int]] = []
    for size, stream in requests:
        with contextlib.suppress(DeviceFullError):
            chunk = memory.malloc(size, stream)
            assert chunk.segment.stream == stream
            live.append((chunk, size))
        assert memory.top <= min(capacity, memory.allowed or capacity)
        check(memory, live)
        if live and rng.random() < 0.5:
            memory.free(live.pop(rng.randrange(len(live)))[0])
    for chunk, _ in live:
        memory.free(chunk)
    check(memory, [])
    memory.release()
    assert memory.reserved == 0
    assert not memory.segments


@given(
    st.lists(st.integers(1, 48 * MIB), min_size=2, max_size=30),
    st.sampled_from(SETTINGS),
    st.randoms(use_true_random=False),
)
def test_a_fork_goes_on_by_itself(sizes: list[int], settings: AllocatorSettings, rng: random.Random) -> None:
    memory = CachingAllocator(settings, total=100_000 * MIB)
    held = [memory.malloc(size) for size in sizes]
    for _ in sizes[::2]:
        memory.free(held.pop(rng.randrange(len(held))))
    before = memory.allocated, memory.reserved
    other, copies = memory.fork(math.inf)
    theirs = [other.malloc(size) for size in sizes]
    assert (memory.allocated, memory.reserved) == before
    check(memory, [(chunk, 1) for chunk in held])
    assert [chunk.address for chunk in theirs] == [memory.malloc(size).address for size in sizes]
    for chunk in (*theirs, *(copies[chunk] for chunk in held)):
        other.free(chunk)
    assert other.allocated == 0
