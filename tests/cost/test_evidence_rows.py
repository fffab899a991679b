"""Rows of measured runs that need more than their fields."""

from __future__ import annotations

from foretell.evidence.memory_rows import read_row


def test_t5_rows_have_two_lengths() -> None:
    """Megatron's T5: 512 encoder and 128 decoder tokens; 221,314,560 parameters with one table for both."""
    row = {
        "id": "x", "source": {"title": "x"}, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8, "gpus_per_node": 8}, "confidence": 3,
        "model": {
            "name": "t5", "config": {
                "model_type": "megatron-t5", "hidden_size": 768, "num_hidden_layers": 12, "num_decoder_layers": 12,
                "num_attention_heads": 12, "head_dim": 64, "intermediate_size": 3072, "vocab_size": 29184,
                "max_position_embeddings": 512, "tie_word_embeddings": True,
            },
        },
        "software": {"framework": "megatron-core"}, "measured": {"metric": "allocated", "scope": "last-stage", "gib": 5.0},
        "training": {
            "micro_batch": 4, "seq_len": 512, "decoder_seq_len": 128, "optimizer": "adam",
            "dtypes": {"param": "bf16", "compute": "bf16"},
            "recompute": {"mode": "none"},
        },
        "parallel": {"dp": 8, "tp": 1, "pp": 1, "zero": 0, "sharding": "ddp"},
    }  # fmt: skip
    ready = read_row(row)
    assert (ready.run.recipe.seq_len, ready.run.recipe.encoder_seq_len) == (128, 512)
    assert ready.arch.parameters == 221_314_560
