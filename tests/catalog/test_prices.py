"""The shipped prices: each has a source and a date, belongs to hardware that the catalog holds, and costs something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from foretell.catalog import loader
from foretell.machine import load_fleet, load_hardware
from foretell.operations.prices import Offer, Purchase, offers, purchases

FOLDER: Final = Path(loader.__file__).parent / "data" / "prices"
IDS: Final = sorted(path.stem for path in FOLDER.glob("*.toml"))
COVERED: Final = (
    "h100-sxm-80gb", "h100-pcie-80gb", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gh200", "a100-sxm-40gb", "a100-sxm-80gb",
    "a100-pcie-80gb", "l40s", "l4", "a10g-24gb", "v100-sxm-16gb", "v100-sxm-32gb", "t4", "mi300x", "tpu-v4", "tpu-v5e", "tpu-v5p",
    "tpu-v6e", "trainium1", "rtx4090",
)  # fmt: skip


@pytest.fixture(autouse=True)
def shipped_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own prices."""
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    monkeypatch.setattr(loader, "_registered", {})


def rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    return [*entry.get("offers", ()), *entry.get("purchases", ())]


def test_there_are_offers_of_every_usual_accelerator() -> None:
    on_demand = {offer.accelerator for offer in offers(kind="on-demand")}
    assert on_demand >= set(COVERED)
    assert {offer.kind for offer in offers()} == {"on-demand", "reserved", "spot", "capacity-block"}
    assert {price.what for price in purchases()} >= {"accelerator", "server", "nic", "switch-port", "optics", "storage"}


@pytest.mark.parametrize("name", IDS)
def test_an_entry_has_the_catalog_form(name: str) -> None:
    entry = loader.entry("price", name)
    assert entry["id"] == name
    assert set(entry) <= {"id", "name", "aliases", "offers", "purchases", "sources"}
    keys = {source["key"] for source in entry["sources"]}
    assert {row["source"] for row in rows(entry)} == keys, "a row names its source, and each source supports a row"
    for source in entry["sources"]:
        assert set(source) == {"key", "what", "title", "url", "date", "basis"}
        assert source["url"].startswith("https://")
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", source["date"])
        assert source["basis"] in {"read", "secondary", "recalled"}


@pytest.mark.parametrize("offer", [one for one in offers() if not one.own], ids=lambda one: f"{one.provider}-{one.accelerator}")
def test_an_offer_is_of_known_hardware_and_a_sane_price(offer: Offer) -> None:
    assert load_hardware(offer.accelerator).id == offer.accelerator
    assert 0.1 < offer.usd_per_device_hour < 60
    assert 2020 <= int(offer.date[:4]) <= 2026
    assert offer.sources


@pytest.mark.parametrize("price", [one for one in purchases() if not one.own], ids=lambda one: f"{one.what}-{one.item}")
def test_a_purchase_is_of_known_hardware_and_has_a_source(price: Purchase) -> None:
    if price.what == "accelerator":
        assert load_hardware(price.item).id == price.item
        assert 500 < price.usd < 50_000
    if price.what in {"server", "rack"}:
        assert load_fleet(price.item).id == price.item
        assert 100_000 < price.usd < 5e6
    assert price.sources


def test_two_rows_do_not_say_the_same() -> None:
    seen = [(o.provider, o.accelerator, o.accelerators, o.instance, o.kind, o.term_months, o.region, o.date) for o in offers()]
    assert len(seen) == len(set(seen))


def test_no_two_providers_answer_to_one_name() -> None:
    owners: dict[str, str] = {}
    for name in IDS:
        for key in loader._keys(loader.entry("price", name)):
            assert owners.setdefault(key, name) == name


@pytest.mark.parametrize(
    ("accelerator", "provider", "instance", "region", "usd"),
    [
        ("h100", "aws", "p5.48xlarge", "us-east-1", 6.88),  # 55.04 / 8
        ("h100", "aws", "p5.48xlarge", "sa-east-1", 11.55875),  # 92.47 / 8
        ("h200", "aws", "p5en.48xlarge", "us-east-1", 7.912),
        ("b200", "aws", "p6-b200.48xlarge", "us-east-1", 14.2416),
        ("h100", "gcp", "a3-highgpu-8g", "us-central1", 11.06125),
        ("h100", "coreweave", "H100 node", None, 6.155),
        ("h100", "lambda", "gpu_8x_h100_sxm5", None, 3.99),
        ("b200", "lambda", "gpu_8x_b200_sxm6", None, 6.69),
        ("v100", "lambda", "gpu_8x_v100", None, 0.79),
        ("h100", "nebius", "gpu-h100-sxm_8gpu-128vcpu-1600gb", "eu-north1", 2.95),
    ],
)
def test_list_prices_of_2026(accelerator: str, provider: str, instance: str, region: str | None, usd: float) -> None:
    found = [o for o in offers(provider=provider, kind="on-demand") if (o.instance, o.region) == (instance, region)]
    newest = max(found, key=lambda offer: offer.date)
    assert newest.usd_per_device_hour == pytest.approx(usd, rel=1e-6)
    assert newest.accelerator.startswith(accelerator)
