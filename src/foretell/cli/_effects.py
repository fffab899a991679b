"""Options that were given and change nothing: each is tried without, so that none is ignored in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._options import Rows, names
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.plan import Launch

__all__ = ["check_question", "idle_options", "moved"]

Ask = Callable[[dict[str, Any]], tuple[dict[str, Any], Sequence[Callable[[], Any]]]]
_ASKED: Final = {
    "micro-batch": ("micro_batch",),
    "seq-len": ("seq_len", "max_sample_len"),
    "gpus": ("gpus", "dp"),
}
"""Inverse question -> options that are its answer."""


def idle_options(options: dict[str, Any], table: dict[str, Rows], ask: Ask) -> list[str]:
    """Return the options of a run that were given, differ from what holds without them, and leave the answer as it is.

    ``ask``: options -> the inputs that they come to, and functions that return the parts of the answer.
    """
    used, answered = ask(options)
    answers: list[Any] = []
    idle = []
    for name in names({heading: rows for heading, rows in table.items() if heading != "Question"}):
        if options[name] is None or name in ("gpu", "system"):
            continue
        without = options | {name: None}
        try:
            others, other = ask(without)
        except InputError:
            continue  # others need it
        if others == used and _in_force(used.get(name, True)):
            continue  # what holds anyhow was said again
        try:
            if _same(answers, answered, other):
                idle.append(_spelled(name, options[name]))
        except InputError:
            return []  # a question whose starting point cannot run: nothing to compare with
    return idle


def _same(answers: list[Any], answered: Sequence[Callable[[], Any]], other: Sequence[Callable[[], Any]]) -> bool:
    """Whether all parts of two answers are equal, up to the first that is not; ``answers`` keeps the first one's.

    Raises InputError where the first answer cannot be had; where the other cannot, it is another.
    """
    for i, part in enumerate(other):
        try:
            found = part()
        except InputError:
            return False
        if i == len(answers):
            answers.append(answered[i]())
        if answers[i] != found:
            return False
    return True


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


def _spelled(name: str, value: object) -> str:
    """Return an option as it is typed."""
    plain = name.replace("_", "-")
    return f"--no-{plain}" if value is False else f"--{plain}"
