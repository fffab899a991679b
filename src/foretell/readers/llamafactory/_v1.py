"""The files of LLaMA-Factory's second engine (``USE_V1=1``): ``model``, ``train_dataset``, plugins for the rest.

Sources: LLaMA-Factory 0.9.6.dev0 (``v1/config/*.py``, ``v1/core/base_trainer.py``, ``v1/core/model_engine.py``, ``v1/plugins``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._document import Found
from foretell.readers._environment import environment
from foretell.readers._reading import Builder, Change, refused
from foretell.readers.hf._common import Tables
from foretell.readers.hf._optimizers import Optim, taken
from foretell.readers.hf._trainer_spell import key_of
from foretell.readers.hf._trl_method import paired
from foretell.readers.hf._world import settle_gpus
from foretell.readers.hf.accelerate import launch_settings
from foretell.readers.hf.deepspeed import DEEPSPEED, deepspeed_settings, deepspeed_spelled
from foretell.readers.llamafactory._keys import V1
from foretell.readers.llamafactory._processes import processes
from foretell.readers.llamafactory._run import DEFAULT, PAIRED, VERSION

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Reading, Sources
    from foretell.readers.hf._common import Section

__all__ = ["SIGNS", "read_v1"]

SIGNS: Final = frozenset((
    "train_dataset", "model_class", "dist_config", "kernel_config", "peft_config", "init_config", "quant_config",
    "sample_backend", "cutoff_len", "batching_strategy", "micro_batch_size", "optim_config", "enable_activation_checkpointing",
))  # fmt: skip
_ATTENTIONS: Final = {
    "eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash", "fa2": "flash", "fa3": "flash",
    "disabled": "eager", "auto": "sdpa",
}  # fmt: skip
_FILE: Final = "names a file that is not here"


def read_v1(sources: Sources, section: Section, command: str) -> Reading:
    """Read a run of the second engine."""
    if command not in ("train", "sft", "dpo", "rm"):
        raise refused(sources.main, f"llamafactory-cli {command}: no training run")
    if section.get("peft_config.export_dir") is not None and section.get("train_dataset") is None:
        raise refused(sources.main, "merges adapters into a model and exports it: no training run")
    b = Builder("llamafactory", sources, version=VERSION)
    model = section.get("model")
    assert model is not None  # noqa: S101  # it is what tells these files
    b.model(model.text().strip(), model)
    several = processes(b, section)
    _batch(b, section)
    _method(b, section)
    _kernels(b, section)
    document = _sharding(b, section)
    settle_gpus(b, several)
    _precision(b, section)
    kind = _objective(b, section, command)
    for one, _ in section.places:
        (V1 | Tables(frozenset((POSITIONAL,)))).rest(b, one)
    environment(b)

    def spell(name: str, value: str | bool) -> list[Change] | None:
        if name in ("micro_batch", "global_batch") and kind in PAIRED:
            return _spelled(section, document, name, str(int(value) // 2)) if int(value) % 2 == 0 else None
        return _spelled(section, document, name, value)

    return b.reading(spell)


def _batch(b: Builder, section: Section) -> None:
    for name, key, value in (("micro_batch", "micro_batch_size", 1), ("seq_len", "cutoff_len", 2048)):
        found = section.get(key)
        if found is not None:
            b.set(name, found.whole(), found)
        b.default(name, value, f"{DEFAULT} (v1/config/training_args.py)")
    whole = section.get("global_batch_size")
    if whole is not None:
        b.set("global_batch", whole.whole(), whole)
    else:
        b.default("grad_accum", 1, f"{DEFAULT}: one micro-batch a step (v1/core/utils/batching.py)")
    way = section.get("batching_strategy")
    word = "normal" if way is None else way.text().strip().casefold()
    if way is not None and word not in ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free"):
        raise way.error(
            "is no way to make batches", allowed=("normal", "padding_free", "dynamic_batching", "dynamic_padding_free")
        )
    if way is not None and word != "normal":
        b.doubt(way, "both", "a batch holds as many samples as fit: counted as micro_batch_size samples of cutoff_len")
    elif way is not None:
        b.harmless(way)
    b.default("packing", value=False, why=f"{DEFAULT}: samples are padded to the longest (v1/core/utils/batching.py)")
    b.note(
        f"samples are not packed: the longest decides, taken as cutoff_len = {b.given('seq_len')};"
        " with shorter ones: --set max_sample_len=N"
    )


def _method(b: Builder, section: Section) -> None:
    kind = section.get("peft_config.name")
    word = "" if kind is None else kind.text().strip().casefold()
    if kind is not None and word not in ("lora", "freeze"):
        raise kind.error("is no way of fine-tuning", allowed=("lora", "freeze"))
    if word == "lora" and kind is not None:
        rank, targets, dropout = (section.get(f"peft_config.{key}") for key in ("r", "target_modules", "lora_dropout"))
        if rank is not None:
            b.set("lora_rank", rank.whole(maximum=2**20), rank)
        b.default("lora_rank", 8, f"{DEFAULT} (v1/plugins/model_plugins/peft.py)")
        if targets is not None:
            names = targets.listed()
            b.set("lora_targets", ("all-linear",) if names in (("all",), ()) else names, targets)
        b.default("lora_targets", ("all-linear",), f"{DEFAULT}: all (v1/plugins/model_plugins/peft.py)")
        if dropout is not None:
            b.set("lora_dropout", dropout.real(minimum=0.0, maximum=1.0), dropout)
        b.default("lora_dropout", 0.05, f"{DEFAULT} (v1/plugins/model_plugins/peft.py)")
        if section.flag("peft_config.use_dora"):
            b.set("lora_kind", "dora", kind)
        saved = section.get("peft_config.modules_to_save")
        if saved is not None:
            b.set("modules_to_save", saved.listed(), saved)
    bits, library = section.get("quant_config.quantization_bit"), section.get("quant_config.name")
    if library is None or (bits is None and library.text() != "bnb"):
        return
    count = 4 if bits is None else bits.whole()
    if count not in (4, 8):
        raise (bits or library).error("must be 4 or 8")
    form, double = section.get("quant_config.quantization_type"), section.get("quant_config.double_quantization")
    b.set(
        "quantization",
        ("nf4" if form is None else form.choice({"nf4": "nf4", "fp4": "fp4"})) if count == 4 else "int8",
        bits or library,
    )
    if count == 4:
        b.default("double_quant", double is None or double.flag(), f"{DEFAULT} (v1/plugins/model_plugins/quantization.py)")


def _kernels(b: Builder, section: Section) -> None:
    found, kept = section.get("flash_attn"), section.get("enable_activation_checkpointing")
    if found is not None:
        b.set("attention", found.choice(_ATTENTIONS), found)
    b.default("attention", "sdpa", f"{DEFAULT} (v1/config/model_args.py)")
    if kept is not None:
        b.set("recompute", "full" if kept.flag() else "none", kept)
    b.default("recompute", "full", f"{DEFAULT} (v1/config/training_args.py)")
    name = section.get("optim_config.name")
    if name is not None and name.text().strip().casefold() != "muon":
        raise name.error("is no optimizer of LLaMA-Factory's second engine", allowed=("muon",))
    if name is not None:
        taken(b, name, Optim("muon", "foreach"))
    b.default("optimizer", "adamw", f"{DEFAULT}: torch.optim.AdamW (v1/core/base_trainer.py)")
    b.default("optimizer_impl", "foreach", f"{DEFAULT}: torch.optim.AdamW (v1/core/base_trainer.py)")


def _sharding(b: Builder, section: Section) -> Document | None:
    """Take the distributed plugin; return DeepSpeed's configuration, if there is one."""
    kind, named = section.get("dist_config.name"), section.get("dist_config.config_file")
    word = "" if kind is None else kind.text().strip().casefold()
    file = b.sources.follow(named) if named is not None and word == "deepspeed" else None
    launch_settings(b, done=file)
    replicas = section.get("mp_replicate_size")
    if kind is None:
        return None
    if word == "deepspeed":
        b.set("framework", "deepspeed", kind)
        if file is None:
            b.needs(
                "zero", f"{kind.where}: the configuration of DeepSpeed is not here: it says the ZeRO stage and what is offloaded"
            )
            b.doubt(named or kind, "both", _FILE)
            return None
        deepspeed_settings(b, file)
        DEEPSPEED.rest(b, file)
        return file
    if word not in ("fsdp2", "fsdpturbo"):
        raise kind.error("is no way to shard", allowed=("fsdp2", "deepspeed", "fsdpturbo"))
    b.set("framework", "fsdp2", kind)
    if word == "fsdpturbo":
        b.doubt(kind, "both", "FSDPTurbo is counted as FSDP2")
    again, moved = section.get("dist_config.reshard_after_forward"), section.get("dist_config.offload_params")
    if again is not None:
        b.set("zero", 3 if again.flag() else 2, again)
    b.default("zero", 3, f"{DEFAULT}: reshard_after_forward true (v1/plugins/trainer_plugins/distributed/fsdp2.py)")
    if moved is not None and moved.flag():
        b.set("offload", ("params",), moved)
    if replicas is not None and replicas.whole() > 1:
        b.set("hsdp_replicas", replicas.whole(), replicas)
    return None


