"""Settings of an accelerate configuration, below the flags of ``accelerate launch``.

Sources: accelerate 1.15.0 (commands/config/config_args.py, commands/launch.py, utils/launch.py, utils/dataclasses.py, state.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.readers._document import Document, Found
from foretell.readers._reading import Builder, refused
from foretell.readers.hf._common import ACCELERATE_VERSION, Section, offloaded
from foretell.readers.hf._fsdp import fsdp_settings
from foretell.readers.hf._megatron_plugin import megatron_settings
from foretell.readers.hf.deepspeed import DEEPSPEED, DeepSpeed, deepspeed_settings

__all__ = ["Accelerate", "accelerate_settings"]

_DEFAULT: Final = f"default of accelerate {ACCELERATE_VERSION}"
_KINDS: Final = {
    "no": "single",
    "multi_gpu": "ddp",
    "fsdp": "fsdp",
    "deepspeed": "deepspeed",
    "megatron_lm": "megatron",
    "data_parallel": "ddp",  # of SageMaker
}
_ELSEWHERE: Final = ("multi_cpu", "xla", "tpu", "mps", "multi_npu", "multi_mlu", "multi_xpu", "multi_hpu", "multi_musa",
                     "multi_sdaa", "multi_neuron", "model_parallel")  # fmt: skip
"""Distributed types (accelerate utils/dataclasses.py ``DistributedType``) of devices that are no GPUs of one process each."""
_MIXED: Final = {"no": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_FLAGS: Final = (("use_deepspeed", "deepspeed"), ("use_fsdp", "fsdp"), ("use_megatron_lm", "megatron"), ("multi_gpu", "ddp"))


@dataclass(frozen=True)
class Accelerate:
    """How accelerate runs it."""

    kind: str
    """single, ddp, fsdp, deepspeed or megatron."""
    precision: str | None
    """Autocast: no, fp16, bf16 or fp8; None where nothing says it."""
    precision_at: Found | None
    deepspeed: DeepSpeed | None = None
    documents: tuple[tuple[str, Document, str], ...] = ()
    """(accelerate or deepspeed, document, key of what is below): what :func:`foretell.readers.hf.accelerate.accelerate_spelled`
    changes."""


def accelerate_settings(
    b: Builder, document: Document | None, *, flags: Document | None = None, done: bool = False
) -> Accelerate:
    """Take the settings of an accelerate configuration, below the flags of ``accelerate launch``.

    ``done``: the run names a DeepSpeed configuration of its own, so that accelerate's is not read.
    """
    top = Section(tuple((one, ("",)) for one in (flags, document) if one is not None))
    kind, where = _kind(b, flags, document)
    if document is not None:
        _processes(b, document, kind)
    mixed = _mixed(b, top)
    _compile(b, flags, document)
    deepspeed, below = None, list[tuple[str, Document, str]]()
    if document is not None:
        below.append(("accelerate", document, ""))
    if kind in ("single", "ddp") and where is not None:
        b.set("framework", "hf-trainer", where)
    elif kind in ("single", "ddp"):
        b.default("framework", "hf-trainer", f"{_DEFAULT}: data parallelism, or one GPU")
    elif kind == "fsdp" and where is not None:
        _fsdp(b, flags, document, where)
    elif kind == "deepspeed" and where is not None and done:
        b.harmless(where)
    elif kind == "deepspeed" and where is not None:
        deepspeed, file = _deepspeed(b, flags, document, where)
        if file is not None:
            below.append(("deepspeed", file, ""))
    elif kind == "megatron":
        megatron_settings(b, _below(flags, document, "megatron_lm_config"), where)
    if document is not None:
        _idle(b, document, kind)
    precision = None if mixed is None else mixed.choice(_MIXED)
    if deepspeed is not None and deepspeed.precision is not None:
        precision, mixed = deepspeed.precision, None
    return Accelerate(kind, precision, mixed, deepspeed, tuple(below))


def _idle(b: Builder, document: Document, kind: str) -> None:
    """What the file says of a plugin that is not chosen is not read."""
    for key, whose in (("deepspeed_config", "deepspeed"), ("fsdp_config", "fsdp"), ("megatron_lm_config", "megatron")):
        if whose != kind and (found := document.get(key)) is not None:
            b.harmless(found)


def _below(flags: Document | None, document: Document | None, key: str) -> Section:
    """Return the keys of a mapping of the file, with the flags of the same names above."""
    made = () if flags is None else ((flags, ("",)),)
    return Section((*made, *(() if document is None else ((document, (f"{key}.",)),))))


def _kind(b: Builder, flags: Document | None, document: Document | None) -> tuple[str, Found | None]:
    """Return how the run is distributed, and where that stands: flags are above the file."""
    found = None if document is None else document.get("distributed_type")
    for name, kind in _FLAGS:
        switch = None if flags is None else flags.get(name)
        if switch is not None and switch.flag():
            if found is not None:
                b.harmless(found)
            return kind, switch
    if found is None:
        if document is not None:
            problem = "lacks distributed_type, without which accelerate does not start"
            raise refused(document, problem, hint="NO, MULTI_GPU, FSDP or DEEPSPEED")
        many = b.given("gpus")
        return "ddp" if isinstance(many, int) and many > 1 else "single", None
    word = found.text().strip().casefold() if not isinstance(found.node.value, bool) else "no"
    if word in _ELSEWHERE:
        raise found.error("is not modelled: only GPUs with one process each are", allowed=[name.upper() for name in _KINDS])
    if word not in _KINDS:
        raise found.error("is no distributed type of accelerate", allowed=[name.upper() for name in _KINDS])
    return _KINDS[word], found


def _processes(b: Builder, document: Document, kind: str) -> None:
    """Take the number of GPUs, which is that of all machines together; a launch line's own counts above it."""
    found, machines = document.get("num_processes"), document.get("num_machines")
    count = None if found is None or found.node.value == -1 else found.whole()
    nodes = 1 if machines is None else machines.whole()
    if kind == "single" and "gpus" not in b.settings:  # started once, whatever num_processes says (launch.py simple_launcher)
        b.default("gpus", 1, f"{_DEFAULT}: distributed_type NO starts one process")
    elif found is not None and count is not None and "gpus" not in b.settings:
        b.set("gpus", count, found)
        if machines is not None and count % nodes == 0:
            b.set("gpus_per_node", count // nodes, machines, f"{count} processes on {nodes} machines")
        found = None
    if found is not None:
        b.harmless(found)
    if machines is not None and "gpus_per_node" not in b.settings:
        b.harmless(machines)


def _mixed(b: Builder, top: Section) -> Found | None:
    """Return where autocast is said, in today's key or in that of 2021."""
    old = top.get("fp16")
    found = top.get("mixed_precision")
    if old is not None:
        b.harmless(old)
    if found is None and old is not None and old.flag():
        b.note(f"{old.where}: fp16 is read as mixed_precision: fp16")
    if found is not None:
        b.harmless(found)
        if found.choice(_MIXED) == "fp8":
            b.doubt(found, "both", "matrix products in FP8, which this profile does not have: counted as bf16")
    return found


def _compile(b: Builder, flags: Document | None, document: Document | None) -> None:
    """Take torch.compile, in today's key and in that of 2022."""
    section = _below(flags, document, "dynamo_config")
    if document is not None:
        section = section | Section.of(document)
    found = section.get("dynamo_backend", "backend")
    if found is not None and str(found.node.value).casefold() not in ("no", "false"):
        b.set("compile", True, found)
    elif found is not None:
        b.harmless(found)
    mode = section.get("dynamo_mode", "mode")
    if mode is not None and mode.text() not in ("default", "max-autotune-no-cudagraphs"):
        b.doubt(mode, "both", "captures CUDA graphs")
    elif mode is not None:
        b.harmless(mode)


def _fsdp(b: Builder, flags: Document | None, document: Document | None, where: Found) -> None:
    section = Section(() if flags is None else ((flags, ("fsdp_",)),))
    if document is not None:
        section = section | Section.of(document, "fsdp_config.fsdp_", "fsdp_config.")
    fsdp_settings(b, section, where)
    mesh = _below(flags, document, "parallelism_config")
    for name, option in (("dp_replicate_size", "hsdp_replicas"), ("tp_size", "tp"), ("cp_size", "cp")):
        found = mesh.get(f"parallelism_config_{name}")
        if found is not None:
            b.set(option, found.whole(), found)


def _deepspeed(
    b: Builder, flags: Document | None, document: Document | None, where: Found
) -> tuple[DeepSpeed | None, Document | None]:
    """Take the DeepSpeed configuration that accelerate names, or the one that it puts together."""
    section = _below(flags, document, "deepspeed_config")
    named = section.get("deepspeed_config_file")
    early = section.get("zero3_init_flag")
    if early is not None:
        b.harmless(early)
    if named is not None and named.text() != "none":
        file = b.sources.follow(named)
        if file is None:
            b.doubt(named, "both", "names a file that is not here")
            b.set("framework", "deepspeed", where)
            return None, None
        b.harmless(named)
        b.harmless(where)
        made = deepspeed_settings(b, file)
        DEEPSPEED.rest(b, file)
        b.default("grad_accum", 1, f"{_DEFAULT} (utils/dataclasses.py DeepSpeedPlugin)")
        return made, file
    b.set("framework", "deepspeed", where)
    b.settings.pop("zero", None)
    found = section.get("zero_stage")
    if found is not None:
        b.set("zero", found.whole(minimum=0, maximum=3), found)
    b.default("zero", 2, f"{_DEFAULT} (utils/dataclasses.py DeepSpeedPlugin)")
    stage = b.given("zero")
    assert isinstance(stage, int)  # noqa: S101  # set so above
    _own(b, section, stage)
    if early is not None and not early.flag() and stage == 3:
        b.doubt(early, "more-memory", "every GPU holds the whole model before it is sharded")
    if 0 < stage < 3:
        why = "DeepSpeed's default below stage 3, off: one reduction bucket, where two are counted"
        b.doubt_default("overlap_comm", "less", why)
    return DeepSpeed(stage, None, optimizer=False), None


def _own(b: Builder, section: Section, stage: int) -> None:
    """Take accumulation and offloading of a configuration that accelerate puts together."""
    steps = section.get("gradient_accumulation_steps")
    if steps is not None and steps.node.value != "auto":
        before = b.settings.get("grad_accum")
        if before is not None and before.value != steps.whole() and before.origin.path:
            problem = f"is not {before.said}, as {before.origin} has it: transformers stops with this error"
            raise steps.error(problem, hint='Say the same in both, or "auto" here')
        b.set("grad_accum", steps.whole(), steps)
    elif steps is not None:
        b.harmless(steps)
    moved = list[tuple[str, Found]]()
    for name, key, least in (("optimizer", "offload_optimizer_device", 1), ("params", "offload_param_device", 3)):
        found = section.get(key)
        if found is None:
            continue
        word = found.choice({"none": "", "cpu": "cpu", "nvme": "nvme"})
        if not word or stage < least:
            b.harmless(found)
            continue
        moved.append((name, found))
        if word == "nvme":
            b.doubt(found, "speed", "states are read from and written to a disk")
    offloaded(b, moved)
