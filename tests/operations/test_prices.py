"""From dated offers to a price: the newest of each provider, the user's own first, and never a silent nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.catalog import loader
from foretell.errors import CatalogError, ConfigError, InputError
from foretell.operations.prices import Offer, Purchase, offers, purchase, purchase_or_raise, purchases, rent

TODAY = dt.date(2026, 11, 30)
OWN = {"id": "ours", "offers": [{"accelerator": "H100", "accelerators": 8, "usd_per_hour": 16.0, "date": "2026-05"}]}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's catalog without prices, and nothing registered."""
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    monkeypatch.setattr(loader, "_registered", {})
    (tmp_path / "prices").mkdir()
    return tmp_path / "prices"


def only(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> None:
    """Leave these entries and no shipped one."""
    monkeypatch.setattr(loader, "ids", lambda _: [entry["id"] for entry in entries])
    monkeypatch.setattr(loader, "_registered", {"prices": {entry["id"]: entry for entry in entries}})
    monkeypatch.setattr(loader, "own_entry", lambda *_: None)


def provider(name: str, *rows: tuple[float, str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"accelerator": "h100", "usd_per_hour": usd, "date": date, **more} for usd, date, more in rows]
    return {"id": name, "offers": made}


def test_the_anchors() -> None:
    aws = rent("h100", provider="AWS", today=TODAY)
    assert aws.point == pytest.approx(6.88)
    assert (aws.date, aws.unit) == ("2026-07", "USD per accelerator and hour")
    assert aws.high == pytest.approx(92.47 / 8), "the dearest region"
    assert rent("h100-sxm-80gb", provider="lambda-labs", today=TODAY).point == pytest.approx(3.99)


def test_a_price_is_the_median_of_providers_between_the_cheapest_and_the_dearest(monkeypatch: pytest.MonkeyPatch) -> None:
    only(
        monkeypatch,
        provider("a", (2.0, "2026-01", {})),
        provider("b", (3.0, "2026-02", {"instance": "one"}), (40.0, "2026-02", {"instance": "eight", "accelerators": 8})),
        provider("c", (90.0, "2026-03", {"instance": "x"}), (7.0, "2026-04", {"instance": "x"})),
        provider("d", (1.0, "2026-04", {"kind": "spot"})),
    )
    found = rent("h100", today=TODAY)
    assert (found.low, found.point, found.high) == (2.0, 3.0, 7.0), "90 was replaced, and spot is another thing"
    assert [offer.provider for offer in found.offers] == ["a", "b", "c"]
    assert found.date == "2026-01", "the oldest that was used"
    assert found.notes == ("median of 3 providers: a, b, c",)


def test_the_newest_offer_of_a_provider_counts_though_an_older_one_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, provider("a", (2.0, "2025", {"region": "x"}), (5.0, "2026", {"region": "y"}), (4.0, "2026-02", {})))
    found = rent("h100", today=TODAY)
    assert (found.point, found.low, found.high) == (4.0, 2.0, 5.0)


def test_a_price_that_is_not_known_is_an_error_that_says_how_to_give_one() -> None:
    with pytest.raises(InputError) as caught:
        rent("trainium2", today=TODAY)
    said = str(caught.value)
    assert caught.value.field == "price"
    assert "trainium2" in said
    assert "--price" in said
    assert "price_usd_per_device_hour" in said
    assert "trainium1" in said, "the nearest that has one"


def test_the_error_names_the_other_kinds_that_are_known() -> None:
    with pytest.raises(InputError, match=r"of trainium1, spot, is not known.*Known of it: capacity-block, on-demand"):
        rent("trainium1", kind="spot", today=TODAY)
    with pytest.raises(InputError, match=r"reserved for 24 months at gcp.*reserved \(12 months\), reserved \(36 months\)"):
        rent("tpu-v5e", provider="gcp", kind="reserved", term_months=24, today=TODAY)


def test_hardware_that_is_in_no_catalog_has_no_price() -> None:
    made = foretell.load_hardware({"name": "Mine", "memory_bytes": 8e9, "memory_bandwidth_bytes_per_s": 1e11, "peak_flops": {}})
    with pytest.raises(InputError, match="price of Mine, on-demand, is not known"):
        rent(made, today=TODAY)


