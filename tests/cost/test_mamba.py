"""Mamba 1: what the fused inner function keeps, and what the fallback in Python keeps."""

from __future__ import annotations

import foretell.cost.rules  # noqa: F401  # fills the table of rules
from foretell.arch.readers import read_config
from foretell.cost.saved import Emitter
from foretell.cost.weights import WeightPlan
from foretell.recipe.formats import FP32
from foretell.recipe.optimizers import optimizer
from foretell.recipe.style import Style
from foretell.recipe.training import TrainingRecipe

PLAN = WeightPlan(TrainingRecipe(precision="fp32"), FP32, optimizer("adamw"))
HIDDEN, INNER, STATE, RANK, KERNEL = 256, 512, 16, 16, 4


def terms(model_type: str, **style: str) -> dict[str, float]:
    """Elements that one layer keeps, by what they are counted for."""
    arch = read_config({"model_type": model_type, "hidden_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": 64})
    e = Emitter(arch.main.blocks[0], Style(compute=4.0, residual=4.0, norm="fused", **style), PLAN)  # type: ignore[arg-type]
    return {k: v / 4.0 for k, v in e.tape.run(e.emit()).saved.by_monomial().items()}


def kept(model_type: str, **style: str) -> float:
    """Elements a token that one layer keeps."""
    return sum(v for k, v in terms(model_type, **style).items() if k.startswith("T/"))


def test_the_inner_function_keeps_three_tensors() -> None:
    # x, its statistics, the normed x; gate and input, dt with B and C, the scan's output
    assert kept("mamba") == HIDDEN + 1 + HIDDEN + 2 * INNER + (RANK + 2 * STATE) + INNER


def test_the_fallback_keeps_the_state_of_every_token() -> None:
    found = terms("mamba", scan="eager")
    # decay, drive and state; gate and input, the convolution as it comes and masked, softplus' input and result, the scan's
    # output, the gate's activation and product
    assert found["T/tp"] == 3 * INNER * STATE + (2 + 7) * INNER
    assert found["T/sp"] == terms("mamba")["T/sp"]
    assert found["B/tp"] == INNER * (KERNEL - 1) + INNER * STATE  # what the convolution pads; the state that a sample begins with
    assert found["1/tp"] == 2 * INNER * STATE  # exp(A_log), and its negative
