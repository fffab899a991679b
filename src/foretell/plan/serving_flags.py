"""The command line that starts a deployment: `vllm serve`, SGLang, `trtllm-serve`, LMDeploy, `llama-server`, TGI.

A flag is written where it was asked for, or where the engine's default is not what the deployment has; what was left to the
engine stays with it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from foretell.core.serving import Deployment
from foretell.plan._engine_line import CONFIG, DRAFT, MODEL, Line
from foretell.plan._engine_lines import ENGINES

__all__ = ["CONFIG", "DRAFT", "MODEL", "Command", "flags", "launch_command"]


@dataclass(frozen=True, slots=True)
class Command:
    """What to run for one deployment."""

    argv: tuple[str, ...]
    copies: int = 1
    """Times that it is started, each on accelerators of its own."""
    files: tuple[tuple[str, str], ...] = ()
    """Name and text of files that it reads."""
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command, quoted for a POSIX shell."""
        return shlex.join(self.argv)

    @property
    def text(self) -> str:
        """The command with the files that it reads, for a POSIX shell."""
        return "\n".join([*(_written(name, text) for name, text in self.files), self.line])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "command": self.line,
            "argv": list(self.argv),
            "copies": self.copies,
            "files": dict(self.files),
            "notes": list(self.notes),
        }


def _written(name: str, text: str) -> str:
    """Return the shell's way to write a file; its end is a word that is no line of the text."""
    end = "EOF"
    while end in text.splitlines():
        end += "_"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{text}{end}"


def launch_command(found: Deployment, *, model: str | None = None, draft: str | None = None) -> Command | None:
    """Return the command line of a deployment; None for an engine whose command line is not known.

    ``model``, ``draft``: as the user named them; a folder, a file or a hub's ``owner/name`` is what engines take, for other names
    a placeholder stands.

    >>> from foretell.core.serving import deployment
    >>> from foretell.recipe.serving import ServingRecipe
    >>> recipe = ServingRecipe(tp=2, max_num_seqs=64, weights="fp8")
    >>> launch_command(deployment("llama-3.1-8b", "h100", recipe), model="meta-llama/Llama-3.1-8B-Instruct").line
    'vllm serve meta-llama/Llama-3.1-8B-Instruct --quantization fp8 --tensor-parallel-size 2 --max-num-seqs 64'
    """
    write = ENGINES.get(found.recipe.engine)
    if write is None:
        return None
    assumed = {one.partition("=")[0] for one in found.resolved.assumed}
    open_ = ("kv", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "memory_share", "block_size", "chunked_prefill")
    asked = frozenset(name for name in open_ if name not in assumed and getattr(found.recipe, name) is not None)
    line = Line(found, _reference(model) or MODEL, _reference(draft) or DRAFT, asked)
    if line.model == MODEL:
        line.notes.append(f"{MODEL}: a folder or a hub's name of {found.workload.name}")
    write(line)
    if found.recipe.speculation is not None and line.draft == DRAFT and DRAFT in " ".join((*line.words, str(line.config))):
        line.notes.append(f"{DRAFT}: a folder or a hub's name of the model that proposes tokens")
    if line.copies > 1:
        each = found.recipe.tp * found.recipe.pp
        own = f"{each} accelerators" if each > 1 else "one accelerator"
        line.notes.append(
            f"{line.copies} replicas: start it {line.copies} times behind a load balancer, each on {own} and a port of its own"
        )
    files = ((CONFIG, _yaml(line.config)),) if line.config else ()
    return Command(tuple(line.words), line.copies, files, tuple(line.notes))


def flags(found: Deployment, *, model: str | None = None, draft: str | None = None) -> list[str]:
    """Return the words of :func:`launch_command`; empty for an engine whose command line is not known."""
    made = launch_command(found, model=model, draft=draft)
    return [] if made is None else list(made.argv)


def _reference(given: str | None) -> str | None:
    """Return what an engine takes for a model: a folder or a hub's name; None for a name of the catalog's alone."""
    if given is None or not ("/" in given or "\\" in given or given.endswith(".gguf") or given in (".", "..")):
        return None
    path = re.sub(r"[/\\]config\.json$", "", given) or "."
    return f"./{path}" if path.startswith("-") else path  # no flag of the engine's


def _yaml(values: dict[str, Any]) -> str:
    import yaml  # noqa: PLC0415  # 10 ms

    made: str = yaml.safe_dump(values, sort_keys=False)
    return made
