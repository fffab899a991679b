"""Settings of transformers' TrainingArguments, wherever they stand: a file, a command, or a file of a library built on them.

Sources: transformers 5.24.0 (training_args.py, trainer.py, trainer_optimizer.py, modeling_utils.py ``from_pretrained``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from foretell.readers._document import Document, Found, parse_document
from foretell.readers._reading import Builder
from foretell.readers.hf._common import HF_VERSION, Section, Tables, inline
from foretell.readers.hf._fsdp import FSDP, fsdp_settings
from foretell.readers.hf._optimizers import OPTIMIZERS, optimizer_settings, taken
from foretell.readers.hf._world import settle_gpus, several_of
from foretell.readers.hf.accelerate import Accelerate, launch_settings
from foretell.readers.hf.deepspeed import DEEPSPEED, DeepSpeed, deepspeed_settings
from foretell.readers.hf.deepspeed import FAMILY as _DEEPSPEED

if TYPE_CHECKING:
    from foretell.readers._reading import Sources

__all__ = ["Defaults", "Training", "training_settings"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a library takes where a file says nothing."""

    whose: str = f"transformers {HF_VERSION}"
    checkpointing: bool = False
    mixed: str = "no"
    optimizer: str = "adamw_torch_fused"
    batch: int = 8
    reentrant: bool = False
    """Activation checkpointing of this version re-enters autograd, unless told otherwise."""


@dataclass
class Training:
    """What TrainingArguments decide beyond the settings."""

    mixed: str
    """Autocast: no, bf16, fp16 or fp8."""
    mixed_at: Found | None
    deepspeed: DeepSpeed | None = None
    deepspeed_at: tuple[Document, str] | None = None
    """The DeepSpeed configuration that the run itself names."""
    beside: Accelerate | None = None
    tables: Tables = field(default_factory=Tables)
    """Keys of mappings inside the run's own documents, to be accounted for with the rest."""


def training_settings(b: Builder, section: Section, defaults: Defaults | None = None) -> Training:
    """Take the settings of TrainingArguments, and of all that stands beside them.

    ``section``: where the keys stand, documents by precedence.  This reads the DeepSpeed and FSDP configurations that the
    arguments name, and calls :func:`foretell.readers.hf.accelerate.launch_settings`.  The caller accounts for the rest of its
    documents with :data:`foretell.readers.hf._trainer_keys.TRAINING` ``| made.tables``, and settles the precision
    (:func:`foretell.readers.hf._weights.settle_precision`).
    """
    own = defaults or Defaults()
    why = f"default of {own.whose}"
    _refuse_other_devices(section)
    for name, keys, value in (
        ("micro_batch", ("per_device_train_batch_size", "per_gpu_train_batch_size"), own.batch),
        ("grad_accum", ("gradient_accumulation_steps",), 1),
    ):
        found = section.get(*keys)
        if found is not None:
            b.set(name, found.whole(), found)
        b.default(name, value, f"{why} (training_args.py)")
    _checkpointing(b, section, own)
    made = Training(*_mixed(b, section, own))
    _kernels(b, section)
    named = _deepspeed(b, section, made)
    made.beside = launch_settings(b, done=named)
    if made.beside is not None and made.deepspeed is None:
        made.deepspeed = made.beside.deepspeed
    settle_gpus(b, several_of(made.beside))
    _fsdp(b, section, made)
    _autocast(made)
    _optimizer(b, section, made, own)
    _evaluation(b, section)
    return made


def _refuse_other_devices(section: Section) -> None:
    for name in ("use_cpu", "no_cuda"):
        found = section.get(name)
        if found is not None and found.flag():
            raise found.error("trains on the CPU: there is no accelerator to answer for")
    found = section.get("tpu_num_cores")
    if found is not None:
        raise found.error("trains on a TPU, which this reader does not describe")


