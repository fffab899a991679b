"""Which profile answers for a measured training run's software."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.evidence.row_run import Skip
from foretell.machine.hardware import HardwareNode
from foretell.recipe.profile import Profile
from foretell.recipe.profiles import profile

__all__ = ["CHUNKS_OF_ONE", "DUALPIPE", "MEGATRON", "has", "profile_of", "words_of"]

MEGATRON: Final = ("megatron-lm", "megatron-core", "megatron-bridge", "nemo", "megascale")
"""Names of software that descends from Megatron-LM without a pipeline engine of another library."""
_PROFILES: Final = {
    "megatron-lm": ("megatron-core", ""),
    "megatron-core": ("megatron-core", ""),
    "megatron-bridge": ("megatron-bridge", ""),
    "nemo": ("megatron-bridge", ""),
    "megascale": ("megatron-core", "MegaScale as Megatron-Core with its exchanges pipelined with the products"),
    "megatron-deepspeed": ("megatron-deepspeed", ""),
    "gpt-neox": ("megatron-deepspeed", "GPT-NeoX as Megatron-DeepSpeed, which it descends from"),
    "nemo-automodel": ("generic", "NeMo AutoModel as the generic profile: FSDP2 around Transformer Engine's kernels"),
    "maxtext": ("generic", "MaxText as the generic profile: XLA fuses on its own"),
    **{
        name: (name, "")
        for name in (
            "torchtitan",
            "torchtune",
            "litgpt",
            "hf-trainer",
            "deepspeed",
            "fsdp1",
            "fsdp2",
            "llm-foundry",
            "torchao",
            "nanotron",
        )
    },
}
"""``software.framework`` -> (profile, what is said of it)."""
DUALPIPE: Final = ("hai-llm", "deepseek")
"""Words of trainers whose pipelines run DualPipe (arXiv 2412.19437, section 3.2)."""
CHUNKS_OF_ONE: Final = ("llama 3", "llama3", "meta")
"""Words of trainers whose chunks hold one layer: the first has the embedding alone, the last the loss (arXiv 2407.21783, 3.3)."""
_OTHERS: Final = (
    # part of a name, a version or a source's title, in small letters -> (profile, what is said of it)
    (DUALPIPE, ("generic", "DeepSeek's HAI-LLM as the generic profile")),
    (("metaseq", "opt"), ("generic", "metaseq as the generic profile: Megatron's tensor parallelism under FSDP")),
    (CHUNKS_OF_ONE, ("generic", "Meta's own trainer as the generic profile")),
    (("primus", "rocm", "megatron"), ("megatron-core", "a relative of Megatron-LM as Megatron-Core")),
    (("nemo",), ("megatron-bridge", "")),
    (("optimum", "habana", "gaudi"), ("generic", "Habana's fork as the generic profile")),
    (
        ("paxml", "praxis", "t5x", "palm", "pathways", "jax", "xla", "tpu"),
        ("generic", "as the generic profile: XLA fuses on its own"),
    ),
    (("fms", "torchtitan"), ("torchtitan", "")),
    (("fsdp",), ("fsdp2", "")),
    (("deepspeed",), ("deepspeed", "")),
    (("transformers", "trainer"), ("hf-trainer", "")),
)


def profile_of(row: Mapping[str, Any], hardware: HardwareNode) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile of a row's software and what should be said of the choice; Skip where none is near."""
    name = str(row["software"]["framework"])
    found = _PROFILES.get(name) or (_other(row) if name == "other" else None)
    if found is None:
        raise Skip(f"not-modelled: framework {_shown(row)!r}")
    if hardware.kind not in (None, "gpu", "tpu", "npu"):
        raise Skip(f"not-modelled: training on {hardware.name}")
    chosen, note = found
    parallel, notes = row["parallel"], [note] if note else []
    if not hardware.cuda_like and chosen != "generic":
        chosen = "generic"
        notes.append(f"{name} on {hardware.name} as the generic profile")
    if chosen == "megatron-core" and row["training"].get("peft"):
        chosen = "megatron-bridge"
        notes.append("adapters as Megatron-Bridge puts them on Megatron-Core")
    if chosen in ("fsdp1", "fsdp2") and any((parallel.get(key) or 1) > 1 for key in ("pp", "cp", "ep")):
        chosen = "torchtitan"
        notes.append(f"{name} with pipeline, context or expert parallelism as torchtitan")
    return profile(chosen), tuple(notes)


def words_of(row: Mapping[str, Any]) -> str:
    """What a row says of software that the enumeration has no name for, in small letters; nothing of others."""
    software = row["software"]
    if software["framework"] != "other":
        return ""
    texts = (software.get("name"), software.get("version"), row["source"]["title"])
    return " ".join(str(text) for text in texts if text).casefold()


def has(words: str, parts: tuple[str, ...]) -> bool:
    """Whether one of the parts stands in a text."""
    return any(part in words for part in parts)


def _other(row: Mapping[str, Any]) -> tuple[str, str] | None:
    words = words_of(row)
    return next((found for parts, found in _OTHERS if has(words, parts)), None)


def _shown(row: Mapping[str, Any]) -> str:
    software = row["software"]
    return str(software.get("name") or software.get("version") or software["framework"])[:60]
