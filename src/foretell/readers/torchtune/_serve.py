"""torchtune's generation and evaluation files: a model that answers without an engine.

Source: torchtune 0.7.0 (``recipes/generate.py``, ``recipes/dev/generate_v2*.py``, ``recipes/eleuther_eval.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder, Reading, Sources
from foretell.readers.torchtune._adapters import model
from foretell.readers.torchtune._keys import COMMAND, TABLES

if TYPE_CHECKING:
    from foretell.readers._omegaconf import Values

__all__ = ["inference"]

_TOKENS: Final = 300
"""Tokens of an answer where nothing is said (``recipes/configs/generation.yaml`` ``max_new_tokens``)."""
_FORMATS: Final = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_NEUTRAL: Final = frozenset((
    "prompt", "prompt.*", "temperature", "top_k", "tasks", "limit", "image", "chat_format", "instruct_template",
    "enable_kv_cache", "apply_chat_template", "include_path", "max_images", "tensor_parallel_plan.*",
))  # fmt: skip


def inference(sources: Sources, values: Values, version: str) -> Reading:
    """Read a file that generates text (one answer) or evaluates a model (batches of questions)."""
    b = Builder("torchtune", sources, verb="serve", version=version)
    b.world()
    b.settings.pop("gpus", None)
    b.settings.pop("gpus_per_node", None)
    model(b, values, "model")
    b.default("engine", "other", "torchtune generates without a serving engine")
    found = values.get("dtype")
    if found is not None:
        b.set("weights", found.choice(_FORMATS), found)
    if (found := values.get("tensor_parallel_dim")) is not None:
        b.set("tp", found.whole(), found)
    quantizer = values.get("quantizer._component_")
    if quantizer is not None:
        b.doubt(quantizer, "less", "weights are stored in fewer bits")
    batch, longest, made = values.get("batch_size"), values.get("max_seq_length"), values.get("max_new_tokens")
    if batch is not None:
        b.set("batch", batch.whole(), batch)
    b.default("batch", 1, "one prompt at a time")
    if longest is not None:
        b.set("input_tokens", max(1, longest.whole() - 1), longest, "the longest that is read")
        b.default("output_tokens", 1, "answers are scored, not generated")
    if made is not None:
        b.set("output_tokens", made.whole(), made)
    b.default("output_tokens", _TOKENS, f"{_TOKENS} new tokens (recipes/configs/generation.yaml)")
    b.doubt_default("engine", "speed", "torchtune's own loop was never measured: it is timed as an unknown engine's")
    for document in dict.fromkeys(d for d in (sources.main, sources.overrides) if d is not None):
        tables = TABLES | COMMAND if document is sources.overrides else TABLES
        b.rest(document, tables.neutral | _NEUTRAL, tables.unmodelled, off=tables.off)
    return b.reading()
