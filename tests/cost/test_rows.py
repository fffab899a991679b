"""Rows: what one row of a tensor is, and how many a sample has, through convolutions, pools and cross attention."""

from __future__ import annotations

from typing import Any

import pytest

import foretell.cost.rules  # noqa: F401  # fills the table of rules
from foretell.arch.architecture import Block
from foretell.arch.operators import Attention, Conv, Head, Linear, Norm, Operator, Pool
from foretell.arch.readers import read_config
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter
from foretell.cost.stream import input_units
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.cost.weights import WeightPlan
from foretell.recipe.formats import FP32
from foretell.recipe.optimizers import optimizer
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

PLAN = WeightPlan(TrainingRecipe(precision="fp32"), FP32, optimizer("adamw"))
STYLE = Style(compute=4.0, residual=4.0, norm="fused")


def saved(block: Block, **more: Any) -> Lin:
    e = Emitter(block, STYLE, PLAN, **more)
    return e.tape.run(e.emit()).saved


def per_sample(form: Lin) -> float:
    return form.by_monomial().get("B/sp", 0.0)


def block(*ops: Operator, width: int = 8, positions: int = 16) -> Block:
    return Block("b", ops, width, "sample", positions)


def test_a_convolution_changes_the_rows_of_all_that_follows() -> None:
    ops = (Conv(name="down", ins=("x",), c_in=8, c_out=4, kernel=(2, 2), positions=4), Norm(name="n", dim=4, kind="batch"))
    # the convolution keeps x (16 x 8), the norm its input (4 x 4)
    assert per_sample(saved(block(*ops))) == (16 * 8 + 4 * 4) * 4.0


def test_the_first_convolution_reads_the_sample() -> None:
    stem = Conv(name="stem", c_in=3, c_out=8, kernel=(7, 7), positions=16, source=64)
    assert per_sample(saved(block(stem, width=0))) == 64 * 3 * 4.0


def test_a_view_keeps_its_source_and_a_copy_does_not() -> None:
    def pooled(kind: Any) -> float:
        ops = (Pool(name="first", ins=("x",), features=8, positions=1, kind=kind), Head(name="classes", dim=8, rows=2))
        return per_sample(saved(block(*ops)))

    assert pooled("view") == 16 * 8 * 4.0
    assert pooled("copy") == 8 * 4.0


def test_a_max_pool_keeps_its_input_and_eight_bytes_an_output() -> None:
    assert per_sample(saved(block(Pool(name="p", ins=("x",), features=8, positions=4, kind="max")))) == 16 * 8 * 4.0 + 4 * 8 * 8.0


def test_cross_attention_keeps_keys_of_the_encoder() -> None:
    ops = (
        Linear(name="q", ins=("x",), d_in=8, d_out=8), Linear(name="k", ins=("memory",), d_in=8, d_out=8),
        Linear(name="v", ins=("memory",), d_in=8, d_out=8),
        Attention(name="attn", ins=("q", "k", "v"), heads=2, kv_heads=2, head_dim=4, v_dim=4, memory="cross"),
    )  # fmt: skip
    form = saved(Block("b", ops, 8), memory=("E", 1.0)).by_monomial()
    assert form["E/sp"] == 2 * 8 * 4.0  # k and v; the encoder's output is counted where it is made
    assert form["T/sp"] == 2 * 8 * 4.0  # x and q
    eager = Emitter(Block("b", ops, 8), Style(compute=4.0, residual=4.0, attention="eager"), PLAN, memory=("E", 1.0))
    assert eager.tape.run(eager.emit()).saved.by_monomial()["TE/tp"] == 2 * 4.0


def test_a_windowed_attention_over_a_map_stores_only_its_windows() -> None:
    def squares(window: int) -> float:
        core = Attention(name="attn", ins=("x", "x", "x"), heads=2, kv_heads=2, head_dim=4, v_dim=4, window=window, fused=False)
        return saved(block(core)).by_monomial()["B/tp"]

    assert squares(0) == 2 * 16 * 16 * 4.0 + 0.0
    assert squares(4) == 2 * 16 * 4 * 4.0


@pytest.mark.parametrize("model_type", ["t5", "whisper"])
def test_sequence_lengths_of_both_sides_count(model_type: str) -> None:
    arch = read_config({"model_type": model_type})

    def kept(target: int, source: int) -> float:
        recipe = TrainingRecipe(micro_batch=1, seq_len=target, encoder_seq_len=source, framework="hf-trainer")
        run = resolve(recipe, Parallelism(), profile("hf-trainer"))
        return float(evaluate(fold_run(arch, run)[0].saved.by_monomial(), Basis(sizes_of(run))))

    assert kept(128, 64) > kept(64, 64)
    # whisper's encoder always sees 30 seconds
    assert (kept(64, 128) > kept(64, 64)) == (model_type == "t5")


def test_a_convolutional_stream_stays_narrow_under_autocast() -> None:
    def units(model_type: str) -> set[float]:
        arch = read_config({"model_type": model_type})
        style = Style(autocast=True, residual=4.0)
        plan = WeightPlan(TrainingRecipe(), profile("hf-trainer").formats["bf16"], optimizer("adamw"))

        def emit(b: Block, unit: float) -> float:
            return Emitter(b, style, plan, unit=unit).emit().unit

        found = input_units(arch, emit, 4.0)
        return {found[b] for s in arch.stacks for b in s.blocks if b in found}

    assert units("resnet") == {2.0}
    assert units("vit") == {4.0}
