"""Dated prices as the catalog holds them: what providers ask for an hour, and what hardware costs to buy.

An entry of kind "price" is one file of `prices/`: a provider with its `offers`, or a list of `purchases`, or both.  Every row is
checked when it is read; a bad one is a ConfigError that names the file and the row.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from foretell.catalog import loader
from foretell.errors import CatalogError, ConfigError, InputError
from foretell.machine import HardwareNode, load_hardware
from foretell.typed import check_fields
from foretell.validation import choice, number, positive_int

__all__ = ["OFFER_KINDS", "Offer", "Purchase", "accelerator_id", "first_day", "offers", "purchases"]

OFFER_KINDS: Final = ("on-demand", "reserved", "spot", "capacity-block")
MOST_USD: Final = 1e12
LEAST_USD: Final = 1e-6
"""A price of nothing is a missing price."""
_DATE: Final = re.compile(r"(\d{4})(?:-(\d{2}))?")
_KEYS: Final = {"id", "name", "aliases", "sources", "source", "offers", "purchases"}
_OURS: Final = {"provider", "sources", "own"}
"""Fields of a row that its entry gives."""
_SYSTEMS: Final = ("server", "rack")
T = TypeVar("T", "Offer", "Purchase")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one provider asks for one instance and hour.

    >>> Offer(provider="aws", accelerator="h100-sxm-80gb", accelerators=8, usd_per_hour=55.04, date="2026-07").usd_per_device_hour
    6.88
    """

    provider: str
    """Id of the catalog entry."""
    accelerator: str
    """Catalog id of the hardware."""
    accelerators: int = 1
    """Of the instance."""
    instance: str | None = None
    usd_per_hour: float
    """Of the whole instance, without storage, traffic and tax."""
    kind: str = "on-demand"
    term_months: int | None = None
    """Length of the commitment; of reserved offers only."""
    region: str | None = None
    date: str
    """The year, or the year and month, in which it was asked."""
    note: str | None = None
    sources: Any = field(default=(), hash=False, repr=False)
    own: bool = False
    """Whether the user added it to what foretell ships."""

    def __post_init__(self) -> None:
        """Check each field."""
        object.__setattr__(self, "accelerators", positive_int(self.accelerators, "accelerators"))
        usd = number(self.usd_per_hour, "usd_per_hour", minimum=LEAST_USD, maximum=MOST_USD)
        object.__setattr__(self, "usd_per_hour", usd)
        check_fields(self)
        choice(self.kind, "kind", OFFER_KINDS)
        first_day(self.date)
        if (self.term_months is not None) != (self.kind == "reserved"):
            raise InputError("is given with reserved offers, and only there", field="term_months", value=str(self.term_months))
        if self.term_months is not None:
            positive_int(self.term_months, "term_months", maximum=1200)

    @property
    def usd_per_device_hour(self) -> float:
        """USD of one accelerator and hour."""
        return self.usd_per_hour / self.accelerators


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """What something costs to buy."""

    what: str
    """accelerator, server, rack, nic, switch, switch-port, optics, storage ..."""
    item: str
    """Catalog id of the accelerator or the system, or a name."""
    usd: float
    low_usd: float | None = None
    high_usd: float | None = None
    unit: str = "each"
    date: str
    note: str | None = None
    sources: Any = field(default=(), hash=False, repr=False)
    own: bool = False
    """Whether the user added it to what foretell ships."""

    def __post_init__(self) -> None:
        """Check each field, and that the range holds the price."""
        for name in ("usd", "low_usd", "high_usd"):
            value = getattr(self, name)
            if value is not None or name == "usd":
                object.__setattr__(self, name, number(value, name, minimum=LEAST_USD, maximum=MOST_USD))
        check_fields(self)
        first_day(self.date)
        if self.low_usd is not None and self.low_usd > self.usd:
            raise InputError("is above usd", field="low_usd", value=self.low_usd, allowed=f"{self.usd:g} or less")
        if self.high_usd is not None and self.high_usd < self.usd:
            raise InputError("is below usd", field="high_usd", value=self.high_usd, allowed=f"{self.usd:g} or more")


def first_day(date: str) -> dt.date:
    """Return the first day of a price's year or month: a price of "2025" may be as old as that.

    >>> first_day("2025"), first_day("2026-07")
    (datetime.date(2025, 1, 1), datetime.date(2026, 7, 1))
    """
    found = _DATE.fullmatch(date)
    if found:
        year, month = int(found[1]), int(found[2] or 1)
        if 1950 <= year <= 2200 and 1 <= month <= 12:
            return dt.date(year, month, 1)
    raise InputError("is no date of a price", field="date", value=date, allowed='"YYYY-MM" or "YYYY"')


def accelerator_id(accelerator: str | HardwareNode) -> str:
    """Return the catalog id of an accelerator; its name where it is none of the catalog."""
    node = load_hardware(accelerator)
    return node.id or node.name


def offers(accelerator: str | HardwareNode | None = None, provider: str | None = None, kind: str | None = None) -> list[Offer]:
    """Return every offer: the user's first, then by provider; of one accelerator, provider or kind where given.

    An entry of the user's takes the place of a shipped one of the same id.

    >>> [offer.usd_per_device_hour for offer in offers("H100", "lambda", "on-demand") if offer.accelerators == 8]
    [3.99]
    """
    wanted = None if accelerator is None else accelerator_id(accelerator)
    if kind is not None:
        choice(kind, "kind", OFFER_KINDS)
    entries = list(_entries())
    if provider is not None:
        entries = [_named(provider, entries)]
    names: dict[str, str] = {}  # a hardware file is looked up once
    found = [offer for data, own in entries for offer in _rows(data, own, "offers", lambda row: _offer(row, names))]
    return [o for o in found if wanted in (None, o.accelerator) and kind in (None, o.kind)]


