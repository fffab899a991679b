"""How many processes a LLaMA-Factory run has (LLaMA-Factory 0.9.6.dev0 ``launcher.py``, ``v1/launcher.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.readers._reading import Builder
    from foretell.readers.hf._common import Section

__all__ = ["enabled", "processes"]


def enabled(b: Builder, name: str) -> bool:
    """Whether an environment variable of the command is on (``extras/misc.py`` is_env_enabled)."""
    launch = b.sources.launch
    found = None if launch is None else launch.document.get(name)
    return found is not None and found.text().strip().casefold() in ("true", "y", "1")


def processes(b: Builder, section: Section) -> str:
    """Take the number of GPUs: of Ray's workers, or of the environment from which the command starts torchrun.

    Returns what says that there may be several, where nothing counts them.
    """
    workers = section.get("ray_num_workers")
    if workers is not None:
        b.set("gpus", workers.whole(), workers, "with USE_RAY=1")
    launch = b.sources.launch
    if launch is None:
        return ""
    node, nodes = launch.document.get("NPROC_PER_NODE"), launch.document.get("NNODES")
    many = 1 if nodes is None else nodes.whole()
    if node is not None:
        b.set("gpus_per_node", node.whole(), node)
        b.set("gpus", node.whole() * many, node)
    elif nodes is not None and many > 1 and launch.per_node is not None:
        b.set("gpus", launch.per_node[0] * many, nodes, f"{launch.per_node[2]} on each of {many} nodes")
    elif nodes is not None and many > 1:
        return f"{nodes.where}: {nodes.said} nodes, each with all of its GPUs (launcher.py)"
    elif enabled(b, "FORCE_TORCHRUN"):
        return "FORCE_TORCHRUN: a process on every GPU of the machine, where NPROC_PER_NODE is not set (launcher.py)"
    return ""
