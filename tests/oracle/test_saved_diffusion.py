"""Saved tensors of small diffusers networks on the CPU against the fold (see :mod:`test_saved_tensors`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foretell.arch.readers import read_config
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import TrainingRecipe

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
BATCH, TEXT = 2, 77


def _diffusers() -> Any:
    try:
        import diffusers  # heavy, and absent from most machines
    except Exception as error:  # noqa: BLE001  # its import checks raise errors of many kinds
        pytest.skip(f"diffusers cannot be imported: {error}")
    return diffusers


def _unet(d: Any) -> tuple[Any, dict[str, Any]]:
    net = d.UNet2DConditionModel(
        sample_size=32, block_out_channels=(32, 64, 128), layers_per_block=2, cross_attention_dim=64, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    batch = {"sample": torch.zeros(BATCH, 4, 32, 32), "encoder_hidden_states": torch.zeros(BATCH, TEXT, 64)}
    return net, {**batch, "timestep": torch.tensor([1, 2])}


def _dit(d: Any) -> tuple[Any, dict[str, Any]]:
    net = d.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=8, num_layers=2, sample_size=32
    )
    numbers = torch.tensor([1, 2])
    return net, {"hidden_states": torch.zeros(BATCH, 4, 32, 32), "timestep": numbers, "class_labels": numbers}


def _sd3(d: Any) -> tuple[Any, dict[str, Any]]:
    net = d.SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=16, num_layers=2, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=128, pooled_projection_dim=64, out_channels=16,
    )  # fmt: skip
    batch = {"hidden_states": torch.zeros(BATCH, 16, 32, 32), "encoder_hidden_states": torch.zeros(BATCH, 333, 64)}
    return net, {**batch, "pooled_projections": torch.zeros(BATCH, 64), "timestep": torch.tensor([1.0, 2.0])}


@pytest.mark.parametrize("build", [_unet, _dit, _sd3])
def test_fp32(build: Callable[[Any], tuple[Any, dict[str, Any]]]) -> None:
    model, batch = build(_diffusers())
    model = model.float().train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(t: Any) -> Any:
        if t.untyped_storage().data_ptr() not in own:
            kept.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(**batch)
    expected = sum(t.untyped_storage().nbytes() for t in kept.values())
    recipe = TrainingRecipe(micro_batch=BATCH, seq_len=TEXT, framework="hf-trainer", precision="fp32", attention="sdpa")
    run = resolve(recipe, Parallelism(), profile("hf-trainer"))
    run = replace(run, profile=replace(run.profile, style=replace(run.style, logits_held="")))
    arch = read_config({**dict(model.config), "_class_name": type(model).__name__})
    assert evaluate(fold_run(arch, run)[0].saved.by_monomial(), Basis(sizes_of(run))) == pytest.approx(expected, rel=0.02)
