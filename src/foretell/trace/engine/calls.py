"""How a model calls the layers of its stacks, seen in one forward pass of all of them.

Equal layers are recorded a few at a time.  What a model does around them is looked at for all of them: in which order they
are called, with what, and what is allocated between two of them.  A model that treats its seventh layer in its own way is
found out so.  The pass takes a moment, since only the first layer computes and the others give back what it gave; but where a
layer asks for its own number (to keep its keys and values under it, say) all have to compute, and what they allocate is compared.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map_only

from foretell.trace.engine.equal import own_numbers
from foretell.trace.engine.layers import Stack, kept_layers
from foretell.trace.engine.loop import Loop
from foretell.trace.engine.policies import Policies
from foretell.trace.engine.recorder import Recorder
from foretell.trace.engine.session import Traced
from foretell.trace.events import PhaseName, Storage

__all__ = ["Calls", "called", "calls_of", "evenly_called", "seen_alike", "watching"]

Layer = tuple[str, int]
"""Name of a stack, and number of a layer in it when all were there."""


@dataclass(slots=True)
class Calls:
    """The calls of the first forward pass."""

    order: list[Layer] = field(default_factory=list)
    facts: dict[Layer, list[Any]] = field(default_factory=dict)
    """Layer -> for each of its calls: what it was given, and what was allocated since the last layer ended."""
    inside: dict[Layer, list[Any]] = field(default_factory=dict)
    """Layer -> for each of its calls: what it allocated itself."""
    began: list[int] = field(default_factory=list)
    """Storages made when the layers that run began."""
    ended: int = 0
    """Storages made when the last layer ended."""
    rest: tuple[int, int] = 0, 0
    """Allocations after it, and their bytes."""
    counted: list[int] = field(default_factory=list)
    """Numbers of layers that a layer has done something with."""
    computed: bool = True
    """Whether all layers computed."""

    def close(self, storages: list[Storage]) -> None:
        """Take in what came after the last layer, up to the end of the forward pass."""
        last = [s.bytes for s in storages[self.ended :] if _counts(s)]
        self.rest = len(last), sum(last)


_FORWARD = 1
"""Index of the phase of the first forward pass; before it comes what is there from the start."""


def _counts(storage: Storage) -> bool:
    """Say whether a storage tells how a model treats its layers; workspaces belong to whichever product comes first."""
    return storage.phase == _FORWARD and storage.category != "workspace"


class _Enough(BaseException):
    """The forward pass is over: nothing else is looked at."""


class _UntilBackward(Recorder):
    """Ends the run where the first backward pass begins."""

    def phase(self, name: PhaseName, step: int, micro: int) -> None:
        """Begin a phase.

        Raises:
            _Enough: it is that of a backward pass.

        """
        if name == "backward":
            raise _Enough
        super().phase(name, step, micro)


# -- looking ------------------------------------------------------------------------------------------------


def calls_of(traced: Traced, stacks: list[Stack], *, compute: bool) -> Calls:
    """Return how the job's model calls its layers, of which all compute, or those of the first period.

    The job has to be built again after that.

    Raises:
        Exception: whatever the job's own code raises where layers do not compute.

    """
    settings = traced.here.settings
    recorder = _UntilBackward(settings.device, fake=settings.fake, policies=Policies(settings.skew, settings.density))
    with watching(stacks) as calls, contextlib.ExitStack() as stack:
        calls.computed = compute
        if not compute:
            stack.enter_context(_idle(stacks))
            stack.enter_context(_numbered(stacks, calls.counted))
        with recorder, contextlib.suppress(_Enough):
            Loop(traced.job, recorder).run(1)
        calls.close(recorder.storages)
        recorder.end()
        recorder.live.clear()
    return calls


@contextlib.contextmanager
def watching(stacks: list[Stack], count: int | None = None) -> Iterator[Calls]:
    """Note the calls of the stacks' layers, of which ``count`` repetitions are left (None: all)."""
    calls = Calls()
    handles = []
    for stack in stacks:
        numbers = kept_layers(stack, count or stack.repeats)
        for number, layer in zip(numbers, _layers(stack), strict=True):
            before = functools.partial(_begins, calls, (stack.name, number))
            handles.append(layer.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            handles.append(layer.register_forward_hook(functools.partial(_ends, calls, (stack.name, number))))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _layers(stack: Stack) -> list[nn.Module]:
    """Return a stack's layers, those that are there twice too."""
    return [layer for layer in stack.layers._modules.values() if layer is not None]


def _active() -> Recorder | None:
    """Return the recorder, while it records the first forward pass."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, Recorder):
            return mode if len(mode.phases) - 1 == _FORWARD else None
    return None


def _begins(calls: Calls, layer: Layer, _module: nn.Module, args: Any, kwargs: Any) -> None:
    recorder = _active()
    if recorder is not None:
        calls.order.append(layer)
        calls.facts.setdefault(layer, []).append((_description((args, kwargs)), _made(recorder, calls.ended)))
        calls.began.append(len(recorder.storages))
        calls.ended = len(recorder.storages)


def _ends(calls: Calls, layer: Layer, *_what: Any) -> None:
    recorder = _active()
    if recorder is not None and calls.began:
        calls.inside.setdefault(layer, []).append(_made(recorder, calls.began.pop()))
        calls.ended = len(recorder.storages)


def _made(recorder: Recorder, since: int) -> list[tuple[str, int]]:
    return [(s.op, s.bytes) for s in recorder.storages[since:] if _counts(s)]


def _description(given: Any) -> str:
    """Return what decides a layer's behaviour in what it is given."""
    leaves, shape = tree_flatten(given)
    told = [
        (tuple(leaf.shape), leaf.dtype, leaf.device.type)
        if isinstance(leaf, torch.Tensor)
        else leaf if isinstance(leaf, (bool, int, float, str, type(None))) else type(leaf).__qualname__
        for leaf in leaves
    ]  # fmt: skip
    return repr((told, shape))


@contextlib.contextmanager
def _idle(stacks: list[Stack]) -> Iterator[None]:
    """Let the layers of the first period of each stack compute, and those of the others give back what these gave."""
    changed = []
    for stack in stacks:
        made: dict[int, Any] = {}
        for i, layer in enumerate(_layers(stack)):
            where = stack.place(i)
            if where is not None and "forward" not in vars(layer):
                layer.forward = _stub(layer.forward, made, *where)
                changed.append(layer)
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


@contextlib.contextmanager
def _numbered(stacks: list[Stack], used: list[int]) -> Iterator[None]:
    """Note whether layers do anything with the numbers that they have."""
    changed = [(vars(module), key) for stack in stacks for module, key in own_numbers(_layers(stack))]
    before = [attributes[key] for attributes, key in changed]
    for (attributes, key), value in zip(changed, before, strict=True):
        attributes[key] = _Number(value, used)
    try:
        yield
    finally:
        for (attributes, key), value in zip(changed, before, strict=True):
            attributes[key] = value


class _Number:
    """Stands for a layer's number.  It is no ``int``, or lists would take it as an index without a word."""

    def __init__(self, value: int, used: list[int]) -> None:
        self.value, self.used = value, used


def _noted(name: str) -> Callable[..., Any]:
    def operation(number: _Number, *others: Any) -> Any:
        number.used.append(number.value)
        return getattr(number.value, name)(*(o.value if isinstance(o, _Number) else o for o in others))

    return operation


_OPERATIONS = "index int float bool hash eq ne lt le gt ge neg str repr format"
_ARITHMETIC = "add sub mul truediv floordiv mod pow and or xor lshift rshift divmod"
for _name in (*_OPERATIONS.split(), *_ARITHMETIC.split(), *(f"r{name}" for name in _ARITHMETIC.split())):
    setattr(_Number, f"__{_name}__", _noted(f"__{_name}__"))


def _stub(forward: Callable[..., Any], made: dict[int, Any], period: int, place: int) -> Callable[..., Any]:
    @functools.wraps(forward)
    def stub(*args: Any, **kwargs: Any) -> Any:
        if period == 0 or place not in made:
            made[place] = forward(*args, **kwargs)
            return made[place]
        return tree_map_only(torch.Tensor, _again, made[place])

    return stub


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like one that a layer gave, that code may change in place as it may that one."""
    return tensor.detach().requires_grad_(tensor.requires_grad).clone()


# -- judging ------------------------------------------------------------------------------------------------


def called(calls: Calls, stacks: list[Stack]) -> list[Stack]:
    """Return the stacks whose layers are called: a tower that a batch gives nothing to has weights and no events."""
    names = {name for name, _ in calls.order}
    return [stack for stack in stacks if stack.name in names]


def evenly_called(calls: Calls, stacks: list[Stack]) -> bool:
    """Say whether a model treats all layers in the middle of its stacks alike, and these do the same where they compute."""
    for stack in stacks:
        for place in range(stack.period):
            first = stack.name, stack.start + place + stack.period
            for repeat in range(1, stack.repeats - 1):
                layer = stack.name, stack.start + place + repeat * stack.period
                if layer not in calls.facts or calls.facts[layer] != calls.facts[first]:
                    return False
                if calls.computed and calls.inside.get(layer) != calls.inside.get(first):
                    return False
    return True


def seen_alike(whole: Calls, parts: dict[int, Calls], stacks: list[Stack]) -> bool:
    """Say whether models with fewer layers call those that they have as the whole one does.

    ``parts``: number of repetitions (3, 4 and 5) -> calls.  After the layers allocations may grow evenly with them.
    """
    for count, part in parts.items():
        left = {(stack.name, number) for stack in stacks for number in kept_layers(stack, count)}
        if part.order != [layer for layer in whole.order if layer in left]:
            return False
        if any(whole.facts[layer] != facts for layer, facts in part.facts.items()):
            return False
        if whole.computed and any(whole.inside[layer] != inside for layer, inside in part.inside.items()):
            return False
    counts = sorted(parts)
    a, b, c = (parts[count].rest for count in counts)
    repeats = stacks[0].repeats

    def grown(count: int) -> tuple[int, ...]:
        return tuple(x + (count - counts[0]) * (y - x) for x, y in zip(a, b, strict=True))

    # what layers hand over beside their output (a router's logits) comes from the first one alone where others do not compute
    return c == grown(counts[2]) and whole.rest in (grown(repeats), grown(1))
