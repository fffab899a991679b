"""A deployment as every serving question sees it: the model on its ranks, the engine and its flags, what a step takes, what fits.

What a user gives is checked here; nothing below guesses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.arch._load import load_model
from foretell.arch.architecture import Architecture
from foretell.arch.workload import Workload
from foretell.core.speed import CALIBRATED, checked_share
from foretell.cost import kernel_shares
from foretell.cost.kernels import Device
from foretell.cost.kv_capacity import KvCapacity, kv_capacity, with_draft
from foretell.cost.kv_layout import KV_BITS
from foretell.cost.served_weights import weight_format
from foretell.cost.serving_flow import Limits
from foretell.cost.serving_host import EngineTime, engine_time, family_of
from foretell.cost.serving_kernels import Formats, Layout
from foretell.cost.serving_load import Load
from foretell.cost.serving_step import Steps, step_prices
from foretell.cost.topology import Topology, topology_of
from foretell.errors import CombinationError, InputError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.engines import Resolved, resolve_serving
from foretell.recipe.serving import ServingRecipe, Speculation
from foretell.validation import MAX_SEQUENCE, choice, number, positive_int

__all__ = ["Deployment", "checked_serving", "deployment"]

_HALF: Final = ("bf16", "fp16", "fp32")
_KINDS: Final = ("replica", "attention")
_BLOCKS: Final = (1, 8, 16, 32, 64, 128, 256)
"""Block sizes that vLLM takes (vllm/config/cache.py)."""
_METHODS: Final = ("draft", "mtp", "eagle")


@dataclass(frozen=True)
class Deployment:
    """One model on one or more replicas of a group of accelerators."""

    workload: Workload
    hardware: HardwareNode
    resolved: Resolved
    steps: Steps
    capacity: KvCapacity
    topology: Topology
    family: str
    """Whose constants the engine's time has."""
    draft: Steps | None = None
    """Prices of the draft model's steps."""
    notes: tuple[str, ...] = ()

    @property
    def recipe(self) -> ServingRecipe:
        """With nothing left open."""
        return self.resolved.recipe

    @property
    def replicas(self) -> int:
        """Copies that share nothing."""
        return self.recipe.dp if self.recipe.dp_kind == "replica" else 1

    @property
    def limits(self) -> Limits:
        """What the scheduler of one replica admits."""
        r, engine = self.recipe, self.resolved.engine
        ranks = r.dp if r.dp_kind == "attention" else 1
        return Limits(
            sequences=float((r.max_num_seqs or 1) * ranks),
            tokens=float((r.max_num_batched_tokens or 1) * ranks),
            kv_tokens=float(max(self.capacity.tokens, 0) * ranks),
            mixed=engine.mixed or (engine.chunks_mixed and bool(r.chunked_prefill)),
            reserve=engine.admission == "reserve",
        )

    @property
    def width(self) -> float:
        """Tokens of a sequence that a step runs."""
        return 1.0 if self.recipe.speculation is None else self.recipe.speculation.tokens + 1.0

    @property
    def made(self) -> float:
        """Tokens of a sequence that a step makes on average."""
        return 1.0 if self.recipe.speculation is None else self.recipe.speculation.made

    def seconds(self, load: Load) -> Any:
        """Seconds of one step of a replica, those of what proposes tokens included."""
        spent = self.steps.seconds(load)
        spec = self.recipe.speculation
        if spec is None:
            return spent
        alone = Load(load.decode, load.context)
        if self.draft is None:  # a layer of the model's own width on its hidden states, and the output projection again
            return spent + spec.tokens * self.steps.layer_seconds(alone) * (load.decode > 0)
        # a draft model reads the prompts too, then makes one token after the other
        reads = Load(prefill=load.prefill, pairs=load.pairs, prompts=load.prompts)
        spent = spent + self.draft.seconds(reads) * (load.prefill > 0)
        return spent + spec.tokens * self.draft.seconds(alone) * (load.decode > 0)


