"""Inverse questions and advice, asked of the library."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.plan import inverse
from foretell.plan.advice import advise
from foretell.plan.inverse import largest_micro_batch, longest_sequence, smallest_world
from foretell.plan.launch import Launch
from foretell.plan.switches import SAVING
from foretell.recipe import Parallelism, Recompute, TrainingRecipe


def launch(model: str = "llama-3.2-1b", gpu: str = "t4", par: Any = None, **recipe: Any) -> Launch:
    from foretell import load_hardware, load_model

    return Launch(load_model(model), load_hardware(gpu), TrainingRecipe(**recipe), par or Parallelism())


def small(**recipe: Any) -> Launch:
    return launch("gpt-2", framework="fsdp2", **({"seq_len": 256} | recipe), par=Parallelism(zero=3))


def test_every_answer_fits_and_the_next_does_not() -> None:
    for answer in (largest_micro_batch(small()), longest_sequence(small(), limit=2**20)):
        assert answer.launch is not None
        assert answer.launch.forecast().verdict == "fits"
        assert answer.next_verdict != "fits"
        assert answer.asked < 60


def test_a_sequence_is_one_that_every_rank_can_share() -> None:
    run = launch("llama-3.2-1b", "h100", Parallelism(tp=2, cp=4, sp=True), framework="megatron-core")
    answer = longest_sequence(run, limit=131_072)
    assert answer.value is not None
    assert answer.value % (128 * 2 * 4) == 0
    assert answer.value <= 131_072


def verdicts(fits: Callable[[int], bool]) -> Callable[[int], Any]:
    """Launches whose step fits where `fits` says so."""

    def at(step: int) -> Any:
        verdict = "fits" if fits(step) else "does_not_fit"
        found = SimpleNamespace(verdict=verdict, total_bytes=step)
        return SimpleNamespace(forecast=lambda: found, replayed=lambda: found)

    return at


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 100, 1000])
def test_the_search_finds_the_last_step_that_fits(limit: int) -> None:
    answer = inverse._largest("q", verdicts(lambda step: step <= limit), 10, 1000)
    assert answer.value == limit * 10
    assert (answer.next_value is None) == (limit == 1000)


def test_the_search_looks_beyond_a_step_that_does_not_fit() -> None:
    answer = inverse._largest("q", verdicts(lambda step: step <= 10 or step == 13), 1, 1000)
    assert answer.value == 13


def test_nothing_fits_is_an_answer_too() -> None:
    answer = inverse._largest("q", verdicts(lambda _: False), 1, 1000)
    assert (answer.value, answer.launch, answer.forecast) == (None, None, None)
    assert largest_micro_batch(launch("llama-3-8b")).value is None


def test_a_run_that_cannot_start_is_an_error_not_an_answer() -> None:
    run = launch("llama-3-8b", "h100", Parallelism(tp=3))
    for ask in (largest_micro_batch, longest_sequence, smallest_world):
        with pytest.raises(InputError, match="attention heads"):
            ask(run)


def test_the_fewest_replicas() -> None:
    run = launch("llama-3-8b", "h100", Parallelism(zero=3), framework="fsdp2", recompute=Recompute(mode="full"))
    answer = smallest_world(run)
    assert answer.value is not None
    assert run.with_par(dp=answer.value).forecast().fits
    assert not run.with_par(dp=answer.value - 1).forecast().fits
    assert smallest_world(launch("llama-3-70b", "h100")).value is None


def test_advice_is_ordered_what_fits_first_cheapest_first() -> None:
    run = launch("llama-3-8b", "a100-sxm-80gb", Parallelism(dp=8, zero=3), framework="fsdp2", micro_batch=8, seq_len=4096)
    made = advise(run, run.forecast())
    fits = [suggestion.fits for suggestion in made]
    assert fits == sorted(fits, reverse=True)
    assert {suggestion.kind for suggestion in made} <= {"reduce", "together"}
    assert "--recompute full" in {suggestion.command for suggestion in made}


def test_several_switches_together_where_none_helps_alone() -> None:
    run = launch("llama-3-8b", "rtx4090", Parallelism(dp=8, zero=1), framework="deepspeed", micro_batch=8, seq_len=8192)
    made = advise(run, run.forecast())
    assert made[0].kind == "together"
    assert made[0].fits
    assert made[0].change.count(" + ") >= 1
    assert not any(suggestion.fits for suggestion in made[1:] if "lora" not in suggestion.command)


def test_advice_on_a_run_that_fits_asks_for_more() -> None:
    run = launch("llama-3.2-1b", "h100", Parallelism(zero=3), framework="fsdp2", recompute=Recompute(mode="full"))
    made = advise(run, run.forecast())
    assert {suggestion.kind for suggestion in made} == {"relax"}
    assert all(suggestion.fits for suggestion in made)
    assert {"--recompute none", "--micro-batch"} & {suggestion.command.rsplit(" ", 1)[0] for suggestion in made}


def test_every_switch_is_one_that_its_own_launch_can_be_asked_about() -> None:
    run = launch(
        "llama-3-8b", "h100", Parallelism(dp=4, tp=2, pp=2, zero=0), framework="generic", micro_batch=8, grad_accum=4,
        attention="eager",
    )  # fmt: skip
    switches = [switch for maker in SAVING for switch in maker(run)]
    assert {switch.change for switch in switches} >= {
        "cross entropy in chunks",
        "expandable segments",
        "flash attention",
        "sequence parallelism",
        "micro-batch 4 with 8 accumulation steps",
        "ZeRO stage 3",
        "torch.compile",
        "selective recomputation",
        "full recomputation",
        "8-bit AdamW",
        "tensor parallelism 4",
        "pipeline of 4 stages",
        "optimizer in host memory",
        "LoRA, rank 16",
        "QLoRA, rank 16",
    }  # fmt: skip
    for switch in switches:
        assert switch.flags
        assert 0 <= switch.rank <= 6
        if switch.rank < 5 and "micro-batch" in switch.change:
            assert switch.launch.global_batch == run.global_batch
