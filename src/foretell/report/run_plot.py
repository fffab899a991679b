"""A picture of a whole run: the chain with its band, where the wall clock goes, days, money and carbon as samples.

Needs matplotlib (the extra ``plot``), which is imported only when it draws.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import ExtraError, InputError

__all__ = ["SUFFIXES", "check", "draw"]

SUFFIXES: Final = (".png", ".svg")


def check(path: str | os.PathLike[str]) -> Path:
    """Return the path of a picture that can be written; InputError for another suffix, or a folder that does not exist."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError("must end in one of these", field="plot", value=str(path), allowed=SUFFIXES)
    if not target.resolve().parent.is_dir():
        raise InputError("lies in a folder that does not exist", field="plot", value=str(path))
    return target


def draw(result: Mapping[str, Any], samples: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw an answer of `train --tokens` and its samples into ``path``, a ``.png`` or ``.svg``.

    Raises:
        InputError: another suffix, or a file that cannot be written.
        ExtraError: matplotlib is not installed.

    """
    target = check(path)
    try:
        from foretell.report._run_figure import RunFigure  # noqa: PLC0415  # 0.4 s, and an extra
    except ImportError as error:
        raise ExtraError.missing("plot", "a picture of a run") from error
    made = RunFigure(result, samples)
    try:
        made.save(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", field="plot", value=str(path)) from error