def purchases(item: str | HardwareNode | None = None, what: str | None = None) -> list[Purchase]:
    """Return every purchase price, the user's first; of one item or sort of thing where given.

    >>> [price.usd for price in purchases("RTX 4090", "accelerator")]
    [1599.0]
    """
    found = [row for data, own in _entries() for row in _rows(data, own, "purchases", _purchase)]
    if what is not None:
        choice(what, "what", sorted({row.what for row in found}))
        found = [row for row in found if row.what == what]
    if item is None:
        return found
    keys = {sort: _text(_item(item, sort)) for sort in {row.what for row in found}}
    return [row for row in found if _text(row.item) == keys[row.what]]


def _entries() -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the entries with whether the user added them, the user's first; a shipped one that is shadowed is left out."""
    mine = loader.has_own("price")
    held: dict[str, tuple[dict[str, Any], bool]] = {}
    for name in loader.ids("price"):
        data = loader.entry("price", name)
        held.setdefault(data["id"], (data, mine and loader.own_entry("price", name) is not None))
    yield from sorted(held.values(), key=lambda one: not one[1])


def _named(provider: str, entries: list[tuple[dict[str, Any], bool]]) -> tuple[dict[str, Any], bool]:
    """Return the entry of a provider's id, name or alias."""
    if not isinstance(provider, str) or not provider.strip():
        raise InputError("must be the name of a provider", field="provider", value=provider)
    key = _text(provider)
    for data, own in entries:
        names = (data["id"], data.get("name"), *data.get("aliases", ()))
        if data.get("offers") and any(isinstance(name, str) and _text(name) == key for name in names):
            return data, own
    raise CatalogError.unknown(
        "provider", provider, [data["id"] for data, _ in entries if data.get("offers")], hint="See: foretell catalog list prices"
    )


def _rows(data: Mapping[str, Any], own: bool, key: str, read: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
    """Yield the rows of one list of an entry, each with its sources."""
    where = f"prices/{data['id']}"
    if unknown := sorted(set(data) - _KEYS):
        raise ConfigError("is not a known key", field=unknown[0], allowed=sorted(_KEYS), where=where)
    if "offers" not in data and "purchases" not in data:
        raise ConfigError("has neither offers nor purchases", where=where)
    rows = data.get(key, [])
    if not isinstance(rows, list | tuple):
        raise ConfigError("must be a list of tables", field=key, value=rows, where=where)
    for count, row in enumerate(rows, start=1):
        place = f"{where}, {key} {count}"
        if not isinstance(row, Mapping):
            raise ConfigError("must be a table", field=key, value=row, where=place)
        try:
            made = read({"provider": data["id"]} | dict(row) if key == "offers" else row)
        except ConfigError as error:
            error.where = place
            raise
        except InputError as error:
            name = "accelerator" if isinstance(error, CatalogError) else error.field
            allowed, hint = error.allowed, error.hint
            raise ConfigError(error.problem, field=name, value=error.value, allowed=allowed, where=place, hint=hint) from error
        yield replace(made, own=own, sources=_sources(data, row.get("source"), place))


def _offer(row: Mapping[str, Any], names: dict[str, str]) -> Offer:
    """Return an offer whose accelerator is a catalog id; `names` remembers the ids."""
    made = Offer(**_known(Offer, row, ("provider",)))
    if made.accelerator not in names:
        names[made.accelerator] = str(loader.entry("hardware", made.accelerator)["id"])
    return replace(made, accelerator=names[made.accelerator])


def _purchase(row: Mapping[str, Any]) -> Purchase:
    """Return a purchase whose item is a catalog id where it is an accelerator or a system."""
    made = Purchase(**_known(Purchase, row))
    return replace(made, item=_item(made.item, made.what))


def _known(cls: type[Offer | Purchase], row: Mapping[str, Any], more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a row without the name of its source; a key that it cannot have, or lacks, is a ConfigError."""
    own = [spec.name for spec in fields(cls) if spec.name not in _OURS]
    data = {key: value for key, value in row.items() if key != "source"}
    if unknown := sorted(set(data) - {*own, *more}):
        raise ConfigError("is not a known key", field=unknown[0], allowed=[*own, "source"])
    required = ("accelerator", "usd_per_hour", "date") if cls is Offer else ("what", "item", "usd", "date")
    if missing := [key for key in required if key not in data]:
        raise ConfigError(f"lacks {', '.join(missing)}")
    return data


def _item(item: str | HardwareNode, what: str) -> str:
    """Return an accelerator's or a system's id; the text itself where it is none of the catalog."""
    if isinstance(item, HardwareNode):
        return accelerator_id(item)
    kind = "hardware" if what == "accelerator" else "system" if what in _SYSTEMS else None
    if kind is not None:
        try:
            return str(loader.entry(kind, item)["id"])
        except CatalogError:
            pass  # a name of the user's own
    return item


def _sources(data: Mapping[str, Any], key: object, where: str) -> tuple[Any, ...]:
    """Return the sources of a row: those of the key that it names, else all of its entry."""
    held = data.get("sources", data.get("source", ()))
    listed = tuple(held) if isinstance(held, list | tuple) else (held,)
    if key is None:
        return listed
    found = tuple(one for one in listed if isinstance(one, Mapping) and one.get("key") == key)
    if not found:
        raise ConfigError("names no source of the entry", field="source", value=key, where=where)
    return found


def _text(name: str) -> str:
    """Return a name in the spelling in which names are compared."""
    return re.sub(r"[\s_-]", "", name.casefold())
