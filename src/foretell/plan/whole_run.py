"""A training run from end to end: step time, checkpoints, failures, days, device-hours, energy, carbon, water, money.

One chain of formulas, walked twice: with the points, and with thousands of samples of every range at once, which give the band.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from foretell.core.failing import node_rate
from foretell.core.footprint import Energy, energy_of
from foretell.core.footprint import answers as footprint
from foretell.core.pricing import LIFE_YEARS, MODES, Known
from foretell.core.saving import copy_rate
from foretell.core.site import Site, site_of
from foretell.core.solver._result import Result
from foretell.core.speed import SpeedForecast
from foretell.cost.arrays import Value, maximum
from foretell.cost.checkpoint import checkpoint_terms
from foretell.errors import InputError
from foretell.machine.datacenter import Datacenter
from foretell.machine.fleet import Fleet
from foretell.operations.failures import job_mtbf_h
from foretell.operations.goodput import best_interval, losses
from foretell.operations.power import node_power
from foretell.operations.ranges import Range
from foretell.operations.restart_times import restart_range
from foretell.operations.saving import MODES as SAVING
from foretell.operations.saving import Assumed, Storage, defaults, save_times
from foretell.plan.launch import Launch
from foretell.plan.sampling import from_interval, from_range, quantiles
from foretell.units import GB, fmt_s
from foretell.validation import choice, number, positive_int

__all__ = ["Band", "Business", "RunForecast", "whole_run"]

_HOUR: Final = 3600.0
_DAY: Final = 86400.0
_NAN: Final = float("nan")
_LONGEST_S: Final = 1e9
_LEAST_USEFUL: Final = 0.01


@dataclass(frozen=True)
class Business:
    """How a run is operated.  None: as public fleets, clouds and grids are, with their range."""

    failure_rate: object = None
    """Failures per 1,000 node-days: one, or (low, high)."""
    record: str | None = None
    """A fleet of the catalog whose rate is taken."""
    recovery_time_s: float | None = None
    checkpoint_interval_s: float | None = None
    """Work between checkpoints; None is the best."""
    checkpoint_mode: str = "sync"
    storage_bytes_per_s: float | None = None
    """What the storage takes in, all ranks together."""
    region: Datacenter | str | os.PathLike[str] | None = None
    operator: str | None = None
    boundary: str | None = None
    pue: float | None = None
    carbon_intensity: float | None = None
    node_power_w: float | None = None
    mode: str = "rent"
    price_usd_per_device_hour: float | None = None
    provider: str | None = None
    price_kind: str = "on-demand"
    node_price_usd: float | None = None
    samples: int = 10_000
    seed: int = 0
    today: dt.date | None = None


@dataclass(frozen=True)
class Band:
    """One quantity of the chain: its value with all points, and where four of five samples lie."""

    point: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class RunForecast(Result):
    """A training run from its first step to its last token."""

    title: ClassVar[str] = "run"

    feasible: bool
    """It gets on: it saves and restarts faster than it fails."""
    tokens: float
    steps: int
    gpus: int
    nodes: int
    checkpoint_size_bytes: float
    bands: Mapping[str, Band]
    """Quantity with its unit -> point and band."""
    losses: Mapping[str, float]
    """Shares of the wall time: useful, checkpoints, rework, restarts."""
    region_name: str
    boundary: str
    mode: str
    """rent or own: what the money is for."""
    samples: int
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]
    _samples: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def drawn(self) -> Mapping[str, Any]:
        """Quantity -> its samples, in no order, for pictures."""
        return self._samples

    def explain(self) -> str:
        """Return the chain as text, a quantity a line."""
        lines = [
            f"{self.title} of {self.tokens:.4g} tokens on {self.gpus} devices; P10, point and P90 of {self.samples:,} samples"
        ]
        lines += [f"  {name:28s} {band.p10:14.6g} {band.point:14.6g} {band.p90:14.6g}" for name, band in self.bands.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def whole_run(launch: Launch, speed: SpeedForecast, fleet: Fleet, tokens: float, business: Business | None = None) -> RunForecast:
    """Return what a run of so many tokens comes to.

    Raises InputError for what means nothing, and for a price that was asked for and is unknown.
    """
    how = _checked(business or Business())
    steps = math.ceil(number(tokens, "tokens", minimum=1.0, maximum=1e18) / (launch.global_batch * launch.recipe.seq_len))
    chain = _Chain(launch, speed, fleet, how, steps)
    point = chain.walk(chain.points())
    sampled = chain.walk(chain.sampled(), random=True)
    bands = {name: Band(float(value), *quantiles(sampled[name])) for name, value in point.items() if name in _QUANTITIES}
    shares = {name: float(point[f"{name}_share"]) for name in ("useful", "checkpoints", "rework", "restarts")}
    useful = shares["useful"]
    return RunForecast(
        feasible=useful >= _LEAST_USEFUL,
        tokens=tokens,
        steps=steps,
        gpus=fleet.total_accelerators,
        nodes=fleet.nodes,
        checkpoint_size_bytes=chain.terms.total,
        bands=bands,
        losses=shares,
        region_name=chain.site.name,
        boundary=chain.site.boundary,
        mode=how.mode,
        samples=how.samples,
        notes=chain.notes(point),
        assumed=chain.assumed(),
        sources=chain.sources(),
        _samples={name: sampled[name] for name in bands},
    )


_QUANTITIES: Final = (
    "step_s",
    "productive_days",
    "checkpoint_block_s",
    "checkpoint_interval_s",
    "mtbf_hours",
    "interruptions",
    "goodput_ratio",
    "wall_days",
    "gpu_hours",
    "it_energy_kwh",
    "total_energy_kwh",
    "operational_carbon_kg",
    "embodied_carbon_kg",
    "water_usage_liters",
    "cost_usd",
)
"""Of the chain, in its order."""


def _checked(how: Business) -> Business:
    """Return the settings with every value checked."""
    choice(how.checkpoint_mode, "checkpoint_mode", SAVING)
    choice(how.mode, "mode", MODES)
    positive_int(how.samples, "samples", minimum=100, maximum=1_000_000)
    for name, least, most in (
        ("recovery_time_s", 0.0, _LONGEST_S),
        ("checkpoint_interval_s", 1e-3, _LONGEST_S),
        ("storage_bytes_per_s", 1.0, 1e15),
        ("node_power_w", 1e-3, 1e9),
    ):
        if getattr(how, name) is not None:
            number(getattr(how, name), name, minimum=least, maximum=most)
    return how


class _Chain:
    """The ranges of a run, looked up once, and the formulas between them."""

    def __init__(self, launch: Launch, speed: SpeedForecast, fleet: Fleet, how: Business, steps: int) -> None:
        self.speed, self.fleet, self.how, self.steps = speed, fleet, how, steps
        self.gpus = fleet.total_accelerators
        self.terms = checkpoint_terms(launch.workload.architecture, speed.run)
        self.copy, self.copy_notes = copy_rate(fleet.accelerator)
        self.rate = node_rate(fleet, how.failure_rate, source=how.record)
        self.recovery = restart_range() if how.recovery_time_s is None else _same(how.recovery_time_s)
        self.site: Site = site_of(
            how.region if how.region is not None else fleet.datacenter,
            operator=how.operator,
            boundary=how.boundary,
            pue=how.pue,
            carbon_intensity=how.carbon_intensity,
        )
        self.power = _same(how.node_power_w) if how.node_power_w is not None else node_power(fleet, "training")
        self.energy: tuple[Energy, Energy, Energy] = energy_of(fleet, self.site, "training", how.node_power_w)
        words = {
            "mode": how.mode,
            "provider": how.provider,
            "price_kind": how.price_kind,
            "regime": "training",
            "today": how.today,
        }
        prices = {
            "node_price_usd": how.node_price_usd,
            "price_usd_per_device_hour": how.price_usd_per_device_hour,
            "network_usd_per_node": None,
            "node_power_w": how.node_power_w,
        }
        self.no_price = ""
        self.money: Known | None = None
        try:
            self.money = Known(fleet, self.site, words, prices)
        except InputError as error:
            if error.field != "price" or (how.mode, how.provider, how.price_kind) != ("rent", None, "on-demand"):
                raise
            self.no_price = f"cost: the price {error.problem}. {error.hint}"

    # -- inputs ---------------------------------------------------------------------------------------------

    def ranges(self) -> dict[str, Range]:
        """Return everything that is known as a range."""
        constants, site, energy = defaults(), self.site, self.energy
        out = {
            "rate": self.rate,
            "recovery": self.recovery,
            "power": self.power,
            "pue": site.pue,
            "wue": site.wue,
            "grams": site.grams,
            "embodied": _ordered(level.embodied_kg for level in energy),
            "life": _ordered(level.life_years for level in energy),
        }
        for name in ("coordination_s", "copy_share", "load_over_save", "writer_bytes_per_s", "limit_bytes_per_s"):
            one = constants[name]
            out[name] = Range(one["low"], one["value"], one["high"])
        if self.how.storage_bytes_per_s is not None:
            out["limit_bytes_per_s"] = _same(self.how.storage_bytes_per_s)
            out["writer_bytes_per_s"] = _same(self.how.storage_bytes_per_s)
        if self.money is not None and self.money.rent is not None:
            rent = self.money.rent
            out["rent"] = Range(rent.low, rent.point, rent.high)
        if self.money is not None and self.money.bought is not None:
            out["server"] = self.money.bought.server
            out["written_off"] = _ordered(LIFE_YEARS)
        return out

    def points(self) -> dict[str, Any]:
        """Return the points."""
        return {name: value.point for name, value in self.ranges().items()} | {"step": self.speed.step_s}

    def sampled(self) -> dict[str, Any]:
        """Return samples of everything."""
        import numpy as np  # noqa: PLC0415  # 100 ms

        rng, n = np.random.default_rng(self.how.seed), self.how.samples
        out: dict[str, Any] = {name: from_range(rng, value, n) for name, value in self.ranges().items()}
        out["step"] = from_interval(rng, self.speed.step_s, self.speed.interval_s, n)
        out["rng"] = rng
        return out

    # -- the chain ------------------------------------------------------------------------------------------

    def walk(self, at: Mapping[str, Any], *, random: bool = False) -> dict[str, Any]:
        """Return every quantity from the step to the money; `random`: the number of failures too is drawn."""
        how, nodes = self.how, self.fleet.nodes
        storage = Storage(float(self.gpus), at["writer_bytes_per_s"], at["limit_bytes_per_s"])
        assumed = Assumed(at["coordination_s"], at["copy_share"], at["load_over_save"])
        times = save_times(self.terms.total, self.terms.total / self.gpus, self.copy, storage, how.checkpoint_mode, assumed)
        mtbf = job_mtbf_h(at["rate"], nodes) * _HOUR
        recovery = maximum(at["recovery"], times.load)
        best = best_interval(times.block, mtbf, times.lag)
        interval = best if how.checkpoint_interval_s is None else maximum(how.checkpoint_interval_s + 0.0 * mtbf, times.lag)
        shares = losses(interval, times.block, mtbf, recovery, times.lag)
        useful = maximum(shares.useful, 1e-12)
        productive = self.steps * at["step"]
        wall = productive / useful
        count = wall / mtbf
        if random:
            wall, count = _drawn(at["rng"], productive, wall, productive * times.block / interval, count)
        days = wall / _DAY
        settings = {
            "duration_days": days,
            "nodes": nodes,
            "utilisation": 1.0,
            "node_power_w": at["power"],
            "pue": at["pue"],
            "wue": at["wue"],
            "carbon_intensity": at["grams"],
            "life_years": at["life"],
        }
        spent = footprint(settings, replace(self.energy[1], embodied_kg=at["embodied"]))
        out = {
            "step_s": at["step"],
            "productive_days": productive / _DAY,
            "checkpoint_block_s": times.block,
            "checkpoint_interval_s": interval,
            "mtbf_hours": mtbf / _HOUR,
            "interruptions": count,
            "goodput_ratio": productive / wall,
            "wall_days": days,
            "gpu_hours": wall / _HOUR * self.gpus,
            "useful_share": shares.useful,
            "checkpoints_share": shares.checkpoints,
            "rework_share": shares.rework,
            "restarts_share": shares.restarts,
            "lag_s": times.lag,
        }
        out |= {name: spent[name] for name in spent if name in _QUANTITIES}
        if self.money is not None:
            out["cost_usd"] = self._cost(settings, at)
        return out

    def _cost(self, settings: Mapping[str, Any], at: Mapping[str, Any]) -> Value:
        """Return the money that a time takes."""
        assert self.money is not None  # noqa: S101  # the caller looked
        more = {
            "kwh_price": _NAN,
            "node_price_usd": at.get("server", _NAN),
            "network_usd_per_node": _NAN,
            "price_usd_per_device_hour": at.get("rent", _NAN),
            "life_years": at.get("written_off", _NAN),
            "discount_rate": 0.08,
            "residual_fraction": 0.0,
            "maintenance_fraction": 0.05,
            "staff_usd_per_year": 0.0,
            "colocation_usd_per_kw_month": 0.0,
            "tokens_per_second": _NAN,
        }
        return self.money.answers(dict(settings) | more, "point")["tco_usd"]

    # -- words ----------------------------------------------------------------------------------------------

    def notes(self, point: Mapping[str, Any]) -> list[str]:
        """Say what the chain takes for granted and leaves out."""
        out = [*self.terms.notes, *self.copy_notes, *self.rate.notes, *self.site.notes, *self.power.notes]
        if self.no_price:
            out.append(self.no_price)
        if self.money is not None and self.money.rent is not None:
            out += [f"rent: {note}" for note in self.money.rent.notes]
        if self.money is not None and self.money.bought is not None:
            out += self.money.bought.notes
        timeout = defaults()["timeout_s"]["value"]
        if point["checkpoint_block_s"] > timeout:
            out.append(
                f"a checkpoint blocks longer than the {timeout:g} s that collectives wait: ranks that wait would end the job"
            )
        if point["useful_share"] < _LEAST_USEFUL:
            out.append("no progress: the job fails more often than it can save and start again")
        out.append(
            "band: every range drawn with its point as the likeliest, the step from its 90 % interval, failures as Poisson"
            " events; independent of one another"
        )
        out.append(
            "planned stops, waiting for spare nodes or in a queue, evaluations and runs that are thrown away are not in it"
        )
        return list(dict.fromkeys(out))

    def assumed(self) -> tuple[str, ...]:
        """Return what was left open, with what was taken for it."""
        how, out = self.how, list(self.site.assumed)
        if how.recovery_time_s is None:
            out.append(f"{fmt_s(self.recovery.point)} from a failure until training goes on, as published")
        if how.checkpoint_interval_s is None:
            out.append("checkpoints as often as loses least")
        if how.storage_bytes_per_s is None:
            constants = defaults()
            limit, writer = constants["limit_bytes_per_s"], constants["writer_bytes_per_s"]
            out.append(f"storage takes in {writer['value'] / GB:g} GB/s a rank, {limit['value'] / GB:g} GB/s at most")
        out.append(f"checkpoints {how.checkpoint_mode}")
        return tuple(out)

    def sources(self) -> tuple[str, ...]:
        """Return where the ranges come from."""
        held = (*self.rate.sources, *self.power.sources, *self.recovery.sources)
        return tuple(dict.fromkeys(f"{one.title}, {one.url}" for one in held))


def _drawn(rng: Any, productive: Any, wall: Any, saving: Any, count: Any) -> tuple[Any, Any]:
    """Return wall time and number of failures of single runs: failures are Poisson, each costs what one costs on average."""
    import numpy as np  # noqa: PLC0415

    each = np.maximum(wall - productive - saving, 0.0) / np.maximum(count, 1e-300)
    met = rng.poisson(np.minimum(count, 1e15))
    return productive + saving + met * each, met


def _ordered(values: Iterable[float]) -> Range:
    """Return the range of a low end, a point and a high end in any order."""
    low, point, high = sorted(values)
    return Range(low, point, high)


def _same(value: float) -> Range:
    return Range(value, value, value)
