"""axolotl: its YAML files, and ``axolotl train FILE``, ``accelerate launch -m axolotl.cli.train FILE``.

Sources: axolotl 0.18.0 (``utils/trainer.py`` prepare_optim_env, ``monkeypatch/accelerate/fsdp2.py``, ``utils/distributed.py``,
``cli/main.py``); accelerate 1.13.0 (``accelerator.py`` prepare_model).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import ALLOCATOR, environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers._tree import Node
from foretell.readers.axolotl import _kernels as kernels
from foretell.readers.axolotl import _run as run
from foretell.readers.axolotl._gpus import groups, precision, sharding
from foretell.readers.axolotl._keys import NEUTRAL, OFF, UNMODELLED
from foretell.readers.axolotl._serve import serving
from foretell.readers.axolotl._spell import spelling
from foretell.readers.hf._common import Tables
from foretell.readers.hf._fsdp import FSDP
from foretell.readers.hf._world import settle_gpus
from foretell.readers.hf.deepspeed import DEEPSPEED

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_OWN: Final = """
datasets pretraining_dataset test_datasets micro_batch_size sequence_len sample_packing dataset_prepared_path val_set_size lora_r
adapter gradient_accumulation_steps num_epochs load_in_4bit load_in_8bit base_model_config
"""
_SIGNS: Final = frozenset(_OWN.split())
_CLOUD: Final = frozenset(("provider", "gpu", "gpu_count", "volumes", "secrets", "dockerfile_commands", "timeout", "memory"))
_TABLES: Final = (
    Tables(NEUTRAL, UNMODELLED, OFF) | FSDP.under("fsdp_config.", "fsdp_config.fsdp_") | DEEPSPEED.under("deepspeed.")
)
_COMMAND: Final = Tables(
    frozenset(
        f"""
        {POSITIONAL} launcher debug debug_text_only debug_num_examples prompter shard main_process_port master_addr master_port
        rdzv_backend rdzv_id rdzv_endpoint node_rank machine_rank main_process_ip config standalone
        """.split()
    ),
    {
        "cloud": ("unknown", "runs on a machine that its own file describes"),
        "sweep": ("both", "runs several configurations, of which the plain one is read"),
    },
)
"""Options of the command itself (``cli/main.py``, ``cli/args.py``), and of the launcher behind ``--``."""
_OTHER: Final = {
    "preprocess": "prepares a data set",
    "inference": "talks to a model",
    "chat": "talks to a model",
    "evaluate": "evaluates a model",
    "lm-eval": "evaluates a model",
    "merge-lora": "merges adapters into a model",
    "merge-sharded-fsdp-weights": "merges the shards of a checkpoint",
    "quantize": "quantises a model",
    "fetch": "fetches examples",
    "delinearize-llama4": "converts a model",
}
"""What the other commands do (``cli/main.py``)."""
_SURE: Final = 2
"""Keys of axolotl's own beside base_model that make its file certain."""


def _claims(document: Document) -> float:
    keys = frozenset(document.keys())
    signs = len(keys & _SIGNS) if "base_model" in keys else 0
    if signs >= _SURE:
        return 1.0
    return 0.4 if signs or _cloud(document) else 0.0


def _cloud(document: Document) -> bool:
    """Whether it describes a machine (``cli/cloud``)."""
    keys = frozenset(document.keys())
    return "base_model" not in keys and "gpu" in keys and len(keys & _CLOUD) > _SURE


def _starts(launch: Launcher) -> bool:
    return launch.name == "axolotl" or launch.program.startswith("axolotl.") or launch.program.endswith("scripts/finetune.py")


