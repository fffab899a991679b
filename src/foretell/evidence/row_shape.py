"""The shape of a memory row: which fields must be there, and of which kind, before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from foretell.errors import InputError
from foretell.validation import MAX_SEQUENCE, number, positive_int

__all__ = ["fault_of"]

_MAPPINGS: Final = ("source", "software", "hardware", "model", "model.config", "training", "parallel", "measured")
_OPTIONAL_MAPPINGS: Final = (
    "training.dtypes",
    "training.peft",
    "training.quantization",
    "training.recompute",
    "training.offload",
)
_TEXTS: Final = ("software.framework", "training.recompute.mode", "training.peft.kind", "training.quantization.kind")
_OPTIONAL_TEXTS: Final = (
    *(f"training.{key}" for key in ("optimizer", "optimizer_impl", "attention", "loss")),
    *(f"training.dtypes.{key}" for key in ("param", "grad", "master", "optim", "compute", "fp8_recipe")),
    *(f"software.{key}" for key in ("date", "version", "name")),
    *(f"measured.{key}" for key in ("metric", "scope", "outcome")),
    *(f"parallel.{key}" for key in ("sharding", "schedule", "pp_layout", "reshard")),
    "hardware.gpu",
    "notes",
    "training.recompute.scope",
)
_WHOLE: Final = ("confidence", "training.micro_batch", "parallel.dp")
_OPTIONAL_WHOLE: Final = (
    "training.grad_accum",
    "training.global_batch",
    "training.seq_len",
    *(f"parallel.{key}" for key in ("tp", "pp", "cp", "ep", "etp", "vpp", "hsdp_replicas")),
    "training.recompute.layers",
)
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
OUTCOMES: Final = ("fits", "oom")
_MISSING: Final = object()


def fault_of(row: Mapping[str, Any]) -> str | None:
    """Return what keeps a row from being read, or None.

    >>> fault_of({"id": "a", "source": {}, "measured": 3})
    'software is missing'
    """
    return next((fault for faults in (_objects, _texts, _numbers, _names) for fault in faults(row)), None)


def _objects(row: Mapping[str, Any]) -> Iterator[str]:
    for path in (*_MAPPINGS, *_OPTIONAL_MAPPINGS):
        value = _at(row, path)
        if path in _MAPPINGS and (value is _MISSING or value is None):
            yield f"{path} is missing"
        if value is not _MISSING and value is not None and not isinstance(value, Mapping):
            yield f"{path} is no object"
    assumed = row.get("assumed", ())
    if not isinstance(assumed, list | tuple) or not all(isinstance(entry, Mapping) for entry in assumed):
        yield "assumed is no list of objects"


def _texts(row: Mapping[str, Any]) -> Iterator[str]:
    for path in (*_TEXTS, *_OPTIONAL_TEXTS):
        value = _at(row, path)
        if value is _MISSING or value is None:
            if path in _TEXTS and isinstance(_at(row, path.rpartition(".")[0]), Mapping):
                yield f"{path} is missing"
        elif not isinstance(value, str):
            yield f"{path} is no text"


def _numbers(row: Mapping[str, Any]) -> Iterator[str]:
    try:
        for path in (*_WHOLE, *_OPTIONAL_WHOLE):
            value = _at(row, path)
            if path in _WHOLE and (value is _MISSING or value is None):
                yield f"{path} is missing"
            elif value is not _MISSING and value is not None:
                positive_int(value, path, maximum=MAX_STAGES if path in ("parallel.pp", "parallel.vpp") else MAX_SEQUENCE)
        if (size := _at(row, "measured.gib")) is not _MISSING:
            number(size, "measured.gib", minimum=1e-6, maximum=2.0**20)
    except InputError as error:
        yield str(error)


def _names(row: Mapping[str, Any]) -> Iterator[str]:
    measured = row["measured"]
    if "gib" not in measured and "outcome" not in measured:
        yield "measured.gib is missing"
    for key, names in (("metric", METRICS), ("outcome", OUTCOMES)):
        if measured.get(key, names[0]) not in names:
            yield f"measured.{key} {measured[key]!r} is none of {', '.join(names)}"


def _at(row: Mapping[str, Any], path: str) -> Any:  # what a file holds
    """Return the value at a dotted path."""
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value
