"""Scripts that train with transformers' Trainer: their command lines, and their arguments as YAML or JSON.

Sources: transformers 5.24.0 (training_args.py, hf_argparser.py, examples/pytorch), and the argument names that FastChat, QLoRA,
PEFT's examples and many people's own scripts share.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources
from foretell.readers.hf._adapters import adapter_settings, quantization_settings
from foretell.readers.hf._common import HF_VERSION, Section, attention_settings, dtype_name, named_file, one_of, placed
from foretell.readers.hf._trainer_keys import SCRIPT, TRAINING
from foretell.readers.hf._trainer_spell import Spelling, spelled
from foretell.readers.hf._training import Defaults, Training, training_settings
from foretell.readers.hf._weights import Weights, settle_precision

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY", "MODEL", "SEQUENCE", "attention_of", "weights_of"]

MODEL: Final = ("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model_id", "model_path", "model")
SEQUENCE: Final = (
    "max_length", "max_seq_length", "max_seq_len", "model_max_length", "block_size", "seq_length", "max_source_length",
    "cutoff_len", "sequence_length", "max_len",
)  # fmt: skip
_FLASH: Final = ("use_flash_attn", "use_flash_attention", "flash_attn", "use_flash_attention_2")
_SURE: Final = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_train_epochs", "output_dir",
    "lr_scheduler_type", "warmup_ratio", "save_strategy", "logging_steps", "bf16", "gradient_checkpointing",
)  # fmt: skip
"""Keys of TrainingArguments that most files have."""
_OTHERS: Final = frozenset(
    ("base_model", "finetuning_type", "stage", "trainer", "recipe", "micro_batch_size", "distributed_type")
)
"""Keys of files of other frameworks."""
_WORD: Final = re.compile(r"--(?:per[_-]device[_-]train[_-]batch[_-]size|model[_-]name[_-]or[_-]path|num[_-]train[_-]epochs)\b")
_EXAMPLE: Final = re.compile(
    r"run_(?:clm|mlm|plm|fim|glue|ner|qa|swag|summarization|translation|xnli|seq2seq_qa|text_classification|mae|mim"
    r"|image_classification|audio_classification|speech_recognition_\w+|classification)(?:_\w+)?\.py"
)
_TOKENLESS: Final = re.compile(r"image|speech|audio|mae|mim|segment|detect|vision")


def _claims(document: Document) -> float:
    root = document.root.value
    if not isinstance(root, dict) or _OTHERS & root.keys():
        return 0.0
    count = sum(key in root for key in _SURE)
    if "per_device_train_batch_size" in root:
        return 0.6 if count >= 3 else 0.5
    return 0.4 if count >= 4 else 0.0


def _starts(launch: Launcher) -> bool:
    if _EXAMPLE.fullmatch(launch.name):
        return True
    return launch.program.endswith(".py") and any(_WORD.match(word.text) for word in launch.words)


def _read(sources: Sources) -> Reading:
    b = Builder("trainer", sources, version=HF_VERSION)
    sources.overrides = sources.arguments()
    documents = placed(sources, _file(sources))
    section = Section(tuple((one, ("",)) for one in documents))
    named_file(b, section, "config", "config_file", "(arguments)[0]")
    model = one_of(b, section, *MODEL)
    if model is not None:
        b.model(model.text(), model)
    else:
        b.needs("model", "the arguments name none")
    made = training_settings(b, section, _defaults(sources))
    _zero(b, section, made)
    _sequence(b, section, sources)
    attention_of(b, section)
    adapters = adapter_settings(b, section, rank=8, dropout=0.0, whose="peft 0.21.2 (LoraConfig)")
    quantization_settings(b, section, adapters=adapters)
    weights = weights_of(b, section, "auto", f"default of transformers {HF_VERSION} (modeling_utils.py)")
    settle_precision(b, made.mixed, made.mixed_at, weights, f"transformers {HF_VERSION}")
    for document in documents:
        (SCRIPT | TRAINING | made.tables).rest(b, document)
    environment(b)
    return b.reading(_speller(section, made))


def _defaults(sources: Sources) -> Defaults:
    """Return the defaults of the program: transformers' examples also train in loops of accelerate's, without the Trainer."""
    if sources.launch is not None and "no_trainer" in sources.launch.name:
        return Defaults(f"transformers {HF_VERSION} (examples without the Trainer)", optimizer="adamw_torch")
    return Defaults()


def _zero(b: Builder, section: Section, made: Training) -> None:
    """Take ZeRO from flags, as DeepSpeed-Chat has them, whose default precision is fp16 (training/utils/ds_utils.py)."""
    stage, moved = section.get("zero_stage", "actor_zero_stage"), section.get("offload")
    if stage is not None and made.deepspeed is None:
        zero = stage.whole(minimum=0, maximum=3)
        b.set("framework", "deepspeed", stage, "DeepSpeed's ZeRO by a flag")
        b.set("zero", zero, stage)
        if made.mixed == "no":
            made.mixed = {"bf16": "bf16", "fp32": "no"}.get(weights_of(b, section, "fp16", "").name, "fp16")
        if moved is not None and moved.flag() and zero:
            b.set("offload", ("optimizer", "params") if zero == 3 else ("optimizer",), moved)
            return
    elif stage is not None:
        b.harmless(stage)
    if moved is not None:
        b.harmless(moved)


def _speller(section: Section, made: Training) -> Spelling:
    def spell(name: str, value: str | bool) -> list[Change] | None:
        return spelled(section, made, SEQUENCE, name, value)

    return spell


def _file(sources: Sources) -> Document | None:
    """Return the file that holds a command's arguments: its only word, its --config, or one given beside it."""
    given = sources.overrides
    if given is None or sources.main.form != "arguments":
        return None
    named = given.get("config", "config_file")
    if named is None:
        named = given.get("(arguments)[0]")
    if named is not None and re.search(r"\.(?:json|ya?ml)$", named.text()):
        found = sources.follow(named)
        if found is not None:
            return found
    return next((one for one in sources.others if _claims(one) > 0), None)


