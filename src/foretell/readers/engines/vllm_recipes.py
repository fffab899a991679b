"""vLLM recipes: one model with its checkpoints, their least memory, machines and flags (vllm-project/recipes, models/*.yaml).

Sources: CONTRIBUTING.md of vllm-project/recipes 8959cf6 (the schema, and the rule of the least memory), and those of
:mod:`foretell.readers.engines._vllm_recipes_words`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.catalog.loader import entry
from foretell.dtypes import dtype
from foretell.errors import ForetellError
from foretell.readers._environment import environment
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources, refused
from foretell.readers.engines._flags import Flags, engine_version, file_flags, variables_below
from foretell.readers.engines._model import Served, served_model
from foretell.readers.engines._variables import VLLM_DEFAULTS, vllm_variable
from foretell.readers.engines._vllm_keys import GRAMMAR, TABLES
from foretell.readers.engines._vllm_length import long_allowed
from foretell.readers.engines._vllm_recipes_words import Plan, plan_of, words_document
from foretell.readers.engines._vllm_run import engine

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._reading import Spell

__all__ = ["FAMILY", "amount"]

_SIGNS: Final = frozenset(("meta", "model", "variants", "features", "compatible_strategies", "strategy_overrides", "guide"))
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([MBT])", re.IGNORECASE)
_UNITS: Final = {"m": 1e6, "b": 1e9, "t": 1e12}
_PRECISIONS: Final = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "int4": "int4", "awq": "int4", "gptq": "int4",
    "int8": "int8", "mxfp4": "mxfp4", "mxfp8": "mxfp8",
}  # fmt: skip
_DESCRIBED: Final = """
meta.* guide dependencies.* dependencies[].* features.* opt_in_features variants.* compatible_strategies default_strategy
hardware_overrides.* strategy_overrides.* strategy_hardware.* strategy_min_gpus.* strategy_min_gpus kv_offload_support.*
hardware_notes.* hardware_opt_in_features.* hardware_opt_in_features omni.* model.architecture model.active_parameters
model.context_length model.min_vllm_version model.docker_image model.docker_image.* model.docker_source.* model.install.*
model.base_env dependencies features strategy_overrides hardware_overrides model.supports_dcp model.nightly_required
model.flashinfer_autotune model.name model.description
"""
_NEUTRAL: Final = frozenset(_DESCRIBED.split())
"""What describes the model, how it is installed, and what is not chosen."""
_TOLERANCE: Final = 0.01
_HALF: Final = 2.0


def _claims(document: Document) -> float:
    keys = frozenset(document.keys())
    recipe = document.has("model.model_id") and document.has("variants.default")
    return 1.0 if recipe else 0.5 if {"model", "variants"} <= keys and len(keys & _SIGNS) > 3 else 0.0  # most keys


def _read(sources: Sources) -> Reading:
    document = sources.main
    if not document.has("variants.default"):
        raise refused(document, "has no variant 'default'", hint="A recipe says there which checkpoints exist")
    b = Builder("vllm_recipes", sources, verb="serve")
    named = document.get("variants.default.model_id", "model.model_id")
    plan = plan_of(document, _gpu(sources))
    flags = Flags((file_flags(words_document(document, plan, GRAMMAR), GRAMMAR),))
    served = Served()
    if named is None:
        b.needs("model", "the recipe names no model")
    else:
        served = served_model(b, named)
    engine_version(b, "vllm")
    precision = _precision(b, document, served)
    _chosen(b, document, plan)
    engine(b, flags, served, long=long_allowed(document, *(f"{key}." for key in plan.environment)))
    flags.rest(b, TABLES, GRAMMAR, "vLLM")
    for key in plan.environment:
        variables_below(b, document, f"{key}.", ("VLLM_",), vllm_variable, VLLM_DEFAULTS)
        for other in [*document.untouched()]:
            if other.key.startswith(f"{key}."):
                b.harmless(other)
    omni = document.get("omni")
    if omni is not None or "omni" in [found.text() for key in document.entries("meta.tasks") if (found := document.get(key))]:
        b.doubt_default("omni", "both", "vLLM-Omni makes images, video or speech, which is not modelled")
    _stated(b, document, served, precision)
    b.rest(document, _NEUTRAL)
    environment(b)
    return b.reading(_spelling(document, plan))


def _gpu(sources: Sources) -> str | None:
    """Return the accelerator that the user names, by its name in the catalog."""
    asked = sources.given.get("gpu")
    if not isinstance(asked, str):
        return None
    try:
        return str(entry("hardware", asked)["id"])
    except ForetellError:
        return None


def _chosen(b: Builder, document: Document, plan: Plan) -> None:
    """Say which machine and strategy are read, and take the machine."""
    variants = document.at("variants")
    others = [name for name in variants.value if name != "default"] if variants and isinstance(variants.value, dict) else []
    b.note(
        f"read as the recipe recommends: variant default, {plan.strategy} on {plan.nodes * plan.machine.gpus} x {plan.machine_id}"
        + (f"; other variants: {', '.join(others)}" if others else "")
    )
    why = f"the recipe's own machine, {plan.machine_id} (vllm-project/recipes command-synthesis.js pickDefaultHardware)"
    b.default("gpu", plan.machine.gpu, why)
    b.default("gpus_per_node", plan.machine.gpus, why)
    tag = document.get("model.docker_image")
    version = (
        None if tag is None or not tag.node.scalar else re.fullmatch(r"vllm/vllm-openai:v(\d+\.\d+\.\d+)", tag.text().strip())
    )
    if tag is not None and version is not None:
        b.set("engine_version", version[1], tag)
        b.version = version[1]


def _precision(b: Builder, document: Document, served: Served) -> str | None:
    """Take the format of the checkpoint."""
    found = document.get("variants.default.precision")
    kind = None if found is None else _PRECISIONS.get(found.text().strip().casefold())
    if found is None:
        return None
    if kind is None:
        b.doubt(found, "memory", "a format of weights that is not known here: 16 bits are counted")
    elif kind in ("bf16", "fp16") and served.quantized:
        b.harmless(found)
    elif b.given("weights") is None:
        b.set("weights", kind, found)
    else:
        b.harmless(found)
    return kind


def amount(text: str) -> float | None:
    """Return a number of parameters from "671B", "1.6T", "350M"; None where it is none.

    >>> amount("671B"), amount("350M"), amount("Undisclosed")
    (671000000000.0, 350000000.0, None)
    """
    found = _AMOUNT.fullmatch(text.strip()) if len(text) < 20 else None  # no number is longer
    return None if found is None else float(found[1]) * _UNITS[found[2].casefold()]


def _stated(b: Builder, document: Document, served: Served, precision: str | None) -> None:
    """Compare what the recipe states of the model with what is counted here."""
    count, least = document.get("model.parameter_count"), document.get("variants.default.vram_minimum_gb")
    for found in (count, least):
        if found is not None and not any(s.origin.key == found.key for s in b.settings.values()):
            b.harmless(found)
    arch = served.architecture
    if arch is None:
        return
    whole = float(arch.parameters)
    stated = None if count is None else amount(count.text())
    if count is not None and stated is not None:
        _counted(b, count, stated, whole, _extra(served))
    if least is not None and precision is not None:
        _least(b, least, precision, whole, _tables(served))


def _counted(b: Builder, found: Found, stated: float, whole: float, extra: float) -> None:
    digits = len(found.text().strip()[:-1].replace(".", ""))
    rounding = 0.5 * 10.0 ** (len(f"{stated:.0f}") - digits)
    if abs(whole - stated) <= max(_TOLERANCE * stated, rounding):
        return
    if extra and abs(whole + extra - stated) <= max(_TOLERANCE * stated, rounding):
        b.note(f"stated {found.text()} parameters; ours {whole / 1e9:.2f} B, and {extra / 1e9:.2f} B that propose tokens")
        return
    b.note(f"stated {found.text()} parameters; ours {whole / 1e9:.2f} B ({100 * (whole / stated - 1):+.1f} %)")


def _least(b: Builder, found: Found, precision: str, whole: float, tables: float) -> None:
    """The recipes' least memory is parameters x bytes x 1.2 (CONTRIBUTING.md): it may be less than what is loaded."""
    low = float(dtype(precision).bytes_per_element) if precision != "int4" else 0.52
    weights = (whole - tables) * low + tables * _HALF
    stated = 1e9 * found.real(minimum=0.0)
    said = f"stated minimum {found.text()} GB; {whole / 1e9:.2f} B parameters in {precision} take {weights / 1e9:.1f} GB"
    if stated < weights:
        kept = low < _HALF and tables > 0
        more = f", of which {_HALF * tables / 1e9:.1f} GB are tables that stay in 16 bits" if kept else ""
        b.note(f"{said}{more}: the recipes' minimum is a rule of thumb (parameters x bytes x 1.2), and too low here")
    else:
        b.note(f"{said}; what is left of it is for keys and values, activations and CUDA graphs")


