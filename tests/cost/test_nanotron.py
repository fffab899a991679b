"""nanotron: stages by cost, packed keys and values, gradients of a whole backward pass."""

from __future__ import annotations

import pytest

from foretell.cost.pipeline import by_cost
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import TrainingRecipe
from small_llama import HEADS, SEQ, F, H, V, layer_bytes, memory

BASE = TrainingRecipe(micro_batch=1, seq_len=SEQ, framework="nanotron")


@pytest.mark.parametrize(
    ("layers", "head", "pp", "stages"),
    [
        (16, 4.0, 4, (5, 5, 5, 1)),
        (16, 4.0, 2, (10, 6)),
        (4, 0.0, 4, (1, 1, 1, 1)),
        (2, 10.0, 4, (2, 0, 0, 0)),  # the head outweighs everything: the first stage never closes
    ],
)
def test_a_stage_closes_at_its_share_of_the_cost(layers: int, head: float, pp: int, stages: tuple[int, ...]) -> None:
    assert by_cost([1.0] * layers, head, pp) == stages


@pytest.mark.parametrize("tp", [1, 2])
def test_a_layer_keeps_what_the_playbook_slopes_show(tp: int) -> None:
    """8h/s + (12h + 8f + 4a)/t + 8 bytes a token: norms in and out, merged qkv, packed kv, output, gate and up twice."""
    kept = layer_bytes(BASE, Parallelism(tp=tp))
    statistics = 8 / tp if tp > 1 else 8
    assert kept == pytest.approx(8 * H / tp + (12 * H + 8 * F + 4 * HEADS) / tp + statistics, abs=1)


def test_autograd_gradients_live_until_the_backward_pass_ends() -> None:
    """2 bytes a parameter beside the fp32 buffer, when the last layer's backward has run."""
    level = memory(BASE.with_(seq_len=1))[0].phases["backward"]
    parameters = 4 * (4 * H * H + 3 * H * F + 2 * H) + 2 * V * H + H
    assert level.operator == "embed.embed_tokens"
    assert level.terms["gradients"] == pytest.approx((4 + 2) * parameters)


def test_ddp_buckets_hold_bf16() -> None:
    terms = memory(BASE, Parallelism(dp=2, zero=0, sharding="ddp"))[0].peak.terms
    parameters = 4 * (4 * H * H + 3 * H * F + 2 * H) + 2 * V * H + H
    assert terms["communication_buffers"] == pytest.approx(2 * parameters)


def test_two_gather_buffers_are_never_freed() -> None:
    terms = memory(BASE, Parallelism(tp=2))[0].phases["optimizer"].terms
    assert terms["communication_buffers"] == pytest.approx(2 * 2 * H * SEQ)
