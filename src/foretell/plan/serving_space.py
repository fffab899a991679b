"""The deployments that a fleet can be made of: accelerator, tensor parallelism, formats and batch flags, each as one replica."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foretell.arch.workload import Workload
from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.speed import CALIBRATED
from foretell.cost.served_weights import weight_format
from foretell.cost.serving_flow import resident_limit
from foretell.cost.topology import topology_of
from foretell.errors import CombinationError, InputError
from foretell.machine.hardware import HardwareNode
from foretell.plan.serving_advice import longest_that_fits
from foretell.recipe.serving import ServingRecipe
from foretell.validation import MAX_SEQUENCE, positive_int

__all__ = ["Candidate", "Space", "memory_problem", "request_tokens"]

AUTO: Final = "auto"
_CHUNKS: Final = (2048, 8192)
"""max_num_batched_tokens that are tried beside the engine's own."""
_SEATS: Final = (16, 64, 256)
"""max_num_seqs."""
_GIB: Final = 2.0**30

Flag = int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica of a fleet."""

    hardware: HardwareNode
    recipe: ServingRecipe
    """As it was asked for: what is None the engine decides."""
    found: Deployment | None
    problem: str = ""
    """Why it cannot serve the load."""
    error: InputError | None = None
    """Where there is no deployment."""
    missing_bytes: float | None = None
    """On each accelerator, where memory is why."""


@dataclass(frozen=True)
class Space:
    """What is tried; the base recipe has everything that does not vary."""

    workload: Workload
    hardware: Sequence[HardwareNode]
    base: ServingRecipe
    weights: Sequence[str]
    kv: Sequence[str | None]
    tp: Sequence[int] | None = None
    """None: powers of two up to what one node holds and the model's heads allow."""
    max_num_seqs: Sequence[Flag] | str = AUTO
    """AUTO: the engine's own, and others where :meth:`variants` says."""
    max_num_batched_tokens: Sequence[Flag] | str = AUTO
    gpus_per_node: int | None = None
    efficiency: float | str = CALIBRATED

    def checked(self) -> Space:
        """Return the space with every value checked; InputError for one that means nothing whatever the candidate."""
        for name in self.weights:
            weight_format(name)
        for field in ("weights", "kv", "hardware"):
            if not getattr(self, field):
                raise InputError("names nothing to choose from", field=field)
        for value in self.tp or ():
            positive_int(value, "tp", maximum=65536)
        for field in ("max_num_seqs", "max_num_batched_tokens"):
            given = getattr(self, field)
            if isinstance(given, str):
                if given != AUTO:
                    raise InputError("is no list of flags", field=field, value=given, allowed=f"{AUTO}, or whole numbers")
                continue
            for value in given:
                if value is not None:
                    positive_int(value, field, maximum=MAX_SEQUENCE)
            if not given:
                raise InputError("names nothing to choose from", field=field)
        return self

    def candidates(self, demand: Demand, length: int) -> Iterator[Candidate]:
        """Yield every replica with the flags that are listed (AUTO: the engine's own); ``length``: of the longest request."""
        seats = (self.base.max_num_seqs,) if isinstance(self.max_num_seqs, str) else self.max_num_seqs
        chunks = (
            (self.base.max_num_batched_tokens,) if isinstance(self.max_num_batched_tokens, str) else self.max_num_batched_tokens
        )
        for device in self.hardware:
            for weights, kv, tp in itertools.product(self.weights, self.kv, self._degrees(device)):
                for seqs, tokens in itertools.product(seats, chunks):
                    recipe = replace(
                        self.base, weights=weights, kv=kv, tp=tp, max_num_seqs=seqs, max_num_batched_tokens=tokens, dp=1
                    )
                    yield self.built(device, recipe, demand, length)

    def _degrees(self, device: HardwareNode) -> list[int]:
        """Tensor parallelism inside a node of the device."""
        if self.tp is not None:
            return list(self.tp)
        arch = self.workload.architecture.text or self.workload.architecture
        node = self.gpus_per_node or int(topology_of(device).gpus_per_node)
        heads = arch.heads or 1
        return [n for n in (2**i for i in range(16)) if n <= node and heads % n == 0]

    def built(self, device: HardwareNode, recipe: ServingRecipe, demand: Demand, length: int) -> Candidate:
        """Return one candidate: a deployment, or why there is none."""
        try:
            found = deployment(
                self.workload, device, recipe, gpus_per_node=self.gpus_per_node, efficiency=self.efficiency, longest=length
            )
            if recipe.max_model_len is None and found.capacity.feasible and not found.capacity.holds_longest:
                fits = longest_that_fits(found, [length])  # engines refuse to start where one sequence of the model's length
                if fits is not None:  # does not fit
                    found = deployment(
                        self.workload,
                        device,
                        replace(recipe, max_model_len=fits),
                        gpus_per_node=self.gpus_per_node,
                        efficiency=self.efficiency,
                        longest=length,
                    )
        except CombinationError as error:  # of this model and this layout: others may do
            return Candidate(device, recipe, None, str(error), error)
        except InputError as error:
            if error.field not in ("activations", "hardware"):
                raise
            return Candidate(device, recipe, None, str(error), error)
        problem, missing = memory_problem(found, demand, length)
        return Candidate(device, recipe, found, problem, missing_bytes=missing)

    def variants(self, candidate: Candidate, demand: Demand, length: int, *, smaller: bool) -> Iterator[Candidate]:
        """Yield the candidate with other batch flags, where these are for us to choose.

        ``smaller``: fewer sequences and shorter chunks, which decode faster; else longer chunks, which read faster.
        """
        found = candidate.found
        if found is None:
            return
        r, room = found.recipe, resident_limit(demand.traffic, found.limits)[0]
        own, seqs = r.max_num_batched_tokens or 0, min(float(r.max_num_seqs or 0), room)
        chunks: list[Flag] = [candidate.recipe.max_num_batched_tokens]
        if isinstance(self.max_num_batched_tokens, str) and r.chunked_prefill:
            chunks += [n for n in _CHUNKS if (n < own) == smaller and n != own]
        seats: list[Flag] = [candidate.recipe.max_num_seqs]
        if smaller and isinstance(self.max_num_seqs, str):
            seats += [n for n in _SEATS if n < seqs]
        for seat, chunk in itertools.product(seats, chunks):
            recipe = replace(candidate.recipe, max_num_seqs=seat, max_num_batched_tokens=chunk)
            if recipe != candidate.recipe:
                yield self.built(candidate.hardware, recipe, demand, length)


