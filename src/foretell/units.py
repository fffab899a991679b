"""Quantities at the door: text, plain numbers and pint quantities become floats in SI base units.

Inside foretell a size is bytes, a time seconds, a rate bytes/s or FLOP/s, power watts, energy joules.
Prefixes are strict: GB = 10^9 bytes, GiB = 2^30 bytes (IEC 80000-13), and a bit is not a byte.
pint is imported only by `quantity`, `registry` and `Quantity`. Imports errors only.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import InputError

if TYPE_CHECKING:
    import pint
    from pint import Quantity

__all__ = ["BASE_UNITS", "GB", "GIB", "Quantity", "fmt_bytes", "fmt_gb", "fmt_s", "parse", "quantity", "registry"]

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
"""Bytes in one GiB (IEC 80000-13), what `nvidia-smi` and PyTorch call "GB" or "GiB"."""
GB: Final = 10**9
"""Bytes in one GB (SI)."""

_DECIMAL = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2**40, "Pi": 2**50}


def _unit_table() -> dict[str, tuple[str, float]]:
    """Return unit text -> (base unit, factor)."""
    table: dict[str, tuple[str, float]] = {}
    for prefix, factor in (*_DECIMAL.items(), ("K", 1e3), *_BINARY.items()):
        for suffix, size in (("B", 1.0), ("byte", 1.0), ("bytes", 1.0), ("bit", 1 / 8), ("b", 1 / 8)):
            table[prefix + suffix] = ("byte", factor * size)
    for prefix, factor in _DECIMAL.items():
        for name in ("FLOP", "FLOPs", "OP", "OPs"):
            table[prefix + name] = ("FLOP", factor)
        for name in ("FLOPS", "OPS"):
            table[prefix + name] = ("FLOP/s", factor)
        table[prefix + "W"] = ("W", factor)
        table[prefix + "J"] = ("J", factor)
        table[prefix + "Wh"] = ("J", factor * 3600)
    table["mW"], table["mJ"] = ("W", 1e-3), ("J", 1e-3)
    times = {
        "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3,
        "s": 1, "sec": 1, "second": 1, "seconds": 1,
        "min": 60, "minute": 60, "minutes": 60,
        "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600,
        "d": 86400, "day": 86400, "days": 86400, "week": 604800, "weeks": 604800,
    }  # fmt: skip
    return table | {name: ("s", float(seconds)) for name, seconds in times.items()}


_UNITS = _unit_table()
_FOLDED = {name.casefold(): name for name in sorted(_UNITS, key=len)}

BASE_UNITS: Final = {
    # base unit -> (what it measures, an example, the pint unit)
    "byte": ("a size", "80 GiB", "byte"),
    "s": ("a time", "2 h", "second"),
    "byte/s": ("a data rate", "100 GB/s", "byte / second"),
    "FLOP": ("an amount of arithmetic", "6e21 FLOP", "FLOP"),
    "FLOP/s": ("an arithmetic rate", "989 TFLOP/s", "FLOP / second"),
    "W": ("a power", "350 W", "watt"),
    "J": ("an energy", "2 kWh", "joule"),
    "FLOP/byte": ("an arithmetic intensity", "300", "FLOP / byte"),
    "1/s": ("a rate of events", "20", "1 / second"),
}

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*", re.DOTALL)
_LONGEST_TEXT = 64  # characters; longer text is no quantity


def parse(value: object, unit: str, field: str, *, where: str | None = None) -> float:
    """Return `value` in the base `unit` (a key of BASE_UNITS), or raise an InputError that names `field`.

    A plain number is taken to be in the base unit already. Negative, NaN and infinite values are refused.

    >>> parse("80 GiB", "byte", "memory")
    85899345920.0
    >>> parse("400 Gbit/s", "byte/s", "bandwidth")
    50000000000.0
    >>> parse(3600, "s", "duration") == parse("1 h", "s", "duration")
    True
    """
    if isinstance(value, str):
        amount = _parse_text(value, unit, field, where)
    elif (pint_module := sys.modules.get("pint")) and isinstance(value, pint_module.Quantity):
        amount = _from_pint(value, unit, field, where)
    else:
        amount = _plain_number(value, unit, field, where)
    if not math.isfinite(amount) or amount < 0:
        raise _refusal("must be finite and not negative", value, unit, field, where)
    return amount


def quantity(value: float, unit: str) -> pint.Quantity[Any]:
    """Return `value`, given in the base `unit` (a key of BASE_UNITS), as a pint.Quantity; imports pint.

    >>> str(quantity(2**30, "byte").to("GiB"))
    '1.0 gibibyte'
    """
    result: pint.Quantity[Any] = registry().Quantity(value, BASE_UNITS[unit][2])
    return result


@functools.cache
def registry() -> pint.UnitRegistry[Any]:
    """Return pint's application registry, taught the FLOP; imports pint."""
    import pint  # noqa: PLC0415  # 630 ms: only for those who ask for a Quantity

    units: pint.UnitRegistry[Any] = pint.get_application_registry()  # type: ignore[no-untyped-call]
    if "FLOP" not in units:
        units.define("FLOP = [arithmetic] = _ = flop")
    return units


