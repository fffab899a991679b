"""What a LLaMA-Factory file says of its run beside TrainingArguments, with LLaMA-Factory's own defaults.

Sources: LLaMA-Factory 0.9.6.dev0 (``hparams/*.py``, ``model/adapter.py``, ``model/patcher.py``, ``model/model_utils/*.py``,
``train/trainer_utils.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.hf._optimizers import OPTIMIZERS, Optim, taken
from foretell.readers.hf._weights import Weights

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.hf._common import Section

__all__ = [
    "DEFAULT",
    "PAIRED",
    "VERSION",
    "checkpointing",
    "eight_bits",
    "kernels",
    "length",
    "method",
    "optimizers",
    "stage",
    "weights",
]

VERSION: Final = "0.9.6"
DEFAULT: Final = f"default of LLaMA-Factory {VERSION}"
PAIRED: Final = ("dpo", "rm")
"""Stages whose samples are pairs, which run as one batch (``data/collator.py`` PairwiseDataCollatorWithPadding)."""
_STAGES: Final = ("pt", "sft", "rm", "ppo", "dpo", "kto")


def on(b: Builder, section: Section, name: str) -> Found | None:
    """Return an option that is there and on; one that is off changes nothing."""
    found = section.get(name)
    if found is not None and not found.flag():
        b.harmless(found)
        return None
    return found


# -- what is trained ------------------------------------------------------------------------------------------------------


def stage(b: Builder, section: Section) -> str:
    """Take the stage: what other objectives than the next token add (``train/tuner.py``)."""
    found = section.get("stage")
    loss = section.get("pref_loss")
    if loss is not None:
        b.harmless(loss)
    if found is None:
        return "sft"
    kind: str = found.choice({name: name for name in _STAGES})
    if kind in ("pt", "sft"):
        b.harmless(found)
        return kind
    if kind == "kto":
        why = "a second pass without gradients scores answers of other samples (train/kto/trainer.py concatenated_forward)"
        b.doubt(found, "speed", why)
    if kind == "kto" or (kind == "dpo" and (loss is None or loss.text().strip() not in ("orpo", "simpo"))):
        b.doubt(found, "more", "a reference model runs beside it: the base without its adapters, or a second model")
    if kind == "rm":
        b.doubt(found, "less", "a head of one value stands in place of the vocabulary's loss")
    if kind == "dpo" and loss is not None and loss.text().strip() in ("orpo", "simpo"):
        b.harmless(found)
    if kind == "ppo":
        b.doubt(found, "both", "samples are generated and scored by a reward model; a value head trains beside it")
    return kind


def length(b: Builder, section: Section, kind: str) -> None:
    """Take the length of a sample, and whether samples are packed (``hparams/data_args.py``, ``hparams/parser.py``)."""
    found = section.get("cutoff_len")
    if found is not None:
        b.set("seq_len", found.whole(), found)
    b.default("seq_len", 2048, f"{DEFAULT} (hparams/data_args.py)")
    packed, neat = section.get("packing"), on(b, section, "neat_packing")
    place = neat or packed
    if place is not None and kind in ("pt", "sft"):
        b.set("packing", neat is not None or place.flag(), place)
    elif packed is not None:
        b.harmless(packed)
    b.default("packing", kind == "pt", f"{DEFAULT}: packed in pre-training only (hparams/parser.py)")
    if b.given("packing") is False:
        b.note(
            f"samples are not packed: the longest of a batch decides, taken as cutoff_len = {b.given('seq_len')};"
            " with shorter ones: --set max_sample_len=N"
        )


# -- the method -----------------------------------------------------------------------------------------------------------


def method(b: Builder, section: Section) -> str:
    """Take the way of fine-tuning: full, lora, freeze or oft; return it."""
    found = section.get("finetuning_type")
    kind: str = "lora" if found is None else found.choice({name: name for name in ("lora", "oft", "freeze", "full")})
    bits = section.get("quantization_bit")
    if found is not None:
        b.harmless(found)
    if kind in ("full", "freeze"):
        for name in ("lora_rank", "lora_target", "lora_dropout", "use_dora", "additional_target"):
            if (unused := section.get(name)) is not None:
                b.harmless(unused)
        if bits is not None:
            raise bits.error(f"needs finetuning_type lora or oft, as LLaMA-Factory does: it is {kind}")
        if kind == "freeze" and not any(document.has("freeze_trainable_layers") for document, _ in section.places):
            b.doubt_default(
                "freeze_trainable_layers", "less", "the last 2 layers train (hparams/finetuning_args.py): all are counted"
            )
        return kind
    if kind == "oft":
        b.doubt_default(
            "finetuning_type", "both", "OFT is counted as LoRA of rank 8, which trains about as much as blocks of 32 do"
        )
        b.default("lora_rank", 8, f"{DEFAULT}: oft_block_size 32 (hparams/finetuning_args.py)")
        b.default("lora_targets", ("all-linear",), f"{DEFAULT}: oft_target all (hparams/finetuning_args.py)")
    else:
        _lora(b, section)
    saved = section.get("additional_target")
    if saved is not None:
        b.set("modules_to_save", saved.listed(), saved)
    if bits is not None:
        _quantized(b, section, bits)
    return kind


def _lora(b: Builder, section: Section) -> None:
    rank, targets, dropout = (section.get(name) for name in ("lora_rank", "lora_target", "lora_dropout"))
    if rank is not None:
        b.set("lora_rank", rank.whole(maximum=2**20), rank)
    b.default("lora_rank", 8, f"{DEFAULT} (hparams/finetuning_args.py)")
    if targets is not None:
        names = tuple(name for name in targets.listed() if name)
        b.set("lora_targets", ("all-linear",) if names in ((), ("all",)) else names, targets)
    b.default(
        "lora_targets", ("all-linear",), f"{DEFAULT}: lora_target all, every matrix but the head (model/model_utils/misc.py)"
    )
    if dropout is not None:
        b.set("lora_dropout", dropout.real(minimum=0.0, maximum=1.0), dropout)
    b.default("lora_dropout", 0.0, f"{DEFAULT} (hparams/finetuning_args.py)")
    if (dora := on(b, section, "use_dora")) is not None:
        b.set("lora_kind", "dora", dora)


def _quantized(b: Builder, section: Section, bits: Found) -> None:
    """Take the format of the base (``model/model_utils/quantization.py``)."""
    count, library = bits.whole(maximum=8), section.get("quantization_method")
    name = "bnb" if library is None else library.text().strip().casefold()
    if name not in ("bnb", "bitsandbytes", "hqq", "eetq"):
        assert library is not None  # noqa: S101  # it has text
        raise library.error("is no library that LLaMA-Factory quantises with", allowed=("bnb", "hqq", "eetq"))
    if library is not None:
        b.harmless(library)
    if name.startswith("b") and count not in (4, 8):
        raise bits.error("must be 4 or 8 with bitsandbytes, as LLaMA-Factory has it")
    form = section.get("quantization_type")
    b.set("quantization", "int8" if count > 4 else "nf4", bits)
    if not name.startswith("b"):
        b.doubt(bits, "memory", f"quantised by {name}: counted as bitsandbytes does")
    elif form is not None and count == 4:
        b.set("quantization", form.choice({"nf4": "nf4", "fp4": "fp4"}), form)
    double = section.get("double_quantization")
    if double is not None and count == 4:
        b.set("double_quant", double.flag(), double)
    elif double is not None:
        b.harmless(double)
    if count == 4:
        b.default("double_quant", True, f"{DEFAULT} (hparams/model_args.py)")


def weights(b: Builder, section: Section, kind: str) -> Weights:
    """Return the format that what trains is kept in: fp32, unless it is told to stay (``model/adapter.py`` init_adapter)."""
    pure, blocks = on(b, section, "pure_bf16"), on(b, section, "use_badam")
    why = "LLaMA-Factory loads what the checkpoint has (model/loader.py torch_dtype auto)"
    if pure is not None:
        b.harmless(pure)
        return Weights("bf16", pure, "")
    if kind in ("lora", "oft") or blocks is not None:
        return Weights("auto", None, why)
    return Weights("fp32", None, "LLaMA-Factory casts what trains to fp32 (model/adapter.py)")


# -- activations, kernels, the optimizer ------------------------------------------------------------------------------------


def checkpointing(b: Builder, section: Section) -> None:
    """Checkpointing is on, unless it is turned off (``model/model_utils/checkpointing.py`` prepare_model_for_training)."""
    off, asked, kept = (
        section.get(name) for name in ("disable_gradient_checkpointing", "gradient_checkpointing", "use_reentrant_gc")
    )
    if kept is not None:
        b.harmless(kept)
    again = asked is not None and asked.flag()
    if off is not None and off.flag():
        if not again:
            b.set("recompute", "none", off)
        return
    if off is not None:
        b.set("recompute", "full", off)
    elif not again:
        b.settings.pop("recompute", None)
        b.default(
            "recompute", "full", f"{DEFAULT}: on without disable_gradient_checkpointing (model/model_utils/checkpointing.py)"
        )
    moved = on(b, section, "use_unsloth_gc")
    if moved is not None and b.given("framework") in (None, "hf-trainer"):
        b.set("offload", ("activations",), moved)
    elif moved is not None:
        b.doubt(moved, "both", "inputs of layers are kept in host memory, and counted on the GPU")


_ATTENTIONS: Final = {
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "eager": "eager",
    "auto": None,
}
"""``flash_attn`` (``extras/constants.py`` AttentionFunction); the long names are those of ``USE_V1=1``."""


def kernels(b: Builder, section: Section, kind: str) -> None:
    """Take attention and Liger's kernels (``model/model_utils/attention.py``, ``liger_kernel.py``)."""
    found = section.get("flash_attn")
    if found is not None:
        b.set("attention", found.choice(_ATTENTIONS), found)
    if "attention" not in b.settings:
        b.default("attention", "sdpa", f"{DEFAULT}: auto, which leaves it to transformers (model/model_utils/attention.py)")
        if found is not None:
            b.harmless(found)
    liger = on(b, section, "enable_liger_kernel")
    if liger is not None and kind in ("pt", "sft"):
        b.set("loss", "fused", liger, "Liger's kernels, its fused loss among them")
    elif liger is not None:
        b.doubt(
            liger, "less", "Liger's kernels without its fused loss, which this stage cannot use: counted as those of transformers"
        )


