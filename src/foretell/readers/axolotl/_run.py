"""What an axolotl file says of its run: model, batch, formats, adapters, with axolotl's own defaults.

Sources: axolotl 0.18.0 (``utils/schemas/*.py``, ``utils/config/__init__.py``, ``loaders/model.py``, ``loaders/adapter.py``,
``core/builders/base.py``), which pins transformers 5.14.1, accelerate 1.13.0, peft 0.19.1 and torch 2.11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers.hf._common import card
from foretell.readers.hf._targets import listed_targets

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder

__all__ = ["DEFAULT", "VERSION", "Weights", "adapter", "adapter_kernels", "batch", "length", "model", "on", "weights"]

VERSION: Final = "0.18.0"
DEFAULT: Final = f"default of axolotl {VERSION}"


@dataclass(frozen=True, slots=True)
class Weights:
    """How the model is loaded, and whether autocast runs over it."""

    stored: str
    """bf16, fp16 or fp32."""
    autocast: bool
    said: Found | None
    """What decided it; None: the default."""


def on(b: Builder, *keys: str) -> Found | None:
    """Return an option that is there and on; one that is off changes nothing."""
    found = b.sources.get(*keys)
    if found is not None and not found.flag():
        b.harmless(found)
        return None
    return found


def model(b: Builder) -> None:
    """Take the model; its configuration may come from elsewhere (``loaders/utils.py`` load_model_config)."""
    named, configured = b.sources.get("base_model"), b.sources.get("base_model_config")
    found = configured or named
    if found is None:
        b.needs("model", "the file has no base_model")
    else:
        b.model(found.text().strip(), found)
    for key in ("model_config", "overrides_of_model_config"):
        aside = b.sources.get(f"{key}.output_router_logits")
        if aside is not None:
            b.harmless(aside)
    loaded, how = (b.sources.get(key) for key in ("model_quantization_config", "model_quantization_config_kwargs.dequantize"))
    if loaded is not None and how is not None and how.flag():
        b.harmless(loaded)
        b.note(f"{loaded.where}: the checkpoint is dequantised while it is loaded")


def batch(b: Builder) -> None:
    """Take the batch."""
    micro, passes, whole = (b.sources.get(key) for key in ("micro_batch_size", "gradient_accumulation_steps", "batch_size"))
    if micro is not None:
        b.set("micro_batch", micro.whole(), micro)
    b.default("micro_batch", 1, f"{DEFAULT} (utils/schemas/training.py)")
    if passes is not None:
        b.set("grad_accum", passes.whole(), passes)
    b.default("grad_accum", 1, f"{DEFAULT} (utils/schemas/training.py)")
    if whole is None:
        return
    if passes is not None:
        raise whole.error("cannot be beside gradient_accumulation_steps: axolotl takes one of them", hint="Leave it out")
    b.harmless(whole)
    b.note(
        f"{whole.where}: batch_size has no effect: axolotl {VERSION} has filled gradient_accumulation_steps with 1 before it"
        " looks (utils/schemas/training.py, utils/config normalize_config)"
    )


def length(b: Builder) -> None:
    """Take the length of a sample, and whether samples are packed."""
    found = b.sources.get("sequence_len")
    if found is not None:
        b.set("seq_len", found.whole(), found)
    b.default("seq_len", 512, f"{DEFAULT} (utils/schemas/config.py)")
    packed, padded = b.sources.get("sample_packing"), b.sources.get("pad_to_sequence_len")
    if packed is not None and packed.flag():
        b.set("packing", True, packed)
        return
    if packed is not None:
        b.set("packing", False, packed)
    b.default("packing", False, f"{DEFAULT}: samples are padded to the longest of their batch (core/builders/causal.py)")
    streams = b.sources.get("pretraining_dataset") is not None
    if not streams and (padded is None or not padded.flag()):
        b.note(
            f"samples are not packed: the longest of a batch decides, taken as sequence_len = {b.given('seq_len')};"
            " with shorter ones: --set max_sample_len=N"
        )


def weights(b: Builder) -> Weights:
    """Return the format that the model is loaded in (``utils/config`` resolve_dtype, ``loaders/model.py``)."""
    half, fp16, pure, pure16 = b.sources.get("bf16"), on(b, "fp16"), on(b, "bfloat16"), on(b, "float16")
    b.sources.get("float32")
    word = "auto" if half is None else half.text().strip().casefold()
    if half is None and b.sources.main.has("bf16"):
        word = "false"  # null is not the default
    if word in ("auto", "full"):
        bf16 = word == "full" or (fp16 is None and pure16 is None)
    elif half is not None:
        bf16 = half.flag()
    else:
        bf16 = False
    if bf16 or pure is not None:
        _emulated(b, half if bf16 else pure)
        return Weights("bf16", word != "full", half if bf16 else pure)
    if fp16 is not None or pure16 is not None:
        return Weights("fp16", fp16 is not None, fp16 or pure16)
    eight = on(b, "load_in_8bit")
    return Weights("fp16" if eight is not None else "fp32", autocast=False, said=eight or half)


def _emulated(b: Builder, said: Found | None) -> None:
    """Name bfloat16 on a GPU without it: auto takes it there too, as ``torch.cuda.is_bf16_supported`` counts emulation."""
    device = card(b)
    if device is None or device.vendor != "NVIDIA" or "bf16" in device.peak_flops:
        return
    why = f"{device.name} has no bf16: PyTorch emulates it in fp32, which is slow; fp16: true with bf16: false is faster"
    if said is None:
        b.doubt_default("bf16", "speed", why)
    else:
        b.doubt(said, "speed", why)


# -- adapters -----------------------------------------------------------------------------------------------------------


def adapter(b: Builder) -> bool:
    """Take LoRA and a quantised base; return whether adapters train."""
    found = b.sources.get("adapter")
    if found is None or not found.text().strip():
        for key in (
            "lora_r",
            "lora_dropout",
            "lora_target_linear",
            "lora_target_modules",
            "lora_modules_to_save",
            "peft_use_dora",
        ):
            unused = b.sources.get(key)
            if unused is not None:
                b.harmless(unused)
        return False
    kind = found.text().strip().casefold()
    if kind not in ("lora", "qlora"):
        b.doubt(found, "both", f"adapters of the kind {kind} are counted as LoRA")
    rank = b.sources.get("lora_r")
    if rank is not None:
        b.set("lora_rank", rank.whole(maximum=2**20), rank)
    else:
        b.needs("lora_rank", f"{found.where} trains adapters, and lora_r does not say how wide they are")
    _targets(b, found)
    if (dropout := b.sources.get("lora_dropout")) is not None:
        b.set("lora_dropout", dropout.real(minimum=0.0, maximum=1.0), dropout)
    b.default("lora_dropout", 0.0, f"{DEFAULT} (utils/schemas/peft.py)")
    if (saved := b.sources.get("lora_modules_to_save")) is not None and saved.listed():
        b.set("modules_to_save", saved.listed(), saved)
    if (dora := on(b, "peft_use_dora")) is not None:
        b.set("lora_kind", "dora", dora)
    _quantized(b, found, kind)
    return True


def _targets(b: Builder, adapted: Found) -> None:
    every, named = on(b, "lora_target_linear"), b.sources.get("lora_target_modules")
    if every is not None:
        b.set("lora_targets", ("all-linear",), every, "every matrix but the head (loaders/adapter.py find_all_linear_names)")
        if named is not None:
            b.harmless(named)
    elif named is not None:
        listed_targets(b, named)
    elif not b.sources.main.has("lora_target_parameters"):
        b.needs(
            "lora_targets", f"{adapted.where} trains adapters, and neither lora_target_modules nor lora_target_linear says where"
        )


def _quantized(b: Builder, found: Found, kind: str) -> None:
    """Take the format of the base (``loaders/model.py`` _set_quantization_config): 4 bits for qlora, 8 for lora only."""
    four, eight = on(b, "load_in_4bit"), on(b, "load_in_8bit")
    if kind == "qlora":
        if four is None:
            raise found.error("needs load_in_4bit: true, as axolotl does (utils/schemas/peft.py)")
        if eight is not None:
            raise eight.error("cannot be on with adapter: qlora, as axolotl has it (utils/schemas/peft.py)")
        own = b.sources.get("bnb_config_kwargs.bnb_4bit_quant_type")
        b.set("quantization", "nf4", four)
        if own is not None:
            b.set("quantization", own.choice({"nf4": "nf4", "fp4": "fp4"}), own)
        double = b.sources.get("bnb_config_kwargs.bnb_4bit_use_double_quant")
        if double is not None:
            b.set("double_quant", double.flag(), double)
        b.default("double_quant", True, f"{DEFAULT} (loaders/model.py bnb_4bit_use_double_quant)")
    elif eight is not None:
        b.set("quantization", "int8", eight)
    elif four is not None:
        b.harmless(four)
        b.note(f"{four.where}: load_in_4bit has no effect with adapter: {kind}: axolotl quantises to 4 bits for qlora only")


_LORA_KERNELS: Final = 0.65
"""Most of a run's memory that the kernels save: norms, attention, x, gate and up are kept all the same (axolotl
``kernels/lora.py`` LoRA_MLP.forward ``save_for_backward``), over a third of what PEFT's layers keep."""


def adapter_kernels(b: Builder, *, adapters: bool) -> None:
    """Name axolotl's LoRA kernels, which are on unless a key says otherwise (``check_auto_enable_lora_kernels``)."""
    keys = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
    why = "axolotl's LoRA kernels keep fewer activations, which are counted as PEFT keeps them"
    given = [found for key in keys if (found := b.sources.get(key)) is not None]
    used = next((found for found in given if found.flag()), None) if adapters else None
    if used is not None:
        b.doubt(used, "less", why, share=_LORA_KERNELS)
    off = next((found for key in ("trust_remote_code", "nvfp4_merge_aware") if (found := on(b, key)) is not None), None)
    for found in (*given, off):
        if found is not None and found is not used:
            b.harmless(found)
    if adapters and not given and off is None and b.given("quantization") != "int8" and b.sources.get("rl") is None:
        b.doubt_default("lora_mlp_kernel", "less", f"{why}; off with lora_mlp_kernel: false", share=_LORA_KERNELS)
