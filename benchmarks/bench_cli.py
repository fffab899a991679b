"""Start-up of the command line, best of several: `--version` in at most 100 ms, `fit` in 300, `check` of a file in 400.

Byte code is written first, to a folder of its own: an installed package has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

RUNS = 7
LIMITS_S = {
    "--version": 0.100,
    "fit llama-3-8b --gpu h100": 0.300,
    "fit llama-3-8b --gpu h100 --gpus 8 --framework fsdp2 --recompute full": 0.300,
    "check docs/examples/qlora.yaml --gpu b200 --gpus 8 --no-advice": 0.400,
    "check docs/examples/pretrain.sh --gpu h100": 0.400,
    "check --gpu h100 -- vllm serve llama-3-8b -tp 2": 0.600,
    "train llama-3-8b --gpu h100 --quiet": 0.400,
    "train llama-3-8b --gpu h100 --gpus 8 --framework fsdp2 --recompute full": 0.800,
    "train llama-3.1-70b --system dgx-h100 --gpus 64 --tp 8 --pp 4 --framework megatron-core --zero 1": 0.800,
}


def best_of(arguments: str, environment: dict[str, str]) -> float:
    """Return the shortest wall time in seconds of a command, after one run that writes the byte code."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        command = [sys.executable, "-m", "foretell", *arguments.split()]
        subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main() -> int:
    """Measure, print, and return 1 where a limit is passed."""
    over = 0
    with tempfile.TemporaryDirectory() as cache:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for arguments, limit in LIMITS_S.items():
            cost = best_of(arguments, environment)
            over += cost > limit
            print(f"foretell {arguments}: {cost * 1e3:.0f} ms, limit {limit * 1e3:.0f} ms")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
