"""From linear forms to bytes: the values of the monomials for one run, or for arrays of runs.

Everything here takes Python numbers or NumPy arrays; NumPy itself is imported only where arrays come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from foretell.cost.linear import Lin

Value = Any
"""A number, or an array of numbers broadcast against the others."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a run's linear forms are evaluated at."""

    micro_batch: Value = 1
    seq_len: Value = 1
    encoder_seq_len: Value = 0
    dp: Value = 1
    tp: Value = 1
    cp: Value = 1
    ep: Value = 1
    etp: Value = 1
    sp: Value = False
    hsdp_replicas: Value = 1


class Basis(dict[str, Value]):
    """Monomial -> value, computed on first use."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        b, s, e = sizes.micro_batch, sizes.seq_len, sizes.encoder_seq_len
        tp, cp, ep, etp = sizes.tp, sizes.cp, sizes.ep, sizes.etp
        local = s / cp
        self.rows: dict[str, Value] = {
            "1": 1.0,
            "B": b,
            "T": b * local,
            "TT": b * s * local,
            "E": b * e,
            "TE": b * local * e,
            "EE": b * e * e,
            "S": s,
            "SS": s * s,
            "F": e,
            "FF": e * e,
            "SF": s * e,
            "K": -(-s // 128),
        }
        group = sizes.dp * cp / sizes.hsdp_replicas
        self.shards: dict[str, Value] = {
            "1": 1.0,
            "tp": 1.0 / tp,
            "cp": 1.0 / cp,
            "e": 1.0 / ep,
            "sp": 1.0 / (1 + (tp - 1) * sizes.sp),
            "r": etp / tp,
            "rt": 1.0 / tp,
            "ep": 1.0 / (ep * etp),
            "etp": 1.0 / etp,
            "z": 1.0 / group,
            "z.tp": 1.0 / (group * tp),
            "ze": 1.0 / (group * tp),
        }

    def __missing__(self, monomial: str) -> Value:
        rows, shard = monomial.split("/")
        value = self.rows[rows] * self.shards[shard]
        self[monomial] = value
        return value


def evaluate(form: Mapping[str, float], basis: Basis) -> Value:
    """Value of a form given by monomial."""
    out: Value = 0.0
    for monomial, coefficient in form.items():
        out = out + coefficient * basis[monomial]
    return out


def breakdown(form: Lin, basis: Basis) -> dict[str, Value]:
    """Bytes of a form by category."""
    out: dict[str, Value] = {}
    for (category, monomial), coefficient in form.items():
        out[category] = out.get(category, 0.0) + coefficient * basis[monomial]
    return out


def maximum(values: Iterable[Value]) -> Value:
    """Largest of numbers, or elementwise of arrays."""
    out: Value = None
    for value in values:
        if out is None:
            out = value
        elif hasattr(value, "dtype") or hasattr(out, "dtype"):
            import numpy as np  # noqa: PLC0415  # 0.1 s, for sweeps only

            out = np.maximum(out, value)
        else:
            out = max(out, value)
    return out
