"""YAML, JSON and TOML with lines, bounds and edits."""

from __future__ import annotations

import contextlib
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import ConfigError
from foretell.readers import edited, edits, parse_document
from foretell.readers._files import Files, read_text
from foretell.readers._reading import Builder, Change, Sources

YAML = "a: 1\nb:\n  c: 2e-5 # x\n  d: [1, 2]\nlist:\n  - path: x\n    n: null\nempty:\nyes: no\n"


def test_values_have_their_lines() -> None:
    made = parse_document(YAML, "x.yaml")
    assert {f.key: (f.node.plain(), f.where) for f in made.untouched()} == {
        "a": (1, "x.yaml:1"),
        "b.c": (2e-5, "x.yaml:3"),
        "b.d": ([1, 2], "x.yaml:4"),
        "list[0].path": ("x", "x.yaml:6"),
        "list[0].n": (None, "x.yaml:7"),
        "empty": (None, "x.yaml:8"),
        "yes": (False, "x.yaml:9"),
    }


def test_what_was_looked_at_is_no_longer_untouched() -> None:
    made = parse_document(YAML, "x.yaml")
    assert made.get("missing", "b.c") is not None
    assert made.get("empty") is None  # null is absent, and looked at
    assert {f.key for f in made.untouched()} == {"a", "b.d", "list[0].path", "list[0].n", "yes"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5), ("1_000", 1000), ("0x10", 16), ("true", True), ("off", False), ("~", None), ("1.5", 1.5), (".5", 0.5),
        ("1e400", "1e400"), ("1.2.3", "1.2.3"), ("'8'", "8"), ("-3", -3), ("12:30", "12:30"), ("${x}", "${x}"), ("007", 7),
    ],
)  # fmt: skip
def test_scalars(text: str, value: object) -> None:
    assert parse_document(f"a: {text}\n", "x.yaml").root.plain() == {"a": value}


