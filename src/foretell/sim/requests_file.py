"""Requests of a trace file: CSV with a header or JSON Lines, read a line at a time, so that any length fits in memory.

Columns are known by name (``COLUMNS``): our own ``arrival, input_tokens, output_tokens`` and optional ``cached_tokens``, and
those of published traces: Azure LLM inference 2023 and 2024 (``TIMESTAMP, ContextTokens, GeneratedTokens``), BurstGPT, Mooncake
(``timestamp`` in milliseconds, ``input_length, output_length``), Vidur, Splitwise, and the lengths that load generators write
(``prompt_len, output_len``).  Case, blanks and hyphens do not matter; other columns are not read.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final, NoReturn

from foretell.catalog.decode import unique
from foretell.errors import InputError
from foretell.sim.arrival_times import ArrivalClock
from foretell.sim.arrivals import Request, Tokens
from foretell.validation import MAX_DEGREE, MAX_SEQUENCE, number, positive_int

__all__ = ["COLUMNS", "FileLengths", "TraceFile", "read_lengths", "read_requests"]

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": (
        "arrival", "arrival_s", "arrival_ms", "arrival_time", "arrival_timestamp", "arrived_at", "timestamp", "timestamp_ms",
    ),
    "input_tokens": (
        "input_tokens", "input_len", "input_length", "prompt_tokens", "prompt_len", "prompt_length", "prompt_size",
        "contexttokens", "context_tokens", "request_tokens", "num_prefill_tokens",
    ),
    "output_tokens": (
        "output_tokens", "output_len", "output_length", "completion_tokens", "token_size",
        "generatedtokens", "generated_tokens", "response_tokens", "num_decode_tokens",
    ),
    "cached_tokens": ("cached_tokens",),
}  # fmt: skip
_FIELD_OF: Final = {name: field for field, names in COLUMNS.items() for name in names}
_CONVERSATION: Final = {"conversation", "conversations", "messages", "prompt", "text", "completion", "response"}

MAX_LINE: Final = 2**20
"""Bytes of the longest line that is read."""

_WANTED: Final = "a header with arrival, input_tokens, output_tokens, or the names of a published trace"
_TOKENISE: Final = (
    "Count tokens with the model's own tokenizer and write one request a line: "
    '{"arrival": 0.0, "input_tokens": 512, "output_tokens": 128}'
)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Requests as a file has them: arrivals, lengths and cached tokens."""

    path: str | Path
    speed: float = 1.0
    """Arrivals come this many times as fast as they did."""
    requests: int | None = None
    """Only the first ones; None: all."""

    def __post_init__(self) -> None:
        """Check every value but the file."""
        number(self.speed, "speed", minimum=1e-6, maximum=1e6)
        if self.requests is not None:
            positive_int(self.requests, "requests", maximum=MAX_DEGREE)

    @property
    def finite(self) -> bool:
        """A file ends."""
        return True

    def stream(self, seed: int) -> Iterator[Request]:
        """Yield each request; nothing is drawn."""
        del seed
        with closing(read_requests(self.path, speed=self.speed)) as requests:
            yield from islice(requests, self.requests)


@dataclass(frozen=True, slots=True)
class FileLengths:
    """Lengths as a file has them, for arrivals of another kind."""

    path: str | Path
    repeat: bool = False
    """Begin anew at the end."""

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return not self.repeat

    def pairs(self, rng: Random) -> Iterator[Tokens]:
        """Yield the tokens of each request; nothing is drawn."""
        del rng
        yield from read_lengths(self.path)
        while self.repeat:
            yield from read_lengths(self.path)


def read_requests(path: str | Path, *, speed: float = 1.0) -> Generator[Request]:
    """Yield the requests of a file; arrivals in seconds, divided by ``speed``.

    Raises:
        InputError: the file cannot be read, has no requests, lacks a column, or a value cannot be used; names file and line.

    """
    last = 0.0
    clock: ArrivalClock | None = None
    for line, columns, row in _rows(path):
        where = f"{path}:{line}"
        if clock is None:
            name = columns.get("arrival")
            if name is None:
                raise InputError("holds no arrival times", field="requests", value=str(path), where=where,
                                 allowed=COLUMNS["arrival"], hint="Add a column, or give a rate beside the file")  # fmt: skip
            clock = ArrivalClock(name, columns["input_tokens"])
        arrival = clock.seconds(_value(row, clock.name, where), where)
        if arrival < last:
            raise InputError(f"comes before the one above it ({last:.9g} s in, this one {arrival:.9g} s)", field=clock.name,
                             value=_value(row, clock.name, where), where=where, hint="Sort the file by arrival")  # fmt: skip
        last = arrival
        yield Request(arrival / speed, *_tokens(row, columns, where))


def read_lengths(path: str | Path) -> Iterator[Tokens]:
    """Yield input, output and cached tokens of the requests of a file; arrivals may be missing.  Errors as above."""
    for line, columns, row in _rows(path):
        yield _tokens(row, columns, f"{path}:{line}")


Columns = Mapping[str, str]
"""From our fields to the names that the file has for them."""
Row = Mapping[str, Any]


