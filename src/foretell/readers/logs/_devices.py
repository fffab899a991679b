"""nvidia-smi's table, and hosts that ran out of memory.

nvidia-smi prints MiB.  A host's failures are those of PyTorch's CPU allocator (c10/core/impl/alloc_cpu.cpp), NumPy, the Linux
kernel, Slurm, Kubernetes and torchrun (exit code -9, which is SIGKILL).
"""

from __future__ import annotations

import re
from typing import Final, Literal

from foretell.readers.logs._log import HostFailure
from foretell.readers.logs._scan import SIZE, Builder, Rule, amount

__all__ = ["RULES"]

NAME: Final = "nvidia-smi"

_CARD: Final = re.compile(r"(\d{1,7})MiB {0,3}/ {0,3}(\d{1,7})MiB")
_PROCESS: Final = re.compile(
    r"\|\s{1,9}(\d{1,3})\s[^|\n]{0,30}?\s(\d{1,9})\s{1,9}[CGM+]{1,3}\s{1,9}([^|\n]{1,120}?)\s{1,60}(\d{1,7})MiB {0,3}\|"
)


def _card(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    builder.figure(at, "device", amount(found[1], "MiB"), NAME, f"{found[1]} MiB")
    builder.figure(at, "capacity", amount(found[2], "MiB"), NAME, f"{found[2]} MiB")


def _process(builder: Builder, found: re.Match[str]) -> None:
    label = f"GPU {found[1]}, pid {found[2]}, {found[3].strip()[-60:]}"
    builder.figure(found.start(), "process", amount(found[4], "MiB"), NAME, f"{found[4]} MiB", label=label)


_SIZES: Final = re.compile(rf"tried to allocate {SIZE}|Unable to allocate {SIZE}|unable to mmap {SIZE}|cudaHostAlloc|pin")


def _host(key: str, kind: Literal["allocation", "killed", "shared-memory", "pinned"]) -> Rule:
    def take(builder: Builder, found: re.Match[str]) -> None:
        at = found.start()
        text = builder.rest(at, 240)
        size = _SIZES.search(text)
        parts = [part for part in size.groups() if part is not None] if size is not None else []
        tried = amount(parts[0], parts[1])[0] if parts else None
        builder.message(HostFailure(builder.line(at), kind, (builder.head(at)[-120:] + text).strip()[:240], tried))

    return Rule(key, re.compile(re.escape(key)), take, most=1000)


RULES: Final = (
    Rule("MiB /", _CARD, _card, 10, 40),
    Rule("MiB |", _PROCESS, _process, 170, 8),
    _host("DefaultCPUAllocator: ", "allocation"),
    _host("Unable to allocate ", "allocation"),
    _host("unable to mmap ", "allocation"),
    _host("Out of memory: Kill", "killed"),
    _host("oom-kill", "killed"),
    _host("oom_kill event", "killed"),
    _host("OOMKilled", "killed"),
    _host("(SIGKILL)", "killed"),
    _host("signal: Killed", "killed"),
    _host("exitcode: -9", "killed"),
    _host("exitcode  : -9", "killed"),
    _host("insufficient shared memory", "shared-memory"),
    _host("signal: Bus error", "shared-memory"),
    _host("Unexpected bus error", "shared-memory"),
)
