"""Shapes that diffusion transformers share: embedders of the conditioning, modulated norms, gated residuals.

``"memory"`` in a block is the conditioning: text tokens, or the time embedding as one row a sample.
Source: diffusers 0.42.1 ``embeddings``, ``normalization``.
"""

from __future__ import annotations

from foretell.arch.operators import Act, Add, Linear, Mul, Norm, Operator, Pool


def embedder(name: str, d_in: int, hidden: int) -> list[Operator]:
    """The two-matrix embedding of a time step or a pooled vector (one row a sample)."""
    return [
        Pool(name=f"{name}_in", ins=("memory",), features=d_in, positions=1),
        Linear(name=f"{name}_1", d_in=d_in, d_out=hidden, bias=True),
        Act(name=f"{name}_act", fn="silu", features=hidden, split=False),
        Linear(name=f"{name}_2", d_in=hidden, d_out=hidden, bias=True),
    ]


def modulation(name: str, hidden: int, chunks: int) -> list[Operator]:
    """``chunks`` shift, scale and gate vectors from the embedding (one row a sample)."""
    return [
        Pool(name=f"{name}_cond", ins=("memory",), features=hidden, positions=1),
        Act(name=f"{name}_silu", fn="silu", features=hidden, split=False),
        Linear(name=name, d_in=hidden, d_out=chunks * hidden, bias=True),
    ]


def ada(name: str, x: str, mod: str, hidden: int) -> list[Operator]:
    """A norm without weights, scaled and shifted by a modulation."""
    return [
        Norm(name=f"{name}_norm", ins=(x,), dim=hidden, kind="layer", affine=False),
        Mul(name=name, ins=(f"{name}_norm", mod), features=hidden),
    ]


def gated(name: str, x: str, branch: str, mod: str, hidden: int) -> list[Operator]:
    """``x + gate * branch``."""
    return [
        Mul(name=f"{name}_gated", ins=(branch, mod), features=hidden),
        Add(name=name, ins=(x, f"{name}_gated"), features=hidden),
    ]
