"""The command that a vLLM recipe comes to: which words of the file make it, in the order in which they count.

Source: vllm-project/recipes 8959cf6 (src/lib/command-synthesis.js resolveCommand, pickDefaultHardware, resolveSingleNodeTp;
strategies/*.yaml; taxonomy.yaml).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._arguments import arguments
from foretell.readers._launch import Launcher
from foretell.readers._shell import Word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from foretell.readers._document import Document, Found
    from foretell.readers._tree import Node
    from foretell.readers.engines._flags import Grammar

__all__ = ["PROFILES", "Machine", "Plan", "plan_of", "words_document"]


@dataclass(frozen=True)
class Machine:
    """One node of a kind of the recipes."""

    brand: str
    generation: str
    gpus: int
    each_gb: float
    gpu: str | None
    """Its name here."""
    restricted: bool = False
    """Offered where a recipe names it alone."""


PROFILES: Final = {
    "h100": Machine("nvidia", "hopper", 8, 80, "h100-sxm-80gb"),
    "h200": Machine("nvidia", "hopper", 8, 141, "h200-sxm"),
    "b200": Machine("nvidia", "blackwell", 8, 180, "b200-sxm"),
    "gb200": Machine("nvidia", "blackwell", 4, 192, "gb200"),
    "b300": Machine("nvidia", "blackwell", 8, 268, "b300-sxm"),
    "gb300": Machine("nvidia", "blackwell", 4, 288, "gb300"),
    "dgx_station_gb300": Machine("nvidia", "blackwell", 1, 252, "gb300", restricted=True),
    "dgx_spark_gb10": Machine("nvidia", "blackwell", 1, 128, "gb10-dgx-spark", restricted=True),
    "rtx_pro_6000": Machine("nvidia", "blackwell", 1, 96, "rtxpro6000-blackwell", restricted=True),
    "rtx_pro_6000_2x": Machine("nvidia", "blackwell", 2, 96, "rtxpro6000-blackwell", restricted=True),
    "rtx_pro_6000_8x": Machine("nvidia", "blackwell", 8, 96, "rtxpro6000-blackwell", restricted=True),
    "rtx_pro_5000": Machine("nvidia", "blackwell", 1, 72, None, restricted=True),
    "rtx_pro_5000_4x": Machine("nvidia", "blackwell", 4, 72, None, restricted=True),
    "rtx_5090": Machine("nvidia", "blackwell", 1, 32, "rtx5090", restricted=True),
    "rtx_5090_2x": Machine("nvidia", "blackwell", 2, 32, "rtx5090", restricted=True),
    "rtx_4090_2x": Machine("nvidia", "ada", 2, 24, "rtx4090", restricted=True),
    "mi300x": Machine("amd", "amd", 8, 192, "mi300x"),
    "mi325x": Machine("amd", "amd", 8, 256, "mi325x"),
    "mi350x": Machine("amd", "amd", 8, 288, "mi350x"),
    "mi355x": Machine("amd", "amd", 8, 288, "mi355x"),
    "trillium": Machine("google", "tpu", 8, 32, "tpu-v6e", restricted=True),
    "ironwood": Machine("google", "tpu", 1, 192, "tpu-v7x", restricted=True),
    "xeon6": Machine("intel", "cpu", 4, 256, None, restricted=True),
    "xeon5": Machine("intel", "cpu", 4, 256, None, restricted=True),
    "arc_pro_b60": Machine("intel", "xpu", 4, 24, "arc-pro-b60-24gb", restricted=True),
    "arc_pro_b70": Machine("intel", "xpu", 4, 32, None, restricted=True),
    "ascend_950pr": Machine("huawei", "npu", 1, 128, None, restricted=True),
}
"""taxonomy.yaml, hardware_profiles."""

_STRATEGIES: Final[dict[str, tuple[str, ...]]] = {
    "single_node_tp": (),
    "single_node_tep": ("--enable-expert-parallel",),
    "single_node_dep": ("--enable-expert-parallel",),
    "multi_node_tp": (),
    "multi_node_dep": ("--enable-expert-parallel",),
    "multi_node_tep": ("--enable-expert-parallel",),
}
"""strategies/*.yaml: their own words."""
_SEVERAL: Final = ("multi_node_tp", "multi_node_dep", "multi_node_tep")
"""In the order in which they are recommended where one node is too small."""


@dataclass(frozen=True)
class Plan:
    """What was chosen, where the file leaves a choice, and the words."""

    machine_id: str
    machine: Machine
    strategy: str
    nodes: int
    words: tuple[tuple[str, Node], ...]
    """(key, node) of the file's words, in order."""
    parallel: tuple[tuple[str, int, Found | None], ...]
    """(flag, value, where it stands) of the strategy's own."""
    environment: tuple[str, ...]
    """Keys of mappings of environment variables."""


def plan_of(document: Document, gpu: str | None = None) -> Plan:
    """Return the command that a recipe recommends: the default variant on its default machine, or on ``gpu``."""
    name = _machine(document, gpu)
    machine = PROFILES[name]
    nodes = _nodes(document, machine)
    strategy = _strategy(document, nodes)
    lists = ["model.base_args", "variants.default.extra_args", f"variants.default.hardware_overrides.{name}.extra_args"]
    for key in (f"strategy_overrides.{strategy}",):
        lists += [f"{key}.vllm_args", f"{key}.extra_args"]
        lists += [f"{key}.hardware_overrides.{machine.generation}.extra_args" if document.has(
            f"{key}.hardware_overrides.{machine.generation}") else f"{key}.hardware_overrides.{machine.brand}.extra_args",
                  f"{key}.hardware_overrides.{name}.extra_args"]  # fmt: skip
    lists.append(_either(document, "hardware_overrides", machine) + ".extra_args")
    lists += _features(document, name, machine)
    words = tuple(pair for key in lists for pair in _words(document, key))
    maps = ["model.base_env", "variants.default.extra_env", _either(document, "hardware_overrides", machine) + ".extra_env",
            f"variants.default.hardware_overrides.{name}.extra_env"]  # fmt: skip
    parallel = tuple(_parallel(document, name, machine, strategy, nodes))
    return Plan(name, machine, strategy, nodes, words, parallel, tuple(maps))


def words_document(document: Document, plan: Plan, grammar: Grammar) -> Document:
    """Return the words as flags, each with its line in the recipe."""
    made = [Word(text, 1, 0, 0) for text in _STRATEGIES.get(plan.strategy, ())]
    for flag, value, found in plan.parallel:
        line = 1 if found is None else found.node.line
        made += [Word(flag, line, 0, 0), Word(str(value), line, 0, 0)]
    for _, node in plan.words:
        document.mark(node)
        text = str(node.value) if node.quoted else node.raw
        parts = text.split(None, 1) if text.startswith("--") else [text]  # "--max-model-len auto" in one
        made += [Word(part, node.line, node.start, node.start, node.quoted) for part in parts]
    launch = Launcher(document.path, document.text, "vllm", tuple(made))
    short = {name: key for name, key in grammar.short.items() if name.startswith("-")}
    return arguments(launch, launch.words, grammar.booleans, short, grammar.many, pairs=False)


def _text(document: Document, key: str) -> str:
    node = document.at(key)
    return str(node.value) if node is not None and node.scalar and node.value is not None else ""


def _listed(document: Document, key: str) -> list[str]:
    node = document.at(key)
    return [str(child.value) for child in node.value] if node is not None and isinstance(node.value, list) else []


def _machine(document: Document, gpu: str | None) -> str:
    """Return the machine: the asked one, the author's, Blackwell for 4-bit floats, or H200."""
    declared = document.at("meta.hardware")
    named = declared.value if declared is not None and isinstance(declared.value, dict) else {}
    supported = _listed(document, "variants.default.supported_hardware")
    precision = _text(document, "variants.default.precision")
    brand = _text(document, "variants.default.precision_hardware.brand").casefold()
    blackwell = precision in ("nvfp4", "fp4") and not document.has("variants.default.precision_hardware")

    def runs(name: str) -> bool:
        one = PROFILES[name]
        return (
            (not one.restricted or name in named)
            and _text(document, f"meta.hardware.{name}") != "unsupported"
            and (not supported or name in supported)
            and (not blackwell or one.generation == "blackwell")
            and (not brand or one.brand == brand)
        )

    asked = () if gpu is None else tuple(name for name, one in PROFILES.items() if one.gpu == gpu)
    wanted = (*asked, _text(document, "meta.default_hardware"), *(("b200", "gb200") if blackwell else ()), "h200")
    found = next((name for name in wanted if name in PROFILES and (name in asked or runs(name))), None)
    return found or next((name for name in PROFILES if runs(name)), "h200")


def _nodes(document: Document, machine: Machine) -> int:
    """Return how many nodes the stated minimum takes; one of those that cannot be joined."""
    least = document.get("variants.default.vram_minimum_gb")
    several = set(_SEVERAL) & {*_listed(document, "compatible_strategies")}
    if least is None or machine.restricted or not several:
        return 1
    return max(1, math.ceil(least.real(minimum=0.0, maximum=1e6) / (machine.each_gb * machine.gpus)))


def _strategy(document: Document, nodes: int) -> str:
    compatible = _listed(document, "compatible_strategies")
    if nodes > 1:
        return next(name for name in _SEVERAL if name in compatible)
    chosen = _text(document, "default_strategy")
    if chosen in compatible and chosen in _STRATEGIES:
        return chosen
    return "single_node_tp"


def _parallel(
    document: Document, name: str, machine: Machine, strategy: str, nodes: int
) -> Iterator[tuple[str, int, Found | None]]:
    """Yield the strategy's own flag: as many ranks as the file says, one where the stated minimum fits one GPU, or all."""
    if nodes > 1:
        yield "--nnodes", nodes, None
    if strategy.endswith("_dep"):
        yield "--data-parallel-size", machine.gpus * nodes, None
        return
    if strategy != "single_node_tp":
        yield "--tensor-parallel-size", machine.gpus * nodes, None
        return
    for key in ("variants.default.tp", "strategy_overrides.single_node_tp.tp"):
        for part in (key, *(f"{key}.{choice}" for choice in (name, machine.generation, machine.brand, "default"))):
            found = document.get(part) if document.at(part) is not None else None
            if found is not None and isinstance(found.node.value, dict):
                continue
            if found is not None:
                count = found.whole()
                yield "--tensor-parallel-size", count if machine.generation == "cpu" else min(count, machine.gpus), found
                return
    least = document.get("variants.default.vram_minimum_gb")
    fits = least is not None and least.real(minimum=0.0) <= machine.each_gb
    yield "--tensor-parallel-size", 1 if fits else machine.gpus, least


def _features(document: Document, name: str, machine: Machine) -> Iterator[str]:
    """Yield the lists of words of the features that are on by default."""
    node = document.at("features")
    off = _listed(document, "opt_in_features")
    for feature in node.value if node is not None and isinstance(node.value, dict) else ():
        key = f"features.{feature}"
        default = _text(document, f"variants.default.default_modes.{feature}")
        if feature in off and not default:
            continue
        modes = document.at(f"{key}.modes")
        if modes is not None and isinstance(modes.value, dict):
            mode = default or _text(document, f"{key}.default_mode") or next(iter(modes.value), "")
            key = f"{key}.modes.{mode}"
        own = next((place for choice in (name, machine.generation, machine.brand)
                    if document.has(place := f"{key}.hardware_overrides.{choice}.args")), f"{key}.args")  # fmt: skip
        yield own


def _either(document: Document, key: str, machine: Machine) -> str:
    own = f"{key}.{machine.generation}"
    return own if document.has(own) else f"{key}.{machine.brand}"


def _words(document: Document, key: str) -> Iterator[tuple[str, Node]]:
    node = document.at(key)
    if node is None or node.value is None:
        return
    if not isinstance(node.value, list) or not all(child.scalar for child in node.value):
        raise ConfigError("must be a list of words", field=key, where=document.where(node))
    document.mark(node)
    yield from ((f"{key}[{i}]", child) for i, child in enumerate(node.value))
