"""What a log says: figures in bytes with the counter they were read from, failures, and where each of them stood."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Count", "Counter", "Figure", "Frame", "HostFailure", "LogReading", "Oom", "Process", "Refusal", "Retry", "Told"]

Counter = Literal[
    "allocated",  # torch.cuda.memory_allocated: tensors
    "active",  # allocated, and freed blocks that another stream still uses
    "reserved",  # torch.cuda.memory_reserved: what the caching allocator holds
    "process",  # what the driver counts for the process
    "device",  # used on the device, by whomever
    "free",
    "capacity",
    "budget",  # what an engine may use: its memory flag times the capacity
    "weights",
    "activation",
    "non_torch",  # outside PyTorch's allocator: contexts, communicators, libraries
    "consumed",  # weights and non_torch together
    "graphs",
    "graphs_estimate",  # by an engine's profiling, before it captures them
    "kv_pool",
    "kv_needed",  # of one request of the longest length
    "state_pool",  # of recurrent layers
    "estimate",  # a framework's own formula, nothing measured
    "host",
]
"""Which of a GPU's (or a host's) numbers a figure is."""

Moment = Literal["peak", "now"]


@dataclass(frozen=True, slots=True)
class Figure:
    """An amount of memory: the highest of its counter where a line was repeated (the lowest of ``free``)."""

    counter: Counter
    bytes: float
    within: float
    """Bytes that rounding may hide: half of the last digit that was printed."""
    moment: Moment
    line: int
    source: str
    """Whose line it is: PyTorch, vLLM, DeepSpeed ..."""
    said: str
    """As it is printed."""
    label: str = ""
    """What the line says of the moment: "Engine after forward"."""
    rank: str = ""
    """Mark of the process in front of the line."""
    times: int = 1
    """Lines of this kind."""


@dataclass(frozen=True, slots=True)
class Count:
    """Something else than memory: tokens of a pool, a speed; the last one where a line was repeated."""

    name: str
    value: float
    line: int
    source: str
    rank: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Told:
    """A setting of the run that its log repeats."""

    name: str
    value: str
    line: int
    source: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a traceback."""

    path: str
    number: int
    function: str
    code: str = ""
    """The source line, where the traceback shows it."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that an error message names."""

    pid: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Oom:
    """An accelerator ran out of memory.  Bytes; None where the message does not say it."""

    line: int
    backend: str
    """CUDA, HIP, XPU, NPU, MPS, XLA; "CUDA library" where a library asked the driver itself."""
    gpu: int | None = None
    rank: str = ""
    tried: float | None = None
    tried_within: float = 0.0
    """Bytes by which what was asked for may differ: rounding of the print and of the allocator."""
    capacity: float | None = None
    free: float | None = None
    allocated: float | None = None
    unallocated: float | None = None
    """Reserved by PyTorch and in no tensor's use."""
    process: float | None = None
    """This process, what lies outside PyTorch's allocator included."""
    others: tuple[Process, ...] = ()
    """Other processes on the device."""
    private: float | None = None
    """Of what is allocated, in private pools (CUDA graphs)."""
    allowed: float | None = None
    """What a memory fraction allows."""
    frames: tuple[Frame, ...] = ()
    """Of the traceback above it, the innermost last."""
    phase: str = ""
    """What the run was doing: load, forward, loss, backward, optimizer ...; empty where no frame tells."""
    doing: str = ""
    """What the innermost frame that tells was at, in words."""
    term: str = ""
    """Term of a memory forecast that this belongs to."""
    where: Frame | None = None
    """The frame that told."""
    step: int | None = None
    """Last step that was logged before it."""
    said: str = ""
    times: int = 1
    """Equal messages."""

    @property
    def reserved(self) -> float | None:
        """Bytes that PyTorch's allocator holds."""
        return None if self.allocated is None or self.unallocated is None else self.allocated + self.unallocated

    @property
    def foreign(self) -> float:
        """Bytes of other processes that the message names."""
        return sum(one.bytes for one in self.others)

    @property
    def outside(self) -> float | None:
        """Bytes of this process outside PyTorch's allocator: context, communicators, libraries."""
        if self.process is None or self.reserved is None:
            return None
        return max(0.0, self.process - self.reserved)

    @property
    def unnamed(self) -> float | None:
        """Bytes in use that neither PyTorch's allocator nor a process named here has (the whole of it where only this run
        is on the device: its context and communicators)."""
        if self.capacity is None or self.free is None or self.reserved is None:
            return None
        return max(0.0, self.capacity - self.free - self.foreign - self.reserved)


