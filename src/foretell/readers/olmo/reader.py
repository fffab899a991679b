"""OLMo 1 and 2 (allenai/OLMo): the YAML of ``scripts/train.py``, and ``torchrun ... scripts/train.py FILE --key=value``.

Source: allenai/OLMo 59a53e3 (0.6.0) ``olmo/config.py``, ``scripts/train.py``, ``olmo/model.py``, ``olmo/train.py``,
``olmo/optim.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._omegaconf import Values
from foretell.readers._reading import Builder, Change, Reading, Sources, refused
from foretell.readers.hf._world import settle_gpus
from foretell.readers.olmo._keys import TABLES
from foretell.readers.olmo._model import DEFAULT, VERSION, model

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Effect

__all__ = ["FAMILY"]

_PRECISIONS: Final = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
_OPTIMIZERS: Final = {"adamw": "adamw", "lionw": "lion", "decoupled_lionw": "lion"}
_STRATEGIES: Final = {"fsdp": "fsdp", "ddp": "ddp", "single": "single"}
_SHARDS: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "_hybrid_shard_zero2": 2}
_WRAPPING: Final[dict[str, tuple[Effect, str] | None]] = {
    "by_block": None,
    "by_block_and_size": None,
    "by_block_group": ("more", "a group of blocks is gathered at once"),
    "by_block_group_and_size": ("both", "a group of blocks is gathered at once; embedding and head are units of their own"),
    "size_based": ("both", "PyTorch's policy wraps by size"),
    **{
        f"one_in_{word}": ("more", f"{count} blocks are gathered at once")
        for word, count in (("two", 2), ("three", 3), ("four", 4), ("five", 5))
    },
}
_NTH: Final = {"one_in_two": 2, "one_in_three": 3, "one_in_four": 4, "one_in_eight": 8}
_MOST: Final = ("two_in_three", "three_in_four")
_SIGNS: Final = ("data", "tokenizer", "scheduler", "optimizer", "global_train_batch_size", "device_train_microbatch_size")


def _claims(document: Document) -> float:
    shaped = document.at("model.d_model") is not None and document.at("model.n_layers") is not None
    if not shaped or document.has("train_loader") or document.at("model.name") is not None:  # those of llm-foundry
        return 0.0
    found = sum(document.has(key) for key in _SIGNS)
    return 0.9 if found > 2 else 0.5 if document.at("model.max_sequence_length") is not None else 0.2


def _starts(launch: Launcher) -> bool:
    script = launch.program.endswith("scripts/train.py") or (launch.name == "train.py" and "olmo" in launch.program.casefold())
    named = bool(launch.words) and launch.words[0].text.endswith((".yaml", ".yml"))
    return script and named and "composer" not in launch.wrappers


def _read(sources: Sources) -> Reading:
    if sources.main.form == "arguments":
        _follow(sources)
    values = Values(tuple(d for d in (sources.overrides, sources.main) if d is not None))
    if not values.has("model"):
        raise refused(sources.main, "has no model: no training run of OLMo")
    b = Builder("olmo", sources, version=VERSION)
    b.world()
    model(b, values)
    length = values.get("model.max_sequence_length")
    if length is not None:
        b.set("seq_len", length.whole(), length)
    b.default("seq_len", 1024, DEFAULT)
    _distributed(b, values)
    settle_gpus(b)
    _batch(b, values)
    _states(b, values)
    _recompute(b, values)
    _loss(b, values)
    for document in values.documents:
        TABLES.rest(b, document)
    environment(b)
    return b.reading(_Speller(values).spell)


def _follow(sources: Sources) -> None:
    """Make the file that a command names the main document."""
    given = sources.arguments()
    assert given is not None  # noqa: S101  # there is a command
    named = given.get(f"{POSITIONAL}[0]")
    assert named is not None  # noqa: S101  # the command is known by it
    found = sources.follow(named)
    if found is None:
        raise named.error("is not here", hint="Give the file itself, or the folder that it is named from: --root DIR")
    sources.main, sources.overrides = found, given


def _distributed(b: Builder, values: Values) -> None:
    """Take how the states are sharded: FSDP1 unless the file says DDP or one device."""
    found = values.get("distributed_strategy")
    kind = "fsdp" if found is None else str(found.choice(_STRATEGIES))
    strategy = values.get("fsdp.sharding_strategy")
    stage = 3 if strategy is None else int(strategy.choice(_SHARDS))
    if kind == "single" and found is not None:
        b.set("gpus", 1, found)
    if kind != "fsdp" or stage == 0:
        place = found if kind != "fsdp" else strategy
        assert place is not None  # noqa: S101  # both are said in the file
        b.set("framework", "hf-trainer", place, "DDP, autocast over fp32 weights")
        b.set("zero", 0, place)
        for key in ("fsdp.wrapping_strategy", "fsdp.precision", "fsdp.sharding_strategy"):
            unused = values.get(key)
            if unused is not None and unused is not place:
                b.harmless(unused)
    else:
        if found is not None:
            b.set("framework", "fsdp1", found)
        b.default("framework", "fsdp1", f"{DEFAULT}: distributed_strategy fsdp")
        if strategy is not None:
            b.set("zero", stage, strategy)
        b.default("zero", 3, f"{DEFAULT}: FULL_SHARD")
        _units(b, values)
        if strategy is not None and "hybrid" in strategy.text().casefold():
            _replicas(b, values, strategy)
    b.doubt_default("framework", "memory", "OLMo's own modules are counted as transformers' of the same shape")


def _units(b: Builder, values: Values) -> None:
    """Take what is gathered at once, and in which format."""
    wrapping, precision = values.get("fsdp.wrapping_strategy"), values.get("fsdp.precision")
    if wrapping is None:
        b.doubt_default("fsdp.wrapping_strategy", "more", "null: the whole model is one unit, gathered at once")
    else:
        about = wrapping.choice(_WRAPPING)
        if about is None:
            units = "layers" if wrapping.text().casefold().endswith("_size") else "root"
            b.set("fsdp_units", units, wrapping)
        else:
            b.doubt(wrapping, *about)
    if precision is not None:
        precision.choice({"pure": 0, "mixed": 0})
        b.harmless(precision)
    elif values.has("fsdp.precision"):
        b.doubt_default("fsdp.precision", "more", "null: weights are gathered in fp32")


def _replicas(b: Builder, values: Values, strategy: Found) -> None:
    """Take the replicas of a hybrid-sharded run: one a node unless the file says how many (``scripts/train.py``)."""
    found = values.get("fsdp.hybrid_sharding_num_model_replicas")
    gpus, each = b.given("gpus"), b.given("gpus_per_node")
    if found is not None:
        b.set("hsdp_replicas", found.whole(), found)
    elif isinstance(gpus, int) and isinstance(each, int) and gpus % each == 0:
        b.set("hsdp_replicas", gpus // each, strategy, "a replica a node")
    else:
        b.doubt(strategy, "more-memory", "a replica a node, and how many nodes there are is not known: one is counted")


def _batch(b: Builder, values: Values) -> None:
    """Take the batch; a GPU whose share is less than the micro-batch takes its share (``olmo/train.py`` split_batch)."""
    whole, micro = values.get("global_train_batch_size"), values.get("device_train_microbatch_size")
    total, size, gpus = (512 if whole is None else whole.whole()), (16 if micro is None else micro.whole()), b.given("gpus")
    share = total // gpus if isinstance(gpus, int) else None
    if share is not None and share < 1:
        problem = f"is less than {gpus} GPUs"
        raise whole.error(problem) if whole is not None else refused(b.sources.main, f"global_train_batch_size of 512 {problem}")
    lowered = share is not None and share < size
    if micro is not None:
        why = f"no more than a GPU's share of the batch, {share}" if lowered else ""
        b.set("micro_batch", share if lowered else size, micro, why)
    b.default("micro_batch", share if lowered else size, DEFAULT)
    if share is None:
        if whole is not None:
            b.set("global_batch", total, whole)
        b.default("global_batch", total, DEFAULT)
        return
    passes = -(-share // min(size, share))
    if whole is not None:
        b.set("grad_accum", passes, whole, f"{share} samples a GPU in {passes} passes")
    b.default("grad_accum", passes, DEFAULT)


def _states(b: Builder, values: Values) -> None:
    precision, name = values.get("precision"), values.get("optimizer.name")
    if precision is not None:
        b.set("precision", precision.choice(_PRECISIONS), precision)
    else:
        b.needs("precision", "precision is not in the file, and OLMo does not train without: amp_bf16 is --set precision=bf16")
    if name is not None:
        b.set("optimizer", name.choice(_OPTIMIZERS), name)
    b.default("optimizer", "lion", f"{DEFAULT}: lionw")
    if b.given("optimizer") == "lion":
        b.default("optimizer_impl", "forloop", "one parameter after the other (olmo/optim.py LionW)")
    compiled = values.get("compile")
    if compiled is not None:
        b.set("compile", True, compiled)


def _recompute(b: Builder, values: Values) -> None:
    """Take activation checkpointing: every layer, every n-th, most of them, or what is cheap inside of each."""
    found = values.get("activation_checkpointing")
    if found is None or found.node.value is False:
        if found is not None:
            b.set("recompute", "none", found)
        b.default("recompute", "none", DEFAULT)
        return
    word = "whole_layer" if found.node.value is True else found.text().strip().casefold()
    if word in _NTH:
        b.set("recompute", "selective", found)
        b.set("recompute_scope", "layer", found)
        b.set("recompute_layers", _NTH[word], found)
        return
    if word == "fine_grained":
        b.set("recompute", "selective", found)
        b.set("recompute_scope", "attention", found)
        b.doubt(found, "less", "norms and activations are recomputed beside attention")
        return
    if word not in ("whole_layer", *_MOST):
        allowed = ("whole_layer", *_NTH, *_MOST, "fine_grained")
        raise found.error("is no strategy of OLMo", allowed=allowed)
    b.set("recompute", "full", found)
    if word in _MOST:
        b.doubt(found, "more", "not every layer is recomputed: all are counted so")


def _loss(b: Builder, values: Values) -> None:
    """Take the loss; flash-attn's kernel reads the logits as they are, as a compiled one does."""
    fused, extra = values.get("fused_loss"), values.get("softmax_auxiliary_loss")
    on = fused is not None and fused.flag()
    if fused is not None and on:
        b.set("loss", "compiled", fused, "flash-attn's kernel keeps the logits and two numbers a token")
    elif fused is not None:
        b.harmless(fused)
    if extra is not None and extra.flag() and not on:
        b.doubt(extra, "more-memory", "the loss has a second term over the logits")
    elif extra is not None:
        b.harmless(extra)


