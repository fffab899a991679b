"""`foretell serve`: TTFT, ITL, throughput, KV capacity; with targets, how many accelerators they take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, SERVE, add
from foretell.cli._values import whole
from foretell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from foretell.cli._serve_request import ServeRequest
    from foretell.cli._serve_size import Question
    from foretell.core.serving_forecast import ServingForecast
    from foretell.plan.serving_advice import Fix
    from foretell.plan.serving_curve import CurvePoint
    from foretell.sim.outcome import Outcome

__all__ = ["answered", "command"]

_HUB: Final = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)/?")
"""Address of a model -> what engines call it."""
_OPTIONS: Final = 24
"""Fleets that the object lists."""
_FEWEST: Final = 2
"""Points of a curve."""


def _serve(model: str, **options: Any) -> int:  # text or flags
    """Say how fast MODEL is served: time to first token (TTFT), time between tokens (ITL), throughput, what fits into memory.

    MODEL is a catalog name, a config.json, or a folder that holds one. Times are means unless a line says otherwise.
    """
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415  # the rooms below: 300 ms
    from foretell.cli._serve_request import serve_request  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    _check_output(options)
    asked = _question(options)
    made = serve_request(model, options)
    document = envelope("serve", **answered(model, options, made, asked))
    if options["json"]:
        print_json(document)
    else:
        from foretell.report.serve_screen import headline, show  # noqa: PLC0415

        if options["quiet"]:
            console().print(headline(shown(document)))
        else:
            show(shown(document), console())
    return 0 if _good(document["result"]) else 1


def _good(result: dict[str, Any]) -> bool:
    """Whether the answer is yes: it fits, keeps up with what arrives and meets the targets."""
    if result["sizing"] is not None:
        return bool(result["sizing"]["feasible"])
    return bool(result["starts"] and result["keeps_up"] and (result["slo"] is None or result["slo"]["met"]))


def _question(options: dict[str, Any]) -> Question | None:
    """Return what is asked beside the forecast; the rooms of sizing are only imported where they are."""
    if not any(options[name] for name in ("slo", "qps", "max_gpus", "objective", "price")) and "," not in (options["gpu"] or ""):
        return None
    from foretell.cli._serve_size import question  # noqa: PLC0415

    return question(options)


def answered(model: str, options: dict[str, Any], made: ServeRequest, asked: Question | None) -> dict[str, Any]:
    """Return inputs, result, notes and sources of what was asked."""
    from foretell.cli._effects import idle_options  # noqa: PLC0415
    from foretell.cli._serve_inputs import serve_inputs  # noqa: PLC0415
    from foretell.report.serve import result_of  # noqa: PLC0415

    seed = whole(options["seed"], "seed", minimum=0, maximum=2**63) or 0
    quiet = bool(options["quiet"])
    fleets = None
    if asked is not None and asked.sizing:
        from foretell.cli._serve_size import sized, sized_request  # noqa: PLC0415

        fleets = sized(made, asked, options, seed=seed)
        made = sized_request(made, fleets)
    forecast, apart = _forecast(made)
    outcome = None
    if fleets is None or fleets.feasible:
        outcome = _played(made, forecast, asked, seed=seed, quiet=quiet or bool(options["json"]))
    slo = None
    if asked is not None:
        from foretell.cli._serve_size import judged  # noqa: PLC0415

        slo = judged(asked.targets, forecast, outcome, None if fleets is None else fleets.options[0])
    points = _points(made, fine=False) if not quiet and apart is None else []
    result = result_of(
        forecast,
        made.demand,
        points,
        outcome,
        split=apart,
        slo=slo,
        sizing=None if fleets is None else fleets.to_dict(_OPTIONS),
        launch=_launch(model, made),
        fixes=_fixes(made, forecast.feasible) if not options["no_advice"] and fleets is None else (),
        seed=seed,
        assumed=[*dict.fromkeys((*made.assumed, *(asked.assumed if asked is not None else ()), *forecast.assumed))],
    )
    inputs = serve_inputs(model, options, made)
    about = [] if options["plot"] is None else _draw(made, result, inputs, options["plot"], apart=apart is not None)
    idle = [] if quiet else idle_options(options, SERVE, lambda tried: _tried(model, tried, made))
    if idle:
        about.insert(0, f"given, and without effect on this answer: {', '.join(idle)}")
    if outcome is not None or (asked is not None and asked.sizing):
        about.append(_tails(forecast.regime))
    said = [*about, *made.notes, *(fleets.notes if fleets is not None else ()), *(outcome.notes if outcome is not None else ())]
    return {
        "inputs": inputs,
        "result": result,
        "notes": [*dict.fromkeys((*said, *made.deployment.capacity.notes, *forecast.notes))],
        "sources": [*forecast.sources, made.deployment.resolved.engine.source],
    }


def _tails(regime: str) -> str:
    """Say how far measured percentiles have been from such ones."""
    from foretell.cost.serving_host import interval_of  # noqa: PLC0415

    ends = [interval_of(regime, metric) for metric in ("ttft_p99", "itl_p99")]
    first, between = (f"{low:.2g} to {high:.2g}" for low, high in ends)
    return f"p99 of nine in ten measured servers was {first} (TTFT) and {between} (ITL) times such a forecast: keep room"


def _forecast(made: ServeRequest) -> tuple[ServingForecast, dict[str, Any] | None]:
    """Return the closed form's answer, and what both sides do where prompts have servers of their own."""
    from foretell.core.serving_forecast import serve  # noqa: PLC0415

    if made.prefill is None:
        return serve(made.deployment, made.steady), None
    from foretell.core.serving_split import serve_split  # noqa: PLC0415
    from foretell.report.serve_split import joined, split_of  # noqa: PLC0415

    both = serve_split(made.prefill.deployment, made.deployment, made.steady, made.prefill.bytes_per_s)
    return joined(both), split_of(both)


