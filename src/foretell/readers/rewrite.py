"""Options written back into the files that a run was read from, and read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretell.errors import ForetellError
from foretell.readers._edits import Edit, edited, edits

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Change, Reading

__all__ = ["Rewritten", "rewrite"]

Reread = Callable[[Mapping[str, str]], "Reading"]
"""Path -> text in its place: the reading of the files as they are then."""


@dataclass(frozen=True)
class Rewritten:
    """Files with other options: what is edited, and what they say then."""

    edits: tuple[Edit, ...]
    texts: Mapping[str, str]
    """Path -> the whole text."""
    reading: Reading


def rewrite(reading: Reading, options: Mapping[str, str | bool], reread: Reread) -> Rewritten | None:
    """Write options into the files of a reading; None where its family cannot say one of them there.

    What comes back says what the files say after the edit.  Whether that is the run that was meant is for the caller to
    compare: it asks both.
    """
    changes: list[Change] = []
    for name, value in options.items():
        made = reading.spell(name, value)
        if made is None:
            return None
        changes += made
    by_document: dict[int, tuple[Document, list[Change]]] = {}
    for change in changes:
        by_document.setdefault(id(change.document), (change.document, []))[1].append(change)
    if len({document.path for document, _ in by_document.values()}) < len(by_document):
        return None  # two parts of one command: each would be written without the other
    try:
        texts: dict[str, str] = {}
        found: list[Edit] = []
        for document, wanted in by_document.values():
            text = edited(document, wanted)
            texts[document.path] = text
            found += edits(document.path, document.text, text)
        if not found:
            return None
        return Rewritten(tuple(found), texts, reread(texts))
    except ForetellError:
        return None
