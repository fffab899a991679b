"""Answers where a step asks a fake tensor for its values: scalars, and operators whose output's size depends on data.

The answers are those of an ordinary step: gradients are finite, masks that ask for trouble find none, tokens are routed evenly
(or with the skew that was asked for).  Each kind of answer given is counted and reported.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import nn

__all__ = ["Endless", "Policies", "Unanswerable"]

_ALL = ("aten::all", "aten::allclose", "aten::equal", "aten::isfinite", "aten::ge", "aten::le")
"""Producers of a boolean that is true in an ordinary step; of the others (any, isnan, eq ...) it is false."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_ROUTES = re.compile("expert|moe|mixture|router|gate", re.IGNORECASE)


class Unanswerable(Exception):  # noqa: N818  # reads as what the operator is
    """An operator's output depends on data and no policy says how; operator and module are named."""

    def __init__(self, op: str, module: str, what: str = "makes a tensor whose size depends on data") -> None:
        """Name them."""
        super().__init__(f"{op} in module {module or '(the step itself)'} {what}")
        self.op, self.module = op, module


class Endless(Exception):  # noqa: N818  # the run is
    """More questions for values than any step asks: a loop that waits for what never comes."""


@dataclass(slots=True)
class Policies:
    """What to answer, and what was answered."""

    skew: float = 1.0
    """Tokens of the expert asked about over the even share."""
    density: float | None = None
    """Share of a mask's elements that are taken as true where nothing else says; None: ask no such thing."""

    limit: int = 1_000_000
    """Most questions for a value."""

    given: Counter[str] = field(default_factory=Counter, init=False)
    """How often each kind of answer was given."""
    questions: int = field(default=0, init=False)
    masks: dict[torch.Size, int] = field(default_factory=dict, init=False)
    """Shape of a mask -> what was answered last."""

    def count_question(self) -> None:
        """Count a question for a value.

        Raises:
            Endless: it is one too many.

        """
        self.questions += 1
        if self.questions > self.limit:
            raise Endless(
                f"the step asked for values of tensors more than {self.limit:,} times: a loop that waits for data does not end"
            )

    def scalar(self, tensor: torch.Tensor, producer: str) -> bool | float | int:
        """Return what ``.item()`` and ``bool()`` give for a tensor that the operator ``producer`` made."""
        self.given[f"value of {producer or 'a scalar'}"] += 1
        if tensor.dtype == torch.bool:
            return producer in _ALL
        if tensor.dtype.is_floating_point:  # a step counter lives on the CPU; an overflow flag on the device
            return 1.0 if tensor.device.type == "cpu" else 0.0
        return 1 if tensor.device.type == "cpu" else 0

    def rows(self, op: str, mask: torch.Tensor, modules: list[nn.Module], name: str) -> int:
        """Return how many elements of a mask are taken as set; outside every module (in backward), as was said of one like it.

        Raises:
            Unanswerable: nothing says how many.

        """
        rows = self.masks.get(mask.shape) if not modules else None
        if rows is None:
            rows = self.masks[mask.shape] = self._rows(op, mask, modules, name)
        return rows

    def _rows(self, op: str, mask: torch.Tensor, modules: list[nn.Module], name: str) -> int:
        experts = _experts(modules)
        total = mask.numel()
        if experts is not None:
            self.given[f"{op}: tokens routed {'evenly' if self.skew == 1 else f'with skew {self.skew:g}'}"] += 1
            if total <= experts + 1:  # which experts were hit: all; the one more is for tokens that go nowhere
                return min(total, experts)
            return min(total, math.ceil(total / experts * self.skew))
        if modules and isinstance(modules[-1], nn.SyncBatchNorm):  # it leaves out the statistics of ranks that had no input
            self.given[f"{op}: every rank has input for {type(modules[-1]).__name__}"] += 1
            return total
        if self.density is not None:
            self.given[f"{op}: {self.density:g} of the mask"] += 1
            return round(total * self.density)
        raise Unanswerable(op, name)


def _experts(modules: list[nn.Module]) -> int | None:
    """Return the number of experts of the innermost module that has any; a whole model's configuration is no module's own."""
    for module in reversed(modules):
        routes = _ROUTES.search(type(module).__name__) is not None
        for owner in (module, getattr(module, "config", None) if routes else None):
            for name in _EXPERTS:
                value = getattr(owner, name, None)
                if isinstance(value, int) and value > 0:
                    return value
    return None
