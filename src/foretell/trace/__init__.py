"""The trace engine: one real training step of a PyTorch module on fake tensors, every storage's life, and its replay.

    from foretell.trace import TraceRequest, record
    from foretell.trace.replay import replay

    recording = record(TraceRequest(target="train.py:job"))
    replay(recording).peak_reserved.bytes

Record -> events -> allocator replay -> timeline.  Only ``trace/engine`` imports torch, and only inside the worker process.
May import: cost (the allocator's model), catalog, machine and the leaf modules; nothing above core.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.trace.events import Recording
    from foretell.trace.job import Job
    from foretell.trace.request import ModelRequest, TraceRequest
    from foretell.trace.run import record

_MODULE_OF = {
    "Job": "foretell.trace.job",
    "ModelRequest": "foretell.trace.request",
    "Recording": "foretell.trace.events",
    "TraceRequest": "foretell.trace.request",
    "record": "foretell.trace.run",
}

__all__ = ["Job", "ModelRequest", "Recording", "TraceRequest", "record"]


def __getattr__(name: str) -> object:
    """Import the module that holds the public `name`, and keep the name here."""
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
