"""Parameters keep who they are when their data moves: ``module.to(...)`` and ``parameter.data = ...`` on fake tensors.

Whoever listed the parameters before (an optimizer, a table of names) must hold the same objects afterwards, and nobody may keep
the memory that they left (pytorch ``torch/nn/modules/module.py``, ``csrc/autograd/variable.cpp``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["keep_parameters"]

Change = Callable[[torch.Tensor], torch.Tensor]
_TOLD = ("fake_device", "_known", "_producer")
"""What a fake tensor carries of its data as attributes in Python, which torch's own exchange of data leaves behind."""


def keep_parameters(stack: contextlib.ExitStack) -> None:
    """Let fake tensors exchange their data, and modules do so when they are moved, until the stack is closed."""
    given: Any = torch.Tensor.data

    def data(self: FakeTensor) -> Any:
        return given.__get__(self)

    def exchange(self: FakeTensor, new: Any) -> None:
        given.__set__(self, new)
        if isinstance(new, FakeTensor):
            for name in _TOLD:
                setattr(self, name, getattr(new, name, None))

    stack.enter_context(mock.patch.object(FakeTensor, "data", property(data, exchange), create=True))
    stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply(nn.Module._apply)))


def _apply(original: Any) -> Callable[..., nn.Module]:
    """Torch's own swaps a fake parameter with a new object, which an autograd node or a weak reference forbids."""

    def apply(self: nn.Module, fn: Change, recurse: bool = True) -> nn.Module:
        if not any(isinstance(t, FakeTensor) for m in self.modules() for t in (*m._parameters.values(), *m._buffers.values())):
            out: nn.Module = original(self, fn, recurse)
            return out
        if recurse:
            for module in self.children():
                module._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = _changed(parameter, fn)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    return apply


def _changed(parameter: Any, fn: Change) -> Any:
    """Return the parameter with what ``fn`` makes of its data and of its gradient."""
    with torch.no_grad():
        new = fn(parameter)
    if new is parameter:
        return parameter
    gradient = parameter.grad
    same = isinstance(parameter, FakeTensor) and isinstance(new, FakeTensor)
    if same and not torch.__future__.get_overwrite_module_params_on_conversion():
        parameter.data = new
        kept = parameter
    else:
        kept = _swapped(parameter, nn.Parameter(new, parameter.requires_grad))
    if gradient is not None:
        with torch.no_grad():
            kept.grad = None
            kept.grad = fn(gradient).requires_grad_(gradient.requires_grad)
    return kept


def _swapped(old: Any, new: Any) -> Any:
    """Return the old object with what the new one was; where torch does not allow that, the new one."""
    if isinstance(old, FakeTensor):  # asked for by `torch.__future__`
        return new
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        return new
    return old
