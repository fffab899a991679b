"""Times made of exponential phases: a law of service times from mean and spread, and that service after a wait.

The unit of time is the mean service.  Numbers or arrays; every exponent is negative, and rates may coincide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foretell.cost.arrays import Value, exp, is_array, log2, maximum, minimum, power, where

__all__ = ["Law", "crossing", "log", "rise"]

_SHORT: Final = 1e-12
"""Mean of a phase that is over at once, in mean services."""
_CLOSE: Final = 1e-3
_STEP: Final = 1e-9
"""Smaller steps are the last: Newton's method squares the error, and this one has been taken."""
_TINY: Final = 1e-300
_LN2: Final = math.log(2.0)


def log(x: Value) -> Value:
    """Natural logarithm of positive numbers."""
    return math.log(x) if not is_array(x) else log2(x) * _LN2


def rise(x: Value) -> Value:
    """Return (1 - exp(-x))/x of numbers that are not negative, 1 at 0.

    >>> rise(0.0), round(rise(1.0), 6)
    (1.0, 0.632121)
    """
    series = 1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0))
    return where(x < _CLOSE, series, (1.0 - exp(-x)) / maximum(x, _CLOSE))


def pair(x: Value, a: Value, b: Value) -> Value:
    """Return (exp(-a x) - exp(-b x))/(b - a): a b times it is the density of the sum of two phases of these rates."""
    return x * exp(-x * minimum(a, b)) * rise(abs(b - a) * x)


def triple(x: Value, a: Value, b: Value, c: Value) -> Value:
    """Return the same of three rates: a b c times it is the density of the sum of three phases."""
    low, high = minimum(minimum(a, b), c), maximum(maximum(a, b), c)
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    mean = (low + middle + high) / 3.0
    square = (low - mean) * (low - mean) + (middle - mean) * (middle - mean) + (high - mean) * (high - mean)
    apart = (high - low) * x
    near = x * x * exp(-mean * x) * (0.5 + minimum(square * x * x, _CLOSE) / 48.0)
    return where(apart < _CLOSE, near, (pair(x, low, middle) - pair(x, middle, high)) / maximum(high - low, _TINY))


@dataclass(frozen=True, slots=True)
class Law:
    """A service time of mean 1: `shift`, then a phase of rate `first`, then with probability `again` one of rate `second`.

    The true law is unknown beyond mean and spread.  A spread of 1: exponential.  Below: a constant and two phases, as equal as
    the spread allows (equal services at 0).  Above: hyperexponential with the third moment of the gamma law (Tijms 2003, "A First
    Course in Stochastic Models", appendix B), written as phases in a row (Cox).  Its 99th percentile beside that of other laws:
    at a spread of 0.5, 5 % above the gamma and 2 % below the lognormal law's; at 2, 3 % and 17 % above; at 4, 8 % and 75 %.
    """

    shift: Value
    first: Value
    second: Value
    again: Value

    @classmethod
    def of(cls, cv: Value) -> Law:
        """Return the law of a spread."""
        low, high = minimum(cv, 1.0), maximum(cv, 1.0)
        shift = maximum(1.0 - math.sqrt(2.0) * low, 0.0)
        half = 0.5 * power(maximum(2.0 * low * low - 1.0, 0.0), 0.5)
        longer, shorter = 0.5 * (1.0 - shift) + half, 0.5 * (1.0 - shift) - half
        root = power((high * high - 0.5) / (high * high + 1.0), 0.5)
        fast, slow = 2.0 * (1.0 + root), 2.0 * (1.0 - root)
        share = fast * (slow - 1.0) / (slow - fast)
        wide = cv > 1.0
        return cls(
            shift=shift,
            first=where(wide, fast, 1.0 / maximum(longer, _SHORT)),
            second=where(wide, slow, 1.0 / maximum(shorter, _SHORT)),
            again=where(wide, (1.0 - share) * (1.0 - slow / fast), where(cv < 1.0, 1.0, 0.0)),
        )

    def response(self, time: Value, probability: Value, decay: Value) -> tuple[Value, Value]:
        """Return the share of responses beyond `time` and their density there: a wait, P(W > t) = p exp(-decay t), then this."""
        x = maximum(time - self.shift, 0.0)
        one, two = self.first * (1.0 - self.again), self.first * self.again
        serving, both = pair(x, self.first, self.second), two * self.second
        waiting = one * pair(x, self.first, decay) + both * triple(x, self.first, self.second, decay)
        ended = exp(-self.first * x)
        more = ended + two * serving + probability * waiting
        density = (1.0 - probability) * (one * ended + both * serving) + probability * decay * waiting
        return where(time < self.shift, 1.0, more), density


def crossing(tail: Callable[[Value], tuple[Value, Value]], level: Value, start: Value, most: Value) -> Value:
    """Return where a tail falls to `level`, between 0 and `most`: Newton's method on its logarithm, bisection where that leaves.

    ``tail`` gives (share above, density) of a time.
    """
    low, high, at = 0.0 * start, most, start
    for _ in range(200):
        above, density = tail(at)
        long = above > level
        low, high = where(long, at, low), where(long, high, at)
        left = maximum(above, _TINY)
        guess = at + left / maximum(density, _TINY) * log(left / level)
        guess = where((guess >= low) & (guess <= high), guess, 0.5 * (low + high))
        moved = abs(guess - at) > _STEP * guess
        at = guess
        if not (moved.any() if is_array(moved) else moved):
            break
    return at
