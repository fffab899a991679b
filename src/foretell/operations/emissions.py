"""Energy, carbon and water of running machines, each with its boundary.  kWh, kg of CO2-equivalent, litres; numbers or arrays.

Boundaries that are never mixed: energy of the IT equipment and of the whole facility (PUE between them, ISO/IEC 30134-2); a
grid's operational and lifecycle factors; location- and market-based accounting (GHG Protocol scope 2); water on the site, which
is per kWh of *IT* energy (WUE, ISO/IEC 30134-9), and water of the power stations, which is per kWh of *facility* energy.
"""

from __future__ import annotations

from typing import Final

from foretell.cost.arrays import Value

__all__ = [
    "HOURS_A_YEAR",
    "embodied_rate",
    "facility_kwh",
    "grid_kg",
    "it_kwh",
    "off_site_litres",
    "on_site_litres",
]

HOURS_A_YEAR: Final = 8760.0
_GRAMS: Final = 1000.0


def it_kwh(watts: Value, hours: Value) -> Value:
    """Return the energy of equipment that takes so many watts on average.

    >>> it_kwh(400.0, 184320.0)
    73728.0
    """
    return watts / 1000.0 * hours


def facility_kwh(energy: Value, pue: Value) -> Value:
    """Return the building's energy for an IT energy: times PUE, once.

    >>> round(facility_kwh(73728.0, 1.1), 1)
    81100.8
    """
    return energy * pue


def grid_kg(energy: Value, grams_per_kwh: Value) -> Value:
    """Return kg of CO2-equivalent of a facility energy on a grid.

    >>> round(grid_kg(81100.8, 385.0) / 1000, 2)  # Llama 2 7B: 31.22 t (arXiv 2307.09288, table 2)
    31.22
    """
    return energy * grams_per_kwh / _GRAMS


def on_site_litres(energy: Value, wue: Value) -> Value:
    """Return the water that cooling takes: IT energy x WUE.

    >>> on_site_litres(32256.0, 1.8)
    58060.8
    """
    return energy * wue


def off_site_litres(facility: Value, litres_per_kwh: Value) -> Value:
    """Return the water that power stations take: facility energy x the grid's water intensity.

    >>> off_site_litres(1000.0, 3.142)
    3142.0
    """
    return facility * litres_per_kwh


def embodied_rate(kg: Value, life_years: Value, utilisation: Value = 1.0) -> Value:
    """Return kg per hour of use of equipment whose making took `kg`: kg / (hours of its life x share of them in use).

    >>> round(embodied_rate(150.0, 6.0, 0.85), 8)  # BLOOM's GPUs, arXiv 2211.02001
    0.00335751
    """
    return kg / (life_years * HOURS_A_YEAR * utilisation)
