"""Runs a trace in a process of its own: bounded in time and memory, watched, and gone when it is over or interrupted.

The worker runs the user's module.  It is started with this Python, in the user's folder; what it prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from foretell.errors import CatalogError, CombinationError, ConfigError, ExtraError, InputError
from foretell.trace.events import Recording, load
from foretell.trace.request import TraceRequest

__all__ = ["MEMORY_LIMIT", "TIME_LIMIT", "Progress", "record"]

TIME_LIMIT = 600.0
"""Seconds."""
MEMORY_LIMIT = 8 * 2**30
"""Resident bytes of the worker."""
_POLL = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_KINDS: dict[str, type[InputError]] = {e.kind: e for e in (InputError, CatalogError, ConfigError, CombinationError, ExtraError)}

Progress = Callable[[str, int], None]
"""Told the stage in words and the number of events so far."""


def record(
    request: TraceRequest,
    *,
    progress: Progress = lambda _stage, _events: None,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
) -> Recording:
    """Return the recording of a trace.

    ``time_limit`` in seconds, ``memory_limit`` in bytes of the worker's resident memory.  Where a CPU build of torch cannot be
    taught the CUDA paths, the trace is made again with fake tensors of the CPU, and ``about`` says so.

    Raises:
        ExtraError: torch is not installed.
        InputError: the request, the user's code or a limit; `where` names the place in the user's code.

    """
    if importlib.util.find_spec("torch") is None:
        raise ExtraError.missing("trace", "a trace")
    with _ended_by_signals():
        return _record(request, progress, time_limit, memory_limit)


def _record(request: TraceRequest, progress: Progress, time_limit: float, memory_limit: int) -> Recording:
    worker = _Worker(request, progress, time_limit, memory_limit)
    made = worker.run()
    if made is None:  # the CUDA paths could not be had
        reason = worker.reason
        request = msgspec.structs.replace(request, device="cpu")
        made = _Worker(request, progress, time_limit, memory_limit).run()
        if made is None:
            raise InputError("ended without an answer", field="trace worker", hint="Run it again with FORETELL_DEBUG=1")
        made.about["shim"] = f"none: {reason}"
        made.about.setdefault("notes", []).insert(0, _FALLBACK.format(reason))
    return made


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let what ends a process politely interrupt the trace as Ctrl-C does, so that worker and files go."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    old = {name: signal.signal(name, interrupt) for name in _SIGNALS}
    try:
        yield
    finally:
        for name, handler in old.items():
            signal.signal(name, handler)


_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_FALLBACK = (
    "the CUDA code paths could not be taken here ({}): fake tensors of the CPU were traced, whose operators differ "
    "(dropout masks, attention, fp32 statistics of norms)"
)


_SLOW = (
    "Give more with --time-limit, or trace fewer steps or layers, or a smaller input (--seq-len): "
    "a loop over the tokens in Python takes time for each"
)
_LARGE = "Something makes real tensors: build them on the default device, or give more with --memory-limit"


class _Worker:
    """One worker process and what it says."""

    def __init__(self, request: TraceRequest, progress: Progress, time_limit: float, memory_limit: int) -> None:
        self.request, self.progress = request, progress
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.stage, self.events, self.reached = "starting", 0, ""
        self.reason = ""
        self.error: dict[str, Any] | None = None
        self.fault: str | None = None
        self.pending = b""

    def run(self) -> Recording | None:
        """Return the recording; None: the CUDA paths cannot be had."""
        with tempfile.TemporaryDirectory(prefix="foretell-trace-") as folder:
            out = Path(folder, "recording.json")
            reader, writer = os.pipe()
            with os.fdopen(reader, "rb", buffering=0) as said, self._started(out, writer) as process:
                os.close(writer)
                os.set_blocking(reader, False)
                try:
                    self._watch(process, said)
                finally:
                    _end(process)
            if self.fault is not None:
                raise RuntimeError(f"in the trace worker: {self.fault}")
            if self.error is not None:
                raise _raised(self.error)
            if process.returncode == 0 and out.is_file():
                return load(out.read_bytes(), "the worker's recording")
        return self._died(process.returncode)

    def _started(self, out: Path, writer: int) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "foretell.trace.engine.worker", str(out), str(writer)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(  # noqa: S603  # our own module, by this Python
            arguments,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else subprocess.DEVNULL,
            pass_fds=(writer,),
            cwd=self.request.folder,
            env=environment,
            start_new_session=True,  # Ctrl-C comes to us alone; we end the worker and its children
        )
        assert process.stdin is not None  # noqa: S101  # asked for above
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(msgspec.json.encode(self.request))
        return process

    def _watch(self, process: subprocess.Popen[bytes], said: Any) -> None:
        """Follow the worker until it ends, or end it at a limit."""
        begun = time.monotonic()
        while True:
            ended = process.poll() is not None
            self._hear(said)
            if ended:
                return
            if time.monotonic() - begun > self.time_limit:
                self._refuse("takes longer", "time_limit", f"{self.time_limit:g} s", _SLOW)
                return
            if _resident(process.pid) > self.memory_limit:
                self._refuse("takes more memory", "memory_limit", f"{self.memory_limit / 2**30:.3g} GiB", _LARGE)
                return
            time.sleep(_POLL)

    def _refuse(self, what: str, field: str, limit: str, hint: str) -> None:
        reached = f"; it was at {self.reached}" if self.reached else ""
        text = f"the trace {what} than allowed (while {self.stage}, after {self.events:,} events{reached})"
        self.error = {"kind": "input", "problem": text, "field": field, "value": limit, "hint": hint}

    def _hear(self, said: Any) -> None:
        """Take in what the worker has said: one JSON object a line."""
        while chunk := said.read(65536) or b"":
            self.pending += chunk
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.reached = told.get("reached", "" if "stage" in told else self.reached)
            self.stage = told.get("stage", self.stage)
            self.events = told.get("events", self.events)
            self.error = told.get("error", self.error)
            self.fault = told.get("fault", self.fault)
            self.reason = told.get("no_cuda", self.reason)
            self.progress(self.stage, self.events)

    def _died(self, code: int | None) -> Recording | None:
        """The worker ended without an answer."""
        if self.request.device == "cuda" and (self.reason or self.stage == "preparing the CUDA paths"):
            self.reason = self.reason or f"the worker ended with {_name(code)}"
            return None
        kernel = "; a kernel of a custom operator may not take fake tensors" if (code or 0) < 0 else ""
        raise InputError(
            f"ended with {_name(code)} while {self.stage}, after {self.events:,} events",
            field="trace worker",
            hint=f"What it printed stands above{kernel}",
        )


def _has_fileno(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False


def _name(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 where that cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _raised(error: dict[str, Any]) -> InputError:
    kind = _KINDS.get(error.get("kind", ""), InputError)
    rest = {key: error.get(key) for key in ("field", "value", "allowed", "where", "hint")}
    return kind(error.get("problem") or "cannot be traced", **rest)
