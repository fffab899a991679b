"""The questions of the solvers of serving for many batches, servers and loads at once.

Kinds (formats, layout, engine) are walked through; inside a kind, ServingModel and WeightStreamingModel are arrays over batches
and sequences, ServingCapacityModel over the loads of one replica, and ContinuousBatchingModel solves row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver._axes import Axes
from foretell.core.solver._replica import Replica
from foretell.core.solver._rows import Reasons, check_axes, tabulate
from foretell.core.solver._serving import LAYOUT
from foretell.core.solver.continuous_batching import Server
from foretell.core.solver.serving import Pair
from foretell.core.solver.serving_capacity import BOUNDS, Asked, cv_of, rate_of, replicas_of, sized, target_of
from foretell.core.solver.weight_streaming import BOUNDS as STREAMING_BOUNDS
from foretell.core.solver.weight_streaming import Asked as Streaming
from foretell.cost.kv_budget import largest_step
from foretell.cost.serving_batch import kept_bytes
from foretell.errors import InputError
from foretell.validation import MAX_SEQUENCE, positive_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.workload import Workload
    from foretell.core.solver._batch_memory import Node
    from foretell.core.solver._table import Table
    from foretell.machine.hardware import HardwareNode

__all__ = ["sweep_batching", "sweep_capacity", "sweep_serving", "sweep_streaming"]

SERVING: Final[dict[str, Any]] = {
    "seq_len": None,
    "batch_size": 1,
    "precision": "fp16",
    "efficiency": 0.5,
    "decode_hardware": None,
    "network_bandwidth": "100 GB/s",
    "draft_model": None,
    "draft_acceptance_rate": 0.7,
    "cached_prefix_len": 0,
    "prefill_chunk_tokens": None,
    "draft_tokens": 4,
    **LAYOUT,
}
BATCHING: Final[dict[str, Any]] = {
    "seq_len": None,
    "max_batch_size": 1,
    "page_size": 16,
    "precision": "fp16",
    "efficiency": 0.5,
    "max_seq_len": None,
    "mean_request_tokens": None,
    "output_tokens": None,
    "memory_share": None,
    **LAYOUT,
}
CAPACITY: Final[dict[str, Any]] = {
    "qps": None,
    "target_p99_latency_ms": None,
    "seq_len": None,
    "output_tokens": 128,
    "max_batch_size": 32,
    "precision": "fp16",
    "efficiency": 0.5,
    "max_replicas": 1024,
    "service_time_cv": 1.0,
    "max_seq_len": None,
    "mean_request_tokens": None,
    "memory_share": None,
    **LAYOUT,
}
STREAMING: Final[dict[str, Any]] = {
    "seq_len": None,
    "batch_size": 1,
    "precision": "fp16",
    "efficiency": 0.5,
    "phase": "decode",
    "injection_bandwidth": None,
    "weights": None,
    "kv_format": None,
}
_LOADS: Final[dict[str, Callable[[object], float]]] = {
    "qps": rate_of,
    "target_p99_latency_ms": target_of,
    "max_replicas": replicas_of,
    "service_time_cv": cv_of,
}
"""Settings of a load, which are arrays inside one kind of replica, and what checks them."""
_STEP: Final = 50_000
"""Rows that are answered together, which bounds the memory."""


class _Axes(Axes):
    """Axes of which some have no batch."""

    def __init__(self, given: Mapping[str, Any], known: Mapping[str, Any], needed: tuple[str, ...], *, product: bool) -> None:
        """Check the names; quantities are single values."""
        check_axes(given, known)
        for name in needed:
            if given.get(name) is None:
                raise InputError("is needed", field=name)
        listed = {name: [v] if hasattr(v, "units") and not getattr(v, "ndim", 0) else v for name, v in given.items()}
        arrays = ("batch_size", "seq_len") if "batch_size" in known else ()
        super().__init__({"batch_size": 1, **listed}, product=product, arrays=arrays)
        self._known = known

    def coded(self) -> Iterator[tuple[str, tuple[NDArray[Any], list[Any]]]]:
        """Yield each axis that the question has."""
        yield from (item for item in super().coded() if item[0] in self._known)


def _pieces(rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Places of rows that are answered together."""
    return [np.arange(start, min(start + _STEP, len(rows))) for start in range(0, len(rows), _STEP)]


# -- one batch ------------------------------------------------------------------------------------------------


