"""What files of Hugging Face's libraries share: tables of keys, places where a key may stand, names of formats and kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ForetellError
from foretell.readers._reading import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretell.machine import HardwareNode
    from foretell.readers._document import Document, Found
    from foretell.readers._reading import Builder, Effect, Sources

__all__ = [
    "ACCELERATE_VERSION",
    "HF_VERSION",
    "Section",
    "Tables",
    "attention_settings",
    "card",
    "dtype_name",
    "inline",
    "named_file",
    "offloaded",
    "one_of",
    "placed",
    "take",
]

HF_VERSION: Final = "5.24.0"
"""Of transformers, whose defaults are taken."""
ACCELERATE_VERSION: Final = "1.15.0"


@dataclass(frozen=True)
class Tables:
    """Keys that a reader does not look at: harmless ones, and those that change a run in ways that are not modelled."""

    neutral: frozenset[str] = frozenset()
    unmodelled: Mapping[str, tuple[Effect, str]] = field(default_factory=dict)
    off: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Key -> values that mean that it is not used."""

    def under(self, *prefixes: str) -> Tables:
        """Return the tables of keys below each prefix ("deepspeed.", "fsdp_config.fsdp_")."""
        return Tables(
            frozenset(prefix + key for key in self.neutral for prefix in prefixes),
            {prefix + key: about for key, about in self.unmodelled.items() for prefix in prefixes},
            {prefix + key: values for key, values in self.off.items() for prefix in prefixes},
        )

    def __or__(self, other: Tables) -> Tables:
        """Return both; what the second says of a key counts."""
        return Tables(self.neutral | other.neutral, {**self.unmodelled, **other.unmodelled}, {**self.off, **other.off})

    def rest(self, b: Builder, document: Document) -> None:
        """Account for what nobody looked at in a document."""
        if document.root.value == {}:  # a command without arguments
            document.mark(document.root)
        b.rest(document, self.neutral, self.unmodelled, off=self.off)


@dataclass(frozen=True)
class Section:
    """Where keys are looked up: documents in the order of precedence, each with the prefixes that a key may have there."""

    places: tuple[tuple[Document, tuple[str, ...]], ...]

    @classmethod
    def of(cls, document: Document, *prefixes: str) -> Section:
        """Return the keys of one document ("" is its top level)."""
        return cls(((document, prefixes or ("",)),))

    def __or__(self, other: Section) -> Section:
        """Return this section above another."""
        return Section(self.places + other.places)

    def get(self, *names: str) -> Found | None:
        """Return the first value that one of the names has; all of them count as looked at."""
        out: Found | None = None
        for document, prefixes in self.places:
            found = document.get(*(prefix + name for name in names for prefix in prefixes))
            out = out or found
        return out

    def flag(self, *names: str) -> bool:
        """Whether one of the names is there and on."""
        found = self.get(*names)
        return found is not None and found.flag()


def card(b: Builder) -> HardwareNode | None:
    """Return the accelerator that the user names; None where nobody does, or it is not known here."""
    asked = b.sources.given.get("gpu")
    if not isinstance(asked, str):
        return None
    from foretell.machine import load_hardware  # noqa: PLC0415  # where one is named

    try:
        return load_hardware(asked)
    except ForetellError:
        return None


_DTYPES: Final = {
    "auto": "auto",
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}


def dtype_name(found: Found) -> str:
    """Return bf16, fp16, fp32 or auto for any spelling of a torch dtype ("torch.bfloat16")."""
    word = found.text().strip().casefold().removeprefix("torch.")
    if word not in _DTYPES:
        raise found.error("is no format that weights are loaded in", allowed=("auto", "bfloat16", "float16", "float32"))
    return _DTYPES[word]


_ATTENTIONS: Final = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention_4": "flash",
    "flex_attention": "flex",
}
"""``attn_implementation`` (transformers 5.24.0 modeling_utils.py ``AttentionInterface``)."""


def attention_settings(b: Builder, found: Found) -> None:
    """Take ``attn_implementation``: a name, or a kernel of the Hub ("kernels-community/flash-attn")."""
    word = found.text().strip().casefold().removeprefix("paged|")
    if "/" in word:
        if "flash" in word:
            b.set("attention", "flash", found)
        else:
            b.doubt(found, "both", "a kernel of the Hub: what it keeps is not known here")
        return
    if word not in _ATTENTIONS:
        raise found.error("is no attention of transformers", allowed=sorted(_ATTENTIONS))
    b.set("attention", _ATTENTIONS[word], found)


def inline(found: Found) -> dict[str, Any]:
    """Return a mapping as plain data: one of the file, or JSON as a command line has it."""
    if not found.node.scalar:
        found.mapping()
        return dict(found.value)
    text = found.text().strip()
    try:
        data = json.loads(text) if text.startswith("{") and len(text) <= 65536 else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise found.error("must be a mapping", allowed='{"name": value}')
    return data


def take(b: Builder, name: str, value: str | int | bool, found: Found, why: str = "") -> None:
    """Take a setting from a value that was counted among the harmless ones until now."""
    b.neutral[:] = [one for one in b.neutral if (one.key, one.origin.path, one.origin.line) != _place(found)]
    b.set(name, value, found, why)


def _place(found: Found) -> tuple[str, str, int]:
    return found.key, found.document.path, found.node.line


def placed(sources: Sources, file: Document | None) -> tuple[Document, ...]:
    """Put a command's arguments in their place, above the file that they name or alone; return them by precedence."""
    if sources.main.form == "arguments" and sources.overrides is not None:
        if file is None:
            sources.main, sources.overrides = sources.overrides, None
        else:
            sources.main = file
    documents = tuple(one for one in (sources.overrides, sources.main) if one is not None)
    for document in documents:
        if not isinstance(document.root.value, dict):
            raise refused(document, "is no mapping of names to values, which describes no run")
    return documents


def one_of(b: Builder, section: Section, *names: str) -> Found | None:
    """Return the first of several names for one thing; others that are given count as harmless."""
    out: Found | None = None
    for name in names:
        found = section.get(name)
        if found is not None and out is not None:
            b.harmless(found)
            b.note(f"{found.where}: {found.key} is not read beside {out.key}")
        out = out or found
    return out


def named_file(b: Builder, section: Section, *keys: str) -> None:
    """Account for what named the file of a command's arguments."""
    found = section.get(*keys)
    if found is not None and b.sources.main.form == "arguments" and found.text().endswith((".yaml", ".yml", ".json")):
        b.doubt(found, "both", "names a file that is not here")
    elif found is not None:
        b.harmless(found)


def offloaded(b: Builder, moved: list[tuple[str, Found]]) -> None:
    """Take what is kept in host memory: one option, of as many keys as there are parts."""
    if moved:
        others = ", ".join(f"{found.key} in line {found.node.line}" for _, found in moved[1:])
        b.set("offload", tuple(name for name, _ in moved), moved[0][1], f"with {others}" if others else "")
