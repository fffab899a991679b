"""Failure rates of a node's parts, and what they make of a fleet: the sum over parts of units times rate.

The counts by cause are those of one public run (Llama 3, 54 days of 16,384 GPUs); their 90 % intervals are exact, and widened by
how far the rates of public fleets lie apart, since another fleet is not that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError
from foretell.operations.failure_rates import FAMILIES, FleetRecord, component_source, public_range, record
from foretell.operations.poisson import interval
from foretell.operations.ranges import Range, total
from foretell.validation import choice, positive_int

__all__ = ["NODE_UNITS", "ComponentRate", "component_rates", "fleet_rate"]

NODE_UNITS: Final[Mapping[str, int]] = {"gpu": 8, "nic": 8, "host": 1}
"""Units of a usual node: eight GPUs with a NIC each."""
_UNIT: Final = "failures per hour"


@dataclass(frozen=True)
class ComponentRate:
    """How often one part fails, per hour and unit."""

    part: str
    per: str
    """The unit that it is counted for: gpu, nic or host. How many switches there were is not published: they go by NIC, as
    cables do."""
    family: str
    """hardware, network, software or maintenance."""
    count: int
    """Failures that the rate rests on."""
    per_hour: Range
    record: str
    """The fleet's record."""


def component_rates(fleet: str | FleetRecord | None = None, *, level: float = 0.9) -> dict[str, ComponentRate]:
    """Return the rate of each part: count / (units x hours), with the ends of the count's interval, widened.

    The ends of the exact Poisson interval (`level`) are multiplied by how far the lowest and the highest of the public fleets lie
    from the record's own rate (2.34/3.789 and 6.50/3.789 for Llama 3). 268 failures of 16,384 GPUs in 1,296 h are 1.262e-5 an
    hour and GPU; two of 2,048 CPUs' hosts are 7.5e-7, known to a factor of ten.

    >>> rates = component_rates()
    >>> rates["gpu"].count, f'{rates["gpu"].per_hour.point:.4g}', rates["gpu"].family
    (268, '1.262e-05', 'hardware')
    >>> rates["switch_or_cable"].per, rates["software"].family
    ('nic', 'software')
    """
    held = component_source() if fleet is None else record(fleet)
    if not held.components or held.observation_days is None:
        raise InputError("has no failures by cause", field="fleet", value=held.id, allowed=[component_source().id])
    spread = public_range()
    below, above = min(spread.low / held.rate, 1.0), max(spread.high / held.rate, 1.0)
    made: dict[str, ComponentRate] = {}
    for part in dict.fromkeys(cause.part for cause in held.components.values()):
        causes = [cause for cause in held.components.values() if cause.part == part]
        count = sum(cause.count for cause in causes)
        hours = held.units[causes[0].per] * held.observation_days * 24.0
        low, high = interval(count, level)
        notes = (f"{count} failures of {held.id}; {level:.0%} interval, widened by the spread of public fleets",)
        rate = Range(low * below / hours, count / hours, high * above / hours, _UNIT, notes, held.sources)
        made[part] = ComponentRate(part, causes[0].per, causes[0].family, count, rate, held.id)
    return made


def fleet_rate(
    nodes: int,
    parts: Mapping[str, int] | None = None,
    *,
    families: Iterable[str] = FAMILIES,
    rates: Mapping[str, ComponentRate] | None = None,
) -> Range:
    """Return the failures per hour of a fleet: nodes times the sum over a node's parts of units times rate.

    Independent parts in series: the rates add. `parts` are the units of one node (by default 8 GPUs, 8 NICs, 1 host), `families`
    which causes count, `rates` the parts' own rates. The ends add too, as if all parts of a fleet were good or bad together.

    Llama 3's 2,048 nodes: 419 failures in 1,296 h, one in 3.09 h; without software and maintenance 324, one in 4 h.

    >>> round(1 / fleet_rate(2048).point, 4)
    3.0931
    >>> round(1 / fleet_rate(2048, families=("hardware", "network")).point, 2)
    4.0
    """
    nodes = positive_int(nodes, "nodes")
    held = dict(NODE_UNITS) if parts is None else dict(parts)
    for name, count in held.items():
        choice(name, "parts", tuple(NODE_UNITS))
        positive_int(count, f"parts.{name}", minimum=0)
    wanted = [choice(family, "families", FAMILIES) for family in families]
    known = component_rates() if rates is None else rates
    used = [rate for rate in known.values() if rate.family in wanted]
    return total((rate.per_hour.scaled(nodes * held.get(rate.per, 0)) for rate in used), _UNIT)
