"""vLLM's start-up: what its memory went to, what was left for keys and values, and why it did not start.

Wording by version (vllm/worker/worker.py, v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py, executor/executor_base.py):
to 0.5 "# GPU blocks"; 0.6 to 0.8 (V0) "model weights take ...; non_torch_memory takes ..."; 0.8 (V1) to today "Available KV cache
memory" and "GPU KV cache size"; from 0.11 "Actual usage is ... for weight"; from 0.21 "Estimated CUDA graph memory"; from 0.29
"consumed memory (weights + non-torch)".  GB and GiB are 2^30 bytes alike.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foretell.readers.logs._log import Refusal
from foretell.readers.logs._scan import Builder, Rule, amount, gauge, number, sentence, tally

__all__ = ["RULES"]

NAME: Final = "vLLM"

_BUDGET: Final = sentence("total_gpu_memory (@) x gpu_memory_utilization (%) = @")
_DESIRED: Final = sentence("Desired GPU memory utilization is (%, @)")
_STARTUP: Final = sentence("Free memory on device~(%/@) on startup is less than desired GPU memory utilization (%, @)")
_NO_BLOCKS: Final = sentence("No available memory for the cache blocks")
_LONGEST: Final = sentence("max seq len (%) is larger than the maximum number of tokens that can be stored in KV cache (%)")
_NEEDS: Final = sentence("@ KV cache is needed")
_HAS: Final = sentence("available KV cache memory (@)")
_ESTIMATE: Final = sentence("estimated maximum model length is %")
_STATES: Final = sentence("max_num_seqs (%) exceeds available Mamba cache blocks (%)")
_BANNER: Final = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v([\w.+-]{1,40})\)")
_SERVER: Final = re.compile(r"vLLM API server version ([\w.+-]{1,40})")
_CONFIG: Final = re.compile(
    r"\b(model|dtype|max_seq_len|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|quantization|kv_cache_dtype"
    r"|enforce_eager|max_num_batched_tokens|max_num_seqs|max_model_len|gpu_memory_utilization)(?:'?: ?|=)'?([\w./:@+-]{1,200})"
)


def _budget(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    builder.figure(at, "capacity", amount(found[1], found[2]), NAME, f"{found[1]} {found[2]}")
    builder.figure(at, "budget", amount(found[4], found[5]), NAME, f"{found[4]} {found[5]}")
    builder.count(at, "memory_share", number(found[3]), NAME)


def _desired(builder: Builder, found: re.Match[str]) -> None:
    builder.count(found.start(), "memory_share", number(found[1]), NAME)
    builder.figure(found.start(), "budget", amount(found[2], found[3]), NAME, f"{found[2]} {found[3]}")


def _device(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    if refused := _STARTUP.match(builder.text, at, at + 400):
        share, wanted = number(refused[4]), amount(refused[5], refused[6])[0]
        free, total = amount(refused[1], refused[3])[0], amount(refused[2], refused[3])[0]
        builder.message(
            Refusal(
                builder.line(at),
                NAME,
                "startup",
                " ".join(refused[0].split()),
                needed=wanted,
                available=free,
                share=share,
                capacity=total,
                rank=builder.rank(at),
            )
        )
        return
    builder.figure(at, "free", amount(found[1], found[3]), NAME, f"{found[1]} {found[3]}", label="start-up")
    builder.figure(at, "capacity", amount(found[2], found[3]), NAME, f"{found[2]} {found[3]}")


def _no_blocks(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    builder.message(Refusal(builder.line(at), NAME, "no-blocks", " ".join(found[0].split()), rank=builder.rank(at)))


def _longest(builder: Builder, found: re.Match[str]) -> None:
    """One request of the longest length does not fit, as V0 and V1 say it."""
    at, text = found.start(), builder.text
    made = Refusal(builder.line(at), NAME, "longest", "", wanted_tokens=int(number(found[1])), rank=builder.rank(at))
    if held := _LONGEST.match(text, at, at + 400):
        builder.message(replace(made, held_tokens=int(number(held[2])), said=" ".join(held[0].split())))
        return
    rest = text[at : at + 700]
    needs, has, estimate = _NEEDS.search(rest), _HAS.search(rest), _ESTIMATE.search(rest)
    if needs is not None:
        available = amount(has[1], has[2])[0] if has is not None else None
        tokens = int(number(estimate[1])) if estimate is not None else None
        end = at + max(one.end() for one in (needs, has, estimate) if one is not None)
        said = " ".join(text[at:end].split())
        builder.message(replace(made, needed=amount(needs[1], needs[2])[0], available=available, held_tokens=tokens, said=said))


def _states(builder: Builder, found: re.Match[str]) -> None:
    at = found.start()
    said = " ".join(found[0].split())
    builder.message(
        Refusal(builder.line(at), NAME, "states", said, wanted_tokens=int(number(found[1])), held_tokens=int(number(found[2])))
    )


def _banner(builder: Builder, found: re.Match[str]) -> None:
    """Take the version, and the settings that the line repeats."""
    at = found.start()
    builder.tell(at, "version", found[1], NAME)
    _settings(builder, at)


def _settings(builder: Builder, at: int) -> None:
    for one in _CONFIG.finditer(builder.rest(at, 4000)):
        if one[2] not in ("None", "auto"):
            builder.tell(at, {"max_seq_len": "max_model_len"}.get(one[1], one[1]), one[2], NAME)


def _arguments(builder: Builder, found: re.Match[str]) -> None:
    _settings(builder, found.start())


RULES: Final = (
    Rule("total_gpu_memory (", _BUDGET, _budget),
    Rule("Desired GPU memory utilization", _DESIRED, _desired),
    Rule("Free memory on device", sentence("Free memory on device~(%/@)"), _device),
    gauge(
        NAME,
        "eights take @; non_torch_memory takes @; PyTorch activation peak memory takes @",
        "weights",
        "non_torch",
        "activation",
    ),
    gauge(NAME, "reserved for KV Cache is @", "kv_pool"),
    gauge(NAME, "Actual usage is @ for weight, @ for peak activation, @ for non-torch", "weights", "activation", "non_torch"),
    gauge(NAME, "Actual usage is @ for consumed memory~, @ for peak activation", "consumed", "activation"),
    gauge(NAME, "and @ for CUDAGraph memory", "graphs"),
    gauge(NAME, "Current kv cache memory in use is @", "kv_pool"),
    gauge(NAME, "Loading model weights took @", "weights"),
    gauge(NAME, "Model loading took @", "weights"),
    gauge(NAME, "Available KV cache memory: @", "kv_pool"),
    gauge(NAME, "Available memory: @", "kv_pool"),
    gauge(NAME, "Estimated CUDA graph memory: @", "graphs_estimate"),
    Rule(
        "Graph capturing finished in",
        sentence("Graph capturing finished in % secs, took @"),
        lambda b, m: b.figure(m.start(), "graphs", amount(m[2], m[3]), NAME, f"{m[2]} {m[3]}"),
    ),
    tally(NAME, "# GPU blocks: %", "blocks"),
    tally(NAME, "# CUDA blocks: %", "blocks"),
    tally(NAME, "# cuda blocks: %", "blocks"),
    tally(NAME, "GPU KV cache size: % tokens", "kv_tokens"),
    tally(NAME, "Maximum concurrency for % tokens per request: %x", "longest_tokens", "concurrency"),
    tally(NAME, "occurred when warming up sampler with % dummy requests", "sampler_requests"),
    Rule("No available memory for", _NO_BLOCKS, _no_blocks),
    Rule("max seq len (", sentence("max seq len (%)"), _longest),
    Rule("max_num_seqs (", _STATES, _states),
    Rule("Initializing a", _BANNER, _banner, most=16),
    Rule("vLLM API server version", _SERVER, _banner, most=16),
    Rule("non-default args:", re.compile("non-default args:"), _arguments, most=16),
)
