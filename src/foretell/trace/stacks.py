"""The stacks of a memory snapshot: which operator asked for memory, and from which line outside PyTorch."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Final

__all__ = ["Stacks"]

_OP: Final = re.compile(r"at::_ops::(\w+?)::(?:re)?(?:call|dispatch)")
_FACTORY: Final = ("empty", "new_empty", "resize", "zeros", "full")
"""Operators that only make room for another one, which stands further out."""
_PACKAGES: Final = ("site-packages", "dist-packages")
_SHOWN_PARTS: Final = 3


class Stacks:
    """Reads stacks; frames are shared by many of them, so each is judged once."""

    def __init__(self) -> None:
        """Begin with no frame judged."""
        self._judged: dict[int, tuple[str, str, Any]] = {}

    def place(self, frames: Any) -> tuple[str, str]:
        """Return (operator as ``aten::mm``, ``file:line``) of a stack, innermost frame first; empty where it does not say.

        >>> Stacks().place([
        ...     {"filename": "??", "line": 0, "name": "at::_ops::empty_memory_format::call(...)"},
        ...     {"filename": "??", "line": 0, "name": "at::_ops::mm::redispatch(...)"},
        ...     {"filename": "/env/lib/python3.11/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
        ...     {"filename": "/home/me/project/train.py", "line": 41, "name": "main"}])
        ('aten::mm', 'me/project/train.py:41')
        """
        op = room = ""
        if not isinstance(frames, list):
            return op, room
        for frame in frames:
            known = self._judged.get(id(frame))
            if known is None:
                known = self._judged[id(frame)] = (*_judge(frame), frame)  # the frame is kept, and so is its id
            if known[0]:
                if not known[0].startswith(_FACTORY):
                    op = op or known[0]
                else:
                    room = room or known[0]
            if known[1]:
                return _named(op or room), known[1]
        return _named(op or room), ""


def _named(op: str) -> str:
    return f"aten::{op}" if op else ""


def _judge(frame: Any) -> tuple[str, str]:
    """Return (operator that the frame dispatches, line outside torch that it is)."""
    if not isinstance(frame, dict):
        return "", ""
    name, file, line = frame.get("name"), frame.get("filename"), frame.get("line")
    if not isinstance(name, str) or not isinstance(file, str):
        return "", ""
    found = _OP.match(name)
    if found:
        return found[1], ""
    if not file.endswith(".py") and not file.startswith("<ipython"):
        return "", ""
    parts = PurePosixPath(file.replace("\\", "/")).parts
    for packages in _PACKAGES:
        if packages in parts:
            parts = parts[parts.index(packages) + 1 :]
            return "", "" if parts[:1] == ("torch",) else f"{'/'.join(parts)}:{line}"
    return "", f"{file if len(parts) <= _SHOWN_PARTS else '/'.join(parts[-_SHOWN_PARTS:])}:{line}"
