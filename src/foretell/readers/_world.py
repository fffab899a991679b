"""How many GPUs a launch line runs on, and of which kind: by what starts the processes, or else by the scheduler's lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._shell import Script, option

if TYPE_CHECKING:
    from foretell.readers._launch import Launcher
    from foretell.readers._pieces import Word

__all__ = ["World", "gpu_of", "world_of"]

World = tuple[int, int, str]
"""(how many, line, as it is written)."""

_STARTERS: Final = ("torchrun", "accelerate", "deepspeed", "composer")
"""Programs that start one process to a GPU; what starts them starts one of them to a node."""
_PER_NODE: Final = (
    ("torchrun", ("--nproc_per_node", "--nproc-per-node")),
    ("deepspeed", ("--num_gpus",)),
    ("composer", ("-n", "--nproc")),
)
_NODES: Final = (
    ("torchrun", ("--nnodes",)),
    ("deepspeed", ("--num_nodes",)),
    ("accelerate", ("--num_machines",)),
)
_ALL: Final = (
    ("accelerate", ("--num_processes", "--num-processes")),
    ("composer", ("--world_size",)),
    ("mpirun", ("-np", "-n", "--np")),
)
_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_GRANTS: Final = ("--gpus-per-node", "--gres", "--gpus-per-task", "--gpus", "-G")
"""Options of Slurm that ask for GPUs (slurm.schedmd.com/sbatch.html, srun.html)."""
_MOST: Final = 10**7
"""More GPUs than were ever made."""


def world_of(made: Launcher, script: Script, *, tasks: bool) -> tuple[World | None, World | None]:
    """Return (GPUs of one node, GPUs in all), as far as the launch line or the scheduler's lines say.

    What starts the processes counts above the scheduler, and GPUs that are asked of the scheduler above its tasks.
    ``tasks``: whether the program may be started once to a GPU, so that tasks of srun are GPUs.
    """
    each, nodes, every = (_counted(made, table) for table in (_PER_NODE, _NODES, _ALL))
    if each is None and "deepspeed" in made.wrappers:
        each = _included(made)
    asked = _asked(made, script, "--nodes", "-N")
    if nodes is None and asked is not None and ("srun" in made.wrappers or every is None):
        nodes = _count(made, *asked)
    node, job = _granted(made, script)
    if each is None and every is None:
        each, every = node, (job if node is None else None)
    if each is None and every is None and tasks:
        each, every = _tasks(made, script, 1 if nodes is None else nodes[0])
    if each is None and every is None:
        each = _visible(made)
    if every is not None:
        if each is None and nodes is not None and every[0] % nodes[0] == 0:
            each = (every[0] // nodes[0], every[1], f"{every[2]}, {nodes[2]}")
        elif each is None and node is not None and every[0] % node[0] == 0:
            each = node
        return each, every
    if each is None or nodes is None:
        return each, each
    return each, (each[0] * nodes[0], each[1], f"{each[2]}, {nodes[2]}")


def gpu_of(made: Launcher, script: Script) -> tuple[str, int, str] | None:
    """Return the kind of GPU that is asked of the scheduler ("--gres=gpu:h100:4"): (name, line, as it is written)."""
    for name in _GRANTS:
        asked = _asked(made, script, name)
        kind = None if asked is None else _grant(*asked)[1]
        if asked is not None and kind is not None:
            return kind, asked[1].line, f"{asked[0]}={asked[1].text}"
    return None


def _counted(made: Launcher, table: tuple[tuple[str, tuple[str, ...]], ...]) -> World | None:
    for wrapper, names in table:
        if wrapper not in made.wrappers or (wrapper == "mpirun" and any(name in made.wrappers for name in _STARTERS)):
            continue
        found = option(made.wrappers[wrapper], names)
        if found is not None:
            return _count(made, names[0], found)
    return None


def _asked(made: Launcher, script: Script, *names: str) -> tuple[str, Word] | None:
    """Return an option of srun's own, or else of the scheduler's lines, with its name."""
    for words in (made.wrappers.get("srun", ()), script.directives):
        for name in names:
            found = option(words, (name,))
            if found is not None:
                return name, found
    return None


def _count(made: Launcher, name: str, word: Word) -> World | None:
    text = word.text.split(":")[-1]  # an elastic "1:4": the most
    text = text.split("-")[1] if re.fullmatch(r"\d+-\d+", text) else text  # Slurm's "2-4" nodes
    if text.isdecimal() and 0 < int(text) <= _MOST:
        return int(text), word.line, f"{name} {word.text}"
    if word.opaque or text in ("gpu", "auto", "cpu", "all"):
        made.notes.append(f"{name} is {word.text[:60]!r}, which only the machine knows: say how many GPUs there are (--gpus)")
        return None
    raise ConfigError("must be a whole number", field=name, value=word.text, where=f"{made.path}:{word.line}")


def _included(made: Launcher) -> World | None:
    """GPUs of a node from DeepSpeed's ``--include localhost:0,1``."""
    found = option(made.wrappers["deepspeed"], ("--include", "-i"))
    if found is None:
        return None
    nodes = [part.partition(":")[2] for part in found.text.split("@")]
    counts = {len(part.split(",")) for part in nodes if part}
    return (counts.pop(), found.line, f"--include {found.text}") if len(counts) == 1 else None


