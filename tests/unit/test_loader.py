"""From a reference to an entry: the three shelves, and files that nobody should trust."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.catalog import loader
from foretell.errors import CatalogError, ConfigError, InputError

if TYPE_CHECKING:
    from pathlib import Path

CARD = 'id = "card-1"\nname = "Card One"\naliases = ["My Card", "c_1"]\nmemory_bytes = 1\n'


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's catalog with one card, and nothing registered."""
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    monkeypatch.setattr(loader, "_registered", {})
    folder = tmp_path / "hardware"
    folder.mkdir()
    (folder / "card-1.toml").write_text(CARD)
    return folder


@pytest.mark.parametrize("ref", ["card-1", " CARD-1 ", "card 1", "Card_One", "my-card", "MYCARD", "C1"])
def test_an_entry_is_found_under_every_spelling(shelf: Path, ref: str) -> None:
    assert loader.entry("hardware", ref)["id"] == "card-1"
    assert loader.entry("hardware", shelf / "card-1.toml")["id"] == "card-1"
    assert "card-1" in loader.ids("hardware")


def test_an_unknown_name_lists_the_nearest(shelf: Path) -> None:
    (shelf / "broken.toml").write_text("id =")  # does not spoil the others
    with pytest.raises(CatalogError) as caught:
        loader.entry("hardware", "card-2")
    assert isinstance(caught.value.allowed, list)
    assert caught.value.allowed[0] == "card-1"
    assert str(caught.value).startswith("hardware='card-2' is not in the catalog; nearest: card-1")


def test_registered_comes_before_the_user_folder_before_the_shipped(shelf: Path) -> None:
    assert loader.register("hardware", {"id": "other", "aliases": ["my card"]}) == "other"
    assert loader.entry("hardware", "My Card")["id"] == "other"
    assert loader.entry("hardware", "card-1")["memory_bytes"] == 1
    path = shelf / "later.json"
    path.write_text('{"id": "card-1", "memory_bytes": 2}')
    assert loader.register("hardware", path) == "card-1"
    assert loader.entry("hardware", "card-1")["memory_bytes"] == 2


def test_a_registered_entry_is_not_changed_through_what_was_given_or_got(shelf: Path) -> None:
    given_data = {"id": "mine", "peak_flops": {"bf16": 1}}
    loader.register("hardware", given_data)
    given_data["peak_flops"]["bf16"] = 2  # type: ignore[index]
    loader.entry("hardware", "mine")["peak_flops"]["bf16"] = 3
    assert loader.entry("hardware", "mine")["peak_flops"]["bf16"] == 1
    assert shelf.is_dir()


def test_two_entries_with_one_alias_are_refused_not_guessed(shelf: Path) -> None:
    (shelf / "card-2.toml").write_text('id = "card-2"\naliases = ["my card"]\n')
    with pytest.raises(CatalogError, match="more than one entry; nearest: card-1, card-2"):
        loader.entry("hardware", "my card")


def test_the_spelling_decides_between_names_that_differ_in_dashes_alone(shelf: Path) -> None:
    (shelf / "card-2.toml").write_text('id = "card-2"\naliases = ["my-card"]\n')
    assert loader.entry("hardware", "My Card")["id"] == "card-1"
    assert loader.entry("hardware", " MY-CARD ")["id"] == "card-2"
    with pytest.raises(CatalogError, match="more than one entry; nearest: card-1, card-2"):
        loader.entry("hardware", "my_card")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'x = "é"\nn = 1.5\n'),
        ("a.json", '{"x": "é", "n": 1.5}'),
        ("a.yaml", "x: é\nn: 1.5\n"),
        ("a.YML", "x: é\nn: 1.5\n"),
    ],
)
def test_three_file_types_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert loader.read_file(path) == {"x": "é", "n": 1.5}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.toml", b"id = ", "is not valid TOML"),
        ("a.json", b'{"id": ', "is not valid JSON"),
        ("a.json", b"[" * 500_000, "nested too deeply|not valid JSON"),
        ("a.json", b'{"n": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        ("a.json", b"[1]", "must hold a mapping, not list"),
        ("a.json", b"\xff\xfe", "is not valid JSON"),
        ("a.yaml", b"a: &a [1]\nb: *a\n", "aliases"),
        ("a.yaml", b"!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("a.yaml", b"a: [", "is not valid YAML"),
        ("a.json", b" " * (loader.MAX_FILE_BYTES + 1), "is larger than"),
        ("a.txt", b"{}", "unknown file type"),
        ("a.toml", None, "cannot be read: No such file"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        loader.read_file(path)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        loader.read_file(path)


@pytest.mark.parametrize("text", ['id = "other"', "name = 'x'", 'id = "../x"', 'id = "bad"\naliases = "x"'])
def test_an_entry_must_be_named_as_its_file(shelf: Path, text: str) -> None:
    (shelf / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match="bad.toml"):
        loader.entry("hardware", "bad")


@pytest.mark.parametrize("ref", ["../hardware/card-1", "/etc/passwd", "", "  ", None, 7, "a\0b", "x" * 10**6])
def test_a_reference_never_leaves_the_catalog(shelf: Path, ref: object) -> None:
    with pytest.raises(InputError):
        loader.entry("hardware", ref)  # type: ignore[arg-type]
    assert shelf.is_dir()


@given(st.text(max_size=30))
def test_any_text_is_found_or_a_catalog_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(loader.entry("price", text), dict)


def test_an_unknown_kind_names_the_kinds() -> None:
    with pytest.raises(InputError, match="kind='gpu' is no kind of catalog entry; allowed: model, hardware"):
        loader.ids("gpu")
    assert loader.ids("models") == loader.ids("model")


@pytest.mark.parametrize("kind", loader.KINDS)
def test_the_shipped_data_are_readable_and_every_name_is_unique(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    monkeypatch.setattr(loader, "_registered", {})
    seen: dict[str, str] = {}
    for data in loader.entries(kind):
        json.dumps(data, default=str)
        names = loader._spellings if kind == "grid" else loader._keys  # us-east-1 and us-east1: see test_grids.py
        for key in names(data):
            assert seen.setdefault(key, data["id"]) == data["id"], f"{key} names two entries"
