"""`foretell train`: how long a training step takes, where its time goes, what would shorten it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, TRAIN, WHOLE, Rows, add, names
from foretell.cli._values import amount, duration
from foretell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from foretell.cli._request import Request
    from foretell.core.solver._result import Result
    from foretell.core.speed import SpeedForecast
    from foretell.cost.operator_times import Operators
    from foretell.plan.business import Business
    from foretell.plan.faster import Faster, Shortlist
    from foretell.plan.pace import Pace
    from foretell.plan.whole_run import RunForecast

__all__ = ["command"]


def _train(model: str, **options: Any) -> int:  # text or flags
    """Say how long a training step of MODEL takes, where its time goes, and what would shorten it.

    MODEL is a catalog name, a config.json, or a folder that holds one. Seconds are those of one optimizer step.
    """
    from foretell.cli._effects import idle_options  # noqa: PLC0415  # the rooms below: 100 ms
    from foretell.cli._inputs import train_inputs  # noqa: PLC0415
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415
    from foretell.report.train import result_of  # noqa: PLC0415

    made, pace = _asked_for(model, options)
    tokens = amount(options["tokens"], "tokens")
    if tokens is not None and not made.launch.reads_tokens:
        problem = f"has no meaning for {made.launch.workload.name}: it reads no tokens"
        raise InputError(problem, field="tokens", value=options["tokens"], hint="Leave it out")
    _check_whole(options)
    if options["plot"] is not None:
        from foretell.report.run_plot import check  # noqa: PLC0415

        check(options["plot"])
    measured = duration(options["measured_step"], "measured_step")
    speed = pace.speed(measured)
    how = _operated(options)
    run = _run(made, pace, options, how, speed)
    memory = pace.launch.replayed()
    operators = _operators(pace, options)
    suggestions: list[Faster] = []
    about: list[str] = []
    if not options["no_advice"] and not options["quiet"]:
        from foretell.plan.faster import faster  # noqa: PLC0415

        suggestions = found = faster(pace, speed, memory)
        about = _advice_notes(found)
    inputs = train_inputs(model, options, pace)
    inputs |= {"measured_step_s": measured, "tokens": tokens, "run": _run_inputs(how)}
    assumed = [*dict.fromkeys((*made.assumed, *speed.assumed, *memory.assumed))]
    result = result_of(pace.launch, speed, memory, operators, suggestions, tokens, assumed, run)
    idle = [] if options["quiet"] else idle_options(options, _tried(), lambda tried: _asked(model, tried))
    if idle:
        about.append(f"given, and without effect on this answer: {', '.join(idle)}")
    if run is not None and options["plot"] is not None:
        from foretell.report.run_plot import draw  # noqa: PLC0415

        if run.feasible:
            draw(result, run.drawn, options["plot"])
        else:
            about.append("no picture: the run makes no progress")
    notes = [*dict.fromkeys((*_verdict_notes(memory.verdict), *about, *made.notes, *speed.notes, *memory.notes))]
    if run is not None:
        notes = [*dict.fromkeys((*notes, *run.notes))]
    sources = [*dict.fromkeys((*speed.sources, *memory.sources, *(() if run is None else run.sources)))]
    document = envelope("train", inputs, result, notes=notes, sources=sources)
    if options["json"]:
        print_json(document)
    else:
        from foretell.report.train_screen import headline, show  # noqa: PLC0415

        if options["quiet"]:
            console().print(headline(document))
        else:
            show(shown(document), console(), operators=bool(options["operators"]))
    return 1 if memory.verdict == "does_not_fit" or (run is not None and not run.feasible) else 0


def _check_whole(options: dict[str, Any]) -> None:
    """Refuse options of a whole run where no run was asked for."""
    for name in names({WHOLE: TRAIN[WHOLE]}):
        if options[name] is not None and options["tokens"] is None:
            problem = "says how a whole run is operated, and no number of tokens is given"
            raise InputError(problem, field=name, value=options[name], hint="Add --tokens, as --tokens 15T")


def _operated(options: dict[str, Any]) -> Business | None:
    """Return how a whole run is operated, where one is asked about."""
    if options["tokens"] is None:
        return None
    from foretell.cli._business import business_of  # noqa: PLC0415  # 20 ms, for whole runs alone

    return business_of(options)


def _run(made: Request, pace: Pace, options: dict[str, Any], how: Business | None, speed: SpeedForecast) -> RunForecast | None:
    """Return the forecast of a whole run."""
    tokens = amount(options["tokens"], "tokens")
    if how is None or tokens is None:
        return None
    from foretell.cli._business import fleet_of  # noqa: PLC0415
    from foretell.plan.whole_run import whole_run  # noqa: PLC0415

    return whole_run(pace.launch, speed, fleet_of(made, pace), tokens, how)


def _run_inputs(how: Business | None) -> dict[str, Any] | None:
    """Return the inputs of a whole run."""
    if how is None:
        return None
    from foretell.cli._business import business_inputs  # noqa: PLC0415

    return business_inputs(how)


def _tried() -> dict[str, Rows]:
    """Return the options that say what is asked about: not where a picture goes."""
    return {heading: tuple(row for row in rows if row[0] != "--plot") for heading, rows in TRAIN.items()}


def _asked_for(model: str, options: dict[str, Any]) -> tuple[Request, Pace]:
    """Return the run that the options describe, and its pace."""
    from foretell.cli._pace import pace_of  # noqa: PLC0415
    from foretell.cli._request import request  # noqa: PLC0415

    made = request(model, options)
    return made, pace_of(made, options)


def _asked(model: str, options: dict[str, Any]) -> tuple[dict[str, Any], tuple[Callable[[], Any], ...]]:
    """Return the inputs that options come to, and what gives the answer to be compared."""
    from foretell.cli._inputs import train_inputs  # noqa: PLC0415

    made, pace = _asked_for(model, options)
    how, measured = _operated(options), duration(options["measured_step"], "measured_step")
    return train_inputs(model, options, pace) | {"run": _run_inputs(how)}, (
        lambda: made.notes,
        lambda: _numbers(pace.speed()),
        lambda: pace.launch.forecast(host=True).to_dict(),
        lambda: _numbers(_run(made, pace, options, how, pace.speed(measured))),
    )


def _numbers(found: Result | None) -> dict[str, Any]:
    """Return what an answer says, without the words about it."""
    made = {} if found is None else found.to_dict()
    return {name: value for name, value in made.items() if name not in ("notes", "assumed", "sources")}


def _operators(pace: Pace, options: dict[str, Any]) -> Operators | None:
    """Return the operators of the main layer, where kernels are priced by their shape."""
    from foretell.cost.operator_times import operator_times  # noqa: PLC0415

    if not (options["json"] or options["operators"]):
        return None
    speed = pace.speed()
    found = operator_times(pace.launch.workload.architecture, speed.run, speed.priced)
    if found is None and options["operators"]:
        problem = "needs kernels that are priced by their shape"
        raise InputError(problem, field="operators", value=True, hint="Leave out --efficiency")
    return found


def _advice_notes(found: Shortlist) -> list[str]:
    """Say what no suggestion says: that nothing helps, or that not all was tried."""
    out = []
    if not found:
        out.append(f"no single change shortens the step and fits: {found.tried} were tried")
    if found.untried:
        changes = "1 further change was" if found.untried == 1 else f"{found.untried} further changes were"
        out.append(f"{changes} not tried, as this model has many different layers")
    return out


def _verdict_notes(verdict: str) -> list[str]:
    """Say what the verdict on memory means for what is said of speed."""
    if verdict == "does_not_fit":
        return ["the run does not fit: this is the speed that it would have; foretell fit says what would make it fit"]
    if verdict == "uncertain":
        return ["whether the run fits is uncertain: foretell fit says more"]
    return []


command = Verb(
    "train",
    callback=_train,
    help=_train.__doc__,
    params=[click.Argument(["model"])],
    examples=(
        "foretell train llama-3-8b --system dgx-h100 --framework fsdp2 --compile",
        "foretell train llama-3-8b --gpu h100 --gpus 8 --tp 2 --global-batch 128",
        "foretell train llama-3-8b --gpu h100 --gpus 64 --zero 1 --tokens 15T --region quebec",
        "foretell train llama-3-8b --gpu h100 --operators",
        "foretell train llama-3-8b --gpu h100 --measured-step 900ms",
        "foretell train ./config.json --gpu a100 --json",
    ),
)
for _heading, _table in TRAIN.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
