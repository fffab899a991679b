"""The answers of `reliability` and `checkpoint` on a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.operations_screen import figure, foot, ledger, per_cent, row, spread, where
from foretell.report.run_screen import LOSSES
from foretell.report.screen import gib, heading, wrapped
from foretell.units import GB, fmt_s

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["checkpoint_line", "reliability_line", "show_checkpoint", "show_reliability"]

_BYTES: Final = {"weights": "weights", "master_weights": "master weights", "optimizer_state": "optimizer state"}


def reliability_line(document: Mapping[str, Any]) -> Text:
    """Return one line: the goodput, and how often the job fails."""
    result = document["result"]
    every = f"a failure every {fmt_s(result['fleet_mtbf_s'])}"
    if not result["feasible"]:
        return Text("NO PROGRESS", style="bold red").append(f"  {every}", style="bold")
    share, ends = per_cent(result["goodput_ratio"], result["goodput_interval"])
    return Text(f"{share} of the time trains ({ends.removesuffix(' %')})  {every}", style="bold")


def show_reliability(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, reliability_line(document))
    where(inputs, result, console)
    heading(console, "failures that stop the job")
    row(console, "mean time between", fmt_s(result["fleet_mtbf_s"]), _times(result["fleet_mtbf_interval_s"]))
    low, high = result["failures_per_1000_node_days_interval"]
    row(console, "per 1,000 node-days", figure(result["failures_per_1000_node_days"]), spread((low, high), figure))
    about = f"{spread(result['expected_failures_interval'], figure)} in the job's duration".strip()
    row(console, "expected", figure(result["expected_failures"]), about)
    row(console, "at least one", _chance(result["failure_probability"]), _chances(result["failure_probability_interval"]))
    if result["enough_nodes_probability"] is not None:
        spares = f"of the time, with {result['spares']} spare{'' if result['spares'] == 1 else 's'}"
        row(console, "enough nodes are up", _chance(result["enough_nodes_probability"]), spares)
    heading(console, "work between two checkpoints")
    best = result["optimal_checkpoint_interval_s"]
    if inputs["interval_s"] != best:
        row(console, "as given", fmt_s(inputs["interval_s"]), "what the rest is of")
    row(console, "optimum", fmt_s(best), f"each blocks training for {fmt_s(inputs['checkpoint_time_s'])}")
    row(console, "Young 1974", fmt_s(result["young_interval_s"]), "square root of twice the block times the MTBF")
    row(console, "Daly 2006", fmt_s(result["daly_interval_s"]), "higher order")
    heading(console, "where the time goes")
    ledger(console, {name: (result["losses"][key], "") for key, name in LOSSES.items()})
    if result["feasible"] and None not in result["wall_time_interval_s"]:
        ends = _times(result["wall_time_interval_s"])
        span = f"to train for {fmt_s(3600 * inputs['hours'])}"
        wrapped(console, Text(f"  {span} takes {fmt_s(result['wall_time_s'])}{f' ({ends})' if ends else ''}"))
    _curve(result["curve"], inputs["nodes"], console)
    _trace(result, console)
    foot(console, document)


def _curve(rows: Sequence[Mapping[str, Any]], nodes: int, console: Console) -> None:
    """Print how the same job does on fewer and on more nodes."""
    heading(console, "over scale, each at its own optimum")
    names = ("nodes", "GPUs", "MTBF", "failures", "interval", "trains")
    console.print(Text("  " + "".join(f"{name:>12}" for name in names), style="dim"))
    for one in rows:
        trains = f"{100 * one['goodput_ratio']:.1f} %" if one["feasible"] else "no progress"
        times = fmt_s(one["fleet_mtbf_s"]), figure(one["expected_failures"]), fmt_s(one["optimal_checkpoint_interval_s"])
        cells = (f"{one['nodes']:,}", f"{one['gpus']:,}", *times, trains)
        style = "bold" if one["nodes"] == nodes else ""
        console.print(Text("  " + "".join(f"{cell:>12}" for cell in cells), style=style))


def _trace(result: Mapping[str, Any], console: Console) -> None:
    """Print what stands in the way, which follows the two lines that the screen has said already."""
    for text in result["constraint_trace"][2:]:
        wrapped(console, Text(f"  {text}", style="bold red" if not result["feasible"] else "yellow"))


def _times(ends: Sequence[float]) -> str:
    return spread(ends, fmt_s)


def _chance(value: float) -> str:
    """Write a probability; a near certainty is not rounded to one.

    >>> _chance(0.597), _chance(0.9999995), _chance(1e-7)
    ('59.7 %', 'over 99.9 %', 'under 0.1 %')
    """
    return "over 99.9 %" if value > 0.9994 else "under 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"


def _chances(ends: Sequence[float]) -> str:
    return spread(ends, _chance)


# -- checkpoints -------------------------------------------------------------------------------------------------


def checkpoint_line(document: Mapping[str, Any]) -> Text:
    """Return one line: the size, and for how long training stands still."""
    result = document["result"]
    size = result["checkpoint_size_bytes"]
    line = Text()
    if not result["feasible"]:
        line.append("TOO SLOW  ", style="bold red")
    elif result["stalls_collectives"]:
        line.append("STALLS  ", style="bold red")
    ends = _times(result["blocking_time_interval_s"])
    still = fmt_s(result["blocking_time_s"]) + (f" ({ends})" if ends else "")
    text = f"{figure(size / GB)} GB, training stands still {still}: {result['mfu_penalty_pct']:.3g} %"
    return line.append(text, style="bold")


def show_checkpoint(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, checkpoint_line(document))
    how = f"{inputs['optimizer']}, {inputs['precision']}, {inputs['framework']}; {inputs['mode']}, {inputs['format']}"
    lora = f", LoRA rank {inputs['lora_rank']}" if inputs["lora_rank"] else ""
    text = f"{inputs['model']}{lora} on {inputs['gpu']}; {how}; every {fmt_s(inputs['interval_s'])} of work"
    wrapped(console, Text(text, style="dim"))
    heading(console, "size (GB are 1e9 bytes, GiB 2^30)")
    parts = {name: result["breakdown_bytes"][key] for key, name in _BYTES.items() if result["breakdown_bytes"][key]}
    ledger(console, {name: (size, f"{figure(size / GB)} GB") for name, size in parts.items()})
    total = result["checkpoint_size_bytes"]
    row(console, "one checkpoint", f"{figure(total / GB)} GB", f"{gib(total)} GiB")
    files = f"{result['files']:,} file{'s' if result['files'] > 1 else ''} of {figure(result['file_bytes'] / GB)} GB"
    row(console, "on the storage", f"{figure(result['disk_bytes'] / GB)} GB", f"{files} each time; {inputs['keep']} kept")
    heading(console, "times")
    row(console, "storage takes it in", fmt_s(result["write_time_s"]), _times(result["write_time_interval_s"]))
    row(console, "training stands still", fmt_s(result["blocking_time_s"]), _times(result["blocking_time_interval_s"]))
    after = f"after its start; training runs on for {fmt_s(result['durability_lag_s'])} of it"
    row(console, "safe", fmt_s(result["save_time_s"]), after if result["durability_lag_s"] else "after its start")
    row(console, "reading it back", fmt_s(result["load_time_s"]), _times(result["load_time_interval_s"]))
    heading(console, "cost")
    row(console, "of the time", f"{result['mfu_penalty_pct']:.3g} %", "for which training stands still")
    need, have = (result[f"{name}_bandwidth_bytes_per_s"] / GB for name in ("required", "write"))
    row(console, "storage reaches", f"{figure(have)} GB/s", f"{inputs['writers']:,} writer{'s' if inputs['writers'] > 1 else ''}")
    if need:
        why = "for one per cent of the time" if inputs["mode"] == "sync" else "to be done before the next one"
        row(console, "it would take", f"{figure(need)} GB/s", why)
    _trace(result, console)
    foot(console, document)
