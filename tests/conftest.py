"""Settings of every test."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a shared machine is slow at times. In CI the examples are the same each run, so that a red run
# can be repeated.
settings.register_profile("here", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
