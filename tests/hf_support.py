"""What tests of the Hugging Face readers share: every key of a document ends in one place."""

from __future__ import annotations

from typing import Any


def settings_of(reading: Any) -> dict[str, Any]:
    """Option -> value."""
    return {name: setting.value for name, setting in reading.settings.items()}


def accounted(reading: Any) -> None:
    """Every value of every document is used, neutral, not modelled or unknown; none is both used and neutral, or listed twice."""
    used = {(s.origin.path, s.origin.line, s.origin.key) for s in reading.settings.values()}
    if reading.model_origin is not None:
        used.add((reading.model_origin.path, reading.model_origin.line, reading.model_origin.key))
    neutral = [(u.origin.path, u.origin.line, u.key) for u in reading.neutral if u.key]
    doubted = [(u.origin.path, u.origin.line, u.key) for u in (*reading.unmodelled, *reading.unknown) if u.origin.path]
    assert not used & {*neutral}, used & {*neutral}
    assert len({*neutral}) == len(neutral), [one for one in neutral if neutral.count(one) > 1]
    assert not {*neutral} & {*doubted}, {*neutral} & {*doubted}
    places = {*used, *neutral, *doubted}
    for document in reading.documents:
        if document.form == "environment":
            continue
        document.seen.clear()
        for found in document.untouched():
            last = found.key.rpartition(".")[2]
            if any(key.rpartition(".")[2] == last and path != document.path for path, _, key in places):
                continue  # another document is above
            keys = [found.key, *(found.key[:i] for i, c in enumerate(found.key) if c in ".[")]
            at = {key for path, _, key in places if path == document.path}
            if any(f"{found.key} in line {found.node.line}" in s.origin.why for s in reading.settings.values()):
                continue
            assert found.node.value in (None, {}, []) or any(key in at for key in keys), (document.path, found.key)
