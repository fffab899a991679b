"""State bytes of the Megatron-class tools' common cases, and of each ZeRO stage."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import TrainingRecipe

GPT3: dict[str, object] = {
    "model_type": "gpt-generic", "hidden_size": 12288, "num_hidden_layers": 96, "num_attention_heads": 96,
    "vocab_size": 51200, "tie_word_embeddings": True, "mlp_bias": True, "attention_bias": True,
    "attention_out_bias": True, "position_embedding": "none", "max_position_embeddings": 2048,
}  # fmt: skip
MIXTRAL: dict[str, object] = {
    "model_type": "mixtral",
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": None,
}
LLAMA: dict[str, object] = {"model_type": "llama"}


def state_bytes(config: dict[str, object], recipe: TrainingRecipe, par: Parallelism, stage: int = 0) -> float:
    run = resolve(recipe, par, profile(recipe.framework))
    base = fold_run(read_config(config), run)[stage].base
    form = base.weights + base.gradients + base.master + base.optimizer
    return float(evaluate(form.by_monomial(), Basis(sizes_of(run))))


def test_gpt3_tensor_and_pipeline_parallel_with_distributed_optimizer() -> None:
    """GPT-3 175B, TP8 PP8 DP8: 20.98 GB of weights, gradients and optimizer on the first stage.

    Megatron-class calculators leave out the table of learned positions, 2048 x 12288 on every tensor-parallel rank
    at 2 + 4 + 12/8 bytes: 0.19 GB more.
    """
    recipe = TrainingRecipe(seq_len=2048, grad_accum=24, framework="megatron-core")
    par = Parallelism(dp=8, tp=8, pp=8, zero=1)
    without = state_bytes(GPT3, recipe, par)
    assert without / 1e9 == pytest.approx(20.98, abs=0.01)
    learned = state_bytes(GPT3 | {"position_embedding": "learned"}, recipe, par)
    assert learned - without == pytest.approx(2048 * 12288 * 7.5)


def test_mixtral_expert_parallel_shards_experts_only() -> None:
    """Mixtral-8x7B, TP1 PP4 EP8 on 64 GPUs: 20.06 GB; attention and embeddings are not divided by ep."""
    recipe = TrainingRecipe(grad_accum=16, framework="megatron-core")
    assert state_bytes(MIXTRAL, recipe, Parallelism(dp=16, pp=4, ep=8, zero=1)) / 1e9 == pytest.approx(20.06, abs=0.01)


@pytest.mark.parametrize(("zero", "per"), [(0, 16.0), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_bytes_per_parameter_by_zero_stage(zero: int, per: float) -> None:
    """2 + 2 + 12 bytes a parameter (arXiv 1910.02054), each part divided from its stage on."""
    parameters = read_config(LLAMA).parameters
    found = state_bytes(LLAMA, TrainingRecipe(framework="generic"), Parallelism(dp=8, zero=zero))
    assert found == pytest.approx(per * parameters)


def test_precision_aware_masters_keep_16_bits() -> None:
    """Megatron's optimizer with bf16 moments stores what the bf16 parameter lacks of its fp32 master: 2 bytes, not 4."""
    par = Parallelism(dp=1)
    full = TrainingRecipe(framework="megatron-core", grad_dtype="bf16")
    aware = full.with_(optim_dtype="bf16")
    assert resolve(full, par, profile("megatron-core")).formats.master == "fp32"
    assert resolve(aware, par, profile("megatron-core")).formats.master == "int16"


DEEPSEEK: dict[str, object] = {
    "model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 96, "kv_lora_rank": 64, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "moe_intermediate_size": 64, "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
ROUTERS = 2 * 8 * 256


@pytest.mark.parametrize(
    ("framework", "precision", "each", "more"),
    [("hf-trainer", "bf16-true", 2 * 4, 2 * 4), ("hf-trainer", "bf16", 4 * 4, 0), ("megatron-core", "bf16", 2 + 4 + 12, 0)],
)
def test_routers_that_stay_in_fp32(framework: str, precision: str, each: int, more: int) -> None:
    """transformers keeps DeepSeek-V3's routers in fp32 (``_keep_in_fp32_modules_strict``): weight, gradient and both moments."""
    recipe = TrainingRecipe(framework=framework, precision=precision)
    arch = read_config(DEEPSEEK)
    found = state_bytes(DEEPSEEK, recipe, Parallelism())
    assert found == each * arch.parameters + more * ROUTERS
