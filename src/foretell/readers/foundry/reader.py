"""llm-foundry: its training YAML, MosaicML jobs around it, and ``composer train/train.py FILE key=value``.

Sources: mosaicml/llm-foundry 8c8dd48 (0.22.0.dev0) ``llmfoundry/command_utils/train.py``, ``utils/config_utils.py``,
``optim/__init__.py``; mosaicml/composer 6405188 (0.33.0.dev0) ``composer/utils/parallelism.py``,
``composer/distributed/dist_strategy.py``, ``mosaic_parallelism.py``, ``trainer/trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._omegaconf import Values
from foretell.readers._reading import Builder, Change, Reading, Sources, refused
from foretell.readers.foundry._keys import JOB, TABLES
from foretell.readers.foundry._model import DEFAULT, VERSION, Model, model
from foretell.readers.foundry._shards import sharding
from foretell.readers.hf._world import settle_gpus

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_PRECISIONS: Final = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "fp32"}
_SMALL: Final = dict.fromkeys(("bf16", "bfloat16", "amp_bf16"), "bf16-true") | dict.fromkeys(
    ("fp16", "float16", "amp_fp16"), "fp16-true"
)
"""``model.master_weights_dtype`` (``utils/config_utils.py`` process_init_device)."""
_OPTIMIZERS: Final = {
    "decoupled_adamw": "adamw",
    "decoupled_lionw": "lion",
    "clip_lion": "lion",
    "adalr_lion": "lion",
    "no_op": "none",
}
_OWN: Final = """
device_train_microbatch_size global_train_batch_size fsdp_config max_duration algorithms eval_loader optimizer max_seq_len
"""
_SIGNS: Final = frozenset(_OWN.split())
_MODELS: Final = ("mpt_causal_lm", "hf_causal_lm", "hf_t5", "fmapi_causal_lm", "openai_causal_lm", "openai_chat")
"""Names that the registry of models has (``llmfoundry/models/__init__.py``, ``models/hf``, ``models/inference_api_wrapper``)."""
_NO_RUN: Final = (
    ("models", "evaluates models"),
    ("batch_sizes", "measures inference"),
    ("icl_tasks", "lists tasks of an evaluation"),
    ("eval_gauntlet", "describes an evaluation"),
)
"""Keys of files that are no training run: ``scripts/eval/yamls``, ``scripts/inference/benchmarking/yamls``."""
_JOB: Final = "parameters."
_AROUND: Final = frozenset(("image", "compute", "integrations", "parameters"))
"""Keys of a MosaicML job."""


def _claims(document: Document) -> float:
    keys = frozenset(document.keys())
    if "command" in keys and len(keys & _AROUND) > 1:
        return 0.9 if document.at("parameters.train_loader") is not None else 0.6
    if "model" in keys and "train_loader" in keys and keys & _SIGNS:
        return 1.0
    name = document.at("model.name")
    if name is not None and (len(keys & _SIGNS) > 1 or (name.value in _MODELS and keys & _SIGNS)):
        return 0.7
    if keys and keys <= {"icl_tasks", "eval_gauntlet"}:
        return 0.7
    return 0.7 if ("models" in keys or "batch_sizes" in keys) and "max_seq_len" in keys else 0.0


def _starts(launch: Launcher) -> bool:
    return "composer" in launch.wrappers or "llmfoundry" in launch.program.replace("-", "").casefold()


def _read(sources: Sources) -> Reading:
    if sources.main.form == "arguments":
        _follow(sources)
    main, prefix = sources.main, ""
    inner = main.at(_JOB.removesuffix("."))
    if inner is not None and isinstance(inner.value, dict):
        prefix = _JOB
    values = Values(tuple(d for d in (sources.overrides, main) if d is not None), prefix)
    _training(values, main)
    b = Builder("llm_foundry", sources, version=VERSION)
    _world(b, values)
    made = model(b, values)
    _length(b, values)
    _batch(b, values)
    _formats(b, values)
    _optimizer(b, values)
    sharding(b, values, made)
    _software(b, values)
    _rest(b, prefix)
    return b.reading(_Speller(values, made).spell)


def _follow(sources: Sources) -> None:
    """Make the file that a command names the main document."""
    launch, given = sources.launch, sources.arguments()
    assert launch is not None  # noqa: S101  # there is a command
    assert given is not None  # noqa: S101
    words = [found for key in given.entries(POSITIONAL) if (found := given.get(key)) is not None]
    words = [word for word in words if word.text() not in ("train", "train_from_yaml")]
    if launch.name not in ("train.py", "llmfoundry", "llmfoundry.cli.cli"):
        problem = f"starts {launch.name}: no training run of llm-foundry"
        raise refused(sources.main, problem, hint="Known is composer train/train.py FILE.yaml key=value")
    if not words:
        raise refused(sources.main, "train.py names no file")
    document = sources.follow(words[0])
    if document is None:
        raise words[0].error("is not here", hint="Give the file itself, or the folder that it is named from: --root DIR")
    sources.main, sources.overrides = document, given


def _training(values: Values, main: Document) -> None:
    """Refuse files that are no training run."""
    if values.has("train_loader") or values.has("optimizer"):
        return
    what = next((text for key, text in _NO_RUN if values.has(key)), None)
    if what is None and main.has("command"):
        hint = "Give the command that it starts: foretell check -- composer train/train.py ..."
        raise refused(main, "describes a job whose command holds the run: no training run", hint=hint)
    raise refused(main, f"{what or 'has no train_loader and no optimizer'}: no training run of llm-foundry")


def _world(b: Builder, values: Values) -> None:
    """Take the number of GPUs: of the launch line, or of the job."""
    b.world()
    found = b.sources.main.get("compute.gpus") if values.prefix else None
    if found is not None:
        b.set("gpus", found.whole(), found)
    settle_gpus(b)


def _length(b: Builder, values: Values) -> None:
    """Take the tokens of a sample: the loader's, which collates to that length."""
    found = values.get("train_loader.dataset.max_seq_len")
    whole = values.get("max_seq_len")
    found = found or whole
    if found is None:
        b.needs("seq_len", "train_loader.dataset.max_seq_len is not in the file")
        return
    b.set("seq_len", found.whole(), found)
    if b.sources.main.at(f"{values.prefix}model.name") is not None and values.get("model.name") is not None:
        name = values.get("model.name")
        if name is not None and name.text() == "hf_t5":
            b.set("encoder_seq_len", found.whole(), found)
    trimmed = values.get("train_loader.dataset.allow_pad_trimming")
    if trimmed is not None and trimmed.flag():
        b.doubt(trimmed, "less", "batches are cut to their longest sample")


