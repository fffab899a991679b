"""`foretell fit`: does training fit, where is its peak, what would make it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from foretell.cli._app import Verb
from foretell.cli._options import FIT, OUTPUT, add
from foretell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from foretell.plan.advice import Suggestion
    from foretell.plan.inverse import Answer

__all__ = ["command"]

_MAX = ("micro-batch", "seq-len")
_MIN = ("gpus",)
_ANSWERED = {"micro-batch": "micro-batch ", "seq-len": "sequence of ", "gpus": "GPU"}
"""Inverse question -> what the line of "assumed" says that its answer takes the place of."""


def _fit(model: str, **options: Any) -> int:  # text or flags
    """Say whether a training run of MODEL fits, which phase and operator is the peak, and what would help.

    MODEL is a catalog name, a config.json, or a folder that holds one. Sizes are GiB (2^30 bytes) of one GPU.
    """
    question = _question(options)
    from foretell.cli._effects import check_question, idle_options, moved  # noqa: PLC0415
    from foretell.cli._inputs import inputs_of  # noqa: PLC0415
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415  # the rooms below: 100 ms
    from foretell.cli._request import request  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415
    from foretell.report.fit import result_of  # noqa: PLC0415

    made = request(model, options)
    launch, answer = made.launch, None
    if question is not None:
        check_question(question, options)
        answer = _ask(question, made.launch, ("fits", "uncertain") if options["allow_uncertain"] else ("fits",))
        launch = answer.launch or answer.closest or made.launch
    forecast = launch.replayed(host=True)
    suggestions: list[Suggestion] = []
    advice: list[str] = []
    if not options["no_advice"] and not options["quiet"] and (answer is None or answer.value is None):
        from foretell.plan.advice import advise, remarks  # noqa: PLC0415

        suggestions = found = advise(launch.tuned(forecast), forecast)
        advice = remarks(forecast, found)
    given = [text for text in made.assumed if question is None or _ANSWERED[question] not in text]
    assumed = [*dict.fromkeys((*given, *forecast.assumed))]
    result = result_of(launch, forecast, suggestions, answer, assumed)
    idle = [] if options["quiet"] else idle_options(options, FIT, lambda tried: _asked(model, tried))
    about = [f"given, and without effect on this answer: {', '.join(idle)}"] if idle else []
    notes = [*dict.fromkeys((*advice, *about, *moved(options, launch), *made.notes, *forecast.notes))]
    document = envelope("fit", inputs_of(model, options, launch), result, notes=notes, sources=forecast.sources)
    if options["json"]:
        print_json(document)
    else:
        from foretell.report.fit_screen import headline, inverse_line, show  # noqa: PLC0415

        screen = console()
        if not options["quiet"]:
            show(shown(document), screen)
        elif answer is not None:
            screen.print(inverse_line(result))
        else:
            screen.print(headline(document))
    if answer is not None and answer.value is None:
        return 1
    good = forecast.verdict == "fits" or (forecast.verdict == "uncertain" and bool(options["allow_uncertain"]))
    return 0 if good else 1


def _asked(model: str, options: dict[str, Any]) -> tuple[dict[str, Any], tuple[Callable[[], Any], ...]]:
    """Return the inputs that options come to, and what gives the answer to be compared."""
    from foretell.cli._inputs import inputs_of  # noqa: PLC0415
    from foretell.cli._request import request  # noqa: PLC0415

    made = request(model, options)
    return inputs_of(model, options, made.launch), (lambda: made.notes, lambda: made.launch.forecast(host=True).to_dict())


def _question(options: dict[str, Any]) -> str | None:
    """Return the inverse question, if one is asked."""
    most, least = options["max"], options["min"]
    if most is not None and least is not None:
        raise InputError("is one question too many", field="min", value=least, hint="Ask --max or --min")
    for name, value, allowed in (("max", most, _MAX), ("min", least, _MIN)):
        if value is not None:
            if value not in allowed:
                raise InputError("cannot be asked for", field=name, value=value, allowed=allowed)
            return str(value)
    return None


def _ask(question: str, launch: Any, accept: tuple[str, ...]) -> Answer:  # a Launch, imported late
    """Answer an inverse question."""
    from foretell.plan.inverse import largest_micro_batch, longest_sequence, smallest_world  # noqa: PLC0415

    architecture = launch.workload.architecture
    if question == "micro-batch":
        return largest_micro_batch(launch, accept=accept)
    if question == "gpus":
        return smallest_world(launch, accept=accept)
    if not launch.reads_tokens:
        problem = f"cannot be asked of {launch.workload.name}, a {architecture.family} model"
        raise InputError(problem, field="max", value="seq-len", allowed=("micro-batch",))
    return longest_sequence(launch, limit=architecture.max_positions, accept=accept)


command = Verb(
    "fit",
    callback=_fit,
    help=_fit.__doc__,
    params=[click.Argument(["model"])],
    examples=(
        "foretell fit llama-3-8b --gpu h100",
        "foretell fit llama-3-8b --gpu h100 --gpus 8 --framework fsdp2",
        "foretell fit llama-3-8b --gpu h100 --gpus 8 --tp 2 --pp 2 --framework megatron",
        "foretell fit llama-3-8b --gpu a100 --lora-rank 16 --quantization nf4",
        "foretell fit llama-3-8b --gpu h100 --gpus 8 --framework fsdp2 --max seq-len",
        "foretell fit llama-3-8b --gpu a100 --framework fsdp2 --min gpus",
        "foretell fit ./config.json --gpu a100 --json",
    ),
)
for _heading, _table in FIT.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
