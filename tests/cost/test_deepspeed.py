"""DeepSpeed ZeRO: buckets, sub-groups, live parameters; the pipeline engine of Megatron-DeepSpeed."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.arch.rewrite import megatron_deepspeed
from foretell.cost.training_memory import training_memory
from foretell.errors import CombinationError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import Recompute, TrainingRecipe
from small_llama import SEQ, F, H, V, memory

BASE = TrainingRecipe(micro_batch=1, seq_len=SEQ, framework="deepspeed")
PARAMETERS = 4 * (4 * H * H + 3 * H * F + 2 * H) + 2 * V * H + H


def zero(stage: int, dp: int = 4) -> Parallelism:
    return Parallelism(dp=dp, zero=stage, sharding="deepspeed")


def test_stage_3_keeps_16_bytes_a_parameter_and_a_bucket() -> None:
    """2 weights, 2 gradients (the flat partition), 4 masters, 8 Adam; one bucket of half a billion elements."""
    found = memory(BASE, zero(3))[0]
    assert found.states == pytest.approx(16 * PARAMETERS / 4 + 2 * 500_000_000)


def test_stage_3_reduces_a_second_copy_of_the_bucket() -> None:
    """``reduce_scatter_coalesced`` interleaves the parts of the bucket's gradients in a new tensor."""
    small = BASE.with_(reduce_bucket=H * H)
    now, later = (memory(small.with_(reduce_bucket=H * H * n), zero(3))[0].phases["backward"].bytes for n in (1, 2))
    assert later - now == pytest.approx(2 * 2 * H * H)


def test_on_one_rank_parameters_are_not_gathered() -> None:
    assert "gathered_weights" not in memory(BASE, zero(3, 1))[0].phases["backward"].terms


def test_live_parameters_limit_what_is_whole() -> None:
    """With room for one element, only the tensor in use is whole."""
    terms = memory(BASE.with_(live_parameters=1), zero(3))[0].phases["backward"].terms
    assert terms["gathered_weights"] == pytest.approx(2 * H * F)


def test_lomo_has_no_zero_optimizer() -> None:
    """No buckets, no flat gradients, no conversion of a sub-group; a gradient and a part of its parameter become fp32."""
    found = memory(BASE.with_(optimizer="lomo", precision="fp16"), zero(3))[0]
    assert found.states == pytest.approx(2 * PARAMETERS / 4)
    assert "optimizer_workspace" not in found.phases["optimizer"].terms
    assert found.phases["backward"].terms["optimizer_workspace"] == pytest.approx(4 * H * F * (1 + 1 / 4))


def test_zero_offload_of_stage_2_stages_the_largest_gradient() -> None:
    """``temp_grad_buffer_for_gpu_offload``; the model is whole on every rank."""
    found = memory(BASE.with_(offload=frozenset({"optimizer"})), zero(2))[0]
    assert found.states == pytest.approx(2 * PARAMETERS + 2 * max(V * H, H * F))


def test_liger_writes_gradients_over_what_it_kept() -> None:
    """Its fused loss brings RMSNorm, SwiGLU and RoPE kernels: a layer keeps 6 h + 2 kv + 3 f elements a token."""
    liger = BASE.with_(loss="fused-linear", recompute=Recompute("none"))
    run = resolve(liger, zero(2), profile("deepspeed"))
    assert (run.style.norm, run.style.gate, run.style.rope, run.style.inplace) == ("fused", "fused", "inplace", True)
    less = (
        memory(BASE.with_(loss="eager"), zero(2))[0].phases["forward"].bytes - memory(liger, zero(2))[0].phases["forward"].bytes
    )
    assert less > 0


def test_a_given_bucket_size_is_used() -> None:
    states = memory(BASE.with_(reduce_bucket=10_000), zero(3))[0].states
    assert states == pytest.approx(16 * PARAMETERS / 4 + 2 * 10_000)


def test_the_step_converts_one_sub_group() -> None:
    """6 bytes an element of the largest sub-group: here the whole partition."""
    terms = memory(BASE, zero(3))[0].phases["optimizer"].terms
    assert terms["optimizer_workspace"] == pytest.approx(6 * PARAMETERS / 4)


def test_sub_groups_close_at_a_billion_elements() -> None:
    """Llama-2-70B on 8 ranks: 8.62e9 elements a rank, in groups that stop past 1e9."""
    config = {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip
    terms = memory(BASE.with_(recompute=Recompute("full")), zero(3, 8), **config)[0].phases["optimizer"].terms
    largest = 8192 * 28672 / 8
    assert 6e9 <= terms["optimizer_workspace"] < 6 * (1e9 + largest)


def test_whole_parameters_live_up_to_a_billion() -> None:
    """The small model is never released between its uses: all of it is whole in the backward pass."""
    terms = memory(BASE, zero(3))[0].phases["backward"].terms
    assert terms["gathered_weights"] == pytest.approx(2 * PARAMETERS)


def test_stages_1_and_2_keep_half_precision_gradients() -> None:
    for stage, gradients in ((1, 2 * PARAMETERS), (2, 2 * PARAMETERS / 4)):
        assert memory(BASE, zero(stage))[0].phases["optimizer"].terms["gradients"] == pytest.approx(gradients)


def test_zero_offload_keeps_gradients_on_the_host() -> None:
    terms = memory(BASE.with_(offload=frozenset({"optimizer"})), zero(2))[0].phases["optimizer"].terms
    assert not {"gradients", "optimizer_state", "master_weights", "optimizer_workspace"} & set(terms)


OPT = {
    "model_type": "opt", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "ffn_dim": 256,
    "word_embed_proj_dim": 32, "do_layer_norm_before": False, "vocab_size": 1000, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_megatron_deepspeed_opt_is_as_wide_as_the_model() -> None:
    """No projections, norms first, a final norm, an untied head: tables 1000 and 514 rows, both 64 wide."""
    arch = megatron_deepspeed(read_config(OPT))
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 4 * 64
    assert arch.parameters == 4 * layer + 2 * 1000 * 64 + arch.embed.ops[1].parameters + 2 * 64


def test_megatron_deepspeed_counts_embedding_and_head_as_units() -> None:
    """Layout 3,3 of a 4-layer model: two layers each; 16 bytes a parameter; no dropout whatever the recipe says."""
    recipe = TrainingRecipe(
        micro_batch=1, seq_len=128, grad_accum=4, framework="megatron-deepspeed", precision="fp32", dropout=0.1
    )
    par = Parallelism(pp=2, layout=(3, 3))
    stages = training_memory(read_config(OPT), resolve(recipe, par, profile("megatron-deepspeed")))
    assert [s.layers for s in stages] == [2, 2]
    # norms in and out, q k v, context, relu's output, probabilities (4 heads), statistics of two norms
    kept = 4 * (4 * 64 + 3 * 64 + 64 + 256) + 4 * 4 * 128 + 2 * 8
    # two micro-batches in flight on the first stage; ids of 8 bytes
    assert stages[0].phases["forward"].terms["activations"] == pytest.approx(128 * (2 * 2 * kept), rel=0.1)


def test_pipeline_engine_refuses_zero_2() -> None:
    with pytest.raises(CombinationError, match="ZeRO 0 and 1"):
        memory(BASE.with_(framework="megatron-deepspeed"), Parallelism(pp=2, zero=2))
