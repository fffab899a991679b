"""What an accelerator and hour costs to rent, and what hardware costs to buy: from dated prices, each with its source.

A price is an input with a date, never a constant: list prices of one accelerator differ fourfold between providers, and one
provider's fell by 44 % in a day (AWS P5, June 2025).  So an answer is a point, a range and a date.  A price that is not known is
an error that says how to give one: it is never taken for nothing.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError, nearest
from foretell.machine import HardwareNode
from foretell.operations.price_list import (
    OFFER_KINDS,
    Offer,
    Purchase,
    accelerator_id,
    first_day,
    offers,
    purchases,
)
from foretell.validation import choice

__all__ = ["OFFER_KINDS", "Offer", "PriceAnswer", "Purchase", "offers", "purchase", "purchase_or_raise", "purchases", "rent"]

_STALE_DAYS: Final = 365
"""A price older than this is used, and said to be old."""
_HOW_TO_RENT: Final = "Give one: --price NAME=USD of one accelerator and hour (price_usd_per_device_hour)"
PER_HOUR: Final = "USD per accelerator and hour"


@dataclass(frozen=True)
class PriceAnswer:
    """A price with its range, its date and what it rests on."""

    point: float
    low: float
    high: float
    unit: str
    """ "USD per accelerator and hour", or USD and what a purchase price counts ("USD each", "USD per TB")."""
    date: str
    """Of the oldest price that the point rests on."""
    offers: tuple[Offer, ...] = ()
    """What the point of a rent rests on."""
    purchases: tuple[Purchase, ...] = ()
    """What that of a purchase price rests on."""
    notes: tuple[str, ...] = ()


def rent(
    accelerator: str | HardwareNode,
    *,
    provider: str | None = None,
    kind: str = "on-demand",
    term_months: int | None = None,
    today: dt.date,
) -> PriceAnswer:
    """Return what one accelerator and hour costs, or raise an InputError that says how to give a price.

    The point is the median over providers of each one's newest offer, the cheapest where it has several (sizes, regions); the
    range is that of all offers that no newer one of the same instance has replaced.  Where the user has prices of their own for
    the accelerator, these alone count.  Only offers of the kind asked for are used: a discount is never computed, let alone one
    upon another.  `term_months`: of reserved offers, those of this commitment.

    >>> rent("H100", provider="aws", today=dt.date(2026, 11, 30)).point
    6.88
    """
    name = accelerator_id(accelerator)
    choice(kind, "kind", OFFER_KINDS)
    if term_months is not None and kind != "reserved":
        raise InputError("belongs to reserved prices", field="term_months", value=term_months, hint='Add kind="reserved"')
    every = offers(accelerator, provider)
    known = [offer for offer in every if offer.kind == kind and term_months in (None, offer.term_months)]
    if not known:
        raise _unknown(name, kind, provider, term_months, every)
    pool = [offer for offer in known if offer.own] or known
    current = _current(pool)
    used = _each_providers(current)
    each = [offer.usd_per_device_hour for offer in current]
    return PriceAnswer(
        point=statistics.median(offer.usd_per_device_hour for offer in used),
        low=min(each),
        high=max(each),
        unit=PER_HOUR,
        date=min((offer.date for offer in used), key=first_day),
        offers=tuple(used),
        notes=tuple(_rent_notes(used, pool is not known, today)),
    )


def purchase(item: str | HardwareNode, what: str = "accelerator", *, today: dt.date) -> PriceAnswer | None:
    """Return what something costs to buy; None where that is not known.

    The point is the median of the newest prices, the range that of all known ones; the user's own come first and alone.

    >>> purchase("rtx4090", today=dt.date(2026, 11, 30)).point
    1599.0
    """
    known = purchases(item, what)
    if not known:
        return None
    pool = [row for row in known if row.own] or known
    newest = max(first_day(row.date) for row in pool)
    used = [row for row in pool if first_day(row.date) == newest]
    used = [row for row in used if row.unit == used[0].unit]
    pool = [row for row in pool if row.unit == used[0].unit]
    low = min(row.usd if row.low_usd is None else row.low_usd for row in pool)
    high = max(row.usd if row.high_usd is None else row.high_usd for row in pool)
    notes = [row.note for row in used if row.note]
    notes += ["one price is known, and no range"] if low == high else []
    notes += _age([(f"{row.what} {row.item}", row.date) for row in used], today)
    point = statistics.median(row.usd for row in used)
    unit = f"USD {used[0].unit}"
    return PriceAnswer(point, low, high, unit, used[0].date, purchases=tuple(used), notes=tuple(notes))


def purchase_or_raise(item: str | HardwareNode, what: str = "accelerator", *, today: dt.date) -> PriceAnswer:
    """Do the same, and raise an InputError that says how to give a price where none is known."""
    found = purchase(item, what, today=today)
    if found is not None:
        return found
    priced = sorted({row.item for row in purchases(what=what)})
    name = accelerator_id(item) if isinstance(item, HardwareNode) else item
    near = nearest(name, priced) or priced
    hint = f"Give it, or add it to a file prices/NAME.toml of your catalog under purchases. Known: {', '.join(near)}"
    raise InputError(f"to buy {what} {name} is not known", field="price", hint=hint)


def _current(known: Sequence[Offer]) -> list[Offer]:
    """Return the offers that no newer one of the same provider, instance, region and term has replaced."""
    newest: dict[tuple[object, ...], Offer] = {}
    for offer in known:
        key = (offer.provider, offer.instance, offer.accelerators, offer.region, offer.term_months)
        held = newest.get(key)
        if held is None or first_day(offer.date) > first_day(held.date):
            newest[key] = offer
    return list(newest.values())


def _each_providers(current: Sequence[Offer]) -> list[Offer]:
    """Return one offer of each provider: of its newest, the cheapest by accelerator."""
    best: dict[str, Offer] = {}
    for offer in current:
        held = best.get(offer.provider)
        if held is None or _order(offer) < _order(held):
            best[offer.provider] = offer
    return list(best.values())


def _order(offer: Offer) -> tuple[int, float]:
    """Return what sorts newer before older, and then cheaper before dearer."""
    return -first_day(offer.date).toordinal(), offer.usd_per_device_hour


def _rent_notes(used: Sequence[Offer], own: bool, today: dt.date) -> list[str]:
    """Return what a reader of a price must know."""
    notes = ["your own prices alone"] if own else []
    if len(used) > 1:
        notes.append(f"median of {len(used)} providers: {', '.join(offer.provider for offer in used)}")
    elif not own:
        notes.append(f"price of {_name(used[0])}")
    terms = sorted({offer.term_months for offer in used if offer.term_months is not None})
    notes += [f"for a commitment of {' or '.join(map(str, terms))} months"] if terms else []
    return notes + _age([(_name(offer), offer.date) for offer in used], today)


def _name(offer: Offer) -> str:
    """Return a provider and its instance."""
    return " ".join(part for part in (offer.provider, offer.instance, offer.region) if part)


def _age(dated: Sequence[tuple[str, str]], today: dt.date) -> list[str]:
    """Return a note on prices that are more than a year old, and on those that are of a day to come."""
    old = [f"{name} {date}" for name, date in dated if (today - first_day(date)).days > _STALE_DAYS]
    ahead = [f"{name} {date}" for name, date in dated if first_day(date) > today]
    notes = [f"more than a year old: {', '.join(old)}"] if old else []
    return notes + ([f"dated after {today.isoformat()}: {', '.join(ahead)}"] if ahead else [])


def _unknown(name: str, kind: str, provider: str | None, term_months: int | None, every: Sequence[Offer]) -> InputError:
    """Make the error for a price that is not known: how to give one, what else there is of it, and who has one."""
    term = f" for {term_months} months" if term_months is not None else ""
    at = f" at {provider}" if provider is not None else ""
    others = sorted({offer.kind if offer.term_months is None else f"reserved ({offer.term_months} months)" for offer in every})
    hint = _HOW_TO_RENT
    if others:
        hint += f". Known of it: {', '.join(others)}"
    else:
        priced = sorted({offer.accelerator for offer in offers(provider=provider, kind=kind)})
        hint += f". Priced: {', '.join(nearest(name, priced) or priced)}" if priced else ""
    return InputError(f"of {name}, {kind}{term}{at}, is not known", field="price", hint=hint)
