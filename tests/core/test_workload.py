"""Models from names, files, mappings and plain numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretell as ft
from core_models import llama, mixtral, vit
from foretell.arch import _load

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def test_a_file_its_folder_and_its_content_are_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    by_file, by_folder = ft.load_model(path), ft.load_model(str(tmp_path))
    assert by_file is by_folder is ft.load_model(str(path))
    assert ft.load_model(CONFIG) is ft.load_model(dict(CONFIG))
    assert by_file.parameters == ft.load_model(CONFIG).parameters
    assert by_file.name == tmp_path.name
    path.write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    assert ft.load_model(path).layers == 3


def test_the_shapes_have_their_usual_names() -> None:
    model = llama()
    assert isinstance(model, ft.TransformerWorkload)
    assert (model.layers, model.hidden_dim, model.heads, model.kv_heads) == (32, 4096, 32, 8)
    assert (model.head_dim, model.ffn_dim, model.vocab_size, model.context_length) == (128, 14336, 128256, 8192)
    assert model.parameters == model.active_parameters == 8_030_261_248
    assert model.text is None
    sparse = mixtral()
    assert isinstance(sparse, ft.SparseTransformerWorkload)
    assert (sparse.experts, sparse.experts_per_token) == (8, 2)
    assert sparse.active_parameters < sparse.parameters / 3
    assert vit().family == "vision"


def test_plain_numbers_make_a_model() -> None:
    made = ft.TransformerWorkload("mine", layers=32, hidden_dim=4096, heads=32, kv_heads=8, ffn_dim=14336, vocab_size=128256)
    assert made.parameters == 8_030_261_248
    assert made.notes == ()


def test_a_missing_width_follows_from_the_count() -> None:
    made = ft.TransformerWorkload("mine", parameters=8.03e9, layers=32, hidden_dim=4096, heads=32)
    assert made.parameters == 8_030_000_000
    assert made.ffn_dim is not None
    assert made.ffn_dim % 64 == 0
    assert len(made.notes) == 2
    sparse = ft.SparseTransformerWorkload(
        "moe", parameters=46.7e9, layers=32, hidden_dim=4096, heads=32, kv_heads=8, experts=8, experts_per_token=2
    )
    assert sparse.parameters == 46_700_000_000
    assert sparse.active_parameters == pytest.approx(12.9e9, rel=0.02)


def test_a_stated_count_that_the_shapes_contradict_is_said() -> None:
    made = ft.TransformerWorkload("x", 7e9, 32, 4096, 32, ffn_dim=14336, vocab_size=128256, kv_heads=8)
    assert made.parameters == 8_030_261_248
    assert "7,000,000,000 parameters are stated" in made.notes[-1]


def test_models_known_by_their_counts_say_what_they_lack() -> None:
    made = ft.CNNWorkload("ResNet-50", 25.6e6, layers=50, inference_flops=8.2e9)
    assert (made.parameters, made.layers) == (25_600_000, 50)
    assert "ResNet-50" in repr(made)
    with pytest.raises(ft.InputError, match="counts only"):
        _ = made.architecture
    with pytest.raises(ft.InputError, match="not a known detail"):
        ft.SSMWorkload("s", 1e9, depth=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama",\n "hidden_size": 4', r"config\.json:2: is not valid JSON"),
        ("[1, 2]", "must hold an object, not list"),
        ("{}", "model_type"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size='wide'"),
        ('{"model_type": "llama", "hidden_size": 1e400}', "hidden_size"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ("\x00\x01", "is not valid JSON"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "q17"}}', "not a known quantisation"),
        ('{"model_type": "llama", "quantization_config": 4}', "must be an object"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ft.ConfigError, match=message) as caught:
        ft.load_model(path)
    assert str(path) in str(caught.value)


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(200 * 2**20)
    with pytest.raises(ft.ConfigError, match="is larger than"):
        ft.load_model(path)


@pytest.mark.parametrize("ref", ["nowhere/config.json", "./nowhere", "/nowhere.json"])
def test_a_missing_file_is_said_to_be_missing(ref: str) -> None:
    with pytest.raises(ft.ConfigError, match="cannot be read"):
        ft.load_model(ref)


@pytest.mark.parametrize("ref", [None, 3, "", "  ", True])
def test_what_is_no_reference_is_refused(ref: Any) -> None:
    with pytest.raises(ft.InputError, match="must be a name"):
        ft.load_model(ref)


def test_an_unknown_name_lists_names() -> None:
    with pytest.raises(ft.CatalogError, match="not in the catalog"):
        ft.load_model("lama-3-8bb")


def test_a_quantisation_beside_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    beside = {"quantization": {"quant_algo": "FP8"}, "producer": {"name": "modelopt"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert ft.load_model(tmp_path).architecture.config["quantization_config"] == {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
    }


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "_KEPT", 3)
    for layers in range(1, 8):
        ft.load_model(CONFIG | {"num_hidden_layers": layers})
    assert len(_load._cache) <= 3
