"""Recordings of few equal layers continued to all: on recordings written by hand, and on models that are recorded both ways."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foretell.trace.events import Category, Phase, PhaseName, Recording, Storage
from foretell.trace.repeat import lengthen, same_events

# -- recordings written by hand --------------------------------------------------------------------------------


@dataclass
class Tape:
    """Writes a recording event by event."""

    storages: list[Storage] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def phase(self, name: PhaseName) -> None:
        self.phases.append(Phase(name, 0, 0, len(self.order)))

    def new(self, size: int, op: str = "aten::mm", module: str = "", stream: int = 0, category: Category = "temporary") -> int:
        self.storages.append(Storage(size, op, len(self.phases) - 1, module, "", stream, category))
        self.order.append(len(self.storages) - 1)
        return self.order[-1]

    def free(self, *indices: int) -> None:
        self.order += [~index for index in indices]

    def done(self, **about: Any) -> Recording:
        return Recording(self.storages, self.order, self.phases, about)


SHAPES = ("norm.weight", 8), ("norm.bias", 8), ("up", 64), ("down", 64)
"""A layer's weights; the first two look alike, and so do the last two."""


def training(layers: int) -> Recording:
    """A step of a model with equal layers: gradients come from the last layer on, and go from the first on."""
    tape = Tape()
    tape.phase("load")
    places = ["embed", *(f"layers.{i}.{name}" for i in range(layers) for name, _ in SHAPES), "head"]
    sizes = dict.fromkeys(places, 100) | {f"layers.{i}.{name}": size for i in range(layers) for name, size in SHAPES}
    for place in places:
        tape.new(sizes[place], "", place, category="parameter")
    tape.phase("forward")
    saved = [tape.new(16, "aten::embedding", "embed")]
    for i in range(layers):
        before = tape.new(24, "aten::_to_copy", f"layers.{i}", stream=1)
        saved.append(tape.new(32, "aten::mm", f"layers.{i}.up"))
        saved.append(tape.new(16, "aten::add", f"layers.{i}"))
        tape.free(before)
    loss = tape.new(4, "aten::nll_loss", "head")
    tape.phase("backward")
    grads: dict[str, int] = {}
    for place in reversed(places):
        if place.endswith(("up", "norm.bias")):
            tape.free(saved.pop())
        grads[place] = tape.new(sizes[place], "aten::sum", place, category="gradient")
    tape.free(*saved, loss)
    tape.phase("optimizer")
    states = [tape.new(sizes[place], "aten::zeros_like", category="optimizer") for place in places]
    first = [tape.new(sizes[place], "aten::_foreach_sqrt") for place in places]
    second = [tape.new(sizes[place], "aten::_foreach_div") for place in places]
    tape.free(*reversed(first), *second)
    tape.free(*(grads[place] for place in places))
    assert len(states) == len(places)
    return tape.done(operators=10 + 7 * layers, attention={"flash": layers}, device="cuda")


def all_outputs(layers: int) -> Recording:
    """A forward pass that stacks what all layers gave."""
    tape = Tape()
    tape.phase("forward")
    outputs = [tape.new(50, module=f"blocks.{i}") for i in range(layers)]
    stacked = tape.new(50 * layers, "aten::stack")
    mean = tape.new(50 * layers, "aten::mul")
    tape.free(*outputs, stacked, mean)
    return tape.done()


def two_stacks(layers: int) -> Recording:
    """An encoder whose outputs are given back while a decoder goes on: the last first."""
    tape = Tape()
    tape.phase("forward")
    kept = [tape.new(30, module=f"encoder.{i}") for i in range(layers)]
    for i in range(layers):
        tape.new(40, module=f"decoder.{i}")
        tape.free(kept.pop())
    return tape.done()


def handed_on(layers: int) -> Recording:
    """Each layer gives back what the one before made; the first layer is made of other bytes."""
    tape = Tape()
    tape.phase("forward")
    before = tape.new(7)
    for i in range(layers):
        made = tape.new(20 if i else 21, module=f"layers.{i}")
        tape.free(before)
        before = made
    tape.free(before)
    return tape.done()


GROWING = training, all_outputs, two_stacks, handed_on


def continued(make: Callable[[int], Recording], layers: int) -> Recording | None:
    return lengthen(make(3), make(4), make(5), layers - 3)


