"""vLLM: ``vllm serve MODEL``, ``python -m vllm.entrypoints.openai.api_server``, and the files of flags that these name.

Sources as in :mod:`foretell.readers.engines._vllm_run`; the file: vllm/utils/argparse_utils.py (_pull_args_from_config).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers.engines._flags import (
    Flags,
    alone,
    command_flags,
    engine_variables,
    engine_version,
    file_flags,
    followed,
    words_of,
)
from foretell.readers.engines._model import Served, served_model
from foretell.readers.engines._variables import VLLM_DEFAULTS, vllm_variable
from foretell.readers.engines._vllm_keys import GRAMMAR, TABLES
from foretell.readers.engines._vllm_length import long_allowed
from foretell.readers.engines._vllm_run import DEFAULT, engine
from foretell.readers.engines._vllm_spell import spelling

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_SERVERS: Final = ("serve", "run-batch")
_OTHER: Final = {
    "bench": "measures a server",
    "chat": "talks to a server",
    "complete": "talks to a server",
    "collect-env": "prints what is installed",
    "snapshot": "keeps a server's state",
}
_SHARED: Final = "model dtype seed tokenizer quantization config device host port revision"
_SIGNS: Final = GRAMMAR.known - {*_SHARED.split()}
"""Flags that other programs do not have by the same name."""
_SURE: Final = 0.6
_MODEL: Final = "Qwen/Qwen3-0.6B"


def _claims(document: Document) -> float:
    keys = {key.replace("-", "_") for key in document.keys()}  # noqa: SIM118  # no mapping
    if not keys or "model_path" in keys:
        return 0.0
    own, known = len(keys & _SIGNS), len(keys & GRAMMAR.known)
    return _SURE * known / len(keys) * min(1.0, own / 2) if own else 0.0


def _starts(launch: Launcher) -> bool:
    return launch.name in ("vllm", "vllm-omni") or launch.program in _MODULES


def _read(sources: Sources) -> Reading:
    b = Builder("vllm", sources, verb="serve")
    command = sources.main if sources.main.form == "arguments" else None
    flags, named = _flags(sources, command)
    model = named or flags.get("model")
    served = Served()
    if model is not None:
        served = served_model(b, model)
        other = flags.get("model")
        if named is not None and other is not None:
            b.harmless(other)
    elif command is not None:
        b.model(_MODEL, None, f"{DEFAULT} (config/model.py)")
    else:
        b.needs("model", "the flags name no model: the command that uses this file does")
    engine_version(b, "vllm")
    engine(b, flags, served, long=sources.launch is not None and long_allowed(sources.launch.document, ""))
    flags.rest(b, TABLES, GRAMMAR, "vLLM")
    b.world()
    b.settings.pop("gpus", None)
    engine_variables(b, ("VLLM_", "HIP_FORCE_", "AITER_"), vllm_variable, VLLM_DEFAULTS)
    return b.reading(spelling(flags, served))


def _flags(sources: Sources, command: Document | None) -> tuple[Flags, Found | None]:
    """Return the flags of the command above those of its file, and the model that stands alone."""
    if command is None:
        files = (sources.main, *(other for other in sources.others if _claims(other) > 0))
        return Flags(tuple(file_flags(document, GRAMMAR) for document in files)), None
    given = command_flags(sources, GRAMMAR)
    sources.main = given
    words = words_of(given)
    launch = sources.launch
    if launch is not None and (launch.name in ("vllm", "vllm-omni") or launch.program == _MODULES[-1]):
        verb = words.pop(0).text() if words else "help"
        if verb not in _SERVERS:
            what = _OTHER.get(verb, "is no command that is known here")
            raise refused(command, f"vllm {verb} {what}: no server is started", hint="Known is vllm serve MODEL")
    documents = [given, *followed(sources, given, GRAMMAR, _claims)]
    if len(words) <= 1:
        given.get(POSITIONAL)
    return Flags(tuple(dict.fromkeys(documents))), alone(words)


FAMILY: Final = Family("vllm", "vLLM (vllm serve, or a file of its flags)", _claims, _read, _starts)
