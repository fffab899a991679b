"""Models that the tests of the core share, as the content of a ``config.json``."""

from __future__ import annotations

from typing import Any

import foretell as ft


def llama(**changes: Any) -> ft.Workload:
    """Llama-3-8B, or with other sizes."""
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    return ft.load_model(config | changes)


def small(**changes: Any) -> ft.Workload:
    """A model of 4 layers that folds quickly."""
    sizes = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1024,
    }
    return llama(**(sizes | changes))


def llama_2_13b() -> ft.Workload:
    return llama(
        hidden_size=5120,
        num_hidden_layers=40,
        num_attention_heads=40,
        num_key_value_heads=40,
        intermediate_size=13824,
        vocab_size=32000,
    )


def llama_2_7b() -> ft.Workload:
    return llama(num_key_value_heads=32, intermediate_size=11008, vocab_size=32000)


def llama_70b() -> ft.Workload:
    return llama(hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672)


def mixtral(**changes: Any) -> ft.Workload:
    return llama(
        **(
            {
                "model_type": "mixtral",
                "vocab_size": 32000,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            }
            | changes
        )
    )


def vit() -> ft.Workload:
    return ft.load_model(
        {
            "model_type": "vit",
            "hidden_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 768,
            "image_size": 224,
            "patch_size": 16,
        }
    )