class _Speller:
    """Writes options in the keys of the file, or of the command where they stand there."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        word, change = str(value), self.values.change
        plain = {
            "micro_batch": "device_train_microbatch_size",
            "global_batch": "global_train_batch_size",
            "seq_len": "model.max_sequence_length",
        }
        if name in plain:
            return [change(plain[name], int(word))]
        if name == "grad_accum":
            return []  # the global batch stays
        if name == "recompute" and word in ("full", "none"):
            return [change("activation_checkpointing", "whole_layer" if word == "full" else False)]
        if name == "zero" and word in ("2", "3") and self._sharded:
            return [change("fsdp.sharding_strategy", "FULL_SHARD" if word == "3" else "SHARD_GRAD_OP")]
        if name == "loss" and word == "compiled":
            return [change("fused_loss", True)]
        if name == "attention" and word in ("flash", "sdpa"):
            return [change("model.flash_attention", word == "flash")]
        if name == "compile" and value is True and not self.values.has("compile"):
            return [change("compile.fullgraph", False)]
        written = {found: key for key, found in _PRECISIONS.items()}.get(word)
        return [change("precision", written)] if name == "precision" and written is not None else None

    @property
    def _sharded(self) -> bool:
        found = self.values.get("distributed_strategy")
        return found is None or found.text() == "fsdp"


FAMILY: Final = Family("olmo", "OLMo (YAML, or torchrun scripts/train.py FILE)", _claims, _read, _starts)