@pytest.mark.parametrize("make", GROWING)
@pytest.mark.parametrize("layers", [3, 4, 5, 6, 40])
def test_what_grows_evenly_is_continued(make: Callable[[int], Recording], layers: int) -> None:
    made, whole = continued(make, layers), make(layers)
    assert made is not None
    assert same_events(made, whole)
    assert [s.module for s in made.storages] == [s.module for s in whole.storages]
    assert made.about == whole.about


def test_the_order_in_which_look_alikes_go_matters() -> None:
    """Weight and bias of a norm have the same bytes; freed the other way round, it is another recording."""
    one, other = training(4), training(4)
    other.order[-2], other.order[-3] = other.order[-3], other.order[-2]
    assert not same_events(one, other)


@pytest.mark.parametrize("part", ["op", "bytes", "phase", "stream", "category"])
def test_every_part_of_a_storage_matters(part: str) -> None:
    one, other = handed_on(4), handed_on(4)
    assert same_events(one, other)
    setattr(other.storages[2], part, {"op": "aten::bmm", "category": "input"}.get(part, 5))
    assert not same_events(one, other)


def test_the_path_and_the_number_of_a_storage_do_not_matter() -> None:
    one, other = handed_on(4), handed_on(4)
    other.storages[2].module = "elsewhere"
    assert same_events(one, other)
    turned = [len(other.storages) - 1 - i for i in range(len(other.storages))]
    order = [turned[e] if e >= 0 else ~turned[~e] for e in other.order]
    assert same_events(one, Recording(other.storages[::-1], order, other.phases))


def test_paths_that_do_not_count_stay_those_of_the_recorded_layers() -> None:
    def make(layers: int) -> Recording:
        tape = Tape()
        tape.phase("forward")
        for i in range(layers):
            tape.new(20, module=f"layers.{i * i}")
        return tape.done()

    made = continued(make, 7)
    assert made is not None
    assert same_events(made, make(7))
    assert {s.module for s in made.storages} == {f"layers.{i}" for i in (0, 1, 4, 9, 16)}


