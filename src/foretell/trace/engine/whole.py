"""The whole run: recorded as it is, or from a few of its equal layers where that is shown to be the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn, optim

from foretell.trace.engine.calls import Calls, called, calls_of, evenly_called, seen_alike, watching
from foretell.trace.engine.layers import Stack, share_recorded, shorten, shortening, stacks_of
from foretell.trace.engine.session import Traced
from foretell.trace.engine.sharding import DataParallel
from foretell.trace.events import Recording
from foretell.trace.repeat import lengthen

__all__ = ["record_all"]

COUNTS = (3, 4, 5)
"""Repetitions in the recordings that are continued: the first, at least one in the middle, the last."""
T = TypeVar("T")
_WORTH = 0.6
"""Share of the whole model's modules below which recording these takes less time."""


class _Uneven(Exception):  # noqa: N818  # the model is
    """Why the layers cannot be left out, in words."""


def record_all(
    traced: Traced, *, full: bool, always: bool = False, tell: Callable[[str], None] = lambda _text: None
) -> Recording:
    """Return the recording of all layers; ``about["repetition"]`` says how it was had.

    ``full``: every layer is recorded.  Else a model that repeats itself is recorded with 3, 4 and 5 repetitions, and continued
    to all, where that saves time (``always``: also where it does not).  It is not where

    * the layers' classes, attributes or shapes differ, or the model does not call all of them alike;
    * the recordings do not grow by the same events each time (:func:`foretell.trace.repeat.lengthen`);
    * gradients are reduced in buckets of a fixed size, which do not begin anew with each layer.

    The job's callable has to make a new model each time it is called.
    """
    if full:
        return _as_is(traced, "every layer was recorded")
    try:
        stacks = stacks_of(traced.job.model)
    except Exception as error:  # noqa: BLE001  # an attribute that does not bear to be looked at
        return _as_is(traced, f"every layer was recorded: layers could not be compared ({type(error).__name__})")
    if not stacks or stacks[0].repeats <= COUNTS[-1]:
        return _as_is(traced, "every layer was recorded: no more than a few are equal")
    if any(isinstance(module, DataParallel) for module in traced.job.model.modules()):
        return _as_is(traced, "every layer was recorded: the buckets of data parallel training do not repeat by layer")
    if not always and share_recorded(traced.job.model, stacks, COUNTS) > _WORTH:
        return _as_is(traced, "every layer was recorded: leaving equal ones out would save no time")
    try:
        return _by_repetition(traced, stacks, tell)
    except _Uneven as reason:
        tell(f"{reason}: recording all layers")
        traced.rebuild()
        return _as_is(traced, f"every layer was recorded: {reason}")


def _as_is(traced: Traced, how: str) -> Recording:
    made = traced.record()
    made.about["repetition"] = how
    return made


def _by_repetition(traced: Traced, stacks: list[Stack], tell: Callable[[str], None]) -> Recording:
    tell("looking at how the layers are called")
    whole = _seen(traced, stacks)
    stacks = called(whole, stacks)
    if not stacks:
        raise _Uneven("the equal layers are not called")
    if not evenly_called(whole, stacks):
        raise _Uneven("the model does not treat its equal layers alike")
    made: dict[int, Recording] = {}
    calls: dict[int, Calls] = {}
    for count in reversed(COUNTS):
        tell(f"recording {count} of {stacks[0].repeats} repetitions")
        made[count], calls[count] = _shortened(traced, stacks, count)
    if not seen_alike(whole, calls, stacks):
        raise _Uneven("the model treats its layers otherwise when there are fewer")
    out = lengthen(made[3], made[4], made[5], stacks[0].repeats - COUNTS[0])
    if out is None:
        raise _Uneven("equal layers do not repeat the same events")
    names = ", ".join(f"{s.name} ({s.repeats} x {s.period})" for s in stacks)
    out.about.get("convolutions", {}).pop("peak_bytes", None)  # it need not grow evenly
    out.about["repetition"] = f"3, 4 and 5 repetitions were recorded and continued: {names}"
    return out


def _seen(traced: Traced, stacks: list[Stack]) -> Calls:
    """Return how the layers are called: with the first one computing alone, or all where they do not bear that."""
    with contextlib.suppress(_Uneven):
        calls = _tried(lambda: calls_of(traced, stacks, compute=False))
        if not calls.counted:
            return calls
    traced.rebuild()
    again = stacks_of(traced.job.model)
    return _tried(lambda: calls_of(traced, again, compute=True))


def _shortened(traced: Traced, stacks: list[Stack], count: int) -> tuple[Recording, Calls]:
    """Return the recording with ``count`` repetitions, and how the layers were called in it."""
    before = traced.job.model
    left: list[Stack] = []
    back: list[Callable[[], None]] = []

    def cut(model: nn.Module) -> None:
        if left or model is before:
            return
        left.extend(s for s in stacks_of(model) if s.name in {stack.name for stack in stacks})
        if [s.shape for s in left] != [s.shape for s in stacks]:
            raise _Uneven("the callable does not make the same model anew")
        back.extend(shorten(stack, count) for stack in left)

    with shortening(cut):
        traced.rebuild()  # a step leaves things behind: gathered weights, caches
    cut(traced.job.model)
    if not left:
        raise _Uneven("the callable does not make a new model each time")
    _keep_trained(traced)
    try:
        with watching(left, count) as calls:
            made = _tried(traced.record)
    finally:
        for restore in back:
            restore()
    calls.close(made.storages)
    if made.asked:
        raise _Uneven("memory waits for other streams, which is not continued by layer")
    return made, calls


def _tried(work: Callable[[], T]) -> T:
    """Run the job's code on a model that lacks layers, or whose layers do not compute: it may not bear that."""
    try:
        return work()
    except Exception as error:  # the full recording shows whether it is wrong as well
        raise _Uneven(f"the model cannot do with fewer layers ({type(error).__name__})") from error


def _keep_trained(traced: Traced) -> None:
    """Take the parameters of layers that are gone out of an optimizer that was made before."""
    optimizer: Any = traced.job.optimizer
    if isinstance(optimizer, optim.Optimizer):
        kept = {id(p) for p in traced.job.model.parameters()}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in kept]
        for parameter in [p for p in optimizer.state if id(p) not in kept]:
            del optimizer.state[parameter]