def _precision(b: Builder, section: Section) -> None:
    """A full fine-tuning is cast to fp32, adapters stand on what the checkpoint has; only FSDP2 reads bf16."""
    framework, adapters, half = b.given("framework"), b.given("lora_rank") is not None, section.get("bf16")
    frozen = "the base is what the checkpoint has (v1/core/model_engine.py dtype auto)"
    whole = f"{DEFAULT}: the model is cast to fp32 (v1/core/model_engine.py)"
    if framework == "deepspeed":
        b.default("precision", "bf16", "DeepSpeed casts the model and keeps fp32 masters")
    elif framework == "fsdp2":
        on = half is None or half.flag()
        _take(b, half, "bf16" if on else "fp32", f"{DEFAULT}: MixedPrecisionPolicy(bfloat16, reduce in fp32) (v1/.../fsdp2.py)")
        if adapters and on:
            b.default("param_dtype", "bf16", frozen)
    elif adapters:
        b.default("framework", "peft", f"{DEFAULT}: a loop of its own without autocast (v1/core/base_trainer.py)")
        b.default("precision", "bf16", frozen)
        b.default("quantized_rest", "bf16", frozen)
    else:
        b.default("framework", "hf-trainer", f"{DEFAULT}: DistributedDataParallel, or one GPU (v1/core/base_trainer.py)")
        b.default("precision", "fp32", whole)
    if half is not None and framework != "fsdp2":
        b.harmless(half)
        b.note(f"{half.where}: bf16 is read for FSDP2 alone (v1/core/base_trainer.py)")