def _grant(name: str, word: Word) -> tuple[int | None, str | None]:
    """Return (how many, of which kind) a grant says: "8", "a100:8", for --gres "gpu:h100:4(S:0-1),nvme:1"."""
    parts = [part.partition("(")[0].split(":") for part in word.text.split(",")]
    if name == "--gres":
        parts = [part[1:] or ["1"] for part in parts if part[0].removeprefix("gres/") == "gpu"]
    if word.opaque or not parts:
        return None, None
    kind, count = parts[0][0], parts[0][-1]
    kinds = {part[0] for part in parts if not part[0].isdecimal()}
    many = int(count) if count.isdecimal() and len(count) <= len(str(_MOST)) else 1 if count == kind else 0
    return (many or None) if len(parts) == 1 else None, kind if kinds == {kind} and re.match(r"[A-Za-z]", kind) else None


def _granted(made: Launcher, script: Script) -> tuple[World | None, World | None]:
    """Return the GPUs that the scheduler is asked for: (of one node, of the whole job)."""
    for name in _GRANTS:
        asked = _asked(made, script, name)
        count = None if asked is None else _grant(*asked)[0]
        if asked is None or count is None:
            continue
        line, said = asked[1].line, f"{name}={asked[1].text}"
        if name in ("--gpus", "-G"):
            return None, (count, line, said)
        if name != "--gpus-per-task":
            return (count, line, said), None
        each, every = _asked_tasks(made, script)
        if each is None and every is not None:
            return None, (count * every[0], line, f"{said}, {every[2]}")
        return ((count, line, said) if each is None else (count * each[0], line, f"{said}, {each[2]}")), None
    return None, None


def _asked_tasks(made: Launcher, script: Script) -> tuple[World | None, World | None]:
    """Return the tasks that the scheduler is asked for: (of one node, of the whole job)."""
    each, every = _asked(made, script, "--ntasks-per-node"), _asked(made, script, "--ntasks", "-n")
    return None if each is None else _count(made, *each), None if every is None else _count(made, *every)


def _tasks(made: Launcher, script: Script, nodes: int) -> tuple[World | None, World | None]:
    """Tasks are GPUs where srun itself starts the program several times on a node, once to a GPU."""
    if "srun" not in made.wrappers or any(name in made.wrappers for name in _STARTERS):
        return None, None
    each, every = _asked_tasks(made, script)
    if (each is not None and each[0] == 1) or (each is None and every is not None and every[0] <= nodes):
        return None, None
    return each, every


def _visible(made: Launcher) -> World | None:
    for name in _DEVICES:
        word = made.environment.get(name)
        if word is not None and re.fullmatch(r"\d+(,\d+)*", word.text):
            return len(word.text.split(",")), word.line, f"{name}={word.text}"
    return None
