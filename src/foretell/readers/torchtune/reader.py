"""torchtune: the YAML files of its recipes, and ``tune run [TORCHRUN OPTIONS] RECIPE --config FILE key=value``.

Source: torchtune 0.7.0 (``torchtune/_cli/run.py``, ``torchtune/config/_utils.py`` _merge_yaml_and_cli_args, ``recipes/*.py``).
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._omegaconf import Values
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers.torchtune import _run as settings
from foretell.readers.torchtune._adapters import adapters_of, attention, model, parts_of
from foretell.readers.torchtune._gpus import activations, gpus
from foretell.readers.torchtune._keys import COMMAND, IDLE, RECIPES, TABLES, TORCHRUN, Recipe
from foretell.readers.torchtune._serve import inference
from foretell.readers.torchtune._spell import spelling

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Effect
    from foretell.readers._tree import Node

__all__ = ["FAMILY"]

_PARTS: Final = (
    "model",
    "tokenizer",
    "checkpointer",
    "dataset",
    "loss",
    "policy_model",
    "profiler",
    "metric_logger",
    "optimizer",
)
_REFERENCE: Final = frozenset(("DPOLoss", "RSOLoss", "IPOLoss", "SimPOLoss"))
"""Losses over pairs (``torchtune/rlhf/loss``)."""


def _claims(document: Document) -> float:
    found = [node for part in _PARTS if (node := document.at(f"{part}._component_")) is not None]
    if any(str(node.value).startswith("torchtune.") for node in found):
        return 1.0
    return 0.5 if found else 0.0


def _starts(launch: Launcher) -> bool:
    return launch.name == "tune" or (PurePosixPath(launch.program).stem in RECIPES and launch.program.endswith(".py"))


def _read(sources: Sources) -> Reading:
    given: Recipe | None = None
    started: Found | None = None
    if sources.main.form == "arguments":
        given, started = _follow(sources)
    values = Values(tuple(d for d in (sources.overrides, sources.main) if d is not None))
    kind = _kind(sources, values, given)
    if kind == "inference":
        return inference(sources, values, settings.VERSION)
    b = Builder("torchtune", sources, version=settings.VERSION)
    _processes(b, given, started)
    _workers(b, values)
    at = "policy_model" if kind == "ppo" else "model"
    made = model(b, values, at)
    run = settings.Run(b, values, kind, made, made.adapters, b.given("gpus") == 1)
    settings.batch(run)
    settings.length(run)
    settings.formats(run)
    settings.loss(run)
    settings.optimizer(run)
    activations(run)
    if made.adapters:
        adapters_of(b, values, made, at)
    else:
        parts_of(b, values, made, at)
    attention(b, made)
    gpus(run)
    _others(b, values, kind)
    _variables(b, sources.main)
    TABLES.rest(b, sources.main)
    if sources.overrides is not None:
        (TABLES | COMMAND).rest(b, sources.overrides)
    environment(b)
    return b.reading(spelling(run))


# -- what is run ---------------------------------------------------------------------------------------------------------


def _follow(sources: Sources) -> tuple[Recipe | None, Found]:
    """Make the file that ``--config`` names the main document; return the recipe, and what names it."""
    launch, given = sources.launch, sources.arguments(TORCHRUN, {"-m": "m"}, many=frozenset())
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    words = [found for key in given.entries(POSITIONAL) if (found := given.get(key)) is not None]
    name = PurePosixPath(launch.program).stem
    if launch.name == "tune":
        command = words.pop(0).text() if words else "help"
        if command != "run":
            what = IDLE.get(command, "is no command that is known here")
            raise refused(sources.main, f"tune {command} {what}: no training run", hint="Known is tune run RECIPE --config FILE")
        if not words:
            raise refused(sources.main, "tune run names no recipe")
        name = PurePosixPath(words[0].text()).stem
    started = words[0] if launch.name == "tune" else given.get("config")
    recipe = RECIPES.get(name)
    if recipe is not None and not recipe.trains:
        raise refused(sources.main, f"{name} {recipe.kind}: no training run")
    named = given.get("config")
    if named is None or started is None:
        raise refused(sources.main, f"{name} has no --config, which torchtune requires")
    document = sources.follow(named)
    if document is None:
        inside = re.fullmatch(r"[\w.-]+/[\w.-]+", named.text()) and not named.text().endswith((".yaml", ".yml"))
        hint = f"Copy torchtune's own: tune cp {named.text()} run.yaml" if inside else "Say where it is: --root DIR"
        raise ConfigError("is not here", field="config", value=named.text(), where=named.where, hint=hint)
    sources.main, sources.overrides = document, given
    _merge(given, document, words)
    return recipe, started


def _merge(given: Document, document: Document, words: list[Found]) -> None:
    """Give ``model=x`` its place, and take out what ``~key`` and ``key=None`` remove (``_merge_yaml_and_cli_args``)."""
    overrides: dict[str, Node] = given.root.value if isinstance(given.root.value, dict) else {}
    for key, node in [*overrides.items()]:
        if node.value is None or node.raw == "None":
            node.value = None
            _gone(document, key)
        elif node.scalar and document.at(f"{key}._component_") is not None:
            overrides[f"{key}._component_"] = overrides.pop(key)
    for word in words:
        if word.text().startswith("~"):
            _gone(document, word.text()[1:].partition("=")[0])


def _gone(document: Document, key: str) -> None:
    node = document.at(key)
    if node is not None:
        document.mark(node, deep=True)
        node.value = None


def _kind(sources: Sources, values: Values, given: Recipe | None) -> str:
    """Return what a file's keys say that is run, which its recipe must agree with."""
    if given is not None and given.kind != "sft":
        return given.kind
    for key, kind in (
        ("policy_model", "ppo"),
        ("orchestration", "async-grpo"),
        ("grpo_samples", "grpo"),
        ("teacher_model", "kd"),
    ):
        if values.has(key):
            return kind
    loss = values.get("loss._component_")
    if loss is not None and loss.node.scalar and loss.text().strip().rpartition(".")[2] in _REFERENCE:
        return "dpo"
    if values.has("optimizer") or values.has("optimizer._component_"):
        return "sft"
    if any(values.has(key) for key in ("tasks", "prompt")):
        return "inference"
    if values.has("quantizer"):
        raise refused(sources.main, "quantises a checkpoint: it has quantizer and no optimizer, so nothing is trained")
    raise refused(sources.main, "trains nothing: it has no optimizer")


