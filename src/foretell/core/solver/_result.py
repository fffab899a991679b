"""Base of all results: plain numbers inside, pint quantities when asked for, a mapping, and a ledger.

A field whose name ends in a unit (``total_memory_bytes``) is a plain number; the name without the unit
(``total_memory``) is the same as a pint.Quantity, made when it is first read.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from foretell.units import GIB, quantity

__all__ = ["Result", "Term", "gib", "ledger", "plain", "wrapped"]

_WIDE: Final = 80

UNITS: Final = {
    "_bytes_per_s": "byte/s",
    "_flops_per_byte": "FLOP/byte",
    "_flops_per_s": "FLOP/s",
    "_per_s": "1/s",
    "_bytes": "byte",
    "_flops": "FLOP",
    "_s": "s",
    "_w": "W",
    "_j": "J",
}
"""Ending of a field's name -> base unit, longest endings first."""


_FIELDS: dict[type, dict[str, str]] = {}


class Term(NamedTuple):
    """One line of a ledger."""

    name: str
    bytes: float
    formula: str
    """How the bytes follow from the run's sizes."""
    what: str
    source: str


@dataclasses.dataclass(frozen=True)
class Result:
    """A frozen record of fields; private ones (with a leading underscore) are no part of the answer."""

    title: ClassVar[str] = "result"

    # -- quantities -----------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # Quantity: any type of magnitude
        """Give the pint.Quantity (or the dict of them) of a field whose name ends in a unit."""
        if not name.startswith("_"):
            twin = self._twins().get(name)
            if twin is not None:
                made = _quantities(getattr(self, twin[0]), twin[1])
                object.__setattr__(self, name, made)
                return made
        message = f"{type(self).__name__!r} has no field {name!r}"
        raise AttributeError(message)

    @classmethod
    def _fields(cls) -> dict[str, str]:
        """Return name without unit -> field, in order."""
        found = _FIELDS.get(cls)
        if found is None:
            found = _FIELDS[cls] = {}
            for field in dataclasses.fields(cls):
                if not field.name.startswith("_"):
                    ending = next((e for e in UNITS if field.name.endswith(e)), "")
                    found[field.name.removesuffix(ending)] = field.name
        return found

    @classmethod
    def _twins(cls) -> dict[str, tuple[str, str]]:
        """Return name without unit -> (field, unit)."""
        pairs = cls._fields().items()
        return {name: (field, UNITS[field.removeprefix(name)]) for name, field in pairs if name != field}

    def __dir__(self) -> list[str]:
        """List the quantities beside the fields."""
        return sorted({*super().__dir__(), *self._fields()})

    # -- a mapping ------------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """Return the names of the fields, without units."""
        return list(self._fields())

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return len(self._fields())

    def __contains__(self, name: object) -> bool:
        names = self._fields()
        return name in names or name in names.values()

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: object = None) -> Any:
        """Return a field, or `default` where there is no such field."""
        return getattr(self, name) if name in self else default

    def values(self) -> list[Any]:
        """Return the fields' values."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:
        """Return (name, value) of each field."""
        return [(name, self[name]) for name in self]

    # -- plain ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data; keys carry their unit, and infinities, which JSON lacks, are None."""
        return {name: plain(getattr(self, name)) for name in self._fields().values()}

    def terms(self) -> list[Term]:
        """Return the ledger's terms, which sum to the answer."""
        return []

    def explain(self) -> str:
        """Return the ledger as text: each term, its bytes and share, its formula and its source."""
        return ledger(self.title, self.terms())


def ledger(title: str, terms: list[Term]) -> str:
    """Write terms as text, largest first, with the sum.

    >>> print(ledger("total", [Term("weights", 2**30, "", "parameters", "")]))
    total 1.00 GiB (2^30 bytes)
      weights          1.00 GiB 100.0 %  parameters
    """
    total = sum(term.bytes for term in terms)
    lines = [f"{title} {gib(total)} (2^30 bytes)"]
    wide = max([len(term.name) for term in terms] + [12])
    pad = " " * (wide + 5)
    for term in sorted(terms, key=lambda t: -t.bytes):
        share = 100 * term.bytes / total if total else 0.0
        head = f"  {term.name:{wide}s} {gib(term.bytes):>12s} {share:5.1f} %  "
        lines += wrapped(head + term.what, " " * len(head))
        if term.formula:
            lines += wrapped(f"{pad}= {term.formula}", f"{pad}  ")
        if term.source:
            lines += wrapped(f"{pad}from {term.source}", f"{pad}  ")
    return "\n".join(lines)


def gib(size: float) -> str:
    """Write bytes as GiB."""
    return f"{size / GIB:.2f} GiB"


def wrapped(text: str, indent: str = "    ") -> list[str]:
    """Break text into lines of 80 columns, all but the first indented."""
    if len(text) <= _WIDE:
        return [text]
    start = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.lstrip(), _WIDE, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def plain(value: object) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _quantities(value: Any, unit: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _quantities(item, unit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_quantities(item, unit) for item in value)
    return None if value is None else quantity(value, unit)
