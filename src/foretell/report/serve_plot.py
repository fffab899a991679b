"""A picture of a deployment over concurrency: throughput of each GPU against ITL and TTFT.

Needs matplotlib (the extra ``plot``), which is imported only when it draws.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foretell.errors import ExtraError, InputError
from foretell.plan.serving_curve import CurvePoint

__all__ = ["SUFFIXES", "draw"]

SUFFIXES: Final = (".png", ".svg")


def draw(result: Mapping[str, Any], curve: Sequence[CurvePoint], path: str | os.PathLike[str], *, title: str) -> None:
    """Draw the curve of an answer of `serve` into ``path``, a ``.png`` or ``.svg``; ``title``: what is served on what.

    Raises:
        InputError: another suffix, a file that cannot be written, or a deployment that serves nothing.
        ExtraError: matplotlib is not installed.

    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError("must end in one of these", field="plot", value=str(path), allowed=SUFFIXES)
    points = [one for one in curve if one.itl_s > 0]
    if len(points) < 2:
        raise InputError("has nothing to show: no curve over concurrency", field="plot", value=str(path))
    try:
        from foretell.report._serve_figure import ServeFigure  # noqa: PLC0415  # 0.4 s, and an extra
    except ImportError as error:
        raise ExtraError.missing("plot", "a picture of a curve") from error
    made = ServeFigure(result, points, title)
    try:
        made.save(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", field="plot", value=str(path)) from error