def fmt_bytes(size: float | None) -> str:
    """Return bytes as text in binary units (GiB = 2^30 bytes); unknown stays visible.

    >>> fmt_bytes(85899345920), fmt_bytes(1536), fmt_bytes(12), fmt_bytes(None)
    ('80.00 GiB', '1.50 KiB', '12 B', 'unknown')
    """
    if size is None:
        return "unknown"
    for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= factor:
            return f"{size / factor:,.2f} {name}"
    return f"{size:.0f} B"


def fmt_gb(size: float | None) -> str:
    """Return bytes as text in GB (1 GB = 10^9 bytes); unknown stays visible.

    >>> fmt_gb(85899345920)
    '85.90 GB'
    """
    return "unknown" if size is None else f"{size / GB:,.2f} GB"


def fmt_s(seconds: float | None) -> str:
    """Return seconds as text with a unit that suits them; unknown stays visible.

    >>> fmt_s(0.05), fmt_s(12.3456), fmt_s(240), fmt_s(7300), fmt_s(1e6), fmt_s(1e8), fmt_s(None)
    ('50 ms', '12.3 s', '4 min', '2.03 h', '11.6 days', '1,157 days', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if not math.isfinite(seconds):
        return "for ever"
    for least, size, name in ((172800.0, 86400.0, "days"), (3600.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s")):
        if seconds >= least:
            amount = seconds / size
            return f"{amount:,.0f} {name}" if amount >= 999.5 else f"{amount:.3g} {name}"
    return f"{1e3 * seconds:.3g} ms" if seconds else "0 s"


def __getattr__(name: str) -> object:
    """Give `Quantity`, the class of what `quantity` returns; pint is not imported before it is asked for."""
    if name == "Quantity":
        return registry().Quantity
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def _parse_text(text: str, unit: str, field: str, where: str | None) -> float:
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise _refusal("is not a number with a unit", text, unit, field, where)
    try:
        amount = float(match[1].replace(",", "").replace("_", ""))
    except ValueError:
        raise _refusal("is not a number with a unit", text, unit, field, where) from None
    if match[2] is None:
        return amount
    base, factor = _resolve(match[2], text, unit, field, where)
    if base != unit:
        measures = BASE_UNITS.get(base, (f"in {base}",))[0]
        raise _refusal(f"is {measures}, not {BASE_UNITS[unit][0]}", text, unit, field, where)
    return amount * factor


def _resolve(name: str, text: str, unit: str, field: str, where: str | None) -> tuple[str, float]:
    """Return (base unit, factor) of unit text such as "GiB", "TFLOP/s" or "Gbps"."""
    if name in _UNITS:
        return _UNITS[name]
    over, slash, under = (part.strip() for part in name.partition("/"))
    if not slash and name.endswith("ps"):
        over, under = name.removesuffix("ps"), "s"
    if over in _UNITS and under in _UNITS and _UNITS[under][0] == "s":
        base, factor = _UNITS[over]
        return f"{base}/s", factor / _UNITS[under][1]
    meant = _FOLDED.get(over.casefold()) or _FOLDED.get(over.casefold() + "b")
    problem = f"has the unknown unit {name!r} (case counts: B byte, b bit, GB 1e9 bytes, GiB 2^30 bytes)"
    error = _refusal(problem, text, unit, field, where)
    error.hint = f"Did you mean {meant}{'/' + under if under else ''}?" if meant else None
    raise error


def _from_pint(value: Any, unit: str, field: str, where: str | None) -> float:  # any registry's class
    # pint's bit is dimensionless, so that 5 radian would convert to bytes: the unit's own name is asked too.
    is_size = any(word in str(value.units) for word in ("bit", "byte", "octet"))
    if is_size == ("byte" in unit):
        try:
            return float(value.to(BASE_UNITS[unit][2]).magnitude)
        except (TypeError, ValueError, AttributeError):  # pint's wrong dimension and unknown unit
            pass
    raise _refusal(f"is not {BASE_UNITS[unit][0]}", str(value), unit, field, where)


def _plain_number(value: object, unit: str, field: str, where: str | None) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise _refusal(f"is not a number with a unit but {type(value).__name__}", value, unit, field, where)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _refusal("is not a number that can be used", value, unit, field, where) from None


def _refusal(problem: str, value: object, unit: str, field: str, where: str | None) -> InputError:
    what, example, _ = BASE_UNITS[unit]
    allowed = f"{what}, as a number of {unit} or as text like {example!r}"
    return InputError(problem, field=field, value=value, allowed=allowed, where=where)
