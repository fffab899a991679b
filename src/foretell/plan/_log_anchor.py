"""A forecast held against what a log measured: the ratio, and the interval that is left.

A run that ended in good order has shown its peak: the value itself.  One that died has shown that it needed at least what it held
and what it asked for last: a lower bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from foretell.core.forecast import Forecast
from foretell.cost.overheads import Regime, calibration, p_oom
from foretell.plan._log_words import size
from foretell.readers.logs import Figure, LogReading, Oom

__all__ = ["Anchor", "Measured", "anchored", "measured", "refuted"]

OUTSIDE: Final = 0.5
"""Share by which a process's bytes outside the allocator may be off: contexts of 0.14 to 0.5 GiB and 544 to 688 MB a communicator
in published figures (catalog/data/calibration/memory.json, ``context_bytes`` and ``nccl_bytes``)."""
_TAIL: Final = 0.05
_FAR: Final = 0.005
"""Chance below which a forecast is not stretched to meet a bound: another run was described, or something is not modelled."""
_ORDER: Final = ("load", "forward", "loss", "backward", "optimizer", "checkpoint_save")
"""Phases of the first step; a later step has them all behind it."""
_START: Final = re.compile(r"\binit|model (?:load|made)|baseline|adapters|partition|flatten|moving|broadcasting", re.IGNORECASE)
"""Labels of lines that were printed before the first step."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A level as the log shows it, beside the forecast's."""

    counter: str
    measured_bytes: float
    predicted_bytes: float
    bound: bool
    """The log shows a lower bound, not the peak."""
    line: int
    source: str

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_bytes / self.predicted_bytes


@dataclass(frozen=True, slots=True)
class Anchor:
    """The total of a process, as forecast and log together have it."""

    by: Measured
    total_bytes: float
    interval_bytes: tuple[float, float]
    """90 %."""
    before_bytes: tuple[float, float]
    """The forecast's own."""
    how: str
    agrees: bool
    """False: the log is outside of what the forecast held possible."""

    @property
    def factor(self) -> float:
        """What the forecast of a similar run is to be multiplied by; a lower bound below the forecast says nothing."""
        return max(1.0, self.by.ratio) if self.by.bound else self.by.ratio


def measured(log: LogReading, forecast: Forecast) -> list[Measured]:
    """Return what the log measured, the level nearest to a process's total first."""
    oom = next((one for one in log.ooms if one.allocated is not None), None)
    if oom is not None:
        return _when_it_died(oom, forecast)
    out: list[Measured] = []
    levels = {
        "reserved": forecast.reserved_bytes,
        "allocated": forecast.allocated_bytes,
        "active": forecast.allocated_bytes,
        "process": forecast.total_bytes,
        "device": forecast.total_bytes,
    }
    for counter, predicted in levels.items():
        figure = _highest(log, counter)
        if figure is not None and predicted > 0:
            bound = log.died or figure.moment == "now" or bool(_START.search(figure.label))
            out.append(Measured(counter, figure.bytes, predicted, bound, figure.line, figure.source))
    return sorted(out, key=lambda one: one.bound)


def _highest(log: LogReading, counter: str) -> Figure | None:
    """Return the highest figure of a counter; a peak of the steps beats what was printed before them."""
    figures = [one for one in log.figures if one.counter == counter]
    return max(figures, key=lambda one: (one.moment == "peak", not _START.search(one.label), one.bytes), default=None)


def _when_it_died(oom: Oom, forecast: Forecast) -> list[Measured]:
    """Return the least that a run must have needed which died asking for more."""
    if oom.allocated is None or forecast.allocated_bytes <= 0:
        return []
    asked = max(0.0, (oom.tried or 0.0) - oom.tried_within)
    return [Measured("allocated", oom.allocated + asked, forecast.allocated_bytes, True, oom.line, "PyTorch")]


