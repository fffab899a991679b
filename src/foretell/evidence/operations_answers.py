"""Questions of the operations evidence, by the name of their solver -> the library's own formula, in the unit of `OUTPUT`.

A function takes the :class:`Given` inputs and returns a number, or (low, point, high) where the answer is a range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.evidence.operations_given import Given
from foretell.evidence.operations_jobs import ANSWERS as JOBS
from foretell.evidence.operations_spending import ANSWERS as SPENDING

__all__ = ["ANSWERS"]

ANSWERS: Final[Mapping[str, Callable[[Given], Any]]] = {**JOBS, **SPENDING}
"""All but those about queues."""
