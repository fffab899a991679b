"""Files that are broken, hostile or odd: one message, at once, and nothing that steers a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretell as ft
from attack_small import SMALL
from foretell.catalog.decode import MAX_YAML

Config = Callable[..., str]
TEXT = json.dumps(SMALL)
DENSE = ("--gpu", "h100", "--no-advice", "--json")
CARD = """
id = "mine"
name = "Mine"
memory_bytes = "80 GB"
memory_bandwidth_bytes_per_s = "2 TB/s"
peak_flops = { bf16 = "300 TFLOP/s" }
"""


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-16"),
        b'{"model_type":"llama\xff"}',
        (TEXT + TEXT).encode(),
        (TEXT[:-1] + ', "hidden_size": 1024}').encode(),
        TEXT.replace("512", "1e400").encode(),
        TEXT.replace("512", "NaN").encode(),
        b'{"model_type": "llama", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_config_that_is_not_one(cli: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert str(path) in cli("fit", path, *DENSE).error["message"]


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("stablelm-3b", {"partial_rotary_factor": float("inf")}),
        ("stablelm-3b", {"partial_rotary_factor": 2}),
        ("dbrx-132b", {"d_model": 1}),
        ("dbrx-132b", {"n_heads": 2**40}),
        ("sd-1.5-unet", {"layers_per_block": 99_999}),
        ("llama-3-8b", {"num_hidden_layers": 10**6}),
        ("llama-3-8b", {"vocab_size": 2**40, "hidden_size": 2**40}),
        ("llama-3-8b", {"num_attention_heads": 7}),
        ("llama-3-8b", {"num_key_value_heads": 5}),
        ("mixtral-8x7b", {"num_experts_per_tok": -1}),
        ("llava-1.5-7b", {"vision_config": []}),
    ],
)
def test_values_that_do_not_go_together(model: str, changes: dict[str, object]) -> None:
    content = {**ft.load_model(model).architecture.config, **changes}
    with pytest.raises(ft.InputError):
        ft.load_model(content)


@pytest.mark.parametrize("kind", ["loop", "pipe", "device", "folder", "nowhere", "long", "nul", "user"])
def test_a_path_that_is_no_file(cli: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    if kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    name = {"long": "/" + "a" * 5000, "nul": "/x\0y.json", "user": "~nobody-of-that-name/x.json"}.get(kind, str(path))
    assert "cannot be read" in cli("fit", name, *DENSE).error["message"]
    assert cli("fit", "llama-3-8b", "--gpu", name.replace(".json", ".toml"), "--json").error


def test_no_terminal_code_is_printed(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "new\nline\x1b[31mred\x07"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text("{")
    assert "\\x1b[31mred\\x07" in cli("fit", path, *DENSE).error["message"]
    text = cli("fit", path, "--gpu", "h100")
    assert text.err.count("\n") == 1
    assert "\x1b" not in text.err
    path.write_text(json.dumps(SMALL | {"_name_or_path": "[bold]\x1b[31m\x9b31m"}))
    shown = cli("fit", path, "--gpu", "h100", "--no-advice").out
    assert "[bold]\\x1b[31m\\x9b31m" in shown
    for given in (("\x1b[31m",), ("catalog", "show", "\x1b[31m"), ("validate", "memory", "--data", "\x1b[31m")):
        assert "\x1b" not in cli(*given).err


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"80 GB"', '"80 GX"', "memory_bytes"),
        ('"80 GB"', "0", "memory_bytes"),
        ('"80 GB"', "0.25", "memory_bytes"),
        ('"80 GB"', "1e30", "memory_bytes"),
        ('"80 GB"', "nan", "memory_bytes"),
        ('"80 GB"', "true", "memory_bytes"),
        ('"2 TB/s"', "0", "memory_bandwidth_bytes_per_s"),
        ('"2 TB/s"', '"2 TB"', "memory_bandwidth_bytes_per_s"),
        ('"300 TFLOP/s"', "-1", "peak_flops.bf16"),
        ('"Mine"', "3", "name"),
        ('id = "mine"', 'id = "mine"\ncuda_like = "yes"', "cuda_like"),
        ('id = "mine"', 'id = "mine"\ncompute_capability = [9]', "compute_capability"),
        ('id = "mine"', 'id = "mine"\ncompute_capability = "nine"', "compute_capability"),
        ('id = "mine"', 'id = "mine"\nusable_memory_range_bytes = [5, 1]', "usable_memory_range_bytes"),
        ('id = "mine"', 'id = "mine"\naliases = "m"', "aliases"),
        ('id = "mine"', 'id = "mine"\nusable_memory_bytes = 0', "usable_memory_bytes"),
        ('id = "mine"', 'id = "mine"\ncontext_bytes = "100 GB"', "context_bytes"),
        ('id = "mine"', 'id = "mine"\nmemory = 3', "memory"),
        ('id = "mine"', 'id = "mine"\nlink = 3', "link"),
        ('id = "mine"', 'id = "mine"\nlogical_devices = 2.5', "logical_devices"),
    ],
)
def test_a_card_with_an_unusable_value(cli: Any, config: Config, tmp_path: Path, old: str, new: str, field: str) -> None:
    path = tmp_path / "card.toml"
    path.write_text(CARD)
    assert cli("fit", config(), "--gpu", path, "--no-advice", "--json").document["result"]["available_bytes"] == 8e10
    path.write_text(CARD.replace(old, new))
    assert cli("fit", config(), "--gpu", path, "--json").error["field"] == field


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: [*a, *a]",
        "!!python/object/apply:os.system ['true']",
        "[" * 20_000,
        "{a: " * 5_000,
        "1: 2",
        "null: 2",
        "id: a\nid: b",
        "x: [" + "1," * MAX_YAML + "]",
        "a: 1\n---\nb: 2",
    ],
)
def test_yaml_that_is_more_than_data(cli: Any, config: Config, tmp_path: Path, text: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    assert cli("fit", config(), "--gpu", path, "--json").error["kind"] == "config"


@pytest.mark.parametrize("place", ["/nowhere/at/all", "/dev/null", "~nobody-of-that-name/x"])
def test_a_catalog_of_ones_own_that_is_not_there(cli: Any, config: Config, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("FORETELL_CATALOG", place)
    for given in (("fit", config(), "--gpu", "h100"), ("catalog", "list", "hardware")):
        assert cli(*given, "--json").error["field"] == "FORETELL_CATALOG"


def test_a_pipe_in_the_catalog_is_not_read(cli: Any, config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    os.mkfifo(tmp_path / "hardware" / "pipe.toml")
    (tmp_path / "hardware" / "zero.toml").symlink_to("/dev/zero")
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    assert cli("fit", config(), *DENSE).code in (0, 1)
    assert cli("fit", config(), "--gpu", "pipe", "--json").error["kind"] == "catalog"
    assert cli("catalog", "list", "hardware").code == 0


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("framework", {"base": "generic", "zero": "x"}),
        ("framework", {"base": "generic", "zero": [9]}),
        ("framework", {"base": "generic", "sharding": "mine"}),
        ("framework", {"base": "generic", "pipeline": "no"}),
        ("framework", {"base": "generic", "sources": 3}),
        ("framework", {"base": "generic", "default_expert_tp": 0}),
        ("framework", {"base": "generic", "style": {"compute": "x"}}),
        ("framework", {"base": "generic", "style": {"compute": -4.0}}),
        ("framework", {"base": "generic", "style": {"attention": "mine"}}),
        ("framework", {"base": "mine"}),
        ("optimizer", {"states": 1.5, "source": "x"}),
        ("optimizer", {"states": 2, "source": 3}),
        ("optimizer", {"states": 2, "source": "x", "paged": "yes"}),
    ],
)
def test_an_entry_with_an_unusable_value(cli: Any, config: Config, kind: str, entry: dict[str, object]) -> None:
    ft.register(kind, {"id": "mine", **entry})
    assert cli("fit", config(), "--gpu", "h100", f"--{kind}", "mine", "--json").error["field"]


def test_a_path_that_is_no_file_of_an_entry(cli: Any, config: Config, tmp_path: Path) -> None:
    for place in (tmp_path, "/dev/null"):
        error = cli("fit", config(), "--gpu", place, "--json").error
        assert (error["field"], error["where"]) == ("hardware", "option --gpu")
        assert ".toml" in error["allowed"]
