"""Mean lengths of a file's requests, whenever they came.  One pass, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from foretell.sim.requests_file import read_lengths

__all__ = ["RequestsSummary", "summarize"]


@dataclass(frozen=True, slots=True)
class RequestsSummary:
    """Lengths of a file's requests, tokens."""

    requests: int
    inputs: float
    """Mean of a prompt."""
    outputs: float
    cached: float
    input_cv: float
    """Standard deviation of the prompts over their mean."""
    output_cv: float
    longest: int
    """Of the longest request, prompt and answer."""
    longest_output: int


def summarize(path: str | Path, *, requests: int | None = None) -> RequestsSummary:
    """Read a file of requests once (the first ``requests`` of them); its arrivals may be missing.  Every line is checked.

    Raises:
        InputError: as :func:`foretell.sim.requests_file.read_lengths`, with file and line.

    """
    count, cached, longest, output = 0, 0, 0, 0
    sums, squares = [0.0, 0.0], [0.0, 0.0]
    for inputs, outputs, found in islice(read_lengths(path), requests):
        count += 1
        cached += found
        longest, output = max(longest, inputs + outputs), max(output, outputs)
        for i, tokens in enumerate((inputs, outputs)):
            sums[i] += tokens
            squares[i] += tokens * tokens
    (inputs_cv, outputs_cv) = _spreads(count, sums, squares)
    return RequestsSummary(count, sums[0] / count, sums[1] / count, cached / count, inputs_cv, outputs_cv, longest, output)


def _spreads(count: int, sums: list[float], squares: list[float]) -> Iterator[float]:
    """Standard deviation over mean; whole numbers below 2^53 in number and size, so that squares lose nothing that counts."""
    for total, square in zip(sums, squares, strict=True):
        mean = total / count
        yield math.sqrt(max(square / count - mean * mean, 0.0)) / mean
