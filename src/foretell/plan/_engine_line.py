"""A command line that is being written: flags by their names, what goes into a file beside it, and what a reader has to know."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.core.serving import Deployment
from foretell.recipe.serving import ServingRecipe

__all__ = ["CONFIG", "DRAFT", "MODEL", "Line", "kept_format", "number_type", "replicated", "stored_format", "version_of"]

MODEL: Final = "MODEL"
"""In place of a model that was not given as an engine takes it."""
DRAFT: Final = "DRAFT_MODEL"
CONFIG: Final = "config.yaml"

Values = dict[str, Any]


@dataclass
class Line:
    """A command line that is being written."""

    found: Deployment
    model: str
    draft: str
    asked: frozenset[str]
    """Flags that the user set."""
    words: list[str] = field(default_factory=list)
    config: Values = field(default_factory=dict)
    """Of a YAML file."""
    notes: list[str] = field(default_factory=list)
    copies: int = 1

    @property
    def recipe(self) -> ServingRecipe:
        return self.found.recipe

    def put(self, name: str, value: object = None, *, when: bool = True) -> None:
        """Write a flag; without a value: the flag alone."""
        if when:
            self.words += [name] if value is None else [name, _text(value)]

    def put_asked(self, **names: str) -> None:
        """Write the flags of a recipe that were asked for, by the names that the engine has for them."""
        for field_, name in names.items():
            if field_ in self.asked:
                self.put(name, getattr(self.recipe, field_))


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def version_of(line: Line) -> tuple[int, ...]:
    """Numbers of the engine's version, the newest where none was stated."""
    stated = re.findall(r"\d+", line.found.resolved.engine.version)
    return tuple(int(part) for part in stated) if line.recipe.version else (10**6,)


def number_type(line: Line) -> str | None:
    """16-bit type to be named: None where the engine takes it from the model's file."""
    arch = line.found.workload.architecture
    stored = str(arch.config.get("dtype") or arch.config.get("torch_dtype") or "").removeprefix("torch.")
    wanted = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(line.recipe.weights)
    return None if wanted is None or wanted == stored else wanted


def stored_format(line: Line, online: tuple[str, ...] = ()) -> str | None:
    """Return the format that the engine is to quantise to while it loads; else say what the checkpoint has to be.

    ``online``: formats that it can make of 16 bits.
    """
    weights = line.recipe.weights
    if weights in ("bf16", "fp16", "fp32"):
        return None
    if line.found.workload.architecture.quantized is not None:
        return None  # the checkpoint says how it is stored
    if weights in online:
        return weights
    line.notes.append(f"the checkpoint has to be stored in {weights}: the engine reads that from its files")
    return None


def kept_format(line: Line, names: dict[str, str]) -> str | None:
    """Return the engine's name of the format of keys and values; None for its default of 16 bits."""
    kv = str(line.recipe.kv)
    if kv in ("bf16", "fp16", "auto"):
        return None
    if kv not in names:
        line.notes.append(f"keys and values in {kv}: not a format that this engine is known to keep")
        return None
    return names[kv]


def replicated(line: Line, name: str | None, *, experts: bool = True) -> None:
    """Write copies that share nothing: one flag inside a node, where the engine has one, else several starts."""
    r = line.recipe
    if r.dp_kind == "attention" or r.dp == 1:
        return
    inside = r.devices <= line.found.topology.gpus_per_node
    if name is not None and inside and (experts or not line.found.steps.arch.experts):
        line.put(name, r.dp)
    else:
        line.copies = r.dp
