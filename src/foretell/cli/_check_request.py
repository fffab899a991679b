"""From a reading of somebody's files to the question that `fit`, `train` or `serve` answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._hub import known_model
from foretell.cli._options import FIT, SERVE, TRAIN, names
from foretell.errors import InputError, nearest
from foretell.recipe import TrainingRecipe
from foretell.recipe.optimizers import optimizer

if TYPE_CHECKING:
    from foretell.cli._request import Request
    from foretell.cli._serve_request import ServeRequest
    from foretell.plan import Launch
    from foretell.plan.pace import Pace
    from foretell.readers import Reading
    from foretell.readers._files import Files

__all__ = [
    "Given",
    "check_given",
    "check_model",
    "dropped",
    "given_options",
    "missing",
    "options_of",
    "placed",
    "same_run",
    "serving_request",
    "training_request",
]

_TRAIN: Final = frozenset((*names(TRAIN), *names(FIT)))
_SERVE: Final = frozenset(names(SERVE))
_FOLLOW: Final = {
    "gpus": ("dp",),
    "dp": ("gpus",),
    "optimizer": ("optimizer_impl", "optimizer_in_backward", "optim_dtype"),
    "quantization": ("double_quant", "quantized_rest"),
    "recompute": ("recompute_scope", "recompute_layers", "recompute_modules"),
}
"""Option -> what the files say of the value that it replaces, and what falls with it."""
_RECIPE: Final = frozenset(field.name for field in fields(TrainingRecipe))


@dataclass(frozen=True)
class Given:
    """What the user says beside the files: options by name, above what is read."""

    model: str | None
    options: Mapping[str, str | bool]
    online: bool = False
    """Whether a model that is not known here may be fetched from the hub."""

    @property
    def said(self) -> dict[str, str | bool]:
        """What readers may go by."""
        return dict(self.options) | ({} if self.model is None else {"model": self.model})

    def model_of(self, reading: Reading) -> Any:  # a name, or the content of a config.json
        """Return the model that is asked about; InputError where nothing here knows it."""
        return known_model(self.model if self.model is not None else reading.model, online=self.online)


def given_options(pairs: tuple[str, ...]) -> dict[str, str | bool]:
    """Return the options of ``--set name=value``; a flag alone is true, ``no-name`` is false."""
    out: dict[str, str | bool] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        flag = key.removeprefix("no_") if not equals else key
        if flag in out:
            raise InputError("is given twice", field="set", value=pair)
        out[flag] = value.strip() if equals else not key.startswith("no_")
    return out


def check_given(reading: Reading, given: Given) -> None:
    """Refuse options that this kind of run does not have."""
    known = _TRAIN if reading.verb == "train" else _SERVE
    for name, value in given.options.items():
        if name in known:
            continue
        if name in (*_TRAIN, *_SERVE):
            kind, other = ("a server", "training runs") if reading.verb == "serve" else ("a training run", "servers")
            hint = {"seq_len": "Say --set max-model-len=N", "gpus": "Say --set tp=N"}.get(name)
            raise InputError(f"is an option of {other}, and this is {kind}", field=name, value=value, hint=hint)
        hint = "All names are those of foretell train --help and foretell serve --help"
        raise InputError("is no option of this run", field="set", value=name, allowed=nearest(name, known) or None, hint=hint)


def check_model(reading: Reading, files: Files) -> None:
    """Refuse a model's path outside the folders that may be read."""
    name, place = reading.model, reading.model_origin
    if isinstance(name, str) and place is not None and name.startswith((".", "/", "~")):
        files.find(os.path.join(os.path.expanduser(name), "config.json"), place.path, str(place))  # noqa: PTH111, PTH118  # as text


def dropped(given: Given) -> frozenset[str]:
    """Return what the files say and does not hold any more, since the user said something else."""
    return frozenset(name for option in given.options for name in _FOLLOW.get(option, ()) if name not in given.options)


def options_of(reading: Reading, given: Given) -> dict[str, Any]:
    """Return every option of the verb, as the files and the user give them."""
    known = _TRAIN if reading.verb == "train" else _SERVE
    out: dict[str, Any] = dict.fromkeys(sorted(known))
    out |= {name: setting.option for name, setting in reading.settings.items() if name in known}
    out |= dict.fromkeys(dropped(given) & known)
    return out | dict(given.options)


def missing(reading: Reading, given: Given) -> dict[str, str]:
    """Return what has to be given before there is an answer: option -> why the files do not say it."""
    out = {name: why for name, why in reading.needs.items() if name not in given.options}
    if reading.model is None and given.model is None:
        out.setdefault("model", "the files name no model")
    elif given.model is not None:
        out.pop("model", None)
    stated = {*reading.settings, *given.options}
    if not stated & {"gpu", "system"}:
        out["gpu"] = "the files name no accelerator"
    return out


