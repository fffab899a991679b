"""What a user's callable gives, checked before it is used: each complaint names the field of the job."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

from foretell.errors import InputError
from foretell.trace.job import FIELDS, Job

__all__ = ["check_call", "check_job", "check_loss", "check_optimizer", "job_from", "trains_copies"]

_AUTOCAST = ("bfloat16", "float16")


def job_from(made: Any) -> Job:
    """Return the job that a callable gave: one, or a mapping with its fields.

    Raises:
        InputError: something else, or a field that cannot be used.

    """
    if isinstance(made, Mapping):
        unknown = [k for k in made if k not in FIELDS]
        if unknown:
            raise InputError("is no field of a job", field="job", value=unknown[0], allowed=list(FIELDS))
        missing = [k for k in ("model", "batch") if k not in made]
        if missing:
            raise InputError("is missing", field=f"job.{missing[0]}", hint="A job has a model and a batch at least")
        made = Job(**made)
    if not isinstance(made, Job):
        raise InputError(
            "must be a foretell.trace.Job or a mapping with its fields",
            field="result of the callable",
            value=type(made).__name__,
            allowed=list(FIELDS),
        )
    check_job(made)
    return made


def check_job(job: Job) -> None:
    """Check every field; a dtype given for ``autocast`` becomes its name.

    Raises:
        InputError: one that cannot be used.

    """
    from torch import nn, utils  # noqa: PLC0415  # the worker checks a call before torch is wanted

    if not isinstance(job.model, nn.Module):
        raise InputError("must be a torch.nn.Module", field="job.model", value=type(job.model).__name__)
    if isinstance(job.batch, (Iterator, utils.data.DataLoader)):
        hint = "Give a callable that takes the next one: iterator = iter(loader); batch=lambda: next(iterator)"
        what = "must be one batch, or a callable that makes one"
        raise InputError(what, field="job.batch", value=type(job.batch).__name__, hint=hint)
    if job.step is not None and job.loss is not None:
        raise InputError("and job.loss are both given: a step of your own computes its loss itself", field="job.step")
    if not isinstance(job.accumulate, int) or isinstance(job.accumulate, bool) or job.accumulate < 1:
        raise InputError("must be a whole number, 1 or more", field="job.accumulate", value=job.accumulate)
    if job.clip is not None and not (isinstance(job.clip, (int, float)) and math.isfinite(job.clip) and job.clip > 0):
        raise InputError("must be a norm above 0", field="job.clip", value=job.clip)
    if job.autocast is not None:
        job.autocast = str(job.autocast).removeprefix("torch.")
        if job.autocast not in _AUTOCAST:
            raise InputError("is no dtype that autocast takes", field="job.autocast", value=job.autocast, allowed=list(_AUTOCAST))
    for field, count in (("batch", 0), ("loss", 2), ("step", 3)):
        value = getattr(job, field)
        if value is not None and (field != "batch" or callable(value)):
            check_call(value, f"job.{field}", count)


def check_call(function: Any, field: str, count: int, where: str | None = None) -> None:
    """Check that something can be called with so many arguments.

    Raises:
        InputError: it cannot.

    """
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:  # a builtin does not tell
        return
    except TypeError as error:
        what = f"cannot be called with {count} arguments: {error}" if callable(function) else "must be callable"
        raise InputError(what, field=field, value=getattr(function, "__name__", function), where=where) from error


def check_loss(loss: Any) -> Any:
    """Return a loss that a backward pass can start from.

    Raises:
        InputError: it is none.

    """
    from torch import Tensor  # noqa: PLC0415

    if not isinstance(loss, Tensor) or loss.dim() != 0:
        value = f"tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError("must be a scalar tensor", field="result of job.loss", value=value)
    return loss


def check_optimizer(made: Any, model: Any) -> Any:
    """Return an optimizer of the model's parameters.

    One of somebody's own class may train copies of the parameters (:func:`trains_copies`).

    Raises:
        InputError: it is none, or one of torch's own that has another model's parameters.

    """
    from torch import optim  # noqa: PLC0415

    if made is None:
        return None
    if not isinstance(made, optim.Optimizer) and not hasattr(made, "step"):
        raise InputError("must be an optimizer or make one of parameters", field="job.optimizer", value=type(made).__name__)
    if type(made).__module__.startswith("torch.optim") and trains_copies(made, model):
        raise InputError("has no parameter of job.model", field="job.optimizer", value=type(made).__name__)
    return made


def trains_copies(optimizer: Any, model: Any) -> bool:
    """Say whether an optimizer has parameters, and none of them is the model's own."""
    own = {id(p) for p in model.parameters()}
    groups = getattr(optimizer, "param_groups", [])
    return bool(groups) and not any(id(p) in own for group in groups for p in group["params"])
