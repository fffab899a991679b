"""Megatron-Bridge and NeMo: nested configurations as files, as ``section.field=value`` of a command, and as tests give them.

Source: NVIDIA-NeMo/Megatron-Bridge ``src/megatron/bridge/training/config.py`` (2026-08), NVIDIA/NeMo v2.4 (``nemo/lightning``,
``nemo/collections/llm``, ``examples/nlp/language_modeling``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from foretell.readers._document import Document
from foretell.readers._environment import environment, variables
from foretell.readers._family import Family
from foretell.readers._reading import Builder, refused
from foretell.readers._tree import Node
from foretell.readers.bridge._classes import FULL, dropped, experts, named_model, of_class
from foretell.readers.bridge._fields import Fields, fields, made, resolved
from foretell.readers.bridge._keys import account, changed
from foretell.readers.bridge._nemo import nemo_one, precision
from foretell.readers.bridge._peft import adapters
from foretell.readers.bridge._spell import Writer
from foretell.readers.megatron._args import ARGS
from foretell.readers.megatron._kernels import kernels
from foretell.readers.megatron._layout import batch, degree, parallel, world
from foretell.readers.megatron._model import Shape
from foretell.readers.megatron._shape import describe
from foretell.readers.megatron._states import states
from foretell.readers.megatron._vocabulary import padded

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Reading, Sources

__all__ = ["FAMILY"]

_DEGREES: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_PAIR: Final = re.compile(r"[+~]{0,2}(?:model|train|trainer|ddp|optimizer|comm_overlap|dataset|data|optim)\.\w[\w.]*=")
_SCRIPTS: Final = re.compile(r"megatron_\w+_(?:pretraining|finetuning)\.py|run_recipe\.py|pretrain_\w+\.py|finetune_\w+\.py")
_TOWERS: Final = re.compile(r"VL|Omni|Vision|Llava|MIMO|Audio|ASR|Diffusion|Flux|Clip", re.IGNORECASE)


_LENGTHS: Final = (
    "model.encoder_seq_length", "dataset.seq_length", "dataset.sequence_length", "data.seq_length",
    "model.data.train_ds.max_seq_length", "model.data.seq_length",
)  # fmt: skip
"""Where the tokens of a sample stand, beside ``seq_length`` of the model."""


def _claims(document: Document) -> float:
    """Claim Bridge's sections, NeMo's ``model`` with Megatron's degrees, and tests with dotted arguments."""
    keys = set(document.keys())
    block = document.at(ARGS)
    if block is not None and isinstance(block.value, dict):
        return 0.9 if any(re.match(r"\+*(?:trainer|model|data)\.", key) for key in block.value) else 0.0
    target = document.at("_target_")
    if target is not None and "megatron.bridge" in target.raw:
        return 1.0
    model = document.at("model")
    named = document.at("model._target_")
    if named is not None and ("megatron.bridge" in named.raw or "nemo.collections" in named.raw):
        return 0.95
    inner = set(model.value) if model is not None and isinstance(model.value, dict) else set[str]()
    if inner & set(_DEGREES):
        return 0.9
    if document.at("trainer.strategy.tensor_model_parallel_size") is not None:
        return 0.9
    bridged = {"train", "model", "optimizer", "scheduler", "dataset", "ddp", "checkpoint", "logger", "rng", "dist"}
    return 0.7 if len(keys & bridged) > 4 and ("ddp" in keys or "dist" in keys) else 0.0  # of ten


def _starts(launch: Launcher) -> bool:
    """Take a command with ``section.field=value``, of a script that builds one of these configurations."""
    pairs = sum(_PAIR.match(word.text) is not None for word in launch.words)
    return pairs > 0 and (_SCRIPTS.fullmatch(launch.name) is not None or pairs > 1 or "recipe" in launch.name)


