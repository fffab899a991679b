"""Megatron-LM's arguments by their name, whether a command gives them, a test's ``MODEL_ARGS:`` or flat YAML."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._document import Document, Found
from foretell.readers._tree import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ARGS", "Args", "args_of_yaml", "normal", "pattern", "single"]

ARGS: Final = "MODEL_ARGS"
"""The block of arguments in Megatron-LM's tests/functional_tests/**/model_config.yaml."""
_LONGEST: Final = 10_000
"""Layers of a pattern; the largest models have a few hundred."""


@dataclass(frozen=True)
class Args:
    """The arguments of a run; every one that is asked for counts as looked at."""

    document: Document
    """Flat: spelling -> value."""
    program: str = ""
    """Name of the script that takes them; empty where nothing says."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Name in underscores -> as the document spells it."""
    source: str = "default of Megatron-LM core_v0.19 (megatron/training/arguments.py)"
    """Whose defaults hold for what is not given."""
    dropout: float = 0.1
    """What is dropped where nothing says."""
    scripted: bool = True
    """Whether a script gives a tokenizer where nothing names one (``args_defaults``)."""

    @classmethod
    def of(cls, document: Document, program: str = "") -> Args:
        """Return the arguments of a flat document."""
        return cls(document, program, {normal(key): key for key in (*document.keys(),)})

    def get(self, *names: str) -> Found | None:
        """Return the first of the arguments that has a value."""
        return self.document.get(*(self.spelled[name] for name in names if name in self.spelled))

    def on(self, *names: str) -> Found | None:
        """Return the first of the flags that is given (a test's YAML may say ``false``)."""
        out: Found | None = None
        for name in names:
            found = self.get(name)
            if found is not None and found.flag() and out is None:
                out = found
        return out

    def whole(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """Return a whole number."""
        found = self.get(name)
        return default if found is None else found.whole(minimum=minimum)

    def word(self, name: str, default: str = "") -> str:
        """Return a word in lower case."""
        found = self.get(name)
        return default if found is None else found.text().strip().casefold()

    def looked(self, *names: str) -> None:
        """Count arguments as looked at that mean nothing in this run."""
        self.get(*names)


def normal(key: str) -> str:
    """Return an argument's name: ``--num-layers`` is ``num_layers``.

    >>> normal("--override-opt_param-scheduler")
    'override_opt_param_scheduler'
    """
    return key.lstrip("-").replace("-", "_")


def args_of_yaml(main: Document) -> Args:
    """Return the arguments that a YAML file holds, under ``MODEL_ARGS`` or at its top."""
    block = main.at(ARGS)
    if block is None or not isinstance(block.value, dict):
        return Args.of(main)
    root = Node(dict(block.value), block.line, block.start, block.end)
    return Args.of(Document(main.path, main.text, main.form, root, main.seen))


def single(document: Document, several: frozenset[str]) -> Document:
    """Leave one word to each argument of a command that takes one; the rest (``--lr 1e-4 $MORE``) belongs to none.

    ``several``: names of arguments that take more.
    """
    root = document.root.value
    assert isinstance(root, dict)  # noqa: S101  # arguments are
    alone = root.get(POSITIONAL) or Node([], document.root.line, document.root.start, document.root.start, parent=document.root)
    for key, node in root.items():
        if key != POSITIONAL and normal(key) not in several and isinstance(node.value, list) and isinstance(alone.value, list):
            alone.value += node.value[1:]
            root[key] = node.value[0]
    if alone.value:
        root[POSITIONAL] = alone
    return document


def pattern(found: Found, layers: int, *, every: bool) -> tuple[int, ...]:
    """Return a number for each layer, from Megatron's ``([0]*3+[1]*24)`` or N.

    ``every``: of N, the first layer of each N is 1 (``--moe-layer-freq``); else all are but each N-th (attention variants).
    """
    if layers > _LONGEST:
        raise found.error("is of a model of more layers than any has", allowed=f"up to {_LONGEST} layers")
    if isinstance(found.node.value, list):  # a configuration gives the numbers themselves
        made: tuple[int, ...] = tuple(found.value)
        if not all(type(number) is int for number in made):
            raise found.error("is not a list of 0 and 1")
        return _checked(found, made, layers)
    text = found.text().strip().strip("\"'")
    if re.fullmatch(r"\d{1,6}", text):
        n = max(int(text), 1)
        return tuple(int(i % n == 0 if every else (i + 1) % n != 0) for i in range(layers))
    return _checked(found, _evaluated(found, text), layers)


def _checked(found: Found, made: tuple[int, ...], layers: int) -> tuple[int, ...]:
    if len(made) != layers:
        raise found.error(f"gives {len(made)} layers a number, and there are {layers}", allowed=f"{layers} numbers")
    return made


def _evaluated(found: Found, text: str) -> tuple[int, ...]:
    """Work out sums and products of lists of whole numbers; nothing is executed."""
    if len(text) <= 1000:
        try:
            made = _folded(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            made = None
        if isinstance(made, list):
            return tuple(made)
    raise found.error("is not a number or a pattern of layers", allowed="2 or ([0]*3+[1]*24)")


def _folded(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_folded(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _folded(node.left), _folded(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult):
            many, count = (left, right) if isinstance(left, list) else (right, left)
            if isinstance(many, list) and isinstance(count, int) and len(many) * count <= _LONGEST:
                return many * count
    raise TypeError