def _rows(path: str | Path) -> Iterator[tuple[int, Columns, Row]]:
    """Yield line number, columns and row; the first line decides what the file is."""
    file = Path(path)
    if not file.is_file():
        raise InputError("is not a file", field="requests", value=str(path), hint="Give a .csv or .jsonl file of requests")
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="requests", value=str(path)) from error
    with stream:
        lines = _lines(stream, path)
        first = next(lines, None)
        if first is None:
            raise InputError("is empty", field="requests", where=str(path), allowed=_WANTED)
        number_, text = first
        if text.lstrip().startswith("["):
            raise InputError("is one JSON array", field="requests", value=str(path), where=f"{path}:{number_}",
                             allowed="JSON Lines (one object a line) or CSV", hint=_TOKENISE)  # fmt: skip
        if text.startswith("\x1f\ufffd"):
            raise InputError("is compressed", field="requests", where=str(path), hint="Unpack it first")
        rows = _json_rows if text.lstrip().startswith("{") else _csv_rows
        some = False
        for row in rows(chain([first], lines), path):
            some = True
            yield row
        if not some:
            raise InputError("holds a header and no requests", field="requests", where=str(path))


def _lines(stream: BinaryIO, path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold something, with their numbers; none is longer than MAX_LINE."""
    line = 0
    while raw := stream.readline(MAX_LINE + 1):
        line += 1
        if len(raw) > MAX_LINE:
            raise InputError("is too long for a request", field="line", value=f"over {MAX_LINE} bytes", where=f"{path}:{line}",
                             hint=_TOKENISE)  # fmt: skip
        text = raw.decode("utf-8-sig" if line == 1 else "utf-8", errors="replace")
        if text.strip():
            yield line, text


def _json_rows(lines: Iterable[tuple[int, str]], path: str | Path) -> Iterator[tuple[int, Columns, Row]]:
    columns: Columns | None = None
    for line, text in lines:
        where = f"{path}:{line}"
        try:
            row = json.loads(text, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
            raise InputError(f"is not JSON: {reason}", field="line", where=where) from error
        if not isinstance(row, dict):
            raise InputError("is no JSON object", field="line", value=row, where=where, hint=_TOKENISE)
        if columns is None:
            columns = _columns(list(row), where)
        yield line, columns, row


def _csv_rows(lines: Iterable[tuple[int, str]], path: str | Path) -> Iterator[tuple[int, Columns, Row]]:
    at = 0

    def texts() -> Iterator[str]:
        nonlocal at
        for at, text in lines:  # noqa: B007  # the number of the line that is being read
            yield text

    reader = csv.reader(texts())
    try:
        header = [name.strip() for name in next(reader)]
        columns = _columns(header, f"{path}:{at}")
        for cells in reader:
            if len(cells) > len(header):
                raise InputError(f"has {len(cells)} cells under a header of {len(header)}", field="line", where=f"{path}:{at}")
            yield at, columns, dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", field="line", where=f"{path}:{at}") from error


def _columns(names: Sequence[str], where: str) -> Columns:
    """Find the columns of requests among the names of a file."""
    found: dict[str, str] = {}
    plain = [re.sub(r"[\s-]+", "_", name.strip().casefold()) for name in names]
    for name, key in zip(names, plain, strict=True):
        field = _FIELD_OF.get(key)
        if field is None:
            continue
        if field in found:
            raise InputError(f"and {found[field]!r} both give {field}", field="columns", value=name, where=where,
                             hint="Remove or rename one of them")  # fmt: skip
        found[field] = name
    missing = [field for field in ("input_tokens", "output_tokens") if field not in found]
    if not missing:
        return found
    if _CONVERSATION.intersection(plain):
        raise InputError("holds conversations as text, without token counts", field="requests", where=where, hint=_TOKENISE)
    raise InputError(f"are missing: {', '.join(missing)}", field="columns", value=", ".join(names)[:200], where=where,
                     allowed=_WANTED)  # fmt: skip


def _tokens(row: Row, columns: Columns, where: str) -> Tokens:
    """Input, output and cached tokens of a row."""
    inputs = _count(row, columns["input_tokens"], where, 1)
    outputs = _count(row, columns["output_tokens"], where, 1)
    name = columns.get("cached_tokens")
    if name is None:
        return inputs, outputs, 0
    cached = _count(row, name, where, 0)
    if cached >= inputs:
        raise InputError(f"leaves nothing of the {inputs} input tokens to read: the last one is always computed", field=name,
                         value=cached, allowed=f"0 to {inputs - 1}", where=where)  # fmt: skip
    return inputs, outputs, cached


def _value(row: Row, name: str, where: str) -> Any:
    value = row.get(name)
    if value is None or value == "":
        raise InputError("is missing", field=name, where=where)
    return value


def _count(row: Row, name: str, where: str, least: int) -> int:
    """Return a whole number of tokens between ``least`` and the longest sequence."""
    value = _value(row, name, where)
    tokens = -1
    try:
        if isinstance(value, str) and "_" not in value and len(value) < 64:
            tokens = int(value) if value.isdecimal() else _whole(float(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            tokens = _whole(value)
    except ValueError:
        _refuse(value, name, where, least)
    if not least <= tokens <= MAX_SEQUENCE:
        _refuse(value, name, where, least)
    return tokens


def _whole(value: float) -> int:
    return int(value) if math.isfinite(value) and value == int(value) else -1


def _refuse(value: object, name: str, where: str, least: int) -> NoReturn:
    hint = "Leave out requests that made nothing" if str(value)[:4].strip() in {"0", "0.0"} else None
    raise InputError("is no number of tokens", field=name, value=value, allowed=f"whole numbers, {least} to {MAX_SEQUENCE}",
                     where=where, hint=hint)  # fmt: skip
