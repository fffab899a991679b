"""DeepSpeed's configuration as a file of its own, and programs that are started with ``--deepspeed_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources
from foretell.readers._tree import Node
from foretell.readers.hf._common import Tables, placed
from foretell.readers.hf._deepspeed import BATCH, DEEPSPEED_VERSION, OFFLOADED, DeepSpeed, deepspeed_settings
from foretell.readers.hf._deepspeed_keys import DEEPSPEED
from foretell.readers.hf._world import settle_gpus

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["DEEPSPEED", "FAMILY", "DeepSpeed", "deepspeed_settings", "deepspeed_spelled"]

_LAUNCH: Final = Tables(frozenset(("deepspeed", "local_rank", "deepspeed_mpi")))
"""Flags that ``deepspeed.add_config_arguments`` adds to a program."""
_RUNS: Final = frozenset(("model_name_or_path", "base_model", "per_device_train_batch_size"))
"""Keys of files that hold a DeepSpeed configuration and are more than one."""


def deepspeed_spelled(document: Document, at: str, name: str, value: str | bool) -> list[Change] | None:
    """Return how a DeepSpeed configuration says an option, or None where it does not.

    An option of the batch that it leaves to others ("auto", or absent) needs no change here: [].
    """
    prefix = f"{at}." if at else ""
    for option, key in BATCH:
        if name == option:
            node = document.at(prefix + key)
            if node is None or node.value in (None, "auto"):
                return []
            return [Change(document, prefix + key, int(value))]
    zero = document.at(f"{prefix}zero_optimization")
    if zero is None or zero.scalar:
        return None
    if name == "zero":
        return [Change(document, f"{prefix}zero_optimization.stage", int(value))]
    if name != "offload":
        return None
    wanted = frozenset(str(value).split(",")) if value else frozenset[str]()
    if wanted - {part for part, *_ in OFFLOADED}:
        return None
    made = list[Change]()
    for part, key, _, _ in OFFLOADED:
        place = f"{prefix}zero_optimization.{key}.device"
        if part in wanted or document.at(place) is not None:
            made.append(Change(document, place, "cpu" if part in wanted else "none"))
    return made


def _claims(document: Document) -> float:
    root = document.root.value
    if not isinstance(root, dict) or _RUNS & root.keys():
        return 0.0
    zero = root.get("zero_optimization")
    if zero is not None and isinstance(zero.value, dict | bool):
        return 0.9
    half = any(isinstance(root[key].value, dict) for key in ("fp16", "bf16", "amp") if key in root)
    if "train_micro_batch_size_per_gpu" in root:
        return 0.8 if half else 0.6
    return 0.7 if half and "train_batch_size" in root else 0.0


def _starts(launch: Launcher) -> bool:
    return any(word.text.partition("=")[0] in ("--deepspeed_config", "--deepspeed-config") for word in launch.words)


def _read(sources: Sources) -> Reading:
    b = Builder("deepspeed", sources, version=DEEPSPEED_VERSION)
    b.world()
    sources.overrides = sources.arguments()
    document = _file(b, sources)
    placed(sources, document)
    if document is not None:
        deepspeed_settings(b, document, trainer=_filled_in(document.root))
        DEEPSPEED.rest(b, document)
    settle_gpus(b)
    for words in (sources.overrides, sources.main):
        if words is not None and words.form == "arguments":
            _LAUNCH.rest(b, words)
    environment(b)
    b.needs("model", "a DeepSpeed configuration names none")
    b.needs("seq_len", "a DeepSpeed configuration does not say it")
    if not {"micro_batch", "global_batch"} & b.settings.keys():
        b.needs("micro_batch", "the configuration leaves it to the program that starts it")

    def spell(name: str, value: str | bool) -> list[Change] | None:
        return None if document is None else deepspeed_spelled(document, "", name, value) or None

    return b.reading(spell)


def _file(b: Builder, sources: Sources) -> Document | None:
    """Return the configuration: the file that was given, or that a command names."""
    if sources.main.form != "arguments" or sources.overrides is None:
        return sources.main
    named = sources.overrides.get("deepspeed_config")
    found = None if named is None else sources.follow(named)
    if found is None and named is not None:
        b.doubt(named, "both", "names a file that is not here")
    elif named is not None:
        b.harmless(named)
    return found


def _filled_in(root: Node) -> bool:
    """Whether somebody has to fill in an "auto" before DeepSpeed can read it."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.value == "auto":
            return True
        stack.extend(child for _, child in node.children())
    return False


FAMILY: Final = Family("deepspeed", "DeepSpeed (a JSON configuration)", _claims, _read, _starts, beside=True)
