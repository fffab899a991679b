"""Inputs of an operations question: plain numbers whose names end in their unit, read into one unit a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from foretell.evidence.row_run import Skip

__all__ = ["OUTPUT", "Given"]

_TIMES: Final = {
    "ms": 1e-3, "s": 1.0, "seconds": 1.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
    "d": 86400.0, "days": 86400.0, "weeks": 604800.0, "years": 365 * 86400.0,
}  # fmt: skip
"""Ending -> seconds."""
_ENERGIES: Final = {
    "wh": 1e-3, "kwh": 1.0, "mwh": 1e3, "gwh": 1e6, "twh": 1e9, "j": 1 / 3.6e6, "kj": 1 / 3.6e3, "mj": 1 / 3.6,
}  # fmt: skip
"""... -> kWh."""
_POWERS: Final = {"w": 1.0, "kw": 1e3, "mw": 1e6}
_MASSES: Final = {"g": 1e-3, "kg": 1.0, "t": 1e3, "kt": 1e6}
_VOLUMES: Final = {"ml": 1e-3, "l": 1.0, "m3": 1e3}
_COUNTS: Final = {"": 1.0, "count": 1.0, "thousands": 1e3, "millions": 1e6, "billions": 1e9, "trillions": 1e12}
_RATES: Final = {
    "gb_per_s": 1e9, "gb_s": 1e9, "tb_per_s": 1e12, "mb_per_s": 1e6, "gib_per_s": 2.0**30, "bytes_per_s": 1.0,
    "gbit_per_s": 1e9 / 8, "gbit_s": 1e9 / 8, "gbps": 1e9 / 8, "gbits_per_s": 1e9 / 8, "tbit_per_s": 1e12 / 8,
}  # fmt: skip
"""... -> bytes a second (GB is 10^9 bytes, Gbit 10^9 bits)."""
_INTENSITIES: Final = {"g_per_kwh": 1.0, "kg_per_kwh": 1e3, "kg_per_mwh": 1.0, "t_per_mwh": 1e3, "lb_per_mwh": 0.45359237}
"""... -> grams a kWh."""
OUTPUT: Final = {
    "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0,
    "GB": 1e9, "GiB": 2.0**30, "TB": 1e12, "TiB": 2.0**40, "GB/s": 1e9,
    "Wh": 1e-3, "kWh": 1.0, "MWh": 1e3, "GWh": 1e6, "W": 1.0, "kW": 1e3, "J/token": 1.0, "J": 1 / 3.6e6,
    "kg": 1.0, "tCO2e": 1e3, "kgCO2e": 1.0, "gCO2e": 1e-3, "kg per device-h": 1.0, "tCO2e/day": 1e3, "tCO2e per day": 1e3,
    "gCO2e/kWh": 1.0, "kgCO2e/kWh": 1e3, "kg/kWh": 1e3, "kg per kWh": 1e3, "g/kWh": 1.0,
    "L": 1.0, "mL": 1e-3, "L/kWh": 1.0, "L per kWh": 1.0,
    "fraction": 1.0, "ratio": 1.0, "count": 1.0, "%": 0.01, "percent": 0.01, "nodes": 1.0, "per year": 1.0,
    "failures per 1000 node-days": 1.0, "GPU-h": 1.0, "chip-h": 1.0, "device-h": 1.0,
    "USD": 1.0, "USD/day": 1.0, "USD per day": 1.0, "USD per GPU-h": 1.0, "USD per million tokens": 1.0,
}  # fmt: skip
"""Unit of a measured value -> what it is in the unit of our answers (s, bytes, kWh, W, kg, g a kWh, L, dollars)."""


class Given:
    """The inputs of one question; what nobody asks for is left over, so that nothing is ignored unseen."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = dict(inputs)
        self._used: set[str] = set()

    def left(self) -> list[str]:
        """Return the names that were not asked for."""
        return sorted(set(self._inputs) - self._used)

    def raw(self, *names: str) -> Any:  # whatever JSON holds
        """Return the value of the first of some names, None where none is given."""
        for name in names:
            if name in self._inputs:
                self._used.add(name)
                return self._inputs[name]
        return None

    def text(self, *names: str, default: str = "") -> str:
        """Return a name."""
        value = self.raw(*names)
        return default if value is None else str(value)

    def has(self, *names: str) -> bool:
        """Whether one of some names is given."""
        return any(name in self._inputs for name in names)

    def number(self, *names: str, default: float | None = None) -> float:
        """Return a plain number."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise Skip(f"underspecified: the question does not give {' or '.join(names)}")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Skip(f"underspecified: {names[0]} is no number")
        return float(value)

    def time(self, *stems: str, default: float | None = None) -> float:
        """Return seconds."""
        return self._in(_TIMES, stems, default)

    def energy(self, *stems: str, default: float | None = None) -> float:
        """Return kWh."""
        return self._in(_ENERGIES, stems, default)

    def power(self, *stems: str, default: float | None = None) -> float:
        """Return watts."""
        return self._in(_POWERS, stems, default)

    def mass(self, *stems: str, default: float | None = None) -> float:
        """Return kg."""
        return self._in(_MASSES, stems, default)

    def volume(self, *stems: str, default: float | None = None) -> float:
        """Return litres."""
        return self._in(_VOLUMES, stems, default)

    def count(self, *stems: str, default: float | None = None) -> float:
        """Return a count, of names such as `tokens`, `tokens_count` and `tokens_billions`."""
        return self._in(_COUNTS, stems, default)

    def rate(self, *stems: str, default: float | None = None) -> float:
        """Return bytes a second."""
        return self._in(_RATES, stems, default)

    def intensity(self, *stems: str, default: float | None = None) -> float:
        """Return grams of CO2-equivalent a kWh."""
        return self._in(_INTENSITIES, stems, default)

    def numbers(self, *names: str) -> list[Any]:
        """Return a list."""
        value = self.raw(*names)
        if not isinstance(value, list) or not value:
            raise Skip(f"underspecified: the question does not list {' or '.join(names)}")
        return value

    def matching(self, *words: str) -> list[str]:
        """Return the names that hold all of some words, in the order given."""
        return [name for name in self._inputs if all(word in name for word in words)]

    def only_rate(self) -> float:
        """Return bytes a second of the one input that is a data rate, whatever it is called."""
        return self._only(_RATES, "a data rate")

    def energies(self) -> list[float]:
        """Return kWh of every input that is an energy and nothing more."""
        return [self.number(name) * factor for name, factor in self._ending(_ENERGIES)]

    def _only(self, units: Mapping[str, float], what: str) -> float:
        found = self._ending(units)
        if len(found) != 1:
            raise Skip(f"underspecified: the question gives {len(found)} inputs that are {what}, not one")
        return self.number(found[0][0]) * found[0][1]

    def _ending(self, units: Mapping[str, float]) -> list[tuple[str, float]]:
        """Return the names that end in one of some units, the longest that does, and what it is."""
        out = []
        for name in self._inputs:
            endings = [
                ending for ending in units if ending and name.endswith(f"_{ending}") and "_per_" not in name.removesuffix(ending)
            ]
            if endings:
                out.append((name, units[max(endings, key=len)]))
        return out

    def _in(self, units: Mapping[str, float], stems: tuple[str, ...], default: float | None) -> float:
        for stem in stems:
            for ending, factor in units.items():
                name = f"{stem}_{ending}" if ending else stem
                if name in self._inputs:
                    return self.number(name) * factor
        if default is None:
            raise Skip(f"underspecified: the question does not give {' or '.join(stems)} (with one of {', '.join(units)})")
        return default
