"""torchtune's rules: chunked output loss, update in the backward pass, offloaded activations, units of FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.arch.readers import read_config
from foretell.cost.training_memory import StageMemory, training_memory
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import Adapter, Recompute, TrainingRecipe

GIB = 2.0**30
LLAMA = {
    "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
TOKENS, VOCAB, HIDDEN = 2 * 4096, 128256, 3072
LOGITS = TOKENS * VOCAB * 2.0
FULL = Recompute("full", "layer")


def memory(par: Parallelism | None = None, **changes: Any) -> StageMemory:
    recipe = TrainingRecipe(micro_batch=2, seq_len=4096, framework="torchtune", precision="bf16-true").with_(**changes)
    return training_memory(read_config(LLAMA), resolve(recipe, par or Parallelism(), profile("torchtune")))[0]


def loss(**changes: Any) -> float:
    return memory(**changes).phases["loss"].bytes


def test_compiled_chunks_keep_their_logits_only() -> None:
    frozen = {"adapter": Adapter(rank=8, dtype="bf16"), "recompute": FULL}
    eager = loss(**frozen)
    compiled = loss(**frozen, compile=True)
    # eager: fp32 log-probabilities of every chunk, and two fp32 gradients of one chunk
    assert eager - compiled == pytest.approx((2 + 2 * 2 / 8) * LOGITS, rel=0.02)


def test_the_head_s_gradient_is_summed_over_chunks() -> None:
    full = loss(compile=True, recompute=FULL, optimizer="sgd")
    lora = loss(compile=True, recompute=FULL, optimizer="sgd", adapter=Adapter(rank=8, dtype="bf16"))
    assert full - lora == pytest.approx(2 * VOCAB * HIDDEN * 2.0, rel=0.25)  # the sum and one chunk's part


def test_a_compiled_plain_loss_reads_fp32_logits() -> None:
    assert loss(loss="compiled", compile=True) - loss(compile=True) > 3 * LOGITS


def test_an_update_in_the_backward_pass_leaves_one_gradient_at_a_time() -> None:
    usual, early = memory(recompute=FULL), memory(recompute=FULL, optimizer_in_backward=True)
    parameters = read_config(LLAMA).parameters
    assert usual.phases["optimizer"].bytes - early.phases["optimizer"].bytes == pytest.approx(2.0 * parameters, rel=0.01)
    drop = usual.phases["backward"].bytes - early.phases["backward"].bytes
    table = VOCAB * HIDDEN * 2.0  # the tied table's gradient waits for its second part
    checkpoints = 28 * TOKENS * HIDDEN * 2.0  # all still there where the peak is now
    assert drop == pytest.approx(2.0 * parameters - table - checkpoints, rel=0.05)


def test_offloaded_activations_leave_two_layers_behind() -> None:
    moved = loss(recompute=FULL) - loss(recompute=FULL, offload=frozenset({"activations"}))
    assert moved == pytest.approx(26 * TOKENS * HIDDEN * 2.0, rel=0.01)


def test_sharded_full_tuning_gathers_the_head_when_it_runs() -> None:
    par = Parallelism(dp=8, zero=3)
    untied = {**LLAMA, "tie_word_embeddings": False}

    def gathered(adapter: Adapter | None) -> float:
        recipe = TrainingRecipe(
            micro_batch=2, seq_len=2048, framework="torchtune", precision="bf16-true", adapter=adapter, recompute=FULL
        )
        stage = training_memory(read_config(untied), resolve(recipe, par, profile("torchtune")))[0]
        return float(stage.phases["forward"].terms["gathered_weights"])

    table = VOCAB * HIDDEN * 2.0
    # the LoRA configurations keep embedding and output whole, as part of the root unit
    assert gathered(Adapter(rank=8, dtype="bf16")) - gathered(None) == pytest.approx(2 * table, rel=0.01)


def test_compile_leaves_the_norms_outside_the_layers_eager() -> None:
    run = resolve(TrainingRecipe(framework="torchtune", precision="bf16-true", compile=True), Parallelism(), profile("torchtune"))
    assert (run.style.norm, run.style.edge_norm) == ("fused", "eager")
    run = resolve(TrainingRecipe(framework="thunder", precision="bf16-true", compile=True), Parallelism(), profile("thunder"))
    assert (run.style.norm, run.style.edge_norm) == ("eager", "")
