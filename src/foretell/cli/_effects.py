"""Options that were given and change nothing: each is tried without, so that none is ignored in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foretell.cli._inputs import inputs_of
from foretell.cli._options import FIT
from foretell.cli._request import Request, request
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.plan import Launch

__all__ = ["check_question", "idle_options", "moved"]

_TRIED: Final = tuple(
    name.split("/")[0].removeprefix("--").replace("-", "_")
    for heading, table in FIT.items()
    if heading != "Question"
    for name, _, _ in table
    if name != "--gpu"
)
_ASKED: Final = {
    "micro-batch": ("micro_batch",),
    "seq-len": ("seq_len", "max_sample_len"),
    "gpus": ("gpus", "dp"),
}
"""Inverse question -> options that are its answer."""


def idle_options(model: str, options: dict[str, Any], made: Request) -> list[str]:
    """Return the options that were given, differ from what holds without them, and leave the answer as it is."""
    used = inputs_of(model, options, made.launch)
    answer: Any = None
    idle = []
    for name in _TRIED:
        if options[name] is None:
            continue
        without = options | {name: None}
        try:
            other = request(model, without)
            if inputs_of(model, without, other.launch) == used and _in_force(used.get(name, True)):
                continue  # what holds anyhow was said again
            found = _answer(other)
        except InputError:
            continue  # others need it
        try:
            answer = answer or _answer(made)
        except InputError:
            return []  # a question whose starting point cannot run: nothing to compare with
        if found == answer:
            idle.append(_spelled(name, options[name]))
    return idle


def check_question(question: str, options: dict[str, Any]) -> None:
    """Refuse an option that gives what an inverse question asks for."""
    for name in _ASKED[question]:
        if options[name] is not None:
            raise InputError("is what is asked for", field=name, value=options[name], hint=f"Leave out {_spelled(name, True)}")


def moved(options: dict[str, Any], launch: Launch) -> list[str]:
    """Return a note where the answer to an inverse question has another global batch than was given."""
    given = options["global_batch"]
    if given is None or int(float(given)) == launch.global_batch:
        return []
    passes = launch.recipe.grad_accum
    return [f"the global batch becomes {launch.global_batch}, not {given}: the {passes} passes of a step stay as they are"]


def _in_force(value: object) -> bool:
    """Whether an input that was given is used: one without meaning for a run is echoed as none."""
    return value is not None


def _answer(made: Request) -> tuple[Any, ...]:
    """Return what an answer says, to be compared."""
    return made.launch.forecast(host=True).to_dict(), made.notes


def _spelled(name: str, value: object) -> str:
    """Return an option as it is typed."""
    plain = name.replace("_", "-")
    return f"--no-{plain}" if value is False else f"--{plain}"
