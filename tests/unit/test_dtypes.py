"""Bytes per element."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.dtypes import DTYPES, DType, dtype
from foretell.errors import InputError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", Fraction(4)),
        ("torch.bfloat16", Fraction(2)),
        ("BF16", Fraction(2)),
        ("float8_e4m3fn", Fraction(1)),
        ("fp8-block", 1 + Fraction(4, 128 * 128)),
        ("mxfp4", Fraction(1, 2) + Fraction(1, 32)),
        ("nvfp4", Fraction(1, 2) + Fraction(1, 16)),
        ("nf4", Fraction(1, 2) + Fraction(4, 64)),
        ("nf4-dq", Fraction(1, 2) + Fraction(1, 64) + Fraction(4, 64 * 256)),
    ],
)
def test_bytes_per_element_are_exact(name: str, expected: Fraction) -> None:
    assert dtype(name).bytes_per_element == expected


@pytest.mark.parametrize("name", ["bf17", "", None, 16])
def test_an_unknown_format_is_refused(name: object) -> None:
    with pytest.raises(InputError, match="is not a known number format"):
        dtype(name)  # type: ignore[arg-type]


def test_every_alias_leads_to_one_format() -> None:
    spellings = [key for kind in DTYPES.values() for key in (kind.name, *kind.aliases)]
    assert len(spellings) == len(set(spellings))
    assert all(dtype(alias) is kind for kind in DTYPES.values() for alias in kind.aliases)


@given(st.sampled_from(list(DTYPES.values())), st.integers(min_value=0, max_value=10**12))
def test_a_tensor_takes_its_elements_and_at_most_one_partial_block_more(kind: DType, elements: int) -> None:
    exact = elements * kind.bytes_per_element
    assert exact - len(kind.scales) <= kind.nbytes(elements) <= exact + 1 + sum(bits / 8 for _, bits in kind.scales)


@given(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_one_by_one_equals_vectorised(kind: DType, sizes: list[int]) -> None:
    assert kind.nbytes(np.array(sizes)).tolist() == [kind.nbytes(size) for size in sizes]
