"""How many GPUs a run has, where no launch line counts them.

Sources: DeepSpeed 0.19.6 (runtime/config.py ``_batch_assertion``, launcher/runner.py), torch 2.13 (distributed/run.py
``determine_local_world_size``), accelerate 1.15.0 (commands/launch.py), composer 0.33 (cli/launcher.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._shell import option

if TYPE_CHECKING:
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Builder
    from foretell.readers.hf._accelerate import Accelerate

__all__ = ["settle_gpus", "several_of"]

_KEY: Final = "train_batch_size"
_COUNTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("torchrun", ("--nproc_per_node", "--nproc-per-node")),
    ("accelerate", ("--num_processes", "--num-processes")),
    ("srun", ("--ntasks-per-node", "--gpus-per-node")),
    ("srun", ("--ntasks", "-n")),
    ("mpirun", ("-np", "-n", "--np")),
)
_NODES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("torchrun", ("--nnodes",)),
    ("accelerate", ("--num_machines", "--num-machines")),
    ("srun", ("--nodes", "-N")),
)
_ALL: Final = ("deepspeed", "composer")
"""Launchers that start a process on every GPU of a machine, unless told how many."""


def settle_gpus(b: Builder, several: str = "") -> None:
    """Take the number of GPUs that a batch implies; where there are several, and nobody says how many, ask for it.

    Call it once everything that may say it was read.  ``several``: what the caller knows of more than one GPU.
    """
    if "gpus" not in b.settings:
        _of_batch(b)
    if "gpus" in b.settings or "dp" in b.sources.given:
        return
    launch = b.sources.launch
    why = several or ("" if launch is None else _several(launch))
    if why:
        b.needs("gpus", why)


def several_of(made: Accelerate | None) -> str:
    """Return what accelerate's configuration says of more than one GPU."""
    if made is None or made.kind == "single" or not any(what == "accelerate" for what, _, _ in made.documents):
        return ""
    return "accelerate takes all GPUs where num_processes is not said (commands/launch.py)"


def _of_batch(b: Builder) -> None:
    """Take what DeepSpeed checks: its batch is micro-batch x accumulation x GPUs."""
    whole, micro, passes = (b.settings.get(name) for name in ("global_batch", "micro_batch", "grad_accum"))
    if whole is None or micro is None or passes is None or whole.origin.key.rpartition(".")[2] != _KEY:
        return
    if not (isinstance(whole.value, int) and isinstance(micro.value, int) and isinstance(passes.value, int)):
        return
    each = micro.value * passes.value
    if whole.value % each:
        problem = f"is no multiple of micro-batch {micro.value} x accumulation {passes.value}: DeepSpeed stops with this error"
        raise ConfigError(problem, field=whole.origin.key, value=whole.value, where=str(whole.origin))
    why = f"{whole.value} samples are micro-batch {micro.value} x accumulation {passes.value} x {whole.value // each} GPUs"
    b.settings["gpus"] = replace(whole, name="gpus", value=whole.value // each, origin=replace(whole.origin, why=why))


def _several(launch: Launcher) -> str:
    """Return what a launch line says of more than one GPU without counting them."""
    for wrapper, names in _COUNTS:
        word = option(launch.wrappers.get(wrapper, ()), names)
        if word is not None and not word.text.isdecimal():
            return f"{launch.path}:{word.line}: {names[0]} is {word.text[:60]}, which only the machine knows"
    for wrapper, names in _NODES:
        word = option(launch.wrappers.get(wrapper, ()), names)
        if word is not None and word.text.split(":")[-1] not in ("0", "1"):
            return f"{launch.path}:{word.line}: {names[0]} {word.text[:60]}, and nothing says how many GPUs each has"
    for starter in _ALL:
        if starter in launch.wrappers:
            return f"{launch.path}:{launch.line}: {starter} takes every GPU of the machine where it is not told how many"
    return ""
