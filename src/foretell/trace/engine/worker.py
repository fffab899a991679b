"""The worker: reads a request, records, writes the recording, and says on a pipe how far it is.

    python -m foretell.trace.engine.worker OUT FD     with the request as JSON on standard input

It ends by ``os._exit``: what torch was taught must not be torn down.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from foretell.errors import ForetellError, InputError
from foretell.trace.classify import classify
from foretell.trace.engine.checks import check_call
from foretell.trace.request import TraceRequest

__all__ = ["main"]

_OURS = str(Path(__file__).parents[2])
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NAMED = ("Unanswerable", "NoFakeKernel", "Endless", "TooLong")
"""What the engine raises on purpose about the user's code."""
_EVERY = 0.1
"""Seconds between two words on progress."""


class _Pipe:
    """Where the launcher listens."""

    def __init__(self, descriptor: int) -> None:
        self.file = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")
        self.last = 0.0

    def say(self, **what: Any) -> None:
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()

    def events(self, count: int, reached: str) -> None:
        now = time.monotonic()
        if now - self.last > _EVERY:
            self.last = now
            self.say(events=count, reached=reached)


def main() -> int:
    """Serve one request."""
    _die_with_parent()
    out, pipe = Path(sys.argv[1]), _Pipe(int(sys.argv[2]))
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=TraceRequest)
    try:
        recording = _record(request, pipe)
    except ForetellError as error:
        pipe.say(error=_told(error))
        return 2
    except SystemExit as error:
        pipe.say(error=_told(_explained(error)))
        return 2
    except Exception as error:  # noqa: BLE001  # the user's own code may raise anything
        if os.environ.get("FORETELL_DEBUG") == "1":
            traceback.print_exc()
        if _is_ours(error):
            pipe.say(fault=f"{type(error).__name__}: {error}")
        else:
            pipe.say(error=_told(_explained(error)))
        return 2
    if recording is None:
        return 3
    pipe.say(stage="writing")
    recording.about["worker_peak_rss_bytes"] = _peak_rss()
    out.write_bytes(recording.dump())
    return 0


def _peak_rss() -> int | None:
    """Return the most resident bytes that this process had; None where Linux does not tell.

    ``getrusage`` counts what the launcher had when it forked.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _die_with_parent() -> None:
    """Ask Linux to end this process when the launcher ends, however it does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _record(request: TraceRequest, pipe: _Pipe) -> Any:
    """Return the recording; None: the CUDA paths cannot be had."""
    begun = time.monotonic()
    pipe.say(stage="importing torch")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # the error itself is told
    from foretell.trace.engine.cuda_api import Device  # noqa: PLC0415
    from foretell.trace.engine.session import Settings, Traced, machine  # noqa: PLC0415
    from foretell.trace.engine.shim import ShimError  # noqa: PLC0415
    from foretell.trace.engine.whole import record_all  # noqa: PLC0415

    settings = Settings(
        device=request.device,
        gpu=Device(request.gpu, request.capability, request.gpu_bytes),
        steps=request.steps,
        evaluate=request.evaluate,
        sdpa=request.sdpa,
        skew=request.skew,
        density=request.density,
        world=request.world,
    )
    pipe.say(stage="preparing the CUDA paths")
    try:
        here = machine(settings)
    except ShimError as error:
        pipe.say(no_cuda=str(error))
        return None
    pipe.say(stage="importing the model's code")
    make, notes = _maker(request)
    imported, cpu = time.monotonic(), time.process_time()
    pipe.say(stage="building the model")
    with Traced(make, here) as traced:
        built = time.monotonic()
        pipe.say(stage="recording")
        traced.on_progress = pipe.events
        made = record_all(traced, full=request.full, tell=lambda text: pipe.say(stage=text))
    classify(made)
    made.about["notes"] = list(dict.fromkeys(notes))
    made.about["seconds"] = {
        "imports": round(imported - begun, 3),
        "build": round(built - imported, 3),
        "record": round(time.monotonic() - built, 3),
        "cpu": round(time.process_time() - cpu, 3),
    }
    return made


def _maker(request: TraceRequest) -> tuple[Callable[[], Any], list[str]]:
    """Return what makes the job, and the list that its notes come to."""
    if request.model is not None:
        from foretell.trace.engine.models import job_of, prepare  # noqa: PLC0415  # imports transformers, if need be

        notes: list[str] = []
        asked = request.model
        prepare(asked)
        return lambda: job_of(asked, request.world, notes), notes
    assert request.target is not None  # noqa: S101  # one of the two, checked by the request
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    return _callable(request.target), []


def _callable(target: str) -> Callable[[], Any]:
    """Import what a target names.

    Raises:
        InputError: no such module or file, no such name in it, or no callable.

    """
    name, _, attribute = target.rpartition(":")
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise InputError("is not a file that can be read", field="target", value=name, where=str(path.parent))
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None  # noqa: S101  # a .py file has one
        assert spec.loader is not None  # noqa: S101
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        if name.startswith("."):
            raise InputError("must be a module's whole name", field="target", value=target, hint="For instance train:job")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            hint = f"Run it from the folder that holds {name}.py, or name the file: path/to/{name}.py:{attribute}"
            raise InputError("is no module that can be imported", field="target", value=name, hint=hint) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        problem = "is not callable" if found is not None else "is not in the module"
        raise InputError(problem, field="callable", value=attribute, allowed=names or None, where=name)
    check_call(found, attribute, 0, where=name)
    return found  # type: ignore[no-any-return]


def _is_ours(error: BaseException) -> bool:
    """Say whether an error is a fault of this program: nothing but its own code was running."""
    names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return type(error).__name__ not in _NAMED and all(name.startswith((_OURS, "<frozen")) for name in names)


def _told(error: ForetellError) -> dict[str, Any]:
    told = error.to_dict()
    told["problem"] = getattr(error, "problem", str(error))
    return told


def _explained(error: BaseException) -> InputError:
    """Return an error of the user's code as one of ours: what, where, and what can be done."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith(_OURS) and f"{os.sep}torch{os.sep}" not in f.filename]
    place = outside[-1] if outside else (frames[-1] if frames else None)
    text = " ".join(str(error).split())
    kind = type(error).__name__
    hint = "FORETELL_DEBUG=1 shows the whole traceback"
    if kind == "Unanswerable":
        hint = "Say which share of a mask is set with --density, or route evenly by giving the module `num_experts`"
    elif kind == "TooLong":
        hint = "A loop over data may never end on fake tensors; trace fewer steps or layers"
    return InputError(
        f"raised {kind}: {text[:400]}" if text else f"raised {kind}",
        field="the traced code",
        where=f"{place.filename}:{place.lineno}" if place else None,
        hint=hint,
    )


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