def deployment(
    workload: Workload | str | os.PathLike[str] | Mapping[str, Any],
    hardware: HardwareNode | str | None = None,
    recipe: ServingRecipe | None = None,
    *,
    fleet: Fleet | str | None = None,
    topology: Topology | None = None,
    gpus_per_node: int | None = None,
    efficiency: float | str = CALIBRATED,
    draft: Workload | str | None = None,
    offline: bool = False,
    longest: int | None = None,
    engine: EngineTime | None = None,
) -> Deployment:
    """Return a deployment whose every choice is made.

    `fleet` gives the machine and its network, `hardware` alone the reference network of its generation.  `efficiency`:
    "calibrated" prices every kernel by its shape and adds the engine's own time; a share of the peak (above 0, at most 1) leaves
    the two roofs alone, with all of the bandwidth.  `draft`: the model that proposes tokens (`recipe.speculation`).  `offline`:
    the engine is called from a program.  `longest`: tokens of the load's longest sequence, for engines that reserve it.
    `engine` replaces the calibrated constants (fits).

    Raises InputError or CombinationError for what cannot be served so.
    """
    model = load_model(workload)
    arch = _served(model)
    machine = load_fleet(fleet) if fleet is not None else None
    device = machine.accelerator if machine is not None and hardware is None else load_hardware(hardware or "h100")
    wanted = checked_serving(recipe or ServingRecipe(), arch)
    resolved = resolve_serving(wanted, device, arch, offline=offline, longest=longest)
    _check_flags(wanted, resolved)
    formats, peaks, notes = _formats(resolved.recipe, device)
    share = None if isinstance(efficiency, str) and efficiency == CALIBRATED else checked_share(efficiency)
    network = topology or topology_of(device, gpus_per_node, fleet=machine)
    family, known = family_of(resolved.engine.name, resolved.engine.version)
    times = engine or engine_time(family)
    r = resolved.recipe
    layout = Layout(r.tp, r.pp, r.ep, r.dp if r.dp_kind == "attention" else 1)
    e = kernel_shares.efficiency(device.compute_capability, device.id)
    eager = r.enforce_eager or not resolved.engine.graphs
    steps = step_prices(arch, peaks, e, network, layout, formats, times, eager=eager, online=not offline, share=share)
    proposes = None
    if (draft is not None) != (r.speculation is not None and r.speculation.method == "draft"):
        problem = "goes with speculation by a draft model, which needs one"
        given = getattr(draft, "name", draft)
        raise CombinationError(problem, field="draft", value="None" if given is None else given, allowed="both or neither")
    if draft is not None:
        proposes = _draft(draft, resolved, device, network, times, share)
    if r.devices > 1:
        notes += network.notes
    if not device.cuda_like:
        notes += (f"{device.name}: memory and host are counted as {r.engine} does on GPUs, and no run of it there was measured",)
    if not known:
        notes += (f"no run of {r.engine} was measured: its own time on the host is taken as {family}'s",)
    held = kv_capacity(model.architecture, device, resolved)
    if draft is not None:
        held = with_draft(held, _draft_capacity(draft, resolved, device))
    said = (*model.notes, *arch.notes, *resolved.notes, *notes)
    return Deployment(model, device, resolved, steps, held, network, family, proposes, tuple(dict.fromkeys(said)))


def _served(model: Workload) -> Architecture:
    """The language part of a model that makes tokens one by one."""
    if not model.has_shapes:
        raise InputError("is known by its parameters only: serving needs its layers", field="model", value=model.name)
    arch = model.architecture.text or model.architecture
    if arch.family not in ("decoder", "multimodal") or arch.vocab is None or not arch.reads_tokens:
        problem = "makes no tokens one after the other, which is what is served here"
        hint = "SingleNodeModel answers for encoders and vision models"
        raise InputError(problem, field="model", value=model.name, allowed="decoder-only language models", hint=hint)
    return arch


def checked_serving(recipe: ServingRecipe, arch: Architecture) -> ServingRecipe:
    """Return the recipe with whole numbers as ints; InputError or CombinationError for what no engine runs."""
    changes: dict[str, Any] = {
        name: positive_int(getattr(recipe, name), name, maximum=65536) for name in ("tp", "pp", "ep", "dp")
    }
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
        value = getattr(recipe, name)
        if value is not None:
            changes[name] = positive_int(value, name, maximum=MAX_SEQUENCE)
    if recipe.memory_share is not None:
        changes["memory_share"] = number(recipe.memory_share, "memory_share", minimum=1e-3, maximum=1.0)
    choice(recipe.dp_kind, "dp_kind", _KINDS)
    weight_format(recipe.weights)
    if recipe.kv is not None:
        choice(recipe.kv, "kv", KV_BITS)
    if recipe.speculation is not None:
        _check_speculation(recipe.speculation)
    tp, pp, ep = changes["tp"], changes["pp"], changes["ep"]
    if arch.heads and arch.heads % tp:
        allowed = [n for n in range(1, arch.heads + 1) if arch.heads % n == 0]
        raise CombinationError("must divide the attention heads", field="tp", value=tp, allowed=allowed)
    kv = arch.kv_heads or arch.heads or 1
    if tp % kv and kv % tp:
        raise CombinationError(
            "must divide the KV heads, or be a multiple of them", field="tp", value=tp, allowed=f"{kv} KV heads"
        )
    if pp > arch.layers:
        raise CombinationError("exceeds the layers", field="pp", value=pp, allowed=f"1 to {arch.layers}")
    if ep > 1 and not arch.experts:
        raise CombinationError("needs a model with routed experts", field="ep", value=ep, allowed=[1])
    if ep > 1 and arch.experts < ep:
        raise CombinationError("exceeds the experts", field="ep", value=ep, allowed=f"1 to {arch.experts}")
    return replace(recipe, **changes)