def _read(sources: Sources) -> Reading:
    command = _follow(sources) if sources.main.form == "arguments" else "train"
    if command == "vllm-serve":
        return serving(sources)
    if _cloud(sources.main):
        hint = "Give the file of the run that is trained there"
        raise refused(sources.main, "describes a machine of a cloud provider for axolotl, no training run", hint=hint)
    b = Builder("axolotl", sources, version=run.VERSION)
    run.model(b)
    run.batch(b)
    run.length(b)
    kernels.optimizer(b)
    adapters, casts, cuts = run.adapter(b), kernels.attention(b), kernels.kernels(b, kernels.plugins(b))
    _allocator(b)
    several = _processes(b)
    weights = run.weights(b)
    document, asked = sharding(b, weights, adapters=adapters)
    groups(b)
    settle_gpus(b, several)
    precision(b, weights, asked, adapters=adapters, casts=casts or cuts)
    run.adapter_kernels(b, adapters=adapters)
    pairs = kernels.preferences(b)
    _TABLES.rest(b, sources.main)
    if sources.overrides is not None:
        (_TABLES | _COMMAND).rest(b, sources.overrides)
    environment(b)
    return b.reading(spelling(b, document, adapters=adapters, pairs=pairs))


def _follow(sources: Sources) -> str:
    """Make the file that a command names the main document; return what the command does."""
    launch, given = sources.launch, sources.arguments(many=frozenset())
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    _negations(given)
    words = [found for key in given.entries(POSITIONAL) if (found := given.get(key)) is not None]
    command = (
        launch.program.removeprefix("axolotl.cli.").replace("_", "-") if launch.program.startswith("axolotl.cli.") else "train"
    )
    if launch.name == "axolotl":
        command = words.pop(0).text() if words else "help"
    if command not in ("train", "vllm-serve"):
        what = _OTHER.get(command, "is no command that is known here")
        raise refused(
            sources.main, f"axolotl {command} {what}: no training run", hint="Known are axolotl train and axolotl vllm-serve"
        )
    named = next((word for word in words if word.text() != "--"), None) or given.get("config")
    if named is None:
        raise refused(sources.main, f"axolotl {command} names no file")
    document = sources.follow(named)
    if document is None:
        hint = "Give the folder that it is named from: --root DIR"
        raise ConfigError("is not here", field="file", value=named.text(), where=named.where, hint=hint)
    sources.main, sources.overrides = document, given
    return command


def _negations(given: Document) -> None:
    """Read ``--no-sample-packing`` as sample_packing: false (``cli/utils/args.py``)."""
    assert isinstance(given.root.value, dict)  # noqa: S101  # arguments are one
    for key, node in [*given.root.value.items()]:
        if key.startswith("no_") and node.value is True:
            off = Node(False, node.line, node.start, node.end, raw="false", flow=True, parent=given.root)
            given.root.value.setdefault(key.removeprefix("no_"), off)
            given.mark(node)


def _allocator(b: Builder) -> None:
    """axolotl turns expandable segments on, unless the environment sets the allocator (``utils/__init__.py``)."""
    launch = b.sources.launch
    if launch is None or not any(launch.document.has(name) for name in ALLOCATOR):
        why = f"{run.DEFAULT}: PYTORCH_ALLOC_CONF=expandable_segments:True (utils/__init__.py set_pytorch_cuda_alloc_conf)"
        b.default("expandable_segments", True, why)


def _processes(b: Builder) -> str:
    """Take the workers of Ray, or the processes that stand behind ``--`` on the command line.

    Returns what says that there are several, where nothing counts them.
    """
    workers = b.sources.get("ray_num_workers")
    if workers is not None and run.on(b, "use_ray") is not None:
        each = b.sources.get("resources_per_worker.GPU")
        b.set("gpus", workers.whole() * (1 if each is None else each.whole()), workers)
    elif workers is not None:
        b.harmless(workers)
    given = b.sources.overrides
    if given is None:
        return ""
    node, nodes, every = given.get("nproc_per_node"), given.get("nnodes", "num_machines"), given.get("num_processes")
    if node is not None and re.fullmatch(r"\d+", node.text()):
        b.set("gpus_per_node", node.whole(), node)
        b.set("gpus", node.whole() * (1 if nodes is None else nodes.whole()), node)
    elif every is not None:
        b.set("gpus", every.whole(), every)
    elif node is not None:
        return f"{node.where}: nproc_per_node is {node.said}, which only the machine knows"
    elif nodes is not None and nodes.said != "1":
        return f"{nodes.where}: {nodes.said} nodes, and nothing says how many GPUs each has"
    return ""


FAMILY: Final = Family("axolotl", "axolotl (YAML, or axolotl train)", _claims, _read, _starts)
