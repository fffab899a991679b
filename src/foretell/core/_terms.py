"""The terms of a memory answer: which categories of the fold each holds, and what to say about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from foretell.cost.evaluate import Basis
from foretell.cost.linear import Lin

__all__ = ["TERMS", "TERM_OF", "About", "formula", "merged"]


class About(NamedTuple):
    """What a term is, in a few words, and where its formula comes from."""

    what: str
    source: str


TERM_OF: Final = {
    "weights": "weights",
    "adapters": "adapters",
    "gradients": "gradients",
    "master_weights": "optimizer_state",
    "optimizer_state": "optimizer_state",
    "activations": "activations",
    "logits": "logits_and_loss",
    "gradient_flow": "activation_gradients",
    "temporaries": "temporaries",
    "weight_gradient_scratch": "temporaries",
    "optimizer_workspace": "optimizer_workspace",
    "communication_buffers": "communication_buffers",
    "gathered_weights": "gathered_weights",
    "mask": "activations",
    "quantization_scales": "weights",
    "allocator_slack": "allocator_slack",
}
"""Category of the fold -> term of the answer (a category that is not listed keeps its own name)."""

TERMS: Final = {
    "weights": About("parameters in their stored format, sharded as the run does", "arXiv 1910.02054"),
    "adapters": About("low-rank adapter matrices", "arXiv 2106.09685"),
    "gradients": About("gradients that exist at the peak, in the framework's format", "arXiv 1910.02054"),
    "optimizer_state": About("master weights and optimizer moments", "arXiv 1910.02054, section 3"),
    "activations": About("tensors kept for the backward pass", "PyTorch derivatives.yaml, arXiv 2205.05198"),
    "logits_and_loss": About("logits and the cross entropy's tensors", "the loss implementation of the recipe"),
    "activation_gradients": About("gradients flowing backward at the peak", "autograd replay"),
    "temporaries": About("workspace of the operator at the peak", "kernels' own sources"),
    "optimizer_workspace": About("copies that the optimizer step makes", "torch.optim, foreach"),
    "communication_buffers": About("buckets and reduce-scatter buffers", "the framework's source"),
    "gathered_weights": About("parameters gathered from their shards", "the framework's source"),
    "allocator_slack": About("reserved by the caching allocator, not allocated", "calibration: slack"),
    "library_workspaces": About("cuBLAS workspace", "CublasHandlePool.cpp"),
    "cuda_context": About("driver context of the process", "calibration: context"),
    "nccl": About("buffers of the NCCL communicators", "calibration: nccl"),
}


def merged(categories: Mapping[str, Any]) -> dict[str, Any]:
    """Return bytes by term from bytes by category.

    >>> merged({"master_weights": 4.0, "optimizer_state": 8.0})
    {'optimizer_state': 12.0}
    """
    out: dict[str, Any] = {}
    for category, size in categories.items():
        term = TERM_OF.get(category, category)
        out[term] = out[term] + size if term in out else size
    return out


_ROWS: Final = {
    "1": "",
    "B": "micro-batch",
    "T": "tokens",
    "TT": "tokens x seq",
    "E": "encoder tokens",
    "TE": "tokens x encoder seq",
    "EE": "encoder scores",
    "S": "seq",
    "SS": "seq^2",
}
_SHARDS: Final = {
    "1": "",
    "tp": "tp",
    "sp": "tp (sequence parallel)",
    "r": "tp (routed tokens)",
    "rt": "tp (routed tokens)",
    "ep": "(ep x etp)",
    "z": "dp group",
    "z.tp": "(dp group x tp)",
    "ze": "(dp group x tp, experts)",
}


def formula(form: Lin, term: str, basis: Basis, *, most: int = 3) -> str:
    """Return the linear form of one term as text, its largest parts first."""
    parts: dict[str, float] = {}
    for (category, monomial), coefficient in form.items():
        if TERM_OF.get(category, category) == term:
            parts[monomial] = parts.get(monomial, 0.0) + coefficient
    ranked = sorted(parts.items(), key=lambda item: -abs(item[1] * basis[item[0]]))
    texts = []
    for monomial, coefficient in ranked[:most]:
        rows, _, shard = monomial.partition("/")
        text = f"{coefficient:,.6g} B"
        if _ROWS.get(rows, rows):
            text += f" x {_ROWS.get(rows, rows)}"
        if _SHARDS.get(shard, shard):
            text += f" / {_SHARDS.get(shard, shard)}"
        texts.append(text)
    more = f" + {len(ranked) - most} more" if len(ranked) > most else ""
    return " + ".join(texts) + more
