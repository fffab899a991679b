"""The electricity of a region, and a building that draws it: carbon, water and price, each with its boundary and year.

Three carbon intensities of one grid are three numbers and never stand in for each other: *operational* (what its
power stations emit, location-based), *lifecycle* (with building them and getting their fuel) and *market* (what is
left once contracts for named plants are taken out). Plain numbers; unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping  # the annotations are read when a field is checked
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from foretell.catalog import loader
from foretell.errors import ConfigError, InputError
from foretell.machine._fields import gather_notes, read
from foretell.typed import check_fields
from foretell.validation import choice, number, positive_int

if TYPE_CHECKING:
    import os

__all__ = ["BOUNDARIES", "Boundary", "CarbonIntensity", "Datacenter", "GridProfile", "load_datacenter"]

Boundary = Literal["operational", "lifecycle", "market"]
BOUNDARIES: Final[Mapping[str, tuple[str, str]]] = {
    # boundary -> the field of its value, and of its year
    "operational": ("carbon_intensity_g_per_kwh", "carbon_intensity_year"),
    "lifecycle": ("lifecycle_g_per_kwh", "lifecycle_year"),
    "market": ("market_g_per_kwh", "market_year"),
}

_DIRTIEST = 1e5  # g/kWh; burning lignite badly gives 1500, a typing error more
_YEARS = (1990, 2100)
_BUILDING_YEARS = {"pue": "pue_year", "wue_l_per_kwh": "wue_year", "kwh_price_usd": "kwh_price_year"}
_GRID_YEARS = dict(BOUNDARIES.values()) | {
    "carbon_free_fraction": "carbon_free_year",
    "off_site_water_l_per_kwh": "off_site_water_year",
}


@dataclass(frozen=True)
class CarbonIntensity:
    """How much a kWh of a grid emits, and what is counted in it."""

    g_per_kwh: float
    """Grams of CO2-equivalent per kWh."""
    boundary: Boundary
    year: int | None = None
    range_g_per_kwh: tuple[float, float] | None = None
    """Lowest and highest of the same series over recent years."""


@dataclass(frozen=True)
class GridProfile:
    """The electricity of a region.

    >>> grid = GridProfile("mine", carbon_intensity_g_per_kwh=412.7, carbon_intensity_year=2024)
    >>> grid.intensity("operational")
    CarbonIntensity(g_per_kwh=412.7, boundary='operational', year=2024, range_g_per_kwh=None)
    >>> grid.intensity("lifecycle") is None
    True
    """

    name: str
    carbon_intensity_g_per_kwh: float | None = None
    """Operational, location-based, yearly average: grams of CO2-equivalent per kWh that power stations emit."""
    renewable_fraction: float | None = None
    id: str = ""
    sources: Any = field(default=(), hash=False)
    carbon_intensity_year: int | None = None
    carbon_intensity_range_g_per_kwh: tuple[float, float] | None = None
    """Lowest and highest of the same series over the years that the note names."""
    lifecycle_g_per_kwh: float | None = None
    """The same with building the plants and supplying their fuel: higher, and never mixed with the operational."""
    lifecycle_year: int | None = None
    market_g_per_kwh: float | None = None
    """Market-based: of the residual mix, or of what a contract buys."""
    market_year: int | None = None
    carbon_free_fraction: float | None = None
    """Share of carbon-free energy, 0 to 1; the note says whose (a provider's counts what it has bought)."""
    carbon_free_year: int | None = None
    off_site_water_l_per_kwh: float | None = None
    """Litres that power stations and reservoirs consume per kWh (energy-water intensity factor, EWIF)."""
    off_site_water_year: int | None = None
    aliases: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict, hash=False)
    """What a number is about ("carbon_intensity" -> text), from the file's `..._note` keys."""

    def __post_init__(self) -> None:
        """Check types, ranges and years."""
        for key in ("aliases", "carbon_intensity_range_g_per_kwh"):
            if isinstance(value := getattr(self, key), list):
                object.__setattr__(self, key, tuple(value))
        ranges = {value: (0.0, _DIRTIEST) for value, _ in BOUNDARIES.values()}
        ranges |= {"renewable_fraction": (0.0, 1.0), "carbon_free_fraction": (0.0, 1.0), "off_site_water_l_per_kwh": (0.0, 1e3)}
        _check(self, ranges, _GRID_YEARS)
        self._check_range()

    def intensity(self, boundary: str = "operational") -> CarbonIntensity | None:
        """Return the carbon intensity within a boundary; None where it is unknown, never that of another boundary."""
        key: Any = choice(boundary, "boundary", BOUNDARIES)
        value, year = (getattr(self, name) for name in BOUNDARIES[key])
        if value is None:
            return None
        return CarbonIntensity(value, key, year, self.carbon_intensity_range_g_per_kwh if key == "operational" else None)

    def _check_range(self) -> None:
        """Check that the range is one, and holds the value."""
        key, value = "carbon_intensity_range_g_per_kwh", self.carbon_intensity_g_per_kwh
        if (seen := self.carbon_intensity_range_g_per_kwh) is None:
            return
        low, high = (number(end, key, minimum=0.0, maximum=_DIRTIEST) for end in seen)
        object.__setattr__(self, key, (low, high))
        if value is None or not low <= value <= high:
            problem, allowed = "does not hold carbon_intensity_g_per_kwh", f"[lowest, highest] around {value}"
            raise InputError(problem, field=key, value=list(seen), allowed=allowed)


