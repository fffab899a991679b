"""Operators: the atoms a model is made of.

An operator is a frozen record of shapes.  It names the weights it owns (:meth:`Operator.weights`) and the
tensors it reads and writes; *how* a framework runs it (which copies it keeps for the backward pass) is told
by :mod:`foretell.cost.saved`.  Nothing here depends on a run: batch, sequence and sharding come later.

Conventions
-----------
* Widths are elements per token (or per spatial position for images).
* ``ins`` names the tensors an operator reads: the name of an earlier operator of the same block, or ``"x"``
  for the block's input.  Left empty it reads the output of the operator before it.
* An operator's output carries the operator's name.
* ``"memory"`` is the output of the encoder (or vision tower) that a cross attention reads: a tensor made from
  it alone has the encoder's rows, not the block's.  ``"skip"`` is the output of an earlier block that a later
  one reads besides ``"x"`` (the long connections of a UNet).
* Rows change where an operator says so: ``positions`` of a :class:`Conv` or :class:`Pool` other than 0 is the
  number of rows per sample from there on.
* ``shard`` of a weight says how parallelism divides it: ``"1"`` (replicated on every rank), ``"tp"`` (tensor
  parallel) or ``"ep"`` (a routed expert: divided by expert parallelism times expert tensor parallelism).
"""

from __future__ import annotations

from foretell.arch._operator import Operator, Pointwise, Role, Shard, Weight
from foretell.arch._other_operators import Conv, Experts, Parameters, PixelLoss, Pool, Router, Scan, Slice
from foretell.arch._token_operators import (
    Act,
    Add,
    Attention,
    Dropout,
    Embedding,
    Gate,
    Head,
    Linear,
    Mul,
    Norm,
    PromptAttention,
    Rope,
)

__all__ = [
    "Act",
    "Add",
    "Attention",
    "Conv",
    "Dropout",
    "Embedding",
    "Experts",
    "Gate",
    "Head",
    "Linear",
    "Mul",
    "Norm",
    "Operator",
    "Parameters",
    "PixelLoss",
    "Pointwise",
    "Pool",
    "PromptAttention",
    "Role",
    "Rope",
    "Router",
    "Scan",
    "Shard",
    "Slice",
    "Weight",
]
