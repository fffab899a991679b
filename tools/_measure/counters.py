"""Where a run's numbers come from: PyTorch's allocator, the driver, and the vendor's management library.  Bytes."""

from __future__ import annotations

import contextlib
import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["Counters", "Cuda", "Device"]

PEAKS: Final = {
    "allocated": "allocated_bytes.all.peak",
    "active": "active_bytes.all.peak",
    "reserved": "reserved_bytes.all.peak",
    "requested": "requested_bytes.all.peak",
}
"""Level -> the allocator's counter (``torch.cuda.memory_stats``)."""
_OTHERS: Final = {
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "segments": "segment.all.peak",
    "splits": "inactive_split_bytes.all.peak",
}
_EVENTS: Final = 2_000_000
"""Most events of a history."""
_MIB: Final = 2**20


class Counters(Protocol):
    """What a run is measured with."""

    device: str

    def begin(self, limit_bytes: int | None) -> None:
        """Take the device up; called once, before anything is allocated."""

    def reset(self) -> None:
        """Let peaks begin anew from what is held now."""

    def read(self) -> dict[str, int]:
        """Return the peaks since the last reset (:data:`PEAKS`), ``held`` and ``cached`` now, retries and segments."""

    def outside(self) -> dict[str, int | None]:
        """Return what the device and this process hold, as the driver sees it."""

    def machine(self) -> dict[str, Any]:
        """Return device and versions."""

    def history(self) -> None:
        """Record every allocation from here on."""

    def write_history(self, path: Path) -> None:
        """Write the snapshot with what was recorded, compressed."""


class Cuda:
    """The counters of the first visible CUDA device."""

    device: Final = "cuda"

    def __init__(self) -> None:
        """Note what others hold on the device before this process touches it."""
        self.managed = Device()
        self.before = self.managed.used()

    def begin(self, limit_bytes: int | None) -> None:
        """Make the context, and set the allocator's limit."""
        import torch  # noqa: PLC0415

        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(0)
        if limit_bytes is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit_bytes / total, 0)

    def reset(self) -> None:
        """Let peaks begin anew."""
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, int]:
        """Return the allocator's counters."""
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        found = {name: int(stats[key]) for name, key in (PEAKS | _OTHERS).items() if key in stats}
        return found | {"held": torch.cuda.memory_allocated(), "cached": torch.cuda.memory_reserved()}

    def outside(self) -> dict[str, int | None]:
        """Return the device's and the process's memory."""
        import torch  # noqa: PLC0415

        free, total = torch.cuda.mem_get_info()
        used = self.managed.used()
        rise = used - self.before if used is not None and self.before is not None else None
        return {
            "device_total": total,
            "device_used": total - free,
            "managed_before": self.before,
            "managed_used": used,
            "managed_rise": rise,
            "managed_process": self.managed.process(os.getpid()),
        }

    def machine(self) -> dict[str, Any]:
        """Return device, driver and library versions."""
        import torch  # noqa: PLC0415

        about = torch.cuda.get_device_properties(0)
        cudnn: Any = torch.backends.cudnn
        snapshot: Any = torch.cuda.memory._snapshot()  # noqa: SLF001  # the only place that tells the settings in force
        settings = snapshot.get("allocator_settings", {})
        return {
            "gpu": about.name,
            "compute_capability": f"{about.major}.{about.minor}",
            "total_bytes": about.total_memory,
            "driver": self.managed.driver(),
            "cuda": torch.version.cuda,
            "torch": str(torch.__version__),
            "cudnn": cudnn.version(),
            "allocator_settings": {k: v for k, v in settings.items() if isinstance(v, str | int | float)},
        }

    def history(self) -> None:
        """Record every allocation, with the Python stack that asked for it."""
        import torch  # noqa: PLC0415

        torch.cuda.memory._record_memory_history(max_entries=_EVENTS, context="alloc", stacks="python")  # noqa: SLF001

    def write_history(self, path: Path) -> None:
        """Write the snapshot, and record no more."""
        import torch  # noqa: PLC0415

        plain = path.with_suffix("")
        torch.cuda.memory._dump_snapshot(str(plain))  # type: ignore[no-untyped-call]  # noqa: SLF001
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
        path.write_bytes(gzip.compress(plain.read_bytes(), 9))
        plain.unlink()


class Device:
    """The first visible device as the vendor's tools see it, without a context of our own; None: they do not tell."""

    def __init__(self) -> None:
        """Find the device, by NVML's Python binding or by nvidia-smi."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        self.index = chosen or "0"
        self.library: Any = None
        self.handle: Any = None
        with contextlib.suppress(Exception):  # not installed, or no driver: nvidia-smi is asked instead
            import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415

            pynvml.nvmlInit()
            by_number = self.index.isdigit()
            self.handle = (
                pynvml.nvmlDeviceGetHandleByIndex(int(self.index)) if by_number else pynvml.nvmlDeviceGetHandleByUUID(self.index)
            )
            self.library = pynvml

    def used(self) -> int | None:
        """Return the bytes in use on the device, by whomever."""
        if self.library is not None:
            with contextlib.suppress(Exception):
                return int(self.library.nvmlDeviceGetMemoryInfo(self.handle).used)
        return next((int(mib) * _MIB for mib in self._asked("--query-gpu=memory.used") if mib.isdigit()), None)

    def process(self, pid: int) -> int | None:
        """Return the bytes of one process; of the only one where process numbers are not ours (in a container)."""
        found: dict[int, int] = {}
        if self.library is not None:
            with contextlib.suppress(Exception):
                for one in self.library.nvmlDeviceGetComputeRunningProcesses(self.handle):
                    if one.usedGpuMemory is not None:
                        found[int(one.pid)] = int(one.usedGpuMemory)
        if not found:
            for line in self._asked("--query-compute-apps=pid,used_memory"):
                number, _, mib = (part.strip() for part in line.partition(","))
                if number.isdigit() and mib.isdigit():
                    found[int(number)] = int(mib) * _MIB
        return found.get(pid, next(iter(found.values())) if len(found) == 1 else None)

    def driver(self) -> str | None:
        """Return the driver's version."""
        if self.library is not None:
            with contextlib.suppress(Exception):
                version = self.library.nvmlSystemGetDriverVersion()
                return version.decode() if isinstance(version, bytes) else str(version)
        return next(self._asked("--query-gpu=driver_version"), None)

    def _asked(self, query: str) -> Iterator[str]:
        """Yield the lines that nvidia-smi answers with."""
        command = ["nvidia-smi", f"--id={self.index}", query, "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return
        if done.returncode == 0:
            yield from (line.strip() for line in done.stdout.splitlines() if line.strip())
