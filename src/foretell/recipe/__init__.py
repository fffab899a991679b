"""How a run is done: parallelism, training recipe, optimizers, framework profiles.

May import: errors, units, dtypes, validation, catalog, arch, machine.
"""

from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe

__all__ = ["Adapter", "Parallelism", "Quantization", "Recompute", "TrainingRecipe"]
