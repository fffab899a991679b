"""``axolotl vllm-serve FILE``: the vLLM server that generates samples for reinforcement learning.

Source: axolotl 0.18.0 (``cli/vllm_serve.py``, ``utils/schemas/vllm.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._reading import Builder
from foretell.readers.axolotl._run import DEFAULT, VERSION

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Reading, Sources

__all__ = ["serving"]

_WORDS: Final = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32", "auto": None}
_EVERY: Final = frozenset(("*",))
"""The keys of a training run, which the server does not read."""


def serving(sources: Sources) -> Reading:
    """Read the server that a file describes under ``vllm``; options of the command stand above it."""
    b = Builder("axolotl", sources, verb="serve", version=VERSION)
    named = sources.main.get("base_model")
    if named is not None:
        b.model(named.text().strip(), named)
    b.default("engine", "vllm", "axolotl vllm-serve starts vLLM (cli/vllm_serve.py)")
    for name, key in (("tp", "tensor_parallel_size"), ("dp", "data_parallel_size"), ("max_model_len", "max_model_len")):
        found = _own(sources, key)
        if found is not None:
            b.set(name, found.whole(), found)
    share = _own(sources, "gpu_memory_utilization")
    if share is not None:
        b.set("gpu_memory_utilization", share.real(minimum=0.0, maximum=1.0), share)
    b.default("gpu_memory_utilization", 0.9, f"{DEFAULT} (utils/schemas/vllm.py)")
    kept = _own(sources, "dtype")
    if kept is not None:
        b.set("weights", kept.choice(_WORDS), kept)
    eager = _own(sources, "enforce_eager")
    if eager is not None:
        b.set("enforce_eager", eager.flag(), eager)
    synced = sources.main.get("trl.vllm_lora_sync")
    if synced is not None and synced.flag():
        b.doubt(synced, "more", "the engine serves adapters beside the base")
    for document in (sources.main, sources.overrides):
        if document is not None:
            b.rest(document, _EVERY)
    b.world()
    environment(b)
    return b.reading()


def _own(sources: Sources, key: str) -> Found | None:
    given = None if sources.overrides is None else sources.overrides.get(key)
    return given or sources.main.get(f"vllm.{key}")
