"""How TRL trains: methods, what runs beside the model, lengths of samples and losses.

Sources: trl 1.9.0 and 0.19.1 (trainer/sft_trainer.py, dpo_trainer.py, kto_trainer.py, reward_trainer.py, grpo_trainer.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from foretell.readers._reading import Builder, Sources
from foretell.readers.hf._common import Section, one_of
from foretell.readers.hf._optimizers import float_of
from foretell.readers.hf._training import Defaults

__all__ = [
    "LENGTHS",
    "METHODS",
    "NEW",
    "OLD",
    "PAIRS",
    "SAMPLED",
    "Method",
    "lengths",
    "loss",
    "method_of",
    "method_settings",
    "paired",
]

NEW: Final = Defaults("TRL 1.9.0", checkpointing=True, mixed="bf16")
OLD: Final = Defaults("TRL 0.19.1", mixed="bf16", optimizer="adamw_torch", reentrant=True)
METHODS: Final = ("sft", "dpo", "orpo", "kto", "cpo", "simpo", "bco", "grpo", "rloo", "reward", "ppo", "gkd", "prm", "nash",
                  "xpo")  # fmt: skip
PAIRS: Final = frozenset(("dpo", "orpo", "cpo", "simpo", "reward"))
"""A sample is a pair of answers, which run as one batch (trainer/dpo_trainer.py ``concatenated_forward``)."""
_REFERENCES: Final = frozenset(("dpo", "kto", "bco"))
SAMPLED: Final = frozenset(("grpo", "rloo", "ppo", "gkd", "nash", "xpo"))
_BY_KEY: Final = (
    ("num_generations", "grpo"), ("desirable_weight", "kto"), ("center_rewards_coefficient", "reward"), ("simpo_gamma", "cpo"),
    ("cpo_alpha", "cpo"), ("num_ppo_epochs", "ppo"), ("precompute_ref_log_probs", "dpo"), ("beta", "dpo"),
)  # fmt: skip
LENGTHS: Final = ("max_seq_length", "max_length")
"""The old name is above the new one (0.19.1 trainer/sft_config.py ``__post_init__``)."""


@dataclass(frozen=True)
class Method:
    """How a model is trained, and what says so."""

    name: str
    why: str


def _named(sources: Sources) -> Method | None:
    """Return the method that the command or the file's path names."""
    launch = sources.launch
    if launch is not None and launch.name == "trl" and launch.words:
        return Method(launch.words[0].text, f"trl {launch.words[0].text}")
    places = [launch.name] if launch is not None else []
    places += reversed(re.split(r"[/\\~]", sources.main.path)[-3:])
    for place in places:
        words = re.findall(r"[a-z]+", place.casefold())
        named = next((name for name in METHODS if name in words), None)
        if named is not None:
            return Method(named, place)
    return None


def method_of(sources: Sources, section: Section) -> Method:
    """Return the method that the command, the file's path or its keys name."""
    named = _named(sources)
    if named is not None:
        return named
    for key, name in _BY_KEY:
        if any(document.has(prefix + key) for document, prefixes in section.places for prefix in prefixes):
            return Method(name, f"has {key}")
    return Method("sft", "no key of another method")


def lengths(b: Builder, section: Section, method: Method, own: Defaults) -> None:
    """Take the length of a sample: where answers are sampled, that of prompt and answer."""
    found, prompt, answer = one_of(b, section, *LENGTHS), section.get("max_prompt_length"), section.get("max_completion_length")
    if method.name in SAMPLED and found is None:
        if prompt is not None:
            size = 256 if answer is None else answer.whole()
            other = "256, the default of max_completion_length" if answer is None else f"{answer.key} in line {answer.node.line}"
            b.set("seq_len", prompt.whole() + size, prompt, f"with {other}")
        else:
            b.needs("seq_len", "nothing limits prompt and completion together")
            if answer is not None:
                b.harmless(answer)
        return
    for idle in (prompt, answer):
        if idle is not None:
            b.harmless(idle)
    if found is not None:
        b.set("seq_len", found.whole(), found)
    elif any(document.has(name) for document, _ in section.places for name in LENGTHS):
        b.needs("seq_len", "max_length null: samples are not cut")
    else:
        b.default("seq_len", 1024, f"default of {own.whose} (max_length)")
    packing = section.get("packing")
    if packing is not None and method.name == "sft":
        b.set("packing", packing.flag(), packing)
    elif packing is not None:
        b.harmless(packing)
    if method.name == "sft":
        b.default("packing", value=False, why=f"default of {own.whose}")


def loss(b: Builder, section: Section, method: Method, own: Defaults) -> None:
    """Since 1.7 the loss of sft projects and recomputes 256 tokens at a time."""
    found = section.get("loss_type")
    if method.name != "sft":
        if found is not None:
            b.harmless(found)
        return
    word = None if found is None else found.text().casefold()
    if word not in (None, "nll", "dft", "chunked_nll") and found is not None:
        raise found.error("is no loss of sft", allowed=("nll", "chunked_nll", "dft"))
    if b.given("loss") == "fused":
        if word == "chunked_nll" and found is not None:
            raise found.error("does not go with Liger's kernels: TRL refuses both")
        if found is not None:
            b.harmless(found)
    elif word == "chunked_nll" and found is not None:
        b.set("loss", "chunked-head", found)
    elif word == "dft" and found is not None:
        b.doubt(found, "more-memory", "the loss also weighs each token by its probability")
    elif found is not None:
        b.harmless(found)
    elif own is NEW:
        b.default("loss", "chunked-head", f"default of {own.whose}: chunked_nll (trainer/sft_config.py)")


def paired(b: Builder) -> None:
    """Count both answers of each pair, which run as one batch: the files' batches are in pairs."""
    for name in ("micro_batch", "global_batch"):
        batch = b.settings.get(name)
        if batch is not None and isinstance(batch.value, int):
            why = f"{batch.origin.why}: " if batch.origin.why else ""
            place = replace(batch.origin, why=f"{why}{batch.value} pairs, whose answers run as one batch")
            b.settings[name] = replace(batch, value=2 * batch.value, origin=place)


def method_settings(b: Builder, section: Section, method: Method, adapters: bool) -> None:
    """Say what else runs beside the model that trains."""
    name = method.name
    if name != "sft":
        b.note(f"read as {name.upper()} ({method.why})")
    if name in PAIRS:
        paired(b)
    known = section.get("precompute_ref_log_probs")
    if name in _REFERENCES and known is not None and known.flag():
        b.doubt(known, "more-memory", "a reference model runs over all samples before training")
    elif name in _REFERENCES:
        if known is not None:
            b.harmless(known)
        why = "adapters are switched off for a second forward pass" if adapters else "a frozen copy of the model runs beside it"
        b.doubt_default("reference model", "speed" if adapters else "more", why)
    elif known is not None:
        b.harmless(known)
    if name == "reward":
        b.doubt_default("head", "less-memory", "one score a sample, where logits of the vocabulary are counted")
    beta = section.get("beta")
    if beta is not None:
        b.harmless(beta)
    if name in SAMPLED:
        b.doubt_default("generation", "more", "answers are sampled between the steps: its memory and time are not counted")
        if name in ("ppo", "gkd", "nash", "xpo") or (beta is not None and float_of(beta.text()) > 0 and not adapters):
            b.doubt_default("other models", "more", "reference, reward or teacher models beside the one that trains")
    if name in ("prm", "bco"):
        b.doubt_default("loss", "memory", "another loss than that of language models")