def test_a_price_older_than_a_year_is_used_and_said_to_be_old() -> None:
    then = rent("tpu-v5p", today=dt.date(2025, 11, 30))
    now = rent("tpu-v5p", today=TODAY)
    assert (then.point, now.point) == (4.2, 4.2)
    assert not [note for note in then.notes if "year" in note]
    assert now.notes[-1] == "more than a year old: gcp v5p us-east5 2024-12"


def test_a_year_without_a_month_may_be_as_old_as_its_first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, provider("a", (2.0, "2025", {})))
    assert rent("h100", today=dt.date(2026, 1, 1)).notes == ("price of a",)
    assert rent("h100", today=dt.date(2026, 1, 2)).notes[-1] == "more than a year old: a 2025"
    assert rent("h100", today=dt.date(2024, 12, 31)).notes[-1] == "dated after 2024-12-31: a 2025"


def test_reserved_prices_are_those_of_one_commitment_and_never_computed() -> None:
    both = rent("tpu-v5e", kind="reserved", today=TODAY)
    year = rent("tpu-v5e", kind="reserved", term_months=12, today=TODAY)
    assert (both.low, both.high, year.point) == (0.54, 0.84, 0.84)
    assert "for a commitment of 12 months" in year.notes
    assert rent("tpu-v5e", kind="spot", today=TODAY).point == 0.63
    with pytest.raises(InputError, match="term_months=12"):
        rent("tpu-v5e", term_months=12, today=TODAY)


def test_the_users_own_prices_come_first_and_alone(own: Path) -> None:
    before = rent("h100", today=TODAY)
    assert len(before.offers) > 5
    (own / "ours.toml").write_text('id = "ours"\noffers = [{ accelerator = "h100", usd_per_hour = 2.5, date = "2026-05" }]\n')
    found = rent("h100", today=TODAY)
    assert (found.point, found.low, found.high) == (2.5, 2.5, 2.5)
    assert found.notes == ("your own prices alone",)
    assert offers("h100")[0].provider == "ours"
    assert offers("h100")[0].own
    assert len(rent("h200", today=TODAY).offers) > 5, "what is not priced by the user is priced as before"
    assert rent("h100", provider="lambda", today=TODAY).point == pytest.approx(3.99), "asked for by name"


def test_a_registered_price_is_taken_and_may_stand_for_a_shipped_one() -> None:
    foretell.register("price", OWN)
    assert rent("h100", today=TODAY).point == 2.0
    foretell.register("price", OWN | {"id": "lambda", "aliases": ["ll"]})
    assert [offer.usd_per_device_hour for offer in offers(provider="LL")] == [2.0]
    assert rent("h100", provider="lambda", today=TODAY).point == 2.0


