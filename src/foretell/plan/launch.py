"""Launch: one training run as it would be started, ready to be forecast and to be changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foretell.core._validate import completed
from foretell.core.forecast import Forecast, forecast
from foretell.machine import HardwareNode
from foretell.recipe import Parallelism, TrainingRecipe
from foretell.recipe.profile import Profile
from foretell.recipe.profiles import profile

if TYPE_CHECKING:
    from foretell.arch import Workload
    from foretell.recipe.resolve import Run

__all__ = ["Launch"]


@dataclass(frozen=True)
class Launch:
    """A model on a machine, with everything that decides its memory."""

    workload: Workload
    hardware: HardwareNode
    recipe: TrainingRecipe
    par: Parallelism
    headroom: float = 0.10
    """Share of the available memory that is to stay free."""
    gpus_per_node: int = 8
    given: frozenset[str] = frozenset()
    """Names of the settings that the user stated; the others follow from them."""
    slack_scale: float = 1.0
    """Allocator slack over the linear rule's, as a replay of this run (or of one close to it) found it."""

    @property
    def framework(self) -> Profile:
        """The framework's profile."""
        return profile(self.recipe.framework)

    @property
    def reads_tokens(self) -> bool:
        """Whether the model reads a sequence, whose length the user chooses."""
        return self.workload.architecture.reads_tokens

    @property
    def gpus(self) -> int:
        """Accelerators used."""
        return self.par.world

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.recipe.micro_batch * self.recipe.grad_accum * self.par.dp

    @property
    def run(self) -> Run:
        """The run with every choice made."""
        return completed(self.workload.architecture, self.recipe, self.par)[0]

    def forecast(self, *, host: bool = False) -> Forecast:
        """Ask what this run needs; `host` asks for the host's memory too, which no verdict depends on."""
        return forecast(
            self.workload,
            self.hardware,
            self.recipe,
            self.par,
            self.headroom,
            gpus_per_node=self.gpus_per_node,
            host=host,
            slack_scale=self.slack_scale,
        )

    def replayed(self, *, host: bool = False) -> Forecast:
        """Ask the same with the allocator replayed where the framework's profile can: slower and closer."""
        return forecast(
            self.workload,
            self.hardware,
            self.recipe,
            self.par,
            self.headroom,
            gpus_per_node=self.gpus_per_node,
            host=host,
            allocator="replay",
        )

    def tuned(self, found: Forecast) -> Launch:
        """Return the launch with the slack that a replay of it found, for forecasts of runs close to it."""
        return replace(self, slack_scale=found.slack_scale)

    def with_recipe(self, **changes: object) -> Launch:
        """Return the launch with another recipe."""
        return replace(self, recipe=self.recipe.with_(**changes))

    def with_par(self, **changes: object) -> Launch:
        """Return the launch with another parallelism."""
        return replace(self, par=self.par.with_(**changes))
