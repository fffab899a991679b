"""MaxText: its YAML files and those of its models, and ``python -m maxtext.trainers.pre_train.train FILE key=value``.

JAX's accounting is not modelled: what XLA fuses, schedules and keeps is counted as the generic accounting has it.

Sources: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/base.yml``, ``types.py`` set_derived_and_validate_values,
``pyconfig.py``, ``src/maxtext/layers/decoders.py`` get_remat_policy, ``utils/accelerator_to_spec_map.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers.maxtext._keys import TABLES
from foretell.readers.maxtext._layers import VERSION, Layers, describes_model, is_base, layers
from foretell.readers.maxtext._mesh import batch, devices, length, parallel
from foretell.readers.maxtext._model import model
from foretell.readers.maxtext._run import method, states
from foretell.readers.maxtext._spell import Speller

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_OWN: Final = """
per_device_batch_size max_target_length remat_policy ici_fsdp_parallelism ici_tensor_parallelism dcn_data_parallelism
dataset_type base_output_directory base_emb_dim decoder_block base_num_decoder_layers enable_checkpointing model_name hardware
"""
_SIGNS: Final = frozenset(_OWN.split())
_NO_RUN: Final = {
    "server_host": "configures an evaluation by a server",
    "trainer_devices_fraction": "configures reinforcement learning, whose rollouts share the accelerators",
    "inference_server": "configures an inference server",
    "enable_model_warmup": "configures an inference server",
}
"""Keys of files that are no training run: ``eval/configs``, ``configs/post_train/rl.yml``, ``configs/inference``."""
_RULES: Final = ("mesh_axes", "logical_axis_rules", "data_sharding", "input_data_sharding_logical_axes")
_MESH: Final = frozenset((*_RULES, "context_sharding"))
_PROGRAM: Final = re.compile(r"(?i)(?:.*[./])?maxtext[./].*")
_TRAINS: Final = re.compile(r"(?:train|train_compile|sft_trainer|train_sft|train_sft_native|train_dpo|train_distill)(?:\.py)?")


def _claims(document: Document) -> float:
    keys = frozenset(document.keys())
    found = len(keys & _SIGNS)
    if "base_emb_dim" in keys and "base_num_decoder_layers" in keys:
        return 0.9 if describes_model(document) else 1.0
    if document.has("base_config"):
        return 0.95 if found > 1 else 0.6
    if keys and keys <= _MESH:
        return 0.8
    if _refusal(document):
        return 0.7
    return 0.6 if found > 2 else 0.0


def _starts(launch: Launcher) -> bool:
    return _PROGRAM.fullmatch(launch.program) is not None


def _read(sources: Sources) -> Reading:
    notes: list[str] = []
    if sources.main.form == "arguments":
        _follow(sources, notes)
    _training(sources.main)
    found = layers(sources, notes)
    b = Builder("maxtext", sources, version=VERSION)
    b.notes += notes
    model(b, found)
    if found.run is None:
        _alone(b, found)
    else:
        devices(b, found)
        degrees = parallel(b, found)
        batch(b, found, degrees)
    states(b, found, alone=found.run is None)
    method(b, found, alone=found.run is None)
    b.doubt_default("XLA", "both", "XLA's own buffers, fusion and schedule: counted by the generic accounting")
    _mesh(b, found)
    for document in found.documents:
        TABLES.rest(b, document)
    environment(b)
    return b.reading(Speller(found).spell)


def _follow(sources: Sources, notes: list[str]) -> None:
    """Make the file that a command names the main document; without one it is ``base.yml`` (``pyconfig.py``)."""
    launch, given = sources.launch, sources.arguments()
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    last = re.split(r"[./]", launch.program.removesuffix(".py"))[-1]
    if not _TRAINS.fullmatch(last):
        problem = f"starts {launch.program}: no training run of MaxText"
        raise refused(sources.main, problem, hint="Known are train, train_compile, train_sft, train_dpo and train_distill")
    words = [found for key in given.entries(POSITIONAL) if (found := given.get(key)) is not None]
    named = next((word for word in words if word.text().endswith((".yml", ".yaml"))), None)
    sources.overrides = given
    if named is None:
        sources.main, sources.overrides = given, None
        notes.append("the command names no file: MaxText takes its base.yml")
        return
    document = sources.follow(named)
    if document is None and named.text().rpartition("/")[2] == "base.yml":
        sources.main, sources.overrides = given, None
        notes.append(f"{named.where}: base.yml is not here: MaxText's own defaults are taken")
        return
    if document is None:
        raise named.error("is not here", hint="Give the file itself, or the folder that it is named from: --root DIR")
    sources.main = document


def _training(document: Document) -> None:
    """Refuse files that are no training run."""
    keys = frozenset(document.keys())
    if document.form == "arguments":
        return
    if keys and keys <= _MESH | {"base_config", "return_log_prob"}:
        raise refused(document, "describes a mesh and its rules of sharding: no training run", hint="Give the file that names it")
    problem = _refusal(document)
    if not problem and not keys & _SIGNS and not document.has("base_config") and not describes_model(document):
        problem = "has no key of a run of MaxText"
    if problem:
        raise refused(document, f"{problem}: no training run")


def _refusal(document: Document) -> str:
    """Return what a file is that is no training run."""
    if is_base(document):
        return ""
    base, mode = document.at("base_config"), document.at("model_call_mode")
    if (base is not None and "inference" in base.raw) or (mode is not None and mode.raw == "inference"):
        return "configures inference"
    return next((text for key, text in _NO_RUN.items() if document.has(key)), "")


def _mesh(b: Builder, layers: Layers) -> None:
    """Name a mesh and rules of sharding that are not the usual ones of ``base.yml``."""
    for document in layers.documents:
        for key in _RULES:
            found = document.get(key)
            if found is None:
                continue
            if is_base(document):
                b.harmless(found)
            else:
                b.doubt(found, "both", "a mesh or rules of sharding of its own")


def _alone(b: Builder, layers: Layers) -> None:
    """Say that a model's file describes no run."""
    why = f"{b.sources.main.path} describes a model, no run"
    length(b, layers)
    b.needs("micro_batch", f"{why}: give base.yml or the run's file beside it, or --set micro-batch=N")
    if "seq_len" not in b.settings:
        b.needs("seq_len", why)
    b.default("framework", "generic", "JAX has no profile of its own: the generic accounting")


FAMILY: Final = Family("maxtext", "MaxText (YAML, or maxtext.train FILE key=value)", _claims, _read, _starts)
