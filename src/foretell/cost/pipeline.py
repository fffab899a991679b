"""Pipeline stages: which layers each rank holds, and how many micro-batches' activations it keeps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.errors import CombinationError, InputError

CHECKED_LAYERS = 100_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline rank: indices of its layers, whether it holds the embedding and the head."""

    index: int
    layers: tuple[int, ...]
    first: bool
    last: bool
    in_flight: float
    """Activations kept at the peak, in units of one micro-batch through the whole stage."""
    chunks: int = 1


def split(layers: int, pp: int, vpp: int = 1, layout: Sequence[int] | None = None, *, even: bool = False) -> list[tuple[int, ...]]:
    """Layer indices of each pipeline rank.

    With ``vpp`` chunks a rank holds every ``pp``-th chunk (interleaved schedule, arXiv 2104.04473).  Without a
    ``layout`` the layers are divided evenly; a remainder goes to the first stages, or is refused with ``even``.
    """
    parts = pp * vpp
    if layout is not None:
        if len(layout) not in (pp, parts) or sum(layout) != layers:
            raise InputError(
                f"must list {pp} stages (or {parts} chunks) that sum to the model's {layers} layers",
                field="pp_layout",
                value=list(layout),
            )
        sizes = list(layout)
        parts = len(sizes)
        vpp = parts // pp
    else:
        if parts > layers:
            what = f"pp={pp}" if vpp == 1 else f"pp x vpp = {pp} x {vpp}"
            raise CombinationError(
                f"has more stages than the model's {layers} layers ({what})", field="pp", value=pp, allowed=f"at most {layers}"
            )
        if even and layers % parts:
            raise CombinationError(
                f"does not divide the model's {layers} layers; give a layout", field="pp" if vpp == 1 else "pp*vpp", value=parts
            )
        sizes = [layers // parts + (i < layers % parts) for i in range(parts)]
    starts = [sum(sizes[:i]) for i in range(parts + 1)]
    return [
        tuple(layer for chunk in range(rank, parts, pp) for layer in range(starts[chunk], starts[chunk + 1]))
        for rank in range(pp)
    ]


def in_flight(schedule: str, pp: int, stage: int, vpp: int, micro_batches: int) -> float:
    """Micro-batches whose activations a stage keeps at its peak, in units of the whole stage.

    GPipe keeps all (arXiv 1811.06965); 1F1B at most ``pp - stage`` (arXiv 2006.09503); interleaved 1F1B
    ``2(pp-stage-1) + (vpp-1)pp + 1`` chunks of ``1/vpp`` (arXiv 2104.04473, Megatron-Core ``schedules.py``);
    ZB-H1 as 1F1B, ZB-V ``pp`` on every stage (arXiv 2401.10241); DualPipe ``pp + 1`` (arXiv 2412.19437, table 2).
    """
    m = micro_batches
    if schedule == "gpipe":
        return float(m)
    if schedule == "interleaved-1f1b" and vpp > 1:
        return min(m * vpp, 2 * (pp - stage - 1) + (vpp - 1) * pp + 1) / vpp
    if schedule == "zb-v":
        return float(min(m, pp))
    if schedule == "dualpipe":
        return float(min(m, pp + 1))
    return float(min(m, pp - stage))


def stages(
    layers: int, pp: int, vpp: int, schedule: str, micro_batches: int, layout: Sequence[int] | None = None, *, even: bool = False
) -> list[Stage]:
    """Every pipeline rank of a run."""
    parts = split(layers, pp, vpp, layout, even=even)
    return [
        Stage(i, part, i == 0, i == pp - 1, in_flight(schedule, pp, i, vpp, micro_batches), vpp)
        for i, part in enumerate(parts)
    ]
