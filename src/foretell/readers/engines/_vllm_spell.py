"""Options written as vLLM's flags, or as the keys of the file that a command names.  Sources as in :mod:`._vllm_run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change

if TYPE_CHECKING:
    from foretell.readers._reading import Spell
    from foretell.readers.engines._flags import Flags
    from foretell.readers.engines._model import Served

__all__ = ["spelling"]

_NUMBERS: Final = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "max_model_len": "max-model-len",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "block_size": "block-size",
}
_CACHES: Final = {"fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bf16": "auto"}


def spelling(flags: Flags, served: Served) -> Spell:
    """Return what writes an option into the first document that has its flag, or into the first of all."""

    def change(flag: str, value: str | float) -> list[Change]:
        key = flag.replace("-", "_")
        document = flags.holder(key)
        return [Change(document, key if document.has(key) else flag, value)]

    def switch(flag: str, *, on: bool) -> list[Change] | None:
        key = flag.replace("-", "_")
        document = flags.holder(key)
        if document.form != "arguments":
            return [Change(document, key if document.has(key) else flag, on)]
        opposite = f"no_{key}"
        gone = [Change(document, opposite, None, flag=True)] if document.has(opposite) else []
        if on:
            return [*gone, Change(document, flag, value=True, flag=True)]
        return None if document.has(key) and not gone else gone or None

    def spell(name: str, value: str | bool) -> list[Change] | None:
        if isinstance(value, bool):
            flag = {"enforce_eager": "enforce-eager", "chunked_prefill": "enable-chunked-prefill"}.get(name)
            return None if flag is None else switch(flag, on=value)
        if name in _NUMBERS:
            return change(_NUMBERS[name], int(value)) if value.isdecimal() else None
        if name == "gpu_memory_utilization":
            return change("gpu-memory-utilization", float(value))
        if name == "kv_dtype":
            return change("kv-cache-dtype", _CACHES[value]) if value in _CACHES else None
        if name == "weights" and value == "fp8" and not served.quantized:
            return change("quantization", "fp8")
        return None

    return spell
