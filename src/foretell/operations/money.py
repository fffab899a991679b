"""Money: annuities, what an owned device costs an hour, when owning pays, what a token costs.  US dollars; numbers or arrays.

`discount` is a yearly rate as a fraction, `life` years, `utilisation` the share of the hours that do useful work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretell.cost.arrays import Value, expm1, log1p, maximum, where

__all__ = [
    "HOURS_A_YEAR",
    "break_even_utilisation",
    "capital_recovery",
    "electricity_per_million",
    "net_present_value",
    "owned_per_hour",
    "per_million",
    "yearly_capital",
]

HOURS_A_YEAR: Final = 8760.0
_SECONDS_AN_HOUR: Final = 3600.0
_JOULES_A_KWH: Final = 3.6e6
_LEAST: Final = 1e-12


def capital_recovery(discount: Value, life: Value) -> Value:
    """Return the yearly payment that pays back 1 in `life` years: r / (1 - (1 + r)^-n); 1/n at no interest.

    >>> round(capital_recovery(0.08, 4), 9), capital_recovery(0.0, 4)
    (0.301920804, 0.25)
    """
    rate = maximum(discount, _LEAST)
    return where(discount > 0, rate / -expm1(-life * log1p(rate)), 1.0 / life)


def net_present_value(discount: float, flows: Sequence[float]) -> float:
    """Return the value today of yearly flows, the first of them now.

    >>> round(net_present_value(0.08, [-35000, 15000, 15000, 15000, 15000]), 4)
    14681.9026
    """
    return sum(flow / (1.0 + discount) ** year for year, flow in enumerate(flows))


def yearly_capital(price: Value, residual: Value, discount: Value, life: Value) -> Value:
    """Return what a purchase costs a year: its price less the residual's value today, as an annuity.

    >>> round(yearly_capital(35000, 5000, 0.08, 4), 2)
    9457.62
    """
    worth = residual * (1.0 + discount) ** -life
    return (price - worth) * capital_recovery(discount, life)


def owned_per_hour(yearly: Value, maintenance: Value, power_kw: Value, pue: Value, kwh: Value, utilisation: Value = 1.0) -> Value:
    """Return dollars per *useful* hour: (yearly capital + yearly maintenance)/8760 + kW PUE price, over the utilisation.

    Idle hours are paid for at full power, as a held device's are.

    >>> round(owned_per_hour(yearly_capital(35000, 5000, 0.08, 4), 0.05 * 35000, 1.05, 1.25, 0.08), 6)
    1.384409
    """
    return ((yearly + maintenance) / HOURS_A_YEAR + power_kw * pue * kwh) / utilisation


def break_even_utilisation(yearly: Value, maintenance: Value, power_kw: Value, pue: Value, kwh: Value, rent: Value) -> Value:
    """Return the share of the hours from which on owning is cheaper than renting at `rent` an hour; infinite where it never is.

    Capital and maintenance run all year, electricity only while the device works: (K + m)/8760 = u (R - kW PUE price).

    >>> round(break_even_utilisation(yearly_capital(35000, 0, 0.08, 4), 0.05 * 35000, 1.05, 1.25, 0.08, 2.95), 6)
    0.494227
    """
    margin = rent - power_kw * pue * kwh
    return where(margin > 0, (yearly + maintenance) / HOURS_A_YEAR / maximum(margin, _LEAST), float("inf"))


def per_million(usd_per_device_hour: Value, devices: Value, tokens_per_s: Value) -> Value:
    """Return dollars per million tokens of devices that give so many tokens a second together.

    >>> round(per_million(2.95, 4, 6826.5), 6)
    0.480155
    """
    return usd_per_device_hour * devices / (tokens_per_s * _SECONDS_AN_HOUR) * 1e6


def electricity_per_million(joules_per_token: Value, pue: Value, kwh: Value) -> Value:
    """Return dollars of electricity per million tokens.

    >>> round(electricity_per_million(0.3731, 1.2, 0.08), 6)
    0.009949
    """
    return joules_per_token * 1e6 / _JOULES_A_KWH * pue * kwh
