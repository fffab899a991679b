"""The shipped grids: every entry is read, has a dated factor with its source, and keeps its boundaries apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

import foretell as ft
from foretell.catalog import loader
from foretell.errors import CatalogError, InputError
from foretell.machine import Datacenter, GridProfile, load_datacenter
from foretell.machine.datacenter import BOUNDARIES

FOLDER: Final = Path(loader.__file__).parent / "data" / "grids"
IDS: Final = sorted(path.stem for path in FOLDER.glob("*.toml"))
ENTRIES: Final = {name: loader.read_file(FOLDER / f"{name}.toml") for name in IDS}
TWO_CLOUDS: Final = {"mecentral1", "useast1", "uswest1", "uswest2"}
"""Google's and AWS's names for different places that differ in a dash alone."""
MILD: Final = {"operational": (0.0, 1000.0), "lifecycle": (20.0, 1000.0), "market": (0.0, 1500.0)}
"""g/kWh within which a boundary's average of a year lies on every grid of today."""


def spellings(entry: dict[str, Any]) -> set[str]:
    """Every name under which an entry is found."""
    return {name.casefold() for name in (entry["id"], entry["name"], *entry.get("aliases", ()))}


def test_there_are_enough_of_them() -> None:
    assert len(IDS) >= 45
    assert sum("kwh_price_usd" in entry for entry in ENTRIES.values()) >= 25
    assert sum("off_site_water_l_per_kwh" in entry for entry in ENTRIES.values()) >= 25


@pytest.mark.parametrize("name", IDS)
def test_an_entry_has_a_dated_factor_and_its_source(name: str) -> None:
    made = load_datacenter(name)
    assert made.id == made.grid.id == name
    known = {key: found for key in BOUNDARIES if (found := made.grid.intensity(key))}
    assert known
    for key, found in known.items():
        assert found.year is not None
        assert 2020 <= found.year <= 2026
        low, high = MILD[key]
        assert low <= found.g_per_kwh <= high
        assert found.boundary == key
    subjects = [source["what"] for source in made.sources]
    assert all({"what", "title", "url", "date", "basis"} == set(source) for source in made.sources)
    assert all(source["basis"] in {"read", "secondary", "recalled"} for source in made.sources)
    assert all(source["url"].startswith("https://") for source in made.sources)
    for key in known:
        assert any(f"{key} carbon intensity" in subject for subject in subjects)


@pytest.mark.parametrize("name", IDS)
def test_every_number_has_its_year_its_source_and_where_needed_a_note(name: str) -> None:
    entry, made = ENTRIES[name], load_datacenter(name)
    subjects = " ".join(source["what"] for source in made.sources)
    for key, year, noted, subject in (
        ("kwh_price_usd", "kwh_price_year", "kwh_price", "price"),
        ("pue", "pue_year", "pue", "PUE"),
        ("wue_l_per_kwh", "wue_year", "wue", "WUE"),
        ("off_site_water_l_per_kwh", "off_site_water_year", "off_site_water", "off-site water"),
        ("carbon_free_fraction", "carbon_free_year", "carbon_free", "carbon-free fraction"),
        ("carbon_intensity_g_per_kwh", "carbon_intensity_year", "carbon_intensity", "operational"),
    ):
        assert (key in entry) == (year in entry) == (f"{noted}_note" in entry) == (subject in subjects)
    if made.kwh_price_usd is not None:
        assert 0.03 <= made.kwh_price_usd <= 0.4
    if made.grid.off_site_water_l_per_kwh is not None:
        assert 1 <= made.grid.off_site_water_l_per_kwh <= 20
    if made.pue is not None:
        assert 1.04 <= made.pue <= 1.5
    assert made.wue_l_per_kwh is None or made.pue is not None  # of one provider, of one year
    assert made.wue_year in (None, made.pue_year)
    assert made.notes.keys() | made.grid.notes.keys() == {key[:-5] for key in entry if key.endswith("_note")}
    if (seen := made.grid.carbon_intensity_range_g_per_kwh) is not None:
        assert "carbon_intensity_range" in made.grid.notes
        assert seen[0] < seen[1]


def test_a_name_belongs_to_one_entry() -> None:
    spelt: dict[str, str] = {}
    keyed: dict[str, set[str]] = {}
    for name, entry in ENTRIES.items():
        for spelling in spellings(entry):
            assert spelt.setdefault(spelling, name) == name
            keyed.setdefault(re.sub("[ _-]", "", spelling), set()).add(name)
    assert {key for key, owners in keyed.items() if len(owners) > 1} == TWO_CLOUDS
    for spelling, name in spelt.items():
        assert loader.entry("grid", spelling)["id"] == name


