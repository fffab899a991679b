"""A small Llama and what a run of it keeps: numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

from foretell.arch.readers import read_config
from foretell.cost.training_memory import StageMemory, training_memory
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import Run, resolve
from foretell.recipe.training import TrainingRecipe

H, F, V, HEADS = 64, 192, 1000, 4
SEQ = 256
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": 4, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "vocab_size": V, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def run_of(recipe: TrainingRecipe, par: Parallelism | None = None) -> Run:
    return resolve(recipe, par or Parallelism(), profile(recipe.framework))


def memory(recipe: TrainingRecipe, par: Parallelism | None = None, **config: Any) -> list[StageMemory]:
    """Memory of every stage of the small Llama, with changes to its configuration."""
    return training_memory(read_config(LLAMA | config), run_of(recipe, par))


def layer_bytes(recipe: TrainingRecipe, par: Parallelism | None = None, **config: Any) -> float:
    """Activations that one more layer keeps for each token, at the loss."""

    def kept(layers: int) -> float:
        terms = memory(recipe, par, **(config | {"num_hidden_layers": layers}))[0].phases["loss"].terms
        return float(terms["activations"])

    return (kept(9) - kept(8)) / (recipe.micro_batch * recipe.seq_len)
