"""The answer of `check`: a reading asked as `fit`, `train` and `serve` are asked, with edits of the files as advice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._check_request import (
    Given,
    check_given,
    check_model,
    dropped,
    given_options,
    missing,
    options_of,
    placed,
    same_run,
    serving_request,
    training_request,
)
from foretell.errors import CatalogError, ForetellError, InputError
from foretell.readers._files import Files
from foretell.readers.read import read_texts, texts_of
from foretell.readers.rewrite import Rewritten, rewrite
from foretell.report.check import edit_of, judged, speed_of, understood, unmodelled

if TYPE_CHECKING:
    from foretell.core.forecast import Forecast
    from foretell.plan import Launch
    from foretell.readers import Reading
    from foretell.readers.logs import LogReading

__all__ = ["Checked", "answer"]

_EMPTY: Final[dict[str, Any]] = {
    "verb": None, "family": None, "version": None, "verdict": "unknown", "memory_verdict": None, "fits": None, "reasons": [],
    "memory_reasons": [],
    "needs": {}, "understood": [], "unmodelled": [], "unknown": [], "neutral": [], "speed": None, "log": None, "suggestions": [],
    "assumed": [],
}  # fmt: skip
"""Keys of every result."""


_ELSEWHERE: Final = ("other-processes", "host")
"""Causes of a failure that are not the memory of the run's own processes on the GPU."""


@dataclass
class Checked:
    """An answer in parts."""

    result: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Asked:
    """A reading with what the user gave beside it, and how it is read again."""

    reading: Reading
    given: Given
    texts: tuple[tuple[str, str], ...]
    files: Files
    family: str | None
    died: bool
    """A log says that it ran out of memory."""

    def again(self, replaced: Mapping[str, str]) -> Reading:
        """Read the files as they are after an edit."""
        files = Files(self.files.roots, replaced)
        return read_texts(self.texts, files=files, family=self.family, given=self.given.said)


def answer(files: tuple[str, ...], words: tuple[str, ...], options: dict[str, Any], log: tuple[str, str] | None) -> Checked:
    """Read what there is, and answer it."""
    told = None if log is None else _log(*log)
    if not files and not words:
        assert told is not None  # noqa: S101  # checked before
        return _explained(Checked(dict(_EMPTY)), told, None)
    roots = (options["root"],) if options["root"] is not None else ()
    around = Files.around(files, roots)
    texts = tuple(texts_of(files, words))
    given = _given(options)
    reading = read_texts(texts, files=around, family=options["family"], given=given.said)
    check_given(reading, given)
    check_model(reading, around)
    asked = _Asked(reading, given, texts, around, options["family"], told is not None and told.died)
    checked = Checked(dict(_EMPTY) | _read(asked))
    checked.notes += reading.notes
    needs = missing(reading, given)
    forecast: Any = None
    if not needs:
        try:
            forecast = _serving(asked, checked, options) if reading.verb == "serve" else _training(asked, checked, options)
        except CatalogError as error:
            if error.field != "model":
                raise
            needs = {"model": f"{error}"}
    checked.result["needs"] = needs
    checked.result["understood"] = understood(reading, _extra(given), _model_name(asked), dropped(given))
    if told is None:
        return checked
    checked.result["suggestions"] = [_held(asked, row, told) for row in checked.result["suggestions"]]
    return _explained(checked, told, forecast)


def _log(text: str, path: str) -> LogReading:
    from foretell.readers.logs import read_log  # noqa: PLC0415  # where there is one

    return read_log(text, path)


def _given(options: dict[str, Any]) -> Given:
    """Return what the user says beside the files."""
    own = {name: options[name] for name in ("gpu", "gpus", "seq_len", "headroom") if options[name] is not None}
    more = given_options(options["set"])
    twice = sorted(own.keys() & more.keys())
    if twice:
        raise InputError("is given twice, by an option of its own too", field="set", value=f"{twice[0]}={more[twice[0]]}")
    return Given(options["model"], own | more, online=bool(options["online"]))


