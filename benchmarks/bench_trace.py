"""Time and memory of traces: two training steps of Llama 3, recorded by repetition and replayed, without imports.

Times are CPU seconds of the processes, which have one thread that works: what one core does, whoever else uses the machine.

Limits: 3 s for 8B, 4 s for 70B, 600 MiB resident in the tracing process.
"""

from __future__ import annotations

import sys
import time

from foretell.arch import config_of
from foretell.trace import ModelRequest, TraceRequest, record
from foretell.trace.replay import replay

LIMITS = {"llama-3-8b": 3.0, "llama-3-70b": 4.0}
"""Seconds."""
RESIDENT = 600 * 2**20
"""Bytes."""
TRIES = 3


def main() -> int:
    """Print the figures; return 1 if one is over its limit."""
    over = False
    for name, limit in LIMITS.items():
        content, where = config_of(name)
        model = ModelRequest(content=content, where=where, precision="bf16-true")
        best, resident = float("inf"), 0
        for _ in range(TRIES):
            made = record(TraceRequest(model=model))
            begun = time.process_time()
            played = replay(made)
            best = min(best, made.about["seconds"]["cpu"] + time.process_time() - begun)
            resident = max(resident, made.about["worker_peak_rss_bytes"])
        peak = played.peak_allocated.bytes / 2**30
        print(f"trace of {name}: {best:.2f} s (limit {limit:g}), {resident / 2**20:.0f} MiB (limit {RESIDENT / 2**20:.0f}), "
              f"{len(made.order):,} events, {peak:.2f} GiB allocated")  # fmt: skip
        over = over or best > limit or resident > RESIDENT
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
