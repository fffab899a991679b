"""PyTorch: out-of-memory messages of all versions and backends, retries of the allocator, ``torch.cuda.memory_summary``.

Wording: c10/cuda/CUDACachingAllocator.cpp (1.0 to 2.13), c10/xpu/XPUCachingAllocator.cpp, aten/src/ATen/mps/MPSAllocator.mm;
sizes are printed by ``format_size`` in binary units, and what "tried" names is the segment that was asked of the driver:
2 MiB for requests up to 1 MiB, 20 MiB for those below 10 MiB, else rounded up to 2 MiB.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from foretell.readers.logs._frames import doing, frames_above, step_before
from foretell.readers.logs._log import Counter, Oom, Process, Retry
from foretell.readers.logs._scan import SIZE, Builder, Rule, amount, number
from foretell.units import MIB

__all__ = ["RULES", "read_ooms"]

WINDOW: Final = 2600
"""Characters of a message with all the processes that it names."""
MOST: Final = 256
"""Messages that are read; later ones follow from the first."""
LOOKED: Final = 20_000
"""Places where the words stand that are looked at."""
ROUNDED: Final = 2 * MIB
LARGE: Final = 10 * MIB

_KEY: Final = "ut of memory"
_BACKEND: Final = re.compile(r"(\w{2,12})(?: (?:backend|driver|error:?))? {0,2}$")
_WRAPS: Final = re.compile(r"\\n|[\n\r│|>#*]|\[rank\d{1,6}\]:?")
_END: Final = re.compile(
    r'Traceback \(most|File \\?"|PYTORCH_\w{1,6}_?ALLOC_CONF|See documentation'
    r"|\b(?:\w{3,40}Error|INFO|WARNING|ERROR|DEBUG)\b(?=[ :])"
)
_TRIED: Final = re.compile(rf"Tried to allocate {SIZE}")
_GPU: Final = re.compile(r"\b(?:GPU|NPU|XPU|MUSA|CUDA|HIP|MLU) (\d{1,4})\b")
_PARTS: Final = {
    "capacity": (rf"{SIZE} total capacity", rf"total capa\w{{1,3}}ty of {SIZE}"),
    "free": (rf"{SIZE} free", rf"of which {SIZE} is free"),
    "allocated": (rf"{SIZE} already allocated", rf"{SIZE} is allocated by PyTorch"),
    "unallocated": (rf"{SIZE} cached", rf"{SIZE} is reserved by PyTorch"),  # up to 1.3, "cached" is what no tensor uses
    "private": (rf"with {SIZE} allocated in private pools",),
    "allowed": (rf"{SIZE} allowed",),
    "process": (rf"this process has {SIZE} memory in use",),
}
"""What a message says, by PyTorch 1.x and by 2.1 and later; each by itself, as people shorten what they paste."""
_AMOUNTS: Final = {name: re.compile("|".join(forms)) for name, forms in _PARTS.items()}
_IN_TOTAL: Final = re.compile(rf"{SIZE} reserved in total by PyTorch")
_PROCESS: Final = re.compile(rf"Process (\d{{1,9}}) has {SIZE} memory in use")
_MPS: Final = re.compile(rf"MPS allocated: {SIZE}(?:, other allocations: {SIZE})?, max allowed: {SIZE}")
_XLA: Final = re.compile(r"while trying to allocate ([\d,]{1,19}) bytes|allocating ([\d,]{1,19}) bytes")
_LIBRARY: Final = re.compile(
    r"CUDA (?:driver )?error: out of memory|Cuda failure(?: \d{1,4})? '?out of memory|cudaMalloc failed: out of memory"
    r"|hipError\w{0,20}: out of memory|HIP error: out of memory"
)
_LLAMA: Final = re.compile(rf"allocating {SIZE} on device (\d{{1,4}}): (?:cudaMalloc failed: )?$")


def read_ooms(builder: Builder) -> None:
    """Find the messages of accelerators that ran out of memory."""
    text, known = builder.text, dict[tuple[object, ...], int]()
    at, left, looked = text.find(_KEY), MOST, LOOKED
    while at >= 0 and left and looked:
        looked -= 1
        made = _oom(builder, at)
        if made is not None:
            left -= 1
            key = (made.backend, made.gpu, made.tried, made.allocated, made.free, made.capacity)
            if key in known:
                old = builder.ooms[known[key]]
                better = not old.frames and made.frames  # the first print may have had no traceback
                base = replace(made, line=old.line) if better else old
                builder.ooms[known[key]] = replace(base, times=old.times + 1)
            else:
                known[key] = len(builder.ooms)
                builder.ooms.append(made)
        at = text.find(_KEY, at + len(_KEY))
    if at >= 0:
        builder.notes.append(f"only the first {MOST} out-of-memory messages were read")


def _oom(builder: Builder, at: int) -> Oom | None:
    """Read the message at a place; None where the words are no error's."""
    text = builder.text
    begin = at - 1  # the "o"
    raw = text[begin : begin + WINDOW]
    again = raw.find(_KEY, len(_KEY) + 1)
    message = " ".join(_WRAPS.sub(" ", raw[: again if again > 0 else None]).split())
    end = _END.search(message)
    message = message[: end.start() if end is not None else None]
    head = builder.head(begin)
    tried = _TRIED.search(message)
    named = _BACKEND.search(head[-24:])
    if tried is None:
        return _other(builder, begin, head, message)
    size = amount(tried[1], tried[2])
    made = Oom(
        line=builder.line(begin),
        backend=named[1] if named is not None else "CUDA",
        rank=builder.rank(begin),
        tried=size[0],
        tried_within=size[1] + (ROUNDED if size[0] >= LARGE else 0.0),
        said=message[:400],
    )
    return _placed(builder, begin, _levels(made, message))


