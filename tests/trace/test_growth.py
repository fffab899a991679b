"""Sequences that grow: the pieces that make them, and how soon it is given up where there are none."""

from __future__ import annotations

import time

import numpy as np
import pytest

from foretell.trace.growth import Piece, Sequence3, growth


def pieces(*texts: str) -> list[Piece] | None:
    first, second, third = (np.array([ord(c) for c in text], dtype=np.int64) for text in texts)
    return growth(Sequence3((first, second, third), (first, second, third)))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("", "", ""), []),
        (("abc", "abc", "abc"), [(3, 0)]),
        (("aXd", "aXXd", "aXXXd"), [(1, 0), (1, 1), (1, 0)]),
        (("ad", "abcd", "abcbcd"), [(1, 0), (0, 2), (1, 0)]),
        (("abab|cc", "ababab|ccc", "abababab|cccc"), [(4, 2), (1, 0), (2, 1)]),
        (("aab", "aaab", "aaaac"), None),
        (("ab", "abb", "abbbb"), None),
        (("abb", "ab", "a"), None),
    ],
)
def test_pieces(texts: tuple[str, str, str], expected: list[tuple[int, int]] | None) -> None:
    found = pieces(*texts)
    assert (found if found is None else [(p.length, p.period) for p in found if p.length or p.period]) == expected


def noise(count: int, seed: int) -> list[int]:
    made: list[int] = np.random.default_rng(seed).integers(0, 2, count).tolist()
    return made


def ambiguous(layers: int, end: int) -> list[int]:
    """Many stretches that begin like one another, and an end that shows that nothing fits."""
    out: list[int] = []
    for i in range(1000):
        out += noise(1 + i % 8, i) * layers
    return [*out, end]


@pytest.mark.parametrize(
    "sequences",
    [
        [noise(20_000 + 10_000 * i, i) for i in range(3)],
        [[0] * 20_000, [0] * 30_000, [*([0] * 39_999), 1]],
        [[0, 1] * 10_000, [0, 1] * 15_000, [*([0, 1] * 19_999), 1, 0]],
        [ambiguous(3, 2), ambiguous(4, 2), ambiguous(5, 3)],
        [ambiguous(layers, 2 + layers) for layers in (3, 4, 5)],
    ],
    ids=["noise", "zeros", "turned", "ambiguous", "ambiguous and counted"],
)
def test_what_has_no_answer_is_given_up_soon(sequences: list[list[int]]) -> None:
    first, second, third = (np.array(one, dtype=np.int64) for one in sequences)
    begun = time.process_time()
    assert growth(Sequence3((first, second, third), (first, second, third))) is None
    assert time.process_time() - begun < 2  # about 0.1 s on an idle machine
