"""From the text of an option to a checked value; every refusal is an InputError that names the option."""

from __future__ import annotations

from foretell.errors import InputError
from foretell.validation import MAX_DEGREE, choice, number, positive_int

__all__ = ["fraction", "listed", "one_of", "real", "whole"]


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
