"""Where an allocation belongs: the module whose forward is running, the line of the code that asked, and both in backward.

Forward: module hooks keep a stack, and the Python frames give the line.  Backward: autograd numbers the nodes of its graph
in the order of the forward pass, so the place of each number is kept and looked up again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

__all__ = ["Places"]

_HERE = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_DEPTH = 80
"""Frames looked at for a line outside torch."""

Place = tuple[str, str]
"""Module path and ``file:line``."""


class Places:
    """The module stack of the running forward pass, and the places of autograd's nodes."""

    def __init__(self) -> None:
        """Begin outside every module."""
        self.names: dict[int, str] = {}
        self.modules: list[nn.Module] = []
        self.backward = False
        self.on_forward: Callable[[], None] | None = None
        """Told that a module's forward begins outside of a backward pass."""
        self.nodes: dict[int, Place] = {}
        self.again: dict[int, Place] = {}
        """Places of nodes made while a checkpoint is computed again; the backward thread numbers them anew, from 0."""
        self.nested = False
        """Whether a backward pass runs inside another: that of nodes in ``again``.  Else these only give back what they saved."""
        self._files: dict[str, str | None] = {}

    def learn(self, model: nn.Module) -> None:
        """Give the modules of a model their paths."""
        self.names.update((id(module), name) for name, module in model.named_modules())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow which module's forward runs."""
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)  # also where a checkpoint stops early
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        self.modules.append(module)
        if not self.backward and self.on_forward is not None:
            self.on_forward()

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        while self.modules and self.modules.pop() is not module:
            pass

    def module(self) -> str:
        """Return the path of the innermost module that has one."""
        for module in reversed(self.modules):
            name = self.names.get(id(module))
            if name is not None:
                return name or type(module).__name__
        return ""

    def here(self) -> Place:
        """Return the place of an operator that is being called now."""
        node = torch._C._current_autograd_node() if self.backward and not self.modules else None
        if node is not None:
            number = node._sequence_nr()
            return (self.again.get(number) if self.nested else None) or self.nodes.get(number) or ("", "")
        place = self.module(), self.line()
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        nodes = self.again if self.backward else self.nodes
        if torch.is_grad_enabled() or number not in nodes:  # its own node has just been made, or that of a function around it
            nodes[number] = place
        return place

    def line(self) -> str:
        """Return ``file:line`` of the innermost frame that is neither torch's nor ours."""
        frame: FrameType | None = sys._getframe(1)
        files = self._files
        for _ in range(_DEPTH):
            if frame is None:
                break
            code = frame.f_code.co_filename
            try:
                shown = files[code]
            except KeyError:
                shown = files[code] = _shown(code)
            if shown is not None:
                return f"{shown}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _shown(path: str) -> str | None:
    """Return a file's name as it is shown, None where it is torch's or ours: from its package on, or its last parts."""
    if path.startswith((_HERE, _TORCH, "<")):
        return None
    parts = Path(path).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return path if len(parts) <= 3 else "/".join(parts[-3:])  # enough to know it by
