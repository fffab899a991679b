"""Where machines run: the building's PUE and WUE, the grid's carbon, the tariff; each as a range, and whose figure it is."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TypeGuard

from foretell.catalog import loader
from foretell.errors import InputError
from foretell.machine.datacenter import BOUNDARIES, Datacenter, load_datacenter
from foretell.operations.building import OPERATORS, operator_id, pue_range, reported, wue_range
from foretell.operations.ranges import Range
from foretell.validation import choice, number

__all__ = ["ANYWHERE", "Site", "site_of"]

ANYWHERE = "us-average"
"""Region of machines that nobody placed; its answer comes with the range of all grids."""
_YEARLY = 0.10
"""Change of a grid's intensity from the newest year known to the one that counts, either way at least (assumed)."""


@dataclass(frozen=True)
class Site:
    """A building on a grid."""

    name: str
    pue: Range
    wue: Range
    """Litres per kWh of IT energy."""
    grams: Range
    """CO2-equivalent of a kWh."""
    boundary: str
    """operational, lifecycle or market, of `grams`."""
    year: int | None
    off_site_l_per_kwh: float | None
    """Water of power stations per kWh of facility energy."""
    kwh_price_usd: float | None
    kwh_price_year: int | None
    notes: tuple[str, ...]
    assumed: tuple[str, ...]
    grids: tuple[float, ...] = ()
    """Intensities of all grids of the catalog, where nobody named one; empty where one is known."""


def site_of(
    place: Datacenter | str | os.PathLike[str] | None,
    *,
    operator: str | None = None,
    pue: object = None,
    wue: object = None,
    carbon_intensity: object = None,
    boundary: str | None = None,
) -> Site:
    """Return the site of a region, with what was given in the place of its figures.

    A PUE that a provider publishes for its own building there counts for that `operator` alone.  Without a `boundary` the grid's
    operational factor is taken, or, said so, its lifecycle factor where no other is known; one that is asked for and unknown is
    an InputError.
    """
    _check_place(place)
    if operator is not None:
        operator = operator_id(operator)
    if pue is wue is carbon_intensity is None and (place is None or _is_name(place)) and not loader.has_own("grid"):
        return _shipped(place, operator, boundary)
    return _site(place, operator, pue, wue, carbon_intensity, boundary)


def _check_place(place: object) -> None:
    if not isinstance(place, Datacenter | str | os.PathLike | None):
        allowed = "the name of a region, the path of its file, or a Datacenter"
        raise InputError("is no place", field="datacenter", value=place, allowed=allowed)


@functools.lru_cache(maxsize=256)
def _shipped(place: str | None, operator: str | None, boundary: str | None) -> Site:
    return _site(place, operator, None, None, None, boundary)


def _site(
    place: Datacenter | str | os.PathLike[str] | None,
    operator: str | None,
    pue: object,
    wue: object,
    carbon_intensity: object,
    boundary: str | None,
) -> Site:
    where = _place(ANYWHERE if place is None else place)
    notes: list[str] = []
    assumed: list[str] = []
    if place is None and carbon_intensity is None:
        assumed.append(f"region not named: {where.name}; the interval spans the catalog's grids")
    nowhere = place is None and carbon_intensity is not None
    counted, year, grams = _grams(where, carbon_intensity, boundary, notes, anywhere=place is None)
    return Site(
        name="intensity as given" if nowhere else where.name,
        pue=_figure("pue", pue, where.pue, where, operator, notes, assumed),
        wue=_figure("wue", wue, where.wue_l_per_kwh, where, operator, notes, assumed),
        grams=grams,
        boundary=counted,
        year=year,
        off_site_l_per_kwh=where.grid.off_site_water_l_per_kwh if place is not None else None,
        kwh_price_usd=where.kwh_price_usd if place is not None else None,
        kwh_price_year=where.kwh_price_year if place is not None else None,
        notes=tuple(notes),
        assumed=tuple(assumed),
        grids=_every(counted) if place is None and carbon_intensity is None else (),
    )


