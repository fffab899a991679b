"""Rows that are not scored although they could be, each with a written reason that the report prints."""

from __future__ import annotations

EXCLUDED: dict[str, str] = {}
