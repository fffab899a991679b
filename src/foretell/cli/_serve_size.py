"""`serve --slo`: targets judged for the deployment that is given, or the fleet that meets them found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._values import listed, one_of, real, whole
from foretell.errors import CombinationError, InputError
from foretell.plan.serving_size import OBJECTIVES, size
from foretell.plan.serving_slo import SloTargets, Target, parse_slo
from foretell.validation import number

if TYPE_CHECKING:
    from foretell.cli._serve_request import ServeRequest
    from foretell.core.serving_forecast import ServingForecast
    from foretell.plan.serving_option import Option
    from foretell.plan.serving_size import Sizing
    from foretell.sim.outcome import Outcome

__all__ = ["Question", "judged", "question", "sized", "sized_request"]

_USUAL: Final = "ttft=2s,itl=200ms"
"""Targets of a fleet where none are given: those of MLPerf Inference's server scenario for Llama 2 70B."""
_SIZES: Final = ("max_gpus", "objective", "price")

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked beside the forecast."""

    targets: SloTargets
    sizing: bool
    """How many accelerators meet them; else whether the given deployment does."""
    assumed: tuple[str, ...] = ()


def question(options: Options) -> Question | None:
    """Return what is asked; InputError for options that answer their own question."""
    text = options["slo"]
    rates = any(options[name] is not None for name in ("rate", "qps"))
    plain = any(options[name] is not None for name in ("batch", "concurrency"))
    arrivals = rates or (options["trace"] is not None and not plain)
    sizing = options["qps"] is not None or (text is not None and arrivals and options["dp"] is None)
    if not sizing:
        for name in _SIZES:
            if options[name] is not None:
                problem = "is of a fleet that is to be found, and none is"
                raise InputError(problem, field=name, value=options[name], hint="Add --slo with --rate or --trace, without --dp")
        if "," in (options["gpu"] or ""):
            problem = "names several, and there is nothing to choose by"
            raise InputError(problem, field="gpu", value=options["gpu"], hint="Add --qps and --slo")
    if text is None and not sizing:
        return None
    for name in ("dp", "prefill_gpus", "draft") if sizing else ():
        if options[name] is not None:
            problem = "is what is asked for" if name == "dp" else "cannot be sized"
            raise CombinationError(
                problem, field=name, value=options[name], hint="Leave it out, or give a rate without --qps and --slo"
            )
    targets = parse_slo(_USUAL if text is None else text)
    return Question(targets, sizing, () if text is not None else (f"targets of MLPerf's server scenario, {_USUAL}",))


def sized(made: ServeRequest, asked: Question, options: Options, *, seed: int) -> Sizing:
    """Return the fleets that meet the targets."""
    demand = made.demand if made.trace is None or made.trace.arrivals is None else made.trace.arrivals
    prices = _prices(options["price"])
    objective = one_of(options["objective"], "objective", OBJECTIVES) or ("cost" if prices else "gpus")
    if objective == "cost" and not prices:
        raise InputError("needs prices", field="objective", value="cost", hint="Add --price h100=2.5")
    quiet = bool(options["json"] or options["quiet"])
    with _progress(quiet=quiet) as progress:
        return size(
            made.workload,
            demand,
            asked.targets,
            hardware=made.gpus,
            recipe=made.recipe,
            tp=None if options["tp"] is None else (made.recipe.tp,),
            max_gpus=whole(options["max_gpus"], "max_gpus"),
            objective=objective,
            prices=prices,
            gpus_per_node=made.node if options["gpus_per_node"] is not None or made.fleet is not None else None,
            efficiency=made.efficiency,
            confirm=made.simulate,
            requests=None if made.trace is not None else made.demand.requests,
            seed=seed,
            progress=progress,
        )


def _prices(text: str | None) -> dict[str, float] | None:
    """Return USD of one accelerator and hour from "h100=2.5,a100=1.2"."""
    if text is None:
        return None
    out = {}
    for part in listed(text, "price"):
        name, _, value = part.partition("=")
        price = real(value.strip(), "price", minimum=0.0) if value.strip() else None
        if not name.strip() or not price:
            raise InputError("is no price", field="price", value=part, allowed="NAME=USD of one GPU and hour, as h100=2.5")
        out[name.strip()] = number(price, "price", minimum=1e-9, maximum=1e6)
    return out


def sized_request(made: ServeRequest, found: Sizing) -> ServeRequest:
    """Return the request with the best fleet as its deployment, or the replica that comes nearest."""
    best = found.best
    if best is not None and best.fleet is not None:
        return replace(made, deployment=best.fleet)
    nearest = next((one.deployment for one in found.options if one.deployment is not None), None)
    return made if nearest is None else replace(made, deployment=nearest)


def judged(
    targets: SloTargets, forecast: ServingForecast, outcome: Outcome | None, option: Option | None = None
) -> dict[str, Any]:
    """Return each target with what was seen of it.

    Means come from the closed form where nothing was played; percentiles from the simulation, or from the ``option`` of a fleet.
    """
    rows = []
    for target in targets:
        seen = _seen(target, forecast, outcome, option)
        met = seen is not None and seen <= target.seconds
        if seen is None and target.metric == "itl" and (outcome is not None or forecast.feasible):
            met = True  # answers of one token
        rows.append({"name": target.name, "metric": target.metric, "statistic": target.statistic, "seconds": target.seconds,
                     "seen_s": seen, "met": met})  # fmt: skip
    by = "simulation" if outcome is not None else "closed form"
    share = None if outcome is None else outcome.slo_share
    return {"targets": rows, "met": all(row["met"] for row in rows), "judged_by": by, "slo_share": share}


def _seen(target: Target, forecast: ServingForecast, outcome: Outcome | None, option: Option | None) -> float | None:
    if outcome is not None:
        return target.seen(outcome)
    if option is not None:
        latencies: Mapping[str, float] = option.latencies
        return latencies.get(target.name)
    means = {"ttft": forecast.ttft_s, "itl": forecast.itl_s, "e2e": forecast.request_s}
    return means[target.metric]


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give what is told of progress: a bar on stderr that is gone in the end; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("playing the best fleets"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("playing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
