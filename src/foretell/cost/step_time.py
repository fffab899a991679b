"""Seconds of a training step: passes with what overlaps, the pipeline's schedule, gradients, optimizer; each a term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import add, attrgetter

from foretell.cost.arrays import Value, maximum, minimum, power, where
from foretell.cost.kernels import Device, Efficiency
from foretell.cost.pass_time import Pass, Passes
from foretell.cost.schedule import idle
from foretell.cost.schedule_inputs import pipeline
from foretell.cost.software import Software
from foretell.cost.stage_time import StageCost
from foretell.recipe.resolve import Run

__all__ = ["Spent", "StepTime", "device_parts", "step_time"]

SHARPNESS = 3.0
"""Exponent that joins the device's and the host's seconds: the slower one decides."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of passes by what they were spent on; exposed ones only."""

    matmul: Value = 0.0
    experts: Value = 0.0
    attention: Value = 0.0
    stream: Value = 0.0
    host: Value = 0.0
    """Seconds by which the host's launches are slower than the device and its exchanges."""
    tp: Value = 0.0
    ep: Value = 0.0
    cp: Value = 0.0
    dp: Value = 0.0
    """Sharded parameters and gradients of every micro-batch, where compute does not hide them."""

    @property
    def total(self) -> Value:
        return sum(_SPENT(self))

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(add, _SPENT(self), _SPENT(other)))

    def __mul__(self, factor: Value) -> Spent:
        return Spent(*[part * factor for part in _SPENT(self)])


_SPENT = attrgetter(*(f.name for f in fields(Spent)))


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Seconds of one rank's exchanges in a step by their group, each the longest of all ranks."""

    dp: Value = 0.0
    """Gradients and parameters."""
    tp: Value = 0.0
    ep: Value = 0.0
    cp: Value = 0.0
    pp: Value = 0.0
    """Activations and their gradients between stages, sent."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step."""

    total: Value
    pipeline: Value
    """All passes of all micro-batches, bubble and transfers included."""
    bubble: Value
    """Seconds in which a rank waits, the mean over ranks, transfers included."""
    passes: tuple[Spent, ...]
    """Of each rank, one micro-batch forward and backward."""
    reduction: Value
    """Gradients and parameters that nothing hides, once a step."""
    optimizer: Value
    fixed: Value
    p2p: Value
    """Seconds of one transfer between stages."""
    exchanged: Exchanged
    """Seconds of all exchanges of one rank in a step, hidden or not."""

    @property
    def slowest(self) -> Spent:
        """Of the rank whose passes take longest."""
        found, longest = self.passes[0], self.passes[0].total
        for other in self.passes[1:]:
            if other is not found:
                later = other.total > longest
                found = Spent(*(where(later, b, a) for a, b in zip(_SPENT(found), _SPENT(other), strict=True)))
                longest = maximum(longest, other.total)
        return found

    @property
    def communication(self) -> Value:
        """Seconds of all of them but the pipeline's."""
        e = self.exchanged
        return e.dp + e.tp + e.ep + e.cp


def step_time(
    costs: Sequence[StageCost],
    run: Run,
    soft: Software,
    device: Device,
    efficiency: Efficiency,
    *,
    transfer: Value = 0.0,
    micro_batches: Value = 1,
    tp_overlap: bool = False,
    hide: Value = 1.0,
) -> StepTime:
    """Return the seconds of a step.

    ``transfer``: seconds of sending one micro-batch's activations to the next stage.  ``hide``: the largest share of gradients
    and parameters on their way that may be hidden.
    """
    ahead: list[list[Spent]] = []
    back: list[list[Spent]] = []
    weight: list[list[Value]] = []
    made: dict[int, tuple[Spent, Spent, Value]] = {}
    every = _sharded_each_pass(run)
    for cost in costs:
        n = len(cost.chunks)
        f, b, w = [], [], []
        for chunk in cost.chunks:
            if id(chunk) not in made:
                made[id(chunk)] = (
                    _spend(chunk.forward, chunk.forward, soft, tp_overlap, 0.0),
                    _backward(chunk, soft, tp_overlap),
                    device_parts(chunk.weights, soft).total,
                )
            forward, backward, own = made[id(chunk)]
            if every:
                forward = _gathered(forward, cost.reduction.gather / n, cost.layers / n, soft, hide)
                both = cost.reduction.gather * _again(run) / n + cost.reduction.reduce / n
                backward = _gathered(backward, both, cost.layers / n, soft, hide)
            f.append(forward)
            b.append(backward)
            w.append(own)
        ahead.append(f)
        back.append(b)
        weight.append(w)
    forward_s = [[s.total for s in row] for row in ahead]
    backward_s = [[s.total for s in row] for row in back]
    schedule = run.schedule if run.par.pp > 1 else "1f1b"
    question = pipeline(
        schedule,
        forward_s,
        [
            [maximum(b - w, 0.0) for b, w in zip(row, ws, strict=True)] if schedule in _SPLIT else row
            for row, ws in zip(backward_s, weight, strict=True)
        ],
        [[minimum(b, w) for b, w in zip(row, ws, strict=True)] for row, ws in zip(backward_s, weight, strict=True)]
        if schedule in _SPLIT
        else None,
        micro_batches=micro_batches,
        p2p=transfer,
        exposed=soft.p2p,
    )
    found = idle(question, quick=True)
    passes = tuple(_total(f) + _total(b) for f, b in zip(ahead, back, strict=True))
    if schedule == "dualpipe":  # a rank holds a stage from either end, and half of the micro-batches passes through each
        passes = tuple((one + other) * 0.5 for one, other in zip(passes, reversed(passes), strict=True))
    reduction: Value = 0.0
    optimizer: Value = 0.0
    dp: Value = 0.0
    for i, cost in enumerate(costs):
        r = cost.reduction
        if not every:
            shown = _once(r.reduce, sum(backward_s[i]), soft, hide) + _once(r.gather, sum(forward_s[i]), soft, hide)
            reduction = maximum(reduction, shown)
            dp = maximum(dp, r.reduce + r.gather)
        else:
            dp = maximum(dp, (r.reduce + r.gather * (1.0 + _again(run))) * micro_batches)
        moved = (r.update + r.norm) / (device.bandwidth * efficiency.memory)
        optimizer = maximum(optimizer, moved)
    total = found.step + reduction + optimizer + soft.fixed
    return StepTime(
        total=total,
        pipeline=found.step,
        bubble=found.seconds,
        passes=passes,
        reduction=reduction,
        optimizer=optimizer,
        fixed=soft.fixed,
        p2p=transfer,
        exchanged=_exchanged(costs, dp, transfer, micro_batches, question.vpp),
    )


