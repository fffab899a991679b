"""The public solvers, one class each, with the signatures of the documentation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretell.core.solver.checkpoint import CheckpointModel, CheckpointResult
    from foretell.core.solver.continuous_batching import ContinuousBatchingModel, ContinuousBatchingResult
    from foretell.core.solver.distributed import DistributedModel, DistributedResult
    from foretell.core.solver.economics import EconomicsModel, EconomicsResult
    from foretell.core.solver.moe_routing import MoERoutingModel, MoERoutingResult
    from foretell.core.solver.reliability import ReliabilityModel, ReliabilityResult
    from foretell.core.solver.serving import ServingModel, ServingResult
    from foretell.core.solver.serving_capacity import ServingCapacityModel, ServingCapacityResult
    from foretell.core.solver.single_node import PerformanceProfile, SingleNodeModel
    from foretell.core.solver.sustainability import SustainabilityModel, SustainabilityResult
    from foretell.core.solver.tail_latency import TailLatencyModel, TailLatencyResult
    from foretell.core.solver.training_memory import TrainingMemoryModel, TrainingMemoryResult
    from foretell.core.solver.weight_streaming import WeightStreamingModel, WeightStreamingResult

_MODULE_OF = {
    "CheckpointModel": "checkpoint",
    "CheckpointResult": "checkpoint",
    "ContinuousBatchingModel": "continuous_batching",
    "ContinuousBatchingResult": "continuous_batching",
    "DistributedModel": "distributed",
    "DistributedResult": "distributed",
    "MoERoutingModel": "moe_routing",
    "MoERoutingResult": "moe_routing",
    "PerformanceProfile": "single_node",
    "EconomicsModel": "economics",
    "EconomicsResult": "economics",
    "ReliabilityModel": "reliability",
    "ReliabilityResult": "reliability",
    "SustainabilityModel": "sustainability",
    "SustainabilityResult": "sustainability",
    "ServingCapacityModel": "serving_capacity",
    "ServingCapacityResult": "serving_capacity",
    "ServingModel": "serving",
    "ServingResult": "serving",
    "SingleNodeModel": "single_node",
    "TailLatencyModel": "tail_latency",
    "TailLatencyResult": "tail_latency",
    "TrainingMemoryModel": "training_memory",
    "TrainingMemoryResult": "training_memory",
    "WeightStreamingModel": "weight_streaming",
    "WeightStreamingResult": "weight_streaming",
}

__all__ = [
    "CheckpointModel",
    "CheckpointResult",
    "ContinuousBatchingModel",
    "ContinuousBatchingResult",
    "DistributedModel",
    "DistributedResult",
    "EconomicsModel",
    "EconomicsResult",
    "MoERoutingModel",
    "MoERoutingResult",
    "PerformanceProfile",
    "ReliabilityModel",
    "ReliabilityResult",
    "ServingCapacityModel",
    "ServingCapacityResult",
    "ServingModel",
    "ServingResult",
    "SingleNodeModel",
    "SustainabilityModel",
    "SustainabilityResult",
    "TailLatencyModel",
    "TailLatencyResult",
    "TrainingMemoryModel",
    "TrainingMemoryResult",
    "WeightStreamingModel",
    "WeightStreamingResult",
]


def __getattr__(name: str) -> object:
    """Import the module that holds the public `name`, and keep the name here."""
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
