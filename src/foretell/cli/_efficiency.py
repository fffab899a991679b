"""The option --efficiency, of every command that says how long something takes."""

from __future__ import annotations

from foretell.cli._values import share
from foretell.core.speed import CALIBRATED
from foretell.errors import InputError

__all__ = ["efficiency_of"]


def efficiency_of(text: str | None) -> float | str:
    """Return "calibrated", or one share of the peak."""
    if text is None or text.strip().casefold() == CALIBRATED:
        return CALIBRATED
    allowed = f"{CALIBRATED}, or a share of the peak above 0 and at most 1"
    try:
        made = share(text, "efficiency")
    except InputError as error:
        raise InputError("is no efficiency", field="efficiency", value=text, allowed=allowed) from error
    if not made:
        raise InputError("would never end", field="efficiency", value=text, allowed=allowed)
    return made
