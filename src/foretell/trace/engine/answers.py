"""What a fake tensor cannot tell: scalars, sizes that depend on data, and operators without a fake kernel.

Known values are told truly (:mod:`values`).  The rest is answered by :class:`Policies` or refused with operator and module named.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._library.utils import has_fake_kernel
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from foretell.trace.engine import values
from foretell.trace.engine.kernels import CORRECTED, REPLACED
from foretell.trace.engine.places import Places
from foretell.trace.engine.policies import Policies, Unanswerable

__all__ = ["Answers", "Building", "NoFakeKernel"]

aten = torch.ops.aten
_ITEM = aten._local_scalar_dense.default
_NO_KERNEL = "There was no fake impl registered"
"""What ``torch.library.custom_op`` says."""
_TORCHS_OWN = frozenset({"aten", "prims", "prim", "c10d", "_c10d_functional", "fsdp", "quantized"})


class NoFakeKernel(Exception):  # noqa: N818  # reads as what is missing
    """An operator cannot run on fake tensors, and nothing says what it makes."""

    def __init__(self, op: str, module: str) -> None:
        """Name them."""
        super().__init__(
            f"{op} in module {module or '(the step itself)'} has no fake kernel, and its outputs cannot be taken to be like its "
            "input; torch.library.register_fake gives it one"
        )
        self.op, self.module = op, module


class Answers:
    """Runs operators on fake tensors, and answers for those that cannot run."""

    def __init__(self, policies: Policies, places: Places | None = None) -> None:
        """Answer by ``policies``; ``places`` knows which module is running."""
        self.policies, self.places = policies, places

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator gives.

        Raises:
            Unanswerable: it depends on data and no policy says how.
            NoFakeKernel: it cannot run on fake tensors.

        """
        if func is _ITEM:
            return self._item(args[0])
        if func is aten.index.Tensor:
            args = (args[0], self._indices(args[0], args[1]))
        replaced = REPLACED.get(func)
        try:
            out = func(*args, **kwargs) if replaced is None else replaced(func, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._dependent(func, args, kwargs)
        except (UnsupportedOperatorException, NotImplementedError) as error:
            out = self._alike(func, args, kwargs, error)
        except RuntimeError as error:
            if func.namespace in _TORCHS_OWN or (has_fake_kernel(func) and not str(error).startswith(_NO_KERNEL)):
                raise
            out = self._alike(func, args, kwargs, error)
        correct = CORRECTED.get(func)
        if correct is not None:
            out = correct(out, args)
        values.follow(func, args, kwargs, out)
        if isinstance(out, torch.Tensor) and out.dim() == 0:
            out._producer = func._schema.name  # type: ignore[attr-defined]
        return out

    def _item(self, tensor: torch.Tensor) -> bool | float | int:
        known = values.value_of(tensor)
        self.policies.count_question()
        if known is None:
            return self.policies.scalar(tensor, getattr(tensor, "_producer", ""))
        with torch._C._DisableTorchDispatch():
            told: bool | float | int = known.item()
        return told

    def _rows(self, op: str, mask: torch.Tensor) -> int:
        modules, name = (self.places.modules, self._module()) if self.places is not None else ([], "")
        return self.policies.rows(op, mask, modules, name)

    def _selected(self, op: str, tensor: torch.Tensor, mask: torch.Tensor) -> int:
        whole = mask.expand(torch.broadcast_shapes(tensor.shape, mask.shape))
        known = values.array_of(mask)
        return self._rows(op, whole) if known is None else int(known.sum()) * whole.numel() // max(mask.numel(), 1)

    def _module(self) -> str:
        return self.places.here()[0] if self.places is not None else ""

    def _indices(self, tensor: torch.Tensor, indices: Any) -> list[Any]:
        """Put positions in the place of masks: one tensor of them for each dimension of the mask."""
        out: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                out += self._positions(index, tensor.device)
            else:
                out.append(index)
        return out

    def _positions(self, mask: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
        known = values.compute(aten.nonzero.default, (mask,), {})
        if known is not values.UNKNOWN:
            with torch._C._DisableTorchDispatch():
                columns = known.unbind(1)
            return [_known(column, device) for column in columns]
        rows = self._rows("aten::index", mask)
        return [torch.empty(rows, dtype=torch.int64, device=device) for _ in range(mask.dim())]

    def _dependent(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer for an operator whose result depends on data."""
        name = func._schema.name
        known = values.compute(func, args, kwargs)
        if known is not values.UNKNOWN:
            device = args[0].device
            return tree_map_only(torch.Tensor, lambda real: _known(real, device), known)
        if func in (aten.equal.default, aten.allclose.default):
            self.policies.count_question()
            self.policies.given[f"{name}: yes"] += 1
            return True
        if func is aten.nonzero.default:
            return _empty(args[0], (self._rows(name, args[0]), args[0].dim()), torch.int64)
        if func is aten.masked_select.default:
            return _empty(args[0], (self._selected(name, args[0], args[1]),), args[0].dtype)
        if func is aten.bincount.default and (least := _argument(args, kwargs, 2, "minlength", 0)):
            self.policies.given[f"{name}: no value beyond minlength"] += 1
            weights = _argument(args, kwargs, 1, "weights", None)
            dtype = torch.int64 if weights is None else (torch.float32 if weights.dtype == torch.float32 else torch.float64)
            return _empty(args[0], (least,), dtype)
        if func is aten._ctc_loss.Tensor:
            return self._ctc(name, args)
        raise Unanswerable(name, self._module())

    def _ctc(self, name: str, args: Any) -> Any:
        """Return the loss of each sample, and what the kernel keeps of its paths (pytorch ``native/LossCTC.cpp``)."""
        scores, targets, lengths = args[0], args[1], values.array_of(args[3])
        if lengths is not None:
            longest = int(lengths.max(initial=0))
        elif targets.dim() == 2:  # [batch, longest target]
            self.policies.given[f"{name}: targets as long as their tensor is wide"] += 1
            longest = targets.size(1)
        else:
            raise Unanswerable(name, self._module())
        steps, batch = scores.shape[:2]
        return _empty(scores, (batch,), scores.dtype), _empty(scores, (batch, steps, 2 * longest + 1), scores.dtype)

    def _alike(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """Take the outputs of somebody's own operator to be like its first tensor."""
        name, returns = func._schema.name, func._schema.returns
        first = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
        plain = all(str(r.type) == "Tensor" and r.alias_info is None for r in returns)
        if func.namespace in _TORCHS_OWN or first is None or not returns or not plain:
            raise NoFakeKernel(name, self._module()) from error
        self.policies.given[f"{name}: without a fake kernel, its outputs taken to be like its first tensor"] += 1
        made = tuple(_empty(first, first.shape, first.dtype) for _ in returns)
        return made[0] if len(made) == 1 else made


def _argument(args: Any, kwargs: Any, place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _empty(like: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def _known(real: torch.Tensor, device: torch.device) -> torch.Tensor:
    fake = torch.empty(real.shape, dtype=real.dtype, device=device)
    values.give(fake, real)
    return fake


class Building(TorchDispatchMode):
    """Answers while a job is built, before anything is recorded."""

    def __init__(self, policies: Policies) -> None:
        """Answer by ``policies``."""
        super().__init__()
        self.answers = Answers(policies)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's
        """Run an operator."""
        return self.answers.call(func, args, kwargs or {})
