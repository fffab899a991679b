"""Rows of evidence: what was measured, one value a row, in the form in which foretell replays published measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from _measure.supervisor import Record, peaks, process_bytes

__all__ = ["gpu_id", "rows_of", "write_rows"]

ROWS: Final = "rows.jsonl"
SOFTWARE: Final = "tools/measure_memory.py: a loop that keeps the loss alone, modules as in transformers"
GIB: Final = 2**30
_GPUS: Final = (
    ("H200 NVL", None),
    ("GH200", "gh200"),
    ("H200", "h200-sxm"),
    ("H100 80GB HBM3", "h100-sxm-80gb"),
    ("H100 PCIe", "h100-pcie-80gb"),
    ("H800", "h800-sxm"),
    ("A100-SXM4-80GB", "a100-sxm-80gb"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100 80GB PCIe", "a100-pcie-80gb"),
    ("A10G", "a10g-24gb"),
    ("GB200", "gb200"),
    ("GB300", "gb300"),
    ("B200", "b200-sxm"),
    ("B300", "b300-sxm"),
    ("L40S", "l40s"),
    ("RTX 3090", "rtx3090"),
    ("RTX 4090", "rtx4090"),
    ("Tesla T4", "t4"),
)
"""Part of the name that PyTorch gives -> name in the rows; the first that fits counts."""
_DTYPES: Final = {
    "bf16": {"param": "fp32", "grad": "fp32", "optim": "fp32", "compute": "bf16"},
    "bf16-true": {"param": "bf16", "grad": "bf16", "optim": "bf16", "compute": "bf16"},
    "fp32": {"param": "fp32", "grad": "fp32", "optim": "fp32", "compute": "fp32"},
}
_METRICS: Final = ("allocated", "active", "reserved", "process")


def gpu_id(name: str) -> str | None:
    """Return a GPU's name in rows and catalog by the name that PyTorch gives it; None: it is not known.

    >>> gpu_id("NVIDIA H200"), gpu_id("NVIDIA H200 NVL")
    ('h200-sxm', None)
    """
    return next((found for part, found in _GPUS if part in name), None)


def write_rows(folder: Path, records: list[Record]) -> int:
    """Write the rows of all records that can be rows; return how many."""
    rows = [row for record in records for row in rows_of(record)]
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return len(rows)


def rows_of(record: Record) -> list[dict[str, Any]]:
    """Return the rows of a record: none of a run that failed, or that was under a limit of the allocator's own."""
    c = record.get("configuration")
    if c is None or c["limit_bytes"] is not None or record["outcome"] not in ("measured", "oom") or "machine" not in record:
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    if record["outcome"] == "oom":
        found.append(("oom", {"outcome": "oom"}))
    else:
        values = {k: v for k, v in peaks(record).items() if k in _METRICS}
        process = process_bytes(record)
        if process is not None:
            values["process"] = process[0]
        found += [(m, {"metric": m, "scope": "rank0", "gib": values[m] / GIB}) for m in _METRICS if values.get(m)]
    base = _identity(record)
    names = [f"{base}-{suffix}" for suffix, _ in found]
    common = _common(record, c)
    return [
        {"id": name, **common, "measured": measured, "confidence": 3}
        | ({"not_independent_of": [other for other in names if other != name]} if len(names) > 1 else {})
        | {"notes": _notes(record, c, measured.get("metric"))}
        for name, (_, measured) in zip(names, found, strict=True)
    ]


def _identity(record: Record) -> str:
    machine = record["machine"]
    device = re.sub(r"[^a-z0-9]+", "_", machine["gpu"].lower().replace("nvidia", "")).strip("_")
    torch = re.sub(r"[^0-9a-z.]+", "_", machine["torch"].lower())
    return f"foretell{'_dry' if record['dry'] else ''}-{device}-torch{torch}-{record['name']}"


def _common(record: Record, c: dict[str, Any]) -> dict[str, Any]:
    """Return what all rows of a record share."""
    machine, day = record["machine"], record["when"][:10]
    title = "REHEARSAL, made-up numbers" if record["dry"] else f"foretell's own measurement on one {machine['gpu']}"
    gpu = gpu_id(machine["gpu"])
    model: dict[str, Any] = {"name": record["name"], "config": c["shape"]}
    if record.get("parameters"):
        model["params"] = record["parameters"]
    versions = f"torch {machine['torch']}; CUDA {machine['cuda']}; cuDNN {machine['cudnn']}; driver {machine['driver']}"
    return {
        "source": {"title": title, "ref": "tools/measure_memory.py", "date": day},
        "model": model,
        "hardware": ({"gpu": gpu} if gpu else {}) | {"gpus": 1, "gpus_per_node": 1},
        "software": {"framework": "other", "name": SOFTWARE, "version": versions, "date": day},
        "training": _training(record, c),
        "parallel": {"dp": 1, "tp": 1, "pp": 1},
    }


def _training(record: Record, c: dict[str, Any]) -> dict[str, Any]:
    optimizer, _, implementation = c["optimizer"].partition("-")
    momentum = implementation == "momentum"
    micro, accumulated = c["micro_batch"], c["accumulate"]
    out: dict[str, Any] = {"micro_batch": micro, "grad_accum": accumulated, "global_batch": micro * accumulated}
    if c["tokens"] is not None:
        out["seq_len"] = c["tokens"]
    else:
        scale = 8 if c["library"] == "diffusers" else 1  # an autoencoder's latent image is an eighth of the image
        out["image_size"] = [c["pixels"] * scale] * 2
    dtypes = _DTYPES[c["precision"]]
    if c["lora_rank"] is not None:
        dtypes = dtypes | {"grad": "fp32", "optim": "fp32"}
        out["peft"] = {"kind": "lora", "rank": c["lora_rank"], "targets": list(c["lora_targets"]), "dtype": "fp32"}
        if record.get("trainable"):
            out["peft"]["trainable"] = record["trainable"]
    out |= {
        "dtypes": dtypes,
        "optimizer": "sgdm" if momentum else optimizer,
        "optimizer_impl": implementation if implementation in ("fused", "forloop") else "foreach",
        "recompute": {"mode": "none"} if c["recompute"] == "none" else {"mode": "full", "scope": "layer"},
        "compile": c["compiled"],
    }
    if c["shape"]["model_type"] != "resnet":
        out["attention"] = c["attention"]
    out["loss"] = "mse" if c["library"] == "diffusers" else "eager"
    return out


def _notes(record: Record, c: dict[str, Any], metric: str | None) -> str:
    """Say what no field has a place for."""
    said = [c["why"]]
    said += [f"PYTORCH_CUDA_ALLOC_CONF={c['allocator']}"] if c["allocator"] else []
    said += ["checkpointing is re-entrant"] if c["recompute"] == "full-reentrant" else []
    said += [f"gradients clipped to norm {c['clip']:g}"] if c["clip"] is not None else []
    said += ["channels_last"] if c["channels_last"] else []
    said += [f"classes of {c['library']}"] if c["library"] else []
    steps = record.get("steps") or []
    if metric in ("allocated", "active", "reserved") and steps:
        each = ", ".join(f"{step[metric] / GIB:.3f}" for step in steps)
        said.append(f"peak of each of {len(steps)} steps: {each} GiB")
    process = process_bytes(record)
    if metric == "process" and process is not None:
        said.append(f"read after the last step ({process[1]})")
    if record.get("kernels"):
        said.append("attention: " + ", ".join(sorted(record["kernels"])))
    if record["outcome"] == "oom":
        said.append(record.get("reason", ""))
    return "; ".join(part for part in said if part)