def _read(asked: _Asked) -> dict[str, Any]:
    """Return what the files say, whatever the answer."""
    reading = asked.reading
    return {
        "verb": reading.verb,
        "family": reading.family,
        "version": reading.version or None,
        "unmodelled": unmodelled(reading.unmodelled),
        "unknown": unmodelled(reading.unknown),
        "neutral": [
            {"key": row.key, "said": row.said, "path": row.origin.path, "line": row.origin.line} for row in reading.neutral
        ],
    }


def _extra(given: Given) -> dict[str, Any]:
    return ({} if given.model is None else {"model": given.model}) | dict(given.options)


def _model_name(asked: _Asked) -> str:
    model = asked.given.model or asked.reading.model
    if isinstance(model, str):
        return model
    return str((model or {}).get("_name_or_path") or (model or {}).get("model_type") or "as the files describe it")


def _training(asked: _Asked, checked: Checked, options: dict[str, Any]) -> Forecast:
    """Answer a training run: memory, speed, and what to edit."""
    from foretell.cli._inputs import run_inputs  # noqa: PLC0415  # 100 ms
    from foretell.report.fit import result_of  # noqa: PLC0415

    made, pace, every = training_request(asked.reading, asked.given)
    launch = made.launch
    try:
        forecast = launch.replayed(host=True)
    except InputError as error:
        raise placed(error, asked.reading, asked.given) from error
    verdict, reasons, on_memory = judged(
        forecast.verdict, asked.reading.doubts, forecast.interval_bytes, forecast.available_bytes
    )
    wanted = not (options["no_advice"] or options["quiet"]) and (asked.died or not forecast.fits)
    doubted = replace(forecast, verdict="does_not_fit", fits=False) if asked.died else forecast
    rows, remarks = _edits(asked, launch, doubted) if wanted else ([], [])
    speed, about = _speed(pace, forecast)
    assumed = [*dict.fromkeys((*made.assumed, *forecast.assumed))]
    checked.result |= result_of(launch, forecast, assumed=assumed)
    checked.result |= {
        "verdict": verdict,
        "memory_verdict": forecast.verdict,
        "fits": verdict == "fits",
        "reasons": reasons,
        "memory_reasons": on_memory,
        "speed": speed,
        "suggestions": rows,
    }
    checked.inputs = run_inputs(_model_name(asked), every, launch)
    checked.notes += [*dict.fromkeys((*remarks, *about, *made.notes, *forecast.notes))]
    checked.sources += list(forecast.sources)
    return forecast


def _speed(pace: Any, forecast: Forecast) -> tuple[dict[str, Any] | None, list[str]]:  # a Pace, imported late
    """Return what `train` says of the run; a note where it cannot."""
    from foretell.report.train import result_of  # noqa: PLC0415  # 60 ms

    try:
        found = pace.speed()
    except ForetellError as error:
        return None, [f"no speed: {error}"]
    return speed_of(result_of(pace.launch, found, forecast)), list(found.notes)


def _edits(asked: _Asked, launch: Launch, forecast: Forecast) -> tuple[list[dict[str, Any]], list[str]]:
    """Return advice, each as the edit to make where the files can say it; such an edit was read again and is that very run."""
    from foretell.plan.advice import advise, remarks  # noqa: PLC0415

    found = advise(launch.tuned(forecast), forecast)
    rows = []
    for one in found:
        flags = {_name(flag): _value(flag, value) for flag, value in one.flags.items()}
        made = _written(asked, flags)
        rows.append(one.to_dict() | {"edits": [] if made is None else [edit_of(edit) for edit in made.edits]})
    rows.sort(key=lambda row: (not row["fits"], not row["edits"]))
    return rows, remarks(forecast, found)