def test_regions_of_the_clouds_and_codes_of_countries_lead_to_their_grid() -> None:
    for ref, name in {
        "us-central1": "us-iowa", "us-east-1": "us-virginia", "us-east1": "us-south-carolina", "US-West-2": "us-oregon",
        "us-west2": "us-california", "aws us-west-2": "us-oregon", "gcp-us-west2": "us-california", "eastus2": "us-virginia",
        "swedencentral": "sweden", "northeurope": "ireland", "westeurope": "netherlands", "eu-central-1": "germany",
        "ap-northeast-1": "japan-tokyo", "me-central1": "qatar", "me-central-1": "united-arab-emirates", "CA": "canada",
        "us-ca": "us-california", "GBR": "united-kingdom", "UK": "united-kingdom", "Québec": "quebec", "MROW": "egrid-mrow",
    }.items():  # fmt: skip
        assert load_datacenter(ref).id == name


def test_a_region_of_two_clouds_is_refused_where_the_spelling_does_not_decide() -> None:
    with pytest.raises(CatalogError, match="more than one entry; nearest: us-south-carolina, us-virginia"):
        load_datacenter("us east 1")


@pytest.mark.parametrize(
    ("name", "boundary", "g_per_kwh", "year"),
    [
        ("us-iowa", "operational", 412.72, 2024),
        ("us-virginia", "operational", 323.05, 2024),
        ("quebec", "operational", 5.48, 2024),
        ("france", "operational", 16.30, 2024),
        ("us-average", "operational", 349.7, 2023),
        ("egrid-mrow", "operational", 420.2, 2023),
        ("us-average", "lifecycle", 369.473, 2023),
        ("poland", "lifecycle", 661.926, 2023),
        ("france", "lifecycle", 56.039, 2023),
        ("iceland", "lifecycle", 27.68, 2022),
        ("united-arab-emirates", "lifecycle", 561.135, 2022),
    ],
)
def test_published_factors(name: str, boundary: str, g_per_kwh: float, year: int) -> None:
    found = load_datacenter(name).grid.intensity(boundary)
    assert found is not None
    assert (found.g_per_kwh, found.year) == (g_per_kwh, year)


def test_rates_of_egrid_are_pounds_turned_into_grams() -> None:
    pattern = r"([\d.]+) lb CO2, ([\d.]+) lb CH4 and ([\d.]+) lb N2O"
    checked = 0
    for entry in ENTRIES.values():
        if found := re.search(pattern, entry.get("carbon_intensity_note", "")):
            co2, ch4, n2o = map(float, found.groups())
            grams = (co2 + 28 * ch4 + 265 * n2o) * 0.45359237
            assert entry["carbon_intensity_g_per_kwh"] == pytest.approx(grams, abs=0.051)
            checked += 1
    assert checked >= 20


def test_a_price_in_another_currency_is_what_its_note_multiplies() -> None:
    checked = 0
    for entry in ENTRIES.values():
        if found := re.search(r": ([\d.]+) EUR at ([\d.]+) USD$", entry.get("kwh_price_note", "")):
            euro, rate = map(float, found.groups())
            assert entry["kwh_price_usd"] == pytest.approx(euro * rate, abs=5.1e-5)
            checked += 1
    assert checked >= 19
    assert load_datacenter("us-iowa").kwh_price_usd == 0.0691
    assert load_datacenter("quebec").kwh_price_usd == pytest.approx(0.0533 / 1.3013, abs=5.1e-5)


def test_the_range_is_of_the_operational_series_since_2021() -> None:
    iowa = load_datacenter("us-iowa").grid
    assert iowa.carbon_intensity_range_g_per_kwh == (394.0, 460.0)  # 479 of 2019 is lifecycle
    assert iowa.intensity("operational").range_g_per_kwh == (394.0, 460.0)  # type: ignore[union-attr]
    assert load_datacenter("us-average").grid.carbon_intensity_range_g_per_kwh == (349.7, 386.6)


def test_one_boundary_never_stands_in_for_another() -> None:
    ireland, iowa = load_datacenter("ireland").grid, load_datacenter("us-iowa").grid
    assert ireland.lifecycle_g_per_kwh == 290.805
    assert ireland.carbon_intensity_g_per_kwh is None
    assert ireland.intensity("operational") is None
    assert iowa.intensity("lifecycle") is None
    assert iowa.intensity("market") is None
    poland = load_datacenter("poland").grid
    assert poland.intensity("lifecycle").range_g_per_kwh is None  # type: ignore[union-attr]
    assert poland.intensity("operational") != poland.intensity("lifecycle")
    with pytest.raises(InputError, match=r"boundary='life-cycle' is not known; allowed: operational, lifecycle, market"):
        poland.intensity("life-cycle")


def test_an_unknown_region_lists_near_names() -> None:
    with pytest.raises(CatalogError, match=r"grid='us-iova' is not in the catalog; nearest: us-iowa"):
        load_datacenter("us-iova")


