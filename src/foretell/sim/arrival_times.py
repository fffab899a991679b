"""Arrival times as trace files write them: seconds, milliseconds, Unix times, dates of any precision."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any, Final

from foretell.errors import InputError
from foretell.sim.arrivals import MAX_SECONDS

__all__ = ["ArrivalClock"]

EPOCH_S: Final = 1e8
"""A first arrival beyond this many seconds is a date: times then count from it."""

_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,12})?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII)


class ArrivalClock:
    """Reads arrival times: seconds, milliseconds where the name says so, or dates (UTC where they name no zone)."""

    def __init__(self, name: str, input_name: str) -> None:
        """Take the names of the columns of arrivals and of input tokens."""
        self.name = name
        key = name.strip().casefold()
        mooncake = key == "timestamp" and input_name.strip().casefold() == "input_length"
        self._unit = 1e-3 if mooncake or key.endswith("_ms") else 1.0
        self._start: tuple[int, float] | None = None
        self._second = ("", 0)  # the last whole second that was read: most rows share theirs with the row above

    def seconds(self, value: Any, where: str) -> float:
        """Return the seconds since the first arrival where times are dates, else as they stand."""
        made = self._plain(value)
        dated = made is None
        if dated:
            made = self._date(value)
        if made is None or not -MAX_SECONDS < made[0] < MAX_SECONDS:
            raise InputError("is no time", field=self.name, value=value, where=where,
                             allowed="seconds from the start, or dates as 2023-11-16 18:17:03.9799600")  # fmt: skip
        if self._start is None:
            self._start = made if dated or made[0] > EPOCH_S else (0, 0.0)
        passed = (made[0] - self._start[0]) + (made[1] - self._start[1])
        if passed < 0.0 and self._start == (0, 0.0):
            raise InputError("is negative", field=self.name, value=value, where=where, allowed="0 or more")
        return passed

    def _plain(self, value: Any) -> tuple[int, float] | None:
        """Whole seconds and the rest, of a number."""
        if isinstance(value, bool):
            return None
        try:
            time = float(value) * self._unit
        except (TypeError, ValueError, OverflowError):
            return None
        if not math.isfinite(time) or (isinstance(value, str) and "_" in value):
            return None
        return (0, time) if time <= EPOCH_S else (math.floor(time), time % 1.0)

    def _date(self, value: Any) -> tuple[int, float] | None:
        """Whole seconds since 1970 and the fraction, which may have more digits than a ``datetime`` keeps."""
        match = _DATE.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 64 else None
        if match is None:
            return None
        text, fraction, zone = match.groups()
        key = text + (zone or "")
        if key != self._second[0]:
            try:
                moment = datetime.fromisoformat(text + ("" if zone in {None, "UTC"} else zone))
            except ValueError:
                return None
            self._second = (key, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))
        return self._second[1], float(fraction or 0.0)
