"""A memory row of the evidence files -> the run that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.readers import read_config
from foretell.errors import ForetellError
from foretell.evidence.row_run import Skip, run_of
from foretell.recipe.resolve import Run, resolve


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row, ready to predict."""

    arch: Architecture
    run: Run
    stage: int | None
    """Pipeline rank that was measured; None: the highest."""


_PIPELINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "FLUX.2-klein-base-4B",  # black-forest-labs/FLUX.2-klein-base-4B transformer/config.json
        {
            "_class_name": "Flux2Transformer2DModel", "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24,
            "attention_head_dim": 128, "joint_attention_dim": 7680, "guidance_embeds": False,
        },
    ),
)  # fmt: skip
"""Transformers of pipelines that rows only name."""
_NAME_ONLY = {"detectron2", "diffusers"}


def read_row(row: Mapping[str, Any]) -> MemoryRow:
    """Translate one row; :class:`Skip` with the reason when it cannot be."""
    config = row["model"]["config"]
    if config.get("model_type") == "diffusers" or "_class_name" in config:
        config = _diffusers(row["model"])
        if "image_size" in row["training"]:
            config = {**config, "image_size": row["training"]["image_size"]}
    if config.get("model_type") in _NAME_ONLY:
        raise Skip(f"underspecified: config names a {config['model_type']} model but not its shapes")
    if config.get("model_type") == "mmseg":  # such configurations name no size
        config = {**config, "image_size": row["training"]["image_size"]}
    try:
        arch = read_config(config, where=row["id"])
        run = resolve(*run_of(row))
    except ForetellError as error:
        raise Skip(f"not-modelled: {error}") from error
    scope = row["measured"].get("scope", "rank0")
    pp = run.par.pp
    stage = {"max-rank": None, "rank0": 0, "last-stage": pp - 1}.get(scope)
    if scope.startswith("stage:"):
        stage = int(scope.split(":")[1])
    return MemoryRow(arch, run, stage)


def _diffusers(model: Mapping[str, Any]) -> dict[str, Any]:
    """The transformer of a diffusers pipeline: the row's own configuration, or the published one of that name."""
    config = {key: value for key, value in model["config"].items() if key != "model_type" or value != "diffusers"}
    if "_class_name" in config:
        return config
    named = f"{model.get('name', '')} {config.get('name', '')}"
    return next((published for name, published in _PIPELINES if name in named), dict(model["config"]))