@dataclass(frozen=True)
class Datacenter:
    """A building on a grid: what the accelerators' energy costs beyond itself."""

    name: str
    grid: GridProfile
    pue: float | None = None
    """Power usage effectiveness: the building's energy over that of its IT (ISO/IEC 30134-2), at least 1."""
    wue_l_per_kwh: float | None = None
    """Water usage effectiveness: litres on site per kWh of *IT* energy (ISO/IEC 30134-9)."""
    kwh_price_usd: float | None = None
    id: str = ""
    sources: Any = field(default=(), hash=False)
    kwh_price_year: int | None = None
    pue_year: int | None = None
    wue_year: int | None = None
    notes: dict[str, str] = field(default_factory=dict, hash=False)
    """What a number is about ("kwh_price", "pue", "wue"), from the file's `..._note` keys."""

    def __post_init__(self) -> None:
        """Check types, ranges and years."""
        ranges = {"pue": (1.0, 10.0), "wue_l_per_kwh": (0.0, 1e3), "kwh_price_usd": (0.0, 1e3)}
        _check(self, ranges, _BUILDING_YEARS)


def load_datacenter(ref: str | os.PathLike[str] | Datacenter) -> Datacenter:
    """Return the grid or region profile of a catalog id or alias, or of a path, as a Datacenter.

    >>> iowa = load_datacenter("us-central1")
    >>> iowa.id, iowa.grid.intensity("operational").g_per_kwh, iowa.grid.carbon_intensity_year
    ('us-iowa', 412.72, 2024)
    """
    if isinstance(ref, Datacenter):
        return ref
    data = gather_notes(loader.entry("grid", ref))
    from_file = not isinstance(ref, str) or data.get("id") is None
    where = f"{ref}" if from_file else f"grid {data['id']}"
    name = data.setdefault("name", data.get("id", f"{ref}"))
    building: dict[str, Any] = {key: data.pop(key) for key in (*_BUILDING_YEARS, *_BUILDING_YEARS.values()) if key in data}
    notes = data.pop("notes", {})
    about = {key: notes.pop(key) for key in ("pue", "wue", "kwh_price") if key in notes}
    known = [spec.name for spec in fields(GridProfile)]
    if unknown := sorted(key for key in notes if not any(field_name.startswith(f"{key}_") for field_name in known)):
        raise ConfigError("is a note on no known key", field=f"{unknown[0]}_note", allowed=known, where=where)
    grid = read(GridProfile, data | {"notes": notes}, where)
    building |= {"name": name, "grid": grid, "id": grid.id, "sources": grid.sources, "notes": about}
    return read(Datacenter, building, where)


def _check(instance: GridProfile | Datacenter, ranges: Mapping[str, tuple[float, float]], years: Mapping[str, str]) -> None:
    """Check that each known number lies in its range, and that each year is the year of something."""
    for name, (low, high) in ranges.items():
        value = getattr(instance, name)
        if value is not None:
            object.__setattr__(instance, name, number(value, name, minimum=low, maximum=high))
    for name, year_name in years.items():
        year = getattr(instance, year_name)
        if year is None:
            continue
        if getattr(instance, name) is None:
            raise InputError("is the year of a value that is not given", field=year_name, value=year, allowed=f"with {name}")
        made = positive_int(year, year_name, minimum=_YEARS[0], maximum=_YEARS[1])
        object.__setattr__(instance, year_name, made)
    check_fields(instance)
