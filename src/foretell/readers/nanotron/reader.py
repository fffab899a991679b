"""nanotron: its YAML files, and ``torchrun ... run_train.py --config-file FILE``.

Sources: huggingface/nanotron 2411b02 (0.4) ``src/nanotron/config/config.py``, ``parallelism_config.py``, ``trainer.py``,
``helpers.py`` init_optimizer_and_grad_accumulator, ``parallel/context.py``, ``run_train.py``.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources, refused
from foretell.readers.nanotron._keys import COMMAND, TABLES
from foretell.readers.nanotron._model import DEFAULT, VERSION, model

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Value

__all__ = ["FAMILY"]

_SCRIPTS: Final = frozenset(("run_train.py", "train_moe.py", "train_mamba.py", "train_doremi.py", "train_reference.py"))
_DEGREES: Final = ("dp", "pp", "tp")
_ENGINES: Final = {"1f1b": "1f1b", "afab": "gpipe"}
_MODES: Final = {"reduce_scatter": True, "all_reduce": False}
_OPTIMIZERS: Final = {"adamw": "adamw", "sgd": "sgd"}
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_PLAIN: Final = {
    "micro_batch": "tokens.micro_batch_size",
    "grad_accum": "tokens.batch_accumulation_per_replica",
    "seq_len": "tokens.sequence_length",
}


def _claims(document: Document) -> float:
    if document.at("model.model_config") is not None and document.at("parallelism") is not None:
        return 1.0
    return 0.8 if document.at("tokens.micro_batch_size") is not None and document.at("parallelism.tp") is not None else 0.0


def _starts(launch: Launcher) -> bool:
    named = any(word.text.partition("=")[0] in ("--config-file", "--config_file") for word in launch.words)
    return launch.name in _SCRIPTS and named


def _read(sources: Sources) -> Reading:
    given = _follow(sources) if sources.main.form == "arguments" else None
    document = sources.main
    if document.at("parallelism") is None or document.at("tokens") is None:
        problem = "describes no training run: nanotron needs the sections parallelism, tokens, model and optimizer"
        raise refused(document, problem)
    if document.get("optimizer") is None:
        raise refused(document, "describes no training run: it has no optimizer", hint="nanotron's run_generate.py needs none")
    b = Builder("nanotron", sources, version=VERSION)
    degrees = {name: _required(document, f"parallelism.{name}").whole() for name in _DEGREES}
    _layout(b, degrees)
    _batch(b)
    _states(b)
    model(b, degrees["tp"])
    TABLES.rest(b, document)
    if given is not None:
        COMMAND.rest(b, given)
    environment(b)
    return b.reading(_Speller(document, degrees, _product(b, degrees)).spell)


def _follow(sources: Sources) -> Document:
    """Make the file that a command names the main document; return the command's arguments."""
    given = sources.arguments(many=frozenset())
    assert given is not None  # noqa: S101  # there is a command
    named = given.get("config_file")
    if named is None:
        raise refused(sources.main, "run_train.py names no file: --config-file FILE")
    found = sources.follow(named)
    if found is None:
        raise named.error("is not here", hint="Give the file itself, or the folder that it is named from: --root DIR")
    sources.main, sources.overrides = found, given
    return given


def _required(document: Document, key: str) -> Found:
    """Return a value that nanotron does not start without."""
    found = document.get(key)
    if found is None:
        raise refused(document, f"lacks {key}, without which nanotron does not start")
    return found