def _tables(served: Served) -> float:
    arch = served.architecture
    if arch is None or arch.vocab is None:
        return 0.0
    return float(arch.vocab) * arch.hidden * (1 if arch.tied else 2)


def _extra(served: Served) -> float:
    """Parameters of next-token layers that the checkpoint holds and training does not build, with tables of their own."""
    arch = served.architecture
    if arch is None:
        return 0.0
    layers = arch.config.get("num_nextn_predict_layers")
    blocks = [*arch.unused] or [arch.main.blocks[arch.main.pattern[-1]]] * (layers if isinstance(layers, int) else 0)
    own = float(sum(op.parameters for block in blocks for op in block.ops))
    return own + (0.0 if arch.unused else len(blocks) * _tables(served))


def _spelling(document: Document, plan: Plan) -> Spell:
    """Options that the recipe's own words give are changed there."""
    places = {word.lstrip("-").replace("-", "_"): plan.words[i + 1][0]
              for i, (word, _) in enumerate([(str(node.value), key) for key, node in plan.words[:-1]])}  # fmt: skip
    names = {"max_model_len": "max_model_len", "max_num_seqs": "max_num_seqs", "block_size": "block_size",
             "max_num_batched_tokens": "max_num_batched_tokens", "gpu_memory_utilization": "gpu_memory_utilization"}  # fmt: skip

    def spell(name: str, value: str | bool) -> list[Change] | None:
        if isinstance(value, bool):
            return None
        if name == "tp" and document.has("strategy_overrides.single_node_tp.tp") and plan.strategy == "single_node_tp":
            node = document.at("strategy_overrides.single_node_tp.tp")
            return [Change(document, "strategy_overrides.single_node_tp.tp", int(value))] if node and node.scalar else None
        key = names.get(name)
        return [Change(document, places[key], value)] if key in places else None

    return spell


FAMILY: Final = Family("vllm_recipes", "recipes of vLLM (YAML)", _claims, _read)
