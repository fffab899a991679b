"""Parameters that are moved, cast or given other data stay the objects that they are, and leave the memory that they had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.trace import TraceRequest, record
from foretell.trace.events import Recording
from foretell.trace.job import Job

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH = 64
BYTES = 4 * WIDTH * (WIDTH + 1)
"""Of a linear layer in fp32."""


def traced(make: Callable[[], Job], *, fake: bool = True) -> Recording:
    from foretell.trace.engine.session import Settings, Traced, machine

    with Traced(make, machine(Settings(device="cpu", fake=fake))) as here:
        return here.record()


def events(recording: Recording) -> list[tuple[bool, str, int]]:
    return [(allocates, storage.op, storage.bytes) for allocates, _, storage in recording.events()]


def bytes_at_end(recording: Recording, category: str) -> int:
    live = [entry for entry in recording.order if entry >= 0 and ~entry not in recording.order]
    return sum(recording.storages[i].bytes for i in live if recording.storages[i].category == category)


# -- beside real tensors --------------------------------------------------------------------------------------


def cast() -> Job:
    """A step that casts the model, while a list of its parameters (as an optimizer's or a library's table) is at hand."""
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))
    held = list(model.parameters())
    optimizer = torch.optim.SGD(held, lr=0.1)

    def step(model: Any, batch: Any, _optimizer: Any) -> None:
        if held[0].dtype == torch.float32:
            model(batch).sum().backward()
            model.double()
        assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
        assert held[0].grad.dtype == torch.float64
        model(batch.double()).sum().backward()
        optimizer.step()

    return Job(model, lambda: torch.ones(4, WIDTH), step=step)


def tied() -> Job:
    """Two modules with one weight, cast and back."""
    first, second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)

    def step(model: Any, batch: Any, _optimizer: Any) -> None:
        for kind in (torch.float64, torch.float32):
            model.to(kind)
            assert first.weight is second.weight
            model(batch.to(kind)).sum().backward()

    return Job(model, lambda: torch.ones(4, WIDTH), step=step)


def replaced() -> Job:
    """Parameters that get other data, as a library does that keeps weights elsewhere between uses."""
    model = torch.nn.Linear(WIDTH, WIDTH)

    def step(model: Any, batch: Any, _optimizer: Any) -> None:
        kept = [p.data for p in model.parameters()]
        for p in model.parameters():
            p.data = torch.cat([p.data, p.data])[: p.shape[0]]
        model(batch).sum().backward()
        for p, old in zip(model.parameters(), kept, strict=True):
            p.data = old

    return Job(model, lambda: torch.ones(4, WIDTH), step=step)


@pytest.mark.parametrize("make", [cast, tied, replaced])
def test_memory_goes_as_with_real_tensors(make: Callable[[], Job]) -> None:
    assert events(traced(make)) == events(traced(make, fake=False))


def test_weights_that_a_step_casts_are_weights_still() -> None:
    made = traced(cast)
    buffers = 2 * 8 * WIDTH + 8  # running mean and variance, and the count of batches
    assert bytes_at_end(made, "parameter") == 2 * (BYTES + 2 * 4 * WIDTH) + buffers


def test_values_go_with_the_data() -> None:
    def make() -> Job:
        model = torch.nn.Linear(WIDTH, WIDTH)
        scale = torch.ones(())

        def step(model: Any, batch: Any, _optimizer: Any) -> None:
            scale.data = torch.full((), 3.0)
            rows = int(scale.item())
            model(batch[:rows]).sum().backward()
            scale.data = batch.sum()
            assert scale.item() != 3.0

        return Job(model, lambda: torch.rand(4, WIDTH), step=step)

    assert events(traced(make)) == events(traced(make, fake=False))


# -- on the GPU's paths ---------------------------------------------------------------------------------------

JOBS = """
import torch
from torch import nn
from foretell.trace import Job

def _job(model, optimizer):
    return Job(model, batch=lambda: torch.randn(4, 64), loss=lambda m, b: m(b).sum(), optimizer=optimizer)

def optimizer_first():
    model = nn.Linear(64, 64, device="cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    held = list(model.parameters())
    model.to("cuda")
    assert all(a is b and a.device.type == "cuda" for a, b in zip(held, model.parameters()))
    return _job(model, optimizer)

def by_data():
    model = nn.Linear(64, 64, device="cpu")
    for p in model.parameters():
        p.data = p.data.to("cuda")
    return _job(model, lambda ps: torch.optim.AdamW(ps))

class Offload:
    def __init__(self, params):
        self.params = list(params)
        self.copies = [nn.Parameter(torch.empty_like(p, device="cpu")) for p in self.params]
        self.inner = torch.optim.AdamW(self.copies)

    @property
    def param_groups(self):
        return self.inner.param_groups

    @property
    def state(self):
        return self.inner.state

    def step(self):
        for p, c in zip(self.params, self.copies):
            c.grad = p.grad.to("cpu")
        self.inner.step()
        for p, c in zip(self.params, self.copies):
            p.data.copy_(c)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

def offloaded():
    return _job(nn.Linear(64, 64), Offload)

def strangers():
    return _job(nn.Linear(64, 64), torch.optim.SGD(nn.Linear(64, 64).parameters(), lr=0.1))
"""


def on_gpu(folder: Path, name: str) -> Recording:
    (folder / "jobs.py").write_text(JOBS)
    return record(TraceRequest(target="jobs.py:" + name, folder=str(folder)))


@pytest.mark.parametrize("name", ["optimizer_first", "by_data"])
def test_a_model_that_is_moved_is_trained_there(name: str, tmp_path: Path) -> None:
    made = on_gpu(tmp_path, name)
    assert bytes_at_end(made, "parameter") == BYTES
    assert bytes_at_end(made, "optimizer") == 2 * BYTES


def test_an_optimizer_may_train_copies(tmp_path: Path) -> None:
    made = on_gpu(tmp_path, "offloaded")
    assert bytes_at_end(made, "optimizer") == 0  # its states are the host's
    assert sum(s.bytes for s in made.storages if s.category == "gradient") == 2 * BYTES
    assert "Offload has no parameter of the model itself: taken to train copies of them" in made.about["policies"]


def test_torchs_own_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no parameter of job\.model"):
        on_gpu(tmp_path, "strangers")
