"""TRL: ``trl sft --config run.yaml``, its scripts, and recipes of the alignment-handbook.

Defaults are TRL 1.9.0's; files that use what it dropped (``torch_dtype``, ``max_seq_length``) get those of 0.19.1, which the
alignment-handbook asks for (setup.py, with transformers 4.53.3).

Sources: trl trainer/base_config.py, sft_config.py, model_config.py, utils.py, scripts/utils.py ``TrlParser``, cli/.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers._document import Document, parse_document
from foretell.readers._environment import environment, variables
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources
from foretell.readers.hf._adapters import adapter_settings, quantization_settings
from foretell.readers.hf._common import Section, named_file, one_of, placed
from foretell.readers.hf._trainer_keys import SCRIPT, TRAINING
from foretell.readers.hf._trainer_spell import Spelling, flag, key_of, spelled
from foretell.readers.hf._training import Defaults, Training, training_settings
from foretell.readers.hf._trl_keys import TRL
from foretell.readers.hf._trl_method import (
    LENGTHS,
    METHODS,
    NEW,
    OLD,
    PAIRS,
    SAMPLED,
    Method,
    lengths,
    loss,
    method_of,
    method_settings,
)
from foretell.readers.hf._weights import Weights, settle_precision
from foretell.readers.hf.trainer import MODEL, attention_of, weights_of

if TYPE_CHECKING:
    from foretell.readers._launch import Launcher

__all__ = ["FAMILY"]

_DROPPED: Final = (
    "torch_dtype",
    "max_seq_length",
    "max_prompt_length",
    "dataset_mixture",
    "evaluation_strategy",
    "dataset_mixer",
)
"""Keys that TRL 1.9.0 does not have."""
_MARKS: Final = (
    "use_peft", "lora_target_modules", "lora_r", "load_in_4bit", "use_bnb_nested_quant", "bnb_4bit_quant_type",
    "dataset_mixture", "dataset_mixer", "dataset_train_split", "dataset_test_split", "dataset_name", "dataset_text_field",
    "max_prompt_length", "max_completion_length", "num_generations", "packing", "packing_strategy", "assistant_only_loss",
    "completion_only_loss", "beta", "loss_type", "eval_packing", "padding_free", "activation_offloading", "max_seq_length",
    "max_length", "torch_dtype", "dtype", "model_revision", "attn_implementation", "dataset_num_proc",
)  # fmt: skip
_OTHERS: Final = frozenset(
    ("base_model", "finetuning_type", "stage", "template", "cutoff_len", "distributed_type", "micro_batch_size")
)
_TRAINS: Final = frozenset(
    ("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "output_dir", "num_train_epochs")
)
_MODULE: Final = "trl.scripts."
_PROCESSES: Final = ("num_machines", "machine_rank", "main_process_ip", "main_process_port", "same_network")
"""Options of accelerate's launcher that ``trl METHOD`` hands on (trl/scripts/utils.py, trl/cli)."""
_SCRIPT: Final = re.compile(r"(?:run_|train_)?(?:" + "|".join(METHODS) + r")(?:_\w+)?\.py")
_CONFIGS: Final = {
    "single_gpu": "distributed_type: 'NO'",
    "multi_gpu": "distributed_type: MULTI_GPU",
    "fsdp1": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
             "fsdp_backward_prefetch: BACKWARD_PRE, fsdp_sharding_strategy: FULL_SHARD}",
    "fsdp2": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
             "fsdp_reshard_after_forward: true}",
    "zero1": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1, gradient_accumulation_steps: 1}",
    "zero2": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}",
    "zero3": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}",
}  # fmt: skip
"""What trl/accelerate_configs holds (1.9.0), each for 8 processes in bf16."""


def _claims(document: Document) -> float:
    root = document.root.value
    if not isinstance(root, dict) or _OTHERS & root.keys() or not _TRAINS & root.keys():
        return 0.0
    marks = sum(key in root for key in _MARKS)
    if not {"model_name_or_path", "per_device_train_batch_size"} & root.keys():
        return 0.0
    return 0.7 if marks >= 3 else 0.55 if marks >= 1 and "model_name_or_path" in root else 0.0


def _starts(launch: Launcher) -> bool:
    if launch.name == "trl":
        return bool(launch.words) and launch.words[0].text in METHODS
    if launch.program.startswith(_MODULE):
        return launch.program.removeprefix(_MODULE) in METHODS
    texts = [word.text.partition("=")[0] for word in launch.words]
    return _SCRIPT.fullmatch(launch.name) is not None and any(
        text in ("--config", "--dataset_name", "--use_peft", "--dataset_train_split") for text in texts
    )