@dataclass(frozen=True, slots=True)
class Retry:
    """The allocator did not get a block at once, gave back what it had cached, and tried again."""

    line: int
    tried: float | None
    free: float | None
    capacity: float | None
    rank: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class HostFailure:
    """The host ran out of memory, or of shared memory."""

    line: int
    kind: Literal["allocation", "killed", "shared-memory", "pinned"]
    said: str
    tried: float | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A serving engine did not start, and said why."""

    line: int
    engine: str
    kind: Literal["no-blocks", "longest", "startup", "weights", "states"]
    """no-blocks: nothing is left for KV; longest: one request of the longest length does not fit; startup: less is free than
    the flag asks for; weights: they leave nothing under the memory flag; states: fewer states than sequences."""
    said: str
    needed: float | None = None
    available: float | None = None
    wanted_tokens: int | None = None
    held_tokens: int | None = None
    """Tokens that would fit."""
    share: float | None = None
    """The memory flag."""
    least_share: float | None = None
    """Value of the flag from which on it would start."""
    capacity: float | None = None
    rank: str = ""
    times: int = 1


@dataclass(frozen=True)
class LogReading:
    """One log."""

    path: str
    lines: int
    figures: tuple[Figure, ...]
    counts: tuple[Count, ...]
    ooms: tuple[Oom, ...]
    retries: tuple[Retry, ...]
    refusals: tuple[Refusal, ...]
    hosts: tuple[HostFailure, ...]
    told: tuple[Told, ...]
    notes: tuple[str, ...]

    @property
    def died(self) -> bool:
        """Whether it tells of a failure for want of memory."""
        return bool(self.ooms or self.refusals or self.hosts)

    @property
    def empty(self) -> bool:
        """Whether nothing in it was understood."""
        return not (self.figures or self.counts or self.retries or self.died)

    @property
    def engine(self) -> str:
        """Serving engine whose log it is; empty where it is none's."""
        names = [*(r.engine for r in self.refusals), *(f.source for f in self.figures)]
        return next((name for name in names if name in ENGINES), "")

    def where(self, line: int) -> str:
        """Return "path:line"."""
        return f"{self.path}:{line}"

    def said(self, name: str) -> Told | None:
        """Return a setting that the log repeats."""
        return next((one for one in self.told if one.name == name), None)

    def figure(self, *counters: Counter, moment: Moment | None = None, source: str = "") -> Figure | None:
        """Return the highest figure of the first of the counters that has one (the lowest of free and of KV)."""
        for counter in counters:
            found = list(self._of(counter, moment, source))
            if found:
                return (min if counter in LOWEST else max)(found, key=lambda figure: figure.bytes)
        return None

    def _of(self, counter: Counter, moment: Moment | None, source: str) -> Iterable[Figure]:
        for figure in self.figures:
            if figure.counter == counter and moment in (None, figure.moment) and source in ("", figure.source):
                yield figure

    def count(self, name: str) -> Count | None:
        """Return a count; of several ranks' the lowest."""
        return min((one for one in self.counts if one.name == name), key=lambda one: one.value, default=None)


ENGINES = ("vLLM", "SGLang", "TensorRT-LLM", "LMDeploy", "llama.cpp", "TGI")
LOWEST = ("free", "kv_pool")
"""Counters of which the lowest of several ranks decides."""
