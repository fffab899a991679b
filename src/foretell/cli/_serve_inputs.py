"""The `inputs` of `serve`: every value that was used, defaults included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretell.cli._values import whole
from foretell.report.serve import plain_number

if TYPE_CHECKING:
    from foretell.cli._serve_request import ServeRequest

__all__ = ["serve_inputs"]


def serve_inputs(model: str, options: dict[str, Any], made: ServeRequest) -> dict[str, Any]:
    """Return every value that was used, defaults included; None means that there is nothing to choose."""
    found, demand, r = made.deployment, made.demand, made.deployment.recipe
    spec = r.speculation
    return {
        "model": model,
        "gpu": found.hardware.id or found.hardware.name,
        "system": options["system"],
        "gpus_per_node": made.node,
        "engine": r.engine,
        "engine_version": found.resolved.engine.version,
        "weights": r.weights,
        "activations": r.activations,
        "kv_dtype": r.kv,
        "enforce_eager": r.enforce_eager,
        "efficiency": made.efficiency,
        "tp": r.tp,
        "pp": r.pp,
        "dp": r.dp,
        "dp_kind": r.dp_kind,
        "ep": r.ep,
        "max_num_seqs": r.max_num_seqs,
        "max_num_batched_tokens": r.max_num_batched_tokens,
        "max_model_len": r.max_model_len,
        "gpu_memory_utilization": r.memory_share,
        "block_size": r.block_size,
        "chunked_prefill": r.chunked_prefill,
        "speculative": None if spec is None else spec.method,
        "draft": made.draft,
        "draft_tokens": None if spec is None else spec.tokens,
        "acceptance": None if spec is None or spec.length is not None else spec.acceptance,
        "accepted_length": None if spec is None else spec.made,
        "prefill_gpus": None if made.prefill is None else made.prefill.deployment.recipe.devices,
        "prefill_gpu": None
        if made.prefill is None
        else made.prefill.deployment.hardware.id or made.prefill.deployment.hardware.name,
        "prefill_tp": None if made.prefill is None else made.prefill.deployment.recipe.tp,
        "transfer_gbps": None if made.prefill is None else 8e-9 * made.prefill.bytes_per_s,
        "input_tokens": plain_number(demand.inputs),
        "output_tokens": plain_number(demand.outputs),
        "cached_tokens": plain_number(demand.cached),
        "longest_output": plain_number(demand.longest),
        "input_cv": demand.input_cv,
        "concurrency": plain_number(demand.concurrency) if demand.kind == "closed" else None,
        "batch": plain_number(demand.concurrency) if demand.kind == "static" else None,
        "rate": demand.rate,
        "arrival_cv": demand.arrival_cv if demand.kind == "open" else None,
        "burst": None if demand.burst is None else dict(demand.burst),
        "requests": demand.requests,
        "trace": options["trace"],
        "trace_speed": made.trace.speed if made.trace is not None and made.trace.arrivals is not None else None,
        "simulate": made.simulate,
        "seed": whole(options["seed"], "seed", minimum=0, maximum=2**63) or 0,
        "slo": options["slo"],
        "max_gpus": whole(options["max_gpus"], "max_gpus"),
        "objective": options["objective"],
        "price": options["price"],
    }
