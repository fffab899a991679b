"""Advice: every switch is tried on the forecast itself, and what is said of it is what that answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foretell.core.forecast import Forecast
from foretell.errors import ForetellError
from foretell.plan._tries import LEAST, METHOD, Tries, fold_of
from foretell.plan.inverse import Answer, largest_micro_batch, longest_sequence
from foretell.plan.launch import Launch
from foretell.plan.switches import SAVING, Flags, Switch
from foretell.recipe import Recompute
from foretell.units import GIB

__all__ = ["Advice", "Suggestion", "advise", "remarks"]

_WORTH = 0.005
"""Share of the total that a switch must save to be named."""
_TOGETHER = 6
"""Most switches that are put together where none helps alone."""
_COMBINED = 900
"""Operators that may be folded to put switches together."""
_REPLAYED = 100
"""Operators that may be replayed to confirm what fits, at about 1.5 ms each."""

_BOUGHT = ("tp", "gpus")
"""Groups of switches that ask for more accelerators at that rank."""


@dataclass(frozen=True)
class Suggestion:
    """One change that was tried, and what the forecast said of it. Sizes in bytes per accelerator."""

    kind: str
    """reduce (one switch), together (several), or relax (it fits: what more could be asked of it)."""
    change: str
    flags: Flags = field(hash=False)
    price: str
    saved_bytes: float
    total_bytes: float
    verdict: str

    @property
    def fits(self) -> bool:
        """Whether the run fits with it."""
        return self.verdict == "fits"

    @property
    def command(self) -> str:
        """The change as it is written on the command line."""
        return " ".join(name if value is None else f"{name} {value}" for name, value in self.flags.items())

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON-able data."""
        return {
            "kind": self.kind,
            "change": self.change,
            "flags": self.command,
            "price": self.price,
            "saved_bytes": round(self.saved_bytes),
            "total_bytes": round(self.total_bytes),
            "verdict": self.verdict,
            "fits": self.fits,
        }


class Advice(list[Suggestion]):
    """Suggestions, best first; `untried`: switches that a large model left no time for."""

    untried: int = 0


