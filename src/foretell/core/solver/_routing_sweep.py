"""The question of MoERoutingModel for many batches at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver._axes import Axes
from foretell.core.solver._rows import Reasons, check_axes, tabulate
from foretell.core.solver.moe_routing import Asked
from foretell.machine.fleet import load_fleet
from foretell.validation import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.architecture import Architecture
    from foretell.core.solver._table import Table

__all__ = ["sweep"]

ARRAYS: Final = ("batch_size", "seq_len", "ep_size")
DEFAULTS: Final[dict[str, Any]] = {
    "batch_size": None,
    "seq_len": None,
    "precision": "fp16",
    "ep_size": 1,
    "routing_imbalance_factor": 1.0,
    "fleet": None,
}


def sweep(arch: Architecture, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every batch that the axes make."""
    check_axes(given, DEFAULTS)
    axes, reasons = Axes(given, product=product, arrays=ARRAYS), Reasons()

    def answer(settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        fleet = None if settings["fleet"] is None else load_fleet(settings["fleet"])
        asked = Asked.of(arch, settings["precision"], fleet)
        hot = number(settings["routing_imbalance_factor"], "routing_imbalance_factor", minimum=1.0)
        batch, seq_len, ep = (axes.size(name, rows, 1) for name in ARRAYS)
        tokens = batch.astype(float) * seq_len
        why = reasons.first(len(rows), [(where, f"ep_size {text}") for where, text in asked.broken(ep)])
        return asked.figures(tokens, np.where(why == 0, ep, 1), hot) | {"reason": why}

    by = "token_dispatch_bytes"
    return tabulate(axes, answer, DEFAULTS, reasons, by=by, texts={})
