"""Changes to torch and transformers that let fake tensors go where real ones go; each holds while its context is open.

Every one of them was a wrong number or a hang before it was made; the comment says which.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._device
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from foretell.trace.engine.cache import quicken_keys
from foretell.trace.engine.functions import replace_functions
from foretell.trace.engine.inplace import watch_functions
from foretell.trace.engine.moves import keep_parameters

__all__ = ["applied", "applied_to_transformers"]


@contextlib.contextmanager
def applied(*, fake: bool) -> Iterator[Counter[str]]:
    """Apply what every traced run needs, and for fake tensors what only they need; gives the count of what was taken out."""
    left_out: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        _initialisers(stack)
        watch_functions(stack)
        if fake:
            for change in (_modes, _optimizers, _clipping, keep_parameters, _literals, replace_functions, quicken_keys):
                change(stack)
            _compilers(stack, left_out)
        yield left_out


def _compilers(stack: contextlib.ExitStack, left_out: Counter[str]) -> None:
    """Trace compiled code as it is written: what a compiler fuses and computes again is not known, and is said."""

    def compiled(model: Any = None, **_kwargs: Any) -> Any:
        if model is None:
            return compiled
        left_out[f"torch.compile of {getattr(model, '__name__', type(model).__name__)}: traced eagerly"] += 1
        return model

    def compiled_in_place(self: nn.Module, *_args: Any, **_kwargs: Any) -> None:
        left_out[f"torch.compile of {type(self).__name__}: traced eagerly"] += 1

    _set(stack, torch, "compile", compiled)
    _set(stack, nn.Module, "compile", compiled_in_place)


def _set(stack: contextlib.ExitStack, target: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(target, name, value))


def _initialisers(stack: contextlib.ExitStack) -> None:
    """Weights need no values; ``trunc_normal_`` would draw until its data fits, for ever.

    Who took a function of ``torch.nn.init`` before (transformers does at import) has the old one, which calls a private one.
    """

    def same(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return tensor

    for name in dir(nn.init):
        if name.endswith("_") and not name.startswith("__") and (not name.startswith("_") or name.startswith("_no_grad_")):
            _set(stack, nn.init, name, same)


def _modes(stack: contextlib.ExitStack) -> None:
    """Do not ask for a device, and let ``copy.deepcopy(module)`` keep the mode (a copied one makes a storage at every use)."""
    stack.enter_context(mock.patch.object(FakeTensorMode, "__deepcopy__", lambda self, _memo: self, create=True))
    if torch.version.cuda is None:
        _set(stack, FakeTensorMode, "avoid_device_init", property(lambda _self: True))
        _set(stack, fake_tensor, "init_gpu_context", lambda _device: None)


def _optimizers(stack: contextlib.ExitStack) -> None:
    """Optimizers ask ``type(p) is Parameter`` and would take the slow loop, which has other temporaries."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    kinds = [*optimizer._foreach_supported_types, FakeTensor]
    _set(stack, optimizer, "_foreach_supported_types", kinds)


def _clipping(stack: contextlib.ExitStack) -> None:
    """Clipping asks ``type(g) is Tensor`` and would take one gradient after the other."""
    utilities = importlib.import_module("torch.utils._foreach_utils")
    original = utilities._has_foreach_support

    def supported(tensors: Any, device: torch.device) -> bool:
        fake = any(isinstance(t, FakeTensor) for t in tensors)
        found: bool = utilities._device_has_foreach_support(device) if fake else original(tensors, device)
        return found

    for module in (utilities, importlib.import_module("torch.nn.utils.clip_grad")):
        _set(stack, module, "_has_foreach_support", supported)


def _literals(stack: contextlib.ExitStack) -> None:
    """``torch.tensor([fake scalars])`` asks for values below the dispatcher: give the policy's answers instead."""
    torch.utils._device._device_constructors()  # remembers who takes the default device: the original must be among them
    original = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return original(_plain(data) if isinstance(data, (list, tuple)) else data, *args, **kwargs)

    _set(stack, torch, "tensor", tensor)


def _plain(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_plain(one) for one in data]
    return data.item() if isinstance(data, FakeTensor) and data.dim() == 0 else data


@contextlib.contextmanager
def applied_to_transformers() -> Iterator[None]:
    """Keep transformers from the paths that it takes for a fake tensor alone (it writes causal masks out, for one).

    To be opened once the model is built: until then transformers may not have been imported.
    """
    with contextlib.ExitStack() as stack:
        utilities = sys.modules.get("transformers.utils.import_utils")
        if utilities is not None and hasattr(utilities, "is_fake_tensor"):
            _set(stack, utilities, "is_fake_tensor", lambda _tensor: False)
        yield
