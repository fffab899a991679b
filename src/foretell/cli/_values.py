"""From the text of an option to a checked value; every refusal is an InputError that names the option."""

from __future__ import annotations

import re
from typing import Final

from foretell.errors import InputError
from foretell.units import parse
from foretell.validation import MAX_DEGREE, choice, number, positive_int

__all__ = ["amount", "duration", "fraction", "listed", "month", "one_of", "real", "share", "whole"]

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST: Final = 1e21


def whole(text: str | None, field: str, *, minimum: int = 1, maximum: int = MAX_DEGREE) -> int | None:
    """Return a whole number, or None where nothing was given.

    >>> whole("8", "tp")
    8
    """
    if text is None:
        return None
    return positive_int(_plain(text), field, minimum=minimum, maximum=maximum)


def real(text: str | None, field: str, *, minimum: float = 0.0, maximum: float = float("inf")) -> float | None:
    """Return a finite number in the range, or None where nothing was given."""
    if text is None:
        return None
    return number(_plain(text), field, minimum=minimum, maximum=maximum)


def fraction(text: str, field: str) -> float:
    """Return a share below 1 from "10%" or "0.1"; a bare 10 is refused, for it could mean either.

    >>> fraction("10%", "headroom"), fraction("0.1", "headroom")
    (0.1, 0.1)
    """
    percent = text.strip().endswith("%")
    value = _plain(text.strip().removesuffix("%").strip())
    allowed = "0% to 90%, or 0 to 0.9"
    problem = "must be a share of the memory"
    if isinstance(value, str) or not 0 <= (value / 100 if percent else value) <= 0.9:
        raise InputError(problem, field=field, value=text, allowed=allowed)
    return value / 100 if percent else float(value)


def share(text: str | None, field: str, *, maximum: float = 1.0) -> float | None:
    """Return a share from "2%" or "0.02", or None where nothing was given.

    >>> share("2%", "jitter"), share("0.02", "jitter")
    (0.02, 0.02)
    """
    if text is None:
        return None
    percent = text.strip().endswith("%")
    value = _plain(text.strip().removesuffix("%").strip())
    made = value / 100 if percent and not isinstance(value, str) else value
    if isinstance(made, str) or not 0 <= made <= maximum:
        raise InputError("must be a share", field=field, value=text, allowed=f"0% to {maximum:.0%}, or 0 to {maximum:g}")
    return float(made)


def amount(text: str | None, field: str) -> float | None:
    """Return a count from "15T", "300B", "2.5M" or "1e12" (thousands, millions, billions, trillions), or None.

    >>> amount("15T", "tokens"), amount("2.5M", "tokens"), amount("1e12", "tokens")
    (15000000000000.0, 2500000.0, 1000000000000.0)
    """
    if text is None:
        return None
    found = _AMOUNT.fullmatch(text.strip()) if len(text) <= 40 else None
    value = float(found[1]) * _SCALES[found[2].casefold()] if found else 0.0
    if not 1.0 <= value <= _MOST:
        allowed = f"1 to {_MOST:g}, as 15T, 300B, 2.5M or 1e12"
        raise InputError("is no number of them", field=field, value=text, allowed=allowed)
    return value


def duration(text: str | None, field: str) -> float | None:
    """Return seconds from "2.31s", "450 ms" or "2.31", or None where nothing was given."""
    return None if text is None else parse(text, "s", field)


def month(text: str | None, field: str) -> str:
    """Return an ISO month or day, or nothing where nothing was given.

    >>> month("2026-08", "software_date")
    '2026-08'
    """
    if text is None:
        return ""
    found = re.fullmatch(r"(20[0-9]{2})-([0-9]{2})(?:-([0-9]{2}))?", text.strip())
    if found is None or not 1 <= int(found[2]) <= 12 or not 1 <= int(found[3] or 1) <= 31:
        raise InputError("is no month", field=field, value=text, allowed="year and month, as 2026-08, or a day, as 2026-08-15")
    return text.strip()


def listed(text: str | None, field: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list; an empty part is refused."""
    if text is None:
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise InputError("has an empty part", field=field, value=text, allowed="names separated by commas")
    return parts


def one_of(text: str | None, field: str, allowed: tuple[str, ...]) -> str | None:
    """Return one of the allowed words (case does not matter), or None where nothing was given."""
    return None if text is None else choice(text.strip().casefold(), field, allowed)


def _plain(text: str) -> int | float | str:
    """Return the number that text spells, or the text itself."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