def test_offers_are_chosen_by_accelerator_provider_and_kind() -> None:
    found = offers("H100", "Amazon Web Services (EC2)", "capacity-block")
    assert [(offer.instance, offer.usd_per_hour) for offer in found] == [("p5.48xlarge", 39.33)]
    assert found[0].sources[0]["key"] == "blocks"
    with pytest.raises(CatalogError, match="provider='lamda' is not in the catalog; nearest: lambda"):
        offers(provider="lamda")
    with pytest.raises(CatalogError):
        offers(provider="purchase")
    with pytest.raises(InputError, match="kind='spots'"):
        rent("h100", kind="spots", today=TODAY)
    with pytest.raises(CatalogError, match="hardware='h10'"):
        rent("h10", today=TODAY)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('accelerator = "h100", usd_per_hour = 0, date = "2026"', "prices/bad, offers 1: usd_per_hour=0"),
        ('accelerator = "h100", usd_per_hour = -2.0, date = "2026"', "usd_per_hour=-2.0"),
        ('accelerator = "h100", usd_per_hour = nan, date = "2026"', "usd_per_hour=nan"),
        ('accelerator = "h100", usd_per_hour = "2.5", date = "2026"', "usd_per_hour='2.5'"),
        ('accelerator = "h100", usd_per_hour = 2.5', "offers 1: lacks date"),
        ('usd_per_hour = 2.5, date = "2026"', "lacks accelerator"),
        ('accelerator = "h1000", usd_per_hour = 2.5, date = "2026"', "accelerator='h1000' is not in the catalog"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "May 2026"', "date='May 2026' is no date"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026-13"', "date='2026-13' is no date"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = 2026', "date=2026"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", kind = "ondemand"', "kind='ondemand'"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", kind = "reserved"', "term_months"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", term_months = 12', "term_months='12'"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", accelerators = 0', "accelerators=0"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", usd_per_gpu = 1', "usd_per_gpu is not a known key"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", source = "x"', "source='x' names no source"),
        ('accelerator = "h100", usd_per_hour = 2.5, date = "2026", provider = "y", own = true', "own is not a known key"),
    ],
)
def test_a_bad_offer_is_an_error_that_names_the_file_and_the_key(own: Path, row: str, says: str) -> None:
    (own / "bad.toml").write_text(f'id = "bad"\noffers = [{{ {row} }}]\n')
    with pytest.raises(ConfigError) as caught:
        rent("h100", today=TODAY)
    assert says in str(caught.value)
    assert str(caught.value).startswith("prices/bad, offers 1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('id = "bad"\n', "prices/bad: has neither offers nor purchases"),
        ('id = "bad"\noffer = []\n', "offer is not a known key"),
        ('id = "bad"\noffers = 3\n', "offers=3 must be a list of tables"),
        ('id = "bad"\noffers = [3]\n', "offers 1: offers=3 must be a table"),
        ("id =", "bad.toml"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(own: Path, text: str, says: str) -> None:
    (own / "bad.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        offers()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('what = "nic", item = "400g", usd = 0, date = "2026"', "purchases 1: usd=0"),
        ('what = "nic", item = "400g", usd = 5, low_usd = 6, date = "2026"', "low_usd=6.0 is above usd"),
        ('what = "nic", item = "400g", usd = 5, high_usd = 4, date = "2026"', "high_usd=4.0 is below usd"),
        ('what = "nic", usd = 5, date = "2026"', "lacks item"),
    ],
)
def test_a_bad_purchase_is_an_error_too(own: Path, row: str, says: str) -> None:
    (own / "bad.toml").write_text(f'id = "bad"\npurchases = [{{ {row} }}]\n')
    with pytest.raises(ConfigError) as caught:
        purchase("400G", "nic", today=TODAY)
    assert says in str(caught.value)


def test_what_hardware_costs_to_buy() -> None:
    server = purchase("DGX H100", "server", today=TODAY)
    assert server is not None
    assert 199_000 == server.low < server.point < server.high == 375_000
    assert server.notes[-1] == "more than a year old: server dgx-h100 2024-03"
    nic = purchase_or_raise("400G", "nic", today=TODAY)
    assert (nic.low, nic.point, nic.high) == (1599, (1599 + 2188) / 2, 2188)
    flash = purchase_or_raise("NVMe flash", "storage", today=TODAY)
    assert flash.unit == "USD per TB"
    assert purchase_or_raise("rtx4090", today=TODAY).notes[1] == "one price is known, and no range"


def test_a_purchase_price_that_is_not_known_is_none_or_an_error() -> None:
    assert purchase("tpu-v4", today=TODAY) is None
    with pytest.raises(InputError, match=r"price to buy accelerator tpu-v4 is not known.*purchases") as caught:
        purchase_or_raise("tpu-v4", today=TODAY)
    assert caught.value.field == "price"
    with pytest.raises(InputError, match="what='gpu'"):
        purchase("h100", "gpu", today=TODAY)


def test_the_users_own_purchase_price_comes_first() -> None:
    row = {"what": "accelerator", "item": "RTX 4090", "usd": 1200, "date": "2026-06"}
    foretell.register("price", {"id": "shop", "purchases": [row, row | {"usd": 1800, "date": "2024", "high_usd": 2000}]})
    found = purchase_or_raise(foretell.load_hardware("rtx4090"), today=TODAY)
    assert (found.low, found.point, found.high, found.date) == (1200, 1200, 2000, "2026-06")
    assert len(purchases("rtx4090")) == 3


def test_offers_and_purchases_are_checked_where_they_are_made() -> None:
    assert Offer(provider="x", accelerator="y", usd_per_hour=3, accelerators=2, date="2026").usd_per_device_hour == 1.5
    good: dict[str, Any] = {"provider": "x", "accelerator": "y", "usd_per_hour": 3, "date": "2026"}
    for bad in ({"usd_per_hour": 0}, {"accelerators": 0}, {"date": "26"}, {"kind": "free"}, {"region": 3}):
        with pytest.raises(InputError):
            Offer(**good | bad)
    with pytest.raises(InputError):
        Purchase(what="nic", item="400g", usd=float("inf"), date="2026")
