"""What simpler answers would have said of the same rows: a constant share of the peak, and the plain formula.

A forecast that is no better than these is not worth its constants; the report prints them beside it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, Final

from foretell.cost.topology import Topology
from foretell.evidence.ranking import grouped_choices
from foretell.evidence.summary import Scored, grouped, quantile, summary
from foretell.evidence.training_scored import TrainingScored, choices

__all__ = ["baselines", "constant_share", "fitted_share", "formula_s", "shares"]

EFFICIENCY: Final = 0.5
"""The one share of the peak that calculators of this kind take for every kernel."""
LAYER_S: Final = 3e-5
"""Seconds of launches that they add for each layer, forward and backward."""
LATENCY_S: Final = 5e-6
"""Seconds of one message between nodes; inside a node, a fifth of it."""
ADAPTER_SHARE: Final = 0.01
"""Gradients of adapters over those of the whole model."""
_NOTES: Final = {
    "constant_mfu": (
        "share of the peak by generation and precision, the median of what other sources of the shipped rows reached at their "
        "medians; a row's own source is never used for it"
    ),
    "constant_mfu_fitted": "the same, the median of all shipped rows of the generation and precision, a row's own among them",
    "reference_formula": (
        "6 x parameters x tokens at half the peak, 4/3 of it under full recomputation, a bubble of (p-1)/(v m), ring all-reduces "
        "of gradients and activations; no attention, nothing overlapped"
    ),
}


def baselines(rows: Sequence[TrainingScored]) -> dict[str, Any]:
    """Errors, ranking and regret of both baselines on rows that the forecast was scored on."""
    scored = [r for r in rows if r.error is not None and r.ideal_s and r.formula_s]
    found = {
        "constant_mfu": [(r, _by_share(r)) for r in scored],
        "constant_mfu_fitted": [(r, r.ideal_s / fitted_share(r.generation) if r.ideal_s else None) for r in scored],
        "reference_formula": [(r, r.formula_s) for r in scored],
    }
    return {name: {"basis": _NOTES[name]} | _figures(pairs) for name, pairs in found.items()}


def _by_share(row: TrainingScored) -> float | None:
    share = constant_share(row.source, row.generation)
    return None if share is None or not row.ideal_s else row.ideal_s / share


def _figures(pairs: Sequence[tuple[TrainingScored, float | None]]) -> dict[str, Any]:
    rows = [replace(row, predicted=guess, low=None, high=None) for row, guess in pairs if guess is not None]
    parts: dict[str, Callable[[Scored], str]] = {"by_kind": lambda r: getattr(r, "kind", ""), "by_source": lambda r: r.source}
    groups = {part: {name: _errors(found) for name, found in grouped(rows, key).items()} for part, key in parts.items()}
    return _errors(summary(rows)) | grouped_choices(choices(rows)) | groups


def _errors(found: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without what a baseline does not have: intervals, rows left out."""
    return {key: value for key, value in found.items() if key not in ("skipped", "coverage_pct")}


@functools.lru_cache(maxsize=1)
def shares() -> dict[str, dict[str, list[float]]]:
    """Shares of the peak that the shipped rows reached: generation and precision -> source -> values.

    Written by ``scripts/reduce_training.py``.
    """
    data: dict[str, dict[str, list[float]]] = json.loads(
        resources.files("foretell.evidence").joinpath("data/mfu.json").read_text("utf-8")
    )
    return data


def constant_share(
    source: str, generation: str, known: Mapping[str, Mapping[str, Sequence[float]]] | None = None
) -> float | None:
    """Return the median of other sources' medians for a generation and precision.

    Where there is none, that of the generation, then of all.  A source counts once, however many rows it has.

    >>> constant_share("a", "hopper bf16", {"hopper bf16": {"a": [0.9], "b": [0.4, 0.5]}, "ampere bf16": {"b": [0.2]}})
    0.45
    >>> constant_share("b", "hopper fp8", {"hopper bf16": {"a": [0.9]}, "ampere bf16": {"b": [0.2]}})
    0.9
    """
    table = shares() if known is None else known
    first = generation.split(" ", maxsplit=1)[0]
    for fits in (lambda name: name == generation, lambda name: name.split(" ")[0] == first, lambda _: True):
        by_source: dict[str, list[float]] = {}
        for name, by in table.items():
            for other, values in by.items() if fits(name) else ():
                by_source.setdefault(other, []).extend(values)
        medians = [quantile(values, 0.5) for other, values in by_source.items() if other != source]
        if medians:
            return quantile(medians, 0.5)
    return None


def fitted_share(generation: str) -> float:
    """Return the median of all shipped rows of a generation and precision, of the generation, or of all.

    >>> 0.1 < fitted_share("ampere bf16") < 0.6
    True
    """
    first = generation.split(" ", maxsplit=1)[0]
    table = shares()
    for fits in (lambda name: name == generation, lambda name: name.split(" ")[0] == first, lambda _: True):
        values = [value for name, by in table.items() if fits(name) for all_of in by.values() for value in all_of]
        if values:
            return quantile(values, 0.5)
    return 1.0


def formula_s(
    *,
    parameters: float,
    active: float,
    layers: int,
    hidden: int,
    top_k: int,
    sequences: float,
    seq_len: float,
    peak: float,
    bytes_each: float,
    dp: int,
    tp: int,
    pp: int,
    ep: int,
    vpp: int,
    micro_batches: int,
    again: bool,
    adapter: bool,
    topology: Topology,
) -> float:
    """Return the seconds of a step as calculators with one efficiency have it.

    ``sequences``: of one replica in a step.  Nothing overlaps.

    >>> from foretell.machine import load_hardware
    >>> from foretell.cost.topology import topology_of
    >>> alone = topology_of(load_hardware("h100"))
    >>> run = {"parameters": 7e9, "active": 7e9, "layers": 32, "hidden": 4096, "top_k": 0, "sequences": 1, "seq_len": 2048}
    >>> run |= {"bytes_each": 2, "dp": 1, "tp": 1, "ep": 1, "vpp": 1, "again": False, "adapter": False, "topology": alone}
    >>> round(formula_s(peak=1e15, pp=1, micro_batches=1, **run), 3)  # 6 x 7e9 x 2048 / (0.5 x 1e15), and 32 layers' launches
    0.173
    """
    compute = 6 * active * sequences * seq_len * (4 / 3 if again else 1) / (tp * pp * peak * EFFICIENCY) + LAYER_S * layers
    tokens = sequences * seq_len * hidden * bytes_each
    gradients = bytes_each * parameters / (tp * pp) * (ADAPTER_SHARE if adapter else 1)
    exchanged = _all_reduce(gradients, dp, min(dp, max(1, int(topology.domain) // tp)), topology)
    exchanged += 4 * -(-layers // pp) * _all_reduce(tokens, tp, min(tp, int(topology.domain)), topology)
    if ep > 1 and top_k:
        exchanged += (ep - 1) / ep * tokens * top_k / float(topology.nic_bytes_per_s) + (ep - 1) * LATENCY_S
    return compute * (1 + (pp - 1) / (vpp * micro_batches)) + exchanged


def _all_reduce(size: float, ranks: int, local: int, topology: Topology) -> float:
    """Ring inside a node, then a ring between nodes of what each of its ranks holds."""
    inside = 2 * (local - 1) / local * size / float(topology.bytes_per_s) + 2 * (local - 1) * LATENCY_S / 5
    nodes = max(1, ranks // local)
    across = 2 * (nodes - 1) / nodes * size / local / float(topology.nic_bytes_per_s) + 2 * (nodes - 1) * LATENCY_S
    return inside + across
