"""From the options of `serve` to a deployment and its load; what was assumed is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from foretell.arch import load_model
from foretell.cli._efficiency import efficiency_of
from foretell.cli._serve_engine import recipe_of
from foretell.cli._serve_load import Assumed, Trace, asked_of, check_length, demand_of, read_once, usual_concurrency
from foretell.cli._values import listed, real, whole
from foretell.core.serving import Deployment, deployment
from foretell.cost.topology import GBIT
from foretell.errors import CombinationError, InputError
from foretell.machine import Fleet, HardwareNode, load_fleet, load_hardware
from foretell.plan.serving_advice import longest_that_fits

if TYPE_CHECKING:
    from foretell.arch import Workload
    from foretell.cli._serve_load import Options
    from foretell.core.serving_demand import Demand
    from foretell.recipe.serving import ServingRecipe

__all__ = ["Prefill", "ServeRequest", "serve_request"]

_GPU: Final = "h100"


@dataclass(frozen=True)
class Prefill:
    """Servers that only read prompts."""

    deployment: Deployment
    bytes_per_s: float
    """At which the keys and values of one prompt travel to where it is decoded."""


@dataclass(frozen=True)
class ServeRequest:
    """A deployment, what is asked of it, what was assumed, and notes on what was given."""

    workload: Workload
    recipe: ServingRecipe
    """As the user left it, for changes that keep the engine's own choices."""
    deployment: Deployment
    demand: Demand
    trace: Trace | None
    prefill: Prefill | None
    gpus: tuple[str, ...]
    """Accelerators that were named: more than one to choose from."""
    fleet: Fleet | None
    node: int
    """Accelerators of one node."""
    efficiency: float | str
    draft: str | None
    simulate: bool
    counted: bool
    """Whether the number of requests was given."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def steady(self) -> Demand:
        """The demand as the closed form takes it: bursts spread evenly."""
        d = self.demand
        if d.kind != "open" or not d.burst or d.rate is None:
            return d
        more = max(d.burst["peak_rate_per_s"] - d.rate, 0.0) * d.burst["duration_s"] / d.burst["period_s"]
        return replace(d, rate=d.rate + more, burst=None)


def serve_request(model: str, options: Options, trace: Trace | None = None, *, shorten: bool = True) -> ServeRequest:
    """Build what the options describe; InputError names the option that cannot be used.

    ``trace``: the file of ``options["trace"]`` where it was read before, which is not done twice: options that would have read
    something else are refused.  ``shorten``: where nobody gave the longest request and the pool does not hold the model's, take
    what fits; else the engine does not start, as vLLM's.
    """
    assumed, notes = Assumed(), list[str]()
    device, fleet, gpus = _machine(options, assumed)
    workload = load_model(model)
    arch = workload.architecture.text or workload.architecture
    if options["trace"] is None:
        trace = None
    elif trace is None:
        trace = read_once(options)
    elif trace.asked != asked_of(options):
        raise InputError("was read with other options", field="trace", value=options["trace"])
    demand = demand_of(options, trace, arch, assumed)
    recipe = recipe_of(options, arch, assumed)
    draft = _drafted(options, recipe)
    node = whole(options["gpus_per_node"], "gpus_per_node")
    efficiency = efficiency_of(options["efficiency"])
    longest = math.ceil(demand.inputs + (demand.longest or demand.outputs))
    if trace is not None:
        longest = min(trace.about.longest, arch.max_positions or trace.about.longest)

    def built(given: ServingRecipe) -> Deployment:
        return deployment(
            workload,
            device,
            given,
            fleet=fleet,
            gpus_per_node=node,
            efficiency=efficiency,
            draft=draft,
            offline=demand.kind in ("static", "offline"),
            longest=longest,
        )

    found = built(recipe)
    if trace is None:
        check_length(options, arch, longest)
    sizing = options["qps"] is not None or (options["slo"] is not None and demand.kind == "open" and options["dp"] is None)
    if shorten and recipe.max_model_len is None and not sizing and found.capacity.feasible and not found.capacity.holds_longest:
        fits = longest_that_fits(found, [longest])
        if fits is not None:
            own = found.recipe.max_model_len
            assumed.append(f"max_model_len={fits}, what fits (the model takes {own})")
            found = built(replace(recipe, max_model_len=fits))
    if demand.kind == "closed" and demand.concurrency is None:
        demand = replace(demand, concurrency=usual_concurrency(found, demand, assumed))
    notes += _remarks(options, found, demand, trace)
    prefill = _prefill(options, found, recipe, demand, fleet, efficiency, assumed)
    simulate = bool(options["simulate"]) or demand.burst is not None or (trace is not None and trace.arrivals is not None)
    return ServeRequest(
        workload=workload,
        recipe=recipe,
        deployment=found,
        demand=demand,
        trace=trace,
        prefill=prefill,
        gpus=gpus,
        fleet=fleet,
        node=node or (fleet.node.accelerators_per_node if fleet else int(found.topology.gpus_per_node)),
        efficiency=efficiency,
        draft=draft,
        simulate=simulate,
        counted=options["requests"] is not None,
        assumed=tuple(assumed),
        notes=tuple(notes),
    )


def _machine(options: Options, assumed: Assumed) -> tuple[HardwareNode, Fleet | None, tuple[str, ...]]:
    """Return the accelerator, its system where one is named, and all that were named."""
    named = listed(options["gpu"], "gpu")
    if len(set(named)) < len(named):
        raise InputError("names one twice", field="gpu", value=options["gpu"])
    fleet = None if options["system"] is None else load_fleet(options["system"])
    if fleet is not None:
        held = fleet.accelerator
        if named and [load_hardware(name).id for name in named] != [held.id]:
            raise InputError(f"is not the accelerator of {fleet.name}, which holds {held.id}", field="gpu", value=options["gpu"])
        return held, fleet, (held.id,)
    if not named:
        named = (_GPU,)
        assumed.append("H100")
    devices = [load_hardware(name) for name in named]
    return devices[0], None, named


def _drafted(options: Options, recipe: ServingRecipe) -> str | None:
    found: str | None = options["draft"]
    return found if recipe.speculation is not None and recipe.speculation.method == "draft" else None


def _prefill(
    options: Options,
    found: Deployment,
    recipe: ServingRecipe,
    demand: Demand,
    fleet: Fleet | None,
    efficiency: float | str,
    assumed: Assumed,
) -> Prefill | None:
    """Return the servers that only read prompts, with the engine and the flags of the others."""
    gpus = whole(options["prefill_gpus"], "prefill_gpus")
    if gpus is None:
        for name in ("prefill_gpu", "prefill_tp", "transfer_gbps"):
            if options[name] is not None:
                problem = "is of servers that read prompts, and there are none"
                raise InputError(problem, field=name, value=options[name], hint="Add --prefill-gpus")
        return None
    if demand.kind != "open":
        raise CombinationError("needs arrivals at a rate", field="prefill_gpus", value=gpus, hint="Add --rate")
    tp = whole(options["prefill_tp"], "prefill_tp") or recipe.tp
    each = tp * recipe.pp
    if gpus % each:
        raise CombinationError(f"is no multiple of tp x pp = {each}", field="prefill_gpus", value=gpus,
                               allowed=f"{each}, {2 * each} ...")  # fmt: skip
    rate = real(options["transfer_gbps"], "transfer_gbps", minimum=1e-3, maximum=1e6)
    if rate is None:
        rate = float(found.topology.nic_bytes_per_s) / GBIT
        assumed.append(f"{rate:g} Gbit/s for a prompt's keys and values")
    device = found.hardware if options["prefill_gpu"] is None else load_hardware(options["prefill_gpu"])
    reads = deployment(
        found.workload,
        device,
        replace(recipe, tp=tp, dp=gpus // each, dp_kind="replica", max_model_len=found.recipe.max_model_len),
        fleet=fleet if device is found.hardware else None,
        gpus_per_node=whole(options["gpus_per_node"], "gpus_per_node"),
        efficiency=efficiency,
    )
    return Prefill(reads, rate * GBIT)


def _remarks(options: Options, found: Deployment, demand: Demand, trace: Trace | None) -> list[str]:
    """Say what a reader has to know of what was given."""
    out = []
    length, limit = found.recipe.max_model_len or 1, found.steps.arch.max_positions
    if options["max_model_len"] is not None and limit and length > limit:
        out.append(f"max_model_len {length} is beyond the {limit} positions of the model's file")
    if trace is not None and trace.about.longest > length:
        out.append(
            f"the trace's longest request has {trace.about.longest} tokens, more than max_model_len ({length}): "
            "an engine refuses such requests, here they are served"
        )
    if demand.kind in ("static", "offline"):
        out.append("the engine is called from a program: no client, nothing is streamed")
    spec = found.recipe.speculation
    if spec is not None and spec.length is None and options["acceptance"] is None:
        out.append(f"acceptance 0.7 is assumed: a step makes {spec.made:.2f} tokens; measure it")
    return out