def _placed(builder: Builder, at: int, made: Oom) -> Oom:
    """Add the traceback, what it says, and the step."""
    frames = frames_above(builder, at)
    found = doing(frames)
    step = step_before(builder, at)
    return replace(made, frames=frames, phase=found.phase, doing=found.words, term=found.term, where=found.frame, step=step)


def _levels(made: Oom, message: str) -> Oom:
    """Add what a message says of the device."""
    if mps := _MPS.search(message):
        most = amount(mps[5], mps[6])[0]
        return replace(made, backend="MPS", allocated=amount(mps[1], mps[2])[0], unallocated=0.0, capacity=most)
    sizes: dict[str, float] = {}
    for name, pattern in _AMOUNTS.items():
        if found := pattern.search(message):
            text, unit = (part for part in found.groups() if part is not None)
            sizes[name] = amount(text, unit)[0]
    if (total := _IN_TOTAL.search(message)) and "allocated" in sizes:
        sizes["unallocated"] = max(0.0, amount(total[1], total[2])[0] - sizes["allocated"])
    gpu = _GPU.search(message)
    made = replace(made, gpu=int(gpu[1]) if gpu is not None else None, **sizes)  # type: ignore[arg-type]  # names of its fields
    processes = [Process(int(one[1]), amount(one[2], one[3])[0]) for one in _PROCESS.finditer(message)]
    if made.process is None and processes and made.reserved:
        # in a container the process does not know its own number, and is listed as the others are
        large = [one for one in processes if one.bytes >= 0.98 * made.reserved]
        if large:
            mine = min(large, key=lambda one: one.bytes)
            processes.remove(mine)
            made = replace(made, process=mine.bytes)
    return replace(made, others=tuple(processes))


