"""The pages that scripts write say what the program says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["accuracy", "examples", "fit_collectives", "fit_kernels", "fit_trace", "reference"])
def test_a_page_is_what_its_script_writes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"{script}.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