def _read(sources: Sources) -> Reading:
    _open(sources)
    tested = _flat(sources)
    target = sources.get("model._target_")
    source = "default of Megatron-Core core_v0.19 (transformer_config.py)"
    name = "" if target is None else target.text().rpartition(".")[2]
    bert = sources.get("model.bert_binary_head") is not None or "bert" in name.casefold()
    view = fields(sources, "pretrain_bert.py" if bert else "pretrain_t5.py" if "T5" in name else name or "configuration", source)
    view = _completed(sources, view, {**nemo_one(sources), **precision(sources)})
    view = replace(view, dropout=dropped(sources, bert=bert), scripted=not _bridged(sources))
    if (known := named_model(sources)) is not None:  # classes of models with experts set it (models/*/*_provider.py)
        view = replace(view, found=experts(known[0]) | dict(view.found))
    b = Builder("megatron_bridge", sources, version="2026-08")
    shape = _model(b, sources, view, name)
    _train(b, sources, view, shape)
    changed(b, sources)
    if tested is not None:
        account(b, sources.main)
        block = tested.at(ARGS)
        if block is not None:
            tested.mark(block, deep=True)
        variables(b, tested, "ENV_VARS.")
        b.rest(tested, frozenset(("TEST_TYPE", "LAUNCHER", "METRICS", "ENV_VARS.*", "MODE", "BEFORE_SCRIPT", "AFTER_SCRIPT")))
        sources.opened.append(tested)
    for document in (sources.overrides, sources.main):
        if document is not None and tested is None:
            if document.root.value == {}:  # a command alone
                document.mark(document.root)
            account(b, document)
    environment(b)
    return b.reading(Writer(b, sources, view))


def _open(sources: Sources) -> None:
    """Read the command: its pairs stand above the file that ``--config-file`` or ``--config-path`` and ``--config-name`` name."""
    if sources.launch is None:
        return
    sources.overrides = sources.arguments()
    if sources.overrides is None:
        return
    given = sources.overrides.get("config_file", "config", "yaml_file")
    folder, name = sources.overrides.get("config_path"), sources.overrides.get("config_name")
    if given is None and name is not None:
        path = name.text() if folder is None else f"{folder.text().rstrip('/')}/{name.text()}"
        text = path if path.endswith((".yaml", ".yml")) else f"{path}.yaml"
        given = made(name, text)
    document = None if given is None else sources.follow(given)
    others = [other for other in sources.others if isinstance(other.root.value, dict) and "model" in other.root.value]
    if document is None and others:
        document = others[0]
    if document is not None:
        sources.main = document


def _flat(sources: Sources) -> Document | None:
    """Take the dotted arguments of a test's YAML as the document; returns the file that holds them."""
    main = sources.main
    block = main.at(ARGS)
    if block is None:
        return None
    if not isinstance(block.value, dict):
        raise refused(main, f"describes a test without arguments of a run: {ARGS} is empty")
    root = Node({key.lstrip("+~"): node for key, node in block.value.items()}, block.line, block.start, block.end)
    sources.main = Document(main.path, main.text, main.form, root, main.seen)
    return main


def _completed(sources: Sources, view: Fields, more: dict[str, Found]) -> Fields:
    """Add what other dialects say, and what follows from several fields."""
    found = {**view.found, **{name: value for name, value in more.items() if name in _FIRST or name not in view.found}}
    vocab, pad = found.pop("vocab_size", None), sources.get("model.should_pad_vocab", "model.transformer.should_pad_vocab")
    if vocab is not None and vocab.document.at("model.vocab_size") is not None:
        rows = vocab.whole()
        if pad is not None and pad.flag():
            tp, divisible = found.get("tensor_model_parallel_size"), found.get("make_vocab_size_divisible_by")
            rows = padded(rows, 128 if divisible is None else divisible.whole(), 1 if tp is None else tp.whole())
        found["padded_vocab_size"] = made(vocab, value=rows)
    elif vocab is not None:
        found["vocab_size"] = vocab
    overlap = sources.get("comm_overlap")
    if overlap is not None and "overlap_grad_reduce" not in found:  # comm_overlap.py: on where there is data parallelism
        found["overlap_grad_reduce"] = replace(overlap, node=Node(True, overlap.node.line, 0, 0, raw="true"))
    return replace(view, found=found, spelled={name: name for name in found})


_FIRST: Final = frozenset(("optimizer", "bf16", "fp16", "fp8_format", "fp8_recipe", "fp4_format", "normalization"))
"""What a dialect's own spelling says above a field of the same name."""


def _model(b: Builder, sources: Sources, view: Fields, name: str) -> Shape | None:
    """Tell the builder the model: from its fields, or from the class that has them as defaults."""
    if _TOWERS.search(name):
        describe(Builder("megatron_bridge", sources), view, degree(view, "tp"))
        b.needs("model", f"{name} has parts beside its language model: give its name or its config.json with --model")
        return None
    known = named_model(sources)
    if known is not None and not view.found.keys() >= FULL:
        return of_class(b, view, *known)
    found = view.get("num_layers", "hidden_size")
    if (
        sources.get("model.mamba_ssm_ngroups") is not None
        and not {"hybrid_layer_pattern", "hybrid_override_pattern"} & view.found.keys()
    ):
        describe(Builder("megatron_bridge", sources), view, degree(view, "tp"))
        b.needs("model", "which layers are Mamba's is not in the files (hybrid_override_pattern)")
        return None
    if found is not None and not name and not {"normalization", "position_embedding_type"} & view.found.keys():
        b.doubt(
            found,
            "both",
            "norms, positions and activation are the recipe's, not in the files: Megatron-Core's defaults are taken",
        )
    shape = describe(b, view, degree(view, "tp"))
    named = sources.get("model.config._target_", "model._target_")
    if shape is None and named is not None:
        what = "is no class that is known here, and its sizes are not in the files: give --model NAME"
        b.needs("model", f"{named.where}: {named.text().rpartition('.')[2]} {what}")
    return shape


