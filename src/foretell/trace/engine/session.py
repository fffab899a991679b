"""One traced run in this process: from what makes a job, to its recording."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from foretell.trace.engine import cuda_api, shim
from foretell.trace.engine.answers import Building
from foretell.trace.engine.checks import job_from
from foretell.trace.engine.cuda_api import Device, Streams
from foretell.trace.engine.loop import Loop
from foretell.trace.engine.patches import applied, applied_to_transformers
from foretell.trace.engine.policies import Policies
from foretell.trace.engine.recorder import Recorder
from foretell.trace.engine.sdpa import Attention
from foretell.trace.engine.sharding import join, stand_ins
from foretell.trace.engine.threads import prepare_backward
from foretell.trace.engine.workspace import Workspaces
from foretell.trace.events import Recording
from foretell.trace.job import Job

__all__ = ["Machine", "Settings", "Traced", "machine"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a job is traced."""

    device: str = "cuda"
    """``cuda``: the paths of a GPU run; ``cpu``: those of a CPU run."""
    fake: bool = True
    """False: run for real (on the CPU only), to check the trace."""
    gpu: Device = field(default_factory=Device)
    steps: int = 2
    evaluate: bool = False
    sdpa: str = "auto"
    skew: float = 1.0
    density: float | None = None
    workspaces: bool = True
    world: int = 1
    """Ranks of the job, of which this is the first."""
    limit: int = 20_000_000
    """Most events."""


@dataclass(slots=True)
class Machine:
    """What this process pretends to be; made once."""

    settings: Settings
    streams: Streams
    attention: Attention | None
    shim: str
    """``none``: a real CUDA build, or the CPU; ``stubs``: a CPU build taught the CUDA paths."""


def machine(settings: Settings) -> Machine:
    """Prepare this process for a run on the device of ``settings``; what is done stays until it ends.

    Raises:
        foretell.trace.engine.shim.ShimError: the CUDA paths cannot be had.

    """
    streams = Streams()
    if settings.world > 1:
        join(settings.world)
    if settings.device != "cuda":
        return Machine(settings, streams, None, "none")
    attention = Attention(settings.sdpa, settings.gpu.capability)
    if torch.cuda.is_available():
        attention.install()
        return Machine(settings, streams, attention, "none")
    shim.install()
    cuda_api.install(settings.gpu, streams)
    attention.install()
    return Machine(settings, streams, attention, "stubs")


class Traced:
    """A job that was built once, to be recorded as often as needed (with fewer layers, say)."""

    def __init__(self, make: Callable[[], Any], here: Machine) -> None:
        """Build the job; use as a context manager."""
        self.make, self.here = make, here
        self.job: Job
        self.left_out: Counter[str] = Counter()
        self.built: Policies
        """What was answered while the job was built."""
        self.on_progress: Callable[[int, str], None] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def _enter(self, stack: contextlib.ExitStack) -> None:
        settings = self.here.settings
        self.left_out = stack.enter_context(applied(fake=settings.fake))
        stack.enter_context(self._tensors())
        if settings.fake:
            prepare_backward(settings.device)
            stack.enter_context(stand_ins(settings.world))
        torch.manual_seed(0)
        self.rebuild()
        stack.enter_context(applied_to_transformers())

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def rebuild(self) -> None:
        """Build the job (anew), with all its layers."""
        settings = self.here.settings
        self.built = Policies(settings.skew, settings.density)
        with Building(self.built) if settings.fake else contextlib.nullcontext():
            self.job = job_from(self.make())

    @contextlib.contextmanager
    def _tensors(self) -> Iterator[None]:
        """Make tensors fake, on the traced device unless another is named."""
        settings = self.here.settings
        mode = FakeTensorMode(allow_non_fake_inputs=True) if settings.fake else contextlib.nullcontext()
        with mode, torch.device(settings.device):
            yield

    def record(self) -> Recording:
        """Run the job's steps and return what happened."""
        settings, streams = self.here.settings, self.here.streams
        if self.here.attention is not None:
            self.here.attention.used.clear()
        policies = Policies(settings.skew, settings.density)
        number = _Numbers(streams)
        work = None
        if settings.workspaces and settings.device == "cuda":
            work = Workspaces(settings.gpu.capability, number)
        recorder = Recorder(
            settings.device,
            fake=settings.fake,
            policies=policies,
            workspace=work,
            stream=number,
            limit=settings.limit,
        )
        recorder.on_progress = self.on_progress
        with recorder, streams.watched(recorder.waits, lambda tensor, stream: recorder.use(tensor, number.of(stream))):
            loop = Loop(self.job, recorder)
            loop.run(settings.steps, evaluate=settings.evaluate)
            del loop
        about = {
            "torch": str(torch.__version__),
            "device": settings.device,
            "fake": settings.fake,
            "shim": self.here.shim,
            "gpu": settings.gpu.name,
            "compute_capability": ".".join(map(str, settings.gpu.capability)),
            "steps": settings.steps,
            "world": settings.world,
            "operators": recorder.operators,
            "attention": dict(self.here.attention.used) if self.here.attention else {},
            "policies": dict(self.built.given + policies.given + self.left_out),
            "unknown_workspaces": dict(work.unknown) if work else {},
            "convolutions": recorder.convolutions if recorder.convolutions["largest_bytes"] else {},
        }
        return recorder.recording(about)


class _Numbers:
    """Numbers for the streams of one recording, in the order in which they come; the default one is 0."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.numbers = {streams.default.stream_id: 0}

    def __call__(self) -> int:
        return self.of(self.streams.stack[-1])

    def of(self, stream: Any) -> int:
        """Return the number of a stream."""
        return self.numbers.setdefault(stream.stream_id, len(self.numbers))
