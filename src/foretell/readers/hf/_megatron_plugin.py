"""accelerate's Megatron-LM plugin: degrees and recomputation (accelerate 1.15.0 utils/dataclasses.py ``MegatronLMPlugin``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder
from foretell.readers.hf._common import Section

if TYPE_CHECKING:
    from foretell.readers._document import Found

__all__ = ["megatron_settings"]

_WHOLE: Final = (
    ("tp", "tp_degree"),
    ("pp", "pp_degree"),
    ("cp", "context_parallel_size"),
    ("ep", "expert_model_parallel_size"),
    ("etp", "expert_tensor_parallel_size"),
    ("grad_accum", "num_micro_batches"),
)


def megatron_settings(b: Builder, section: Section, where: Found | None) -> None:
    """Take the settings of ``megatron_lm_config``."""
    if where is not None:
        b.set("framework", "megatron-core", where)
    for name, key in _WHOLE:
        found = section.get(f"megatron_lm_{key}")
        if found is not None:
            b.set(name, found.whole(), found)
    found = section.get("megatron_lm_sequence_parallelism")
    if found is not None:
        b.set("sp", found.flag(), found)
    found = section.get("megatron_lm_use_distributed_optimizer")
    if found is not None:
        b.set("zero", int(found.flag()), found)
    found = section.get("megatron_lm_recompute_granularity")
    if found is not None:
        b.set("recompute", found.choice({"full": "full", "selective": "selective"}), found)
    found = section.get("megatron_lm_recompute_activations")
    if found is not None and found.flag():
        b.set("recompute", "selective", found)
    elif found is not None:
        b.harmless(found)
