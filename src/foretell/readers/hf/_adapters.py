"""Adapters and quantised bases as scripts of PEFT, TRL and QLoRA spell them.

Sources: trl 1.9.0 (trainer/model_config.py ``ModelConfig``, trainer/utils.py), peft 0.21.2 (utils/constants.py), transformers
5.24.0 (utils/quantization_config.py ``BitsAndBytesConfig``); peft examples/sft, artidoro/qlora and FastChat for other spellings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder
from foretell.readers.hf._common import Section, one_of, take

if TYPE_CHECKING:
    from foretell.readers._document import Found

__all__ = ["adapter_settings", "quantization_settings"]

_ON: Final = ("use_peft", "use_lora", "use_peft_lora", "lora_enable", "use_qlora", "q_lora")
_RANK: Final = ("lora_r", "lora_rank", "lora_dim")
_TARGETS: Final = ("lora_target_modules", "target_modules", "lora_targets", "lora_modules")
_DEFAULT_TARGETS: Final = ("q_proj", "v_proj", "query_key_value", "c_attn")
"""PEFT's own, by the model's type (utils/constants.py): queries and values, or the projection that holds both."""
_KINDS: Final = {"lora": "lora", "qlora": "lora", "dora": "dora"}
_FOUR: Final = ("load_in_4bit", "use_4bit_quantization")
_EIGHT: Final = ("load_in_8bit", "use_8bit_quantization")


def adapter_settings(
    b: Builder, section: Section, *, switch: str = "", rank: int = 16, dropout: float = 0.05, whose: str
) -> bool:
    """Take low-rank adapters; return whether there are any.

    ``switch``: the one key that turns them on (else any of many, or a rank alone); ``rank``, ``dropout``: defaults of ``whose``.
    """
    turned = one_of(b, section, *((switch,) if switch else _ON))
    given = one_of(b, section, *_RANK)
    whole = section.get("full_finetune")
    on = turned.flag() if turned is not None else given is not None and not switch
    if not switch and given is not None and given.node.value == 0:  # DeepSpeed-Chat: --lora_dim 0
        on = False
    if whole is not None and whole.flag():
        on = False
    if whole is not None:
        b.harmless(whole)
    if turned is not None and (not on or given is not None):
        b.harmless(turned)
    others = [
        one_of(b, section, *_TARGETS),
        section.get("lora_dropout"),
        one_of(b, section, "lora_modules_to_save", "modules_to_save"),
    ]
    kind = one_of(b, section, "lora_kind", "peft_type", "use_dora")
    if not on:
        for found in (given, *others, kind):
            if found is not None:
                b.harmless(found)
        return False
    if given is not None:
        b.set("lora_rank", given.whole(), given)
    elif turned is not None:
        b.set("lora_rank", rank, turned, f"rank {rank} is the default of {whose}")
    _targets(b, others[0], whose)
    if others[1] is not None:
        b.set("lora_dropout", others[1].real(minimum=0.0, maximum=1.0), others[1])
    b.default("lora_dropout", dropout, f"default of {whose}")
    if others[2] is not None:
        b.set("modules_to_save", others[2].listed(), others[2])
    _kind(b, kind)
    return True


def _targets(b: Builder, found: Found | None, whose: str) -> None:
    if found is None:
        b.default("lora_targets", _DEFAULT_TARGETS, f"default of {whose}: PEFT's, by the kind of model (utils/constants.py)")
        return
    names = tuple("all-linear" if name.replace("_", "-") in ("all-linear", "all") else name for name in found.listed())
    if not all(re.fullmatch(r"[\w.\-*?]+", name) for name in names):
        b.doubt(found, "memory", "a regular expression: which matrices it means is not found out")
        b.needs("lora_targets", f"{found.where}: {found.key} is a regular expression")
        return
    b.set("lora_targets", names, found)


def _kind(b: Builder, found: Found | None) -> None:
    if found is None:
        return
    if found.key.endswith("use_dora"):
        if found.flag():
            b.set("lora_kind", "dora", found)
        else:
            b.harmless(found)
        return
    word = found.text().strip().casefold()
    if word in _KINDS:
        b.set("lora_kind", _KINDS[word], found)
    else:
        b.doubt(found, "both", "another kind of adapter than LoRA")


def quantization_settings(b: Builder, section: Section, *, adapters: bool) -> bool:
    """Take the format of a frozen base; return whether it is quantised."""
    four, eight, bits, both = (
        one_of(b, section, *_FOUR),
        one_of(b, section, *_EIGHT),
        section.get("bits"),
        section.get("q_lora", "use_qlora"),
    )
    kind = section.get("bnb_4bit_quant_type", "quant_type")
    double = section.get("use_bnb_nested_quant", "use_nested_quant", "bnb_4bit_use_double_quant", "double_quant")
    storage = one_of(b, section, "bnb_4bit_quant_storage", "bnb_4bit_quant_storage_dtype")
    others = (one_of(b, section, "bnb_4bit_compute_dtype", "compute_dtype"), storage)
    count = 0 if bits is None else bits.whole(minimum=1, maximum=32)
    narrow = (four is not None and four.flag()) or count == 4 or (both is not None and both.flag())
    wide = (eight is not None and eight.flag()) or count == 8
    where = next((f for f in (four, bits, both) if f is not None), None) if narrow else eight or bits
    if narrow and wide and eight is not None:
        raise eight.error("cannot be on beside 4 bits", hint="Leave one of them out")
    on = where is not None and (narrow or wide)
    if on and where is not None and not adapters:
        raise where.error("needs adapters: a quantised base is frozen", hint="Turn LoRA on, or this off")
    if on and where is not None:
        form = kind.choice({"nf4": "nf4", "fp4": "fp4"}) if kind is not None and narrow else "nf4"
        why = f"with {kind.key} in line {kind.node.line}" if kind is not None and narrow else ""
        take(b, "quantization", "int8" if wide else form, where, why)
    if on and double is not None and narrow and double.flag():
        b.set("double_quant", True, double)
    sharded = str(b.given("framework")).startswith("fsdp") or (b.given("framework") == "deepspeed" and b.given("zero") == 3)
    if on and narrow and sharded and (storage is None or storage.text() == "uint8"):
        why = "4-bit weights stored as uint8 are not sharded (accelerate utils/fsdp_utils.py): every GPU holds all of them"
        b.doubt_default("bnb_4bit_quant_storage", "more-memory", why)
    for found in (four, eight, bits, kind, double, *others):
        if found is not None and not (on and (found is where or (narrow and found in (kind, double)))):
            b.harmless(found)
    return on