def request_tokens(demand: Demand, space: Space, longest: int | None = None) -> int:
    """Tokens of the longest request that is expected: three deviations above a prompt's mean, or ``longest`` of a trace.

    No more than the model takes; CombinationError where even the mean request is longer.
    """
    t, model = demand.traffic, space.workload.architecture
    limit = space.base.max_model_len or (model.text or model).max_positions or model.max_positions
    usual = math.ceil(t.inputs + t.outputs)
    if limit is not None and usual > limit:
        whose = "max_model_len" if space.base.max_model_len else "what the model's file states"
        problem = f"makes requests of {usual} tokens, beyond {whose}"
        raise CombinationError(problem, field="input_tokens", value=t.inputs, allowed=f"{limit} in all")
    most = longest or math.ceil(t.inputs * (1.0 + 3.0 * demand.input_cv) + (t.longest or t.outputs))
    return most if limit is None else min(most, limit)


def memory_problem(found: Deployment, demand: Demand, length: int) -> tuple[str, float | None]:
    """Return why a replica cannot hold the load, and the bytes that are missing on each accelerator; nothing where it can."""
    capacity = found.capacity
    if not capacity.feasible:
        short = capacity.shortfall_bytes
        return f"the weights leave no room: {short / _GIB:.2f} GiB are missing on each accelerator", short
    short = float(capacity.sequence_bytes(length)) - capacity.pool_bytes
    if short > 0 or resident_limit(demand.traffic, found.limits)[0] < 1.0:
        short = max(short, 0.0)
        return f"one request of {length} tokens needs {short / _GIB:.2f} GiB more for keys and values on each accelerator", short
    return "", None