def refuted(oom: Oom, forecast: Forecast) -> tuple[str, float] | None:
    """Return a phase that the run went through and the bytes that the forecast has for it, more than the GPU holds."""
    if oom.capacity is None or (oom.phase not in _ORDER and not oom.step):
        return None
    passed = _ORDER if (oom.step or 0) > 1 else _ORDER[: _ORDER.index(oom.phase)] if oom.phase in _ORDER else ()
    levels = [(str(row["phase"]), float(row["allocated_bytes"])) for row in forecast.timeline if row["phase"] in passed]
    phase, most = max(levels, key=lambda row: row[1], default=("", 0.0))
    return (phase, most) if most > oom.capacity else None


def anchored(log: LogReading, forecast: Forecast) -> Anchor | None:
    """Return the forecast held against the log's best figure; None where it has none."""
    found = measured(log, forecast)
    if not found:
        return None
    by = found[0]
    outside = forecast.total_bytes - forecast.reserved_bytes
    slack = forecast.reserved_bytes - forecast.allocated_bytes
    if by.bound:
        oom = next((one for one in log.ooms if one.allocated is not None), None)
        known = oom.outside if oom is not None else None
        around = {"allocated": known if known is not None else outside * (1 - OUTSIDE), "active": outside * (1 - OUTSIDE)}
        around["reserved"] = outside * (1 - OUTSIDE)
        made = _bounded(by, by.measured_bytes + around.get(by.counter, 0.0), forecast)
        if oom is not None and refuted(oom, forecast) is not None:
            return replace(made, agrees=False, how="what runs is smaller than what was described: it went through more than fits")
        return made
    low, high = forecast.interval_bytes
    if by.counter in ("process", "device"):
        point, left = by.measured_bytes, (by.measured_bytes, by.measured_bytes)
        how = "the log shows what the process took"
    elif by.counter == "reserved":
        point = by.measured_bytes + outside
        left = (by.measured_bytes + (1 - OUTSIDE) * outside, by.measured_bytes + (1 + OUTSIDE) * outside)
        how = f"reserved as measured, and {size(outside)} outside the allocator as forecast, give or take half"
    else:
        point = by.measured_bytes + slack + outside
        open_above = slack + max(0.0, high - forecast.total_bytes)
        left = (by.measured_bytes + (1 - OUTSIDE) * outside, by.measured_bytes + open_above + (1 + OUTSIDE) * outside)
        how = f"allocated as measured; the allocator's slack ({size(slack)} forecast) and what lies outside it stay open"
    return Anchor(by, point, left, (low, high), how, low <= point <= high)


# -- lower bounds -------------------------------------------------------------------------------------------


def _bounded(by: Measured, least: float, forecast: Forecast) -> Anchor:
    """Cut the forecast's spread off below a bound: its quantiles, given that the run needed at least so much."""
    before, point = forecast.interval_bytes, forecast.total_bytes
    spread = _spread(forecast)
    chance = p_oom(point, least, spread)
    words = f"the run needed at least {size(least)}"
    if chance < _FAR:
        high = least * max(1.0, before[1] / point)
        how = f"{words}, which the forecast held impossible: what runs is not what was described, or is not modelled"
        return Anchor(by, least, (least, high), before, how, False)
    if least <= before[0]:
        return Anchor(by, point, before, before, f"{words}, which the forecast expected anyway", True)
    low, middle, high = (_above(point, least, chance * (1 - q), spread) for q in (_TAIL, 0.5, 1 - _TAIL))
    return Anchor(by, max(point, middle), (low, high), before, f"{words}: the forecast's errors that say less are left out", True)


def _spread(forecast: Forecast) -> Regime:
    """Return the errors that the forecast's interval was taken from."""
    name = forecast.regime.removesuffix(" (prior)")
    found = calibration()["regimes"][name]
    return Regime(name, tuple(found["p"]), tuple(found["log_error"]), int(found.get("rows", 0)))


def _above(point: float, least: float, chance: float, spread: Regime) -> float:
    """Return the bytes that a run of this forecast exceeds with a given chance, by halving."""
    low, high = least, max(least, point) * 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p_oom(point, middle, spread) > chance else (low, middle)
    return (low + high) / 2
