"""Faster: every single switch that may shorten a step is tried on the forecasts themselves; what is named saves time and fits.

Seconds saved are of the same number of samples: a switch that changes the global batch is compared at the batch of now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from foretell.core.forecast import Forecast
from foretell.core.speed import SpeedForecast
from foretell.errors import ForetellError
from foretell.plan._tries import Tries
from foretell.plan.launch import Launch
from foretell.plan.pace import Pace
from foretell.plan.switches import Flags, degrees
from foretell.recipe import Recompute

__all__ = ["Faster", "Shortlist", "faster"]

_WORTH = 0.005
"""Share of a step that a switch must save to be named."""
_CHECKED = 12
"""Memory forecasts that may be made, fastest candidates first."""
_WIDEST = 16
"""Most that a degree is changed by at once: twice and half, twice more and half of that."""


@dataclass(frozen=True)
class Faster:
    """One change that was tried: it fits, and shortens the step."""

    change: str
    flags: Flags = field(hash=False)
    price: str
    """What it costs or needs beside memory, empty where that is nothing."""
    step_s: float
    """Seconds of a step with it."""
    saves_s: float
    """Seconds that it saves of what a step takes now, for as many samples."""
    saves_share: float
    total_bytes: float
    verdict: str

    @property
    def command(self) -> str:
        """The change as it is written on the command line."""
        return " ".join(name if value is None else f"{name} {value}" for name, value in self.flags.items())

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON-able data."""
        return {
            "change": self.change,
            "option": self.command,
            "price": self.price,
            "step_s": self.step_s,
            "saves_s": self.saves_s,
            "saves_pct": 100 * self.saves_share,
            "total_bytes": round(self.total_bytes),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class _Switch:
    """A change that is to be tried; of a group only the best is named."""

    group: str
    change: str
    flags: Flags
    pace: Pace
    price: str = ""


_Maker = Callable[[Pace], Iterator[_Switch]]


class Shortlist(list[Faster]):
    """Switches that save most, best first."""

    tried: int = 0
    """Switches that were forecast."""
    untried: int = 0
    """Those that a model of many different layers left no time for."""


def faster(pace: Pace, now: SpeedForecast, memory: Forecast, most: int = 3) -> Shortlist:
    """Return the switches that save most, best first, one of each kind; each was forecast in time and memory.

    ``now``: the speed without a change; where it was re-scaled to a measured step, so is what is said here.  A switch is
    named only if the run fits with it; where that is uncertain now, it may need no more than now.
    """
    tries = Tries(pace.launch)
    switches = [switch for maker in _SWITCHES for switch in maker(pace)]
    chosen = [switch for switch in switches if tries.take(switch.pace.launch)]
    tried = sorted(_tried(pace, chosen, now), key=lambda pair: -pair[1].saves_s)
    found = Shortlist()
    found.tried, found.untried = len(chosen), len(switches) - len(chosen)
    groups: set[str] = set()
    tuned = pace.launch.tuned(memory)
    for switch, made in tried[:_CHECKED]:
        if len(found) == most:
            break
        if switch.group in groups:
            continue
        checked = _with_memory(switch, made, memory, tuned)
        if checked is not None:
            found.append(checked)
            groups.add(switch.group)
    return found


def _tried(pace: Pace, switches: Iterable[_Switch], now: SpeedForecast) -> Iterator[tuple[_Switch, Faster]]:
    """Time the switches; those that are refused or save nothing worth naming are left out."""
    scale = now.anchor or 1.0
    for switch in switches:
        try:
            then = switch.pace.speed()
        except ForetellError:
            continue
        step = scale * then.step_s
        same = step * pace.launch.global_batch / switch.pace.launch.global_batch
        saved = now.step_s - same
        if saved >= _WORTH * now.step_s:
            yield switch, Faster(switch.change, switch.flags, switch.price, step, saved, saved / now.step_s, 0.0, "")


def _with_memory(switch: _Switch, made: Faster, memory: Forecast, tuned: Launch) -> Faster | None:
    """Ask whether it fits; as closely as the run itself was asked where it seems to."""
    launch = replace(switch.pace.launch, slack_scale=tuned.slack_scale)
    if launch == tuned:  # only the machine around it changes
        return replace(made, total_bytes=memory.total_bytes, verdict=memory.verdict) if _good(memory, memory) else None
    try:
        then = launch.forecast()
        if memory.levels.replayed and _good(then, memory):
            then = launch.replayed()
    except ForetellError:
        return None
    return replace(made, total_bytes=then.total_bytes, verdict=then.verdict) if _good(then, memory) else None


def _good(then: Forecast, memory: Forecast) -> bool:
    """Whether a run fits, or is no more in doubt than it is now."""
    if then.verdict == "fits":
        return True
    return then.verdict == memory.verdict == "uncertain" and then.total_bytes <= memory.total_bytes


# -- switches ------------------------------------------------------------------------------------------------


def _micro_batch(pace: Pace) -> Iterator[_Switch]:
    """Give each pass more samples (larger kernels), or fewer (a pipeline that fills sooner)."""
    launch = pace.launch
    size, passes = launch.recipe.micro_batch, launch.recipe.grad_accum
    for factor in (2, 4, 8):
        if passes % factor == 0:
            yield _batch(pace, size * factor, passes // factor)
        elif passes == 1 and "global_batch" not in launch.given:
            made = _batch(pace, size * factor, 1)
            batch = made.pace.launch.global_batch
            yield replace(made, change=f"{made.change}, so the global batch is {batch}", price="another global batch")
    for factor in (2, 4):
        if launch.par.pp > 1 and size % factor == 0:
            yield _batch(pace, size // factor, passes * factor)


def _batch(pace: Pace, size: int, passes: int) -> _Switch:
    launch = pace.launch
    flags: Flags = {"--micro-batch": str(size)}
    if passes != launch.recipe.grad_accum or "grad_accum" in launch.given or launch.par.pp > 1:
        flags["--grad-accum"] = str(passes)
    changed = launch.with_recipe(micro_batch=size, grad_accum=passes)
    return _Switch("micro-batch", f"micro-batch {size}", flags, pace.with_launch(changed))


def _recompute(pace: Pace) -> Iterator[_Switch]:
    """Compute less a second time."""
    launch = pace.launch
    parts = [name for name in ("recompute_scope", "recompute_layers", "recompute_modules") if name in launch.given]
    without = "".join(f", without --{name.replace('_', '-')}" for name in parts)
    for mode in {"full": ("none", "selective"), "selective": ("none",)}.get(launch.recipe.recompute.mode, ()):
        change = ("no recomputation" if mode == "none" else "selective recomputation") + without
        made = launch.with_recipe(recompute=Recompute(mode=mode))  # type: ignore[arg-type]
        yield _Switch("recompute", change, {"--recompute": mode}, pace.with_launch(made))


def _overlap(pace: Pace) -> Iterator[_Switch]:
    """Pipeline tensor-parallel exchanges with the products beside them."""
    launch, recipe = pace.launch, pace.launch.recipe
    on = launch.framework.tp_comm_overlap if recipe.tp_comm_overlap is None else recipe.tp_comm_overlap
    if launch.par.tp > 1 and launch.run.par.sp and not on:
        made = launch.with_recipe(tp_comm_overlap=True)
        price = "user buffers, on one node's links"
        yield _Switch("overlap", "tensor-parallel overlap", {"--tp-overlap": None}, pace.with_launch(made), price)


def _sequence(pace: Pace) -> Iterator[_Switch]:
    """Divide norms and residuals by the tensor-parallel group."""
    launch = pace.launch
    if launch.par.tp > 1 and not launch.run.par.sp:
        yield _Switch("sequence", "sequence parallelism", {"--sp": None}, pace.with_launch(launch.with_par(sp=True)))


def _split(pace: Pace) -> Iterator[_Switch]:
    """Divide the same accelerators otherwise between tensor, pipeline and data parallelism."""
    launch, par = pace.launch, pace.launch.par
    if par.layout is not None or par.ep > 1:
        return
    rest = par.dp * par.tp * par.pp
    tensor = _degrees(par.tp, pace.topology.domain) if launch.framework.tensor else [par.tp]
    pipeline = _degrees(par.pp, launch.workload.architecture.layers) if launch.framework.pipeline else [par.pp]
    for tp in tensor:
        for pp in pipeline:
            if (tp, pp) == (par.tp, par.pp) or rest % (tp * pp):
                continue
            dp = rest // (tp * pp)
            batch = _shared(launch, dp)
            if batch is None:
                continue
            vpp = par.vpp if pp > 1 else 1
            changed = launch.with_par(tp=tp, pp=pp, dp=dp, vpp=vpp).with_recipe(micro_batch=batch[0], grad_accum=batch[1])
            if pp == 1:
                changed = changed.with_par(schedule=None)
            if "schedule" in launch.given and pp == 1:
                continue
            parts = [f"tp {tp}"] * (tp != par.tp) + [f"pp {pp}"] * (pp != par.pp) + [f"dp {dp}"] * (dp != par.dp)
            yield _Switch("split", ", ".join(parts), _flags(launch, changed), pace.with_launch(changed))


def _context(pace: Pace) -> Iterator[_Switch]:
    """Divide sequences over more or fewer accelerators, and samples over the others."""
    launch, par = pace.launch, pace.launch.par
    if not launch.framework.context or par.ep > 1:
        return
    for cp in _degrees(par.cp, par.cp * par.dp):
        dp = par.dp * par.cp // cp
        batch = _shared(launch, dp)
        if cp == par.cp or cp * dp != par.cp * par.dp or batch is None:
            continue
        changed = launch.with_par(cp=cp, dp=dp).with_recipe(micro_batch=batch[0], grad_accum=batch[1])
        flags: Flags = {"--cp": str(cp), **_flags(launch, changed)}
        yield _Switch("context", f"cp {cp}, dp {dp}", flags, pace.with_launch(changed))


def _degrees(now: int, most: int) -> list[int]:
    """Return the degree, and those that are a power of two above or below it."""
    return [n for n in (now * f // 16 for f in (4, 8, 16, 32, 64) if now * f % 16 == 0) if 1 <= n <= most and n <= now * _WIDEST]


def _shared(launch: Launch, dp: int) -> tuple[int, int] | None:
    """Return micro-batch and passes that keep the global batch with other replicas; None where they cannot share it."""
    if launch.global_batch % dp:
        return None
    each = launch.global_batch // dp
    size = next(n for n in range(min(launch.recipe.micro_batch, each), 0, -1) if each % n == 0)
    return size, each // size


def _flags(old: Launch, new: Launch) -> Flags:
    """Write the change of degrees so that it agrees with what the user stated, and fixes what else would follow anew."""
    flags = degrees(old, new)
    if new.par.vpp != old.par.vpp:
        flags["--vpp"] = str(new.par.vpp)
    if new.recipe.micro_batch != old.recipe.micro_batch:
        flags["--micro-batch"] = str(new.recipe.micro_batch)
    if "global_batch" not in old.given:
        flags["--grad-accum"] = str(new.recipe.grad_accum)
    return flags


def _zero(pace: Pace) -> Iterator[_Switch]:
    """Shard the states more, or less."""
    launch, par = pace.launch, pace.launch.par
    if par.dp * par.cp == 1 or "sharding" in launch.given:
        return
    for stage in launch.framework.zero:
        if stage != par.zero and stage:
            made = launch.with_par(zero=stage)
            yield _Switch("zero", f"ZeRO stage {stage}", {"--zero": str(stage)}, pace.with_launch(made))


def _chunks(pace: Pace) -> Iterator[_Switch]:
    """Give each stage several chunks of the model: a smaller bubble."""
    launch, par = pace.launch, pace.launch.par
    if par.pp == 1 or par.layout is not None or par.schedule not in (None, "interleaved-1f1b"):
        return
    for vpp in (2, 4):
        if vpp != par.vpp:
            made = launch.with_par(vpp=vpp)
            flags: Flags = {"--vpp": str(vpp)}
            if "global_batch" not in launch.given and "grad_accum" not in launch.given:
                flags["--grad-accum"] = str(launch.recipe.grad_accum)
            yield _Switch("chunks", f"{vpp} chunks a stage", flags, pace.with_launch(made), "more transfers between stages")


def _graphs(pace: Pace) -> Iterator[_Switch]:
    """Capture layers in CUDA graphs, so that the host launches one graph instead of many kernels."""
    launch = pace.launch
    if launch.hardware.cuda_like and launch.recipe.cuda_graphs in ("none", "partial"):
        made = launch.with_recipe(cuda_graphs="layer")
        yield _Switch("graphs", "CUDA graphs of the layers", {"--cuda-graphs": "layer"}, pace.with_launch(made), "fixed shapes")


def _low_precision(pace: Pace) -> Iterator[_Switch]:
    """Multiply matrices in eight bits, where the device has units for it."""
    launch = pace.launch
    if launch.recipe.precision != "bf16" or launch.recipe.compute_dtype is not None:
        return
    for name in ("fp8", "mxfp8"):
        if name in launch.framework.formats and any(peak in launch.hardware.peak_flops for peak in (name, "fp8")):
            made = launch.with_recipe(precision=name)
            yield _Switch("precision", f"{name} matrix products", {"--precision": name}, pace.with_launch(made), "other numerics")


def _network(pace: Pace) -> Iterator[_Switch]:
    """Double the rate of every network card."""
    if pace.crosses_nodes:
        rate = 2 * pace.topology.nic_bytes_per_s
        wide = replace(pace, topology=replace(pace.topology, nic_bytes_per_s=rate))
        yield _Switch("network", "network twice as fast", {"--nic-gbps": f"{8e-9 * rate:g}"}, wide, "other hardware")


def _attention(pace: Pace) -> Iterator[_Switch]:
    """Never write the score matrix."""
    launch = pace.launch
    if (launch.recipe.attention or launch.framework.style.attention) == "eager":
        made = launch.with_recipe(attention="flash")
        yield _Switch("attention", "flash attention", {"--attention": "flash"}, pace.with_launch(made))


def _compiled(pace: Pace) -> Iterator[_Switch]:
    """Fuse pointwise operators."""
    launch = pace.launch
    if not (launch.recipe.compile or launch.framework.megatron):
        made = launch.with_recipe(compile=True)
        yield _Switch("compile", "torch.compile", {"--compile": None}, pace.with_launch(made), "compile time")


_SWITCHES: tuple[_Maker, ...] = (
    _attention,
    _compiled,
    _micro_batch,
    _recompute,
    _network,
    _low_precision,
    _sequence,
    _overlap,
    _chunks,
    _graphs,
    _zero,
    _split,
    _context,
)
"""Every maker of switches; where there is no time for all, those that promise most come first."""
