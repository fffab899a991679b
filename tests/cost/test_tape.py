"""The tape: what a small graph keeps and how high its memory goes, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from foretell.cost.linear import Lin, dominates
from foretell.cost.tape import Tape, Tensor


def size(n: float) -> Lin:
    return Lin.of("activations", "T/1", n)


def amount(form: Lin) -> float:
    return sum(form.values())


def two_matmuls() -> tuple[Tape, Tensor]:
    """x(10) -> a(40) -> relu b(40) -> c(10): the matmuls keep x and b, relu keeps its output b."""
    x = Tensor("x", size(10), grad=True)
    tape = Tape(x)
    a = tape.node("up", [x], size(40), saved=[x], wgrad=Lin.of("gradients", "1/1", 7), trainable=True)
    b = tape.node("relu", [a], size(40))
    tape.nodes[-1].saved = (b,)
    c = tape.node("down", [b], size(10), saved=[b], wgrad=Lin.of("gradients", "1/1", 7), trainable=True)
    return tape, c


def test_saved_tensors_are_counted_once() -> None:
    tape, out = two_matmuls()
    memory = tape.run(out)
    assert amount(memory.saved) == 10 + 40  # x and b; a died after the relu, c goes to the next block


def test_forward_peak_holds_input_and_output_of_a_node() -> None:
    tape, out = two_matmuls()
    peak = max(amount(p.size) for p in tape.run(out).forward)
    assert peak == 10 + 40 + 40  # x is kept while a and b are alive


def test_backward_of_the_middle_node_is_the_peak() -> None:
    tape, out = two_matmuls()
    levels = {p.operator: amount(p.size) for p in tape.run(out).backward}
    # down: x, b, dc(10), db(40), dW(7)
    assert levels["down"] == 10 + 40 + 10 + 40 + 7
    # relu: x, b, db(40), da(40), dW(7); dc is gone
    assert levels["relu"] == 10 + 40 + 40 + 40 + 7
    # up: x, da(40), dx(10), both dW
    assert levels["up"] == 10 + 40 + 10 + 14


def test_accumulated_weight_gradients_are_transient() -> None:
    tape, out = two_matmuls()
    levels = {p.operator: amount(p.size) for p in tape.run(out, accumulate=True).backward}
    assert levels["relu"] == 10 + 40 + 40 + 40


def test_nothing_is_kept_in_a_checkpointed_pass() -> None:
    tape, out = two_matmuls()
    memory = tape.run(out, keep=False)
    assert memory.saved == Lin()
    assert max(amount(p.size) for p in memory.forward) == 10 + 40 + 40


def test_recomputation_holds_the_incoming_gradient() -> None:
    tape, out = two_matmuls()
    again = tape.run(out, recompute=True)
    assert max(amount(p.size) for p in again.backward if p.operator == "relu") == 10 + 40 + 40 + 40 + 7
    first = again.backward[0]
    assert (first.operator, amount(first.size)) == ("up", 10 + 40 + 10)  # x, a, and the gradient of the output


def test_discarded_storages_come_back_when_the_backward_needs_them() -> None:
    tape, out = two_matmuls()
    b = tape.nodes[1].outs[0]
    memory = tape.run(out, discard=[frozenset({b})])
    assert amount(memory.saved) == 10
    assert max(amount(p.size) for p in memory.backward) == 10 + 40 + 40 + 40 + 7


def test_prompt_groups_go_before_the_forward_pass_is_over() -> None:
    levels = {}
    for prompt in (False, True):
        x = Tensor("x", size(10), grad=True)
        tape = Tape(x)
        a = tape.node("first", [x], size(40), saved=[x])
        b = tape.node("second", [a], size(10), saved=[a])
        out = tape.node("third", [b], size(100), saved=[b])
        memory = tape.run(out, discard=[frozenset({a})], prompt=prompt)
        levels[prompt] = {p.operator: amount(p.size) for p in memory.forward}
        assert amount(memory.saved) == 10 + 10
        assert (
            max(amount(p.size) for p in memory.backward if p.operator == "second") == 10 + 40 + 10 + 40
        )  # x, a again, and two gradients
    assert levels[False] == {"first": 50, "second": 60, "third": 160}
    assert levels[True] == {"first": 50, "second": 60, "third": 120}


def test_frozen_matmul_keeps_no_input() -> None:
    x = Tensor("x", size(10), grad=True)
    tape = Tape(x)
    out = tape.node("frozen", [x], size(10))
    assert amount(tape.run(out).saved) == 0


def test_nothing_is_saved_where_nothing_needs_a_gradient() -> None:
    x = Tensor("x", size(10), grad=False)
    tape = Tape(x)
    y = tape.node("act", [x], size(10), saved=[x])
    assert not y.grad
    assert amount(tape.run(y).saved) == 0


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [({"T/1": 2.0}, {"T/1": 1.0}, True), ({"T/1": 2.0}, {"B/1": 1.0}, False), ({"T/1": 1.0, "B/1": 1.0}, {"B/1": 1.0}, True)],
)
def test_domination(a: dict[str, float], b: dict[str, float], expected: bool) -> None:
    assert dominates(a, b) is expected