def _processes(b: Builder, recipe: Recipe | None, started: Found | None) -> None:
    """Take the number of GPUs from torchrun's options, which ``tune run`` takes itself."""
    b.world()
    given = b.sources.overrides
    if given is None or started is None:
        return
    node, nodes = given.get("nproc_per_node"), given.get("nnodes")
    if node is not None and re.fullmatch(r"\d+", node.text()):
        many = nodes.text().rpartition(":")[2] if nodes is not None else "1"
        if not many.isdecimal():
            raise started.error("nnodes must be a whole number", allowed="1, 2 ...")
        b.set("gpus_per_node", node.whole(), node)
        b.set("gpus", node.whole() * max(1, int(many)), node if nodes is None else nodes)
    elif node is not None:
        b.note(f"{node.where}: nproc_per_node is {node.text()[:40]!r}, which only the machine knows: say how many GPUs (--gpus)")
    elif recipe is not None and not recipe.many and b.given("gpus") is None:
        b.set("gpus", 1, started, "a recipe for one GPU")


def _workers(b: Builder, values: Values) -> None:
    """Take the GPUs that train beside others that generate."""
    found = values.get("orchestration.num_training_workers")
    if found is not None and b.given("gpus") is None:
        b.set("gpus", found.whole(), found, "the workers that train")


# -- what is not modelled ------------------------------------------------------------------------------------------------


_BESIDE: Final[dict[str, tuple[str, Effect, str]]] = {
    "dpo": ("loss._component_", "more", "a reference model's pass without gradients, and its weights where all parameters train"),
    "kd": ("teacher_model._component_", "more", "a teacher's weights and its pass stand beside the student's"),
    "ppo": (
        "reward_and_value_model._component_",
        "more",
        "a reference, a reward and a value model stand beside the policy, the last is trained too, and answers are generated",
    ),
    "grpo": ("grpo_samples", "more", "answers are generated, and a reference model stands beside the policy"),
    "async-grpo": ("orchestration.num_inference_workers", "both", "other workers generate and score the answers"),
}


def _others(b: Builder, values: Values, kind: str) -> None:
    """Name what other recipes add to plain training."""
    if kind in _BESIDE:
        key, effect, why = _BESIDE[kind]
        found = values.get(key)
        if found is not None:
            b.doubt(found, effect, why)
        else:
            b.doubt_default(key, effect, why)
    if kind == "kd" and (second := values.get("kd_loss._component_")) is not None:
        b.doubt(second, "more-memory", "the loss against the teacher keeps log-probabilities of its own")
    quantizer = values.get("quantizer._component_")
    if quantizer is not None:
        b.doubt(quantizer, "more", "weights and activations are fake-quantised in every layer")


def _variables(b: Builder, document: Document) -> None:
    """Count values that only references read, none of which makes a setting: paths, or what the command overrides."""
    named = frozenset(re.findall(r"\$\{\s*([\w.]+)\s*\}", document.text))
    for found in [*document.untouched()]:
        if found.key in named and found.node.scalar:
            b.harmless(found)


FAMILY: Final = Family("torchtune", "torchtune (YAML, or tune run)", _claims, _read, _starts)
