"""What an explanation of a log is made of: findings and remedies, each with the bytes that they speak of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.units import GIB, MIB

__all__ = ["FLAGS", "Finding", "Remedy", "size"]

FLAGS: Final = {"vLLM": "--gpu-memory-utilization", "SGLang": "--mem-fraction-static"}
"""The flag of an engine that says how much of the device it takes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a log shows."""

    kind: str
    """failure, ledger, arithmetic, fragmentation, other-processes, device, phase, term, step, retries, host, refusal, part,
    measured."""
    text: str
    line: int | None = None
    bytes: float | None = None
    """The amount that it is about."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, with what it saves."""

    change: str
    flags: str
    """As it is written: an option of foretell's command line, of the engine's, or an environment variable; empty: an action."""
    saved_bytes: float | None
    enough: bool | None
    """Whether it makes the run fit: by the forecast, held against what the log measured; None: the log alone cannot tell."""
    price: str = ""
    source: str = "log"
    """log, or forecast where the change was tried on one."""
    total_bytes: float | None = None
    """What a process would take with it, held against what the log measured."""
    cures: str = ""
    """The cause that it takes away, whatever else is done."""


def size(amount: float) -> str:
    """Write bytes as PyTorch does, in binary units.

    >>> size(6.54 * 2**30), size(20 * 2**20), size(2**19)
    ('6.54 GiB', '20 MiB', '0.50 MiB')
    """
    if abs(amount) >= GIB:
        return f"{amount / GIB:,.2f} GiB"
    return f"{amount / MIB:.0f} MiB" if abs(amount) >= 10 * MIB else f"{amount / MIB:.2f} MiB"
