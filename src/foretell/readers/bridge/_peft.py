"""Adapters of Megatron-Bridge and NeMo.

Source: NVIDIA-NeMo/Megatron-Bridge ``src/megatron/bridge/peft/lora.py``, ``canonical_lora.py``, ``dora.py`` (2026-08);
NVIDIA/NeMo v2.4 ``examples/nlp/language_modeling/tuning/conf/megatron_gpt_finetuning_config.yaml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.bridge._fields import short

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder, Sources

__all__ = ["adapters"]

_QKV: Final = ("q_proj", "k_proj", "v_proj")
_UP: Final = ("gate_proj", "up_proj")
_TARGETS: Final = {
    "linear_qkv": _QKV, "linear_q": ("q_proj",), "linear_k": ("k_proj",), "linear_v": ("v_proj",), "linear_proj": ("o_proj",),
    "linear_fc1": _UP, "linear_fc1_up": ("up_proj",), "linear_fc1_gate": ("gate_proj",), "linear_fc2": ("down_proj",),
    "attention_qkv": _QKV, "attention_dense": ("o_proj",), "mlp_fc1": _UP, "mlp_fc2": ("down_proj",),
    "attention": (*_QKV, "o_proj"), "mlp": (*_UP, "down_proj"), "all": ("all-linear",),
    "linear_q_down_proj": ("q_a_proj",), "linear_q_up_proj": ("q_b_proj",), "linear_kv_down_proj": ("kv_a_proj_with_mqa",),
    "linear_kv_up_proj": ("kv_b_proj",), "linear_q_proj": ("q_proj",), "in_proj": ("in_proj",), "out_proj": ("out_proj",),
}  # fmt: skip
"""Megatron-Core's merged matrices -> those that a model has here."""
_EVERY: Final = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}
_NONE: Final = ("none", "null", "")


def adapters(b: Builder, sources: Sources) -> bool:
    """Take low-rank adapters; returns whether there are any."""
    kind, old = sources.get("peft._target_", "model_transform._target_"), sources.get("model.peft.peft_scheme", "peft")
    if kind is not None:
        name = short(kind)
        if name not in ("lora", "dora", "canonicallora"):
            b.doubt(kind, "both", "adapters of this kind have no description here: all of the model trains")
            return False
        _lora(
            b, sources, "peft" if kind.key.startswith("peft") else "model_transform", kind, "dora" if name == "dora" else "lora"
        )
        return True
    if old is None or not old.node.scalar or old.text().casefold() in _NONE:
        return False
    if old.text().casefold() not in ("lora", "dora", "qlora"):
        b.doubt(old, "both", "adapters of this kind have no description here: all of the model trains")
        return False
    _lora(b, sources, "model.peft.lora_tuning", old, "dora" if old.text().casefold() == "dora" else "lora")
    return True


def _lora(b: Builder, sources: Sources, place: str, found: Found, kind: str) -> None:
    rank, targets = sources.get(f"{place}.dim", f"{place}.adapter_dim"), sources.get(f"{place}.target_modules")
    dropout = sources.get(f"{place}.dropout", f"{place}.adapter_dropout")
    if rank is None:
        b.default("lora_rank", 32, "default of Megatron-Bridge and NeMo (peft/lora.py)")
    else:
        b.set("lora_rank", rank.whole(), rank)
    b.set("lora_kind", kind, found)
    if dropout is not None:
        b.set("lora_dropout", dropout.real(minimum=0, maximum=1), dropout)
    if targets is None:
        b.default("lora_targets", ("all-linear",), "default of Megatron-Bridge and NeMo: the four matrices of a layer")
        return
    names = [name.rpartition(".")[2] for name in targets.listed()]
    strange = sorted(set(names) - set(_TARGETS))
    if any("*" in name for name in targets.listed()):
        b.doubt(targets, "both", "adapters on some layers only: all layers get them")
    elif strange:
        b.doubt(targets, "both", f"adapters on {strange[0]} have no description here")
    made = ("all-linear",) if set(names) >= _EVERY else tuple(
        dict.fromkeys(part for name in names for part in _TARGETS.get(name, ()))
    )  # fmt: skip
    b.set("lora_targets", made or ("all-linear",), targets)
