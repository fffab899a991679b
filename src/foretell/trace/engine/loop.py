"""The training step: runs a job for some steps under the recorder, and tells it the phases and what the tensors are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.optim import optimizer as optim_hooks

from foretell.errors import InputError
from foretell.trace.engine.checks import check_loss, check_optimizer, trains_copies
from foretell.trace.engine.recorder import Recorder
from foretell.trace.job import Job

__all__ = ["Loop", "loss_of"]


class Loop:
    """One job's steps, with phases found by hooks on autograd and on optimizers, whoever calls them."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        """Take a job whose model is built; everything of the model becomes known to the recorder."""
        self.job, self.recorder = job, recorder
        self.step = self.micro = self.depth = 0
        recorder.places.learn(job.model)
        self.mark_model()
        self.scaler: Any = None
        recorder.places.on_forward = self._forward_begins

    # -- phases and categories ------------------------------------------------------------------------------

    def mark_model(self) -> None:
        """Tell the recorder which storages are weights now: a step may cast or move them."""
        for tensor in (*self.job.model.parameters(), *self.job.model.buffers()):
            self.recorder.see(tensor, "", "parameter")

    def _mark_gradients(self) -> None:
        for parameter in self.job.model.parameters():
            if parameter.grad is not None:
                self.recorder.see(parameter.grad, "", "gradient")

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Follow backward passes and optimizer steps."""
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            if self.depth == 1:  # a re-entrant checkpoint calls it again inside
                self.recorder.phase("backward", self.step, self.micro)
            self.recorder.places.nested = self.depth > 1
            try:
                return original(*args, **kwargs)
            finally:
                self.depth -= 1
                self.recorder.places.nested = self.depth > 1
                if self.depth == 0:
                    self.mark_model()
                    self._mark_gradients()
                    self.recorder.phase("other", self.step, self.micro)
                    self.micro += 1

        before = optim_hooks.register_optimizer_step_pre_hook(self._step_begins)
        after = optim_hooks.register_optimizer_step_post_hook(self._step_ends)
        try:
            with mock.patch.object(torch.autograd, "backward", backward), self.recorder.places.watching():
                yield
        finally:
            before.remove()
            after.remove()

    def _forward_begins(self) -> None:
        """A module runs: in a step of the user's own words that is what begins the next forward phase."""
        if self.recorder.phases[-1].name in ("other", "optimizer"):
            self.recorder.phase("forward", self.step, self.micro)

    def _step_begins(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.recorder.phase("optimizer", self.step, 0)

    def _step_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, Mapping) else ():
                if isinstance(value, torch.Tensor):
                    self.recorder.see(value, "", "optimizer")

    # -- steps ----------------------------------------------------------------------------------------------

    def run(self, steps: int, *, evaluate: bool = False) -> None:
        """Run training steps, then one evaluation pass if asked."""
        job = self.job
        with self._watching():
            optimizer = self._optimizer()
            for self.step in range(steps):
                self.micro = 0
                self.recorder.phase("forward", self.step, 0)
                if job.step is not None:
                    job.step(job.model, self._batch(), optimizer)
                else:
                    self._train(optimizer)
            if evaluate:
                self.recorder.phase("forward", steps, 0)
                self._evaluate()
            self.recorder.end()

    def _train(self, optimizer: Any) -> None:
        job, recorder = self.job, self.recorder
        for micro in range(job.accumulate):
            recorder.phase("forward", self.step, micro)
            self.micro = micro
            loss = self._loss(self._batch())
            if self.scaler is not None:
                loss = self.scaler.scale(loss)
            loss.backward()
            del loss
        if optimizer is None:
            for parameter in job.model.parameters():
                parameter.grad = None
            return
        if self.scaler is not None and job.clip is not None:
            self.scaler.unscale_(optimizer)
        if job.clip is not None:
            torch.nn.utils.clip_grad_norm_([p for p in job.model.parameters() if p.requires_grad], job.clip)
        if self.scaler is not None:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()

    def _loss(self, batch: Any) -> Any:
        job = self.job
        device = self.recorder.device
        cast = torch.autocast(device, dtype=getattr(torch, job.autocast)) if job.autocast else contextlib.nullcontext()
        with cast:
            loss = loss_of(job.model, batch) if job.loss is None else check_loss(job.loss(job.model, batch))
        if job.accumulate > 1:
            loss = loss / job.accumulate
        return loss

    def _evaluate(self) -> None:
        model = self.job.model
        training = model.training
        model.eval()
        with torch.no_grad():
            self._loss(self._batch())
        model.train(training)

    def _batch(self) -> Any:
        """Return the inputs of a micro-step; what making them leaves on the device is an input."""
        batch = self.job.batch
        made = batch() if callable(batch) else batch
        for tensor in torch.utils._pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.recorder.see(tensor, "", "input")
        return made

    def _optimizer(self) -> Any:
        job = self.job
        if job.autocast == "float16" and self.recorder.device == "cuda" and job.step is None:
            self.scaler = torch.amp.GradScaler("cuda")
        made = job.optimizer
        if callable(made) and not isinstance(made, torch.optim.Optimizer):
            made = made([p for p in job.model.parameters() if p.requires_grad])
        made = check_optimizer(made, job.model)
        if made is not None and trains_copies(made, job.model):
            name = f"{type(made).__name__} has no parameter of the model itself: taken to train copies of them"
            self.recorder.policies.given[name] += 1
        return made


def loss_of(model: Any, batch: Any) -> Any:
    """Return the loss of a model that is called in the usual ways.

    Raises:
        InputError: its output is neither a scalar nor has a scalar ``.loss``.

    """
    if isinstance(batch, Mapping):
        out = model(**batch)
    elif isinstance(batch, (tuple, list)):
        out = model(*batch)
    else:
        out = model(batch)
    loss = getattr(out, "loss", None)
    if loss is None and isinstance(out, Mapping):
        loss = out.get("loss")
    loss = out if loss is None else loss
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise InputError(
            "is neither a scalar nor has a scalar `.loss`",
            field="output of the model",
            value=type(out).__name__,
            hint="Give the job a `loss(model, batch)` that returns a scalar tensor",
        )
    return loss
