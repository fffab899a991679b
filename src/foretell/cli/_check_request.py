"""From a reading of somebody's files to the question that `fit`, `train` or `serve` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._hub import known_model
from foretell.cli._options import FIT, SERVE, TRAIN, names
from foretell.errors import InputError
from foretell.recipe import TrainingRecipe
from foretell.recipe.optimizers import optimizer

if TYPE_CHECKING:
    from foretell.cli._request import Request
    from foretell.plan import Launch
    from foretell.plan.pace import Pace
    from foretell.readers import Reading

__all__ = ["Given", "given_options", "missing", "options_of", "same_run", "training_request"]

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


def given_options(verb: str, pairs: tuple[str, ...]) -> dict[str, str | bool]:
    """Return the options of ``--set name=value``; a flag alone is true, ``no-name`` is false."""
    known = _TRAIN if verb == "train" else _SERVE
    out: dict[str, str | bool] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        if key.removeprefix("no_") in known and not equals:
            out[key.removeprefix("no_")] = not key.startswith("no_")
            continue
        if key not in known:
            from foretell.errors import nearest  # noqa: PLC0415  # errors alone

            raise InputError("is no option of this run", field="set", value=pair, allowed=nearest(key, known) or sorted(known))
        out[key] = value.strip()
    return out


def options_of(reading: Reading, given: Given) -> dict[str, Any]:
    """Return every option of the verb, as the files and the user give them."""
    known = _TRAIN if reading.verb == "train" else _SERVE
    out: dict[str, Any] = dict.fromkeys(sorted(known))
    out |= {name: setting.option for name, setting in reading.settings.items() if name in known}
    out |= dict.fromkeys(name for option in given.options for name in _FOLLOW.get(option, ()) if name in known)
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
    gone = {name for option in given.options for name in (option, *_FOLLOW.get(option, ()))}
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
