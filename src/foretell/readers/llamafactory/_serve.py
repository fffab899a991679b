"""LLaMA-Factory's servers: ``llamafactory-cli api FILE`` with ``infer_backend: vllm`` or ``sglang``.

Sources: LLaMA-Factory 0.9.6.dev0 (``chat/vllm_engine.py``, ``chat/sglang_engine.py``, ``hparams/model_args.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._environment import environment
from foretell.readers._reading import Builder, refused
from foretell.readers.llamafactory._keys import LLAMAFACTORY
from foretell.readers.llamafactory._run import DEFAULT, VERSION

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Reading, Sources
    from foretell.readers.hf._common import Section, Tables

__all__ = ["serving"]

_DTYPES: Final = {"auto": None, "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_OWN: Final = ("vllm_maxlen", "vllm_gpu_util", "vllm_enforce_eager", "sglang_maxlen", "sglang_mem_fraction", "sglang_tp_size")


def serving(sources: Sources, section: Section, backend: Found | None, tables: Tables) -> Reading:
    """Read a server; ConfigError where transformers itself generates."""
    engine = "huggingface" if backend is None else backend.text().strip().casefold()
    if backend is None or engine not in ("vllm", "sglang"):
        problem = (
            f"generates with {'transformers' if backend is None or engine in ('huggingface', 'hf') else engine}: no training run"
        )
        hint = "infer_backend: vllm and sglang are answered as servers"
        raise refused(sources.main, problem, hint=hint)
    b = Builder("llamafactory", sources, verb="serve", version=VERSION)
    b.set("engine", engine, backend)
    model = section.get("model_name_or_path")
    if model is not None:
        b.model(model.text(), model)
    vllm = engine == "vllm"
    longest = section.get("vllm_maxlen" if vllm else "sglang_maxlen")
    share = section.get("vllm_gpu_util" if vllm else "sglang_mem_fraction")
    if longest is not None:
        b.set("max_model_len", longest.whole(), longest)
    b.default("max_model_len", 4096, f"{DEFAULT} (hparams/model_args.py)")
    if share is not None:
        b.set("gpu_memory_utilization", share.real(minimum=0.0, maximum=1.0), share)
    b.default("gpu_memory_utilization", 0.7, f"{DEFAULT} (hparams/model_args.py)")
    eager = section.get("vllm_enforce_eager")
    if eager is not None and vllm:
        b.set("enforce_eager", eager.flag(), eager)
    kept = section.get("infer_dtype")
    if kept is not None:
        b.set("weights", kept.choice(_DTYPES), kept)
    _ranks(b, section, vllm=vllm)
    for key in ("vllm_config", "sglang_config"):
        own = section.get(key)
        if own is not None:
            b.doubt(own, "both", "arguments of the engine's own")
    served = section.get("adapter_name_or_path")
    if served is not None:
        b.doubt(served, "more", "the engine serves adapters beside the base")
    for key in _OWN:
        if (unused := section.get(key)) is not None and not any(s.said.startswith(f"{key}:") for s in b.settings.values()):
            b.harmless(unused)
    for document in (sources.main, sources.overrides):
        if document is not None:
            (LLAMAFACTORY | tables).rest(b, document)
    environment(b)
    return b.reading()


def _ranks(b: Builder, section: Section, *, vllm: bool) -> None:
    """Every visible GPU is one of tensor parallelism, but for SGLang's own key."""
    own = None if vllm else section.get("sglang_tp_size")
    if own is not None and own.real() > 0:
        b.set("tp", own.whole(), own)
        return
    launch = b.sources.launch
    if launch is not None and launch.per_node is not None:
        count, line, said = launch.per_node
        document = launch.document
        found = document.get("CUDA_VISIBLE_DEVICES")
        if found is not None:
            b.set("tp", count, found, "every visible GPU (chat/vllm_engine.py)")
            return
        b.note(f"{launch.path}:{line}: {said}: every visible GPU is one of tensor parallelism")
    b.needs("tp", "LLaMA-Factory takes every visible GPU of the machine for tensor parallelism (chat/vllm_engine.py)")
