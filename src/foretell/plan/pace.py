"""Pace: a launch with what decides its speed beside it, ready to be timed and to be changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretell.core.speed import CALIBRATED, SpeedForecast, speed
from foretell.cost.topology import Topology
from foretell.plan.launch import Launch

__all__ = ["Pace"]


@dataclass(frozen=True)
class Pace:
    """A launch on a network, and how evenly its ranks run."""

    launch: Launch
    topology: Topology
    algorithm: str | None = None
    """Forced for collectives that know it."""
    efficiency: float | str = CALIBRATED
    imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean."""
    expert_spread: float = 0.0
    """Coefficient of variation of the experts' loads."""
    jitter: float = 0.0
    """Relative standard deviation of a rank's step."""
    loader_s: float = 0.0
    """Seconds in which the input pipeline delivers the samples of one step."""
    congestion: float = 1.0
    """Divides the network's bandwidth."""

    @property
    def crosses_nodes(self) -> bool:
        """Whether the job is larger than one domain of fast links."""
        return bool(self.launch.gpus > self.topology.domain)

    def speed(self, measured_step_s: float | None = None) -> SpeedForecast:
        """Ask how long a step takes; a measured step re-scales the answer."""
        launch = self.launch
        return speed(
            launch.workload,
            launch.hardware,
            launch.recipe,
            launch.par,
            topology=self.topology,
            algorithm=self.algorithm,
            efficiency=self.efficiency,
            imbalance=self.imbalance,
            expert_spread=self.expert_spread,
            jitter=self.jitter,
            loader_s=self.loader_s,
            congestion=self.congestion,
            measured_step_s=measured_step_s,
        )

    def with_launch(self, launch: Launch) -> Pace:
        """Return the pace of another launch; the input pipeline delivers samples as fast as before."""
        ratio = launch.global_batch / self.launch.global_batch
        return replace(self, launch=launch, loader_s=self.loader_s * ratio)
