"""torchtitan: TOML files of its trainer until 2026-02, ``--job.config_file FILE --section.key value``, and known configurations
in Python (``--module llama3 --config llama3_8b``).

Source: pytorch/torchtitan ``config_manager.py``, ``config/manager.py``, ``run_train.sh`` (b5bcd76c6, 2026-08).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.errors import ConfigError
from foretell.readers._document import Document
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._omegaconf import Values
from foretell.readers._reading import Builder, Reading, Sources, refused
from foretell.readers._tree import Node
from foretell.readers.torchtitan import _run as settings
from foretell.readers.torchtitan._gpus import parallelism
from foretell.readers.torchtitan._keys import ENVIRONMENT, TABLES
from foretell.readers.torchtitan._models import CONFIGS, Config
from foretell.readers.torchtitan._spell import spelling

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_SIGNS: Final = ("model.flavor", "training.seq_len", "activation_checkpoint.mode", "lr_scheduler.warmup_steps",
                 "job.dump_folder", "metrics.log_freq", "parallelism.data_parallel_shard_degree")  # fmt: skip
_SURE: Final = 3
_TOML: Final = "2026-02"
"""Month in which TOML files went (9810191bb)."""
_AGES: Final = (
    ("training.data_parallel_degree", "2024-08", "training.data_parallel_degree went in 2024-10 (c9b17cca0)"),
    ("training.batch_size", "2025-04", "training.batch_size became local_batch_size in 2025-06 (8570415c3)"),
    ("float8", "2025-08", "[float8] became [quantize.linear.float8] in 2025-09 (8a2686c4a)"),
)
"""Keys that date a file."""
_SHELL: Final = ("run_train.sh", "run_llama_train.sh")


def _claims(document: Document) -> float:
    signs = sum(document.has(key) for key in _SIGNS)
    return 1.0 if signs >= _SURE else 0.4 if signs else 0.0


def _starts(launch: Launcher) -> bool:
    flags = [word.text for word in launch.words]
    if launch.name in _SHELL or launch.program in ("torchtitan.train", "torchtitan.experiments.graph_trainer.train"):
        return True
    named = any(flag.startswith(("--job.config_file", "--job.config-file")) for flag in flags)
    return launch.program.endswith(("torchtitan/train.py", "train.py")) and named


def _read(sources: Sources) -> Reading:
    known: Config | None = None
    if sources.main.form == "arguments":
        known = _follow(sources)
    values = Values(tuple(d for d in (sources.overrides, sources.main) if d is not None))
    date, whose, why = _age(values, known)
    b = Builder("torchtitan", sources, version=date)
    if why:
        b.note(f"the file is of torchtitan {date}: {why}")
    run = settings.Run(b, values, known, whose)
    _processes(b)
    b.default("software_date", date, whose)
    parallelism(run)
    settings.model(run)
    settings.batch(run)
    settings.formats(run)
    settings.kernels(run)
    settings.optimizer(run)
    settings.activations(run)
    for document in values.documents:
        TABLES.rest(b, document)
    environment(b)
    return b.reading(spelling(run))


def _age(values: Values, known: Config | None) -> tuple[str, str, str]:
    """Return the month whose torchtitan is taken, whose defaults those are, and which key tells it."""
    if known is not None or values.has("training.max_context_length"):
        return "2026-08", "default of torchtitan 2026-08 (config/configs.py, config_registry.py)", ""
    for key, month, why in _AGES:
        if values.has(key):
            return month, f"default of torchtitan {month}", why
    return _TOML, f"default of torchtitan {_TOML}, the last that read TOML (config/job_config.py)", ""


def _follow(sources: Sources) -> Config | None:
    """Make the file that a command names the main document, or return the configuration that it names."""
    launch, given = sources.launch, sources.arguments(many=frozenset())
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    _negations(given)
    sources.overrides = given
    shell = {name: launch.document.get(name) for name in ENVIRONMENT} if launch.name in _SHELL else {}
    named = given.get("job.config_file") or shell.get("CONFIG_FILE")
    if named is not None:
        document = sources.follow(named)
        if document is None:
            hint = "Give the folder that it is named from: --root DIR"
            raise ConfigError("is not here", field="job.config_file", value=named.text(), where=named.where, hint=hint)
        sources.main = document
        return None
    sources.main, sources.overrides = given, None
    module, function = given.get("module") or shell.get("MODULE"), given.get("config") or shell.get("CONFIG")
    if module is None and function is None:
        if launch.name not in _SHELL:
            return None
        return CONFIGS["llama3_debugmodel"]
    name = function.text().strip() if function is not None else ""
    if name not in CONFIGS:
        hint = f"Known are {', '.join(CONFIGS)}; else give the run to foretell fit with --framework torchtitan"
        place = sources.main if function is None else function.document
        raise refused(place, f"{name or 'no configuration'} is a function in Python, which is not executed", hint=hint)
    return CONFIGS[name]


def _negations(given: Document) -> None:
    """Read ``--compile.no-enable`` as compile.enable: false (tyro)."""
    assert isinstance(given.root.value, dict)  # noqa: S101  # arguments are one
    for key, node in [*given.root.value.items()]:
        plain = re.sub(r"(^|\.)no_(\w+)$", r"\1\2", key)
        if plain != key and node.value is True:
            off = Node(False, node.line, node.start, node.end, raw="false", flow=True, parent=given.root)
            given.root.value.setdefault(plain, off)
            given.mark(node)


def _processes(b: Builder) -> None:
    b.world()
    launch = b.sources.launch
    found: Found | None = None if launch is None else launch.document.get("NGPU")
    if launch is not None and launch.name in _SHELL:
        if found is not None:
            b.set("gpus", found.whole(), found)
            b.set("gpus_per_node", found.whole(), found)
        b.default("gpus", 8, f"default of {launch.name}: NGPU=8")


FAMILY: Final = Family("torchtitan", "torchtitan (TOML, or -m torchtitan.train)", _claims, _read, _starts)
