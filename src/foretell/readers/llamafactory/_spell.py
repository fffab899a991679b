"""Options written in the keys of a LLaMA-Factory file.  Sources as in :mod:`foretell.readers.llamafactory._run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change
from foretell.readers.hf._trainer_spell import key_of, spelled
from foretell.readers.llamafactory._run import PAIRED

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Builder, Spell, Value
    from foretell.readers.hf._common import Section
    from foretell.readers.hf._training import Training

__all__ = ["spelling"]

_ATTENTIONS: Final = {"flash": "fa2", "sdpa": "sdpa", "eager": "disabled"}
_DEGREES: Final = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
}
_SHARED: Final = ("micro_batch", "grad_accum", "seq_len", "lora_rank")
"""Options that runs on Megatron-Core have in the same keys."""
_SWITCHES: Final = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")


def spelling(b: Builder, section: Section, made: Training, kind: str) -> Spell:
    """Return what writes an option; ``kind``: the stage."""
    return _Spelling(b, section, made, kind).spell


@dataclass(frozen=True)
class _Spelling:
    b: Builder
    section: Section
    made: Training
    kind: str

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        if name in ("micro_batch", "global_batch") and self.kind in PAIRED:
            return self._said(name, str(int(value) // 2)) if int(value) % 2 == 0 else None
        return self._said(name, value)

    def _said(self, name: str, value: str | bool) -> list[Change] | None:
        kind = self.section.get("finetuning_type")
        adapters = self.b.given("lora_rank") is not None and (kind is None or kind.text() == "lora")
        word = str(value).casefold() if isinstance(value, bool) else value
        if str(self.b.given("framework")).startswith("megatron") and name not in _SHARED:
            return self._megatron(name, word)
        if name == "seq_len":
            return [self._change("cutoff_len", int(word))]
        if name == "packing":
            return [self._change("packing", word == "true")] if self.kind in ("pt", "sft") else None
        if name == "recompute" and word in ("full", "none"):
            changes = [self._change("disable_gradient_checkpointing", word == "none")]
            asked = self._key("gradient_checkpointing")
            return [*changes, Change(*asked, value=False)] if word == "none" and asked[0].at(asked[1]) is not None else changes
        if name == "offload" and word == "activations" and self.b.given("recompute") == "full":
            return [self._change("use_unsloth_gc", value=True)] if self.b.given("framework") == "hf-trainer" else None
        if name == "loss":
            return [self._change("enable_liger_kernel", value=True)] if word == "fused" and self.kind in ("pt", "sft") else None
        if name == "attention":
            return [self._change("flash_attn", _ATTENTIONS[word])] if word in _ATTENTIONS else None
        if name in ("lora_rank", "lora_targets", "quantization", "double_quant"):
            return self._adapter(name, word) if adapters else None
        if name == "optimizer" and any(self.section.flag(key) for key in _SWITCHES):
            return None
        return spelled(self.section, self.made, ("cutoff_len",), name, value)

    def _megatron(self, name: str, value: str) -> list[Change] | None:
        """Return what Megatron-Core's own arguments say."""
        if name in _DEGREES:
            return [self._change(_DEGREES[name], int(value))]
        if name == "recompute":
            return [Change(*self._key("recompute_granularity"), None if value == "none" else value)]
        if name == "zero" and value in ("0", "1"):
            return [self._change("use_distributed_optimizer", value == "1")]
        return [self._change("sequence_parallel", value == "true")] if name == "sp" else None

    def _adapter(self, name: str, value: str) -> list[Change] | None:
        if name == "lora_rank":
            return [self._change("lora_rank", int(value))]
        if name == "lora_targets":
            return [self._change("lora_target", "all" if value == "all-linear" else value)]
        if name == "double_quant":
            return [self._change("double_quantization", value == "true")]
        if value not in ("nf4", "int8"):
            return None
        changes = [self._change("quantization_bit", 4 if value == "nf4" else 8)]
        if value == "nf4" and self.b.given("double_quant") is None:
            changes.append(self._change("double_quantization", value=False))
        return changes

    def _key(self, name: str) -> tuple[Document, str]:
        return key_of(self.section, name)

    def _change(self, name: str, value: Value) -> Change:
        return Change(*self._key(name), value)