def _written(asked: _Asked, flags: Mapping[str, str | bool]) -> Rewritten | None:
    """Write options into the files; None where they cannot say it, or would then describe another run than was meant."""
    made = rewrite(asked.reading, flags, asked.again)
    if made is None:
        return None
    wanted = replace(asked.given, options={**asked.given.options, **flags})
    try:
        if asked.reading.verb == "serve":
            same = options_of(made.reading, asked.given) == options_of(asked.reading, wanted)
        else:
            runs = (training_request(asked.reading, wanted)[0].launch, training_request(made.reading, asked.given)[0].launch)
            same = same_run(*runs)
    except ForetellError:
        return None
    return made if same else None


def _name(flag: str) -> str:
    return flag.removeprefix("--").removeprefix("no-").replace("-", "_")


def _value(flag: str, value: str | None) -> str | bool:
    return not flag.startswith("--no-") if value is None else value


def _serving(asked: _Asked, checked: Checked, options: dict[str, Any]) -> Any:  # a ServingForecast, imported late
    """Answer a server: what it holds, how fast it is, and what to edit."""
    from foretell.cli.serve import answered  # noqa: PLC0415

    made, every = serving_request(asked.reading, asked.given)
    every |= {"json": True, "quiet": True, "no_advice": bool(options["no_advice"])}
    parts = answered(_model_name(asked), every, made, None)
    result = parts["result"] | {"launch": None}  # the files hold it
    own = "fits" if result["starts"] and result["keeps_up"] else "does_not_fit"
    verdict, reasons, on_memory = judged(own, asked.reading.doubts)
    rows = [_fixed(asked, fix) for fix in result["fixes"]]
    checked.result |= result | {
        "verdict": verdict, "memory_verdict": None, "fits": verdict == "fits", "reasons": reasons, "memory_reasons": on_memory,
        "suggestions": rows,
        "fixes": [],  # they are among the suggestions
    }  # fmt: skip
    checked.inputs = parts["inputs"]
    checked.notes += parts["notes"]
    checked.sources += parts["sources"]
    return made.deployment


def _fixed(asked: _Asked, fix: dict[str, Any]) -> dict[str, Any]:
    """Return a change of a server as the edit to make."""
    words = shlex.split(fix["option"])
    flags: dict[str, str | bool] = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            last = i + 1 == len(words) or words[i + 1].startswith("--")
            flags[_name(word)] = _value(word, None if last else words[i + 1])
    made = _written(asked, flags)
    about = {"kind": "reduce", "change": fix["change"], "flags": fix["option"], "price": fix["price"], "saved_bytes": None,
             "total_bytes": None, "verdict": "fits", "fits": True}  # fmt: skip
    return about | {"edits": [] if made is None else [edit_of(edit) for edit in made.edits]}


def _held(asked: _Asked, row: dict[str, Any], log: LogReading) -> dict[str, Any]:
    """Return a change of a server, with no longer requests than its own log says that it holds."""
    most = next((refusal.held_tokens for refusal in log.refusals if refusal.kind == "longest" and refusal.held_tokens), None)
    flag, _, value = row["flags"].partition(" ")
    if most is None or flag != "--max-model-len" or not value.isdecimal() or int(value) <= most:
        return row
    change = f"requests of {int(most)} tokens at most, as the log says"
    return _fixed(asked, {"option": f"{flag} {int(most)}", "change": change, "price": row["price"]})


def _explained(checked: Checked, log: LogReading, forecast: Any) -> Checked:  # a Forecast or a Deployment
    """Add what a log says."""
    from foretell.plan.log_explained import explain  # noqa: PLC0415  # where there is one

    found = explain(log, forecast, checked.result["suggestions"])
    checked.result["log"] = found.to_dict()
    checked.notes += found.notes
    if checked.result["verb"] is None or (found.verdict == "died" and found.cause not in _ELSEWHERE):
        # what happened is truer than any forecast of it
        verdict = {"died": "does_not_fit", "healthy": "fits"}.get(found.verdict, "unknown")
        checked.result |= {"verdict": verdict, "fits": verdict == "fits", "reasons": [found.headline]}
    return checked
