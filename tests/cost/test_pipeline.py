"""Pipeline stages: layers per rank and activations in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.pipeline import in_flight, split, stages
from foretell.errors import CombinationError, InputError
from foretell.recipe.parallelism import Parallelism, parse_layout
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import TrainingRecipe


def test_one_forward_one_backward_keeps_what_is_ahead() -> None:
    assert [in_flight("1f1b", 4, s, 1, 16) for s in range(4)] == [(4.0,), (3.0,), (2.0,), (1.0,)]
    assert in_flight("1f1b", 8, 0, 1, 3) == (3.0,)  # never more than there are micro-batches


def test_gpipe_keeps_every_micro_batch() -> None:
    assert in_flight("gpipe", 4, 0, 1, 64) == (64.0,)


def test_interleaving_keeps_more_chunks_than_plain_1f1b() -> None:
    # first rank of pp=4, two chunks: 2*3 + 1*4 + 1 = 11 chunk passes, in the order 4 x chunk 0, 4 x chunk 1, 3 x chunk 0
    assert in_flight("interleaved-1f1b", 4, 0, 2, 16) == (7.0, 4.0)
    # last rank: 0 + 4 + 1 = 5 passes
    assert in_flight("interleaved-1f1b", 4, 3, 2, 16) == (4.0, 1.0)


def test_zero_bubble_and_dualpipe() -> None:
    assert in_flight("zb-v", 4, 3, 1, 16) == (4.0,)
    assert in_flight("dualpipe", 4, 3, 1, 16) == (5.0,)


def test_chunks_alternate_over_ranks() -> None:
    assert split(8, 2, 2) == [((0, 1), (4, 5)), ((2, 3), (6, 7))]


def test_uneven_layers_need_a_layout_where_the_framework_wants_even_stages() -> None:
    with pytest.raises(CombinationError, match="does not divide"):
        split(10, 4, even=True)
    assert [len(s[0]) for s in split(10, 4)] == [3, 3, 2, 2]


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(CombinationError, match="more stages than"):
        split(4, 8)


def test_layout_must_sum_to_the_layers() -> None:
    with pytest.raises(InputError, match="sum to"):
        split(8, 2, 1, (3, 4))


@pytest.mark.parametrize(
    ("text", "layers", "mtp"),
    [
        ("8,12,12", (8, 12, 12), 0),
        ("Et*3|(tt|)*2tmL", (3, 2, 2, 1), 1),
        ("E|t|t|L", (0, 1, 1, 0), 0),
        ("Et*7|t*7mL", (7, 7), 1),
    ],
)
def test_layout_strings(text: str, layers: tuple[int, ...], mtp: int) -> None:
    assert parse_layout(text) == (layers, mtp)


@pytest.mark.parametrize("text", ["", "tt|L", "Ett", "E;t|L", "Et*99999|L", "x" * 5000])
def test_bad_layout_strings(text: str) -> None:
    with pytest.raises(InputError, match="not a layout"):
        parse_layout(text)


@given(st.integers(1, 96), st.integers(1, 16), st.integers(1, 4), st.integers(1, 64))
def test_every_layer_stands_on_one_rank(layers: int, pp: int, vpp: int, micro_batches: int) -> None:
    if pp * vpp > layers:
        return
    made = stages(layers, pp, vpp, "interleaved-1f1b" if vpp > 1 else "1f1b", micro_batches)
    assert sorted(i for s in made for chunk in s.chunks for i in chunk) == list(range(layers))
    assert made[0].first
    assert made[-1].last
    assert all(sum(s.in_flight) <= micro_batches * vpp for s in made)


def test_torchtitan_pipelines_keep_gathered_weights() -> None:
    """apply_fsdp reshards nothing after the forward pass of a pipeline; tensor-wise float8 gathers one byte an element."""
    recipe = TrainingRecipe(framework="torchtitan", fp8_recipe="tensorwise", compute_dtype="fp8")
    run = resolve(recipe, Parallelism(dp=8, pp=2, zero=3), profile("torchtitan"))
    assert run.par.reshard == "never"
    assert run.style.fp8_gather
    assert resolve(recipe, Parallelism(dp=8, zero=3), profile("torchtitan")).par.reshard == "default"