def _layout(b: Builder, degrees: dict[str, int]) -> None:
    """Take the degrees, whose product has to be the number of processes (``parallel/context.py``)."""
    document = b.sources.main
    places = {name: _required(document, f"parallelism.{name}") for name in _DEGREES}
    context, expert = document.get("parallelism.context_parallel_size"), document.get("parallelism.expert_parallel_size")
    for name in ("tp", "pp"):
        b.set(name, degrees[name], places[name])
    special = False
    for option, found in (("cp", context), ("ep", expert)):
        if found is None:
            continue
        b.set(option, found.whole(), found)
        special = special or found.whole() > 1
    if expert is not None and expert.whole() > 1:
        b.doubt(expert, "both", "nanotron's expert groups lie beside data parallelism: counted as inside of it")
    gpus = _product(b, degrees)
    b.set("gpus", gpus, places["dp"], "dp x tp x pp x cp, and x ep where there are experts")
    _checked(b, places["dp"], gpus)
    if special:
        place = next(f for f in (context, expert) if f is not None and f.whole() > 1)
        b.set("framework", "generic", place, "nanotron's context and expert parallelism are not modelled")
        b.doubt_default("framework", "memory", "counted by the generic accounting, not by nanotron's own")
    else:
        b.default("framework", "nanotron", "the file is nanotron's")
    _exchanges(b, degrees)
    engine = document.get("parallelism.pp_engine")
    if degrees["pp"] == 1:
        if engine is not None:
            b.harmless(engine)
    elif engine is not None:
        b.set("schedule", engine.choice(_ENGINES), engine)
    else:
        b.default("schedule", "gpipe", f"{DEFAULT}: afab (config/parallelism_config.py)")
    _recompute(b)


def _product(b: Builder, degrees: dict[str, int]) -> int:
    """Return the number of processes (``examples/moe/README.md``: tp 2 and ep 2 are 4)."""
    others = (b.given(name) for name in ("cp", "ep"))
    return prod((*degrees.values(), *(degree for degree in others if isinstance(degree, int))))


def _checked(b: Builder, place: Found, gpus: int) -> None:
    """Refuse a launch line with another number of processes, as nanotron does."""
    launch = b.sources.launch
    if launch is None:
        return
    if launch.processes is not None and launch.processes[0] != gpus:
        problem = f"makes {gpus} GPUs with tp, pp and cp, and {launch.path}:{launch.processes[1]} starts {launch.processes[0]}"
        raise place.error(problem, hint="nanotron stops unless their product is the number of processes")
    b.world()


def _exchanges(b: Builder, degrees: dict[str, int]) -> None:
    """Take how tensor parallelism exchanges: REDUCE_SCATTER is sequence parallelism."""
    document = b.sources.main
    mode = document.get("parallelism.tp_mode")
    overlap = document.get("parallelism.tp_linear_async_communication")
    again = document.get("parallelism.tp_recompute_allgather")
    if mode is not None:
        b.set("sp", mode.choice(_MODES), mode)
    else:
        b.default("sp", False, f"{DEFAULT}: ALL_REDUCE (config/parallelism_config.py)")
    if overlap is not None and overlap.flag() and degrees["tp"] > 1:
        b.doubt(overlap, "speed", "exchanges of tensor parallelism overlap with products")
    elif overlap is not None:
        b.harmless(overlap)
    if again is not None and not again.flag() and degrees["tp"] > 1 and b.given("sp"):
        b.doubt(again, "more-memory", "gathered inputs are kept for the backward pass")
    elif again is not None:
        b.harmless(again)


def _recompute(b: Builder) -> None:
    document = b.sources.main
    found, old = document.get("parallelism.recompute_layer"), document.get("parallelism.recompute_granularity")
    if found is not None:
        b.set("recompute", "full" if found.flag() else "none", found)
    elif old is not None:
        b.set("recompute", old.choice({"full": "full", "selective": "selective"}), old)
    b.default("recompute", "none", f"{DEFAULT} (config/parallelism_config.py)")


def _batch(b: Builder) -> None:
    for name, key in _PLAIN.items():
        found = _required(b.sources.main, key)
        b.set(name, found.whole(), found)


