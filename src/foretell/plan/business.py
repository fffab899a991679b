"""How a run is operated: what its user knows of failures, storage, place and prices, and what is left open."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import Final

from foretell.core.pricing import MODES
from foretell.machine.datacenter import Datacenter
from foretell.operations.saving import MODES as SAVING
from foretell.validation import choice, number, positive_int

__all__ = ["Business"]

_LONGEST_S: Final = 1e9


@dataclass(frozen=True)
class Business:
    """How a run is operated.  None: as public fleets, clouds and grids are, with their range."""

    failure_rate: object = None
    """Failures per 1,000 node-days: one, or (low, high)."""
    record: str | None = None
    """A fleet of the catalog whose rate is taken."""
    recovery_time_s: float | None = None
    checkpoint_interval_s: float | None = None
    """Work between checkpoints; None is the best."""
    checkpoint_mode: str = "sync"
    storage_bytes_per_s: float | None = None
    """What the storage takes in, all ranks together."""
    region: Datacenter | str | os.PathLike[str] | None = None
    operator: str | None = None
    boundary: str | None = None
    pue: float | None = None
    carbon_intensity: float | None = None
    node_power_w: float | None = None
    mode: str = "rent"
    price_usd_per_device_hour: float | None = None
    provider: str | None = None
    price_kind: str = "on-demand"
    node_price_usd: float | None = None
    samples: int = 10_000
    seed: int = 0
    today: dt.date | None = None

    def checked(self) -> Business:
        """Return the settings with every plain number and name checked; InputError names the one that cannot be used."""
        choice(self.checkpoint_mode, "checkpoint_mode", SAVING)
        choice(self.mode, "mode", MODES)
        positive_int(self.samples, "samples", minimum=100, maximum=1_000_000)
        for name, least, most in (
            ("recovery_time_s", 0.0, _LONGEST_S),
            ("checkpoint_interval_s", 1e-3, _LONGEST_S),
            ("storage_bytes_per_s", 1.0, 1e15),
            ("node_power_w", 1e-3, 1e9),
        ):
            if getattr(self, name) is not None:
                number(getattr(self, name), name, minimum=least, maximum=most)
        return self