def _read(sources: Sources) -> Reading:
    sources.overrides = sources.arguments()
    documents = placed(sources, _file(sources))
    section = Section(tuple((one, ("",)) for one in documents))
    own = OLD if any(one.has(key) for key in _DROPPED for one in documents) else NEW
    method = method_of(sources, section)
    b = Builder("trl", sources, version=own.whose.removeprefix("TRL "))
    if own is OLD:
        b.note("has keys that TRL dropped since: defaults are those of TRL 0.19.1 with transformers 4.53.3")
    named_file(b, section, "config")
    model = one_of(b, section, *MODEL)
    if model is not None:
        b.model(model.text(), model)
    else:
        b.needs("model", "the file names none")
    _accelerate(b, section)
    count = section.get("num_processes")
    if count is not None:
        b.set("gpus", count.whole(), count, "accelerate's launch option")
    for name in _PROCESSES:
        if (found := section.get(name)) is not None:
            b.harmless(found)
    made = training_settings(b, section, own)
    adapters = adapter_settings(b, section, switch="use_peft", whose=own.whose)
    lengths(b, section, method, own)
    weights = weights_of(b, section, "fp32", f"default of {own.whose} (trainer/model_config.py)")
    attention_of(b, section)
    quantised = quantization_settings(b, section, adapters=adapters)
    if quantised:
        _kbit(b, weights, own)
    settle_precision(b, made.mixed, made.mixed_at, weights, own.whose)
    loss(b, section, method, own)
    method_settings(b, section, method, adapters)
    _offloading(b, section)
    for document in documents:
        variables(b, document, prefix="env.")
        (SCRIPT | TRL | TRAINING | made.tables).rest(b, document)
    environment(b)
    return b.reading(_speller(section, made, method))


# -- what is trained ------------------------------------------------------------------------------------------------


def _file(sources: Sources) -> Document | None:
    """Return the file that a command names with --config, or one that is given beside it."""
    given = sources.overrides
    if given is None or sources.main.form != "arguments":
        return None
    named = given.get("config")
    file = None if named is None else sources.follow(named)
    return file or next((one for one in sources.others if _claims(one) > 0), None)


def _accelerate(b: Builder, section: Section) -> None:
    """Take the accelerate configuration that ``trl`` names: a file, or one of its own."""
    found = section.get("accelerate_config")
    if found is None:
        return
    file = b.sources.follow(found)
    if file is None and found.text() in _CONFIGS:
        text = f"{_CONFIGS[found.text()]}\nmixed_precision: bf16\nnum_processes: 8\n"
        file = parse_document(text, f"trl/accelerate_configs/{found.text()}.yaml")
    if file is None:
        b.doubt(found, "both", "names a file that is not here")
        return
    b.harmless(found)
    count = section.get("num_processes")
    if count is not None:
        b.set("gpus", count.whole(), count)
    b.sources.others = (file, *(one for one in b.sources.others if one is not file))


def _kbit(b: Builder, weights: Weights, own: Defaults) -> None:
    """What is not quantised keeps the format it was loaded in, and adapters become bf16 (sft_trainer.py)."""
    b.default("adapter_dtype", "bf16" if own is NEW else "fp32", f"default of {own.whose} (sft_trainer.py)")
    rest = {"fp32": "fp32", "fp16": "fp16"}.get(weights.name, "bf16") if own is NEW else "bf16"
    b.default("quantized_rest", rest, f"{own.whose} (trainer/utils.py)")


def _offloading(b: Builder, section: Section) -> None:
    found = section.get("activation_offloading")
    if found is None:
        return
    if not found.flag():
        b.harmless(found)
    elif b.given("framework") in ("hf-trainer", "peft") and b.given("offload") is None:
        b.set("offload", ("activations",), found)
    else:
        b.doubt(found, "less", "activations are kept in host memory")


# -- writing ------------------------------------------------------------------------------------------------------


def _speller(section: Section, made: Training, method: Method) -> Spelling:
    def spell(name: str, value: str | bool) -> list[Change] | None:
        if name == "micro_batch" and method.name in PAIRS:
            return None if int(value) % 2 else spelled(section, made, LENGTHS, name, str(int(value) // 2))
        if name == "seq_len" and method.name not in SAMPLED:
            old = any(document.at(LENGTHS[0]) is not None for document, _ in section.places)
            return [Change(*key_of(section, *(LENGTHS if old else LENGTHS[1:])), int(value))]
        if name == "loss" and value == "chunked-head" and method.name == "sft":
            return [Change(*key_of(section, "loss_type"), "chunked_nll")]
        if name == "lora_rank":
            return [flag(*key_of(section, "use_peft"), on=True), Change(*key_of(section, "lora_r"), int(value))]
        if name == "lora_targets":
            return [Change(*key_of(section, "lora_target_modules"), tuple(str(value).split(",")))]
        if name == "quantization" and value == "nf4":
            return [flag(*key_of(section, "load_in_4bit"), on=True)]
        if name == "packing" and method.name == "sft":
            return [flag(*key_of(section, "packing"), on=bool(value))]
        return spelled(section, made, LENGTHS, name, value)

    return spell


FAMILY: Final = Family("trl", "TRL (trl sft --config, its scripts, the alignment-handbook)", _claims, _read, _starts)