def _states(b: Builder) -> None:
    """Take the formats of weights, gradients and optimizer states (``helpers.py`` init_optimizer_and_grad_accumulator)."""
    document = b.sources.main
    dtype, wide = document.get("model.dtype"), document.get("optimizer.accumulate_grad_in_fp32")
    precision = "bf16" if dtype is None else dtype.choice(_DTYPES)
    pure = precision != "fp32" and (wide is None or not wide.flag())
    place = wide if pure or dtype is None else dtype
    why = "no fp32 gradients and weights: the optimizer works on the weights themselves" if pure else ""
    if place is not None:
        b.set("precision", f"{precision}-true" if pure else precision, place, why)
        other = dtype if place is wide else wide
        if other is not None:
            b.harmless(other)
    else:
        b.default("precision", "bf16-true", f"{DEFAULT}: bfloat16 without fp32 gradients")
    stage = document.get("optimizer.zero_stage")
    if stage is not None:
        made = stage.whole(minimum=0, maximum=3)
        b.set("zero", min(made, 1), stage, "any stage above 0 is stage 1 in nanotron" if made > 1 else "")
    else:
        b.default("zero", 0, "nanotron's files say it")
    name = document.get("optimizer.optimizer_factory.name")
    if name is not None:
        b.set("optimizer", name.choice(_OPTIMIZERS), name)
    b.default("optimizer", "adamw", f"{DEFAULT} (config/config.py AdamWOptimizerArgs)")
    fused = document.get("optimizer.optimizer_factory.torch_adam_is_fused", "optimizer.torch_adam_is_fused")
    if fused is not None and b.given("optimizer") == "adamw":
        b.set("optimizer_impl", "fused" if fused.flag() else "foreach", fused)
    elif fused is not None:
        b.harmless(fused)


class _Speller:
    """Writes options in the keys of the file."""

    def __init__(self, document: Document, degrees: dict[str, int], gpus: int) -> None:
        self.document, self.degrees, self.gpus = document, degrees, gpus

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        if name in _PLAIN and isinstance(value, str):
            return [Change(self.document, _PLAIN[name], int(value))]
        if name in ("tp", "pp", "gpus") and isinstance(value, str):
            return self._degree(name, int(value))
        key, words = _WORDS.get(name, ("", {}))
        written = words.get(str(value))
        if written is None:
            return None
        changes = [Change(self.document, key, written)]
        if name == "optimizer_impl" and self.document.at("optimizer.optimizer_factory") is None:
            return [Change(self.document, "optimizer.torch_adam_is_fused", written)]
        return changes

    def _degree(self, name: str, value: int) -> list[Change] | None:
        """Divide the GPUs anew: data parallelism has what is left."""
        gpus = value if name == "gpus" else self.gpus
        rest = self.gpus // self.degrees["dp"]
        if name != "gpus":
            rest = rest // self.degrees[name] * value
        if gpus % rest:
            return None
        degree = [Change(self.document, "parallelism.dp", gpus // rest)]
        return degree if name == "gpus" else [Change(self.document, f"parallelism.{name}", value), *degree]


_WORDS: Final[dict[str, tuple[str, dict[str, Value]]]] = {
    "recompute": ("parallelism.recompute_layer", {"full": True, "none": False}),
    "zero": ("optimizer.zero_stage", {"0": 0, "1": 1}),
    "sp": ("parallelism.tp_mode", {"True": "REDUCE_SCATTER", "False": "ALL_REDUCE"}),
    "precision": ("optimizer.accumulate_grad_in_fp32", {"bf16": True, "bf16-true": False}),
    "optimizer_impl": ("optimizer.optimizer_factory.torch_adam_is_fused", {"fused": True, "foreach": False}),
    "attention": ("model.model_config._attn_implementation", {"flash": "flash_attention_2", "sdpa": "sdpa"}),
    "schedule": ("parallelism.pp_engine", {"1f1b": "1f1b", "gpipe": "afab"}),
}

FAMILY: Final = Family("nanotron", "nanotron (YAML, or run_train.py --config-file)", _claims, _read, _starts)
