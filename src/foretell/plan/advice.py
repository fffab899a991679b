"""Advice: every switch is tried on the forecast itself, and what is said of it is what that answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from foretell.core.forecast import Forecast
from foretell.errors import ForetellError
from foretell.plan.inverse import Answer, largest_micro_batch, longest_sequence
from foretell.plan.launch import Launch
from foretell.plan.switches import SAVING, Flags, Switch
from foretell.recipe import Recompute

__all__ = ["Suggestion", "advise"]

_WORTH = 0.005
"""Share of the total that a switch must save to be named."""
_TOGETHER = 6
"""Most switches that are put together where none helps alone."""
_METHOD = 5
"""Rank from which on a switch changes what is trained or bought: never put together with others."""


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


def advise(launch: Launch, now: Forecast) -> list[Suggestion]:
    """Return what to change where the run does not surely fit, else what more it could do; best first."""
    if now.verdict == "fits":
        return list(_relax(launch, now))
    tried = _mildest([(switch, made) for switch in _switches(launch) if (made := _try(switch, now)) is not None])
    tried.sort(key=lambda pair: (not pair[1].fits, pair[0].rank if pair[1].fits else 0, -pair[1].saved_bytes))
    singles = [made for _, made in tried]
    if any(pair[1].fits and pair[0].rank < _METHOD for pair in tried):
        return singles
    both = _together(launch, now)
    return ([both] if both is not None else []) + singles


def _mildest(tried: list[tuple[Switch, Suggestion]]) -> list[tuple[Switch, Suggestion]]:
    """Keep of each group the mildest that fits, or the strongest where none does."""
    kept: dict[str, tuple[Switch, Suggestion]] = {}
    for number, pair in enumerate(tried):
        key = pair[0].group or f"alone {number}"
        if key not in kept or not kept[key][1].fits:
            kept[key] = pair
    return list(kept.values())


def _switches(launch: Launch) -> Iterator[Switch]:
    """Yield every switch that applies."""
    for maker in SAVING:
        yield from maker(launch)


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


def _together(launch: Launch, now: Forecast) -> Suggestion | None:
    """Put the switch that saves most on top of the last one until it fits; None where that is not enough."""
    here, total = launch, now.total_bytes
    flags: Flags = {}
    names: list[str] = []
    prices: list[str] = []
    for _ in range(_TOGETHER):
        best: tuple[float, Switch, Forecast] | None = None
        for switch in _switches(here):
            if switch.rank >= _METHOD:
                continue
            try:
                then = switch.launch.forecast()
            except ForetellError:
                continue
            # what fits beats what saves most; among those, the cheaper one
            score = float(10 - switch.rank) * 1e18 if then.verdict == "fits" else total - then.total_bytes
            if best is None or score > best[0]:
                best = (score, switch, then)
        if best is None or best[0] <= _WORTH * total:
            return None
        _, switch, then = best
        here, total = switch.launch, then.total_bytes
        flags |= switch.flags
        names.append(switch.change)
        prices.append(switch.price)
        if then.verdict == "fits":
            saved = now.total_bytes - total
            price = "; ".join(dict.fromkeys(prices))
            return Suggestion("together", " + ".join(names), flags, price, saved, total, then.verdict)
    return None


def _relax(launch: Launch, now: Forecast) -> Iterator[Suggestion]:
    """Say what a run that fits could be asked for on top."""
    architecture = launch.workload.architecture
    mode = launch.recipe.recompute.mode
    for less in {"full": ("none", "selective"), "selective": ("none",)}.get(mode, ()):
        recipe = launch.with_recipe(recompute=Recompute(mode=less))  # type: ignore[arg-type]
        switch = Switch(f"recomputation {less}", {"--recompute": less}, "less compute", 0, recipe)
        made = _try(switch, now, "relax")
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
    price = f"uses {total / 2**30:.1f} GiB"
    flags: Flags = {flag: str(answer.value)}
    return Suggestion("relax", change, flags, price, now.total_bytes - total, total, "fits")
