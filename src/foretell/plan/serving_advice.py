"""What would make a deployment fit that does not: other formats and flags, each on the fewest accelerators that hold it.

Only memory is asked here, so that dozens of tries take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from foretell.core.serving import Deployment, checked_serving
from foretell.cost.kv_capacity import KvCapacity, kv_capacity
from foretell.cost.kv_search import share_interval
from foretell.cost.served_weights import weight_format
from foretell.cost.serving_flow import Traffic
from foretell.errors import InputError
from foretell.recipe.serving import ServingRecipe

__all__ = ["Fix", "admitted", "fixes", "longest_that_fits"]

_LENGTHS: Final = 256
"""Lengths that are suggested are multiples of it."""
_RANKS: Final = (2, 4, 8, 16, 32)
_SEQUENCES: Final = 32
"""A max_num_seqs that leaves the sampler little, and still fills a device."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change with which the deployment holds the load."""

    option: str
    """What to add to the command."""
    change: str
    price: str
    gpus: int
    kv_tokens: int
    """Of the pool with it."""
    admitted: float
    """Requests of the load that the pool of one replica then holds."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Change:
    """Values of a recipe, and how they are asked for."""

    values: dict[str, Any]
    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    price: str = ""


def admitted(capacity: KvCapacity, traffic: Traffic) -> float:
    """Return how many requests of the load the pool holds at their full length."""
    if not capacity.feasible:
        return 0.0
    return float(capacity.concurrency(traffic.inputs + (traffic.longest or traffic.outputs)))


def fixes(found: Deployment, asked: ServingRecipe, traffic: Traffic, *, node: int = 8) -> list[Fix]:
    """Return changes of ``asked`` (as the user left it) that make it hold a request of the load, fewest accelerators first.

    ``node``: accelerators of one node; tensor parallelism stays inside it.  What changes the numerics or the flags is named
    only where it saves accelerators, and of two that save as many the milder one.
    """
    out: list[Fix] = []
    shorter = _shorter(found, asked, traffic)
    if shorter is not None:
        return [shorter]
    for change in _settings(found):
        fix = next((fix for layout in _layouts(found, node) if (fix := _tried(found, asked, change, layout, traffic))), None)
        if fix is not None and all(fix.gpus < other.gpus for other in out):
            out.append(fix)
    return sorted(out, key=lambda fix: fix.gpus)


def _shorter(found: Deployment, asked: ServingRecipe, traffic: Traffic) -> Fix | None:
    """The longest request that fits, where the one that was asked for does not and those of the load do."""
    if asked.max_model_len is None or not found.capacity.feasible or found.capacity.holds_longest:
        return None
    length = longest_that_fits(found, [traffic.inputs + (traffic.longest or traffic.outputs)])
    if length is None:
        return None
    change = _Change(
        {"max_model_len": length}, (f"--max-model-len {length}",), (f"requests of {length} tokens at most",), "shorter requests"
    )
    return _tried(found, asked, change, _Change({}), traffic)


def _settings(found: Deployment) -> Iterator[_Change]:
    """Nothing, then flags, then formats, the mildest first."""
    r = found.recipe
    yield _Change({})
    high = _highest(found)
    if high is not None and r.memory_share is not None and high > r.memory_share:
        share = f"--gpu-memory-utilization {high:g}"
        yield _Change({"memory_share": high}, (share,), (f"memory flag {high:g}",), "no room for other processes")
    if (r.max_num_seqs or 0) > _SEQUENCES:
        option = f"--max-num-seqs {_SEQUENCES}"
        yield _Change({"max_num_seqs": _SEQUENCES}, (option,), (f"{_SEQUENCES} requests at once",), "smaller batches")
    byte = _byte(found)
    if str(r.kv) in ("bf16", "fp16", "auto") and byte == "fp8":
        yield _Change({"kv": "fp8"}, ("--kv-dtype fp8",), ("keys and values in fp8",), "other numerics")
    bits = weight_format(r.weights).bits
    for name in (byte, "int4"):
        if weight_format(name).bits < 0.75 * bits:
            yield _Change({"weights": name}, (f"--weights {name}",), (f"weights in {name}",), "other numerics")


def _layouts(found: Deployment, node: int) -> Iterator[_Change]:
    """More and more accelerators: tensor parallelism inside a node, then pipeline stages over nodes."""
    r, arch = found.recipe, found.workload.architecture.text or found.workload.architecture
    yield _Change({})
    widest = r.tp
    for n in (r.tp * n for n in _RANKS):
        if n <= node and arch.heads and arch.heads % n == 0:
            widest = n
            yield _Change({"tp": n}, (f"--tp {n}",), (f"{n} GPUs share every layer",), "more GPUs")
    values: dict[str, Any] = {"tp": widest} if widest > r.tp else {}
    options = (f"--tp {widest}",) if widest > r.tp else ()
    for n in (r.pp * n for n in _RANKS):
        if n <= arch.layers:
            words = (f"{n} stages" + (f" of {widest} GPUs" if widest > 1 else ""),)
            yield _Change(values | {"pp": n}, (*options, f"--pp {n}"), words, "more GPUs")


def _byte(found: Deployment) -> str:
    """The format of one byte that kernels of the device read: fp8 from Ampere on (Marlin), or where it multiplies."""
    major = (found.hardware.compute_capability or "").partition(".")[0]
    return "fp8" if "fp8" in found.hardware.peak_flops or (major.isdecimal() and int(major) >= 8) else "int8"


def _highest(found: Deployment) -> float | None:
    try:
        return share_interval(found.workload.architecture, found.hardware, found.recipe).high
    except InputError:
        return None


def _tried(found: Deployment, asked: ServingRecipe, setting: _Change, layout: _Change, traffic: Traffic) -> Fix | None:
    """Both changes together, if the load fits with them; None for no change at all."""
    options = (*layout.options, *setting.options)
    if not options:
        return None
    model = found.workload.architecture
    try:
        recipe = checked_serving(replace(asked, **setting.values, **layout.values), model.text or model)
        capacity = kv_capacity(model, found.hardware, recipe)
    except InputError:
        return None
    if not capacity.feasible or float(capacity.concurrency(traffic.inputs + traffic.outputs)) < 1.0:
        return None
    if asked.max_model_len is not None and not capacity.holds_longest:
        return None
    return Fix(
        option=" ".join(options),
        change=", ".join((*layout.words, *setting.words)),
        price="; ".join(price for price in (layout.price, setting.price) if price),
        gpus=recipe.devices,
        kv_tokens=capacity.tokens,
        admitted=admitted(capacity, traffic),
    )


def longest_that_fits(found: Deployment, needed: Sequence[float]) -> int | None:
    """Return the largest ``max_model_len`` of which one sequence fits, or None where even the ``needed`` lengths do not.

    A multiple of 256 where there is one above what is needed.

    >>> from foretell.core.serving import deployment
    >>> longest_that_fits(deployment("llama-3.1-8b", "rtx4090"), [1280]) < 131072
    True
    """
    least, most = max(int(max(needed)), 1), found.recipe.max_model_len or 1

    def holds(length: int) -> bool:
        recipe = replace(found.resolved.recipe, max_model_len=length)
        capacity = kv_capacity(found.workload.architecture, found.hardware, replace(found.resolved, recipe=recipe))
        return capacity.feasible and capacity.holds_longest

    if holds(most):
        return most
    if not holds(least):
        return None
    low, high = least, most  # low holds, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return max(least, low // _LENGTHS * _LENGTHS)
