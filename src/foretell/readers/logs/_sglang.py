"""SGLang's start-up: weights, the KV pool, CUDA graphs, and why it did not start.

Wording: python/sglang/srt/model_executor/model_runner.py, mem_cache/memory_pool.py, managers/scheduler.py (0.1 to 0.5).  Its GB
are 2^30 bytes (``free_gpu_memory / (1 << 30)``).  A line "avail mem" is what the device had free at that moment.
"""

from __future__ import annotations

import re
from typing import Final

from foretell.readers.logs._log import Refusal
from foretell.readers.logs._scan import Builder, Rule, amount, gauge, number, sentence, tally

__all__ = ["RULES"]

NAME: Final = "SGLang"

_LOADED: Final = re.compile(r"Load weight end\.[^\n]{0,300}?avail mem=([\d.]{1,12}) GB(?:, mem usage=([\d.]{1,12}) GB)?")
_LOADED_ONLY: Final = re.compile(r"Load weight end\.[^\n]{0,300}?mem usage=([\d.]{1,12}) GB")
_GRAPHS: Final = re.compile(r"Capture [^\n]{0,60}?graph end\.[^\n]{0,80}?mem usage=([\d.]{1,12}) GB")
_POOL: Final = re.compile(
    r"KV Cache is allocated\.[^\n]{0,80}?#tokens: ([\d,]{1,15}), "
    r"(?:K size: ([\d.]{1,12}) GB, V size: ([\d.]{1,12}) GB|KV size: ([\d.]{1,12}) GB)"
)
_SMALL: Final = sentence("Not enough memory. Please try to increase --mem-fraction-static")
_STATIC: Final = re.compile(r"mem_fraction_static=([\d.]{1,10})")
_WEIGHTS: Final = sentence("Loaded weights leave no GPU memory for the KV cache~under --mem-fraction-static=%")
_LEAST: Final = re.compile(r"minimum viable = 1 - available/pre = ([\d.]{1,12})")
_SETTINGS: Final = re.compile(
    r"\b(model_path|tp_size|dp_size|pp_size|ep_size|context_length|mem_fraction_static|max_running_requests|chunked_prefill_size"
    r"|kv_cache_dtype|quantization|dtype|disable_cuda_graph|cuda_graph_max_bs)='?([\w./:@+-]{1,200})"
)
_NAMES: Final = {
    "model_path": "model",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "context_length": "max_model_len",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "mem_fraction_static": "memory_share",
}


def _loaded(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    text = builder.text[at : at + 400]
    if both := _LOADED.match(text):
        builder.figure(at, "free", amount(both[1], "GB"), NAME, f"{both[1]} GB", label="weights loaded")
    used = both[2] if both is not None else None
    if used is None and (only := _LOADED_ONLY.match(text)):
        used = only[1]
    if used is not None:
        builder.figure(at, "weights", amount(used, "GB"), NAME, f"{used} GB")


def _pool(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    builder.count(at, "kv_tokens", number(found[1]), NAME)
    parts = [amount(part, "GB") for part in found.groups()[1:] if part is not None]
    size, within = sum(part[0] for part in parts), sum(part[1] for part in parts)
    said = " + ".join(f"{part} GB" for part in found.groups()[1:] if part is not None)
    builder.figure(at, "kv_pool", (size, within), NAME, said)


def _captured(builder: Builder, found: re.Match[str]) -> None:
    builder.figure(found.start(), "graphs", amount(found[1], "GB"), NAME, f"{found[1]} GB")


def _small(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    share = _STATIC.search(builder.rest(at, 240))
    said = " ".join(found[0].split())
    value = number(share[1]) if share is not None else None
    builder.message(Refusal(builder.line(at), NAME, "no-blocks", said, share=value, rank=builder.rank(at)))


def _weights(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    least = _LEAST.search(builder.text[at : at + 400])
    said = " ".join(found[0].split())
    smallest = number(least[1]) if least is not None else None
    share = number(found[1])
    builder.message(Refusal(builder.line(at), NAME, "weights", said, share=share, least_share=smallest, rank=builder.rank(at)))


def _settings(builder: Builder, found: re.Match[str]) -> None:
    for one in _SETTINGS.finditer(builder.rest(found.start(), 8000)):
        if one[2] not in ("None", "auto"):
            builder.tell(found.start(), _NAMES.get(one[1], one[1]), one[2], NAME)


RULES: Final = (
    gauge(NAME, "Init torch distributed ends.~mem usage=@", "non_torch"),
    gauge(NAME, "Load weight begin.~avail mem=@", "free", label="before weights"),
    Rule("Load weight end.", re.compile(r"Load weight end\."), _loaded),
    gauge(NAME, "Memory pool end.~avail mem=@", "free", label="pool made"),
    gauge(NAME, "SWAKVPool mem usage: @", "kv_pool"),
    gauge(NAME, "Mamba Cache is allocated.~ssm_state size: @", "state_pool"),
    Rule("KV Cache is allocated.", _POOL, _pool),
    Rule("Capture ", _GRAPHS, _captured),
    gauge(NAME, "available_gpu_mem=@", "free", label="ready"),
    tally(NAME, "max_total_num_tokens=%, ", "kv_tokens"),
    tally(NAME, "max_running_requests=%, ", "max_sequences"),
    tally(NAME, "context_len=%, ", "longest_tokens"),
    Rule("Not enough memory. Please", _SMALL, _small),
    Rule("Loaded weights leave no", _WEIGHTS, _weights),
    Rule("server_args=ServerArgs(", re.compile(r"server_args=ServerArgs\("), _settings, most=16),
)
