"""Part of the screen of `serve`: targets, fleets that meet them, both sides of a split, the command that starts a deployment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.screen import digits, heading, wrapped
from foretell.report.serve_memory_screen import cut
from foretell.report.train_screen import seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command", "fleet_line", "fleets", "sides", "targets", "time_or_dash"]

_FLEETS: Final = 10


def fleet_line(sizing: Mapping[str, Any]) -> Text:
    """Return the verdict's line of a sizing: how many accelerators."""
    asked_for = ", ".join(f"{name.removesuffix('_s')} {seconds(value)}" for name, value in sizing["targets"].items())
    asked = f"{digits(sizing['requests_per_s'])} requests/s within {asked_for}"
    best = sizing["best"]
    if best is None:
        return Text("NO FLEET", style="bold red").append(f" serves {asked}", style="bold")
    one = best["gpus"] == 1
    line = Text(f"{best['gpus']:,} GPU" + ("" if one else "s"), style="bold green")
    return line.append(f" serve{'s' if one else ''} {asked}", style="bold")


def fleets(sizing: Mapping[str, Any], console: Console) -> None:
    """Print what holds the fleet up, and the fleets that were tried: the best of each accelerator, layout and format."""
    label = "" if sizing["best"] is None else f"{sizing['best']['label']}; "
    wrapped(console, Text(f"{label}held up by {sizing['binding']}: {sizing['why']}", style="dim"))
    for line in sizing["advice"]:
        wrapped(console, Text("  it would take ").append(line, style="green"))
    kinds: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for option in sizing["options"]:
        kinds.setdefault(tuple(option[name] for name in ("gpu", "tp", "weights", "kv")), option)
    by = {"gpus": "fewest GPUs first", "cost": "cheapest first", "latency": "shortest request first"}[sizing["objective"]]
    statistic = next(iter(kinds.values()))["statistic"]
    heading(console, f"fleets ({sizing['tried']} were tried; {by}; {statistic} of a request)")
    priced = any(option["usd_per_h"] is not None for option in kinds.values())
    head = f"  {'GPUs':>4}  {'fleet':<30}{'TTFT':>9}{'ITL':>9}{'USD/h' if priced else 'load':>8}"
    console.print(Text(f"{head}  held up by", style="dim"))
    for option in list(kinds.values())[:_FLEETS]:
        _option(option, console, priced=priced)


def _option(option: Mapping[str, Any], console: Console, *, priced: bool) -> None:
    """Print one fleet, and below it the batch flags that are not the engine's own."""
    load, price = option["load"], option["usd_per_h"]
    last = ("-" if price is None else digits(price)) if priced else ("-" if load is None else f"{100 * load:.0f} %")
    gpus = "-" if option["gpus"] is None else f"{option['gpus']:,}"
    name, _, flags = option["label"].partition(", max_num_")
    line = Text(
        f"  {gpus:>4}  {cut(name, 29):<30}{time_or_dash(option['ttft_s']):>9}{time_or_dash(option['itl_s']):>9}{last:>8}  "
    )
    console.print(line.append(option["binding"], style="" if option["feasible"] else "red"))
    if flags:
        wrapped(console, Text(f"        max_num_{flags}", style="dim"))


def targets(slo: Mapping[str, Any], console: Console) -> None:
    """Print each target and what was seen of it."""
    heading(console, f"targets (by the {slo['judged_by']})")
    for row in slo["targets"]:
        line = Text(f"  {row['name']:<20}{time_or_dash(row['seen_s']):>9}  of {seconds(row['seconds'])}  ")
        console.print(line.append("met", style="green") if row["met"] else line.append("missed", style="bold red"))
    if slo["slo_share"] is not None:
        wrapped(console, Text(f"  {100 * slo['slo_share']:.1f} % of the requests meet all of them", style="dim"))


def sides(split: Mapping[str, Any], console: Console) -> None:
    """Print what the servers of prompts and those that decode do."""
    heading(console, f"prompts and decoding apart ({split['bound']} is the slower side)")
    names = ("GPUs", "at most req/s", "busy", "KV tokens")
    console.print(Text(f"  {'':<22}" + "".join(f"{name:>14}" for name in names), style="dim"))
    for side in ("prefill", "decode"):
        found = split[side]
        most, busy = found["capacity_requests_per_s"], found["utilization"]
        cells = (
            f"{found['gpus']:,}",
            "-" if most is None else digits(most),
            "-" if busy is None else f"{100 * busy:.0f} %",
            f"{found['kv_tokens']:,}",
        )
        name = f"{side}, {found['replicas']} x tp {found['tp']}"
        console.print(Text(f"  {name:<22}" + "".join(f"{cell:>14}" for cell in cells)))
    cache = f"a prompt's keys and values, {split['cache_bytes'] / 2**20:,.0f} MiB, travel in {seconds(split['transfer_s'])}"
    wrapped(console, Text(f"  {cache}", style="dim"))


def command(launch: Mapping[str, Any] | None, console: Console) -> None:
    """Print the command, as it can be copied."""
    if launch is None:
        return
    heading(console, "to run it")
    for name, lines in launch["files"].items():
        for line in (f"cat > {name} <<'EOF'", *lines, "EOF"):
            console.print(Text(line if line == "EOF" else f"  {line}", style="green"), soft_wrap=True)
    for line in _shell(launch["argv"], console.width - 4):
        console.print(Text(f"  {line}", style="green"), soft_wrap=True)
    for note in launch["notes"]:
        wrapped(console, Text(f"  {note}", style="dim"))


def _shell(argv: Sequence[str], width: int) -> list[str]:
    r"""Break a command before its flags, with backslashes.

    >>> _shell(["vllm", "serve", "m", "--tensor-parallel-size", "2", "--max-num-seqs", "64"], 34)
    ['vllm serve m \\', '    --tensor-parallel-size 2 \\', '    --max-num-seqs 64']
    """
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(shlex.quote(word))
    lines: list[str] = []
    for words in groups:
        text = " ".join(words)
        if lines and len(lines[-1]) + 1 + len(text) <= width - 2:
            lines[-1] += f" {text}"
        else:
            lines.append(text if not lines else f"    {text}")
    return [f"{line} \\" if i + 1 < len(lines) else line for i, line in enumerate(lines)]


def time_or_dash(value: float | None) -> str:
    """Write a time, or a dash where there is none."""
    return "-" if value is None else seconds(value)
