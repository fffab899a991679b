"""How often public fleets failed: records of the catalog, a range to plan with, and rates of parts.

A rate means nothing without the set of causes that it counts: the records of the catalog (`failures/<id>.toml`) name it, and
only records of a comparable set are put into one range. "GPU hours for each interruption" (50,677 for Llama 3) is a figure of
the whole system, not the time between failures of a GPU.

Published times between failures of Meta's clusters are of two families that no one line goes through: the measured ones (47.7
days at 8 GPUs, 7.9 h at 1,024) are of all failures of jobs and follow 1/N; the projected ones (1.8 h at 16,384, 0.23 h at
131,072) are of infrastructure alone and follow 1/(nodes x rate), which at 1,024 GPUs gives 28.8 h. `FleetRecord.mttf` tells
them apart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from foretell.catalog import loader
from foretell.errors import ConfigError, InputError
from foretell.operations.ranges import Range, Source, as_sources, merged
from foretell.typed import check_fields
from foretell.validation import choice, flag, number, positive_int

__all__ = [
    "CAUSES",
    "COMPARABLE",
    "ENOUGH_NODE_DAYS",
    "FAMILIES",
    "UNIT",
    "Cause",
    "FleetRecord",
    "MttfPoint",
    "RateRange",
    "component_source",
    "public_range",
    "record",
    "records",
]

CAUSES: Final = (
    "all interruptions",
    "infrastructure",
    "hardware only",
    "GPU errors only",
    "any machine break",
    "job restarts",
)
"""Sets of causes that a record may count."""
COMPARABLE: Final = ("all interruptions", "infrastructure")
"""Sets that a plan may use: what stops a job of a fleet that runs. Restarts by hand, errors of GPUs alone and broken machines in
repair are other things."""
FAMILIES: Final = ("hardware", "network", "software", "maintenance")
UNIT: Final = "failures per 1000 node-days"
ENOUGH_NODE_DAYS: Final = 100_000.0
"""Node-days from which a fleet counts for a plan: at 4 failures per 1000 of them, 400 events, known to 8 % (90 % interval)."""


@dataclass(frozen=True)
class Cause:
    """One root cause of a record's failures."""

    count: int
    part: str
    """What failed: gpu, nic, switch_or_cable, cpu ..."""
    per: str
    """The unit of the fleet that its rate is given for: gpu, nic or host."""
    family: str

    def __post_init__(self) -> None:
        """Check the fields."""
        check_fields(self)
        positive_int(self.count, "count", minimum=0)
        choice(self.family, "family", FAMILIES)


@dataclass(frozen=True)
class MttfPoint:
    """A published mean time to failure of jobs of one size."""

    gpus: int
    hours: float
    family: str
    """measured, or projected from a rate."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_fields(self)
        choice(self.family, "family", ("measured", "projected"))


@dataclass(frozen=True)
class FleetRecord:
    """Failures of one fleet over a time, and what was counted.

    >>> llama = record("llama3-405b-run")
    >>> llama.failures_count, llama.node_days, round(llama.rate, 3), round(llama.gpu_hours_per_failure)
    (419, 110592.0, 3.789, 50677)
    """

    id: str
    name: str
    nodes: int
    causes: str
    """One of `CAUSES`."""
    planned_counted: bool
    """Whether planned stops are in the count."""
    year: int
    accelerator: str | None = None
    """Catalog id."""
    gpus_per_node: int = 8
    observation_days: float | None = None
    failures_count: int | None = None
    rate_per_1000_node_days: float | None = None
    low: float | None = None
    """Lowest of the rates that the sources allow, failures per 1000 node-days."""
    high: float | None = None
    planned_count: int | None = None
    notes: str = ""
    aliases: tuple[str, ...] = ()
    units: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Units of the whole fleet by kind, for the rates of parts."""
    components: Mapping[str, Cause] = field(default_factory=dict, hash=False)
    mttf: tuple[MttfPoint, ...] = ()
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields and that a rate can be had."""
        check_fields(self)
        choice(self.causes, "causes", CAUSES)
        flag(self.planned_counted, "planned_counted")
        for name in ("nodes", "gpus_per_node"):
            positive_int(getattr(self, name), name)
        for name in ("observation_days", "rate_per_1000_node_days", "low", "high"):
            if getattr(self, name) is not None:
                number(getattr(self, name), name, minimum=1e-9)
        if self.failures_count is not None:
            positive_int(self.failures_count, "failures_count", minimum=0)
        counted = self.failures_count is not None and self.observation_days is not None
        if not counted and self.rate_per_1000_node_days is None:
            problem = "needs a rate, or a count and the days it was taken over"
            raise InputError(
                problem, field="rate_per_1000_node_days", allowed="failures_count with observation_days, or the rate"
            )
        if self.components and sum(cause.count for cause in self.components.values()) != self.failures_count:
            raise InputError("is not the sum of the components", field="failures_count", value=self.failures_count)

    @property
    def rate(self) -> float:
        """Failures per 1000 node-days: the published rate, else count / (nodes x days) x 1000."""
        if self.rate_per_1000_node_days is not None:
            return self.rate_per_1000_node_days
        return 1000.0 * (self.failures_count or 0) / (self.node_days or 1.0)

    @property
    def node_days(self) -> float | None:
        """Nodes times days of observation; None where the days are not known."""
        return None if self.observation_days is None else float(self.nodes * self.observation_days)

    @property
    def mtbf_hours(self) -> float:
        """Hours between two failures anywhere in the fleet: 24 000 / (nodes x rate).  Llama 3: 54 x 24 / 419 = 3.093."""
        return 24_000.0 / (self.nodes * self.rate) if self.rate else math.inf

    @property
    def gpu_hours_per_failure(self) -> float:
        """GPU-hours for each failure of the fleet: of the whole system, not the time between failures of one GPU."""
        return self.mtbf_hours * self.nodes * self.gpus_per_node

    @property
    def range(self) -> Range:
        """The rate between the ends that the record's sources give; the rate itself where they give none."""
        low = min(self.low or self.rate, self.rate)
        return Range(low, self.rate, max(self.high or self.rate, self.rate), UNIT, (self.causes,), self.sources)


