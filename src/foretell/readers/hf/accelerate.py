"""accelerate: its configuration as a file, and what else stands beside a run: flags of ``accelerate launch``, DeepSpeed JSONs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources
from foretell.readers.hf._accelerate import Accelerate, accelerate_settings
from foretell.readers.hf._accelerate_keys import ACCELERATE, LAUNCH
from foretell.readers.hf._common import ACCELERATE_VERSION, Tables, placed, take
from foretell.readers.hf._fsdp import FSDP, Fsdp, fsdp_settings
from foretell.readers.hf._world import settle_gpus, several_of
from foretell.readers.hf.deepspeed import DEEPSPEED, deepspeed_settings, deepspeed_spelled
from foretell.readers.hf.deepspeed import FAMILY as _DEEPSPEED

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = [
    "ACCELERATE",
    "FAMILY",
    "FSDP",
    "Accelerate",
    "Fsdp",
    "accelerate_settings",
    "accelerate_spelled",
    "fsdp_settings",
    "launch_settings",
]


def launch_settings(b: Builder, *, done: Document | None = None) -> Accelerate | None:
    """Take all that stands beside the main file of a run, and account for it.

    That is: the number of processes of the launch line, ``accelerate launch``'s own flags and its ``--config_file``,
    and accelerate files and DeepSpeed JSONs among ``sources.others``.  Call it once the batch is set, which "auto" leaves
    as it is.  ``done``: a DeepSpeed file that the run itself names and that is read already; it stands above accelerate's.
    """
    sources = b.sources
    b.world()
    flags = sources.wrapper("accelerate")
    named = None if flags is None else flags.get("config_file")
    file = None if named is None else sources.follow(named)
    if named is not None and file is None:
        b.doubt(named, "both", "names a file that is not here")
    elif named is not None:
        b.harmless(named)
    made: Accelerate | None = None
    for other in sources.others:
        if file is None and _claims(other) > 0 and _DEEPSPEED.claims(other) == 0:
            file = other
    if file is not None or flags is not None:
        made = accelerate_settings(b, file, flags=flags, done=done is not None)
        if file is not None:
            ACCELERATE.rest(b, file)
        if flags is not None:
            LAUNCH.rest(b, flags)
    for other in sources.others:
        if other is done or other is file or _DEEPSPEED.claims(other) == 0:
            continue
        if done is None and (made is None or made.deepspeed is None):
            read = deepspeed_settings(b, other)
            before = () if made is None else made.documents
            precision, place = (None, None) if made is None else (made.precision, made.precision_at)
            made = Accelerate("deepspeed", read.precision or precision, place, read, (*before, ("deepspeed", other, "")))
            DEEPSPEED.rest(b, other)
            done = other
    return made


def accelerate_spelled(made: Accelerate, name: str, value: str | bool) -> list[Change] | None:
    """Return how these files say an option, or None where they do not; [] where an option of the batch is not theirs."""
    steps = "deepspeed_config.gradient_accumulation_steps"
    if name in ("micro_batch", "grad_accum", "global_batch"):
        out = list[Change]()
        for what, document, at in made.documents:
            if what == "deepspeed":
                out += deepspeed_spelled(document, at, name, value) or []
            elif name == "grad_accum" and (node := document.at(steps)) is not None and node.value not in ("auto", None):
                out.append(Change(document, steps, int(value)))
        return out
    for what, document, at in made.documents:
        if what == "deepspeed":
            found = deepspeed_spelled(document, at, name, value)
        else:
            found = _spelled(document, made.kind, name, value)
        if found is not None:
            return found
    return None


def _spelled(document: Document, kind: str, name: str, value: str | bool) -> list[Change] | None:
    """Return how an accelerate file says an option, or None where it does not."""
    if name == "gpus":
        return [Change(document, "num_processes", int(value))] if document.at("num_processes") is not None else None
    if name == "compile" and value is True:
        return [Change(document, "dynamo_config.dynamo_backend", "INDUCTOR")]
    if kind == "deepspeed" and not document.has("deepspeed_config.deepspeed_config_file"):
        if name == "zero":
            return [Change(document, "deepspeed_config.zero_stage", int(value))]
        if name == "offload":
            parts = str(value).split(",")
            keys = (("optimizer", "offload_optimizer_device"), ("params", "offload_param_device"))
            return [Change(document, f"deepspeed_config.{key}", "cpu" if part in parts else "none") for part, key in keys]
    if kind == "fsdp":
        prefix = "fsdp_config." if document.has("fsdp_config.version") else "fsdp_config.fsdp_"
        if name == "offload" and value == "params":
            return [Change(document, f"{prefix}offload_params", value=True)]
        if name == "recompute" and value in ("full", "none"):
            return [Change(document, f"{prefix}activation_checkpointing", value == "full")]
    return None


# -- a configuration alone ------------------------------------------------------------------------------------------


def _claims(document: Document) -> float:
    root = document.root.value
    if not isinstance(root, dict) or {"model_name_or_path", "base_model"} & root.keys():
        return 0.0
    if "distributed_type" in root:
        return 0.9
    return 0.6 if {"num_processes", "mixed_precision"} <= root.keys() else 0.0


def _starts(launch: Launcher) -> bool:
    return "accelerate" in launch.wrappers


def _read(sources: Sources) -> Reading:
    b = Builder("accelerate", sources, version=ACCELERATE_VERSION)
    sources.overrides = sources.arguments()
    placed(sources, None)
    if sources.main.form != "arguments":
        sources.others = (sources.main, *sources.others)
    made = launch_settings(b)
    settle_gpus(b, several_of(made))
    if made is not None and made.precision is not None and made.precision_at is not None:
        name = {"no": "fp32", "fp8": "bf16"}.get(made.precision, made.precision)
        take(b, "precision", name, made.precision_at)
    elif made is None or made.deepspeed is None or made.deepspeed.precision is None:
        b.default("precision", "fp32", f"default of accelerate {ACCELERATE_VERSION}: mixed_precision no (commands/launch.py)")
    for words in (sources.overrides, sources.main):
        if words is not None and words.form == "arguments":
            Tables().rest(b, words)
    environment(b)
    for name in ("model", "micro_batch", "seq_len"):
        if name not in b.settings:
            b.needs(name, "it is left to the program that accelerate starts")

    def spell(name: str, value: str | bool) -> list[Change] | None:
        return None if made is None else accelerate_spelled(made, name, value) or None

    return b.reading(spell)


FAMILY: Final = Family("accelerate", "accelerate (its configuration, or accelerate launch)", _claims, _read, _starts, beside=True)
