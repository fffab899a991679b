"""The chain of a whole run, from the step to the money: one formula a link, for the points and for thousands of samples alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from foretell.core.failing import node_rate
from foretell.core.footprint import Energy, energy_of
from foretell.core.footprint import answers as footprint
from foretell.core.pricing import LIFE_YEARS, OPEN, USUAL, Known
from foretell.core.saving import copy_rate
from foretell.core.site import Site, site_of
from foretell.core.speed import SpeedForecast
from foretell.cost.arrays import Value, maximum
from foretell.cost.checkpoint import checkpoint_terms
from foretell.errors import InputError
from foretell.machine.fleet import Fleet
from foretell.operations.failures import job_mtbf_h
from foretell.operations.goodput import best_interval, losses
from foretell.operations.power import node_power
from foretell.operations.ranges import Range
from foretell.operations.restart_times import restart_range
from foretell.operations.saving import Assumed, Storage, defaults, save_times
from foretell.plan.business import Business
from foretell.plan.launch import Launch
from foretell.plan.sampling import from_interval, from_range
from foretell.units import GB, fmt_s

__all__ = ["LEAST_USEFUL", "NEVER_DONE", "QUANTITIES", "Chain"]

_HOUR: Final = 3600.0
_DAY: Final = 86400.0
LEAST_USEFUL: Final = 0.01
"""Share of the wall time below which a run gets nowhere."""
QUANTITIES: Final = (
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
NEVER_DONE: Final = QUANTITIES[QUANTITIES.index("interruptions") :]
"""Quantities that a run without progress does not have."""


class Chain:
    """The ranges of a run, looked up once, and the formulas between them."""

    def __init__(self, launch: Launch, speed: SpeedForecast, fleet: Fleet, how: Business, steps: int) -> None:
        self.speed, self.fleet, self.how, self.steps = speed, fleet, how, steps
        self.gpus = fleet.total_accelerators
        idle = self.gpus - launch.gpus
        self.spare = f"whole nodes are counted: {idle} of their {self.gpus} accelerators are idle" if idle else None
        self.terms = checkpoint_terms(launch.workload.architecture, speed.run)
        self.copy, self.copy_notes = copy_rate(fleet.accelerator)
        self.rate = node_rate(fleet, how.failure_rate, source=how.record)
        self.recovery = restart_range() if how.recovery_time_s is None else Range.exact(how.recovery_time_s)
        self.site: Site = site_of(
            how.region if how.region is not None else fleet.datacenter,
            operator=how.operator,
            boundary=how.boundary,
            pue=how.pue,
            carbon_intensity=how.carbon_intensity,
        )
        self.power = Range.exact(how.node_power_w) if how.node_power_w is not None else node_power(fleet, "training")
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
            out["limit_bytes_per_s"] = Range.exact(self.how.storage_bytes_per_s)
            out["writer_bytes_per_s"] = Range.exact(self.how.storage_bytes_per_s)
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
        """Return samples of everything, each from a stream of its own: what is known of one input does not move the others'."""
        import numpy as np  # noqa: PLC0415  # 100 ms

        ranges, n, seed = self.ranges(), self.how.samples, np.random.SeedSequence(self.how.seed)
        step, grid, failures, *streams = (np.random.default_rng(child) for child in seed.spawn(3 + len(ranges)))
        out: dict[str, Any] = {
            name: from_range(rng, value, n) for rng, (name, value) in zip(streams, ranges.items(), strict=True)
        }
        if self.site.grids:  # nobody named a place: any of them, as likely
            out["grams"] = grid.choice(np.asarray(self.site.grids), n)
        out["step"] = from_interval(step, self.speed.step_s, self.speed.interval_s, n)
        out["rng"] = failures
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
        out |= {name: spent[name] for name in spent if name in QUANTITIES}
        if self.money is not None:
            out["cost_usd"] = self._cost(settings, at)
        return out

    def _cost(self, settings: Mapping[str, Any], at: Mapping[str, Any]) -> Value:
        """Return the money that a time takes."""
        assert self.money is not None  # noqa: S101  # the caller looked
        prices = {"node_price_usd": "server", "price_usd_per_device_hour": "rent", "life_years": "written_off"}
        drawn = {name: at[own] for name, own in prices.items() if own in at}
        return self.money.answers(OPEN | USUAL | dict(settings) | drawn, "point")["tco_usd"]

    # -- words ----------------------------------------------------------------------------------------------

    def notes(self, point: Mapping[str, Any]) -> list[str]:
        """Say what the chain takes for granted and leaves out."""
        out = [] if self.spare is None else [self.spare]
        out += [*self.terms.notes, *self.copy_notes, *self.rate.notes, *self.site.notes, *self.power.notes]
        if self.no_price:
            out.append(self.no_price)
        if self.how.checkpoint_mode == "memory":
            out.append("checkpoints in the memory of hosts are taken to survive every failure: on a second host each, or storage")
        if self.money is not None and self.money.rent is not None:
            out += [f"rent: {note}" for note in self.money.rent.notes]
        if self.money is not None and self.money.bought is not None:
            out += self.money.bought.notes
        timeout = defaults()["timeout_s"]["value"]
        if point["checkpoint_block_s"] > timeout:
            out.append(
                f"a checkpoint blocks longer than the {timeout:g} s that collectives wait: ranks that wait would end the job"
            )
        if point["useful_share"] < LEAST_USEFUL:
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