@dataclass(frozen=True)
class RateRange(Range):
    """A range of failure rates, and the records that it was made of."""

    records: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return super().to_dict() | {"records": list(self.records)}


def records() -> tuple[FleetRecord, ...]:
    """Return every record of the catalog, your own with the shipped ones, by id."""
    return tuple(record(name) for name in loader.ids("failure"))


def record(name: str | os.PathLike[str] | FleetRecord) -> FleetRecord:
    """Return the record of a catalog id or alias, or of a path.

    >>> record("RSC-1").rate, record("rsc-2").causes
    (6.5, 'infrastructure')
    """
    if isinstance(name, FleetRecord):
        return name
    data = loader.entry("failure", name)
    where = f"failure {data.get('id', name)}"
    known = [spec.name for spec in fields(FleetRecord)]
    if unknown := sorted(set(data) - set(known)):
        raise ConfigError("is not a known key", field=unknown[0], allowed=known, where=where)
    if missing := [key for key in ("id", "nodes", "causes", "planned_counted", "year") if key not in data]:
        raise ConfigError(f"lacks {', '.join(missing)}", where=where)
    try:
        return _made(data)
    except InputError as error:
        error.where = error.where or where
        raise
    except (TypeError, AttributeError) as error:
        raise ConfigError("has a table whose keys are not those of a failure record", where=where) from error


def public_range(
    causes: str | None = None, *, accelerator: str | None = None, minimum_node_days: float | None = None
) -> RateRange:
    """Return the range of failure rates to plan with, failures per 1000 node-days.

    Rule: records that count what stops a running job ("all interruptions", "infrastructure") over `minimum_node_days` or more
    (100,000 if not given). Low and high are the lowest and the highest of their rates; the point is their geometric mean, since
    the rates differ by factors and no fleet stands for another: (2.34 x 3.789 x 6.50)^(1/3) = 3.863. With an `accelerator`
    (catalog id) that one of these fleets has, the point is that fleet's rate.

    Small and early fleets (OPT-175B, 14.1) and other sets of causes are left out; `causes` asks for the records of one set,
    whatever their size. Records of your own that pass the rule count.

    >>> usual = public_range()
    >>> usual.low, round(usual.point, 3), usual.high, usual.records
    (2.34, 3.863, 6.5, ('llama3-405b-run', 'rsc-1', 'rsc-2'))
    >>> round(public_range("job restarts").point, 1)
    14.1
    """
    wanted = COMPARABLE if causes is None else (choice(causes, "causes", CAUSES),)
    usual = ENOUGH_NODE_DAYS if causes is None else 0.0
    least = usual if minimum_node_days is None else number(minimum_node_days, "minimum_node_days")
    known = records()
    used = [one for one in known if one.causes in wanted and one.rate > 0.0 and (one.node_days or 0.0) >= least]
    if not used and causes is not None and not least:
        counted = sorted({one.causes for one in known if one.rate > 0.0})
        raise InputError("are counted so by no record", field="causes", value=causes, allowed=counted)
    if not used:
        held = [f"{one.id} ({one.causes}, {one.node_days or 0:g} node-days)" for one in known]
        raise InputError("leaves no record", field="minimum_node_days", value=least, allowed=held)
    same = [one for one in used if accelerator is not None and one.accelerator == accelerator]
    mean = _geometric([one.rate for one in same or used])
    note = f"point: {'the rate of ' + ', '.join(one.id for one in same) if same else 'geometric mean of the records'}"
    told = tuple(f"{one.id}: {one.rate:.3g} ({one.causes}, {one.year})" for one in used)
    low, high = min(one.range.low for one in used), max(one.range.high for one in used)
    known_sources = merged(*(one.sources for one in used))
    return RateRange(low, mean, high, UNIT, (note, *told), known_sources, tuple(one.id for one in used))


def _geometric(values: list[float]) -> float:
    """Return the geometric mean; rounding does not take it out of the values' range."""
    mean = math.exp(math.fsum(math.log(value) for value in values) / len(values))
    return min(max(mean, min(values)), max(values))


def _made(data: dict[str, Any]) -> FleetRecord:
    """Make a record of an entry's keys."""
    made = {"name": data["id"]} | data
    made["aliases"] = tuple(data.get("aliases", ()))
    made["sources"] = as_sources(data.get("sources", ()))
    made["mttf"] = tuple(MttfPoint(**point) for point in data.get("mttf", ()))
    made["components"] = {name: Cause(**cause) for name, cause in data.get("components", {}).items()}
    made["units"] = {name: positive_int(count, f"units.{name}") for name, count in data.get("units", {}).items()}
    for name in {cause.per for cause in made["components"].values()} - set(made["units"]):
        raise InputError("is not among the fleet's units", field="per", value=name, allowed=list(made["units"]))
    return FleetRecord(**made)


def component_source() -> FleetRecord:
    """Return the record whose counts by cause the rates of parts are made of: the one with most failures counted so."""
    held = [one for one in records() if one.components]
    return max(held, key=lambda one: one.failures_count or 0)
