"""`--assert 'total_bytes < 75 GiB'`: comparisons of keys of the result with quantities."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, Final

from foretell.errors import InputError, nearest
from foretell.units import parse

__all__ = ["asserted", "parsed"]

_FORM: Final = re.compile(r"\s*([A-Za-z_][\w.]{0,120})\s*(<=|>=|==|!=|<|>)\s*(\S.{0,80}?)\s*", re.DOTALL)
_GROUPED: Final = re.compile(r"\d{1,3}(,\d{3})+(?![\d,])")
_COMPARE: Final = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNITS: Final = {"_bytes": "byte", "_s": "s", "_w": "W", "_flops": "FLOP"}
"""Ending of a key -> the unit that its numbers have."""
_INSIDE: Final = ("speed", "kv", "memory")
"""Parts of the result in which a bare key is looked for too, in this order."""

Asked = tuple[str, str, str]
"""(key, comparison, quantity)."""


def parsed(texts: tuple[str, ...]) -> list[Asked]:
    """Take assertions apart; InputError says what is none.

    >>> parsed(("total_bytes < 75 GiB",))
    [('total_bytes', '<', '75 GiB')]
    """
    out = []
    for text in texts:
        found = _FORM.fullmatch(text)
        if found is None:
            hint = "As 'total_bytes < 75 GiB' or 'verdict == fits'"
            raise InputError("is no comparison", field="assert", value=text, allowed=tuple(_COMPARE), hint=hint)
        out.append((found[1], found[2], found[3]))
    return out


def asserted(asked: list[Asked], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each assertion with the value that the result has, and whether it holds; null where there is no value."""
    return [_one(key, compare, quantity, result) for key, compare, quantity in asked]


def _one(key: str, compare: str, quantity: str, result: Mapping[str, Any]) -> dict[str, Any]:
    name, value = _looked_up(key, result)
    if value is None:
        return {"assert": f"{key} {compare} {quantity}", "key": name, "value": None, "wanted": quantity, "holds": None}
    if isinstance(value, str):
        if compare not in ("==", "!="):
            raise InputError("compares text", field="assert", value=f"{key} {compare} {quantity}", allowed=("==", "!="))
        wanted: Any = quantity.strip("'\"")
    elif isinstance(value, bool):
        wanted = _flag(quantity, key)
    else:
        wanted = _number(name, quantity)
    holds = bool(_COMPARE[compare](value, wanted))
    return {"assert": f"{key} {compare} {quantity}", "key": name, "value": value, "wanted": wanted, "holds": holds}


def _looked_up(key: str, result: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a key's whole name and its value; InputError where the result has none of that name."""
    for name in (key, *(f"{part}.{key}" for part in _INSIDE)):
        value: Any = result
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                break
            value = value[part]
        else:
            if value is None or isinstance(value, str | bool | int | float):
                return name, value
            problem = "is no single value"
            raise InputError(
                problem, field="assert", value=key, allowed=[f"{name}.{k}" for k in value] if isinstance(value, dict) else None
            )
    if result.get("verdict") == "unknown":  # no answer yet, whatever the key
        return key, None
    known = _keys(result)
    hint = "Keys are those of the result under --json"
    raise InputError("is no key of the result", field="assert", value=key, allowed=nearest(key, known) or known[:12], hint=hint)


def _keys(result: Mapping[str, Any]) -> list[str]:
    """Return the names of single values."""
    out = [key for key, value in result.items() if not isinstance(value, dict | list)]
    return out + [k for part in _INSIDE if isinstance(result.get(part), Mapping) for k in _keys(result[part])]


def _flag(text: str, key: str) -> bool:
    word = text.strip().casefold()
    if word not in ("true", "false"):
        raise InputError("is true or false", field="assert", value=f"{key} ... {text}", allowed=("true", "false"))
    return word == "true"


def _number(name: str, text: str) -> float:
    """Return a quantity in the key's own unit; a bare number is taken to be in it."""
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
    plain = text.replace("_", "")
    if "," in plain:
        if _GROUPED.match(plain) is None:
            raise InputError("has a comma that divides no thousands", field="assert", value=text, allowed="as 1.5 or 1,500,000")
        plain = plain.replace(",", "")
    try:
        return float(plain)
    except ValueError:
        pass
    if unit is not None:
        return parse(plain, unit, "assert")
    if plain.endswith("%"):
        try:
            return float(plain[:-1]) / 100
        except ValueError:
            pass
    raise InputError("is no number", field="assert", value=text, allowed="a number; with a unit for keys that end in one")
