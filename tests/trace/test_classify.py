"""Which storages are activations, on recordings made by hand."""

from __future__ import annotations

from foretell.trace.classify import classify
from foretell.trace.events import Category, Phase, PhaseName, Recording, Storage


def recording(*phases: tuple[PhaseName, list[int]], categories: dict[int, Category] | None = None) -> Recording:
    """A recording of these phases; storage ``i`` (from 0) is made by ``i`` and freed by ``~i``."""
    order: list[int] = []
    made: list[Phase] = []
    where: dict[int, int] = {}
    for number, (name, entries) in enumerate(phases):
        made.append(Phase(name, 0, 0, len(order)))
        order += entries
        where |= {entry: number for entry in entries if entry >= 0}
    kinds = categories or {}
    storages = [Storage(8, "aten::mm", where[i], category=kinds.get(i, "temporary")) for i in range(len(where))]
    return Recording(storages, order, made)


def activations(*phases: tuple[PhaseName, list[int]], **options: dict[int, Category]) -> list[int]:
    made = recording(*phases, **options)
    classify(made)
    return [i for i, storage in enumerate(made.storages) if storage.category == "activation"]


def test_what_forward_leaves_for_backward_is_an_activation() -> None:
    assert activations(("forward", [0, 1, ~1, 2]), ("backward", [~0, ~2])) == [0, 2]


def test_what_outlives_backward_was_there_for_it_too() -> None:
    assert activations(("forward", [0, 1]), ("backward", [2]), ("optimizer", [~0, ~2])) == [0, 1]


def test_what_backward_makes_is_temporary_wherever_it_is_freed() -> None:
    assert activations(("forward", [0]), ("backward", [1, 2, ~0, ~1]), ("optimizer", [~2])) == [0]


def test_only_temporary_storages_change() -> None:
    kinds: dict[int, Category] = {0: "parameter", 1: "input", 2: "workspace"}
    assert activations(("forward", [0, 1, 2, 3]), ("backward", [~3, ~1]), categories=kinds) == [3]


def test_evaluation_has_no_activations() -> None:
    assert activations(("forward", [0, 1, ~1, ~0, 2]), ("other", [~2])) == []
    assert activations(("forward", [0]), ("forward", [1]), ("backward", [~0, ~1])) == [1]


def test_each_micro_step_has_its_own() -> None:
    assert activations(("forward", [0]), ("backward", [~0]), ("forward", [1, 2, ~2]), ("backward", [3, ~3, ~1])) == [0, 1]


def test_what_other_phases_make_is_temporary() -> None:
    assert activations(("forward", [0]), ("other", [1]), ("optimizer", [2]), ("backward", [~0, ~1, ~2])) == [0]


def test_a_second_time_changes_nothing() -> None:
    made = recording(("forward", [0, 1, ~1]), ("backward", [~0]))
    classify(made)
    before = made.dump()
    classify(made)
    assert made.dump() == before


def test_an_empty_recording_stays_one() -> None:
    assert activations(("load", [])) == []