def _played(made: ServeRequest, forecast: ServingForecast, asked: Question | None, *, seed: int, quiet: bool) -> Outcome | None:
    """Return what a simulation says, where one is asked for or targets need it: percentiles that no fleet's sizing has."""
    needs = asked is not None and not asked.sizing and any(target.statistic != "mean" for target in asked.targets)
    if not (made.simulate or needs) or not forecast.feasible:
        return None
    from foretell.cli._serve_play import played  # noqa: PLC0415  # SimPy: 50 ms

    return played(made, forecast, seed=seed, slo=None if asked is None else asked.targets.tightest, quiet=quiet)


def _points(made: ServeRequest, *, fine: bool) -> list[CurvePoint]:
    from foretell.plan.serving_curve import curve  # noqa: PLC0415

    return curve(made.deployment, made.demand, fine=fine)


def _launch(model: str, made: ServeRequest) -> dict[str, Any] | None:
    """Return the command that starts it; none where prompts have servers of their own, as no two engines join them alike."""
    if made.prefill is not None or not made.deployment.capacity.feasible:
        return None
    from foretell.plan.serving_flags import launch_command  # noqa: PLC0415

    command = launch_command(made.deployment, model=_hub(model), draft=None if made.draft is None else _hub(made.draft))
    if command is None:
        return None
    return command.to_dict() | {"files": {name: text.splitlines() for name, text in command.files}}


def _hub(model: str) -> str:
    """Return the name that the model has where engines fetch it, or what was given."""
    from foretell.catalog.loader import model_entry  # noqa: PLC0415
    from foretell.errors import CatalogError  # noqa: PLC0415

    if "/" in model:
        return model
    try:
        url = str((model_entry(model).get("source") or {}).get("url"))
    except CatalogError:
        return model
    found = _HUB.fullmatch(url)
    return model if found is None else found[1]


def _fixes(made: ServeRequest, feasible: bool) -> list[Fix]:
    """Return what would make it fit, where it does not."""
    found = made.deployment
    if feasible and found.capacity.holds_longest:
        return []
    from foretell.plan.serving_advice import fixes  # noqa: PLC0415

    return fixes(found, made.recipe, made.demand.traffic, node=made.node)


def _draw(made: ServeRequest, result: dict[str, Any], inputs: dict[str, Any], path: str, *, apart: bool) -> list[str]:
    """Draw the curve; a note where there is none."""
    from foretell.report.serve_plot import draw  # noqa: PLC0415
    from foretell.report.serve_screen import title  # noqa: PLC0415

    points = [] if apart else _points(made, fine=True)
    if len(points) < _FEWEST:
        return ["no picture: nothing is served that a curve could show"]
    draw(result, points, path, title=title({"result": result, "inputs": inputs}))
    return []


def _tried(model: str, options: dict[str, Any], made: ServeRequest) -> tuple[dict[str, Any], tuple[Callable[[], Any], ...]]:
    """Return the inputs that options come to, and what gives the answer to be compared."""
    from foretell.cli._serve_inputs import serve_inputs  # noqa: PLC0415
    from foretell.cli._serve_request import serve_request  # noqa: PLC0415
    from foretell.core.serving_forecast import serve  # noqa: PLC0415

    tried = serve_request(model, options, made.trace)
    reads = tried.prefill
    apart = ("notes", "assumed")
    return serve_inputs(model, options, tried), (
        lambda: tried.notes,
        lambda: {name: value for name, value in serve(tried.deployment, tried.steady).to_dict().items() if name not in apart},
        lambda: tried.deployment.capacity.ledger,
        lambda: None if reads is None else (reads.bytes_per_s, reads.deployment.recipe, reads.deployment.hardware.id),
        lambda: (tried.demand, tried.deployment.limits) if tried.simulate else None,  # what a simulation depends on
    )


def _check_output(options: dict[str, Any]) -> None:
    """Refuse what only the output would show too late."""
    path = options["plot"]
    if path is not None:
        from foretell.report.serve_plot import SUFFIXES  # noqa: PLC0415

        if not Path(path).resolve().parent.is_dir():
            raise InputError("lies in a folder that does not exist", field="plot", value=path)
        if not path.lower().endswith(SUFFIXES):
            raise InputError("must end in one of these", field="plot", value=path, allowed=SUFFIXES)
    if options["seed"] is not None and not (options["simulate"] or options["burst"] or options["trace"] or options["slo"]):
        raise InputError("is of a simulation, and there is none", field="seed", value=options["seed"], hint="Add --simulate")


command = Verb(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    params=[click.Argument(["model"])],
    examples=(
        "foretell serve llama-3-8b",
        "foretell serve llama-3.1-70b --tp 4 --concurrency 64 --input-tokens 2000",
        "foretell serve llama-3-8b --rate 5 --simulate",
        "foretell serve llama-3-8b --qps 40 --slo ttft=500ms,itl=50ms",
        "foretell serve llama-3-8b --trace requests.csv --slo ttft=1s,itl=50ms",
        "foretell serve deepseek-v3 --gpu h200 --tp 8 --engine sglang --json",
        "foretell serve llama-3-8b --plot curve.png",
    ),
)
for _heading, _table in SERVE.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
