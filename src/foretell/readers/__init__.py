"""Other people's files: configurations and launch lines of runs, read as settings with the line that each came from.

May import: errors, units, dtypes, validation, catalog, arch, machine, recipe.
"""

from foretell.readers._document import Document, Found, parse_document
from foretell.readers._edits import Edit, edited, edits
from foretell.readers._reading import Change, Origin, Reading, Setting, Unmodelled

__all__ = [
    "Change",
    "Document",
    "Edit",
    "Found",
    "Origin",
    "Reading",
    "Setting",
    "Unmodelled",
    "edited",
    "edits",
    "parse_document",
]
