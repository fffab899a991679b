"""A log as text; of a large file or pipe the two ends, with a line between them that says how many were left out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO, Final

from foretell.errors import ConfigError
from foretell.readers.logs import _devices, _engines, _pytorch, _sglang, _training, _vllm
from foretell.readers.logs._log import Figure, LogReading
from foretell.readers.logs._scan import Builder, scan

__all__ = ["read_log", "read_log_text"]

HEAD: Final = 4 * 2**20
TAIL: Final = 12 * 2**20
"""Bytes that are kept of the beginning, which has an engine's start-up, and of the end, which has the error."""
CHUNK: Final = 2**20
RULES: Final = (*_pytorch.RULES, *_vllm.RULES, *_sglang.RULES, *_engines.RULES, *_training.RULES, *_devices.RULES)
_CUT: Final = "[foretell: {} lines left out]"
_LEFT_OUT: Final = re.compile(r"^\[foretell: (\d{1,12}) lines left out\]$", re.MULTILINE)
_PARTS: Final = ("init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta")


def read_log_text(source: str | BinaryIO) -> tuple[str, str]:
    """Return the text of a log and its name: a file, a pipe, or a stream of bytes.  ConfigError where it cannot be read."""
    if not isinstance(source, str):
        return _gathered(source), "standard input"
    try:
        with open(source, "rb") as stream:  # noqa: PTH123  # a path as it was given
            return _gathered(stream), source
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=source) from error


def read_log(text: str, path: str = "log") -> LogReading:
    """Return what the text of a log says; ``path`` is its name in the answer."""
    cut = _LEFT_OUT.search(text, max(0, HEAD // 4 - CHUNK))  # of a head in UTF-8
    skipped = (text.count("\n", 0, cut.start()), int(cut[1]) - 1) if cut is not None else (0, 0)
    builder = Builder(text, path, skipped=skipped)
    if cut is not None:
        builder.notes.append(f"{int(cut[1]):,} lines in the middle of the log were not read")
    _pytorch.read_ooms(builder)
    scan(builder, RULES)
    return _tracked(builder.reading())


def _gathered(stream: BinaryIO) -> str:
    """Keep the head and the tail of a stream; lines in between are counted."""
    head = bytearray()
    while len(head) < HEAD and (more := stream.read(min(CHUNK, HEAD - len(head)))):
        head += more
    tail, dropped, lines = bytearray(), 0, 0
    while more := stream.read(CHUNK):
        tail += more
        if len(tail) > TAIL + CHUNK:
            over = len(tail) - TAIL
            lines += tail.count(b"\n", 0, over)
            dropped += over
            del tail[:over]
    if not dropped:
        return _text(bytes(head + tail))
    begin, end = head.rfind(b"\n") + 1, tail.find(b"\n") + 1  # whole lines alone
    lines += tail.count(b"\n", 0, end)
    return f"{_text(bytes(head[:begin]))}{_CUT.format(lines)}\n{_text(bytes(tail[end:]))}"


def _text(raw: bytes) -> str:
    """Return bytes as text, whatever they are; UTF-16, as PowerShell writes it, by its mark."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace").replace("\r\n", "\n")
    return raw.decode("utf-8", errors="replace").replace("\r\n", "\n")


def _tracked(log: LogReading) -> LogReading:
    """Add the peak that transformers' tracker gives in parts: what was there before, what stayed, what came on top of it."""
    found = [part for part in map(log.count, _PARTS) if part is not None]
    if len(found) < len(_PARTS):
        return log
    before = log.count("before_init_mem_gpu")
    total = sum(part.value for part in found) + (before.value if before is not None else 0.0)
    said = " + ".join(f"{part.value / 2**20:.0f} MB" for part in found)
    made = Figure("allocated", total, 1.5 * 2**20, "peak", found[-1].line, "transformers", said)
    return replace(log, figures=(*log.figures, made))