def attention_of(b: Builder, section: Section) -> None:
    """Take the attention, by name or by a flag that many scripts have."""
    found = section.get("attn_implementation", "attention_implementation", "_attn_implementation")
    flag = section.get(*_FLASH)
    if found is not None:
        attention_settings(b, found)
    elif flag is not None and flag.flag():
        b.set("attention", "flash", flag)
        return
    if flag is not None:
        b.harmless(flag)


def weights_of(b: Builder, section: Section, default: str, why: str) -> Weights:
    """Return the format that weights are loaded in."""
    found = one_of(b, section, "dtype", "torch_dtype", "model_dtype")
    return Weights(default if found is None else dtype_name(found), found, why)


def _sequence(b: Builder, section: Section, sources: Sources) -> None:
    """Take the length of a sample, whatever the script calls it."""
    program = "" if sources.launch is None else sources.launch.name
    source, target = section.get("source_max_len"), section.get("target_max_len")
    longest, label = section.get("max_source_length"), section.get("max_target_length")
    found = one_of(b, section, *(name for name in SEQUENCE if name != "max_source_length"))
    packing = section.get("packing")
    if source is not None and target is not None:  # artidoro/qlora: prompt and answer, each cut
        b.set("seq_len", source.whole() + target.whole(), source, f"with {target.key} in line {target.node.line}")
    elif longest is not None and label is not None:  # encoder and decoder
        b.set("encoder_seq_len", longest.whole(), longest)
        b.set("seq_len", label.whole(), label)
    elif found is not None or longest is not None:
        taken = found or longest
        assert taken is not None  # noqa: S101  # one of the two
        b.set("seq_len", taken.whole(), taken)
    elif not _TOKENLESS.search(program):
        b.needs("seq_len", "the arguments do not limit the length of a sample")
    both = source is not None and target is not None
    for idle in (*(() if both else (source, target)), longest, label, found):
        if idle is not None and not any(one.origin.key == idle.key for one in b.settings.values()):
            b.harmless(idle)
    if packing is not None:
        b.set("packing", packing.flag(), packing)
    elif program.startswith("run_clm"):
        b.default("packing", value=True, why="run_clm.py groups texts into blocks (group_texts)")


FAMILY: Final = Family(
    "trainer", "transformers' Trainer (arguments of a script, as a command, YAML or JSON)", _claims, _read, _starts
)