def _take(b: Builder, found: Found | None, value: str, why: str) -> None:
    if found is None:
        b.default("precision", value, why)
    else:
        b.set("precision", value, found, why)


def _objective(b: Builder, section: Section, command: str) -> str:
    """Take what is trained for; return it: sft, dpo or rm."""
    loss, beta = section.get("pref_loss"), section.get("pref_beta")
    for found in (loss, beta):
        if found is not None:
            b.harmless(found)
    pairs = "dpo" if command == "dpo" or loss is not None or beta is not None else command
    if pairs in PAIRED:
        paired(b)
    if pairs == "dpo" and (loss is None or loss.text().strip() == "sigmoid"):
        b.doubt_default(pairs, "more", "a reference model runs beside it")
    return pairs


def _spelled(section: Section, document: Document | None, name: str, value: str | bool) -> list[Change] | None:
    """Return how a file says an option, or None where it does not."""
    numbers = {"micro_batch": "micro_batch_size", "global_batch": "global_batch_size", "seq_len": "cutoff_len"}
    if name in numbers:
        beside = [] if document is None else deepspeed_spelled(document, "", name, value) or []
        return [Change(*key_of(section, numbers[name]), int(value)), *beside]
    tuned, sharded = section.get("peft_config.name"), section.get("dist_config.name")
    if name == "lora_rank" and tuned is not None and tuned.text() == "lora":
        return [Change(*key_of(section, "peft_config.r"), int(value))]
    if name == "recompute" and value in ("full", "none"):
        return [Change(*key_of(section, "enable_activation_checkpointing"), value == "full")]
    if name == "attention" and value in ("flash", "sdpa", "eager"):
        return [Change(*key_of(section, "flash_attn"), "flash_attention_2" if value == "flash" else value)]
    if document is not None:
        return deepspeed_spelled(document, "", name, value) or None
    if sharded is None or sharded.text() == "deepspeed":
        return None
    if name == "offload" and value == "params":
        return [Change(*key_of(section, "dist_config.offload_params"), value=True)]
    if name == "zero" and value in ("2", "3"):
        return [Change(*key_of(section, "dist_config.reshard_after_forward"), value == "3")]
    return None
