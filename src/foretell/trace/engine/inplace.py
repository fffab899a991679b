"""Work in place where torch does when nobody looks on.

While a dispatch mode is active, or for a tensor subclass such as a fake tensor, parts of torch's C++ make a new tensor where they
write into the old one otherwise (``isTensorSubclassLike``): the engine's sums of gradients (pytorch 2.13 ``input_buffer.cpp``),
gradients that are scattered into zeros (``FunctionsManual.cpp``), the bias of a linear layer (``native/Linear.cpp``) and the mask
of attention (``native/transformers/attention.cpp``).  Here such a call is turned back into the one in place.

What stays different: where a view of a tensor that needs a gradient was changed in place, real tensors get the gradient of the
whole base by ``as_strided`` (one more temporary storage of the base's size in backward), and subclasses replay the view without
one; and a linear layer that is called from C++ (a recurrent layer on the CPU) adds its bias out of place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.trace.engine.functions import scriptable
from foretell.trace.engine.kernels import dense

__all__ = ["InPlace", "watch_functions"]

aten = torch.ops.aten
_ADD = aten.add.Tensor
_SCATTERS = {
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
_ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
_PLAIN = (torch.Tensor, FakeTensor)
_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "trace/engine/recorder.py", "trace/engine/inplace.py")
_ENGINE = "torch/autograd/graph.py"
_FUNCTIONS = ("linear", "scaled_dot_product_attention")
Counts = tuple[int, int, int]
_within: list[str] = []
"""Functions of ``_FUNCTIONS`` that are running; each adds in place only."""


class InPlace:
    """Says which operators torch would have called in place; one for each recording."""

    def __init__(self) -> None:
        """Begin outside every backward pass."""
        self.alone = _alone()
        self.zeros: int | None = None
        """Identity of the tensor of zeros that the last operator made."""

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the operator to call for ``func``: itself, or one that writes into the first argument."""
        zeros, self.zeros = self.zeros, None
        if func is _ADD:
            if len(args) == 2 and not kwargs and (_within or self._accumulates(args)):  # without a factor
                return aten.add_.Tensor
        elif func in _SCATTERS and zeros == id(args[0]) and torch._C._current_autograd_node() is not None and _from_engine():
            return _SCATTERS[func]
        return func

    def after(self, func: Any, out: Any) -> None:
        """Take note of what an operator made."""
        if func in _ZEROS:
            self.zeros = id(out)

    def _accumulates(self, args: Any) -> bool:
        """Does the engine add to a gradient that nothing else refers to?"""
        if torch._C._current_autograd_node() is None or torch.is_grad_enabled():
            return False
        if self.alone is None or _counts(args) != self.alone:
            return False
        old, new = args
        plain = type(old) in _PLAIN and type(new) in _PLAIN
        return plain and old.shape == new.shape and old.dtype == new.dtype and dense(old) and _from_engine()


def _counts(args: Any) -> Counts | None:
    """Return the references to the first argument, as a tensor, as a Python object, and to its memory."""
    tensor: Any = args[0]
    try:
        memory: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        references: int = tensor._use_count()
        return references, sys.getrefcount(tensor), memory
    except (AttributeError, NotImplementedError):  # another torch; a sparse tensor
        return None


def _from_engine() -> bool:
    """Was the operator called by autograd's engine, and by no Python code?"""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame is None or frame.f_code.co_filename.endswith(_ENGINE)


class _Probe(TorchDispatchMode):
    """Counts the references to a gradient that is known to have no other owner than the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counts | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD:
            self.seen = _counts(args)
        return func(*args, **(kwargs or {}))


def _alone() -> Counts | None:
    """Return the counts of a tensor that only the engine refers to."""
    x = torch.zeros(2, requires_grad=True, device="cpu")
    probe = _Probe()
    with torch.enable_grad(), probe:
        torch.autograd.backward((x * x).sum())
    return probe.seen


def watch_functions(stack: contextlib.ExitStack) -> None:
    """Let it be known when one of the functions runs that add in place, until the stack is closed."""
    for name in _FUNCTIONS:
        original = getattr(functional, name)
        watched = _watched(original, name)
        scriptable(stack, original, watched)
        stack.enter_context(mock.patch.object(functional, name, watched))


def _watched(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        _within.append(name)
        try:
            return original(*args, **kwargs)
        finally:
            _within.pop()

    return function
