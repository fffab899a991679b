"""The `inputs` of the JSON object: every value that a launch used, defaults included."""

from __future__ import annotations

from typing import Any

from foretell.cli._values import whole
from foretell.plan import Launch

__all__ = ["inputs_of"]


def inputs_of(model: str, options: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Return every value that was used, defaults included; None means that there is nothing to choose."""
    run = launch.run
    recipe, par = run.recipe, run.par
    encoder = any(block.stream == "encoder" for block, _ in launch.workload.architecture.blocks())
    tokens = launch.reads_tokens
    adapter, quantization = recipe.adapter, recipe.quantization
    return {
        "model": model,
        "gpu": launch.hardware.id or launch.hardware.name,
        "gpus": launch.gpus,
        "gpus_per_node": launch.gpus_per_node,
        "headroom": launch.headroom,
        "micro_batch": recipe.micro_batch,
        "global_batch": launch.global_batch,
        "grad_accum": recipe.grad_accum,
        "seq_len": recipe.seq_len if tokens else None,
        "encoder_seq_len": recipe.encoder_seq_len or (recipe.seq_len if tokens and encoder else None),
        "packing": options["packing"] is not False if tokens else None,
        "max_sample_len": whole(options["max_sample_len"], "max_sample_len"),
        "dp": par.dp,
        "tp": par.tp,
        "pp": par.pp,
        "vpp": par.vpp,
        "cp": par.cp,
        "ep": par.ep,
        "etp": par.etp,
        "sp": par.sp,
        "zero": launch.par.zero,
        "sharding": run.sharding,
        "hsdp_replicas": par.hsdp_replicas,
        "pp_layout": None if par.layout is None else list(par.layout),
        "schedule": run.schedule if par.pp > 1 else None,
        "framework": recipe.framework,
        "precision": recipe.precision,
        "optimizer": recipe.optimizer,
        "optimizer_impl": recipe.optimizer_impl or launch.framework.optimizer_impl,
        "optimizer_in_backward": recipe.optimizer_in_backward,
        "recompute": recipe.recompute.mode,
        "recompute_scope": recipe.recompute.scope,
        "recompute_layers": recipe.recompute.layers,
        "recompute_modules": list(recipe.recompute.modules),
        "attention": recipe.attention or launch.framework.style.attention,
        "loss": recipe.loss or launch.framework.style.loss,
        "compile": recipe.compile,
        "dropout": recipe.dropout,
        "offload": sorted(launch.recipe.offload),
        "expandable_segments": run.expandable and launch.hardware.cuda_like,
        "lora_rank": None if adapter is None else adapter.rank,
        "lora_targets": [] if adapter is None else list(adapter.targets),
        "lora_kind": None if adapter is None else adapter.kind,
        "lora_dropout": None if adapter is None else adapter.dropout,
        "modules_to_save": [] if adapter is None else list(adapter.modules_to_save),
        "quantization": None if quantization is None else quantization.kind,
        "double_quant": None if quantization is None else quantization.double,
        "trainable_fraction": recipe.trainable_fraction,
        "allow_uncertain": bool(options["allow_uncertain"]),
        "max": options["max"],
        "min": options["min"],
    }
