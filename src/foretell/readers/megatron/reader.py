"""Megatron-LM: the arguments of ``pretrain_*.py`` on a command line, and the ``MODEL_ARGS:`` of its tests' YAML.

Source: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py``,
``tests/functional_tests/shell_test_utils/_run_training.sh``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment, variables
from foretell.readers._family import Family
from foretell.readers._reading import Builder, refused
from foretell.readers.megatron import _keys as keys
from foretell.readers.megatron._args import ARGS, Args, args_of_yaml, single
from foretell.readers.megatron._flags import BOOLEANS, SEVERAL
from foretell.readers.megatron._kernels import kernels
from foretell.readers.megatron._layout import batch, degree, parallel, world
from foretell.readers.megatron._serve import SCRIPTS, serves, serving
from foretell.readers.megatron._shape import describe, kind_of
from foretell.readers.megatron._spell import Writer
from foretell.readers.megatron._states import states

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Effect, Reading, Sources
    from foretell.readers.megatron._model import Shape

__all__ = ["FAMILY"]

_VERSION: Final = "core_v0.19"
_TRAINERS: Final = re.compile(r"pretrain_(?:gpt|bert|t5|mamba|hybrid|vlm|retro|ict|vision_\w+|gpt_\w+)\.py|train_rl\.py")
_TELLING: Final = frozenset(("--tensor-model-parallel-size", "--num-attention-heads", "--micro-batch-size", "--num-layers"))
"""Arguments by which a script that is not known is one of Megatron-LM's, if it has two of them."""
_HARMLESS: Final = frozenset((
    "TEST_TYPE", "LAUNCHER", "METRICS", "METRICS.*", "MODE", "BEFORE_SCRIPT", "AFTER_SCRIPT", "TEST_EVALUATION", "ENV_VARS.*",
    "BRITTLE_METRICS.*", "SKIP_PYTEST", "BASE_MODEL_ARGS.*", "MODEL_ENV_VARS.*", "THROUGHPUT_TEST_PARAMS.*",
))  # fmt: skip
"""What else a test's YAML holds: how it is run and compared."""
_LATER: Final = re.compile(r"MODEL_ARGS_\d+")
"""Arguments of later runs of a test, from the first one's checkpoint."""
_VARIABLES: Final[dict[str, tuple[Effect, str]]] = {
    "ENV_VARS.NVTE_CPU_OFFLOAD_V1": ("memory", "chooses Transformer Engine's older offloading"),
    "ENV_VARS.TORCH_COMPILE_DISABLE": ("both", "fused element-wise kernels are not compiled"),
    "ENV_VARS.TORCHDYNAMO_DISABLE": ("both", "fused element-wise kernels are not compiled"),
    "ENV_VARS.NVTE_NORM_FWD_USE_CUDNN": ("speed", "chooses the kernel of norms"),
    "ENV_VARS.NVTE_NORM_BWD_USE_CUDNN": ("speed", "chooses the kernel of norms"),
}
"""Variables beside those that :mod:`foretell.readers._environment` knows (Transformer Engine, docs/envvars.rst)."""


def _claims(document: Document) -> float:
    """Claim a block of arguments, or flat keys that are Megatron-LM's."""
    block = document.at(ARGS)
    if block is not None and isinstance(block.value, dict):
        return 0.95 if any(key.startswith("--") for key in block.value) else 0.0
    flat = {key.removeprefix("--").replace("-", "_") for key in document.keys()}  # noqa: SIM118  # a document is no mapping
    found = flat & {"tensor_model_parallel_size", "num_layers", "num_attention_heads", "micro_batch_size", "hidden_size"}
    return 0.85 if len(found) > 3 else 0.0


def _starts(launch: Launcher) -> bool:
    """Take a command whose script, or whose arguments, are Megatron-LM's."""
    given = {word.text.partition("=")[0] for word in launch.words}
    script = _script(launch)
    return _TRAINERS.fullmatch(script) is not None or script in SCRIPTS or len(given & _TELLING) > 1


def _script(launch: Launcher) -> str:
    """Return the script that a command starts, also where it is given as a module."""
    return launch.name if launch.name.endswith(".py") else f"{launch.name.rpartition('.')[2]}.py"


def _read(sources: Sources) -> Reading:
    mode = ""
    if sources.launch is not None:
        document = sources.arguments(BOOLEANS)
        if document is not None:
            sources.main = single(document, SEVERAL)
        args = Args.of(sources.main, _script(sources.launch))
    else:
        block = sources.main.at(ARGS)
        if block is not None and not isinstance(block.value, dict):
            problem = f"describes a test without arguments of a run: {ARGS} is empty"
            raise refused(sources.main, problem, hint="Name the file of the run that the test starts")
        args = args_of_yaml(sources.main)
        named = sources.main.get("MODE")
        mode = "" if named is None else named.text()
    served = serves(args, mode)
    b = Builder("megatron", sources, verb="serve" if served else "train", version=_VERSION)
    shape = describe(b, args, degree(args, "tp"))
    if args.on("use_checkpoint_args") is not None and (found := args.get("use_checkpoint_args")) is not None:
        b.doubt(found, "both", "the checkpoint's arguments stand above those that describe the model; it is not read")
    if served:
        serving(b, args)
        account = keys.serving(args)
    else:
        _train(b, args, shape, tested=sources.launch is None and sources.main.at(ARGS) is not None)
        account = keys.training(args)
    b.rest(args.document, *account, off=keys.off(args))
    block = sources.main.at(ARGS)
    if block is not None:
        sources.main.mark(block, deep=True)
        variables(b, sources.main, "ENV_VARS.")
        later = [key for key in sources.main.keys() if _LATER.fullmatch(key)]  # noqa: SIM118  # a document is no mapping
        if later:
            b.note(f"the first run of the test is read; {len(later)} more ({', '.join(later[:3])}) are not")
        b.rest(sources.main, _HARMLESS | {f"{key}.*" for key in later}, _VARIABLES)
    environment(b)
    return b.reading(Writer(b, args, sources.main))


def _train(b: Builder, args: Args, shape: Shape | None, *, tested: bool) -> None:
    b.default("framework", "megatron-core", "Megatron-LM runs on Megatron-Core")
    parallel(b, args, shape)
    batch(b, args)
    length = args.get("seq_length", "encoder_seq_length")
    decoder = args.get("decoder_seq_length")
    if length is None:
        b.needs("seq_len", "seq_length is not among the arguments: the script, or the checkpoint, has it")
    elif kind_of(args) == "t5" and decoder is not None:
        b.set("seq_len", decoder.whole(), decoder)
        b.set("encoder_seq_len", length.whole(), length)
    else:
        b.set("seq_len", length.whole(), length)
    states(b, args, shape)
    kernels(b, args, shape)
    if tested:
        _gpus(b)
    world(b, args, tested=tested)


def _gpus(b: Builder) -> None:
    """Take the GPUs that a test's YAML gives its runner (run_ci_test.sh, _run_training.sh)."""
    main = b.sources.main
    each, nodes = main.get("MODEL_ENV_VARS.MODEL_ARGS.GPUS_PER_NODE", "ENV_VARS.GPUS_PER_NODE"), main.get("ENV_VARS.NUM_NODES")
    if each is not None:
        b.set("gpus_per_node", each.whole(), each)
        b.set("gpus", each.whole() * (1 if nodes is None else nodes.whole()), each)


FAMILY = Family("megatron", "Megatron-LM", _claims, _read, _starts)
