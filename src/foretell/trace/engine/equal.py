"""What makes layers equal: text of everything that decides what they do, but for their own number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch import nn

__all__ = ["holders", "own_numbers", "signatures"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_DEPTH = 3
"""How far into an attribute that is an object it is looked."""
_FEW = 2
"""Numbers that may be in a row by chance."""
_PLAIN = (bool, int, float, str, bytes, type(None))


def holders(model: nn.Module) -> dict[int, int]:
    """Return how many modules hold each parameter, by the parameter's identity."""
    held: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            held[id(parameter)] = held.get(id(parameter), 0) + 1
    return held


def signatures(layers: list[nn.Module], owners: dict[int, int]) -> list[str]:
    """Return for each layer what decides its behaviour, as text."""
    facts = [dict(_facts(layer, i)) for i, layer in enumerate(layers)]
    counting = _counting(facts)
    shared: dict[int, int] = {}
    out = []
    for i, (layer, fact) in enumerate(zip(layers, facts, strict=True)):
        ties = []
        for name, parameter in layer.named_parameters():
            before = shared.get(id(parameter))
            if before is not None or owners[id(parameter)] > 1:
                ties.append((name, i - before if before is not None else None))
            shared[id(parameter)] = i
        out.append(repr(([(k, v) for k, v in fact.items() if k not in counting], ties)))
    return out


def own_numbers(layers: list[nn.Module]) -> list[tuple[nn.Module, str]]:
    """Return the attributes by which layers know their number: the only ones in which equal layers differ."""
    counting = _counting([dict(_facts(layer, i)) for i, layer in enumerate(layers)])
    return [
        (module, key)
        for layer in layers
        for name, module in layer.named_modules(remove_duplicate=False)
        for key in vars(module)
        if (name, key) in counting
    ]


def _counting(facts: list[dict[tuple[str, str], Any]]) -> set[tuple[str, str]]:
    """Return the attributes that number the layers, or those of the layers that have them."""
    seen: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for i, fact in enumerate(facts):
        for key, value in fact.items():
            seen.setdefault(key, []).append((i, value))
    found = set()
    for key, pairs in seen.items():
        whole = all(isinstance(value, int) and not isinstance(value, bool) for _, value in pairs)
        if len(pairs) > _FEW and whole and (_rises(pairs) or _rises([(k, value) for k, (_, value) in enumerate(pairs)])):
            found.add(key)
    return found


def _rises(pairs: list[tuple[int, int]]) -> bool:
    """Say whether the second goes evenly with the first.

    >>> _rises([(0, 3), (1, 4), (4, 7)]), _rises([(0, 3), (1, 4), (2, 8)]), _rises([(0, 3), (1, 3), (2, 3)])
    (True, False, False)
    """
    (x, y), (u, v) = pairs[:2]
    return v != y and all((b - y) * (u - x) == (v - y) * (a - x) for a, b in pairs)


def _facts(layer: nn.Module, number: int) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield classes, plain attributes, hooks, and the shapes of tensors of everything in a layer."""
    for name, module in layer.named_modules(remove_duplicate=False):
        kind = type(module).__qualname__
        yield (name, ""), kind
        for key, value in sorted(vars(module).items()):
            if key.startswith("_"):
                continue
            if isinstance(value, float) and "drop" in f"{kind} {key}".lower():  # which share is dropped decides no size
                yield (name, key), 0 < value < 1
            else:
                yield (name, key), _text(value, number)
        for hooks in _HOOKS:
            yield (name, hooks), [_text(hook, number) for hook in vars(module)[hooks].values()]
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield (name, f"tensor {key}"), (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)


def _text(value: Any, number: int, depth: int = 0) -> Any:
    """Return an attribute as it is if it is a number, else as text that does not tell two objects apart that say the same."""
    if isinstance(value, str):  # it may be the layer's own path
        return re.sub(rf"(?<=\.){number}(?=\.)", "*", value, count=1)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (torch.dtype, torch.device, Enum)):
        return repr(value)
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        return f"{kind} {tuple(value.shape)} {value.dtype}"
    if depth > _DEPTH or isinstance(value, (type, nn.Module)):
        return f"{kind} {getattr(value, '__qualname__', '')}"
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        parts = [_text(item, number, depth + 1) for item in (value.items() if isinstance(value, dict) else value)]
        return kind, sorted(map(repr, parts)) if isinstance(value, (set, frozenset)) else parts
    parts = [getattr(value, name, None) for name in ("func", "args", "keywords", "__wrapped__")]
    inner = [_text(part, number, depth + 1) for part in parts if part is not None]
    held = {k: _text(v, number) for k, v in getattr(value, "__dict__", {}).items() if isinstance(v, _PLAIN)}
    return f"{kind} {getattr(value, '__qualname__', '')} {inner} {held}"
