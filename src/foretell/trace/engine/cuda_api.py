"""``torch.cuda`` as Python code sees it, for a device that is described and not there.

Allocating, freeing and using memory on streams is what a recording is about, so streams are kept apart by number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch

from foretell.trace.engine.waits import Waits

__all__ = ["Device", "Streams", "install"]


@dataclass(frozen=True, slots=True)
class Device:
    """What code may ask of the GPU."""

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    total_bytes: int = 80 * 2**30


class Stream:
    """Stands for ``torch.cuda.Stream``: a number, and a context in which it is the current one."""

    def __init__(self, streams: Streams, number: int) -> None:
        """Belong to ``streams`` under a number."""
        self._streams = streams
        self.stream_id = self.cuda_stream = number
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self.priority = 0

    def wait_stream(self, other: Any) -> None:
        """Do nothing: no time passes."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Everything asked of the stream has been done."""
        self._streams.done()

    def record_event(self, event: Any = None) -> Any:
        """Return the event, recorded."""
        event = event or self._streams.event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Everything asked of the stream has been done."""
        self._streams.done()
        return True

    def __enter__(self) -> Self:
        self._streams.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._streams.stack.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """Stands for ``torch.cuda.Event``: it keeps the moment at which it was recorded."""

    streams: Streams

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Take what the real one takes."""
        self.moment: int | None = None

    def record(self, stream: Any = None) -> None:  # noqa: ARG002  # as the real one
        """Keep the moment."""
        waits = self.streams.waits
        self.moment = None if waits is None else waits.moment

    def wait(self, stream: Any = None) -> None:
        """Do nothing: a stream waits, and not the host."""

    def synchronize(self) -> None:
        """Everything before the event has been done."""
        if self.moment is not None:
            self.streams.done(self.moment)

    def query(self) -> bool:
        """Everything before the event has been done."""
        self.synchronize()
        return True

    def elapsed_time(self, end: Any) -> float:  # noqa: ARG002  # as the real one
        """No time passes (ms)."""
        return 0.0


class Streams:
    """The streams of the run; the last of ``stack`` is the current one."""

    def __init__(self) -> None:
        """Begin with the default stream alone."""
        self.count = 0
        self.stack: list[Stream] = []
        self.stack.append(self.make())
        self.default = self.stack[0]
        self.waits: Waits | None = None
        """Of the recording that is being made."""
        self.on_use: Callable[[torch.Tensor, Stream], None] = lambda _tensor, _stream: None
        """Told of ``tensor.record_stream(stream)``."""

        class Made(Event):
            streams = self

        self.event = Made

    @contextlib.contextmanager
    def watched(self, waits: Waits, on_use: Callable[[torch.Tensor, Stream], None]) -> Iterator[None]:
        """Tell a recording what streams use, and when the host waits for them."""
        before, self.waits, self.on_use = (self.waits, self.on_use), waits, on_use
        try:
            yield
        finally:
            self.waits, self.on_use = before

    def done(self, moment: int | None = None) -> None:
        """All streams have done what they were given up to a moment (None: up to now)."""
        if self.waits is not None:
            self.waits.done(moment)

    def make(self, *_args: Any, **_kwargs: Any) -> Stream:
        """Return a new stream."""
        self.count += 1
        return Stream(self, self.count - 1)

    def kind(self) -> type[Stream]:
        """Return the class that code makes streams with (``torch.cuda.Stream``)."""
        streams = self

        class Made(Stream):
            def __init__(self, *_args: Any, **_kwargs: Any) -> None:
                streams.count += 1
                super().__init__(streams, streams.count - 1)

        return Made

    def current(self, device: Any = None) -> Stream:  # noqa: ARG002  # as the real one
        """Return the stream that work is given to now."""
        return self.stack[-1]

    def use_of_tensor(self) -> Callable[[torch.Tensor, Stream], None]:
        """Return what stands for ``tensor.record_stream(stream)``."""

        def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
            self.on_use(tensor, stream)

        return record_stream

    @contextlib.contextmanager
    def use(self, stream: Stream | None) -> Any:
        """Make a stream the current one."""
        self.stack.append(stream or self.stack[-1])
        try:
            yield
        finally:
            self.stack.pop()


class _Properties:
    """What ``torch.cuda.get_device_properties`` gives."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self.major, self.minor = device.capability
        self.total_memory = device.total_bytes
        self.multi_processor_count = 132 if self.major >= 9 else 108  # H100 and A100; decides no size
        self.warp_size = 32
        self.max_threads_per_multi_processor = 2048
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block_optin = 232448
        self.gcnArchName = ""
        self.is_integrated = False
        self.L2_cache_size = 50 * 2**20


def install(device: Device, streams: Streams) -> None:
    """Let ``torch.cuda`` describe ``device`` for the rest of this process."""
    cuda: Any = torch.cuda
    properties = _Properties(device)
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "_lazy_init": None,
        "init": None,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "get_device_capability": device.capability,
        "get_device_properties": properties,
        "get_device_name": device.name,
        "is_bf16_supported": device.capability >= (8, 0),
        "empty_cache": None,
        "ipc_collect": None,
        "reset_peak_memory_stats": None,
        "reset_max_memory_allocated": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "mem_get_info": (device.total_bytes, device.total_bytes),
        "is_current_stream_capturing": False,
        "get_rng_state": state,
        "set_rng_state": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "seed": None,
        "seed_all": None,
        "initial_seed": 0,
        "get_rng_state_all": [state],
        "set_rng_state_all": None,
        "memory_summary": "",
        "memory_snapshot": [],
        "set_per_process_memory_fraction": None,
        "can_device_access_peer": False,
    }
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_args, _answer=answer, **_kwargs: _answer)
    for name in ("_record_memory_history", "_dump_snapshot", "_snapshot"):
        setattr(cuda.memory, name, lambda *_args, **_kwargs: None)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, lambda *_args, **_kwargs: 0)
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self  # type: ignore[method-assign]  # host memory is not traced
    cuda.memory_stats = lambda *_args, **_kwargs: _Zeros()
    cuda.device = lambda *_args, **_kwargs: contextlib.nullcontext()
    cuda.Stream, cuda.Event = streams.kind(), streams.event
    cuda.synchronize = lambda *_args, **_kwargs: streams.done()
    cuda.stream = cuda.StreamContext = streams.use
    cuda.current_stream = streams.current
    cuda.default_stream = lambda *_args, **_kwargs: streams.default
    cuda.graphs.is_current_stream_capturing = cuda.is_current_stream_capturing
    torch.Tensor.record_stream = streams.use_of_tensor()  # type: ignore[method-assign, assignment]
    torch._C._cuda_getDevice = lambda: 0
    torch._C._get_accelerator = lambda *_args: torch.device("cuda")  # FSDP1 asks for a unit without weights of its own


class _Zeros(dict[str, int]):
    """Counters of an allocator that has nothing to tell while the run is recorded."""

    def __missing__(self, key: str) -> int:
        return 0
