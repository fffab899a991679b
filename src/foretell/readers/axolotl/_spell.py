"""Options written in the keys of an axolotl file.  Sources as in :mod:`foretell.readers.axolotl._run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change
from foretell.readers.hf._optimizers import optimizer_spelled
from foretell.readers.hf.deepspeed import deepspeed_spelled

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Builder, Spell, Value

__all__ = ["spelling"]

_PLAIN: Final = {
    "micro_batch": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "seq_len": "sequence_len",
    "lora_rank": "lora_r",
    "hsdp_replicas": "dp_replicate_size",
}
"""Whole numbers."""
_ATTENTION: Final = {
    "flash": "flash_attention_2",
    "sdpa": "sdpa",
    "eager": "eager",
    "flex": "flex_attention",
    "efficient": "xformers",
}
_FLAGS: Final = (
    "xformers_attention", "sage_attention", "flex_attention", "flash_attention", "sdp_attention", "eager_attention",
)  # fmt: skip
_OPTIMIZERS: Final = {"adamw4bit": "adamw_torch_4bit", "adamwfp8": "ao_adamw_fp8", "muon": "muon"}
_LIGER: Final = "axolotl.integrations.liger.LigerPlugin"
_CUT: Final = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def spelling(b: Builder, document: Document | None, *, adapters: bool, pairs: bool) -> Spell:
    """Return what writes an option; ``document``: DeepSpeed's configuration, a file or the axolotl file itself.

    ``pairs``: a sample is two sequences.
    """
    return _Spelling(b, document, adapters, pairs).spell


@dataclass(frozen=True)
class _Spelling:
    b: Builder
    document: Document | None
    adapters: bool
    pairs: bool

    @property
    def main(self) -> Document:
        return self.b.sources.main

    @property
    def framework(self) -> str:
        return str(self.b.given("framework"))

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        written: Callable[[str], list[Change] | None] | None = {
            "packing": self._packing,
            "compile": self._compile,
            "recompute": self._recompute,
            "offload": self._offload,
            "loss": self._loss,
            "attention": self._attention,
            "optimizer": self._optimizer,
            "lora_targets": self._targets,
            "quantization": self._quantization,
            "zero": self._zero,
            "tp": self._tensor,
        }.get(name)
        word = str(value).casefold() if isinstance(value, bool) else value
        if name == "micro_batch" and self.pairs:
            if int(word) % 2:
                return None
            word = str(int(word) // 2)
        if written is not None:
            return written(word)
        if name not in _PLAIN or (name == "lora_rank" and not self.adapters):
            return None
        if name == "hsdp_replicas" and not self.framework.startswith("fsdp"):
            return None
        changes = [self._change(_PLAIN[name], int(word)), *self._speed(name, word)]
        if name == "grad_accum" and self._there("batch_size"):  # axolotl takes one of the two
            changes.append(self._change("batch_size", None))
        return changes

    # -- places -------------------------------------------------------------------------------------------------

    def _change(self, key: str, value: Value | None) -> Change:
        given = self.b.sources.overrides
        return Change(given if given is not None and given.has(key) else self.main, key, value)

    def _there(self, key: str) -> bool:
        return any(d is not None and d.at(key) is not None for d in (self.b.sources.overrides, self.main))

    def _speed(self, name: str, value: str) -> list[Change]:
        """Return what DeepSpeed's configuration has to say beside it."""
        found = None if self.document is None else deepspeed_spelled(self.document, self._at, name, value)
        return found or []

    @property
    def _at(self) -> str:
        return "deepspeed" if self.document is self.main else ""

    def _sharded(self, key: str) -> str:
        """Return a key of fsdp_config as this file spells it."""
        plain = [f"fsdp_config.{prefix}{key}" for prefix in ("", "fsdp_")]
        if any(self._there(one) for one in plain):
            return next(one for one in plain if self._there(one))
        node = self.main.at("fsdp_config")
        names = node.value if node is not None and isinstance(node.value, dict) else {}
        return plain[any(name.startswith("fsdp_") and name != "fsdp_version" for name in names)]

    # -- options ------------------------------------------------------------------------------------------------

    def _packing(self, value: str) -> list[Change]:
        return [self._change("sample_packing", value == "true")]

    def _compile(self, value: str) -> list[Change]:
        return [self._change("torch_compile", value == "true")]

    def _recompute(self, value: str) -> list[Change] | None:
        if value not in ("none", "full"):
            return None
        own = self._sharded("activation_checkpointing")
        if self.framework.startswith("fsdp") and self._there(own):
            return [self._change(own, value == "full"), self._change("gradient_checkpointing", value=False)]
        return self._kept(value, offloaded="activations" in _parts(self.b.given("offload")))

    def _kept(self, recompute: str, *, offloaded: bool) -> list[Change] | None:
        """Return how activations are recomputed and offloaded: with adapters, plain offloading takes recomputation's place."""
        if offloaded and recompute == "none" and not self.adapters:
            return None
        way: Value = "hidden_states" if recompute == "full" else True
        changes = [self._change("gradient_checkpointing", recompute == "full" or offloaded)]
        if offloaded or self._there("activation_offloading"):
            changes.append(self._change("activation_offloading", way if offloaded else False))
        return changes

    def _offload(self, value: str) -> list[Change] | None:
        parts = _parts(value)
        if self.document is not None:
            return deepspeed_spelled(self.document, self._at, "offload", value)
        if self.framework.startswith("fsdp"):
            return [self._change(self._sharded("offload_params"), value=True)] if parts == {"params"} else None
        if self.framework != "hf-trainer" or parts != {"activations"}:
            return None
        return self._kept(str(self.b.given("recompute")), offloaded=True)

    def _plugins(self, *more: str) -> Change:
        found = self.b.sources.get("plugins")
        names = found.listed() if found is not None else ()
        return self._change("plugins", (*names, *(name for name in more if name not in names)))

    def _loss(self, value: str) -> list[Change] | None:
        if value == "fused":
            keys = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
            cut = [self._change("cut_cross_entropy", value=False)] if self._there("cut_cross_entropy") or self._cuts() else []
            return [self._plugins(_LIGER), *(self._change(key, value=True) for key in keys), *cut]
        liger = self.b.sources.get("liger_rms_norm")
        if value == "chunked-head" and liger is not None and liger.flag():
            return None  # Liger's kernels beside it make it "fused"
        if value == "chunked-head":
            return [
                self._plugins(_CUT),
                *([self._change("cut_cross_entropy", value=True)] if self._there("cut_cross_entropy") else []),
            ]
        return [self._change("chunked_cross_entropy", value=True)] if value == "chunked" else None

    def _cuts(self) -> bool:
        found = self.b.sources.get("plugins")
        return found is not None and any(name.endswith("CutCrossEntropyPlugin") for name in found.listed())

    def _attention(self, value: str) -> list[Change] | None:
        if value not in _ATTENTION:
            return None
        flags = [self._change(key, None) for key in _FLAGS if self._there(key)]
        return [self._change("attn_implementation", _ATTENTION[value]), *flags]

    def _optimizer(self, value: str) -> list[Change] | None:
        eight = "adamw_torch_8bit" if value == "adamw8bit" and self.framework == "fsdp2" else None
        spelled = eight or _OPTIMIZERS.get(value) or optimizer_spelled(value)
        return None if spelled is None else [self._change("optimizer", spelled)]

    def _targets(self, value: str) -> list[Change] | None:
        if not self.adapters:
            return None
        every = value == "all-linear"
        linear = [self._change("lora_target_linear", every)] if every or self._there("lora_target_linear") else []
        return linear if every else [*linear, self._change("lora_target_modules", tuple(value.split(",")))]

    def _quantization(self, value: str) -> list[Change] | None:
        if not self.adapters or value not in ("nf4", "int8"):
            return None
        four = value == "nf4"
        changes = [self._change("adapter", "qlora" if four else "lora")]
        for key, wanted in (("load_in_4bit", four), ("load_in_8bit", not four)):
            if wanted or self._there(key):
                changes.append(self._change(key, wanted))
        if four and self.b.given("double_quant") is None:
            changes.append(self._change("bnb_config_kwargs.bnb_4bit_use_double_quant", value=False))
        return changes

    def _zero(self, value: str) -> list[Change] | None:
        if self.document is not None:
            return deepspeed_spelled(self.document, self._at, "zero", value)
        if self.framework == "fsdp2" and value in ("2", "3"):
            return [self._change(self._sharded("reshard_after_forward"), value == "3")]
        return None

    def _tensor(self, value: str) -> list[Change] | None:
        return [self._change("tensor_parallel_size", int(value))] if self.framework == "fsdp2" else None


def _parts(value: Value | None) -> set[str]:
    if isinstance(value, tuple):
        return {*value}
    return {part for part in str(value).split(",") if part} if value is not None else set()
