"""Training jobs whose layer reads and writes by every kind of index, as it is and computed again in the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretell.trace.job import Job

__all__ = ["INDICES", "checkpointed", "job", "plain", "reentrant"]

INDICES: dict[str, Any] = {
    "list": [1, 0],
    "negative, after ...": (..., [-2], slice(None)),
    "tuple of lists": ([0, 1], [-1, 2]),
    "nested list": ([[0, 1], [1, 0]],),
    "range": range(2),
    "range in a tuple": (slice(None), range(1, 3)),
    "list of booleans": [True, False],
    "boolean": True,
    "None": (None, ..., [0, 3]),
    "numbers, slice and list": (0, slice(1, 3), [0, -1]),
    "apart": ([0, 1], slice(None), [2, 3]),
    "empty list": (slice(None), []),
    "numbers alone": (..., -1, 2),
}


class Indexed(nn.Module):
    """Reads what the layer before it gave by every index, and writes to a copy by every index."""

    def __init__(self, again: str) -> None:
        """Take when to compute again: ``no``, ``checkpoint`` or ``re-entrant``."""
        super().__init__()
        self.again = again
        self.layer = nn.Linear(8, 8)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x)
        total = hidden.sum()
        for index in INDICES.values():
            total = total + hidden[index].square().sum()
        for index in INDICES.values():
            copy = hidden.clone()
            copy[index] = 0.5
            copy[index] = hidden[index].exp()
            total = total + copy.square().sum()
        return total + hidden.new_tensor([1.0, 2.0]).sum() * torch.tensor([3.0], device=x.device).sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.again == "no":
            return self.inner(x)
        out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=self.again == "re-entrant")
        return out


def job(again: str) -> Job:
    def batch() -> torch.Tensor:
        return torch.zeros(2, 4, 8, requires_grad=True)

    return Job(Indexed(again), batch, lambda model, x: model(x), partial(torch.optim.SGD, lr=0.1))


def plain() -> Job:
    return job("no")


def checkpointed() -> Job:
    return job("checkpoint")


def reentrant() -> Job:
    return job("re-entrant")