def _check_flags(wanted: ServingRecipe, resolved: Resolved) -> None:
    """Refuse flags that the engine itself does not start with."""
    r = resolved.recipe
    if r.engine != "vllm":
        return
    tokens, longest = r.max_num_batched_tokens or 0, r.max_model_len or 0
    if wanted.max_num_batched_tokens is not None and not r.chunked_prefill and tokens < longest:
        raise CombinationError(
            "is less than a prompt of max_model_len needs in one step without chunked prefill",
            field="max_num_batched_tokens",
            value=tokens,
            allowed=f"{longest} or more",
            hint="vLLM refuses to start so; lower max_model_len or leave chunked prefill on",
        )
    if wanted.max_num_seqs and wanted.max_num_batched_tokens and wanted.max_num_seqs > wanted.max_num_batched_tokens:
        raise CombinationError(
            "exceeds max_num_batched_tokens: each sequence has a token in a step",
            field="max_num_seqs",
            value=wanted.max_num_seqs,
            allowed=f"1 to {wanted.max_num_batched_tokens}",
            hint="vLLM refuses to start so; raise max_num_batched_tokens",
        )
    if wanted.block_size is not None and wanted.block_size not in _BLOCKS:
        raise InputError("is no block size of vLLM", field="block_size", value=wanted.block_size, allowed=list(_BLOCKS))


def _check_speculation(given: Speculation) -> None:
    choice(given.method, "speculation.method", _METHODS)
    positive_int(given.tokens, "speculation.tokens", maximum=64)
    number(given.acceptance, "acceptance", maximum=1.0)
    if given.length is not None:
        number(given.length, "acceptance_length", minimum=1.0, maximum=given.tokens + 1.0)


def _formats(r: ServingRecipe, device: HardwareNode) -> tuple[Formats, Device, tuple[str, ...]]:
    """Return bytes per element, the rates that products have, and notes on what the device lacks."""
    kind = weight_format(r.weights)
    notes: tuple[str, ...] = ()
    peaks = device.peak_flops
    half = _half(device)
    if "bf16" in (r.weights, r.kv) and half != "bf16":
        notes = (f"{device.name} has no bf16 units: served in fp16 (--dtype half), which takes the same room",)
    if half not in peaks:
        raise InputError("has no known peak in 16 bits", field="hardware", value=device.name, allowed=list(peaks))
    wanted = str(r.activations)
    compute = {"nvfp4": "fp4", "mxfp4": "fp4"}.get(wanted, half if wanted in _HALF else wanted)
    if compute not in peaks:
        if kind.bits >= 16 or wanted != r.weights:
            raise InputError(f"has no known peak on {device.name}", field="activations", value=wanted, allowed=list(peaks))
        notes += (f"{device.name} has no {wanted} units: weights are unpacked and multiplied in {half}",)
        compute = half
    low = compute != half
    layer = 2.0 if kind.experts_only else kind.bits / 8
    formats = Formats(
        weight=layer,
        expert=kind.bits / 8,
        head=kind.head / 8,
        kv=KV_BITS[str(r.kv)] / 8,
        low=low and not kind.experts_only,
        unpacked=not low,
    )
    processors = float(device.sm_count or round(peaks[half] / 7e12) or 1)
    return formats, Device(peaks[half], peaks[compute], device.memory_bandwidth_bytes_per_s, processors), notes


def _draft_of(draft: Workload | str, target: Resolved, device: HardwareNode) -> tuple[Architecture, Resolved]:
    """A draft model on the target's ranks where its heads allow, in 16 bits."""
    arch, r = _served(load_model(draft)), target.recipe
    tp = r.tp if arch.heads and arch.heads % r.tp == 0 else 1
    own = ServingRecipe(engine=r.engine, version=r.version, weights=_half(device), kv=r.kv, tp=tp, block_size=r.block_size)
    return arch, resolve_serving(own, device, arch)


def _draft_capacity(draft: Workload | str, target: Resolved, device: HardwareNode) -> KvCapacity:
    arch, own = _draft_of(draft, target, device)
    return kv_capacity(arch, device, own)


def _draft(
    draft: Workload | str, target: Resolved, device: HardwareNode, network: Topology, times: EngineTime, share: float | None
) -> Steps:
    """Prices of a draft model's steps."""
    arch, own = _draft_of(draft, target, device)
    formats, peaks, _ = _formats(own.recipe, device)
    e = kernel_shares.efficiency(device.compute_capability, device.id)
    times = replace(times, step_s=0.0, sequence_s=0.0, stream_s=0.0)
    return step_prices(arch, peaks, e, network, Layout(own.recipe.tp), formats, times, share=share)


def _half(device: HardwareNode) -> str:
    """The 16-bit format that a device multiplies."""
    return "bf16" if "bf16" in device.peak_flops else "fp16"