def _other(builder: Builder, at: int, head: str, message: str) -> Oom | None:
    """Read messages without "Tried to allocate": XLA's, and those of libraries that asked the driver themselves."""
    line = builder.line(at)
    if (xla := _XLA.search(message[:200])) and "mmap" not in head:
        size = number(xla[1] or xla[2])
        return _placed(builder, at, Oom(line, "XLA", rank=builder.rank(at), tried=size, tried_within=0.5, said=message[:400]))
    near = head[-80:] + message[:30]
    if _LIBRARY.search(near):
        asked = _LLAMA.search(head)
        made = Oom(line, "CUDA library", rank=builder.rank(at), said=near.strip()[:400])
        if asked is not None:
            tried, within = amount(asked[1], asked[2])
            made = replace(made, gpu=int(asked[3]), tried=tried, tried_within=within)
        return _placed(builder, at, made)
    return None


# -- retries ------------------------------------------------------------------------------------------------

_RETRY: Final = re.compile(
    r"failed with OOM on device (\d{1,4}) while trying to (?:allocate|map) (\d{1,19}) bytes"
    r" \(free: (\d{1,19}), total: (\d{1,19})\)"
)
_RETRIES: Final = re.compile(r"(\d{1,9}) \w{2,5} memory allocation retries")
_FLUSHES: Final = re.compile(r"(\d{1,9}) pytorch allocator cache flushes since last step")


def _retry(builder: Builder, found: re.Match[str]) -> None:
    """Torch 2.9 and later warn of each block that the driver refused at first."""
    at = found.start()
    if "expandable_segments" in builder.head(at)[-60:]:
        builder.tell(at, "expandable_segments", "True", "PyTorch")
    builder.message(Retry(builder.line(at), float(found[2]), float(found[3]), float(found[4]), builder.rank(at)))


def _library(builder: Builder, found: re.Match[str]) -> None:
    """A library could not allocate outside PyTorch's allocator."""
    if len(builder.ooms) < MOST:
        at = found.start()
        made = Oom(builder.line(at), "CUDA library", rank=builder.rank(at), said=builder.rest(at, 200))
        builder.ooms.append(_placed(builder, at, made))


_SUMMARY: Final[dict[str, Counter]] = {
    "Allocated memory": "allocated",
    "Active memory": "active",
    "GPU reserved memory": "reserved",
}
_ROW: Final = rf"[ ]{{0,40}}\|\s{{0,9}}{SIZE}\s{{0,9}}\|\s{{0,9}}{SIZE}"


def _summary(name: str) -> Rule:
    """``torch.cuda.memory_summary``: current and peak usage, in units of 1024 whatever they are called."""
    pattern = re.compile(re.escape(name) + _ROW)

    def take(builder: Builder, found: re.Match[str]) -> None:
        counter = _SUMMARY[name]
        now, peak = amount(found[1], found[2]), amount(found[3], found[4])
        said = f"{found[3]} {found[4]}"
        builder.figure(found.start(), counter, now, "PyTorch", f"{found[1]} {found[2]}")
        builder.figure(found.start(), counter, peak, "PyTorch", said, moment="peak")

    return Rule(name, pattern, take)


def _counted(key: str, pattern: re.Pattern[str], name: str, source: str, back: int) -> Rule:
    def take(builder: Builder, found: re.Match[str]) -> None:
        builder.count(found.start(), name, number(found[1]), source)

    return Rule(key, pattern, take, back, 80)


RULES: Final = (
    Rule("failed with OOM on device", _RETRY, _retry),
    Rule("CUBLAS_STATUS_ALLOC_FAILED", re.compile("CUBLAS_STATUS_ALLOC_FAILED"), _library),
    Rule("CUDNN_STATUS_ALLOC_FAILED", re.compile("CUDNN_STATUS_ALLOC_FAILED"), _library),
    Rule("Failed to CUDA calloc", re.compile("Failed to CUDA calloc"), _library),
    _counted("memory allocation retries", _RETRIES, "allocation_retries", "torchtitan", 24),
    _counted("pytorch allocator cache flushes", _FLUSHES, "allocation_retries", "DeepSpeed", 12),
    *(_summary(name) for name in _SUMMARY),
)
