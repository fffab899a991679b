"""The `inputs` of the JSON object: every value that a launch used, defaults included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretell.cli._values import whole
from foretell.plan import Launch

if TYPE_CHECKING:
    from foretell.plan.pace import Pace

__all__ = ["inputs_of", "run_inputs", "train_inputs"]


def inputs_of(model: str, options: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Return every value that `fit` used, defaults included; None means that there is nothing to choose."""
    return run_inputs(model, options, launch) | {
        "allow_uncertain": bool(options["allow_uncertain"]),
        "max": options["max"],
        "min": options["min"],
    }


def run_inputs(model: str, options: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Return the values of a run, which every verb about training shares."""
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
    }


def train_inputs(model: str, options: dict[str, Any], pace: Pace) -> dict[str, Any]:
    """Return every value that `train` used, defaults included, but for the questions."""
    from foretell.cost.training_time import tp_overlap  # noqa: PLC0415  # what only a forecast of speed needs

    launch, network = pace.launch, pace.topology
    recipe, run = launch.recipe, launch.run
    return run_inputs(model, options, launch) | {
        "system": options["system"],
        "gpus_per_node": network.gpus_per_node,
        "network": network.network,
        "nic_gbps": 8e-9 * network.nic_bytes_per_s,
        "nics_per_node": network.nics_per_node,
        "congestion": pace.congestion,
        "algorithm": pace.algorithm,
        "software_date": recipe.date or None,
        "cuda_graphs": recipe.cuda_graphs,
        "tp_overlap": tp_overlap(run) if run.par.tp > 1 and run.par.sp else None,
        "dispatcher": recipe.dispatcher,
        "efficiency": pace.efficiency,
        "imbalance": pace.imbalance,
        "expert_spread": pace.expert_spread,
        "jitter": pace.jitter,
        "loader_time_s": pace.loader_s,
    }