def test_blocks_are_found_where_modules_are_told_wrongly() -> None:
    def make(layers: int) -> Recording:
        made = training(layers)
        for i, storage in enumerate(made.storages):
            storage.module = "ab"[(i * i // 7 + layers) % 2]
        return made

    made = continued(make, 12)
    assert made is not None
    assert same_events(made, training(12))


# -- what does not grow evenly ---------------------------------------------------------------------------------


def sizes_that_depend_on_all(layers: int) -> Recording:
    """A buffer for all layers, of a size that was asked for: nothing says that it stays so."""
    tape = Tape()
    tape.phase("forward")
    tape.new(50 * layers, "aten::empty")
    return tape.done()


def buckets(layers: int) -> Recording:
    """One bucket for every two layers."""
    tape = Tape()
    tape.phase("backward")
    for i in range(layers):
        tape.new(50)
        if i % 2:
            tape.new(100)
    return tape.done()


def squared(layers: int) -> Recording:
    """Each layer allocates once more than the one before."""
    tape = Tape()
    tape.phase("forward")
    for i in range(layers):
        for _ in range(i):
            tape.new(50)
        tape.new(10)
    return tape.done()


def from_the_middle(layers: int) -> Recording:
    tape = Tape()
    tape.phase("forward")
    made = [tape.new(50) for _ in range(layers)]
    tape.free(*sorted(made, key=lambda i: abs(i - layers // 2)))
    return tape.done()


def fifth_is_special(layers: int) -> Recording:
    tape = Tape()
    tape.phase("forward")
    for i in range(layers):
        tape.new(51 if i == 4 else 50)
    return tape.done()


def more_phases(layers: int) -> Recording:
    tape = Tape()
    for _ in range(layers):
        tape.phase("forward")
        tape.new(50)
    return tape.done()


UNEVEN = sizes_that_depend_on_all, buckets, squared, from_the_middle, fifth_is_special, more_phases


@pytest.mark.parametrize("make", UNEVEN)
def test_what_does_not_grow_evenly_is_not_continued(make: Callable[[int], Recording]) -> None:
    assert continued(make, 9) is None


def test_recordings_in_another_order_are_not_continued() -> None:
    assert lengthen(training(4), training(3), training(5), 4) is None
    assert lengthen(training(3), training(5), training(4), 4) is None


# -- any program that goes through layers ----------------------------------------------------------------------

Body = list[tuple[str, int]]


@dataclass
class Program:
    """Phases of stretches that go through the layers once, up or down, or happen once."""

    phases: list[list[tuple[str, Body]]]

    def record(self, layers: int, *, kinds: int = 2) -> Recording:
        tape = Tape()
        held: dict[tuple[int, int], int] = {}
        for stretches in self.phases:
            tape.phase("other")
            for way, body in stretches:
                through = {"once": [-1], "up": range(layers), "down": range(layers)[::-1]}[way]
                for layer in through:
                    for what, slot in body:
                        if what == "free":
                            tape.free(held.pop((slot, layer)))
                        else:
                            held[slot, layer] = tape.new(int(what), f"op {slot % kinds}")
        return tape.done()


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Few kinds of allocations, so that many look alike."""
    slots = 0
    live: dict[bool, list[int]] = {True: [], False: []}
    phases = []
    for _ in range(draw(st.integers(1, 3))):
        stretches = []
        for way in draw(st.lists(st.sampled_from(["once", "up", "down"]), min_size=1, max_size=4)):
            held = live[way == "once"]
            body: Body = []
            for _ in range(draw(st.integers(1, 5))):
                if draw(st.booleans()) and held:
                    body.append(("free", held.pop(draw(st.integers(0, len(held) - 1)))))
                else:
                    body.append((draw(st.sampled_from("12")), slots))
                    held.append(slots)
                    slots += 1
            stretches.append((way, body))
        phases.append(stretches)
    return Program(phases)


@given(programs(), st.integers(5, 20))
def test_every_program_over_layers_is_continued(program: Program, layers: int) -> None:
    made = continued(lambda n: program.record(n, kinds=1000), layers)
    assert made is not None
    assert same_events(made, program.record(layers, kinds=1000))


@given(programs(), st.integers(5, 20))
def test_look_alikes_are_told_apart_or_given_up(program: Program, layers: int) -> None:
    made = continued(program.record, layers)
    assert made is None or same_events(made, program.record(layers))


def test_two_stretches_that_look_like_one() -> None:
    """Allocations alone do not show where the first ends; what is freed does."""
    program = Program([[("up", [("1", 0), ("1", 1), ("1", 2), ("1", 3)]), ("up", [("1", 4), ("1", 5), ("free", 0)])]])
    made = continued(program.record, 11)
    assert made is not None
    assert same_events(made, program.record(11))


@given(programs(), st.integers(0, 2), st.integers(0, 10**6))
def test_what_is_continued_holds_what_was_recorded(program: Program, which: int, at: int) -> None:
    """Two events of one recording change places: either that is noticed, or it is continued so that all three are in it."""
    recordings = [program.record(layers) for layers in (3, 4, 5)]
    order = recordings[which].order
    at %= max(1, len(order) - 1)
    order[at : at + 2] = order[at : at + 2][::-1]
    assume(valid(order))
    three, four, five = recordings
    for more, recorded in enumerate(recordings):
        made = lengthen(three, four, five, more)
        assert made is None or same_events(made, recorded)


def valid(order: list[int]) -> bool:
    """Say whether nothing is freed before it is there."""
    return all(event >= 0 or ~event in order[:at] for at, event in enumerate(order))


# -- models, recorded both ways --------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs foretell[trace]")
def test_models_recorded_both_ways() -> None:
    program = Path(__file__).with_name("repeated.py")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = [*map(json.loads, ran.stdout.splitlines())]
    for one in told:
        name = one["job"]
        assert one["part"] == one["full"], name
        assert one["same"], name
        assert one["modules"] or "ModuleDict" in name, name  # its layers may have names that do not count
        assert min(min(peaks) for peaks in one["full"]) > 1e8, name  # bytes: more than workspaces
        assert one["how"].startswith("every layer was recorded" if one["why"] else "3, 4 and 5 repetitions"), (name, one["how"])
        assert one["why"] in one["how"], (name, one["how"])
    assert sum(not one["why"] for one in told) == 16
    assert sum(bool(one["why"]) for one in told) == 6
