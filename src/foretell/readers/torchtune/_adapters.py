"""The model of a torchtune run: its builder, its adapters, and which of its parts train.

Source: torchtune 0.7.0 (``torchtune/models``, ``torchtune/modules/peft``, ``torchtune/modules/model_fusion``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.torchtune._models import SIZES, Built, built
from foretell.readers.torchtune._run import VERSION

if TYPE_CHECKING:
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder

__all__ = ["adapters_of", "attention", "model", "parts_of"]

_DEFAULT: Final = f"default of torchtune {VERSION}'s model builders"
_TARGETS: Final = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}


def model(b: Builder, values: Values, at: str) -> Built:
    """Take the builder that ``at`` names, and whether its base is quantised."""
    found = values.get(f"{at}._component_") or values.get(at)
    if found is None or not found.node.scalar:
        b.needs("model", f"the file has no {at}")
        return Built(None)
    made = built(found, values, at)
    for name in SIZES:
        if (size := values.get(f"{at}.{name}")) is not None:
            b.harmless(size)
    if made.model is None:
        b.harmless(found)
        b.needs("model", f"{found.where}: {made.why}")
    else:
        b.model(made.model, found)
    base = values.get(f"{at}.quantize_base")
    quantized = made.quantized or (base is not None and base.flag())
    if quantized:
        b.set("quantization", "nf4", base or found, "linear layers; embedding, norms and head stay 16 bits wide")
        b.default("double_quant", True, "scales are quantised too (torchao to_nf4)")
    elif base is not None:
        b.harmless(base)
    return made


def adapters_of(b: Builder, values: Values, made: Built, at: str) -> None:
    """Take LoRA: the matrices of attention by name, those of the MLP and the head by a switch each."""
    found = {name: values.get(f"{at}.{name}") for name in (
        "lora_rank", "lora_attn_modules", "apply_lora_to_mlp", "apply_lora_to_output", "lora_dropout", "use_dora")}  # fmt: skip
    rank, names, mlp, head, dropout, dora = found.values()
    if rank is not None:
        b.set("lora_rank", rank.whole(maximum=2**20), rank)
    b.default("lora_rank", 8, f"{_DEFAULT}: 8")
    if names is None:
        b.needs("lora_targets", f"the file has no {at}.lora_attn_modules")
    else:
        words = names.listed()
        if any(word not in _TARGETS for word in words):
            raise names.error("holds a name that is no matrix of attention", allowed=sorted(_TARGETS))
        targets = [_TARGETS[word] for word in words]
        targets += ["gate_proj", "up_proj", "down_proj"] if mlp is not None and mlp.flag() else []
        targets += ["lm_head"] if head is not None and head.flag() else []
        b.set("lora_targets", tuple(targets), names, "with the MLP's and the head's, where they are switched on")
    for switch in (mlp, head):
        if switch is not None:
            b.harmless(switch)
    if dropout is not None:
        b.set("lora_dropout", dropout.real(minimum=0.0, maximum=1.0), dropout)
    b.default("lora_dropout", 0.0, _DEFAULT)
    if dora is not None and dora.flag():
        b.set("lora_kind", "dora", dora)
    elif dora is not None:
        b.harmless(dora)
    parts = {part: values.get(f"{at}.{part}_trainable") for part in ("decoder", "encoder", "fusion")}
    for part, one in parts.items():
        if one is None:
            continue
        word = one.text().strip().casefold()
        if word == "full":
            b.doubt(one, "more-memory", f"the {part} trains in full, and is counted with adapters")
        elif word == "frozen":
            b.doubt(one, "less-memory", f"the {part} has no adapters, and is counted with them")
        else:
            b.harmless(one)
    if made.fused is not None and parts["decoder"] is None:
        b.doubt_default(f"{at}.decoder_trainable", "less-memory", "the decoder has no adapters, and is counted with them")


def parts_of(b: Builder, values: Values, made: Built, at: str) -> None:
    """Take which parts of a model that reads images are trained (``modules/model_fusion``)."""
    parts = {part: values.get(f"{at}.{part}_trainable") for part in ("decoder", "encoder", "fusion")}
    for one in parts.values():
        if one is not None:
            b.harmless(one)
    if made.fused is None:
        return
    decoder, encoder, fusion = (None if one is None else one.flag() for one in parts.values())
    if decoder or encoder is False or fusion is False:
        place = next(one for one in parts.values() if one is not None)
        b.doubt(place, "memory", "parts train that are not those of torchtune's own recipes: all are counted")
        return
    why = f"{_DEFAULT}: the image encoder and the layers that look at images train"
    said = parts["decoder"]
    if said is not None:
        b.neutral[:] = [one for one in b.neutral if one.key != said.key]
        b.set("trainable_fraction", made.fused, said, "the image encoder and the layers that look at images train")
    b.default("trainable_fraction", made.fused, why)
    b.note("the parts that train are counted as an even share of all matrices")


def attention(b: Builder, made: Built) -> None:
    """Take the attention, which no key names."""
    if made.attention:
        b.default("attention", made.attention, "torchtune's Gemma 2 writes scores out (models/gemma2/_attention.py)")
    else:
        b.default("attention", "sdpa", "torchtune (modules/attention_utils.py)")
