"""Settings of PyTorch's CUDA caching allocator, as ``PYTORCH_ALLOC_CONF`` (or ``PYTORCH_CUDA_ALLOC_CONF``) gives them.

Options, their ranges and how the text is cut into words are those of pytorch 2.13 ``c10/core/AllocatorConfig.{h,cpp}`` and
``c10/cuda/CUDAAllocatorConfig.{h,cpp}``.  Stricter than PyTorch in one thing: what it reads past in silence (``20.5`` or
``512abc`` as a whole number, a missing colon or comma) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from foretell.errors import InputError

__all__ = ["AllocatorSettings"]

MIB = 1 << 20
FIELD = "alloc-conf"

MODELLED = (
    "expandable_segments",
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "per_process_memory_fraction",
)
FLAGS = (
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
COUNTS = (
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
)
OPTIONS = (*MODELLED, "backend", *FLAGS, *COUNTS)

INTERVALS = 16
"""Divisions are set for sizes from 1 MiB, 2 MiB, 4 MiB ... 32 GiB; the first serves all smaller sizes, the last all larger."""
SMALLEST_LARGE_SEGMENT_MB = 10
MOST_THREADS = 128
WORD = 1 << 64
"""PyTorch reads whole numbers into 64 unsigned bits: -1 is the largest."""
MOST_MB = (WORD - 1) // MIB

_SPACE = re.compile(r"[ \t\n\v\f\r]")
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What decides the sizes of blocks and segments.

    Raises:
        InputError: a value that PyTorch would refuse (field ``alloc-conf``).

    """

    expandable_segments: bool = False
    """One range of addresses for each pool and stream, mapped as far as it is needed."""
    max_split_size_mb: int | None = None
    """Blocks from this size (MiB) on are never split, and serve only requests that are nearly as large; None: no limit."""
    roundup_power2_divisions: int | tuple[int, ...] = 0
    """Sizes are rounded up to one of so many steps between two powers of two; 0 or 1: to 512 bytes only.
    Sixteen of them: one for each interval from 1 MiB to 32 GiB."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory from which on cached segments are given back, oldest first.  PyTorch does so only where
    :attr:`per_process_memory_fraction` is less than 1."""
    large_segment_size_mb: int = 20
    """Segments for requests above 1 MiB and below 10 MiB, and granules of expandable segments, MiB."""
    max_non_split_rounding_mb: int | None = None
    """How much larger (MiB) a block that may not be split can be than a request it serves; None: as a large segment."""
    per_process_memory_fraction: float = 1.0
    """Share of the device's total memory that the allocator may reserve."""
    unmodelled: tuple[str, ...] = ()
    """Options that were given, are valid and do not change any size (``option:value``).  One of them changes when a run
    ends: ``throw_on_cudamalloc_oom`` fails at the allowed memory before cached segments are given back."""

    def __post_init__(self) -> None:
        """Check the ranges as PyTorch does."""
        least = self.large_segment_size_mb
        _require("large_segment_size_mb", least, least > SMALLEST_LARGE_SEGMENT_MB, "whole MiB above 10")
        for option in ("max_split_size_mb", "max_non_split_rounding_mb"):
            value = getattr(self, option)
            _require(option, value, value is None or value >= least, f"{least} MiB or more (a large segment)")
        threshold, fraction = self.garbage_collection_threshold, self.per_process_memory_fraction
        _require("garbage_collection_threshold", threshold, 0 <= threshold < 1, "above 0 and below 1")
        _require("per_process_memory_fraction", fraction, 0 <= fraction <= 1, "from 0 to 1")
        given = self.roundup_power2_divisions
        table = given if isinstance(given, tuple) else (given,) * INTERVALS
        good = len(table) == INTERVALS and all(n >= 0 and not n & (n - 1) for n in table)
        _require("roundup_power2_divisions", given, good, f"a power of two, or {INTERVALS} of them (0: none)")

    @property
    def divisions(self) -> tuple[int, ...]:
        """Divisions of the sixteen intervals; empty where sizes are only rounded to 512 bytes."""
        given = self.roundup_power2_divisions
        table = given if isinstance(given, tuple) else (given,) * INTERVALS
        return table if max(table) > 1 else ()

    @property
    def max_split_size(self) -> int | None:
        """Bytes from which on blocks are not split."""
        return None if self.max_split_size_mb is None else self.max_split_size_mb * MIB

    @property
    def large_segment_size(self) -> int:
        """Bytes of a segment for medium requests, and of an expandable segment's granule."""
        return self.large_segment_size_mb * MIB

    @property
    def max_non_split_rounding(self) -> int:
        """Bytes by which a block that may not be split can exceed the request."""
        given = self.max_non_split_rounding_mb
        return self.large_segment_size if given is None else given * MIB

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Options that PyTorch takes and that do nothing without another one.

        >>> AllocatorSettings(garbage_collection_threshold=0.8).without_effect
        ('garbage_collection_threshold',)
        """
        idle = {
            "garbage_collection_threshold": self.garbage_collection_threshold > 0 and self.per_process_memory_fraction == 1,
            "max_non_split_rounding_mb": self.max_non_split_rounding_mb is not None and self.max_split_size_mb is None,
        }
        return tuple(option for option, is_idle in idle.items() if is_idle)

    @classmethod
    def parse(cls, text: str, where: str | None = None) -> Self:
        """Read the environment variable's value; of an option that is given twice the last counts.

        >>> AllocatorSettings.parse("expandable_segments:True, max_split_size_mb:512").max_split_size_mb
        512
        >>> AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,>:4]").divisions
        (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4)

        Raises:
            InputError: an unknown option, a value out of its range, another backend than the native one, or text that is
                no list of options.

        """
        values: dict[str, Any] = {}
        divisions = [0] * INTERVALS
        unmodelled: list[str] = []
        try:
            for option, value in _items(_TOKEN.findall(_SPACE.sub("", text))):
                if option == "roundup_power2_divisions":
                    _divide(divisions, value)
                elif isinstance(value, tuple):
                    raise _wrong(option, "[...]", "one value")
                elif option in MODELLED:
                    values[option] = _read(option, value)
                else:
                    _check_unmodelled(option, value)
                    unmodelled.append(f"{option}:{value}")
            every = divisions[0] if len(set(divisions)) == 1 else tuple(divisions)
            return cls(roundup_power2_divisions=every, unmodelled=tuple(unmodelled), **values)
        except InputError as error:
            error.where = where
            raise


def _wrong(option: str, value: object, allowed: str) -> InputError:
    return InputError("is no value that PyTorch takes", field=FIELD, value=f"{option}:{value}", allowed=allowed)


def _require(option: str, value: object, good: bool, allowed: str) -> None:
    if not good:
        raise _wrong(option, value, allowed)


def _items(tokens: list[str]) -> Iterator[tuple[str, str | Pairs]]:
    """Yield option and value; a list's value is its pairs."""
    at = 0
    while at < len(tokens):
        option = tokens[at]
        if option not in OPTIONS:
            raise InputError("names an option that PyTorch does not know", field=FIELD, value=option, allowed=OPTIONS)
        if tokens[at + 1 : at + 2] != [":"]:
            raise _wrong(option, "".join(tokens[at + 1 : at + 2]), "option:value, separated by commas")
        value: str | Pairs = "".join(tokens[at + 2 : at + 3])
        at += 3
        if value == "[":
            value, at = _pairs(option, tokens, at)
        yield option, value
        if tokens[at : at + 1] not in ([], [","]):
            raise _wrong(option, tokens[at], "option:value, separated by commas")
        at += 1  # a comma may close the text


