"""The shipped models: every entry is read, has the size it must have, and answers to names of its own."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from foretell.arch.architecture import Architecture
from foretell.arch.readers import read_config
from foretell.catalog import loader

FOLDER: Final = Path(loader.__file__).parent / "data" / "models"
IDS: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
COUNTS: Final[dict[str, int]] = json.loads((Path(__file__).parent / "model_parameters.json").read_text(encoding="utf-8"))[
    "parameters"
]
"""Parameters of the module that transformers 5.24.0 (diffusers 0.42.1) builds from each entry's config."""
KEYS: Final = {
    "id", "name", "aliases", "family", "source", "published_params", "published_rounding", "notes", "config",
}  # fmt: skip
FAMILIES: Final = frozenset(
    [
        "gpt-2",
        "opt",
        "bloom",
        "gpt-neox",
        "falcon",
        "llama",
        "llama-4",
        "mistral",
        "mixtral",
        "qwen",
        "gemma",
        "phi",
        "deepseek",
        "glm",
        "gpt-oss",
        "olmo",
        "starcoder",
        "cohere",
        "nemotron",
        "jamba",
        "mamba",
        "kimi",
        "minimax",
        "mimo",
        "step",
        "seed",
        "granite",
        "hunyuan",
        "bert",
        "t5",
        "vit",
        "whisper",
        "clip",
        "resnet",
        "diffusion",
    ]
)


@cache
def shipped(name: str) -> dict[str, Any]:
    return loader.read_file(FOLDER / f"{name}.json")


@cache
def architecture(name: str) -> Architecture:
    return read_config(shipped(name)["config"], where=name, name=name)


def test_there_are_models_of_every_family() -> None:
    assert len(IDS) >= 75
    assert {shipped(name)["family"] for name in IDS} >= FAMILIES


@pytest.mark.parametrize("name", IDS)
def test_an_entry_has_the_catalog_form(name: str) -> None:
    entry = shipped(name)
    assert set(entry) <= KEYS
    assert entry["id"] == name
    assert all(isinstance(entry[key], str) and entry[key] for key in ("name", "family"))
    assert isinstance(entry["config"], dict)
    source = entry["source"]
    assert set(source) <= {"title", "url", "date", "basis", "via"}
    assert source["title"]
    assert source["url"].startswith("https://")
    assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", source["date"])
    assert source["basis"] in {"read", "secondary", "recalled"}
    assert ("via" in source) == (source["basis"] != "recalled"), "say where the shape was read"


@pytest.mark.parametrize("name", IDS)
def test_an_entry_counts_what_the_library_builds(name: str) -> None:
    assert architecture(name).parameters == COUNTS[name]


@pytest.mark.parametrize("name", IDS)
def test_an_entry_agrees_with_the_published_size(name: str) -> None:
    entry = shipped(name)
    published = entry["published_params"]
    if published is None:
        assert entry.get("notes"), "no published size: say why"
        return
    assert isinstance(published, int)
    assert isinstance(entry["published_rounding"], int)
    error = abs(architecture(name).parameters - published)
    assert error <= max(0.01 * published, entry["published_rounding"] / 2)
    assert error <= 0.025 * published or entry.get("notes"), "far from the published size: say why"


@pytest.mark.parametrize("name", IDS)
def test_an_entry_is_read_without_doubt(name: str) -> None:
    found = architecture(name)
    assert found.layers > 0
    assert found.hidden > 0
    assert not [note for note in found.notes if "unknown" in note or "not known" in note]


def test_no_two_models_answer_to_one_name() -> None:
    owners: dict[str, str] = {}
    for name in IDS:
        for key in loader._keys(shipped(name)):
            assert owners.setdefault(key, name) == name, f"{key}: {owners[key]} and {name}"


def test_aliases_do_not_repeat_themselves() -> None:
    for name in IDS:
        entry = shipped(name)
        keys = [loader._key(spelling) for spelling in (name, *entry["aliases"])]
        assert len(keys) == len(set(keys)), name


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("gpt2", "gpt-2"),
        ("Llama3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("Meta-Llama-3.1-405B", "llama-3.1-405b"),
        ("llama3_1-405b", "llama-3.1-405b"),
        ("LLaMA v3.1 70B", "llama-3.1-70b"),
        ("LLaMA-7B", "llama-7b"),
        ("llama2-70b-99.9", "llama-2-70b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Mistral 7B", "mistral-7b-v0.1"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "qwen2.5-coder-1.5b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("DeepSeek-V3-671B", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Llama 4 Scout", "llama-4-scout"),
        ("GPT3-175B", "gpt-3-175b"),
        ("bigscience/bloom-176b", "bloom-176b"),
        ("command-r+", "command-r-plus-104b"),
        ("ViT-B/16", "vit-b-16"),
        ("resnet50", "resnet-50"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("Nemotron-3-Nano-30B-A3B", "nemotron-3-nano-30b-a3b"),
    ],
)
def test_a_model_is_found_under_the_names_people_type(ref: str, name: str) -> None:
    assert loader.model_entry(ref)["id"] == name