def test_anchors_and_merges() -> None:
    made = parse_document("base: &b {x: 1, y: 2}\nrun:\n  <<: *b\n  y: 3\n", "x.yaml")
    assert made.root.plain()["run"] == {"y": 3, "x": 1}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.yaml", "a: [1", "x.yaml:"),
        ("x.yaml", "a: !!python/object/apply:os.system ['touch pwned']\n", "has the tag"),
        ("x.yaml", "a: !env HOME\n", "has the tag"),
        ("x.yaml", "a: *b\n", "x.yaml:1"),
        ("x.yaml", "---\na: 1\n---\nb: 2\n", "more than one document"),
        ("x.yaml", "", "is empty"),
        ("x.yaml", "? [a]\n: 1\n", "key that is no text"),
        ("x.yaml", "[" * 5000 + "]" * 5000, "nest"),
        ("x.yaml", "a:\n" + "".join(f"{' ' * i}- \n" for i in range(1, 200)), "x.yaml"),
        ("x.json", "{", "x.json:1: is not valid JSON"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("x.json", '{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("x.toml", "a = \n", "x.toml:1: is not valid TOML"),
        ("x.toml", "a" + ".a" * 3000 + " = 1", "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_error_with_its_place(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, name).root.plain()
    assert said in str(caught.value)


def test_a_bomb_of_aliases_stays_small() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    start = time.perf_counter()
    made = parse_document("\n".join(lines), "x.yaml")
    assert sum(1 for _ in made.untouched()) < 100
    assert time.perf_counter() - start < 1.0


def quickly(action: Any, seconds: float = 1.0) -> None:
    """Do something that may fail with our own error, and must not take long."""
    start = time.perf_counter()
    with contextlib.suppress(ConfigError):
        action()
    assert time.perf_counter() - start < seconds


def test_bombs_stay_small_wherever_they_are_looked_at() -> None:
    levels = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    levels += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    made = parse_document(levels + "model: *a8\n", "x.yaml")
    found = made.get("model")
    assert found is not None
    quickly(found.text)
    quickly(lambda: found.value)
    quickly(lambda: found.said)
    keys = "m: &m {" + ", ".join(f"k{i}: 1" for i in range(2000)) + "}\nlist:\n" + "  - {<<: *m}\n" * 2000
    quickly(lambda: parse_document(keys, "x.yaml"))
    quickly(lambda: parse_document('a = """\n[' + " " * 20_000 + '\n"""\n', "x.toml"))


def test_edits_of_long_files_are_found_quickly() -> None:
    lines = ["#"] * 20_000
    before = "\n".join([*lines, "a: 1", *lines])
    quickly(lambda: edits("x.yaml", before, before.replace("a: 1", "a: 2\nb: 3")))
    (one,) = edits("x.yaml", before, before.replace("a: 1", "a: 2\nb: 3"))
    assert (one.line, one.old, one.new) == (20_001, ("a: 1",), ("a: 2", "b: 3"))


def test_json_that_yaml_would_not_take() -> None:
    made = parse_document('{"a": "\\ud83d\\ude00", "b": 2}', "x.json")
    assert made.root.plain() == {"a": "\U0001f600  ", "b": 2}


def test_toml_inside_of_strings_is_text() -> None:
    made = parse_document("a = '''\nseq_len = 9\n'''\n[training]\nseq_len = 8\n", "x.toml")
    found = made.get("training.seq_len")
    assert found is not None
    assert (found.whole(), found.where) == (8, "x.toml:5")


def test_a_megabyte_takes_less_than_a_second() -> None:
    text = "".join(f"key_{i}: value of number {i}\n" for i in range(36_000))
    start = time.perf_counter()
    made = parse_document(text, "x.yaml")
    assert sum(1 for _ in made.untouched()) == 36_000
    assert time.perf_counter() - start < 2.0  # 0.5 s alone


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml"])
def test_edits_read_back(name: str) -> None:
    text = {
        "a.yaml": YAML,
        "a.json": '{"a": 1, "b": {"c": 5e8,\n\t"d": [1, 2]}, "empty": null}',
        "a.toml": "a = 1\n[b]\nc = 2e-5 # x\nd = [1, 2]\n[other]\nx = 'y'\n",
    }[name]
    made = parse_document(text, name)
    wanted: dict[str, Any] = {"a": 7, "b.c": "text # no comment", "b.new": True, "top": "2", "x.y": 1.5, "b.e": ("q", "v")}
    after = parse_document(edited(made, [Change(made, key, value) for key, value in wanted.items()]), name)
    for key, value in wanted.items():
        node = after.at(key)
        assert node is not None, key
        assert node.plain() == (list(value) if isinstance(value, tuple) else value)
    untouched = after.at("b.d")
    assert untouched is not None
    assert untouched.plain() == [1, 2]
    loaders: dict[str, Any] = {"a.yaml": yaml.safe_load, "a.json": json.loads, "a.toml": tomllib.loads}
    assert loaders[name](after.text)


def test_a_null_takes_its_line_out() -> None:
    made = parse_document("a: 1\nb: 2 # gone\nc: 3\n", "x.yaml")
    assert edited(made, [Change(made, "b", None)]) == "a: 1\nc: 3\n"


def test_an_edit_names_the_lines() -> None:
    made = parse_document(YAML, "x.yaml")
    (one,) = edits("x.yaml", YAML, edited(made, [Change(made, "b.c", 3)]))
    assert (one.line, one.old, one.new) == (3, ("  c: 2e-5 # x",), ("  c: 3 # x",))


_VALUES = st.recursive(
    st.one_of(
        st.integers(-9, 9),
        st.booleans(),
        st.text("ab: #'\"-{}[]\n", max_size=6),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), _VALUES, min_size=1, max_size=4),
    st.sampled_from(["x.yaml", "x.json"]),
)
def test_documents_read_as_their_loaders_read_them(data: dict[str, Any], name: str) -> None:
    text = json.dumps(data, indent=1) if name == "x.json" else yaml.safe_dump(data, allow_unicode=True)
    assert parse_document(text, name).root.plain() == data


@settings(max_examples=300, deadline=1000)
@given(st.text(alphabet="ab:[]{}&*!-?'\"#\n >|%@`,0.e", max_size=80), st.sampled_from(["x.yaml", "x.json", "x.toml"]))
def test_any_text_is_a_document_or_an_error(text: str, name: str) -> None:
    try:
        made = parse_document(text, name)
        made.root.plain()
        [*made.untouched()]
    except ConfigError:
        return


def test_files_are_bounded_and_stay_inside_their_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.yaml").write_text("a: 1")
    (outside / "secret.yaml").write_text("s: 1")
    (inside / "link.yaml").symlink_to(outside / "secret.yaml")
    (inside / "big.yaml").write_text("a" * (3 * 2**20))
    (inside / "binary.yaml").write_bytes(b"a: \0")
    (inside / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    monkeypatch.chdir(inside)
    files = Files.around((str(inside / "a.yaml"),))
    assert files.find("a.yaml", str(inside / "a.yaml"), "w") is not None
    assert files.find("missing.yaml", "", "w") is None
    for ref in ("link.yaml", "../out/secret.yaml", str(outside / "secret.yaml")):
        with pytest.raises(ConfigError, match="outside the folders"):
            files.find(ref, str(inside / "a.yaml"), "w")
    assert Files.around((str(inside / "a.yaml"),), (str(outside),)).find("link.yaml", "", "w") is not None
    for name, said in (
        ("big.yaml", "larger than"),
        ("binary.yaml", "binary"),
        ("latin.yaml", "latin.yaml:2"),
        (".", "directory"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_text(inside / name)
    for ref in ("", "a\0b", "x" * 5000):
        with pytest.raises(ConfigError):
            files.find(ref, "", "w")


def test_an_unknown_key_is_named_with_the_known_one_that_was_probably_meant() -> None:
    document = parse_document("log: {every_stp: 1, other: 2}\nwarp: 3\nepohcs: 4\nepochs: 5\n", "run.yaml")
    b = Builder("mine", Sources(document, Files(())))
    epochs = document.get("epochs")
    assert epochs is not None
    b.set("steps", 5, epochs)
    b.rest(document, frozenset(("log.every_step", "every_stp", "warp_drive_of_the_ship")))
    nowhere = "is in no table of mine"
    assert {row.key: row.why for row in b.unknown} == {
        "log.every_stp": f"{nowhere}: did you mean log.every_step?",
        "log.other": f"{nowhere}: what it does is not known",
        "warp": f"{nowhere}: what it does is not known",
        "epohcs": f"{nowhere}: did you mean epochs?",
    }


def test_many_unknown_keys_are_listed_in_no_time() -> None:
    text = "".join(f"key_{i}: 1\n" for i in range(5000))
    b = Builder("mine", Sources(document := parse_document(text, "run.yaml"), Files(())))
    start = time.perf_counter()
    b.rest(document, frozenset(f"name_{i}" for i in range(1000)), known=[f"kez_{i}" for i in range(1000)])
    assert time.perf_counter() - start < 2.0
    assert len(b.unknown) == 5000
