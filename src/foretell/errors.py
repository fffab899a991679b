"""Every error that foretell raises on purpose.

    ForetellError
    ├── InputError            something given cannot be used              exit code 2
    │   ├── CatalogError      a name that the catalog does not hold
    │   ├── ConfigError       a file (config.json, TOML ...) that cannot be read as what it should be
    │   ├── CombinationError  values fine one by one, that a framework cannot run together
    │   └── ExtraError        the question needs an optional dependency that is not installed
    └── InfeasibleError       the answer is "does not fit", raised on request only   exit code 1
        (alias OOMError)

`str(error)` is one message that stands alone; `error.to_dict()` is the object that `--json` prints to stderr.
This module imports nothing of foretell.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "CatalogError",
    "CombinationError",
    "ConfigError",
    "ExtraError",
    "ForetellError",
    "InfeasibleError",
    "InputError",
    "OOMError",
]

_SHOWN_CHARACTERS = 80  # a value is repeated in the message; a 200 MB one only by its ends
_SHOWN_NAMES = 8
_EXACT_IN_JSON = 2**53  # larger integers are not read back exactly by every JSON reader

_SHOWN_PLACE = 240  # of a path, which is needed whole to be found

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _SHOWN_CHARACTERS


class ForetellError(Exception):
    """Root of the tree: catch this to catch everything that foretell raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 2

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data with the seven keys."""
        return {
            "kind": self.kind,
            "field": None,
            "value": None,
            "allowed": None,
            "where": None,
            "hint": None,
            "message": str(self),
        }


class InputError(ForetellError, ValueError):
    """Something given cannot be used: which field, what it was, what is allowed, and where it stood.

    >>> print(InputError("must divide 32 heads", field="tp", value=3, allowed=[1, 2, 4], where="a.yaml:7"))
    a.yaml:7: tp=3 must divide 32 heads; allowed: 1, 2, 4
    """

    kind = "input"
    _allowed_are: ClassVar[str] = "allowed"

    def __init__(
        self,
        problem: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: Sequence[object] | str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Keep the parts: `problem` continues the words "field=value", as in "must be positive"."""
        super().__init__(problem)
        self.problem = problem
        self.field = field
        self.value = value
        self.allowed = allowed
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return one line: where, field=value, problem, allowed, hint."""
        subject = ""
        if self.field is not None:
            subject = _ends(self.field) if self.value is None else f"{_ends(self.field)}={_repr.repr(self.value)}"
        text = " ".join(part for part in (subject, self.problem) if part)
        if self.where:
            text = f"{_ends(self.where)}: {text}"
        if self.allowed:
            text += f"; {self._allowed_are}: {_join(self.allowed)}"
        return printable(f"{text}. {self.hint}" if self.hint else text)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data with the seven keys."""
        allowed = self.allowed
        if allowed is not None and not isinstance(allowed, str):
            allowed = [_plain(item) for item in allowed]
        return super().to_dict() | {
            "field": self.field,
            "value": _plain(self.value),
            "allowed": allowed,
            "where": self.where,
            "hint": self.hint,
        }


class CatalogError(InputError):
    """A name that the catalog does not hold; `allowed` lists the nearest names."""

    kind = "catalog"
    _allowed_are = "nearest"

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str], *, hint: str | None = None) -> Self:
        """Make the error for an unknown `name`, with the nearest of the `known` ones.

        >>> print(CatalogError.unknown("hardware", "h10", ["h100", "a100", "t4"]))
        hardware='h10' is not in the catalog; nearest: h100, a100
        """
        return cls(
            "is not in the catalog",
            field=what,
            value=name,
            allowed=nearest(name, known),
            hint=hint,
        )


class ConfigError(InputError):
    """A file or mapping that cannot be read as what it should be."""

    kind = "config"


class CombinationError(InputError):
    """Values that are fine one by one but that the framework, schedule or model cannot run together."""

    kind = "combination"


class ExtraError(InputError):
    """An optional dependency is needed and not installed; `hint` holds the command that installs it."""

    kind = "extra"

    @classmethod
    def missing(cls, extra: str, what: str) -> Self:
        """Make the error for something (`what`) that needs the optional dependencies of `extra`.

        >>> print(ExtraError.missing("plot", "--plot"))
        --plot needs the optional dependencies 'plot'. Install them with: pip install 'foretell[plot]'
        """
        return cls(
            f"{what} needs the optional dependencies {extra!r}",
            hint=f"Install them with: pip install 'foretell[{extra}]'",
        )


class InfeasibleError(ForetellError):
    """The job does not fit; raised only where `raise_errors=True` asked for it. Sizes in bytes."""

    kind = "infeasible"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        required_bytes: float | None = None,
        available_bytes: float | None = None,
    ) -> None:
        """Keep what is needed and what there is, in bytes."""
        super().__init__(message)
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the seven keys; value is the required bytes, allowed the available ones."""
        return super().to_dict() | {"value": self.required_bytes, "allowed": self.available_bytes}


OOMError = InfeasibleError


def printable(text: str) -> str:
    r"""Return text that can be shown on one line of any terminal: what would steer it is written as an escape.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _ends(place: str) -> str:
    """Return a place, abridged in its middle where it is longer than any that is meant."""
    half = _SHOWN_PLACE // 2
    return place if len(place) <= _SHOWN_PLACE else f"{place[:half]}...{place[-half:]}"


def nearest(name: str, known: Iterable[str], *, most: int = _SHOWN_NAMES) -> list[str]:
    """Return the names of `known` that look most like `name`, best first; nothing when nothing is near."""
    by_key = {candidate.casefold(): candidate for candidate in known}
    key = name[:_SHOWN_CHARACTERS].casefold()
    close = difflib.get_close_matches(key, by_key, n=most, cutoff=0.5)
    containing = sorted(c for c in by_key if key and key in c and c not in close)
    return [by_key[c] for c in (close + containing)[:most]]


def _join(allowed: Sequence[object] | str) -> str:
    """Write the allowed values as text."""
    return allowed if isinstance(allowed, str) else ", ".join(str(v) for v in allowed)


def _plain(value: object) -> bool | int | float | str | None:
    """Return the value as JSON can hold it: what is not a short scalar becomes its abridged repr."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _EXACT_IN_JSON:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= _SHOWN_CHARACTERS:
        return value
    return _repr.repr(value)
