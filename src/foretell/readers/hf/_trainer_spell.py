"""How arguments of the Trainer say an option."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change
from foretell.readers.hf._common import Section
from foretell.readers.hf._optimizers import optimizer_spelled
from foretell.readers.hf._training import Training
from foretell.readers.hf.accelerate import accelerate_spelled
from foretell.readers.hf.deepspeed import deepspeed_spelled

if TYPE_CHECKING:
    from foretell.readers._document import Document

__all__ = ["Spelling", "flag", "key_of", "spelled"]

Spelling = Callable[[str, str | bool], "list[Change] | None"]
_BATCH: Final = {
    "micro_batch": ("per_device_train_batch_size", "per_gpu_train_batch_size"),
    "grad_accum": ("gradient_accumulation_steps",),
}
_ATTENTIONS: Final = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager", "flex": "flex_attention"}


def key_of(section: Section, *names: str) -> tuple[Document, str]:
    """Return the document and key that says one of the names, or where the first of them would go: the last document."""
    for document, prefixes in section.places:
        for name in names:
            for prefix in prefixes:
                node = document.at(prefix + name)
                if node is not None and node.value is not None:
                    return document, prefix + name
    document, prefixes = section.places[-1]
    return document, prefixes[0] + names[0]


def flag(document: Document, key: str, on: bool) -> Change:
    """Return the change of a flag, which takes a word on a command line (hf_argparser.py ``string_to_bool``)."""
    return Change(document, key, str(on).lower() if document.form == "arguments" else on)


def spelled(section: Section, made: Training, sequence: tuple[str, ...], name: str, value: str | bool) -> list[Change] | None:
    """Return what to change so that a run of the Trainer has an option, or None where its files cannot say it."""
    if name in _BATCH:
        out = [Change(*key_of(section, *_BATCH[name]), int(value))]
        if made.deepspeed_at is not None:
            out += deepspeed_spelled(*made.deepspeed_at, name, value) or []
        if made.beside is not None:
            out += accelerate_spelled(made.beside, name, value) or []
        return out
    plain = _plain(section, made, sequence, name, value)
    if plain is not None:
        return plain
    if made.deepspeed_at is not None:
        return deepspeed_spelled(*made.deepspeed_at, name, value) or None
    if made.beside is not None:
        return accelerate_spelled(made.beside, name, value) or None
    return None


def _plain(section: Section, made: Training, sequence: tuple[str, ...], name: str, value: str | bool) -> list[Change] | None:
    """Return changes of the arguments themselves."""
    if name == "seq_len":
        document, key = key_of(section, *sequence)
        return [Change(document, key, int(value))] if document.at(key) is not None else None
    if name == "recompute" and value in ("full", "none"):
        document, key = key_of(section, "gradient_checkpointing", "activation_checkpointing")
        return [flag(document, key, on=value == "full")]
    if name == "loss" and value == "fused":
        return [flag(*key_of(section, "use_liger_kernel"), on=True)]
    if name == "compile" and value is True:
        return [flag(*key_of(section, "torch_compile"), on=True)]
    if name == "attention" and str(value) in _ATTENTIONS:
        return [Change(*key_of(section, "attn_implementation"), _ATTENTIONS[str(value)])]
    if name == "optimizer" and not (made.deepspeed is not None and made.deepspeed.optimizer):
        known = optimizer_spelled(str(value))
        return None if known is None else [Change(*key_of(section, "optim"), known)]
    return None
