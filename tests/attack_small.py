"""A small model that the attacks change."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1536,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
