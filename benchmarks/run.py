"""Runs every benchmark of this folder, one after the other; fails if one is over its limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run `bench_*.py` in order and return how many were over their limit."""
    scripts = sorted(Path(__file__).parent.glob("bench_*.py"))
    return sum(subprocess.run([sys.executable, script], check=False).returncode != 0 for script in scripts)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
