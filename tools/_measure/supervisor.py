"""Runs each configuration in a process of its own, within the time there is, and keeps what is known after every one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from _measure.configurations import CONTEXT, Configuration, as_data

__all__ = ["Supervisor", "load", "peaks", "process_bytes"]

RECORDS: Final = "measurements.jsonl"
SNAPSHOTS: Final = "snapshots"
_TOOLS: Final = Path(__file__).resolve().parents[1]
_PATIENCE: Final = 4.0
"""A run is ended after so many times what it usually takes."""
_CONTEXT_SECONDS: Final = 15.0
_ALL_SNAPSHOTS: Final = 14 * 2**20
"""Bytes of all snapshots together."""
_ONE_SNAPSHOT: Final = 4 * 2**20
_SHOWN: Final = 8
"""Lines of a dead process's last words that are kept."""

Record = dict[str, Any]


@dataclass(slots=True)
class Supervisor:
    """One measurement into one folder."""

    out: Path
    budget: float
    """Seconds in all."""
    dry: bool = False
    say: Callable[[Record], None] = lambda _record: None
    """Told each record as it is made."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the budget is spent."""
        return self.budget - (time.monotonic() - self.begun)

    def run(self, configurations: Sequence[Configuration], *, context: bool) -> None:
        """Measure the context and the configurations, in order; each record is written when it is known."""
        self.out.mkdir(parents=True, exist_ok=True)
        if context:
            self._keep({"name": CONTEXT}, self._one(CONTEXT, _CONTEXT_SECONDS, None))
        for c in configurations:
            missing = c.missing()
            if missing is not None:
                found = _left_out(missing)
            elif self.left < c.seconds:
                found = _left_out(f"no time: {max(0.0, self.left):.0f} s left, and it usually takes {c.seconds:.0f} s")
            else:
                found = self._one(c.name, c.seconds, c)
            self._keep({"name": c.name, "configuration": as_data(c)}, found)

    def _keep(self, about: Record, found: Record) -> None:
        record = {**about, **found, "dry": self.dry, "when": datetime.now(UTC).isoformat(timespec="seconds")}
        with (self.out / RECORDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.say(record)

    def _one(self, name: str, usual: float, c: Configuration | None) -> Record:
        """Run one child, and return what it found or how it ended."""
        limit = min(_PATIENCE * usual, max(self.left, usual))
        answer, log = self.out / f".{name}.json", self.out / f".{name}.log"
        command = [sys.executable, "-m", "_measure.child", name, str(answer)]
        command += ["--dry"] if self.dry else []
        if c is not None and c.snapshot:
            snapshot = self.out / SNAPSHOTS / f"{name}.pickle.gz"
            snapshot.unlink(missing_ok=True)
            command += ["--snapshot", str(snapshot), "--allowance", str(self._allowance())]
        begun = time.monotonic()
        try:
            with log.open("wb") as words:
                ended = _ended(command, _environment(c), words, limit)
            found: Record = json.loads(answer.read_bytes()) if answer.is_file() else _unanswered(ended, limit, log)
        finally:
            for path in (answer, answer.with_suffix(".part"), log):
                path.unlink(missing_ok=True)
        return {**found, "seconds": round(time.monotonic() - begun, 2)}

    def _allowance(self) -> int:
        """Return the bytes that the next snapshot may have."""
        kept = sum(path.stat().st_size for path in (self.out / SNAPSHOTS).glob("*.gz"))
        return max(0, min(_ONE_SNAPSHOT, _ALL_SNAPSHOTS - kept))


def _environment(c: Configuration | None) -> dict[str, str]:
    """Return the child's environment: the allocator's settings are the configuration's alone."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    path = os.pathsep.join(filter(None, (str(_TOOLS), os.environ.get("PYTHONPATH"))))
    kept |= {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if c is not None and c.allocator:
        kept["PYTORCH_CUDA_ALLOC_CONF"] = c.allocator
    return kept


def _ended(command: list[str], environment: Mapping[str, str], words: Any, limit: float) -> int | None:
    """Run a child to its end and return its exit code; None: it was ended after ``limit`` seconds."""
    child = subprocess.Popen(  # noqa: S603  # our own module, by this Python
        command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=dict(environment), start_new_session=True
    )
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:  # too long, or we are interrupted: it and its compilers go
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _unanswered(ended: int | None, limit: float, log: Path) -> Record:
    last = log.read_text("utf-8", errors="replace").splitlines()[-_SHOWN:]
    if ended is None:
        return {"outcome": "timeout", "reason": f"ended after {limit:.0f} s", "last_words": last}
    how = f"exit code {ended}"
    if ended < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-ended).name
    return {"outcome": "failed", "reason": f"the process ended with {how} and no answer", "last_words": last}


def _left_out(reason: str) -> Record:
    return {"outcome": "left out", "reason": reason, "seconds": 0.0}


# -- what was kept ------------------------------------------------------------------------------------------


def load(folder: Path) -> list[Record]:
    """Return the last record of each name that says something, in the order in which the names first came.

    Raises:
        ValueError: there is no measurement in the folder, or one that cannot be read.

    """
    path = folder / RECORDS
    if not path.is_file():
        raise ValueError(f"{path} does not exist: nothing was measured into {folder}")
    found: dict[str, Record] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            name, outcome = record["name"], record["outcome"]
            if name not in found or outcome != "left out":  # what was once measured stays known
                found[name] = record
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: is no record of a measurement ({error})") from error
    return list(found.values())


def peaks(record: Record) -> dict[str, int]:
    """Return the highest of each level over building and all steps, bytes."""
    readings = [r for r in (record.get("built"), *record.get("steps", ()), record.get("end")) if r]
    levels = ("allocated", "active", "reserved", "requested")
    return {level: max(r[level] for r in readings) for level in levels if readings and all(level in r for r in readings)}


def process_bytes(record: Record) -> tuple[int, str] | None:
    """Return what the process took on the device at its end, bytes, and who says so; None: nobody can tell."""
    outside = record.get("outside") or {}
    for key, who in (
        ("managed_process", "NVML, of the process"),
        ("managed_rise", "NVML, rise of the device's memory in use"),
        ("device_used", "torch.cuda.mem_get_info, all processes of the device"),
    ):
        if outside.get(key):
            return int(outside[key]), who
    return None