def _bridged(sources: Sources) -> bool:
    """Whether it is Megatron-Bridge's, whose vocabulary has no default; NeMo 2's data is GPT-2's (llm/gpt/data/mock.py)."""
    return sources.main.at("train") is not None or sources.main.at("ddp") is not None


def _train(b: Builder, sources: Sources, view: Fields, shape: Shape | None) -> None:
    tuned = adapters(b, sources)
    fused, modern = view.get("cross_entropy_loss_fusion"), sources.get("model._target_", "model.config._target_") is not None
    native = (modern if fused is None else fused.flag()) and view.word("cross_entropy_fusion_impl", "native") != "te"
    if native and not tuned:
        b.default("framework", "megatron-core", "these configurations run Megatron-Core, here with its own fused loss")
    else:
        b.default("framework", "megatron-bridge", "Megatron-Bridge and NeMo run on Megatron-Core")
    if fused is None and modern:
        b.default("loss", "fused", "default of Megatron-Bridge and NeMo 2 (cross_entropy_loss_fusion)")
    parallel(b, view, shape)
    batch(b, view)
    given = sources.get(*_LENGTHS)
    length = None if given is None else resolved(given)
    if "seq_length" in view.found:
        b.set("seq_len", view.found["seq_length"].whole(), view.found["seq_length"])
    elif length is not None and not length.node.raw.startswith("${"):
        b.set("seq_len", length.whole(), length)
    else:
        b.needs("seq_len", "neither the model nor the data says how long a sample is: the recipe does")
    if _bridged(sources) and all(sources.main.at(key) is None for key in ("_target_", "model._target_")):
        why = "default of Megatron-Bridge's recipes, which such a file changes (recipes/common.py)"
        if not {"bf16", "fp16", "fp8_format", "fp4_format"} & view.found.keys():
            b.default("precision", "bf16", why)
        if not {"use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2"} & view.found.keys():
            b.default("zero", 1, why)
    states(b, view, shape)
    recipe = sources.get("mixed_precision")
    if recipe is not None and recipe.node.scalar and re.search("fp8|nvfp4", recipe.text()):
        b.doubt(recipe, "memory", "this recipe keeps and gathers weights in 8 or 4 bits")
    if view.dropout == 0 and not {"hidden_dropout", "attention_dropout"} & view.found.keys():
        b.default("dropout", 0.0, "default of the providers of named models (Megatron-Bridge, NeMo 2: models/*)")
    kernels(b, view, shape)
    _nemo_one(b, sources)
    _devices(b, sources)
    world(b, view, tested=False)


def _nemo_one(b: Builder, sources: Sources) -> None:
    """NeMo 1 keeps weights in fp32 and casts them unless ``megatron_amp_O2`` (megatron_base_model.py)."""
    found = sources.get("model.megatron_amp_O2")
    if found is not None and not found.flag() and b.given("precision") in ("bf16", "fp16"):
        b.set("param_dtype", "fp32", found, "weights are cast where they are used")
        b.set("master_dtype", "none", found)
        b.set("grad_dtype", "fp32", found)


def _devices(b: Builder, sources: Sources) -> None:
    """Take the GPUs that Lightning's trainer is given."""
    each, nodes = sources.get("trainer.devices"), sources.get("trainer.num_nodes")
    count = 1 if nodes is None else nodes.whole()
    if each is None:
        return
    listed = each.value
    devices = len(listed) if isinstance(listed, list) and listed else None
    if devices is None and each.text().isdecimal():
        devices = each.whole()
    if devices is None:
        b.note("trainer.devices leaves the number of GPUs to the machine: say how many there are (--gpus)")
        return
    b.set("gpus_per_node", devices, each)
    b.set("gpus", devices * count, each, "" if nodes is None else "times trainer.num_nodes")


FAMILY = Family("megatron_bridge", "Megatron-Bridge / NeMo", _claims, _read, _starts)