def _pairs(option: str, tokens: list[str], at: int) -> tuple[Pairs, int]:
    """Return the pairs of a list whose first token stands at ``at``, and where the text goes on."""
    found: list[tuple[str, str]] = []
    while tokens[at : at + 1] != ["]"]:
        pair = tokens[at : at + 4]
        if len(pair) < 4 or pair[1] != ":" or pair[3] not in (",", "]"):
            raise _wrong(option, "[" + "".join(tokens[at:]), "pairs [size in MiB:divisions, ...]")
        found.append((pair[0], pair[2]))
        at += 3 if pair[3] == "]" else 4
    return tuple(found), at + 1


def _whole(option: str, word: str) -> int:
    if not _WHOLE.fullmatch(word) or abs(int(word)) >= WORD:
        raise _wrong(option, word, "a whole number")
    return int(word) % WORD


def _read(option: str, word: str) -> bool | int | float:
    """Return the value of an option that is modelled."""
    if option == "expandable_segments":
        return _flag(option, word)
    if option.endswith("_mb"):
        return min(_whole(option, word), MOST_MB)
    if not _DECIMAL.fullmatch(word):
        raise _wrong(option, word, "a number")
    value = float(word)
    if option == "garbage_collection_threshold" and not value:
        raise _wrong(option, word, "above 0 and below 1")
    return value


def _flag(option: str, word: str) -> bool:
    if word not in ("True", "False"):
        raise _wrong(option, word, "True, False")
    return word == "True"


def _divide(divisions: list[int], value: str | Pairs) -> None:
    """Enter divisions for all sizes or by interval, the first interval's for all below it and ``>`` for all above the last."""
    option = "roundup_power2_divisions"
    if isinstance(value, str):
        number = _whole(option, value)
        _require(option, value, number > 0 and not number & (number - 1), "a power of two")
        divisions[:] = [number] * INTERVALS
        return
    last, first = 0, True
    for size, count in value:
        number = _whole(option, count)
        _require(option, f"[{size}:{count}]", not number & (number - 1), "divisions that are a power of two, or 0 for none")
        if size == ">":
            divisions[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        bound = _whole(option, size)
        _require(option, f"[{size}:{count}]", bound > 0 and not bound & (bound - 1), "sizes in MiB that are a power of two")
        last = min(bound.bit_length() - 1, INTERVALS - 1)
        if first:
            divisions[:last] = [number] * last
            first = False
        divisions[last] = number


def _check_unmodelled(option: str, word: str) -> None:
    """Refuse what PyTorch refuses, and the backend that this is no model of."""
    if option == "backend":
        if word != "native":
            raise InputError(
                "is another allocator than the one that is modelled", field=FIELD, value=f"{option}:{word}", allowed="native"
            )
    elif option in FLAGS:
        _flag(option, word)
    else:
        number = _whole(option, word)
        if option == "pinned_num_register_threads":
            good = 0 < number <= MOST_THREADS and not number & (number - 1)
            _require(option, word, good, f"a power of two up to {MOST_THREADS}")
        elif option == "pinned_reserve_segment_size_mb":
            _require(option, word, number > 0, "more than 0")
