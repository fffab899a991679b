"""The shape of a row: which fields must be there, and of which kind, before it is read.  A kind of evidence is one ``Shape``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import InputError
from foretell.validation import MAX_SEQUENCE, number, positive_int

__all__ = ["MEMORY", "SERVING", "TRAINING", "Shape", "fault_of"]

METRICS: Final = (
    "allocated",
    "active",
    "allocated-static",
    "breakdown-sum",
    "reserved",
    "reserved-sampled",
    "process",
    "unknown",
)
MAX_STAGES: Final = 1024
"""Pipeline stages that a measured run has at most."""
MAX_ACCUMULATION: Final = 2**20
"""Micro-batches a step that a measured run has at most."""
OUTCOMES: Final = ("fits", "oom")
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Shape:
    """Dotted paths of a row's fields, by what must stand there; a field that is not named is not read."""

    objects: tuple[str, ...]
    """Must be there."""
    maybe_objects: tuple[str, ...]
    texts: tuple[str, ...]
    """Must be there where the object that holds them is."""
    maybe_texts: tuple[str, ...]
    whole: tuple[str, ...]
    """Whole numbers from 1 that must be there."""
    maybe_whole: tuple[str, ...]
    least: Mapping[str, float]
    """Numbers that may be there -> the smallest that is taken."""
    some: tuple[str, ...]
    """Fields of which one must be there."""
    names: Mapping[str, tuple[str | int, ...]]
    """Fields that may be there -> what they can be."""
    flags: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Lists of texts that may be there."""
    dates: tuple[str, ...] = ()
    """ISO dates that may be there: a year, a month or a day."""


_WHOLE: Final = ("confidence", "training.micro_batch", "parallel.dp")
_MAYBE_WHOLE: Final = (
    "training.grad_accum",
    "training.global_batch",
    "training.seq_len",
    *(f"parallel.{key}" for key in ("tp", "pp", "cp", "ep", "etp", "vpp", "hsdp_replicas")),
    "training.recompute.layers",
)
_OBJECTS: Final = ("source", "software", "hardware", "model", "model.config", "training", "parallel", "measured")
_MAYBE_OBJECTS: Final = (
    "training.dtypes",
    "training.peft",
    "training.quantization",
    "training.recompute",
    "training.offload",
)
_TEXTS: Final = ("software.framework", "training.recompute.mode", "training.peft.kind", "training.quantization.kind")
_MAYBE_TEXTS: Final = (
    *(f"training.{key}" for key in ("optimizer", "optimizer_impl", "attention", "loss")),
    *(f"training.dtypes.{key}" for key in ("param", "grad", "master", "optim", "compute", "fp8_recipe")),
    *(f"software.{key}" for key in ("date", "version", "name")),
    *(f"parallel.{key}" for key in ("sharding", "schedule", "pp_layout", "reshard")),
    "notes",
    "training.recompute.scope",
)
MEMORY: Final = Shape(
    objects=_OBJECTS,
    maybe_objects=_MAYBE_OBJECTS,
    texts=_TEXTS,
    maybe_texts=(*_MAYBE_TEXTS, "hardware.gpu", *(f"measured.{key}" for key in ("metric", "scope", "outcome"))),
    whole=_WHOLE,
    maybe_whole=_MAYBE_WHOLE,
    least={"measured.gib": 1e-6},
    some=("measured.gib", "measured.outcome"),
    names={"measured.metric": METRICS, "measured.outcome": OUTCOMES},
)
TRAINING: Final = Shape(
    objects=_OBJECTS,
    maybe_objects=(*_MAYBE_OBJECTS, "hardware.fabric", "training.moe", "training.cuda_graph"),
    texts=(*_TEXTS, "hardware.gpu", "source.title", "model.name", "training.cuda_graph.impl"),
    maybe_texts=(*_MAYBE_TEXTS, "hardware.fabric.intra", "hardware.fabric.inter", "source.date", "measured.flop_convention"),
    whole=(*_WHOLE, "hardware.gpus", "training.seq_len"),
    maybe_whole=(
        *_MAYBE_WHOLE,
        "hardware.gpus_per_node",
        "hardware.fabric.nics_per_node",
        "hardware.fabric.domain_gpus",
        "model.params",
        "model.params_active",
        "training.peft.rank",
    ),
    least={
        "measured.step_s": 1e-6,
        "measured.tokens_per_s_per_gpu": 1e-9,
        "hardware.fabric.nic_gbps": 1e-3,
        "hardware.fabric.node_gbps": 1e-3,
        "training.moe.capacity_factor": 1e-3,
    },
    some=("measured.step_s", "measured.tokens_per_s_per_gpu"),
    names={
        "split": ("calib", "holdout", "open", "drift", "replicate", "reference"),
        "parallel.zero": (0, 1, 2, 3),
        "training.cuda_graph.impl": ("none", "local", "transformer-engine", "layer", "mcore", "full-iteration"),
        "training.moe.dispatcher": ("alltoall", "flex", "deepep"),
    },
    flags=("training.compile", "parallel.sp", "parallel.tp_comm_overlap", "training.moe.dropless"),
    lists=("training.peft.targets", "training.recompute.modules", "training.cuda_graph.scope"),
    dates=("software.date", "source.date"),
)
SERVING: Final = Shape(
    objects=("source", "engine", "hardware", "model", "model.config", "serving", "load", "measured"),
    maybe_objects=("serving.speculative", "serving.disaggregated", "load.burst"),
    texts=("source.title", "engine.name", "hardware.gpu", "model.name", "load.kind"),
    maybe_texts=(
        "engine.version",
        "notes",
        "load.dataset",
        *(f"serving.{key}" for key in ("weights_dtype", "activation_dtype", "kv_dtype", "speculative.method")),
        *(f"measured.{key}" for key in ("statistic", "ttft_statistic", "itl_kind", "ttft_kind", "throughput_scope")),
    ),
    whole=("confidence", "hardware.gpus"),
    maybe_whole=(
        "hardware.gpus_per_node",
        "load.requests",
        "load.max_output_tokens",
        "serving.speculative.draft_tokens",
        *(f"serving.{key}" for key in ("tp", "pp", "ep", "dp", "max_num_seqs", "max_num_batched_tokens", "max_model_len")),
    ),
    least={
        "load.input_tokens": 0.0,
        "load.output_tokens": 0.0,
        "load.batch": 1e-9,
        "load.concurrency": 1e-9,
        "load.request_rate_per_s": 1e-9,
        "load.arrival_cv": 0.0,
        "serving.gpu_memory_utilization": 1e-3,
        "serving.kv_cache_free_memory_fraction": 1e-3,
        "serving.mem_fraction_static": 1e-3,
        "serving.speculative.acceptance_length": 1.0,
    },
    some=(
        *(f"measured.{key}" for key in ("ttft_s", "itl_s", "kv_tokens", "kv_bytes", "feasible")),
        *(f"measured.{key}_tokens_per_s" for key in ("output", "input", "total")),
    ),
    names={
        "load.kind": ("static", "closed", "open", "single", "offline", "capacity"),
        "serving.dp_kind": ("replica", "attention"),
        "measured.throughput_scope": ("total", "per_gpu"),
    },
    flags=("serving.chunked_prefill", "serving.prefix_cache", "serving.enforce_eager", "measured.feasible"),
    dates=(),
)
_LARGEST: Final = {
    "parallel.pp": MAX_STAGES,
    "parallel.vpp": MAX_STAGES,
    "training.grad_accum": MAX_ACCUMULATION,
    "model.params": 10**15,
    "model.params_active": 10**15,
}
_DATE: Final = re.compile(r"20\d\d(-(0[1-9]|1[0-2])(-\d\d)?)?")


def fault_of(row: Mapping[str, Any], shape: Shape = MEMORY) -> str | None:
    """Return what keeps a row from being read, or None.

    >>> fault_of({"id": "a", "source": {}, "measured": 3})
    'software is missing'
    """
    parts = (_objects, _texts, _numbers, _names, _others)
    return next((fault for faults in parts for fault in faults(row, shape)), None)


def _objects(row: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    for path in (*shape.objects, *shape.maybe_objects):
        value = _at(row, path)
        if path in shape.objects and (value is _MISSING or value is None):
            yield f"{path} is missing"
        if value is not _MISSING and value is not None and not isinstance(value, Mapping):
            yield f"{path} is no object"
    assumed = row.get("assumed", ())
    kinds = (Mapping, str) if shape is SERVING else (Mapping,)
    if not isinstance(assumed, list | tuple) or not all(isinstance(entry, kinds) for entry in assumed):
        yield "assumed is no list of objects"


def _texts(row: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    for path in (*shape.texts, *shape.maybe_texts):
        value = _at(row, path)
        if value is _MISSING or value is None:
            if path in shape.texts and isinstance(_at(row, path.rpartition(".")[0]), Mapping):
                yield f"{path} is missing"
        elif not isinstance(value, str):
            yield f"{path} is no text"


def _numbers(row: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    try:
        for path in (*shape.whole, *shape.maybe_whole):
            value = _at(row, path)
            if path in shape.whole and (value is _MISSING or value is None):
                yield f"{path} is missing"
            elif value is not _MISSING and value is not None:
                positive_int(value, path, maximum=_LARGEST.get(path, MAX_SEQUENCE))
        for path, least in shape.least.items():
            if (size := _at(row, path)) is not _MISSING:
                number(size, path, minimum=least, maximum=2.0**40)
    except InputError as error:
        yield str(error)


def _names(row: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    if all(_at(row, path) is _MISSING for path in shape.some):
        yield f"{shape.some[0]} is missing"
    for path, names in shape.names.items():
        if (given := _at(row, path)) is not _MISSING and given not in names:
            yield f"{path} {given!r} is none of {', '.join(map(str, names))}"


def _others(row: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    for path in shape.flags:
        if not isinstance(_at(row, path), bool) and _at(row, path) not in (_MISSING, None):
            yield f"{path} is neither true nor false"
    for path in shape.lists:
        value = _at(row, path)
        if value is not _MISSING and not (isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)):
            yield f"{path} is no list of texts"
    for path in shape.dates:
        value = _at(row, path)
        if isinstance(value, str) and not _DATE.fullmatch(value):
            yield f"{path} {value!r} is no date (2024, 2024-06 or 2024-06-30)"


def _at(row: Mapping[str, Any], path: str) -> Any:  # what a file holds
    """Return the value at a dotted path."""
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value