def eight_bits(b: Builder, section: Section) -> None:
    """Name float8 products (``train/fp8_utils.py``)."""
    found = on(b, section, "fp8")
    if found is not None:
        b.doubt(found, "both", "matrices are multiplied in float8: counted as 16 bits")


def optimizers(b: Builder, section: Section) -> None:
    """Take an optimizer of LLaMA-Factory's own (``train/trainer_utils.py`` create_custom_optimizer)."""
    named = section.get("optim")
    eight = named is not None and "8bit" in named.text()
    for switch, layerwise, made in (
        ("use_galore", "galore_layerwise", Optim("galore-adamw8bit" if eight else "galore-adamw", "foreach")),
        ("use_apollo", "apollo_layerwise", OPTIMIZERS["apollo_adamw"]),
        ("use_badam", "", Optim("badam", "fused")),
        (
            "use_adam_mini",
            "",
            Optim("adagrad", "forloop", why="one state an element, counted as Adagrad's; the other is one a block"),
        ),
        ("use_muon", "", Optim("muon", "foreach")),
    ):
        found = on(b, section, switch)
        within = section.get(layerwise) if layerwise else None
        if within is not None and (found is None or not within.flag()):
            b.harmless(within)
        if found is None:
            continue
        taken(b, found, made)
        if within is not None and within.flag():
            b.set("optimizer_in_backward", True, within)
        rank = switch.removeprefix("use_") + "_rank"
        if layerwise and section.get(rank) is None:
            b.doubt_default(rank, "less-memory", "16 (hparams/finetuning_args.py), where a projection of rank 128 is counted")
        elif (given := section.get(rank)) is not None and layerwise:
            if given.whole() == 128:  # as foretell counts it
                b.harmless(given)
            else:
                b.doubt(given, "memory", "moments are counted in a projection of rank 128")
