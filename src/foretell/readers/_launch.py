"""Launch lines: which command of a script starts the run, what wraps it, and on how many GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from foretell.readers._document import Document
from foretell.readers._pieces import Word, cut
from foretell.readers._shell import Command, Script, parse_shell
from foretell.readers._tree import Node, resolved
from foretell.readers._world import World, gpu_of, world_of

__all__ = ["Launcher", "World", "launchers"]

_PREFIXES: Final = frozenset(("sudo", "nohup", "env", "time", "exec", "uv", "run", "poetry", "conda", "numactl", "stdbuf",
                              "uvx", "trtllm-llmapi-launch", "timeout"))  # fmt: skip
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

_ENGINES: Final = ("vllm", "sglang", "lmdeploy", "tensorrt_llm")
"""Packages whose modules are servers, which start processes of their own."""
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
    gpu: tuple[str, int, str] | None = None
    """The kind of GPU that is asked of the scheduler: (name, line, as it is written)."""
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
    serves = made.name in _PROGRAMS or made.program.split(".")[0] in _ENGINES
    made.per_node, made.processes = world_of(made, script, tasks=not serves)
    made.gpu = gpu_of(made, script)
    return made


def _after_prefix(words: list[Word], name: str, environment: dict[str, Word]) -> list[Word]:
    """Drop the options of ``env``, ``uv run`` and the like; what ``env`` sets is kept."""
    rest = [*words]
    if name == "timeout" and rest and re.fullmatch(r"[\d.]+[smhd]?", rest[0].text):
        return rest[1:]
    while rest and (rest[0].text.startswith("-") or "=" in rest[0].text):
        given = rest.pop(0)
        if "=" in given.text and not given.text.startswith("-"):
            key, _, value = given.text.partition("=")
            environment[key] = cut(given, len(given.text) - len(value))
        elif name == "conda" or given.text in ("-n", "--with", "--python", "--from"):
            rest = rest[1:]
    return rest


def _of_python(words: list[Word], made: Launcher) -> tuple[Word | None, list[Word]]:
    """Return the script or module that Python runs, and its arguments; a launcher's module only wraps."""
    rest = [*words]
    while rest and rest[0].text.startswith("-") and rest[0].text != "-m":
        rest = rest[2 if rest[0].text in ("-W", "-X") else 1 :]
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
            environment[key] = cut(given, len(given.text) - len(inner))
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
