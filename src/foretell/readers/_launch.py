"""Launch lines: which command of a script starts the run, what wraps it, and on how many GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from foretell.errors import ConfigError
from foretell.readers._document import Document
from foretell.readers._shell import Command, Script, Word, option, parse_shell
from foretell.readers._tree import Node, resolved

__all__ = ["Launcher", "World", "launchers"]

World = tuple[int, int, str]
"""(how many, line, as it is written)."""

_PREFIXES: Final = frozenset(("sudo", "nohup", "env", "time", "exec", "uv", "run", "poetry", "conda", "numactl", "stdbuf",
                              "uvx", "trtllm-llmapi-launch"))  # fmt: skip
_WRAPPERS: Final = frozenset(
    ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "composer", "accelerate-launch", "ft_launcher")
)
_SPELLED: Final = {"mpiexec": "mpirun", "accelerate-launch": "accelerate", "ft_launcher": "torchrun"}
_PYTHON: Final = re.compile(r"python[\d.]*|pypy[\d.]*|\$\{?PYTHON\w*\}?")
_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_FLAGS: Final = {
    "torchrun": frozenset(("--standalone", "--no-python", "--no_python", "-m", "--module", "--use-env", "--use_env")),
    "accelerate": frozenset((
        "--multi_gpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--cpu", "--quiet", "-q", "-m", "--module",
        "--no_python", "--debug", "--tpu", "--same_network", "--use_xpu", "--enable_cpu_affinity", "--use_parallelism_config",
        "--ipex", "--mps",
    )),
    "deepspeed": frozenset(("--no_python", "--no_local_rank", "--module", "-m", "--enable_each_rank_log", "--no_ssh_check",
                            "--force_multi", "--save_pid", "--no_ssh")),
    "srun": frozenset(("-l", "--label", "-u", "--unbuffered", "--exclusive", "--overlap", "-K", "-v")),
    "mpirun": frozenset(("--allow-run-as-root", "--oversubscribe", "--verbose")),
    "composer": frozenset(("-v", "--verbose", "--hybrid_shard")),
    "env": frozenset(("-i",)),
}  # fmt: skip
"""Flags of wrappers that take no value (their argument parsers; srun(1))."""
_PROGRAMS: Final = frozenset((
    "vllm", "vllm-omni", "sglang", "trtllm-serve", "lmdeploy", "llama-server", "text-generation-launcher",
    "llamafactory-cli", "lmf", "axolotl", "tune", "trl",
    "run_train.sh", "run_llama_train.sh",  # torchtitan
))  # fmt: skip

_PAIRED: Final = ("--mca", "-mca", "--gmca", "-gmca")
"""Options of mpirun that take a name and a value (mpirun(1) of Open MPI)."""
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_ENTRIES: Final = (
    (r"(?:docker\.io/)?(?:vllm|rocm|public\.ecr\.aws/\S+)/vllm[\w-]*", ("vllm", "serve")),
    (r"ghcr\.io/huggingface/text-generation-inference", ("text-generation-launcher",)),
    (r"(?:docker\.io/)?(?:lmsysorg|sglang)/sglang", ()),
    (r"nvcr\.io/nvidia/tensorrt-llm/", ()),
    (r"(?:docker\.io/)?openmmlab/lmdeploy", ()),
    (r"ghcr\.io/ggml-org/llama\.cpp:server", ("llama-server",)),
)
"""Image -> the program that its entry point starts (the projects' own Dockerfiles and documentation)."""
_IMAGE: Final = re.compile("|".join(f"(?:{image})" for image, _ in _ENTRIES))


@dataclass
class Launcher:
    """One command that starts a run."""

    path: str
    text: str
    program: str
    """A script's path, a module's name ("vllm.entrypoints.openai.api_server") or a program ("vllm")."""
    words: tuple[Word, ...]
    """What follows the program."""
    wrappers: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    """Wrapper -> its own words."""
    environment: dict[str, Word] = field(default_factory=dict)
    per_node: World | None = None
    processes: World | None = None
    notes: list[str] = field(default_factory=list)
    line: int = 1
    start: int = 0
    """Where the command's first word stands."""

    def __post_init__(self) -> None:
        """Make the documents of the environment."""
        node = Node({}, self.line, 0, 0)
        assert isinstance(node.value, dict)  # noqa: S101
        for name, word in self.environment.items():
            node.value[name] = word_node(word, node)
        self.document = Document(self.path, self.text, "environment", node)

    @property
    def name(self) -> str:
        """The program without its folders."""
        return PurePosixPath(self.program).name


def launchers(text: str, path: str) -> list[Launcher]:
    """Return the commands of a text that start something: those under a launcher of processes first."""
    script = parse_shell(text, path)
    found = [made for command in script.commands if (made := _launched(command, script)) is not None]
    found.sort(key=lambda made: (not made.wrappers and made.name not in _PROGRAMS, made.line))
    return found


def word_node(word: Word, parent: Node | None = None) -> Node:
    """Return a word as a node: typed as YAML would read it."""
    value = word.text if word.quoted and not word.text.strip() else resolved(word.text)
    return Node(value, word.line, word.start, word.end, raw=word.text, parent=parent)


def _launched(command: Command, script: Script) -> Launcher | None:
    """Return what a command starts, without what wraps it; None where it starts nothing that is known."""
    made = Launcher(script.path, script.text, "", (), line=command.line, start=command.words[0].start)
    environment, words = dict(command.environment), [*command.words]
    program: Word | None = None
    while words and program is None:
        head = words.pop(0)
        name = PurePosixPath(head.text).name
        if name in _PREFIXES:
            words = _after_prefix(words, name, environment)
        elif _PYTHON.fullmatch(name):
            program, words = _of_python(words, made)
            if program is None and not words:
                return None
        elif name in _WRAPPERS:
            program, words = _of_wrapper(words, name, made)
        elif name in _CONTAINERS:
            words = _of_container(words, environment, made)
        elif name in _PROGRAMS or head.text.endswith(".py") or made.wrappers:
            program = head
        else:
            return None
    if program is None:
        return None
    made = replace(made, program=program.text, words=tuple(words), environment=environment)
    made.per_node, made.processes = _world(made, script)
    return made


def _after_prefix(words: list[Word], name: str, environment: dict[str, Word]) -> list[Word]:
    """Drop the options of ``env``, ``uv run`` and the like; what ``env`` sets is kept."""
    rest = [*words]
    while rest and (rest[0].text.startswith("-") or "=" in rest[0].text):
        given = rest.pop(0)
        if "=" in given.text and not given.text.startswith("-"):
            key, _, value = given.text.partition("=")
            environment[key] = Word(value, given.line, given.end - len(value), given.end)
        elif name == "conda" or given.text in ("-n", "--with", "--python", "--from"):
            rest = rest[1:]
    return rest


def _of_python(words: list[Word], made: Launcher) -> tuple[Word | None, list[Word]]:
    """Return the script or module that Python runs, and its arguments; a launcher's module only wraps."""
    rest = [*words]
    while rest and rest[0].text.startswith("-") and rest[0].text != "-m":
        rest.pop(0)
    if len(rest) > 1 and rest[0].text == "-m":
        module = _MODULES.get(rest[1].text)
        if module is None:
            return rest[1], rest[2:]
        made.wrappers[module], rest = _own(rest[2:], module)
        return _of_module(rest)
    return (rest[0], rest[1:]) if rest and rest[0].text != "-m" else (None, [])


def _of_wrapper(words: list[Word], name: str, made: Launcher) -> tuple[Word | None, list[Word]]:
    """Take a wrapper's own options off; ``-m MODULE`` behind them is the program."""
    key = _SPELLED.get(name, name)
    if name == "accelerate":
        if not words or words[0].text != "launch":
            return None, []
        words = words[1:]
    made.wrappers[key], rest = _own(words, key)
    return _of_module(rest)


def _of_container(words: list[Word], environment: dict[str, Word], made: Launcher) -> list[Word]:
    """Return what ``docker run IMAGE`` starts: the image's own program, or the command behind it; the variables are kept."""
    at = next((i for i, word in enumerate(words) if _IMAGE.match(word.text)), None)
    if at is None or words[0].text not in ("run", "container"):
        return []
    for i, word in enumerate(words[:at]):
        name, equals, value = word.text.partition("=")
        given = words[i + 1] if not equals and i + 1 < at else word
        pair = value if equals else given.text
        if name in ("-e", "--env") and "=" in pair:
            key, _, inner = pair.partition("=")
            environment[key] = Word(inner, given.line, max(given.end - len(inner), given.start), given.end)
    rest = words[at + 1 :]
    made.wrappers["container"] = (words[at],)
    starts = next((names for image, names in _ENTRIES if re.match(image, words[at].text)), ())
    if rest and (PurePosixPath(rest[0].text).name in (*_PROGRAMS, "bash", "sh") or _PYTHON.fullmatch(rest[0].text)):
        return rest
    return [*(Word(text, words[at].line, 0, 0) for text in starts), *rest]


def _of_module(rest: list[Word]) -> tuple[Word | None, list[Word]]:
    if rest and rest[0].text == "-m":
        return (rest[1], rest[2:]) if len(rest) > 1 else (None, [])
    return None, rest


def _own(words: list[Word], wrapper: str) -> tuple[tuple[Word, ...], list[Word]]:
    """Divide what follows a wrapper into its own options and what it starts."""
    flags, own = _FLAGS.get(wrapper, frozenset[str]()), list[Word]()
    rest = [*words]
    while rest:
        text = rest[0].text
        if text in ("-m", "--module"):
            rest[0] = Word("-m", rest[0].line, 0, 0)
            return tuple(own), rest
        if text == "--":
            return tuple(own), rest[1:]
        if not text.startswith("-"):
            return tuple(own), rest
        own.append(rest.pop(0))
        if wrapper == "mpirun" and text in _PAIRED:
            own += [rest.pop(0) for _ in range(min(len(rest), 2))]
        elif "=" not in text and text not in flags and rest and not _option(rest[0].text) and not re.fullmatch(r"-[nN]\d+", text):
            own.append(rest.pop(0))
    return tuple(own), rest


def _option(text: str) -> bool:
    return text.startswith("-") and re.match(r"-\d", text) is None


_PER_NODE: Final = (
    ("torchrun", ("--nproc_per_node", "--nproc-per-node")),
    ("deepspeed", ("--num_gpus",)),
    ("composer", ("-n", "--nproc")),
    ("srun", ("--ntasks-per-node", "--gpus-per-node")),
)
_NODES: Final = (
    ("torchrun", ("--nnodes",)),
    ("deepspeed", ("--num_nodes",)),
    ("accelerate", ("--num_machines",)),
    ("srun", ("--nodes", "-N")),
)
_ALL: Final = (
    ("accelerate", ("--num_processes", "--num-processes")),
    ("mpirun", ("-np", "-n", "--np")),
    ("composer", ("--world_size",)),
    ("srun", ("--ntasks", "-n")),
)
_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def _world(made: Launcher, script: Script) -> tuple[World | None, World | None]:
    """Return (GPUs of one node, GPUs in all), as far as the launch line or the scheduler's lines say."""
    each, nodes, every = (_counted(made, script, table) for table in (_PER_NODE, _NODES, _ALL))
    if each is None and "deepspeed" in made.wrappers:
        each = _included(made)
    if each is None and every is None:
        each = _scheduled(script) or _visible(made)
    if every is not None:
        if each is None and nodes is not None and every[0] % nodes[0] == 0:
            each = (every[0] // nodes[0], every[1], f"{every[2]}, {nodes[2]}")
        return each, every
    if each is None:
        return None, None
    if nodes is None:
        found = option(script.directives, ("--nodes", "-N"))
        nodes = None if found is None else _count(made, found, "--nodes")
    if nodes is None:
        return each, each
    return each, (each[0] * nodes[0], each[1], f"{each[2]}, {nodes[2]}")


def _counted(made: Launcher, script: Script, table: tuple[tuple[str, tuple[str, ...]], ...]) -> World | None:
    for wrapper, names in table:
        words = made.wrappers.get(wrapper)
        if words is None:
            continue
        found = option(words, names)
        if found is not None:
            return _count(made, found, names[0])
    if "srun" in made.wrappers:
        found = option(script.directives, dict(table)["srun"])
        if found is not None:
            return _count(made, found, dict(table)["srun"][0])
    return None


def _count(made: Launcher, word: Word, name: str) -> World | None:
    text = word.text.split(":")[-1]  # an elastic "1:4": the most; "a100:8": of that kind
    if text.isdigit() and 0 < int(text) <= 10**7:  # more GPUs than were ever made
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


def _scheduled(script: Script) -> World | None:
    """GPUs of a node from the scheduler's lines: ``--gpus-per-node``, ``--gres=gpu:a100:8``."""
    for names in (("--gpus-per-node",), ("--gres",), ("--ntasks-per-node",)):
        found = option(script.directives, names)
        number = None if found is None else re.search(r"(?:^|:)(\d{1,4})(?:\(|,|$)", found.text)
        if found is not None and number is not None and int(number[1]) > 0:
            return int(number[1]), found.line, f"{names[0]}={found.text}"
    return None


def _visible(made: Launcher) -> World | None:
    for name in _DEVICES:
        word = made.environment.get(name)
        if word is not None and re.fullmatch(r"\d+(,\d+)*", word.text):
            return len(word.text.split(",")), word.line, f"{name}={word.text}"
    return None
