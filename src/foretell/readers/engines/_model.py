"""The model that an engine serves: its shape, where it is known here, and the format that its checkpoint is stored in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.errors import ForetellError

if TYPE_CHECKING:
    from foretell.arch.architecture import Architecture
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder

__all__ = ["Served", "held_format", "known_draft", "served_model"]

_FORMATS: Final = (
    ("nvfp4", r"nvfp4(?:-?w4a(?:4|16))?|fp4"),
    ("mxfp4", r"w?-?mxfp4(?:-a-fp8)?"),
    ("mxfp8", r"mxfp8"),
    ("fp8", r"(?:ptpc-|a8-)?fp8(?:[-_](?:dynamic|block|static-pertensor|kv|tensor))?|w8a8-fp8|float8"),
    ("int8", r"gptq-int8|int8|8bit|bnb-8bit|(?:quantized\.)?w8a(?:8|16)|w8a8-int8"),
    ("int4", r"awq(?:-int4|-4bit|-marlin)?|gptq(?:-int4|-4bit)?|int4|4bit|int4-autoround|(?:unsloth-)?bnb-4bit"),
    ("int4", r"(?:qat-)?(?:quantized\.)?w4a16(?:-ct)?(?:-g128)?"),
)
"""Format -> how names of re-quantised checkpoints end, after a dash, a dot or an underscore."""
_ENDINGS: Final = tuple((name, re.compile(rf"(.+?)[-._](?:{ending})", re.IGNORECASE)) for name, ending in _FORMATS)
_PLAIN: Final = str.maketrans("", "", " -_.")


@dataclass(frozen=True)
class Served:
    """A model as far as it is known while the flags are read."""

    name: str = ""
    architecture: Architecture | None = None
    """Of the language part; None where the model is not known here."""
    stored: str | None = None
    """Format that the checkpoint's name states, where its own file is not known."""

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 where there are none, or nothing is known."""
        return 0 if self.architecture is None else self.architecture.experts

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint is known to be stored quantised."""
        return self.stored is not None or (self.architecture is not None and self.architecture.quantized is not None)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sequence that the model's file allows."""
        return None if self.architecture is None else self.architecture.max_positions


def served_model(b: Builder, found: Found) -> Served:
    """Take the model; a re-quantised copy of one that is known is that one, in the format that the copy's name states."""
    name = found.text().strip()
    asked = b.sources.given.get("model")
    if isinstance(asked, str):  # the user's, in its place
        b.model(name, found)
        return Served(asked, _known(asked))
    known = _known(name)
    if known is not None:
        b.model(name, found)
        return Served(name, known)
    copied = held_format(name)
    base = None if copied is None else _base(name, copied[0])
    if copied is None or base is None:
        b.model(name, found)
        return Served(name, None, None if copied is None else copied[1])
    why = f"{name} is taken as {base} stored in {copied[1]}, by its name: which matrices stay in 16 bits is not known"
    b.model(base, found, why)
    b.set("weights", copied[1], found, why)
    b.note(why)
    return Served(base, _known(base), copied[1])


def held_format(name: str) -> tuple[str, str] | None:
    """Return the name of the model and the format, where the name of a checkpoint ends in one.

    >>> held_format("nvidia/Llama-3.1-8B-Instruct-FP8"), held_format("Qwen/Qwen3-8B-AWQ"), held_format("Qwen/Qwen3-8B")
    (('nvidia/Llama-3.1-8B-Instruct', 'fp8'), ('Qwen/Qwen3-8B', 'int4'), None)
    """
    for kind, ending in _ENDINGS:
        match = ending.fullmatch(name) if len(name) < 200 else None
        if match is not None:
            return match[1], kind
    return None


def known_draft(name: str) -> bool:
    """Whether a model that proposes tokens is known here."""
    return _known(name) is not None


def _known(name: str) -> Architecture | None:
    from foretell.arch import load_model  # noqa: PLC0415  # 60 ms

    try:
        model = load_model(name)
    except ForetellError:
        return None
    return model.architecture.text or model.architecture if model.has_shapes else None


def _base(name: str, base: str) -> str | None:
    """Return a name of the catalog for a copy's model: the owner's own, or the one name of another owner that is as long."""
    if _known(base) is not None:
        return base
    from foretell.catalog.loader import entries  # noqa: PLC0415  # 180 ms, for such names alone

    wanted = base.rpartition("/")[2].casefold().translate(_PLAIN)
    wanted_too = wanted.removeprefix("meta")  # "Meta-Llama-3.1-8B" is the older name of "Llama-3.1-8B"
    found = {
        str(entry["id"]): alias
        for entry in entries("model")
        for alias in (*entry.get("aliases", ()), str(entry["id"]))
        if str(alias).rpartition("/")[2].casefold().translate(_PLAIN).removeprefix("meta") in (wanted, wanted_too)
    }
    return str(next(iter(found.values()))) if len(found) == 1 and name else None
