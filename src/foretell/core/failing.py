"""How often a fleet fails: what is known of it, or the range of public fleets, as failures per 1,000 node-days of its nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from foretell.catalog import loader
from foretell.errors import InputError
from foretell.machine.fleet import Fleet
from foretell.operations.component_rates import NODE_UNITS, fleet_rate
from foretell.operations.failure_rates import UNIT, RateRange, public_range, record
from foretell.operations.failures import job_mtbf_h
from foretell.operations.ranges import Range
from foretell.validation import number

__all__ = ["MOST_RATE", "node_rate"]

MOST_RATE = 1e7
"""Failures per 1,000 node-days; more is one in nine seconds of every node."""
_HOUR_S = 3600.0


def node_rate(fleet: Fleet, given: object = None, *, source: str | None = None, causes: str | None = None) -> Range:
    """Return failures per 1,000 days of one of the fleet's nodes, low, point and high, with what it rests on.

    `given`: a rate, or a low and a high one (their geometric mean is the point); else `source` names a fleet's record; else the
    fleet's own `mtbf_s`; else the range of public fleets that count comparable `causes`.  Published rates are of nodes with 8
    accelerators: another node's is scaled by the parts that it has.

    Raises InputError where what is given means nothing, CatalogError for an unknown record.
    """
    if given is not None:
        if source is not None or causes is not None:
            name = "record" if source is not None else "causes"
            raise InputError("has no use where the rate itself is given", field=name, value=source or causes)
        return _given(given)
    if source is not None:
        if causes is not None:
            raise InputError("belongs to the range of public fleets", field="causes", value=causes, hint="Leave out the record")
        found = record(source)
        return _of_parts(found.range.noted(f"rate of {found.name} ({found.causes}, {found.year})"), fleet)
    if fleet.mtbf_s is not None and causes is None:
        rate = job_mtbf_h(1.0, fleet.nodes) * _HOUR_S / fleet.mtbf_s
        return Range.exact(rate, UNIT, (f"mean time between failures of {fleet.name} as its own entry says",))
    usual = _public(causes, fleet.accelerator.id)
    told = tuple(f"failures per 1,000 node-days, {note}" for note in usual.notes)
    return _of_parts(Range(usual.low, usual.point, usual.high, UNIT, told, usual.sources), fleet)


def _given(given: object) -> Range:
    """Return the range of a rate that was given."""
    pair = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given, given]
    if len(pair) != 2:
        raise InputError("is neither a rate nor a low and a high one", field="failure_rate", value=given)
    low, high = (number(end, "failure_rate", minimum=1e-9, maximum=MOST_RATE) for end in pair)
    if low > high:
        raise InputError("is not a low and then a high rate", field="failure_rate", value=given)
    return Range(low, (low * high) ** 0.5 if high > low else low, high, UNIT, ("failure rate as given",))


def _public(causes: str | None, accelerator: str) -> RateRange:
    """Return the range of public fleets; the shipped records are read once."""
    return public_range(causes, accelerator=accelerator) if loader.has_own("failure") else _shipped(causes, accelerator)


@functools.lru_cache(maxsize=128)
def _shipped(causes: str | None, accelerator: str) -> RateRange:
    return public_range(causes, accelerator=accelerator)


def _of_parts(rate: Range, fleet: Fleet) -> Range:
    """Return the rate of a node with as many accelerators as the fleet's: the parts' rates add up."""
    count = fleet.node.accelerators_per_node
    if count == NODE_UNITS["gpu"]:
        return rate
    note = f"published for nodes of {NODE_UNITS['gpu']} accelerators: scaled to {count} by the failures of each part"
    return rate.scaled(_share(count)).noted(note)


@functools.lru_cache(maxsize=128)
def _share(accelerators: int) -> float:
    """Return how often a node of so many accelerators fails over one of the usual eight."""
    parts = dict(NODE_UNITS) | {"gpu": accelerators, "nic": accelerators}
    return fleet_rate(1, parts).point / fleet_rate(1).point
