"""Devices, mesh and batch of a MaxText run.

Sources: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/types.py`` set_derived_and_validate_values,
``configs/base.yml``, ``utils/accelerator_to_spec_map.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Final

from foretell.readers.maxtext._layers import DEFAULT, Layers

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder

__all__ = ["Degrees", "batch", "devices", "length", "parallel"]

_AXES: Final = {
    "tp": ("tensor", "tensor_sequence", "tensor_transpose", "autoregressive"),
    "cp": ("context", "context_usp_ulysses", "sequence", "context_autoregressive"),
    "pp": ("pipeline",),
    "ep": ("expert",),
    "fsdp": ("fsdp", "fsdp_transpose"),
    "data": ("data", "diloco"),
}
"""Axes of the mesh, by what they are here."""
_TOPOLOGY: Final = re.compile(r"(v[2-7][ep]?|tpu7x)-(\d{1,6})")
_CORES: Final = ("v2", "v3", "v4", "v5p")
"""Generations whose topologies are named by cores, two a chip (``accelerator_to_spec_map.py``)."""
_HALVES: Final = ("v2", "v3", "tpu7x")
"""Generations whose cores are devices of their own."""
_HARDWARE: Final = ("tpu", "gpu", "gpu_multiprocess", "cpu")


@dataclass(frozen=True)
class Degrees:
    """Degrees of the mesh; None for what one axis of -1 leaves open."""

    tp: int
    cp: int
    pp: int
    ep: int
    fsdp: int | None
    data: int | None

    @property
    def replica(self) -> int:
        """Devices that work on one sample."""
        return self.tp * self.cp * self.pp


def devices(b: Builder, layers: Layers) -> None:
    """Take the devices: of a topology that is compiled for, or of the mesh; their kind is the user's to say."""
    kind, topology = layers.get("hardware"), layers.get("compile_topology")
    if kind is not None:
        word = kind.choice({name: name for name in _HARDWARE})
        if word == "cpu":
            raise kind.error("has no accelerator to ask about", allowed=_HARDWARE[:3])
        b.harmless(kind)
    slices = layers.get("compile_topology_num_slices", "num_slices")
    if slices is not None:
        b.harmless(slices)
    if topology is None or not topology.text():
        return
    found = _TOPOLOGY.fullmatch(topology.text().strip().casefold())
    if found is None:
        b.harmless(topology)
        return
    name, count = found[1], int(found[2])
    chips = count // 2 if name in _CORES else count
    every = chips * max(slices.whole() if slices is not None and slices.node.value != -1 else 1, 1)
    if chips < 1 or name in _HALVES:
        b.harmless(topology)
        return
    b.set("gpus", every, topology, f"{chips} chips a slice")
    b.set("gpu", f"tpu-{name}", topology)


def _axis(layers: Layers, names: tuple[str, ...]) -> tuple[int | None, Found | None]:
    """Return the product of axes inside and between slices, None with a -1 among them; and the first that is not 1."""
    values: list[int] = []
    place: Found | None = None
    for name in names:
        for net in ("ici", "dcn"):
            found = layers.get(f"{net}_{name}_parallelism")
            default = -1 if (net, name) in (("ici", "fsdp"), ("dcn", "data")) else 1
            values.append(default if found is None else -1 if found.node.value == -1 else found.whole())
            if found is not None and values[-1] not in (1, -1):
                place = place or found
    known = [value for value in values if value != -1]
    return (None if len(known) < len(values) else prod(known)), place


