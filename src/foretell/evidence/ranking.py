"""Whether predictions choose well: order of pairs, and what the predicted best costs over the measured best."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["NEAR", "Choice", "chosen", "grouped_choices", "ranking"]

NEAR: Final = 0.03
"""Two runs whose measured steps differ by no more than this share are not told apart by measuring again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the runs that compete: same work on the same machine, done in another way."""

    group: Hashable
    measured: float
    """Seconds."""
    predicted: float


def ranking(group: Sequence[Choice]) -> tuple[int, float]:
    """Return how many pairs of a group differ, and how many of these are ordered right; a tie is half right.

    >>> ranking([Choice("", 1.0, 1.1), Choice("", 1.02, 1.0), Choice("", 2.0, 1.05)])
    (2, 1.0)
    """
    pairs, right = 0, 0.0
    for i, a in enumerate(group):
        for b in group[i + 1 :]:
            if abs(a.measured - b.measured) <= NEAR * min(a.measured, b.measured):
                continue
            pairs += 1
            right += 0.5 if a.predicted == b.predicted else float((a.predicted < b.predicted) == (a.measured < b.measured))
    return pairs, right


def chosen(group: Sequence[Choice]) -> float:
    """Return the measured step of the predicted best over the measured best, minus 1; of several predicted best, the mean.

    >>> chosen([Choice("", 1.0, 1.1), Choice("", 1.2, 1.0)])
    0.19999999999999996
    """
    least = min(c.predicted for c in group)
    best = [c.measured for c in group if c.predicted == least]
    return sum(best) / len(best) / min(c.measured for c in group) - 1


def grouped_choices(choices: Iterable[Choice]) -> dict[str, Any]:
    """Return ranking and regret over all groups that hold more than one run; None where there is no pair.

    Pairs count alike; so do groups: ``regret_pct`` is their mean, ``regret_max_pct`` the worst.
    """
    groups: dict[Hashable, list[Choice]] = {}
    for c in choices:
        groups.setdefault(c.group, []).append(c)
    some = [members for members in groups.values() if len(members) > 1]
    pairs, right = (sum(column) for column in zip(*map(ranking, some), strict=True)) if some else (0, 0.0)
    regrets = [chosen(members) for members in some]
    return {
        "groups": len(some),
        "pairs": int(pairs),
        "ranking_pct": round(100 * right / pairs, 2) if pairs else None,
        "regret_pct": round(100 * sum(regrets) / len(regrets), 3) if regrets else None,
        "regret_max_pct": round(100 * max(regrets), 3) if regrets else None,
    }