def advise(launch: Launch, now: Forecast) -> Advice:
    """Return what to change where the run does not surely fit, else what more it could do; best first."""
    if now.verdict == "fits":
        return Advice(_relax(launch, now))
    tries = Tries(launch)
    switches = _switches(launch)
    chosen = tries.affordable(switches, now)
    tried = _mildest([(switch, made) for switch in chosen if (made := _try(switch, now)) is not None])
    tried.sort(key=_order)
    if now.levels.replayed:
        most = max(1, _REPLAYED // tries.operators)
        tried = [(switch, _confirmed(switch, made, now)) for switch, made in tried[:most]] + tried[most:]
        tried.sort(key=_order)
    singles = Advice(made for _, made in tried)
    singles.untried = len(switches) - len(chosen)
    if not any(pair[1].fits and pair[0].rank < METHOD for pair in tried):
        saved = {switch.group or switch.change: made.saved_bytes for switch, made in tried}
        only = bool(singles.untried)
        tries.most = max(LEAST - 1, _COMBINED // tries.operators)
        both = _together(launch, now, tries, saved, only=only) or _together(launch, now, tries, saved, only=only, buy=True)
        if both is not None:
            singles.insert(0, both)
    return singles


def remarks(now: Forecast, advice: Advice) -> list[str]:
    """Return what to know before any advice: weights that no card holds, slack that is given back, switches not tried."""
    out = []
    have = now.available_bytes
    weights = next((float(entry["allocated_bytes"]) for entry in now.timeline if entry["phase"] == "load"), 0.0)
    if weights > have:
        out.append(
            f"the weights alone take {weights / GIB:.2f} GiB of each GPU, more than its {have / GIB:.2f} GiB: "
            "only dividing, quantising or offloading them can help"
        )
    slack = now.breakdown.get("allocator_slack", 0.0)
    if not now.fits and slack > 0 and now.total_bytes > have >= now.total_bytes - slack:
        out.append(
            f"PyTorch gives cached blocks back before it fails: of the {slack / GIB:.2f} GiB of slack some may be spared, "
            "at the price of slow steps"
        )
    if advice.untried:
        out.append(f"{advice.untried} further changes were not tried, as this model has many different layers")
    return out


def _order(pair: tuple[Switch, Suggestion]) -> tuple[int, float, float]:
    """Order what fits, then what may, each cheapest first; what is not enough alone, by what it saves."""
    switch, made = pair
    place = {"fits": 0, "uncertain": 1}.get(made.verdict, 2)
    return place, switch.rank if place < 2 else 0, -made.saved_bytes


def _mildest(tried: list[tuple[Switch, Suggestion]]) -> list[tuple[Switch, Suggestion]]:
    """Keep of each group the mildest that fits, or the strongest where none does."""
    kept: dict[str, tuple[Switch, Suggestion]] = {}
    for number, pair in enumerate(tried):
        key = pair[0].group or f"alone {number}"
        if key not in kept or not kept[key][1].fits:
            kept[key] = pair
    return list(kept.values())


def _switches(launch: Launch) -> list[Switch]:
    """Return every switch that applies."""
    return [switch for maker in SAVING for switch in maker(launch)]


def _try(switch: Switch, now: Forecast, kind: str = "reduce") -> Suggestion | None:
    """Forecast with the switch; None where it is refused or saves nothing worth naming."""
    try:
        then = switch.launch.forecast()
    except ForetellError:
        return None
    saved = now.total_bytes - then.total_bytes
    if kind == "reduce" and saved < _WORTH * now.total_bytes:
        return None
    return Suggestion(kind, switch.change, switch.flags, switch.price, saved, then.total_bytes, then.verdict)


def _confirmed(switch: Switch, made: Suggestion, now: Forecast) -> Suggestion:
    """Ask again with the allocator replayed, as the run itself was."""
    then = switch.launch.replayed()
    total = then.total_bytes
    return replace(made, saved_bytes=now.total_bytes - total, total_bytes=total, verdict=then.verdict)


def _together(
    launch: Launch, now: Forecast, tries: Tries, saved: dict[str, float], *, only: bool, buy: bool = False
) -> Suggestion | None:
    """Put the switch that saves most on top of the last one until it fits; None where that is not enough.

    `saved`: what switches saved alone; those that saved most are tried first, and `only`: no others.
    `buy`: more accelerators may be asked for.
    """
    here, total = launch, now.total_bytes
    flags: Flags = {}
    parts: dict[str, Switch] = {}
    doubted = False
    for _ in range(_TOGETHER):
        best: tuple[float, Switch, Forecast] | None = None
        switches = [switch for switch in _switches(here) if switch.rank < METHOD or (buy and switch.group in _BOUGHT)]
        switches = [switch for switch in switches if not only or (switch.group or switch.change) in saved]
        switches.sort(key=lambda switch: -saved.get(switch.group or switch.change, 0.0))
        for switch in switches:
            cost = tries.costs(switch.launch)
            if cost > tries.most:
                continue
            tries.most -= cost
            tries.known.add(fold_of(switch.launch))
            try:
                then = switch.launch.forecast()
            except ForetellError:
                continue
            # what fits beats what saves most; among those, the cheaper one (unless a replay has disagreed before)
            fits = then.verdict == "fits" and not doubted
            score = float(10 - switch.rank) * 1e18 if fits else total - then.total_bytes
            if best is None or score > best[0]:
                best = (score, switch, then)
        if best is None or best[0] <= _WORTH * total:
            return None
        _, switch, then = best
        here = switch.launch
        if then.verdict == "fits" and now.levels.replayed:
            then = here.replayed()
            here, doubted = here.tuned(then), True
        total = then.total_bytes
        flags |= switch.flags
        parts[switch.group or switch.change] = switch  # a stronger degree takes the place of a milder one
        if then.verdict == "fits":
            made = parts.values()
            price = "; ".join(dict.fromkeys(part.price for part in made if part.rank)) or "no cost in speed"
            change = " + ".join(part.change for part in made)
            saving = now.total_bytes - then.total_bytes
            return Suggestion("together", change, flags, price, saving, then.total_bytes, then.verdict)
    return None


def _relax(launch: Launch, now: Forecast) -> Iterator[Suggestion]:
    """Say what a run that fits could be asked for on top."""
    architecture = launch.workload.architecture
    mode = launch.recipe.recompute.mode
    for less in {"full": ("none", "selective"), "selective": ("none",)}.get(mode, ()):
        recipe = launch.with_recipe(recompute=Recompute(mode=less))  # type: ignore[arg-type]
        switch = Switch(f"recomputation {less}", {"--recompute": less}, "less compute", 0, recipe)
        made = _try(switch, now, "relax")
        if made is not None and made.fits and now.levels.replayed:
            made = _confirmed(switch, made, now)
        if made is not None and made.fits:
            yield made
            break
    answer = largest_micro_batch(launch)
    if answer.value is not None and answer.value > launch.recipe.micro_batch:
        yield _stretched(answer, now, "largest micro-batch that fits", "--micro-batch")
    if launch.reads_tokens:
        answer = longest_sequence(launch, limit=architecture.max_positions)
        if answer.value is not None and answer.value > launch.recipe.seq_len:
            yield _stretched(answer, now, "longest sequence that fits", "--seq-len")


def _stretched(answer: Answer, now: Forecast, change: str, flag: str) -> Suggestion:
    """Make a suggestion of an inverse answer."""
    total = now.total_bytes if answer.forecast is None else answer.forecast.total_bytes
    price = f"uses {total / GIB:.2f} GiB"
    flags: Flags = {flag: str(answer.value)}
    return Suggestion("relax", change, flags, price, now.total_bytes - total, total, "fits")