def _checkpointing(b: Builder, section: Section, own: Defaults) -> None:
    found = section.get("activation_checkpointing", "gradient_checkpointing")
    if found is not None:
        b.set("recompute", "full" if found.flag() else "none", found)
    b.default("recompute", "full" if own.checkpointing else "none", f"default of {own.whose}")
    kwargs = section.get("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    alone = section.get("use_reentrant")  # peft examples/sft
    again: object = own.reentrant if alone is None else alone.flag()
    if kwargs is not None:
        again = inline(kwargs).get("use_reentrant", again)
        if inline(kwargs).get("offload") is True and b.given("recompute") == "full":  # transformers 5.16: the layers' inputs
            b.set("offload", (*_parts(b.given("offload")), "activations"), kwargs)
    for found in (kwargs, alone):
        if found is not None and again is True and b.given("recompute") == "full":
            b.doubt(found, "speed", "re-entrant checkpointing runs each layer again to its end")
        elif found is not None:
            b.harmless(found)


def _parts(offload: object) -> tuple[str, ...]:
    return offload if isinstance(offload, tuple) else ()


def _mixed(b: Builder, section: Section, own: Defaults) -> tuple[str, Found | None]:
    """Return what autocast is asked for, and where."""
    bf16, fp16 = section.get("bf16"), section.get("fp16")
    on = [(name, found) for name, found in (("bf16", bf16), ("fp16", fp16)) if found is not None and found.flag()]
    for found in (bf16, fp16):
        if found is not None:
            b.harmless(found)  # until the precision is settled
    if len(on) > 1:
        raise on[1][1].error("cannot be on beside bf16: transformers refuses both", hint="Leave one of them out")
    if on:
        return on[0]
    if bf16 is not None:
        return "no", bf16
    return ("no", fp16) if own.mixed == "no" else (own.mixed, None)


def _kernels(b: Builder, section: Section) -> None:
    """Take Liger's kernels and torch.compile."""
    liger = section.get("use_liger_kernel", "use_liger")
    if liger is not None and liger.flag():
        b.set("loss", "fused", liger, "Liger's kernels, its fused loss among them")
    elif liger is not None:
        b.harmless(liger)
    parts = section.get("liger_kernel_config")
    if parts is not None:
        b.doubt(parts, "both", "chooses single kernels of Liger")
    compiled = [f for key in ("torch_compile", "torchdynamo", "torch_compile_mode", "torch_compile_backend")
                if (f := section.get(key)) is not None]  # fmt: skip
    for found in compiled:
        if found.key.endswith("torch_compile") and not found.flag():
            b.harmless(found)
        elif found.key.endswith("torch_compile_mode") and found.text() in ("reduce-overhead", "max-autotune"):
            b.doubt(found, "both", "captures CUDA graphs")
            b.set("compile", True, found)
        else:
            b.set("compile", True, found)


def _deepspeed(b: Builder, section: Section, made: Training) -> Document | None:
    """Take the DeepSpeed configuration that the arguments name or hold; return its file."""
    found, named = section.get("deepspeed"), section.get("deepspeed_config")
    if found is None or found.node.value is True or found.node.value == "":  # a flag of deepspeed.add_config_arguments
        if found is not None:
            b.harmless(found)
        found, named = named, None
    if named is not None:
        b.harmless(named)
    if found is None:
        return None
    if not found.node.scalar:
        found.mapping()
        made.deepspeed = deepspeed_settings(b, found.document, found.key)
        made.deepspeed_at = (found.document, found.key)
        made.tables |= DEEPSPEED.under(f"{found.key}.")
        return found.document
    file = _file(b.sources, found)
    if file is None:
        b.doubt(found, "both", "names a DeepSpeed configuration that is not here")
        b.set("framework", "deepspeed", found)
        b.needs("zero", f"{found.where}: {found.said} is not here; give its folder with --root, or the file itself")
        return None
    b.harmless(found)
    made.deepspeed = deepspeed_settings(b, file)
    made.deepspeed_at = (file, "")
    DEEPSPEED.rest(b, file)
    return file


def _file(sources: Sources, found: Found) -> Document | None:
    """Return the document that a value names or is: on disk, among the files given, or as JSON in the value."""
    text = found.text().strip()
    if text.startswith("{"):
        inline(found)
        document = parse_document(text, f"{found.document.path} {found.key}")
        sources.opened.append(document)
        return document
    file = sources.follow(found)
    if file is not None:
        return file
    name = PurePath(text).name
    return next((d for d in sources.others if PurePath(d.path).name == name and _DEEPSPEED.claims(d) > 0), None)


def _fsdp(b: Builder, section: Section, made: Training) -> None:
    """Take FSDP as the arguments ask for it; it stands above accelerate's."""
    found = section.get("fsdp")
    config = section.get("fsdp_config")
    on = found is not None and found.node.value not in ("", [], False)
    if not on or found is None:
        for idle in (found, config):
            if idle is not None:
                b.harmless(idle)
        if config is not None:
            b.note(f"{config.where}: {config.key} is not read by transformers without fsdp")
        return
    keys = Section(())
    if config is not None and not config.node.scalar:
        config.mapping()
        prefixes = (f"{config.key}.fsdp_", f"{config.key}.")
        keys = Section.of(config.document, *prefixes)
        made.tables |= FSDP.under(*prefixes)
    elif config is not None:
        file = _file(b.sources, config)
        if file is None:
            b.doubt(config, "both", "names a file that is not here")
        else:
            b.harmless(config)
            keys = Section.of(file, "fsdp_", "")
    options = found if found.node.value is not True and str(found.node.value).casefold() != "true" else None
    fsdp_settings(b, keys, found, default=2, trainer=True, options=options)
    for document, _ in keys.places:
        if config is None or document is not config.document:
            FSDP.under("fsdp_", "").rest(b, document)


def _autocast(made: Training) -> None:
    """Below the arguments' own bf16 and fp16 accelerate's mixed_precision counts; DeepSpeed has its own."""
    beside = made.beside
    if made.mixed == "no" and beside is not None and beside.precision not in (None, "no"):
        made.mixed, made.mixed_at = str(beside.precision), beside.precision_at
    if made.deepspeed is not None and made.deepspeed.precision is not None:
        before = made.mixed_at
        if before is not None and made.mixed not in ("no", made.deepspeed.precision):
            problem = (
                f"is not what DeepSpeed's configuration has ({made.deepspeed.precision}): transformers stops with this error"
            )
            raise before.error(problem)
        made.mixed = made.deepspeed.precision


def _optimizer(b: Builder, section: Section, made: Training, own: Defaults) -> None:
    found, arguments = section.get("optim", "optimizer_name"), section.get("optim_args")
    old = section.get("adafactor")
    if arguments is not None:
        b.harmless(arguments)
    if old is not None:
        b.harmless(old)
    if made.deepspeed is not None and made.deepspeed.optimizer:
        if found is not None:
            b.harmless(found)
        return
    if found is not None:
        optimizer_settings(b, found, arguments)
    elif old is not None and old.flag():
        taken(b, old, OPTIMIZERS["adafactor"])
    else:
        default = OPTIMIZERS[own.optimizer]
        b.default("optimizer", default.name, f"default of {own.whose}: {own.optimizer}")
        b.default("optimizer_impl", default.impl, f"default of {own.whose}: {own.optimizer}")


_OFF: Final = ("no", "false")


def _evaluation(b: Builder, section: Section) -> None:
    """A batch of evaluation that is larger than one of training can need more memory: whole logits without chunking."""
    strategy, do_eval = section.get("eval_strategy", "evaluation_strategy"), section.get("do_eval")
    batch = section.get("per_device_eval_batch_size", "per_gpu_eval_batch_size")
    for found in (strategy, do_eval):
        if found is not None:
            b.harmless(found)
    runs = (strategy is not None and str(strategy.node.value).casefold() not in _OFF) or (do_eval is not None and do_eval.flag())
    size = 8 if batch is None else batch.whole()
    trained = b.given("micro_batch")
    large = runs and isinstance(trained, int) and size > trained
    if large and batch is not None:
        b.doubt(batch, "more-memory", f"evaluation runs {size} samples at once, training {trained}: its logits are not counted")
    elif large:
        b.doubt_default(
            "per_device_eval_batch_size", "more-memory", f"evaluation runs {size} samples at once, training {trained}"
        )
    elif batch is not None:
        b.harmless(batch)
