"""Linear forms: bytes as ``sum(coefficient x monomial)``, where a monomial is a product of run sizes.

The shape-dependent part of a formula (hidden size, vocabulary, number of layers ...) is a coefficient; what a
sweep varies (micro-batch, sequence, tensor-, context-, expert- and data-parallel degree) is a monomial.  So a
model and recipe are folded once, and then answered for one configuration or for a million by the same sums.

A monomial is written ``rows/shard``:

========  ====================================================================
rows      value
========  ====================================================================
``1``     1
``B``     micro-batch (samples)
``T``     tokens of the (decoder) sequence on a rank: micro-batch x seq / cp
``TT``    attention scores: micro-batch x seq x seq / cp
``E``     tokens of the encoder's sequence
``TE``    micro-batch x seq x encoder seq  (cross-attention scores)
``EE``    encoder scores
``S``     seq;  ``SS`` seq x seq  (masks shared by the batch); ``F``, ``FF`` the same of the encoder's
          sequence, ``SF`` of both
``K``     chunks of 128 positions of the sequence
========  ====================================================================

========  ====================================================================
shard     divides by
========  ====================================================================
``1``     nothing
``tp``    tensor-parallel degree
``sp``    tensor-parallel degree when sequence parallelism is on, else nothing
``r``     routed tokens: multiplies by expert-tp, divides by tp (1 with etp = tp)
``rt``    routed tokens times an expert width divided by expert-tp: divides by tp
``ep``    expert parallelism x expert-tp;  ``e`` expert parallelism alone, ``etp`` expert-tp alone
``cp``    context parallelism alone (queries of a sample that a rank has)
``z``     the data-parallel group that shards states;  ``z.tp`` also tp
``ze``    expert parallelism x expert-tp x the experts' own data-parallel group
========  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Key = tuple[str, str]
"""(category, monomial): what the bytes are for, and how they scale."""


class Lin(dict[Key, float]):
    """A linear form with a category for each term.  ``+`` and ``*`` behave as for polynomials.

    >>> a = Lin.of("activation", "T/sp", 2.0) + Lin.of("activation", "T/sp", 1.0)
    >>> a[("activation", "T/sp")]
    3.0
    """

    __slots__ = ()

    @classmethod
    def of(cls, category: str, monomial: str, coefficient: float) -> Lin:
        return cls({(category, monomial): coefficient}) if coefficient else cls()

    def __add__(self, other: Mapping[Key, float]) -> Lin:
        out = Lin(self)
        out.add(other)
        return out

    def __sub__(self, other: Mapping[Key, float]) -> Lin:
        out = Lin(self)
        out.add(other, -1.0)
        return out

    def __mul__(self, factor: float) -> Lin:
        return Lin({k: v * factor for k, v in self.items()}) if factor else Lin()

    __rmul__ = __mul__

    def add(self, other: Mapping[Key, float], factor: float = 1.0) -> None:
        """In-place ``self += factor * other``; terms that cancel are dropped."""
        for key, value in other.items():
            total = self.get(key, 0.0) + factor * value
            if abs(total) < 1e-9:
                self.pop(key, None)
            else:
                self[key] = total

    def as_category(self, category: str) -> Lin:
        """The same bytes, all called ``category``."""
        out = Lin()
        for (_, monomial), value in self.items():
            out.add({(category, monomial): value})
        return out

    def by_monomial(self) -> dict[str, float]:
        """Totals over categories."""
        out: dict[str, float] = {}
        for (_, monomial), value in self.items():
            out[monomial] = out.get(monomial, 0.0) + value
        return out


def total(forms: Iterable[Mapping[Key, float]]) -> Lin:
    """Sum of linear forms."""
    out = Lin()
    for form in forms:
        out.add(form)
    return out


def dominates(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    """Whether ``a`` is at least ``b`` whatever the (non-negative) monomials are."""
    for key, value in b.items():
        if a.get(key, 0.0) < value:
            return False
    return all(value >= 0 or key in b for key, value in a.items())
