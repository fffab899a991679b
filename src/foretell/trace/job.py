"""What a user's callable gives to be traced.  Nothing here imports torch: the values do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Job"]


@dataclass(slots=True)
class Job:
    """A model and its training step.

    The callable that makes it runs with every tensor fake: ``torch.device("cuda")`` is the default device, weights have
    shapes and no values, nothing is downloaded or computed.

    A training step is, as often as ``accumulate`` says: ``loss(model, batch)`` under autocast if asked, ``.backward()``;
    then the clipping of gradients if asked, ``optimizer.step()``, ``optimizer.zero_grad()``.
    """

    model: Any
    """``torch.nn.Module``."""
    batch: Any
    """What ``loss`` takes: tensors, or a callable without arguments that makes them anew for each micro-step."""
    loss: Callable[[Any, Any], Any] | None = None
    """``loss(model, batch) -> scalar tensor``.  Without it: ``model(**batch)`` (a mapping), ``model(*batch)`` (a tuple) or
    ``model(batch)``, whose result must be a scalar or have a scalar ``.loss``."""
    optimizer: Any = None
    """A ``torch.optim.Optimizer``, or a callable that makes one of the trainable parameters; None: no optimizer step."""
    step: Callable[[Any, Any, Any], None] | None = None
    """``step(model, batch, optimizer)``: the whole training step in the user's own words, in place of the one above."""
    accumulate: int = 1
    """Micro-steps for each optimizer step."""
    autocast: str | None = None
    """``bfloat16`` or ``float16``: dtype of ``torch.autocast`` around the loss."""
    clip: float | None = None
    """Largest norm of the gradients (``torch.nn.utils.clip_grad_norm_``)."""


FIELDS = tuple(f.name for f in fields(Job))
