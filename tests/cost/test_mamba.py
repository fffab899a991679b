"""Mamba 1: what the fused inner function keeps, and what the fallback in Python keeps."""

from __future__ import annotations

import pytest

import foretell.cost.rules  # noqa: F401  # fills the table of rules
from foretell.arch.readers import read_config
from foretell.cost.saved import Emitter
from foretell.cost.weights import WeightPlan
from foretell.recipe.formats import FP32
from foretell.recipe.optimizers import optimizer
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

PLAN = WeightPlan(TrainingRecipe(precision="fp32"), FP32, optimizer("adamw"))
HIDDEN, INNER, STATE, RANK = 256, 512, 16, 16


def kept(model_type: str, **style: str) -> float:
    """Elements a token that one layer keeps."""
    arch = read_config({"model_type": model_type, "hidden_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": 64})
    e = Emitter(arch.main.blocks[0], Style(compute=4.0, residual=4.0, norm="fused", **style), PLAN)  # type: ignore[arg-type]
    return sum(v for k, v in e.tape.run(e.emit()).saved.by_monomial().items() if k.startswith("T/")) / 4.0


def test_the_inner_function_keeps_three_tensors() -> None:
    # x, its statistics, the normed x; gate and input, dt with B and C, the scan's output
    assert kept("mamba") == HIDDEN + 1 + HIDDEN + 2 * INNER + (RANK + 2 * STATE) + INNER


def test_the_fallback_keeps_the_state_of_every_token() -> None:
    assert kept("mamba", scan="eager") - kept("mamba") == pytest.approx(3 * INNER * STATE, rel=0.2)
