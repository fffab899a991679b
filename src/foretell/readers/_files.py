"""Files of others: read as text within bounds, and never outside the folders that were named."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foretell.errors import ConfigError

__all__ = ["MAX_BYTES", "Files", "decoded", "read_text"]

MAX_BYTES: Final = 2 * 2**20
"""A larger file is no configuration of a run (the largest known has 120 KiB)."""


def read_text(path: str | os.PathLike[str], *, most: int = MAX_BYTES) -> str:
    """Return the text of a regular file of at most ``most`` bytes; ConfigError says what else it is."""
    where = os.fspath(path)
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for ever
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where) from error
    try:
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError("is no regular file", where=where)
            raw = stream.read(most + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=where) from error
    if len(raw) > most:
        raise ConfigError(f"is larger than {most} bytes, which no file of a run is", where=where)
    return decoded(raw, where)


def decoded(raw: bytes, where: str) -> str:
    """Return bytes as text with plain newlines; ConfigError where they are none."""
    if b"\0" in raw:
        raise ConfigError("is a binary file, not text", where=where)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", where=f"{where}:{line}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True)
class Files:
    """Where files that others refer to may lie."""

    roots: tuple[Path, ...]
    """Real paths of the folders."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Path -> text that stands in its place: a file as it would be after an edit."""

    @classmethod
    def around(cls, given: tuple[str, ...], roots: tuple[str, ...] = ()) -> Files:
        """Return the working directory, the folder of each given file, and the roots that were named."""
        named = [Path.cwd(), *(Path(path).parent for path in given), *(Path(root) for root in roots)]
        return cls(tuple(dict.fromkeys(Path(os.path.realpath(folder)) for folder in named)))

    def text(self, path: str) -> str:
        """Return the text of a file, or what takes its place."""
        return self.replaced[path] if path in self.replaced else read_text(path)

    def find(self, ref: str, beside: str, where: str) -> str | None:
        """Return the file that ``ref`` names: relative to the working directory, to the file ``beside`` or to a root.

        None where there is none.  Raises ConfigError for a file outside the roots.
        """
        if not ref or "\0" in ref or len(ref) > 4096:
            raise ConfigError("is no path", value=ref, where=where)
        starts = [Path.cwd(), Path(beside).parent if beside else Path.cwd(), *self.roots]
        for start in starts:
            try:
                real = Path(os.path.realpath(start / ref))
                there = real.is_file()
            except OSError:  # a name that no file can have
                there = False
            if not there:
                continue
            if not any(real.is_relative_to(root) for root in self.roots):
                hint = f"Allow it: --root {real.parent}"
                raise ConfigError("lies outside the folders that may be read", value=ref, where=where, hint=hint)
            here = Path.cwd()  # what was checked is what is opened
            return str(real.relative_to(here) if real.is_relative_to(here) else real)
        return None