_SPLIT = ("zb-h1", "zb-v", "dualpipe")


def _exchanged(costs: Sequence[StageCost], dp: Value, transfer: Value, micro_batches: Value, vpp: int) -> Exchanged:
    """Exchanges of a step by their group."""

    def longest(name: str) -> Value:
        out: Value = 0.0
        for cost in costs:
            passes = (p for c in cost.chunks for p in (c.forward, c.again, c.backward))
            out = maximum(out, sum(getattr(p, name) for p in passes))
        return out * micro_batches

    sent = 2.0 * vpp * micro_batches * transfer
    return Exchanged(dp, longest("tp"), longest("ep"), longest("cp"), sent)


def _total(parts: Sequence[Spent]) -> Spent:
    out = Spent()
    for part in parts:
        out = out + part
    return out


def _sharded_each_pass(run: Run) -> bool:
    """Whether parameters are gathered and gradients reduced in every micro-batch (ZeRO-3, FSDP).

    A pipeline that keeps parameters whole after their forward pass does both once a step (pytorch/torchtitan: gathering for every
    micro-batch could not overlap).
    """
    return run.par.zero == 3 and not (run.par.pp > 1 and run.par.reshard == "never")


def _again(run: Run) -> float:
    """Gathers of the parameters in the backward pass: none where they stay whole after the forward pass."""
    return 0.0 if run.par.reshard == "never" else 1.0


def device_parts(p: Pass, soft: Software) -> Spent:
    """Seconds of the device's own work."""
    m = soft.maturity
    return Spent(
        matmul=(p.matmul + p.low * soft.low) * soft.matmul * m,
        experts=p.experts * soft.matmul * soft.experts * m,
        attention=p.attention * soft.attention * m,
        stream=p.stream * soft.stream * m,
    )


def _host(p: Pass, soft: Software) -> Value:
    """Host seconds of launching a pass."""
    return p.launches * soft.launch + p.calls * soft.call


def _spend(p: Pass, exchanges: Pass, soft: Software, tp_overlap: bool, repeated: Value) -> Spent:
    """Seconds of one pass: the device's work, the host where it is slower, and exchanges that nothing hides."""
    own = device_parts(p, soft)
    tp = exchanges.tp * (1.0 - soft.tp_hidden * tp_overlap)
    ep = exchanges.ep * (1.0 - soft.ep_hidden)
    cover = soft.cp_hidden * own.attention
    cp = maximum(exchanges.cp - cover, 0.0) + soft.interference * minimum(exchanges.cp, cover)
    busy, host = own.total + tp + ep + cp, _host(p, soft)
    slower = power(power(busy, SHARPNESS) + power(host, SHARPNESS) + 1e-60, 1.0 / SHARPNESS) - busy
    stalls = p.routed * soft.route + repeated * soft.checkpoint  # the device runs dry while the host waits for it
    return Spent(own.matmul, own.experts, own.attention, own.stream, slower + stalls, tp, ep, cp)


def _backward(chunk: Passes, soft: Software, tp_overlap: bool) -> Spent:
    """Everything that runs backward: what is computed again, and both gradients."""
    whole = chunk.again + chunk.backward + chunk.weights
    return _spend(whole, whole, soft, tp_overlap, chunk.repeated)


def _gathered(spent: Spent, exchange: Value, layers: float, soft: Software, hide: Value) -> Spent:
    """A pass with parameters gathered or gradients reduced layer by layer beside it; the first layer's has nothing to hide
    behind."""
    first = exchange / maximum(layers, 1.0)
    cover = soft.dp_hidden * spent.total
    rest = exchange - first
    hidden = minimum(minimum(rest, cover), hide * exchange)
    shown = first + rest - hidden + soft.interference * hidden
    return replace(spent, dp=spent.dp + shown)


def _once(exchange: Value, cover: Value, soft: Software, hide: Value) -> Value:
    """An exchange of once a step that the last backward or the first forward pass of a micro-batch can hide."""
    hidden = minimum(minimum(exchange, soft.dp_hidden * cover), hide * exchange)
    return exchange - hidden + soft.interference * hidden
