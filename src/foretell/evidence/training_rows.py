"""What a measured training row says about its run: recipe, parallelism, machine and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.cost.topology import Topology
from foretell.evidence.fabric import fabric_topology
from foretell.evidence.row_run import run_of
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profile import Profile
from foretell.recipe.training import TrainingRecipe

__all__ = ["TrainingRow", "training_row"]

_FRAMEWORKS = {
    "gpt-neox": "megatron-deepspeed",
    "llm-foundry": "llm-foundry",
    "megascale": "megatron-core",
    "nemo-automodel": "fsdp2",
}
"""Profile by the name in ``software.framework``, where a memory row would not be read so."""
_GRAPHS = {"full-iteration": "full", "full": "full", "layer": "layer", "mcore": "layer", "local": "layer"}
"""What a row's graph implementation captures; Transformer Engine's captures what its scope lists."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A row as a run on a machine."""

    workload: Workload
    hardware: HardwareNode
    recipe: TrainingRecipe
    parallelism: Parallelism
    profile: Profile
    topology: Topology


def training_row(row: Mapping[str, Any]) -> TrainingRow:
    """Read a row; :class:`~foretell.evidence.row_run.Skip` where it cannot be scored."""
    name = row["software"]["framework"]
    known = {**row, "software": {**row["software"], "framework": _AS.get(name, name)}}
    recipe, par, profile = run_of(_with_formats(known))
    if name in _FRAMEWORKS:
        from foretell.recipe.profiles import profile as named  # noqa: PLC0415

        profile = named(_FRAMEWORKS[name])
        recipe = recipe.with_(framework=profile.name)
    training, parallel, config = row["training"], row["parallel"], row["model"]["config"]
    if profile.name == "megatron-bridge" and "sp" not in parallel:
        par = par.with_(sp=par.tp > 1)
    if par.ep > 1 and par.etp is None:
        par = par.with_(etp=1)
    moe = training.get("moe") or {}
    changes: dict[str, object] = {
        "mtp_layers": recipe.mtp_layers or _prediction(row),
        "cuda_graphs": _graphs(training.get("cuda_graph")),
        "tp_comm_overlap": parallel.get("tp_comm_overlap"),
        "dispatcher": {"alltoall": "alltoall", "flex": "flex", "deepep": "flex"}.get(moe.get("dispatcher", "")),
    }
    recipe = recipe.with_(**changes)
    return TrainingRow(
        load_model(dict(config)),
        load_hardware(row["hardware"]["gpu"]),
        recipe,
        par,
        profile,
        fabric_topology(row["hardware"]),
    )


_AS = {"gpt-neox": "megatron-deepspeed", "llm-foundry": "fsdp1", "megascale": "megatron-core", "nemo-automodel": "fsdp2"}


def _with_formats(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with what a speed row leaves out: main formats of NeMo's recipes, and a layout that balances the ends."""
    training, parallel, model = dict(row["training"]), dict(row["parallel"]), row["model"]
    if row["software"]["framework"] in ("nemo", "megatron-bridge"):
        # NeMo / Megatron-Bridge bf16_mixed: gradients reduced in the model's format (grad_reduce_in_fp32=False)
        training["dtypes"] = {"grad": "bf16", "optim": "fp32", **training.get("dtypes", {})}
    config = model["config"]
    layers = next((config[key] for key in ("num_hidden_layers", "n_layer", "n_layers") if config.get(key)), 0)
    chunks = parallel.get("pp", 1) * (parallel.get("vpp") or 1)
    prediction = _prediction(row)
    words = "embedding" in str(parallel.get("pp_layout", ""))
    if words:
        parallel.pop("pp_layout")
    if parallel.get("pp", 1) > 1 and "pp_layout" not in parallel and (words or (layers and layers % chunks)):
        parallel["pp_layout"] = _balanced(layers, chunks, prediction)
    return {**row, "training": training, "parallel": parallel}


def _prediction(row: Mapping[str, Any]) -> int:
    """Multi-token-prediction layers: DeepSeek-V3's own recipe trains one (arXiv 2412.19437, section 2.2)."""
    given = row["model"]["config"].get("num_nextn_predict_layers")
    return int(given or 0) if row["software"]["framework"] == "megatron-bridge" else 0


def _balanced(layers: int, chunks: int, prediction: int) -> str:
    """Layers of each chunk where the embedding, the loss and every prediction layer count as one (Megatron-Core
    ``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split``)."""
    units = layers + 2 + prediction
    sizes = [units // chunks + (i < units % chunks) for i in range(chunks)]
    sizes[0] -= 1
    sizes[-1] -= 1 + prediction
    while sizes[-1] < 0:
        sizes[-1] += 1
        sizes[-2] -= 1
    return ",".join(map(str, sizes))


def _graphs(given: Mapping[str, Any] | None) -> str:
    if not given or given.get("impl") in (None, "none"):
        return "none"
    impl = str(given["impl"])
    if impl in _GRAPHS:
        return _GRAPHS[impl]
    scope = given.get("scope") or ()
    return "partial" if scope and "moe" not in scope and "mlp" not in scope else "layer"
