"""Pipeline stages: which layers each rank holds, and how many micro-batches' activations it keeps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.errors import CombinationError, InputError


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline rank: indices of its layers, whether it holds the embedding and the head."""

    index: int
    chunks: tuple[tuple[int, ...], ...]
    """Layer indices of each model chunk (one without virtual stages)."""
    first: bool
    last: bool
    in_flight: tuple[float, ...]
    """Micro-batches whose activations each chunk keeps at the peak."""

    @property
    def layers(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


def split(
    layers: int, pp: int, vpp: int = 1, layout: Sequence[int] | None = None, *, even: bool = False
) -> list[tuple[tuple[int, ...], ...]]:
    """Layer indices of each chunk of each pipeline rank.

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
    return [tuple(tuple(range(starts[chunk], starts[chunk + 1])) for chunk in range(rank, parts, pp)) for rank in range(pp)]


def by_cost(costs: Sequence[float], head: float, pp: int) -> tuple[int, ...]:
    """Layers of each stage when a stage closes once the cumulative cost reaches its share (nanotron ``build_model``).

    ``costs`` of the layers in order; ``head`` comes after them.

    >>> by_cost([1.0] * 16, 4.0, 4)
    (5, 5, 5, 1)
    """
    whole = sum(costs) + head
    out, done, rank = [0] * pp, 0.0, 0
    for cost in costs:
        out[rank] += 1
        done += cost
        if done >= whole * (rank + 1) / pp and rank < pp - 1:
            rank += 1
    return tuple(out)


def in_flight(schedule: str, pp: int, stage: int, vpp: int, micro_batches: int) -> tuple[float, ...]:
    """Micro-batches whose activations each chunk of a stage keeps at the stage's peak.

    GPipe keeps all (arXiv 1811.06965); 1F1B at most ``pp - stage`` (arXiv 2006.09503); interleaved 1F1B
    ``2(pp-stage-1) + (vpp-1)pp + 1`` chunks of ``1/vpp`` (arXiv 2104.04473, Megatron-Core ``schedules.py``);
    ZB-H1 as 1F1B, ZB-V ``pp`` on every stage (arXiv 2401.10241); DualPipe ``pp + 1`` (arXiv 2412.19437, table 2).
    """
    m = micro_batches
    if vpp > 1 and schedule in ("interleaved-1f1b", "1f1b"):
        passes = min(m * vpp, 2 * (pp - stage - 1) + (vpp - 1) * pp + 1)
        counts = [0.0] * vpp
        for k in range(passes):
            counts[k % (pp * vpp) // pp] += 1
        return tuple(counts)
    if schedule == "gpipe":
        one = m
    elif schedule == "zb-v":
        one = min(m, pp)
    elif schedule == "dualpipe":
        one = min(m, pp + 1)
    else:
        one = min(m, pp - stage)
    return (float(one),) * vpp


def saturation(schedule: str, pp: int, vpp: int) -> int | None:
    """Micro-batches from which on no stage keeps more (None: never, GPipe); at least 2, since one accumulates nothing.

    >>> [saturation(s, 8, 1) for s in ("1f1b", "zb-v", "dualpipe")], saturation("interleaved-1f1b", 4, 2)
    ([8, 8, 9], 6)
    """
    if schedule == "gpipe":
        return None
    if schedule == "interleaved-1f1b" and vpp > 1:
        return max(2, -(-(2 * (pp - 1) + (vpp - 1) * pp + 1) // vpp))
    return max(2, pp + (schedule == "dualpipe"))


def stages(
    layers: int, pp: int, vpp: int, schedule: str, micro_batches: int, layout: Sequence[int] | None = None, *, even: bool = False
) -> list[Stage]:
    """Every pipeline rank of a run."""
    parts = split(layers, pp, vpp, layout, even=even)
    return [
        Stage(i, part, i == 0, i == pp - 1, in_flight(schedule, pp, i, len(part), micro_batches)) for i, part in enumerate(parts)
    ]
