"""Keys that a reader leaves alone are named, and so are vital ones that the class filled in."""

from __future__ import annotations

import pytest

from foretell.arch.readers import read_config
from foretell.errors import ConfigError

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 100,
}  # fmt: skip


def test_a_misspelt_width_is_named_with_what_was_used_instead() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "intermediate_size"} | {"ffn": 128}
    notes = read_config(config).notes
    assert any(note.endswith("not used: ffn") for note in notes)
    assert any("intermediate_size = 11008" in note for note in notes)


def test_a_complete_file_is_read_without_a_word() -> None:
    usual = {"rope_theta": 1e4, "max_position_embeddings": 2048, "eos_token_id": 2, "initializer_range": 0.02}
    assert read_config(LLAMA | usual | {"torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}).notes == ()


def test_an_alias_of_the_class_counts_as_given() -> None:
    config = {"model_type": "gpt2", "hidden_size": 64, "n_layer": 2, "num_attention_heads": 4, "vocab_size": 100}
    assert read_config(config).notes == ()


def test_a_number_format_that_does_not_exist_is_named() -> None:
    assert "'floaty'" in read_config(LLAMA | {"torch_dtype": "floaty"}).notes[0]
    assert read_config(LLAMA | {"torch_dtype": "torch.float16"}).notes == ()


@pytest.mark.parametrize(("key", "value"), [("head_dim", 0), ("model_type", 5)])
def test_a_value_that_means_nothing_is_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(LLAMA | {key: value})
    assert (caught.value.field, caught.value.value) == (key, value)


def test_an_activation_that_does_not_exist_is_named() -> None:
    assert "'wat'" in read_config(LLAMA | {"hidden_act": "wat"}).notes[0]
