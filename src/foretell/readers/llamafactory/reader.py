"""LLaMA-Factory: its YAML and JSON files, and ``llamafactory-cli train FILE key=value``.

Sources: LLaMA-Factory 0.9.6.dev0 (``launcher.py``, ``hparams/parser.py``, ``train/tuner.py``), which takes transformers 4.55 to
5.8, accelerate to 1.11 and peft 0.18.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import ALLOCATOR, environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers.hf._common import Section, Tables
from foretell.readers.hf._trainer_keys import TRAINING
from foretell.readers.hf._training import Defaults, training_settings
from foretell.readers.hf._trl_method import paired
from foretell.readers.hf._weights import settle_precision
from foretell.readers.hf._world import settle_gpus
from foretell.readers.llamafactory import _run as run
from foretell.readers.llamafactory._keys import LLAMAFACTORY, MEGATRON
from foretell.readers.llamafactory._megatron import BRIDGE_KEYS, MEGATRON_KEYS, megatron_settings
from foretell.readers.llamafactory._processes import enabled, processes
from foretell.readers.llamafactory._serve import serving
from foretell.readers.llamafactory._spell import spelling
from foretell.readers.llamafactory._v1 import SIGNS as V1_SIGNS
from foretell.readers.llamafactory._v1 import read_v1

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_SIGNS: Final = frozenset((
    "stage", "finetuning_type", "template", "cutoff_len", "infer_backend", "export_dir", "lora_target", "quantization_bit",
    "preprocessing_num_workers", "overwrite_cache", "plot_loss", "max_samples", "dataset",
))  # fmt: skip
_SURE: Final = 3
_PROGRAMS: Final = ("llamafactory-cli", "lmf", "llamafactory.cli", "llamafactory.launcher")
_SERVES: Final = ("api", "chat", "webchat")
_OTHER: Final = {
    "export": "merges or quantises a model",
    "eval": "evaluates a model",
    "webui": "opens a web page on which a run is put together",
    "env": "prints the environment",
    "version": "prints the version",
    "help": "prints its commands",
    "merge": "merges adapters into a model",
}
"""What the other commands do (``launcher.py``, ``v1/launcher.py``)."""
_TRAINS: Final = ("train", "sft", "dpo", "rm")
_TABLES: Final = LLAMAFACTORY | MEGATRON
_COMMAND: Final = Tables(frozenset((POSITIONAL,)))


def _claims(document: Document) -> float:
    keys = frozenset(document.keys())
    if "model_name_or_path" in keys:
        count = len(keys & _SIGNS)
        if {"stage", "finetuning_type"} & keys or count >= _SURE:
            return 1.0
        return 0.7 if {"infer_backend", "export_dir", "cutoff_len"} & keys or count > 1 else 0.0
    exports = document.at("peft_config.export_dir") is not None
    return 0.95 if "model" in keys and (exports or len(keys & V1_SIGNS) >= _SURE) else 0.0


def _starts(launch: Launcher) -> bool:
    if launch.name in _PROGRAMS or launch.program in _PROGRAMS:
        return True
    words = [word.text.partition("=")[0] for word in launch.words]
    if launch.name != "train.py" or not launch.program.endswith("src/train.py"):
        return False
    return any(word in ("--stage", "--finetuning_type") for word in words) or bool(words and words[0].endswith((".yaml", ".yml")))


def _read(sources: Sources) -> Reading:
    command = _follow(sources) if sources.main.form == "arguments" else "train"
    documents = [one for one in (sources.overrides, sources.main) if one is not None]
    section = Section(tuple((one, ("",)) for one in dict.fromkeys(documents)))
    if section.get("model") is not None and section.get("model_name_or_path") is None:
        return read_v1(sources, section, command)
    _no_run(sources, section)
    backend = section.get("infer_backend")
    if command in _SERVES or (backend is not None and not section.flag("do_train") and section.get("stage") is None):
        return serving(sources, section, backend, TRAINING | _COMMAND)
    return _training(sources, section)


def _no_run(sources: Sources, section: Section) -> None:
    """Refuse what trains nothing (``train/tuner.py`` export_model, ``train/sft/workflow.py``)."""
    if section.get("export_dir") is not None and not section.flag("do_train"):
        what = "quantises" if section.get("export_quantization_bit") is not None else "merges adapters into"
        raise refused(sources.main, f"{what} a model and exports it: no training run")
    trains = section.get("do_train")
    tests = section.flag("do_predict") or section.flag("do_eval") or section.flag("predict_with_generate")
    if tests and (trains is None or not trains.flag()):
        raise refused(
            sources.main, "generates or evaluates answers with transformers: no training run", hint="Add do_train: true"
        )
    if trains is not None and not trains.flag():
        raise trains.error("trains nothing", hint="Set do_train: true")


def _training(sources: Sources, section: Section) -> Reading:
    b = Builder("llamafactory", sources, version=run.VERSION)
    model = section.get("model_name_or_path")
    if model is not None:
        b.model(model.text().strip(), model)
    else:
        b.needs("model", "the file has no model_name_or_path")
    several = processes(b, section)
    kind = run.stage(b, section)
    run.length(b, section, kind)
    method = run.method(b, section)
    made = training_settings(
        b, section, Defaults(whose=f"LLaMA-Factory {run.VERSION}, as transformers has it", checkpointing=True, reentrant=True)
    )
    settle_gpus(b, several)
    run.checkpointing(b, section)
    run.kernels(b, section, kind)
    run.optimizers(b, section)
    run.eight_bits(b, section)
    weights = run.weights(b, section, method)
    if method in ("lora", "oft") and weights.found is not None:
        weights = replace(weights, name="auto")  # pure_bf16 leaves adapters in 16 bits; the base is the checkpoint's
        b.default("adapter_dtype", "bf16", "pure_bf16: adapters stay in 16 bits (model/adapter.py)")
    mixed = made.mixed
    if mixed == "no" and weights.found is not None and made.deepspeed is not None:
        mixed = "bf16"
    settle_precision(b, mixed, made.mixed_at, weights, f"LLaMA-Factory {run.VERSION}")
    if b.given("framework") == "peft":  # whose own loop would prepare a quantised base in fp32
        b.default("quantized_rest", "bf16", "what is not quantised keeps the checkpoint's format (model/loader.py)")
    if any(section.get(key) is not None for key in MEGATRON_KEYS):
        bridge = any(section.get(key) is not None for key in BRIDGE_KEYS) or enabled(b, "USE_MEGATRON_BRIDGE")
        megatron_settings(b, section, bridge=bridge)
    if kind in run.PAIRED:
        paired(b)
    _allocator(b)
    for document, _ in section.places:
        (_TABLES | TRAINING | made.tables | _COMMAND).rest(b, document)
    environment(b)
    return b.reading(spelling(b, section, made, kind))


def _follow(sources: Sources) -> str:
    """Make the file that a command names the main document; return what the command does."""
    launch, given = sources.launch, sources.arguments(many=frozenset())
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    words = [found for key in given.entries(POSITIONAL) if (found := given.get(key)) is not None]
    command = "train"
    if launch.name in _PROGRAMS or launch.program in _PROGRAMS:
        command = words.pop(0).text() if words else "help"
    if command not in (*_TRAINS, *_SERVES):
        what = _OTHER.get(command, "is no command that is known here")
        raise refused(sources.main, f"llamafactory-cli {command} {what}: no training run", hint="Known are train and api")
    sources.overrides = given
    named = next((word for word in words if word.text().endswith((".yaml", ".yml", ".json"))), None)
    if named is None:
        sources.main = given
        return command
    document = sources.follow(named)
    if document is None:
        hint = "Give the folder that it is named from: --root DIR"
        raise ConfigError("is not here", field="file", value=named.text(), where=named.where, hint=hint)
    sources.main = document
    if isinstance(document.root.value, dict):
        for key, node in given.root.children():
            if node.value is None:  # key=null on the command line takes the file's value away (OmegaConf.merge)
                document.root.value.pop(key, None)
    return command


def _allocator(b: Builder) -> None:
    """The command turns expandable segments on where it starts torchrun (``launcher.py``; off with OPTIM_TORCH=0)."""
    launch, gpus = b.sources.launch, b.given("gpus")
    if launch is not None and any(launch.document.has(name) for name in ALLOCATOR):
        return
    off = None if launch is None else launch.document.get("OPTIM_TORCH")
    if off is not None and off.text().strip().casefold() not in ("true", "y", "1"):
        return
    several = (isinstance(gpus, int) and gpus > 1) or enabled(b, "FORCE_TORCHRUN") or b.given("framework") == "deepspeed"
    if several and (launch is None or launch.name in _PROGRAMS):
        why = f"{run.DEFAULT}: llamafactory-cli sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (launcher.py)"
        b.default("expandable_segments", value=True, why=why)


FAMILY: Final = Family("llamafactory", "LLaMA-Factory (YAML, or llamafactory-cli train)", _claims, _read, _starts)