def sweep_serving(workload: Workload, device: HardwareNode, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every batch that the axes make."""
    axes, reasons = _Axes(given, SERVING, ("seq_len",), product=product), Reasons()

    def answer(settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        cached = positive_int(settings["cached_prefix_len"], "cached_prefix_len", minimum=0, maximum=MAX_SEQUENCE)
        pair = Pair.of(workload, {**settings, "hardware": device})
        batch, tokens = (axes.size(name, rows, 1).astype(float) for name in ("batch_size", "seq_len"))
        why = reasons.first(len(rows), [(tokens <= cached, "cached_prefix_len must be shorter than the sequence")])
        tokens = np.where(why == 0, tokens, cached + 1.0)
        out: dict[str, Any] = {"reason": why, "feasible": np.zeros(len(rows), bool)}
        for piece in _pieces(rows):
            for name, values in _batches(pair, batch[piece], tokens[piece], cached).items():
                out.setdefault(name, np.full(len(rows), np.nan))[piece] = values
        return out

    return tabulate(axes, answer, SERVING, reasons, by="itl_s", texts={})


def _batches(pair: Pair, batch: NDArray[Any], tokens: NDArray[Any], cached: int) -> dict[str, Any]:
    """Return the columns of batches."""
    times = pair.times(batch, tokens, float(cached))
    step = np.minimum(pair.budget, batch * (tokens - cached))
    nodes = [(pair.reads, step)] if not pair.apart else [(pair.reads, step), (pair.decodes, batch)]
    held = [_held(node, batch, tokens, np.maximum(most, batch)) for node, most in nodes]
    shares = [found["total_memory_required_bytes"] / node.available for (node, _), found in zip(nodes, held, strict=True)]
    tight = np.argmax(shares, axis=0)
    out = {name: np.choose(tight, [one[name] for one in held]) for name in held[0]}
    cut = pair.chunk is not None
    return out | {
        "feasible": np.max(shares, axis=0) <= 1.0,
        "memory_utilization": np.max(shares, axis=0),
        "ttft_s": times.ttft,
        "itl_s": times.itl,
        "step_s": times.step,
        "throughput_tokens_per_s": batch / times.itl,
        "kv_transfer_s": times.transfer,
        "prompt_cache_hit_ratio": cached / tokens,
        "prefill_chunks": times.reading.chunks if cut else 1.0,
        "prefill_chunk_time_s": times.reading.mean if cut else np.nan,
        "decode_stall_bound_s": times.reading.slowest if cut else np.nan,
    }


def _held(node: Node, batch: NDArray[Any], tokens: NDArray[Any], step: NDArray[Any]) -> dict[str, Any]:
    """Return what the fullest accelerator of a node holds of batches."""
    found, budget = node.found, node.found.capacity.budget
    proposing = node.proposing()
    drafts = sum(s.weights for s in proposing) + batch * sum(kept_bytes(s, tokens) for s in proposing)
    sizes, which = np.unique(np.stack([batch, np.floor(step)]), axis=1, return_inverse=True)
    best: dict[str, Any] = {}
    for stage in node.stages:
        each = [largest_step(found.resolved, found.hardware, stage, int(b), int(s)) for b, s in sizes.T.tolist()]
        kept = batch * kept_bytes(stage, tokens)
        rest = np.array(each)[which.ravel()] + drafts + budget.context + budget.libraries + budget.communicators
        one = {
            "total_memory_required_bytes": stage.weights + kept + rest,
            "kv_cache_size_bytes": kept,
            "model_weights_size_bytes": stage.weights + 0.0 * kept,
        }
        more = one["total_memory_required_bytes"] > best.get("total_memory_required_bytes", 0.0)
        best = {name: np.where(more, values, best.get(name, 0.0)) for name, values in one.items()}
    return best


# -- a full server --------------------------------------------------------------------------------------------


def sweep_batching(workload: Workload, device: HardwareNode, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every server that the axes make, row by row."""
    needed = () if given.get("max_seq_len") is not None else ("seq_len",)
    axes, reasons = _Axes(given, BATCHING, needed, product=product), Reasons()

    def answer(settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        figures = Server.of(workload, device, settings).figures()
        whole = {name: np.full(len(rows), np.nan if value is None else value, float) for name, value in figures.items()}
        return whole | {"feasible": np.full(len(rows), figures["feasible"]), "reason": np.zeros(len(rows), np.int16)}

    return tabulate(axes, answer, BATCHING, reasons, by="tpot_s", texts={})


# -- replicas -------------------------------------------------------------------------------------------------


def sweep_capacity(workload: Workload, device: HardwareNode, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every load and replica that the axes make."""
    axes, reasons = _Axes(given, CAPACITY, ("qps", "target_p99_latency_ms"), product=product), Reasons()
    reasons[1] = "not met: see bottleneck"
    loads = {name: reasons.checked(axes.values.get(name, [CAPACITY[name]]), check) for name, check in _LOADS.items()}
    axes.walk = [name for name in axes.walk if name not in _LOADS]

    def answer(settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        asked = Asked.of(workload, device, settings)
        why = np.zeros(len(rows), np.int16)
        values = []
        for name, (numbers, codes) in loads.items():
            at = axes.index(name, rows) if name in axes.values else np.zeros(len(rows), np.int64)
            why = np.where(why == 0, codes[at], why)
            values.append(numbers[at])
        out: dict[str, Any] = {"reason": why, "feasible": np.zeros(len(rows), bool)}
        if not asked.fits:
            return out
        replica = Replica.of(asked.found, asked.traffic)
        for piece in _pieces(rows):
            for name, column in _sized(replica, *(v[piece] for v in values)).items():
                out.setdefault(name, np.zeros(len(rows), np.int8) if name == "bottleneck" else np.full(len(rows), np.nan))
                out[name][piece] = column
        return out

    return tabulate(axes, answer, CAPACITY, reasons, by="required_replicas", texts={"bottleneck": list(BOUNDS)})


def _sized(replica: Replica, rate: NDArray[Any], target: NDArray[Any], most: NDArray[Any], cv: NDArray[Any]) -> dict[str, Any]:
    """Return the columns of loads."""
    found = sized(replica, rate, target, most, cv)
    capacity = found.count * replica.sharing.largest_rate
    return {
        "feasible": (found.needed > 0) & (found.needed <= most),
        "required_replicas": np.where(found.needed > 0, found.needed, np.nan),
        "devices": np.where(found.needed > 0, found.needed * replica.found.recipe.devices, np.nan),
        "qps_capacity": capacity,
        "per_replica_qps_capacity": np.full(len(rate), replica.sharing.largest_rate),
        "utilization": rate / capacity,
        "estimated_p99_latency_s": found.response,
        "mean_latency_s": found.mean,
        "base_request_latency_s": np.full(len(rate), replica.alone),
        "queue_wait_p99_s": found.wait,
        "active_batch_size": found.held,
        "ttft_s": found.first,
        "itl_s": found.itl,
        "bottleneck": found.bottleneck.astype(np.int8),
    }


# -- streamed weights -----------------------------------------------------------------------------------------


def sweep_streaming(workload: Workload, device: HardwareNode, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every pass that the axes make."""
    axes, reasons = _Axes(given, STREAMING, ("seq_len",), product=product), Reasons()

    def answer(settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        asked = Streaming.of(workload, device, settings)
        batch, tokens = (axes.size(name, rows, 1).astype(float) for name in ("batch_size", "seq_len"))
        out: dict[str, Any] = {"reason": np.zeros(len(rows), np.int16), "feasible": np.zeros(len(rows), bool)}
        out["bottleneck"] = np.zeros(len(rows), np.int8)
        for piece in _pieces(rows):
            for name, values in _passes(asked, batch[piece], tokens[piece]).items():
                out.setdefault(name, np.full(len(rows), np.nan))[piece] = values
        return out

    texts = {"bottleneck": list(STREAMING_BOUNDS)}
    return tabulate(axes, answer, STREAMING, reasons, by="pass_time_s", texts=texts)


def _passes(asked: Streaming, batch: NDArray[Any], tokens: NDArray[Any]) -> dict[str, Any]:
    """Return the columns of passes."""
    found = asked.figures(batch, tokens)
    return {
        "feasible": found.feasible,
        "throughput_tokens_per_sec": found.throughput,
        "bottleneck": np.asarray(found.one.bound).astype(np.int8),
        "layer_compute_time_s": found.one.compute,
        "layer_injection_time_s": found.one.injection,
        "pass_time_s": found.one.total,
        "optimal_batch_size": found.balanced,
        "max_batch_size": found.most,
        "wafer_memory_utilization": found.total / asked.available,
        "kv_cache_size_bytes": found.kept,
        "activations_size_bytes": found.working,
        "total_memory_required_bytes": found.total,
    }