MINE: Final[dict[str, Any]] = {
    "id": "mine",
    "name": "Our hall",
    "aliases": ["hall 4"],
    "carbon_intensity_g_per_kwh": 120,
    "carbon_intensity_year": 2025,
    "carbon_intensity_range_g_per_kwh": [100, 130],
    "carbon_intensity_range_note": "2022 to 2025",
    "market_g_per_kwh": 0,
    "market_year": 2025,
    "kwh_price_usd": 0.08,
    "kwh_price_year": 2026,
    "kwh_price_note": "our contract",
    "pue": 1.2,
    "sources": [{"title": "our utility", "date": "2026"}],
}


def test_a_registered_region_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_registered", {})
    assert ft.register("grid", MINE) == "mine"
    made = load_datacenter("Hall 4")
    grid = GridProfile(
        "Our hall",
        120.0,
        id="mine",
        sources=MINE["sources"],
        carbon_intensity_year=2025,
        carbon_intensity_range_g_per_kwh=(100.0, 130.0),
        market_g_per_kwh=0.0,
        market_year=2025,
        aliases=("hall 4",),
        notes={"carbon_intensity_range": "2022 to 2025"},
    )
    notes = {"kwh_price": "our contract"}
    assert made == Datacenter("Our hall", grid, 1.2, None, 0.08, "mine", MINE["sources"], kwh_price_year=2026, notes=notes)
    assert made.grid.intensity("market").g_per_kwh == 0.0  # type: ignore[union-attr]
    assert isinstance(hash(made), int)


def test_a_file_of_a_users_own_needs_a_factor_only(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("lifecycle_g_per_kwh = 30\n")
    made = load_datacenter(path)
    assert (made.name, made.grid.lifecycle_g_per_kwh, made.grid.lifecycle_year) == (str(path), 30.0, None)
    assert load_datacenter(str(path)) == made


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("carbon_intensity_g_per_kwh = -1", "carbon_intensity_g_per_kwh=-1 must be a finite number in range"),
        ("lifecycle_g_per_kwh = nan", "lifecycle_g_per_kwh=nan must be a finite number in range"),
        ('lifecycle_g_per_kwh = "30"', "lifecycle_g_per_kwh='30' must be a finite number in range"),
        ("market_g_per_kwh = 1e6", "market_g_per_kwh=1000000.0 must be a finite number in range"),
        ("renewable_fraction = 1.2", "renewable_fraction=1.2 must be a finite number in range; allowed: 0 to 1"),
        ("carbon_free_fraction = 97", "carbon_free_fraction=97 must be a finite number in range; allowed: 0 to 1"),
        ("off_site_water_l_per_kwh = -0.1", "off_site_water_l_per_kwh=-0.1 must be a finite number in range"),
        ("wue_l_per_kwh = inf", "wue_l_per_kwh=inf must be a finite number in range"),
        ("pue = 0.99", "pue=0.99 must be a finite number in range; allowed: 1 to 10"),
        ("kwh_price_usd = true", "kwh_price_usd=True must be a finite number in range"),
        ("lifecycle_g_per_kwh = 30\nlifecycle_year = 1066", "lifecycle_year=1066"),
        ("lifecycle_g_per_kwh = 30\nlifecycle_year = 2023.5", "lifecycle_year=2023.5"),
        ("carbon_intensity_year = 2023", "carbon_intensity_year=2023 is the year of a value that is not given"),
        ("kwh_price_year = 2023", "kwh_price_year=2023 is the year of a value that is not given; allowed: with kwh_price_usd"),
        (
            "carbon_intensity_g_per_kwh = 30\ncarbon_intensity_range_g_per_kwh = [40, 50]",
            "carbon_intensity_range_g_per_kwh=[40, 50] does not hold carbon_intensity_g_per_kwh",
        ),
        ("carbon_intensity_range_g_per_kwh = [40, 50]", "does not hold carbon_intensity_g_per_kwh"),
        (
            "carbon_intensity_g_per_kwh = 30\ncarbon_intensity_range_g_per_kwh = [30]",
            "carbon_intensity_range_g_per_kwh=(30,) cannot be used",
        ),
        ("carbon_intensity_g_per_kWh = 30", "carbon_intensity_g_per_kWh is not a known key"),
        ('colour_note = "green"', "colour_note is a note on no known key"),
        ('aliases = "here"', "aliases='here' cannot be used"),
        ("pue_note = 3\npue = 1.1", "notes"),
    ],
)
def test_a_bad_value_is_refused_with_its_field_and_file(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'id = "mine"\n{line}\n')
    with pytest.raises(InputError) as caught:
        load_datacenter(path)
    assert message in str(caught.value)
    assert caught.value.where == str(path)
