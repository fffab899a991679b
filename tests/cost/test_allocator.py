"""The caching allocator: segment sizes, best fit, splitting, merging, ties and expandable segments, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.allocator import MIB, CachingAllocator, DeviceFullError


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
