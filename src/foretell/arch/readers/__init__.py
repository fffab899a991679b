"""Readers of ``config.json``: one function a model type, ``Config -> Architecture``.

``read_config`` is the door.  A reader registers itself with :func:`reader` for the model types it reads; the
modules are imported on first use, by the table in :mod:`foretell.arch.readers._index`.  :func:`decoder` and
:func:`stack` are what a reader of one's own is made with, see ``docs/extend.md``.
"""

from __future__ import annotations

from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._read import read_config
from foretell.arch.readers._registry import known_model_types, reader

__all__ = ["decoder", "known_model_types", "read_config", "reader", "stack"]
