"""The allocator's settings: what PyTorch reads, what it refuses, and what is told of it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.allocator_settings import MIB, OPTIONS, AllocatorSettings
from foretell.errors import InputError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("expandable_segments:True", {"expandable_segments": True}),
        (" expandable_segments : True ,\tmax_split_size_mb:5 12\n", {"expandable_segments": True, "max_split_size_mb": 512}),
        ("expandable_segments:False,", {}),
        ("max_split_size_mb:40,max_split_size_mb:50", {"max_split_size_mb": 50}),
        ("max_split_size_mb:-1", {"max_split_size_mb": (2**64 - 1) // MIB}),  # 64 unsigned bits
        ("roundup_power2_divisions:4", {"roundup_power2_divisions": 4}),
        ("roundup_power2_divisions:[]", {}),
        (
            "roundup_power2_divisions:[64:8,256:4,>:1]",
            {"roundup_power2_divisions": (8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1)},
        ),
        ("roundup_power2_divisions:[256:1,64:2,]", {"roundup_power2_divisions": (1,) * 6 + (2, 1, 1) + (0,) * 7}),
        ("roundup_power2_divisions:[131072:4,>:2]", {"roundup_power2_divisions": 4}),
        ("roundup_power2_divisions:[>:2]", {"roundup_power2_divisions": (0,) + (2,) * 15}),
        ("max_split_size_mb:70,large_segment_size_mb:64", {"max_split_size_mb": 70, "large_segment_size_mb": 64}),
        (
            "per_process_memory_fraction:0.5,garbage_collection_threshold:8e-1",
            {"per_process_memory_fraction": 0.5, "garbage_collection_threshold": 0.8},
        ),
        (
            "backend:native,pinned_num_register_threads:8,release_lock_on_cudamalloc:True",
            {"unmodelled": ("backend:native", "pinned_num_register_threads:8", "release_lock_on_cudamalloc:True")},
        ),
    ],
)
def test_texts_that_pytorch_reads(text: str, wanted: dict[str, Any]) -> None:
    assert AllocatorSettings.parse(text) == AllocatorSettings(**wanted)


@pytest.mark.parametrize(
    ("text", "value", "allowed"),
    [
        ("expandable_segments:true", "expandable_segments:true", "True, False"),
        ("expandable_segments", "expandable_segments:", "option:value"),
        ("expandable_segments:", "expandable_segments:", "True, False"),
        ("expandable_segments:True;max_split_size_mb:40", "expandable_segments:True;max_split_size_mb", "True, False"),
        ("expandable_segments:True:max_split_size_mb", "expandable_segments::", "separated by commas"),
        ("max_split_size_mb:19", "max_split_size_mb:19", "20 MiB or more"),
        ("max_split_size_mb:63,large_segment_size_mb:64", "max_split_size_mb:63", "64 MiB or more"),
        ("max_split_size_mb:20.5", "max_split_size_mb:20.5", "a whole number"),
        ("max_split_size_mb:[40:1]", "max_split_size_mb:[...]", "one value"),
        ("max_split_size_mb:" + "9" * 20, "max_split_size_mb:" + "9" * 20, "a whole number"),
        ("max_non_split_rounding_mb:19", "max_non_split_rounding_mb:19", "20 MiB or more"),
        ("large_segment_size_mb:10", "large_segment_size_mb:10", "above 10"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions:3", "a power of two"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions:0", "a power of two"),
        ("roundup_power2_divisions:[256:3]", "roundup_power2_divisions:[256:3]", "a power of two"),
        ("roundup_power2_divisions:[100:2]", "roundup_power2_divisions:[100:2]", "a power of two"),
        ("roundup_power2_divisions:[256:1", "roundup_power2_divisions:[256:1", "pairs"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold:0", "above 0 and below 1"),
        ("garbage_collection_threshold:1.0", "garbage_collection_threshold:1.0", "above 0 and below 1"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold:nan", "a number"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction:1.5", "from 0 to 1"),
        ("pinned_num_register_threads:129", "pinned_num_register_threads:129", "a power of two up to 128"),
        ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb:0", "more than 0"),
        ("graph_capture_record_stream_reuse:1", "graph_capture_record_stream_reuse:1", "True, False"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync", "native"),
    ],
)
def test_texts_that_are_refused(text: str, value: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        AllocatorSettings.parse(text, where="job.toml")
    error = caught.value
    assert (error.field, error.value, error.where) == ("alloc-conf", value, "job.toml")
    assert allowed in str(error.allowed)


def test_an_unknown_option_is_told_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        AllocatorSettings.parse("max_split_size_mb:40,roundup_bypass_threshold_mb:256")
    assert caught.value.value == "roundup_bypass_threshold_mb"
    assert caught.value.allowed == OPTIONS


def test_settings_made_in_code_are_checked_too() -> None:
    with pytest.raises(InputError, match="max_split_size_mb:8"):
        AllocatorSettings(max_split_size_mb=8)
    with pytest.raises(InputError, match="roundup_power2_divisions"):
        AllocatorSettings(roundup_power2_divisions=(1, 2))


def test_options_that_do_nothing_alone_are_named() -> None:
    parsed = AllocatorSettings.parse("garbage_collection_threshold:0.8,max_non_split_rounding_mb:30")
    assert parsed.without_effect == ("garbage_collection_threshold", "max_non_split_rounding_mb")
    whole = AllocatorSettings.parse(
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9,max_non_split_rounding_mb:30,max_split_size_mb:30"
    )
    assert whole.without_effect == ()


ITEMS = [
    "expandable_segments:True", "expandable_segments:yes", "max_split_size_mb:64", "max_split_size_mb:-1", "max_split_size_mb:3",
    "roundup_power2_divisions:[64:8,256:4,>:2]", "roundup_power2_divisions:[1:", "roundup_power2_divisions:[>:0,]",
    "roundup_power2_divisions: 16", "garbage_collection_threshold:0.5", "garbage_collection_threshold:.5e0", "backend:native",
    "pinned_use_background_threads:False", "", ":", ",", "[", "]", "7", ">:2",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(ITEMS), max_size=4).flatmap(
    lambda items: st.sampled_from([",", " , ", "", ";"]).map(lambda s: s.join(items))
)


@given(TEXTS)
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        assert len(AllocatorSettings.parse(text).divisions) in (0, 16)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("expandable_segments:True", True), ("expandable_segments:true", False), ("expandable_segments:True,", True),
        ("max_split_size_mb:20", True), ("max_split_size_mb:19", False), ("max_split_size_mb:-1", True),
        ("max_split_size_mb:99999999999999999999", False), ("max_split_size_mb:1 0 0", True),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", True), ("roundup_power2_divisions:[100:2]", False),
        ("roundup_power2_divisions:0", False), ("roundup_power2_divisions:[256:0]", True),
        ("garbage_collection_threshold:1", False), ("garbage_collection_threshold:1e-3", True),
        ("max_non_split_rounding_mb:19", False), ("pinned_use_background_threads:yes", False),
    ],
)  # fmt: skip
def test_pytorch_reads_and_refuses_the_same(text: str, good: bool) -> None:
    torch = pytest.importorskip("torch")
    read: list[bool] = []
    for reader in (torch._C._accelerator_setAllocatorSettings, AllocatorSettings.parse):
        try:
            reader(text)
        except (ValueError, RuntimeError, IndexError):
            read.append(False)
        else:
            read.append(True)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    assert read == [good, good]


@pytest.mark.oracle
@given(TEXTS)
def test_pytorch_reads_all_that_is_read_here(text: str) -> None:
    torch = pytest.importorskip("torch")
    try:
        AllocatorSettings.parse(text)
    except InputError:
        return
    torch._C._accelerator_setAllocatorSettings(text)
    assert torch._C._accelerator_getAllocatorSettings() == text
