"""Checks the fields of a dataclass against their annotations, so that a wrong type is refused where it enters.

Understands what our dataclasses use: bool, int, float, str, None, Literal, unions, tuples, frozensets, mappings
and nested dataclasses; anything else (Any) passes. A bool is no number, a NumPy scalar counts as the number that
it holds, NaN and infinity are no numbers. Imports errors only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from foretell.errors import InputError

__all__ = ["check_fields", "check_values"]

LONGEST = 1000
"""Characters of the longest text that a field takes."""
Test = Callable[[Any], bool]


def check_fields(instance: Any, names: Mapping[str, str] | None = None) -> None:  # any dataclass
    """Raise an InputError for the first field whose value is not what its annotation says.

    `names` maps a field to the name under which a user knows it.
    """
    kind: type = type(instance)
    for name, test, allowed in _tests(kind):
        value = getattr(instance, name)
        if not test(value):
            shown = (names or {}).get(name, name)
            raise InputError("cannot be used", field=shown, value=_shown(value), allowed=allowed)


def check_values(cls: type, data: Mapping[str, Any], *, prefix: str = "", where: str | None = None) -> None:
    """Do the same for the values of a mapping that are to become fields of `cls`; other keys are left alone."""
    for name, test, allowed in _tests(cls):
        if name in data and not test(data[name]):
            raise InputError("cannot be used", field=f"{prefix}{name}", value=_shown(data[name]), allowed=allowed, where=where)


def _shown(value: object) -> object:
    """Return the value, None under a name: an error without a value would not say what was given."""
    return "None" if value is None else value


@functools.cache
def _tests(cls: type) -> tuple[tuple[str, Test, str], ...]:
    """Return (field, test, what is allowed) of every field that can be tested."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a name that only type checkers import
        return ()
    return tuple((spec.name, *_test(hints[spec.name])) for spec in dataclasses.fields(cls) if hints[spec.name] is not Any)


def _test(hint: Any) -> tuple[Test, str]:  # noqa: PLR0911  # one kind of annotation after the other
    """Return whether a value has the annotated type, and the type in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return (lambda v: v is None), "none"
    if hint is bool:
        return (lambda v: isinstance(v, bool)), "true or false"
    if hint is int:
        return _is_whole, "a whole number"
    if hint is float:
        return _is_number, "a finite number"
    if hint is str:
        return (lambda v: isinstance(v, str) and len(v) <= LONGEST), "text"
    if origin is Literal:
        return (lambda v: isinstance(v, str) and v in parts), ", ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        tests = [_test(part) for part in parts]
        return (lambda v: any(test(v) for test, _ in tests)), " or ".join(text for _, text in tests)
    if origin is tuple:
        return _tuple(parts)
    if origin is frozenset:
        item, text = _test(parts[0])
        return (lambda v: isinstance(v, frozenset | set) and all(map(item, v))), f"a set: {text}"
    if origin in (dict, Mapping):
        (key, _), (item, text) = (_test(part) for part in parts)
        return (lambda v: isinstance(v, Mapping) and all(key(k) and item(i) for k, i in v.items())), f"a table of {text}"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return (lambda v: isinstance(v, hint)), f"a {hint.__name__}"
    return (lambda _v: True), "anything"


def _tuple(parts: tuple[Any, ...]) -> tuple[Test, str]:
    if len(parts) == 2 and parts[1] is Ellipsis:
        item, text = _test(parts[0])
        return (lambda v: isinstance(v, tuple) and all(map(item, v))), f"several: {text}"
    tests = [test for test, _ in map(_test, parts)]
    return (
        lambda v: isinstance(v, tuple) and len(v) == len(tests) and all(t(i) for t, i in zip(tests, v, strict=True)),
        f"{len(tests)} values: {_test(parts[0])[1]}",
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # more digits than a float holds
        return False