def parallel(b: Builder, layers: Layers) -> Degrees:
    """Take the mesh: one axis inside a slice and one between slices may be -1, for what is left."""
    found = {name: _axis(layers, axes) for name, axes in _AXES.items()}
    for name in ("tp", "cp", "pp", "ep"):
        degree, place = found[name]
        if degree is None:
            b.needs("gpus" if name != "tp" else "tp", f"an axis of the mesh for {name} is -1, which the devices decide")
        elif degree > 1 and place is not None:
            b.set(name, degree, place)
    tp, cp, pp, ep = (found[name][0] or 1 for name in ("tp", "cp", "pp", "ep"))
    if tp > 1 and (place := found["tp"][1]) is not None:
        b.set("sp", True, place, "activations are sharded between the products as well")
    if pp > 1 and (place := found["pp"][1]) is not None:
        b.set("schedule", "gpipe", place)
        b.doubt(place, "both", "MaxText's pipeline keeps and repeats stages of its own: counted as GPipe's")
    data, fsdp = _replicas(b, layers, found["data"][0]), found["fsdp"][0]
    place = found["fsdp"][1] or layers.get("ici_fsdp_parallelism")
    if fsdp == 1 and ep == 1 and place is not None:
        b.set("zero", 0, place)
    elif place is not None:
        b.set("zero", 3, place, "parameters, gradients and states are sharded over fsdp and expert")
    b.default("zero", 3, f"{DEFAULT}: ici_fsdp_parallelism is what is left")
    if data is not None and data > 1 and b.given("zero") == 3 and (place := found["data"][1]) is not None:
        b.set("hsdp_replicas", data, place)
    if fsdp is not None and data is not None and (place := place or found["data"][1]) is not None:
        b.default("gpus", None, "")
        if "gpus" not in b.settings:
            b.set("gpus", tp * cp * pp * ep * fsdp * data, place, "the product of all axes of the mesh")
    b.default("framework", "generic", "JAX has no profile of its own: the generic accounting")
    for name in ("num_layers_per_pipeline_stage", "num_pipeline_repeats", "pipeline_parallel_layers"):
        if (extra := layers.get(name)) is not None:
            b.harmless(extra)
    return Degrees(tp, cp, pp, ep, fsdp, data)


def _replicas(b: Builder, layers: Layers, product: int | None) -> int | None:
    """Return the replicas over data; -1 between slices is their number, which is one but for TPUs of several slices."""
    if product is not None:
        return product
    inside, slices = layers.get("ici_data_parallelism"), layers.get("compile_topology_num_slices", "num_slices")
    if inside is not None and inside.node.value == -1:
        return None
    count = slices.whole() if slices is not None and slices.node.value != -1 else 1
    kind = layers.get("hardware")
    if (slices is None or slices.node.value == -1) and (kind is None or kind.text().casefold() == "tpu"):
        b.note("dcn_data_parallelism is -1, the number of slices: one is counted")
    return count * (1 if inside is None else inside.whole())


def batch(b: Builder, layers: Layers, degrees: Degrees) -> None:
    """Take the batch: that of a device times those that work on one sample, which a pipeline divides again."""
    found, passes = layers.get("per_device_batch_size"), layers.get("gradient_accumulation_steps")
    each = Fraction(12.0 if found is None else found.real(minimum=0, maximum=10**6)).limit_denominator(4096)
    accumulated = 1 if passes is None else passes.whole()
    micro, count = each * degrees.replica, 1
    if degrees.pp > 1:
        given = layers.get("num_pipeline_microbatches")
        delayed = layers.get("pipeline_delay_activation_forwarding")
        stages = degrees.pp * (2 if delayed is not None and delayed.flag() else 1)
        count = stages if given is None or given.node.value == -1 else given.whole()
        micro /= count
    else:
        for key in ("num_pipeline_microbatches", "pipeline_delay_activation_forwarding"):
            if (unused := layers.get(key)) is not None:
                b.harmless(unused)
    why = f"{each} a device, {degrees.replica} devices a sample" if degrees.replica > 1 else ""
    if micro.denominator != 1 or micro < 1:
        where = DEFAULT if found is None else found.where
        b.needs("micro_batch", f"{where}: {each} samples a device are {float(micro):g} of a replica, no whole number")
        if found is not None:
            b.harmless(found)
    elif found is not None:
        b.set("micro_batch", int(micro), found, why)
    b.default("micro_batch", int(micro) if micro >= 1 else None, DEFAULT)
    if passes is not None:
        b.set("grad_accum", accumulated * count, passes, f"in {count} micro-batches of the pipeline" if count > 1 else "")
    b.default("grad_accum", accumulated * count, DEFAULT)
    length(b, layers)
    b.default("seq_len", 2048, DEFAULT)


def length(b: Builder, layers: Layers) -> None:
    """Take the tokens of a sample, where a file says them."""
    found = layers.get("max_target_length")
    if found is not None:
        b.set("seq_len", found.whole(), found)
