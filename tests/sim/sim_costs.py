"""Step costs of tests, exact in binary so that times can be compared with ``==``; and dice."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from foretell.cost.serving_load import Load


@dataclass
class Affine:
    """Seconds linear in everything; multiples of 2^-20."""

    step: float = 2.0**-6
    decode: float = 2.0**-12
    context: float = 2.0**-18
    prefill: float = 2.0**-14
    pairs: float = 2.0**-20

    def seconds(self, load: Load) -> float:
        seconds: float = self.step + self.decode * load.decode + self.context * load.context
        seconds += self.prefill * load.prefill + self.pairs * load.pairs
        return seconds


@dataclass
class Constant:
    """Every step takes as long."""

    step: float

    def seconds(self, load: Load) -> float:
        del load
        return self.step


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311  # lengths are no secret