def _batch(b: Builder, values: Values) -> None:
    """Take the batch: all GPUs' together, and the part of it that one GPU runs at a time (``calculate_batch_size_info``)."""
    whole, micro = values.get("global_train_batch_size"), values.get("device_train_microbatch_size")
    if whole is None:
        b.needs("global_batch", "global_train_batch_size is not in the file")
    if micro is None or micro.node.value == "auto":
        where = DEFAULT if micro is None else micro.where
        b.needs("micro_batch", f"{where}: device_train_microbatch_size is auto, which Composer finds out on the GPU")
        if micro is not None:
            b.harmless(micro)
        if whole is not None:
            b.set("global_batch", whole.whole(), whole)
        return
    size, gpus = micro.whole(), b.given("gpus")
    if whole is None or not isinstance(gpus, int):
        b.set("micro_batch", size, micro)
        if whole is not None:
            b.set("global_batch", whole.whole(), whole)
        return
    if whole.whole() % gpus:
        raise whole.error(f"does not divide among {gpus} GPUs: llm-foundry stops with this error")
    share = whole.whole() // gpus
    passes = -(-share // min(size, share))
    lowered = f"no more than a GPU's share of the batch, {share}" if share < size else ""
    b.set("micro_batch", min(size, share), micro, lowered)
    uneven = f", of which the last has {share % size}" if share > size and share % size else ""
    b.set("grad_accum", passes, whole, f"{share} samples a GPU in {passes} passes{uneven}")


def _formats(b: Builder, values: Values) -> None:
    found, master = values.get("precision"), values.get("model.master_weights_dtype")
    if master is not None and master.text().casefold() in _SMALL:
        b.set("precision", _SMALL[master.text().casefold()], master, "weights, gradients and states in 16 bits")
        if found is not None:
            b.harmless(found)
        return
    if master is not None:
        b.harmless(master)
    if found is not None:
        b.set("precision", found.choice(_PRECISIONS), found)
    b.default("precision", "bf16", f"{DEFAULT}: amp_bf16 (utils/config_utils.py TrainConfig)")


def _optimizer(b: Builder, values: Values) -> None:
    found = values.get("optimizer.name")
    if found is None:
        b.needs("optimizer", "optimizer.name is not in the file")
        return
    word = found.text().strip().casefold()
    if word not in _OPTIMIZERS:
        b.doubt(found, "memory", "an optimizer that is registered by code of your own: counted as AdamW")
        b.default("optimizer", "adamw", "counted so")
        return
    b.set("optimizer", _OPTIMIZERS[word], found)
    b.default("optimizer_impl", "forloop", "one parameter after the other (composer/optim/decoupled_weight_decay.py)")


def _software(b: Builder, values: Values) -> None:
    """Take the allocator's setting and torch.compile."""
    found, compiled = values.get("expandable_segments"), values.get("compile_config")
    if found is not None:
        b.set("expandable_segments", found.flag(), found)
    b.default("expandable_segments", True, f"{DEFAULT} (utils/config_utils.py TrainConfig)")
    if compiled is not None:
        b.set("compile", True, compiled)


def _rest(b: Builder, prefix: str) -> None:
    """Account for everything else."""
    main, given = b.sources.main, b.sources.overrides
    (TABLES.under(prefix) | JOB if prefix else TABLES).rest(b, main)
    if given is not None:
        TABLES.rest(b, given)
    environment(b)


class _Speller:
    """Writes options in the keys of the file, or of the command where they stand there."""

    def __init__(self, values: Values, made: Model) -> None:
        self.values, self.made = values, made

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        word = str(value)
        plain = {
            "micro_batch": "device_train_microbatch_size",
            "global_batch": "global_train_batch_size",
            "seq_len": "train_loader.dataset.max_seq_len",
        }
        if name in plain:
            return [self.values.change(plain[name], int(word))]
        if name == "lora_rank" and self.made.adapters:
            return [self.values.change("model.peft_config.r", int(word))]
        if name == "grad_accum":
            return []  # the global batch stays
        if name == "expandable_segments":
            return [self.values.change("expandable_segments", bool(value))]
        if name == "compile" and value is True and not self.values.has("compile_config"):
            return [self.values.change("compile_config.mode", "default")]
        if name == "attention":
            return self._attention(word)
        if name == "precision":
            return self._precision(word)
        sharded = self.values.get("fsdp_config") is not None
        if name == "recompute" and sharded and word in ("full", "none"):
            return [self.values.change("fsdp_config.activation_checkpointing", word == "full")]
        if name == "zero" and sharded and word in ("2", "3"):
            strategy = "FULL_SHARD" if word == "3" else "SHARD_GRAD_OP"
            return [self.values.change("fsdp_config.sharding_strategy", strategy)]
        return None

    def _attention(self, word: str) -> list[Change] | None:
        name = self.values.get("model.name")
        if name is not None and name.text() == "mpt_causal_lm":
            written = {"flash": "flash", "eager": "torch"}.get(word)
            return None if written is None else [self.values.change("model.attn_config.attn_impl", written)]
        written = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager", "flex": "flex_attention"}.get(word)
        if written is None:
            return None
        changes = [self.values.change("model.attn_implementation", written)]
        if self.values.has("model.use_flash_attention_2"):
            changes.append(self.values.change("model.use_flash_attention_2", word == "flash"))
        return changes

    def _precision(self, word: str) -> list[Change] | None:
        written = {found: name for name, found in _PRECISIONS.items()}.get(word)
        if written is not None:
            gone = [self.values.change("model.master_weights_dtype", None)] if self._narrow else []
            return [self.values.change("precision", written), *gone]
        return [self.values.change("model.master_weights_dtype", "bf16")] if word == "bf16-true" else None

    @property
    def _narrow(self) -> bool:
        return self.values.get("model.master_weights_dtype") is not None


FAMILY: Final = Family("llm_foundry", "llm-foundry (YAML, or composer train.py FILE)", _claims, _read, _starts)
