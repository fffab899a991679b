"""Start-up lines of TensorRT-LLM, llama.cpp, LMDeploy and TGI.

Wording: TensorRT-LLM cpp/tensorrt_llm/batch_manager (GiB and MiB), llama.cpp src/llama-model.cpp and llama-kv-cache (MiB),
LMDeploy src/turbomind (GB are 2^30), TGI server/text_generation_server (tokens).
"""

from __future__ import annotations

import re
from typing import Final

from foretell.readers.logs._log import Counter
from foretell.readers.logs._scan import SIZE, Builder, Rule, amount, gauge, tally

__all__ = ["RULES"]

_TRT: Final = "TensorRT-LLM"
_LLAMA: Final = "llama.cpp"


def _buffer(what: str, counter: Counter) -> Rule:
    """``load_tensors:      CUDA0 model buffer size =  4095.05 MiB``: those of the CPU are host memory."""
    pattern = re.compile(rf"([A-Za-z]\w{{1,30}}) {{1,4}}{what} buffer size ={{1,2}}\s{{1,12}}{SIZE}")

    def take(builder: Builder, found: re.Match[str]) -> None:
        host = "CPU" in found[1] or "Host" in found[1]
        size = amount(found[2], found[3])
        builder.figure(found.start(), "host" if host else counter, size, _LLAMA, f"{found[2]} {found[3]}", label=found[1])

    return Rule(f"{what} buffer size", pattern, take, 36, 60)


RULES: Final = (
    gauge(_TRT, "[MemUsageChange] Allocated @ for max tokens in paged KV cache (%)", "kv_pool"),
    tally(_TRT, "for max tokens in paged KV cache (%)", "kv_tokens"),
    gauge(_TRT, "Memory usage when calculating max tokens in paged kv cache: total: @, available: @", "capacity", "free"),
    gauge(_TRT, "Peak memory during memory usage profiling (torch + non-torch): @", "consumed", moment="peak"),
    gauge(_TRT, "Estimated max memory in KV cache : @", "kv_pool"),
    _buffer("model", "weights"),
    _buffer("KV", "kv_pool"),
    _buffer("compute", "activation"),
    tally("TGI", "Setting max batch total tokens to %", "kv_tokens"),
)
