"""What a measured training row says about its run: recipe, parallelism, machine and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.cost.software import generation
from foretell.cost.topology import Topology
from foretell.evidence.fabric import fabric_topology
from foretell.evidence.row_run import run_of
from foretell.evidence.training_defaults import completed, prediction_layers
from foretell.evidence.training_frameworks import profile_of
from foretell.evidence.training_recompute import unstated_recompute
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profile import Profile
from foretell.recipe.training import TrainingRecipe

__all__ = ["TrainingRow", "training_row"]

_GRAPHS: Final = {"full-iteration": "full", "full": "full", "layer": "layer", "mcore": "layer", "local": "layer"}
"""What a row's graph implementation captures; Transformer Engine's captures what its scope lists."""
_WHOLE_STEP: Final = ("full_iteration", "full-iteration", "full")
_DISPATCHERS: Final = {"alltoall": "alltoall", "flex": "flex", "deepep": "flex"}


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row as a run on a machine."""

    workload: Workload
    hardware: HardwareNode
    recipe: TrainingRecipe
    parallelism: Parallelism
    profile: Profile
    topology: Topology
    imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean: the capacity factor, where experts are padded to their capacity."""
    measured_s: float = 0.0
    """Seconds of a step."""
    precision: str = "bf16"
    """Format of the matrix products."""
    notes: tuple[str, ...] = ()
    """What the row left open, with what was taken."""
    stand_in: bool = False
    """The profile is that of other software, near the one that ran: no row of it set an interval."""

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.recipe.micro_batch * self.recipe.grad_accum * self.parallelism.dp

    @property
    def generation(self) -> str:
        """Generation of the accelerator whose constants it takes; its id where none was measured."""
        capability = self.hardware.compute_capability
        known = capability is not None and capability.split(".")[0] in ("7", "8", "9", "10")
        return generation(capability) if known else self.hardware.id


def training_row(row: Mapping[str, Any]) -> TrainingRow:
    """Read a row; :class:`~foretell.evidence.row_run.Skip` where it cannot be scored, InputError what is wrong with a value."""
    hardware = load_hardware(row["hardware"]["gpu"])
    workload = load_model(dict(row["model"]["config"]))
    chosen, said = profile_of(row, hardware)
    draft = completed(row, chosen)
    filled = {
        **row,
        "software": {**row["software"], "date": draft.date},
        "training": draft.training,
        "parallel": draft.parallel,
    }
    recipe, par, chosen = run_of(filled, chosen)
    moe = draft.training.get("moe") or {}
    changes: dict[str, object] = {
        "mtp_layers": recipe.mtp_layers or prediction_layers(row),
        "cuda_graphs": _graphs(draft.training.get("cuda_graph")),
        "tp_comm_overlap": draft.parallel.get("tp_comm_overlap"),
        "dispatcher": _DISPATCHERS.get(moe.get("dispatcher") or ""),
    }
    recipe = recipe.with_(**changes)
    notes = [*said, *draft.notes]
    if "recompute" not in draft.training:
        spec, why = unstated_recompute(workload.architecture, hardware, recipe, par, row["measured"].get("flop_convention"))
        recipe = recipe.with_(recompute=spec)
        notes.append(why)
    topology = fabric_topology(row["hardware"], hardware)
    return TrainingRow(
        workload,
        hardware,
        recipe,
        par,
        chosen,
        topology,
        imbalance=max(1.0, float(moe.get("capacity_factor") or 1.0)),
        measured_s=_measured(row, recipe, par),
        precision=recipe.compute_dtype or "bf16",
        notes=tuple(notes),
        stand_in=bool(said),
    )


def _measured(row: Mapping[str, Any], recipe: TrainingRecipe, par: Parallelism) -> float:
    """Seconds of a step, as measured or from tokens a second."""
    found = row["measured"]
    if found.get("step_s") is not None:
        return float(found["step_s"])
    tokens = recipe.micro_batch * recipe.grad_accum * par.dp * recipe.seq_len
    return tokens / (float(found["tokens_per_s_per_gpu"]) * float(row["hardware"]["gpus"]))


def _graphs(given: Mapping[str, Any] | None) -> str:
    if not given or given.get("impl") in (None, "none"):
        return "none"
    scope = given.get("scope") or ()
    if any(name in scope for name in _WHOLE_STEP):
        return "full"
    impl = str(given["impl"])
    if impl in _GRAPHS:
        return _GRAPHS[impl]
    return "partial" if scope and "moe" not in scope and "mlp" not in scope else "layer"
