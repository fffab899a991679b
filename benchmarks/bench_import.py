"""Start-up: `import foretell` costs at most 60 ms over bare Python (best of several fresh interpreters)."""

from __future__ import annotations

import subprocess
import sys
import time

LIMIT_S = 0.060
RUNS = 9


def best_of(code: str) -> float:
    """Return the shortest wall time in seconds of a fresh interpreter that runs `code`."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Measure, print, and return 1 where the limit is passed."""
    bare, ours = best_of("pass"), best_of("import foretell")
    cost = ours - bare
    print(f"import foretell: {cost * 1e3:.1f} ms over bare Python, limit {LIMIT_S * 1e3:.0f} ms")
    return int(cost > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
