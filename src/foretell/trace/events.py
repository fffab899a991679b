"""What a recording is: storages, the order in which they are allocated and freed, and the phases of the run.

A recording is plain data.  It knows nothing of torch, so that it can be saved, compared, lengthened and replayed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from foretell.errors import ConfigError

SCHEMA = "foretell-trace/1"
"""Raised by one when a reader of the old form would misread the new one."""

_MOST = 2**60
"""Bytes of all storages of a recording: they are summed in 64 bits."""

Category = Literal["parameter", "gradient", "optimizer", "activation", "temporary", "collective", "input", "workspace"]
CATEGORIES: tuple[Category, ...] = (
    "parameter",
    "gradient",
    "optimizer",
    "activation",
    "temporary",
    "collective",
    "input",
    "workspace",
)
"""``input``: batches and what else the caller made; ``workspace``: what a library's kernel asks the allocator for."""

PhaseName = Literal["load", "forward", "backward", "optimizer", "other"]


class Storage(msgspec.Struct, array_like=True):
    """One allocation: what was asked for, by whom."""

    bytes: int
    """Bytes asked for, before any rounding."""
    op: str
    """Operator that made it, as ``aten::mm``."""
    phase: int
    """Index into :attr:`Recording.phases` of the phase that made it."""
    module: str = ""
    """Path of the module whose forward (or whose backward) made it; empty: none."""
    line: str = ""
    """``file:line`` in the user's own code or in the model's, as far as it is known."""
    stream: int = 0
    category: Category = "temporary"


class Phase(msgspec.Struct, array_like=True):
    """A stretch of the run, from ``start`` (an index into :attr:`Recording.order`) to the next phase."""

    name: PhaseName
    step: int
    """Optimizer step, from 0."""
    micro: int
    """Micro-step within the step, from 0."""
    start: int


class Recording(msgspec.Struct):
    """One traced run."""

    storages: list[Storage]
    order: list[int]
    """The events: ``i`` (0 or more) allocates storage ``i``; ``~i`` (below 0) frees it."""
    phases: list[Phase]
    about: dict[str, Any] = {}
    """What was traced and how: torch version, device, shim, policies that were used, repetition, notes."""
    schema: str = SCHEMA
    asked: dict[int, int] = {}
    """Storage -> events of :attr:`order` that came before its owner gave it up.  Only of storages that another stream still
    used then (``record_stream``): what ``order`` frees them at is when that stream was done."""

    def events(self) -> Iterator[tuple[bool, int, Storage]]:
        """Yield (is it an allocation, its storage's index, the storage) in order."""
        storages = self.storages
        for entry in self.order:
            index = entry if entry >= 0 else ~entry
            yield entry >= 0, index, storages[index]

    def asks(self) -> dict[int, list[int]]:
        """Return :attr:`asked` by event: the storages that are given up before it."""
        out: dict[int, list[int]] = {}
        for index, at in self.asked.items():
            out.setdefault(at, []).append(index)
        return out

    def phase_of(self) -> list[int]:
        """Return the index of the phase that each event of ``order`` belongs to."""
        out: list[int] = []
        for i, phase in enumerate(self.phases):
            end = self.phases[i + 1].start if i + 1 < len(self.phases) else len(self.order)
            out += [i] * (end - phase.start)
        return out

    def dump(self) -> bytes:
        """Return the recording as JSON."""
        return msgspec.json.encode(self)


def load(data: bytes, where: str) -> Recording:
    """Return the recording that :meth:`Recording.dump` wrote.

    Raises:
        ConfigError: not such a file, of another version, or events that contradict each other.

    """
    try:
        made = msgspec.json.decode(data, type=Recording)
    except msgspec.DecodeError as error:
        raise ConfigError(f"is no recording of foretell: {error}", where=where) from error
    if made.schema != SCHEMA:
        raise ConfigError("is of another version", field="schema", value=made.schema, allowed=[SCHEMA], where=where)
    _check(made, where)
    return made


def _check(made: Recording, where: str) -> None:
    """Refuse events that name no storage, allocate twice or free what is not there."""
    live: set[int] = set()
    for at, entry in enumerate(made.order):
        index = entry if entry >= 0 else ~entry
        if index >= len(made.storages) or (entry >= 0) == (index in live):
            raise ConfigError(
                "allocates or frees a storage that is not there to be", field=f"order[{at}]", value=entry, where=where
            )
        if entry >= 0:
            live.add(index)
        else:
            live.discard(index)
    starts = [p.start for p in made.phases]
    if not starts or starts[0] != 0 or starts != sorted(starts) or starts[-1] > len(made.order):
        raise ConfigError("must begin at 0 and rise to the number of events at most", field="phases", where=where)
    _check_asked(made, where)
    if sum(storage.bytes for storage in made.storages) > _MOST:
        raise ConfigError("has more bytes than any run allocates", field="storages", where=where)
    for key in ("world", "steps"):
        if not isinstance(made.about.get(key, 1), int):
            raise ConfigError("must be a whole number", field=f"about.{key}", value=made.about[key], where=where)
    for storage in made.storages:
        if not (0 <= storage.phase < len(made.phases)) or storage.bytes < 0:
            raise ConfigError("has a storage without a phase or with negative bytes", field="storages", where=where)


def _check_asked(made: Recording, where: str) -> None:
    """Refuse storages that are given up before they are there, or after they are free."""
    begins, ends = dict.fromkeys(made.asked, -1), dict.fromkeys(made.asked, len(made.order))
    for at, entry in enumerate(made.order):
        if entry >= 0 and entry in begins:
            begins[entry] = at
        elif ~entry in ends:
            ends[~entry] = at
    for index, at in made.asked.items():
        if not 0 <= begins[index] < at <= ends[index]:
            raise ConfigError("is not the time of a storage", field=f"asked[{index}]", value=at, where=where)
