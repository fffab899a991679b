"""Seconds of a stretch of steps in which nothing changes but the context, from a few prices instead of one for each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from foretell.cost.serving_load import Load, StepCost
from foretell.errors import InputError

__all__ = ["TOLERANCE", "Ramp", "price", "stretch"]

TOLERANCE: Final = 1e-3
"""How far the step in the middle of a stretch may be from the straight line between its ends, as a share of it."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """Steps whose seconds grow evenly: the j-th takes ``first + j slope`` (j from 0)."""

    first: float
    slope: float
    count: int

    def seconds(self, steps: int) -> float:
        """Seconds of the first steps together.

        >>> Ramp(1.0, 0.5, 4).seconds(3)
        4.5
        """
        return steps * self.first + 0.5 * self.slope * steps * (steps - 1)

    def step(self, index: int) -> float:
        """Seconds of one step."""
        return self.first + self.slope * index

    def until(self, seconds: float) -> int:
        """Steps (at least one) after whose end so many seconds have passed: the one that is running then is finished.

        >>> ramp = Ramp(1.0, 0.5, 4)  # ends at 1, 2.5, 4.5 and 7
        >>> ramp.until(0.0), ramp.until(2.5), ramp.until(2.6), ramp.until(99.0)
        (1, 2, 3, 4)
        """
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self.seconds(middle) < seconds:
                low = middle + 1
            else:
                high = middle
        return low

    def within(self, seconds: float) -> int:
        """Steps (at least one) that end within so many seconds.

        >>> Ramp(1.0, 0.5, 4).within(4.6), Ramp(1.0, 0.5, 4).within(0.1)
        (3, 1)
        """
        low, high = 1, self.count
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def price(cost: StepCost, load: Load) -> float:
    """Return the seconds of one step.

    Raises:
        InputError: the cost is negative, infinite or not a number.

    """
    seconds = float(cost.seconds(load))
    if not 0.0 <= seconds < inf:
        raise InputError("is no duration of a step", field="cost.seconds", value=seconds, allowed="finite, 0 or more")
    return seconds


def stretch(cost: StepCost, first: Load, later: Callable[[int], Load], count: int) -> Ramp:
    """Price up to ``count`` steps, of which the j-th has the load ``later(j)``, by their ends.

    The sum is exact where the cost is linear in the context.  Where the middle step is off the line by more than
    ``TOLERANCE`` of itself, only the first half is taken, and so on: a curve or a kink costs at most about that share of the
    stretch.  What lies between the three steps that are priced is not seen.
    """
    start = price(cost, first)
    if count == 1:
        return Ramp(start, 0.0, 1)
    end = price(cost, later(count - 1))
    while count > 2:
        middle = count // 2
        slope = (end - start) / (count - 1)
        seconds = price(cost, later(middle))
        if abs(seconds - (start + slope * middle)) <= TOLERANCE * seconds:
            break
        count, end = middle + 1, seconds
    return Ramp(start, (end - start) / (count - 1), count)