def _figure(
    name: str, given: object, own: float | None, where: Datacenter, operator: str | None, notes: list[str], assumed: list[str]
) -> Range:
    """Return the PUE or WUE: the one given, the place's own, the operator's, or that of any building."""
    if given is not None:
        value = number(given, name, minimum=1.0 if name == "pue" else 0.0, maximum=10.0 if name == "pue" else 1e3)
        return Range.exact(value)
    whose = where.notes.get(name)
    owner = None if whose is None else _owner(whose)
    if own is not None and (whose is None or (owner is not None and owner == operator)):
        return Range.exact(own)
    if own is not None:
        hint = "" if owner is None else f": operator {owner!r} takes it"
        notes.append(f"{name} {own:g} is published for {where.name} ({whose}) and not taken for other buildings{hint}")
    theirs = operator if operator is not None and reported(name, operator) else None
    found = pue_range(theirs) if name == "pue" else wue_range(theirs)
    if theirs is None:
        unit = "" if name == "pue" else " L/kWh"
        why = "building not named" if operator is None else f"{operator}'s is not known"
        assumed.append(f"{name} {found.point:.3g}{unit} ({found.low:.3g} to {found.high:.3g}): {why}")
    return found


def _owner(whose: str) -> str | None:
    """Return the operator that a region's note on a building begins with; None where it names no known one."""
    name = whose.split(maxsplit=1)[0].strip(",;:").removesuffix("'s").casefold()
    return name if name in OPERATORS else None


def _grams(
    where: Datacenter, given: object, boundary: str | None, notes: list[str], *, anywhere: bool
) -> tuple[str, int | None, Range]:
    """Return boundary, year and range of the carbon intensity."""
    if boundary is not None:
        choice(boundary, "boundary", BOUNDARIES)
    if given is not None:
        value = number(given, "carbon_intensity", maximum=1e5)
        return boundary or "operational", None, Range.exact(value, "g/kWh")
    held = {name: where.grid.intensity(name) for name in BOUNDARIES}
    known = [name for name, one in held.items() if one is not None]
    wanted = boundary or ("operational" if "operational" in known else "lifecycle")
    one = held[wanted]
    if one is None:
        hint = "Give carbon_intensity (--carbon-intensity, grams a kWh), or take one that is known"
        raise InputError(f"is not known of {where.name}", field="boundary", value=wanted, allowed=known or None, hint=hint)
    if boundary is None and wanted != "operational":
        notes.append(f"{where.name}: only the lifecycle factor is known, which counts building plants and fuel supply too")
    ends = one.g_per_kwh * (1.0 - _YEARLY), one.g_per_kwh * (1.0 + _YEARLY)
    if one.range_g_per_kwh is not None:
        ends = min(ends[0], one.range_g_per_kwh[0]), max(ends[1], one.range_g_per_kwh[1])
    if anywhere:
        every = _every(wanted)
        ends = every[0], every[-1]
    return wanted, one.year, Range(min(ends[0], one.g_per_kwh), one.g_per_kwh, max(ends[1], one.g_per_kwh), "g/kWh")


def _every(boundary: str) -> tuple[float, ...]:
    return _all_grids(boundary) if loader.has_own("grid") else _all_shipped(boundary)


def _place(ref: Datacenter | str | os.PathLike[str]) -> Datacenter:
    """Return a region; the shipped ones are read once."""
    return _shipped_place(ref) if _is_name(ref) and not loader.has_own("grid") else load_datacenter(ref)


def _is_name(ref: object) -> TypeGuard[str]:
    """Whether a reference is a name, rather than a file, which may change."""
    return isinstance(ref, str) and not loader.is_file(ref)


def _all_grids(boundary: str) -> tuple[float, ...]:
    """Return the intensities of the catalog's grids, lowest first."""
    held = [load_datacenter(name).grid.intensity(boundary) for name in loader.ids("grid")]
    return tuple(sorted(one.g_per_kwh for one in held if one is not None))


_shipped_place = functools.lru_cache(maxsize=256)(load_datacenter)
_all_shipped = functools.lru_cache(maxsize=8)(_all_grids)
