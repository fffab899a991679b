"""Python functions of torch that read a tensor's memory, or that go another way for fake tensors than for real ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.jit import _builtins
from torch.nn import functional

from foretell.trace.engine.policies import Unanswerable
from foretell.trace.engine.values import array_of

__all__ = ["replace_functions", "scriptable"]


def replace_functions(stack: contextlib.ExitStack) -> None:
    """Put functions that know fake tensors in the place of torch's own, until the stack is closed."""
    for owner, name, new in (
        (functional, "one_hot", _one_hot(functional.one_hot)),
        (FakeTensor, "numpy", _numpy),
        (FakeTensor, "__format__", _format),
    ):
        scriptable(stack, getattr(owner, name), new)
        stack.enter_context(mock.patch.object(owner, name, new, create=True))


def scriptable(stack: contextlib.ExitStack, original: Any, new: Any) -> None:
    """Let ``torch.jit.script`` take a function for the operator whose place it takes, until the stack is closed."""
    table: dict[int, str] = _builtins._get_builtin_table()
    if id(original) in table:
        table[id(new)] = table[id(original)]
        stack.callback(table.pop, id(new), None)


def _one_hot(original: Any) -> Callable[..., torch.Tensor]:
    """Scatter ones into zeros; torch compares fake tensors with all classes (pytorch ``aten/src/ATen/native/Onehot.cpp``)."""

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if not isinstance(tensor, FakeTensor) or not tensor.numel():
            out: torch.Tensor = original(tensor, num_classes)
            return out
        if tensor.device.type == "cpu":
            least, most = torch.aminmax(tensor)
            least.item()
            most.item()
            del least, most
        if num_classes < 0:
            num_classes = int(tensor.max().item()) + 1
        out = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
        return out.scatter_(-1, tensor.unsqueeze(-1), 1)

    return one_hot


def _numpy(self: FakeTensor, **_kwargs: Any) -> Any:
    values = array_of(self)
    if values is None:
        raise Unanswerable("numpy()", _running(), "asks for values that depend on data")
    return values


def _format(self: FakeTensor, spec: str) -> str:
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _running() -> str:
    """Return the class of the innermost module whose code is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return type(owner).__name__
        frame = frame.f_back
    return ""
