"""From files and launch lines to a reading: whose they are is found by their keys, or by the program that is started."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError, InputError
from foretell.readers._document import Document, parse_document
from foretell.readers._files import Files, read_text
from foretell.readers._launch import Launcher, launchers
from foretell.readers._reading import Origin, Sources, Unmodelled
from foretell.readers._registry import FAMILIES, families, owner_of, starter_of
from foretell.readers._tree import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from foretell.readers._reading import Reading

__all__ = ["COMMAND", "read", "read_texts", "texts_of"]

COMMAND: Final = "command line"
"""Path of a command that was given in place of a file."""

_SHELL: Final = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs")
_PYTHON: Final = "is Python, which is not executed"


def read(paths: Sequence[str], command: Sequence[str] = (), *, roots: Sequence[str] = (), family: str | None = None) -> Reading:
    """Read the run that files, or a command, describe.

    ``roots``: folders beside the working directory and those of the files in which files that they refer to may lie.
    ``family``: whose files they are, where that is not to be found out.  Raises ConfigError, with file and line, for what
    cannot be read.
    """
    return read_texts(texts_of(paths, command), files=Files.around(tuple(paths), tuple(roots)), family=family)


def texts_of(paths: Sequence[str], command: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return (path, text) of files, and of a command in front of them."""
    texts = [(path, read_text(path)) for path in paths]
    return [(COMMAND, shlex.join(command)), *texts] if command else texts


def read_texts(
    texts: Sequence[tuple[str, str]],
    *,
    files: Files | None = None,
    family: str | None = None,
    given: Mapping[str, str | bool] | None = None,
) -> Reading:
    """Read the run that texts describe, each with the path that it is from.

    ``given``: what the user says beside them, by option (files may say different things of different GPUs).
    """
    if not texts:
        raise InputError("is missing: name the files of the run, or its command after --", field="files")
    files = files or Files.around(tuple(path for path, _ in texts))
    launch: Launcher | None = None
    also = ""
    documents: list[Document] = []
    for path, as_it_is in texts:
        text = files.replaced.get(path, as_it_is)
        if path.casefold().endswith(".py"):
            hint = "Print the configuration that it builds as YAML or JSON, or give the command that starts the run"
            raise ConfigError(_PYTHON, where=path, hint=hint)
        if path == COMMAND or path.casefold().endswith(_SHELL) or text.startswith("#!"):
            if launch is not None:
                raise ConfigError("starts a second run: give one", where=path)
            launch, also = _started(text, path)
        else:
            documents.append(parse_document(text, path))
    family = None if family is None else family.strip().casefold().replace("-", "_")
    if family is not None and family not in FAMILIES:
        raise InputError("is no family of files", field="family", value=family, allowed=[*FAMILIES])
    found = _read(documents, launch, FAMILIES if family is None else (family,), files, given or {})
    return found if launch is None or not also else _with_others(found, launch, also)


def _with_others(found: Reading, launch: Launcher, also: str) -> Reading:
    """Add that a script starts more than what is answered."""
    why = f"{launch.path} starts more than one program: {also}"
    row = Unmodelled("commands", launch.name, Origin(launch.path, launch.line, "commands"), "unknown", why)
    return replace(found, unmodelled=(*found.unmodelled, row))


def _started(text: str, path: str) -> tuple[Launcher, str]:
    """Return the command of a script that starts the run, and which others it starts."""
    found = launchers(text, path)
    if not found:
        hint = "Known are torchrun, accelerate, deepspeed, srun, python, vllm, sglang, trtllm-serve, axolotl, tune ..."
        raise ConfigError("starts no run that is known here", where=path, hint=hint)
    first, *others = found
    if others:
        places = ", ".join(f"line {made.line} ({made.name})" for made in others[:4])
        return first, f"line {first.line} ({first.name}) is read, {places} is not"
    return first, ""


def _read(
    documents: list[Document], launch: Launcher | None, names: Sequence[str], files: Files, given: Mapping[str, str | bool]
) -> Reading:
    """Read a command by the program that it starts, or the document that is most surely a run, with the others beside it."""
    starter = None if launch is None else starter_of(launch, names)
    claims = sorted(
        ((*owner_of(document, names), document) for document in documents), key=lambda claim: (claim[1].beside, -claim[0])
    )
    if launch is not None and starter is not None and (not starter.beside or not claims or claims[0][1].beside):
        empty = Document(launch.path, launch.text, "arguments", Node({}, launch.line, launch.start, launch.start))
        return starter.read(Sources(empty, files, tuple(documents), launch, given))
    if not claims:
        assert launch is not None  # noqa: S101  # there is something to read
        allowed = [one.title for one in families(FAMILIES) if one.starts is not None]
        where = f"{launch.path}:{launch.line}"
        raise ConfigError("is no program that is known here", field="program", value=launch.program, allowed=allowed, where=where)
    (_, owner, main), *rest = claims
    return owner.read(Sources(main, files, tuple(document for _, _, document in rest), launch, given))
