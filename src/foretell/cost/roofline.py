"""The two roofs over one device: arithmetic and traffic (Williams et al. 2009, CACM 52(4)), and what is lost beside them."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.cost.arrays import Value, maximum
from foretell.cost.power import energy

__all__ = ["Roofs"]


@dataclass(frozen=True, slots=True)
class Roofs:
    """What one device executes and moves for one batch; numbers or arrays.

    >>> one = Roofs(flops=2e12, model_flops=2e12, moved=4e9, spent=6e-3, peak=1e15, share=0.5, bandwidth=2e12)
    >>> one.compute, one.memory, one.latency, one.overhead
    (0.004, 0.002, 0.006, 0.002)
    """

    flops: Value
    """Executed, FLOP."""
    model_flops: Value
    """Of them the model's: without recomputation."""
    moved: Value
    """Bytes of device memory."""
    spent: Value
    """Seconds as the kernels give them."""
    peak: float
    """Dense FLOP/s of the format."""
    share: float
    """Of the peak that full kernels reach."""
    bandwidth: float
    """Bytes/s of device memory."""
    memory_share: float = 1.0

    @property
    def compute(self) -> Value:
        """Seconds of arithmetic alone."""
        return self.flops / (self.peak * self.share)

    @property
    def memory(self) -> Value:
        """Seconds of traffic alone."""
        return self.moved / (self.bandwidth * self.memory_share)

    @property
    def latency(self) -> Value:
        """Seconds: what the kernels take, and never less than either roof."""
        return maximum(self.spent, maximum(self.compute, self.memory))

    @property
    def overhead(self) -> Value:
        """Seconds that the longer roof leaves out."""
        return self.latency - maximum(self.compute, self.memory)

    @property
    def intensity(self) -> Value:
        """FLOP per byte."""
        return self.flops / self.moved

    @property
    def ridge(self) -> float:
        """Intensity from which on arithmetic is the longer roof."""
        return self.peak * self.share / (self.bandwidth * self.memory_share)

    @property
    def mfu(self) -> Value:
        """Model FLOP/s utilisation."""
        return self.model_flops / (self.latency * self.peak)

    @property
    def hfu(self) -> Value:
        """Hardware FLOP/s utilisation."""
        return self.flops / (self.latency * self.peak)

    def energy(self, tdp_w: float) -> Value:
        """Joules of the device."""
        return energy(tdp_w, self.latency, maximum(self.hfu, self.moved / (self.latency * self.bandwidth)))