def training_request(reading: Reading, given: Given) -> tuple[Request, Pace, dict[str, Any]]:
    """Return the run that the files describe, its pace, and its options; InputError names the line of what cannot be used."""
    from foretell.cli._pace import pace_of  # noqa: PLC0415  # 100 ms
    from foretell.cli._request import request  # noqa: PLC0415

    options = options_of(reading, given)
    try:
        made = request(given.model_of(reading), options)
    except InputError as error:
        raise placed(error, reading, given) from error
    launch, notes = _targeted(_beyond(made.launch, reading, given), reading)
    made = replace(made, launch=launch, notes=(*made.notes, *notes))
    return made, pace_of(made, options), options


def serving_request(reading: Reading, given: Given) -> tuple[ServeRequest, dict[str, Any]]:
    """Return the server that the files describe, and its options; InputError names the line of what cannot be used.

    vLLM does not start where one request of ``max_model_len`` does not fit, unless that is "auto"; other engines take what fits.
    """
    from foretell.cli._serve_request import serve_request  # noqa: PLC0415  # 300 ms

    options = options_of(reading, given)
    auto = options["max_model_len"] == "auto"
    if auto:
        options["max_model_len"] = None
    try:
        return serve_request(given.model_of(reading), options, shorten=auto or options["engine"] != "vllm"), options
    except InputError as error:
        raise placed(error, reading, given) from error


def _targeted(launch: Launch, reading: Reading) -> tuple[Launch, list[str]]:
    """Leave out names of a file's LoRA targets that match nothing, as PEFT does where others match (``inject_adapter``)."""
    from foretell.cost.weights import unmatched  # noqa: PLC0415  # 100 ms

    adapter = launch.recipe.adapter
    if adapter is None or "lora_targets" not in reading.settings:
        return launch, []
    missing, _ = unmatched(launch.workload.architecture, adapter)
    kept = tuple(target for target in adapter.targets if target not in missing)
    if not missing or not kept:
        return launch, []
    changed = launch.with_recipe(adapter=replace(adapter, targets=kept))
    return changed, [f"adapters on {', '.join(missing)}: this model has no matrix of that name, and PEFT passes over it"]


def _beyond(launch: Launch, reading: Reading, given: Given) -> Launch:
    """Return the launch with what the files say and no option of the command line does."""
    gone = given.options.keys() | dropped(given)
    said = {name: s.value for name, s in reading.settings.items() if name not in _TRAIN and name not in gone}
    recipe, architecture = launch.recipe, launch.workload.architecture
    adapter, base = said.pop("adapter_dtype", None), said.pop("quantized_rest", None)
    if adapter is not None and recipe.adapter is not None:
        recipe = recipe.with_(adapter=replace(recipe.adapter, dtype=str(adapter)))
    if base is not None and recipe.quantization is not None:
        recipe = recipe.with_(quantization=replace(recipe.quantization, rest=str(base)))
    autocast = said.pop("autocast", None)
    if said.pop("weights", None) == "auto" and architecture.dtype in ("float32", "fp32") and "precision" not in given.options:
        recipe = recipe.with_(precision=str(autocast) if autocast in ("bf16", "fp16") else "fp32")
    if said.get("reduce_bucket") == "auto":  # transformers' and accelerate's: the hidden size squared
        said["reduce_bucket"] = architecture.hidden**2
    unknown = set(said) - _RECIPE
    assert not unknown, unknown  # noqa: S101  # a reader's own fault
    return replace(launch, recipe=recipe.with_(**said))


def placed(error: InputError, reading: Reading, given: Given) -> InputError:
    """Say where a value stood that cannot be used."""
    name = {"zero_stage": "zero", "hardware": "gpu", "adapter": "lora_rank"}.get(error.field or "", error.field or "")
    setting = reading.settings.get(name)
    if error.where is None and setting is not None and name not in given.options:
        error.where = str(setting.origin)
    elif error.where is None and name == "model" and given.model is None and reading.model_origin is not None:
        error.where = str(reading.model_origin)
    return error


def same_run(a: Launch, b: Launch) -> bool:
    """Whether two launches are one run."""
    return (a.workload.architecture, a.hardware, a.par, _settled(a)) == (b.workload.architecture, b.hardware, b.par, _settled(b))


def _settled(launch: Launch) -> TrainingRecipe:
    """Return the recipe with what its framework chooses where nobody does; the way of a step only where it costs memory."""
    recipe = launch.recipe
    copies = optimizer(recipe.optimizer).foreach_temp
    return recipe.with_(optimizer_impl=recipe.optimizer_impl or launch.framework.optimizer_impl if copies else None)
