"""The answer of `serve` on a screen of 80 columns.  Seconds; sizes are GiB (2^30 bytes) of one accelerator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.fit_screen import count
from foretell.report.screen import bar, digits, gib, heading, paragraph, plain, wrapped
from foretell.report.serve_fleet_screen import command, fleet_line, fleets, sides, targets, time_or_dash
from foretell.report.serve_memory_screen import changes, many, memory
from foretell.report.train_screen import seconds, short

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["body", "headline", "show", "title"]

_TERMS: Final = {
    "matmul": "matrix products",
    "experts": "experts' products",
    "attention_decode": "attention of decoding",
    "attention_prefill": "attention of prompts",
    "stream": "memory-bound kernels",
    "head": "output projection",
    "state": "recurrent states",
    "host": "host of the engine",
    "tensor_parallel": "tensor-parallel traffic",
    "expert_parallel": "expert-parallel traffic",
    "pipeline": "pipeline traffic",
    "draft": "proposing tokens",
}
_BOUND: Final = {
    "concurrency": "",
    "demand": "",
    "rate": "",
    "batch": "",
    "max_num_seqs": "max_num_seqs",
    "kv": "KV pool is full",
    "tokens": "prompts fill the steps",
    "memory": "memory",
}
"""What holds the resident batch down, in words; empty where it is what was asked."""
_LEAST: Final = 0.0005
_NOTES: Final = 6
_BAR: Final = 26
_ROWS: Final = 14


def headline(document: Mapping[str, Any]) -> Text:
    """Return the verdict's line: whether it serves the load, and how."""
    result = document["result"]
    if result["sizing"] is not None:
        return fleet_line(result["sizing"])
    line, good = _verdict(result)
    if not good:
        return line
    itl = "" if result["itl_s"] is None else f"ITL {seconds(result['itl_s'])}, "
    line.append(f"  TTFT {time_or_dash(result['ttft_s'])}, {itl}", style="bold")
    return line.append(f"{short(result['output_tokens_per_s'])} tokens/s {_at(result['load'])}", style="bold")


def _verdict(result: Mapping[str, Any]) -> tuple[Text, bool]:
    """Return the first words, and whether the answer is yes."""
    if not result["feasible"]:
        short_of = result["shortfall_bytes"]
        missing = f"{gib(short_of)} GiB are missing on each GPU" if short_of else "one request needs more KV than there is"
        return Text("DOES NOT FIT", style="bold red").append(f"  {missing}", style="bold"), False
    if not result["starts"]:
        kv = result["kv"]
        text = f"  max_model_len {kv['max_model_len']:,} needs more KV than there is: {kv['tokens']:,} tokens"
        return Text("DOES NOT START", style="bold red").append(text, style="bold"), False
    if not result["keeps_up"]:
        arrive, most = result["load"]["requests_per_s"], result["capacity_requests_per_s"]
        text = f"  {digits(arrive)} requests/s arrive, it can serve {digits(most)}"
        if result["backlog_growth_per_s"]:
            text += f": the queue grows by {digits(result['backlog_growth_per_s'])} a second"
        return Text("DOES NOT KEEP UP", style="bold red").append(text, style="bold"), False
    if result["slo"] is not None and not result["slo"]["met"]:
        missed = ", ".join(f"{row['name']} {time_or_dash(row['seen_s'])}" for row in result["slo"]["targets"] if not row["met"])
        return Text("MISSES THE TARGETS", style="bold red").append(f"  {missed}", style="bold"), False
    word = "KEEPS UP" if result["load"]["kind"] == "open" else "FITS"
    return Text("MEETS THE TARGETS" if result["slo"] is not None else word, style="bold green"), True


def _at(load: Mapping[str, Any]) -> str:
    """Say under which load."""
    users = load["concurrency"]
    if load["kind"] == "static":
        return f"in a batch of {users:,.0f}"
    if load["kind"] == "closed":
        return f"with {users:,.0f} in flight" if users > 1 else "one by one"
    if load["kind"] == "open":
        bursts = f" and bursts of {digits(load['burst']['peak_rate_per_s'])}" if load["burst"] else ""
        return f"at {digits(load['requests_per_s'])} requests/s{bursts}"
    return f"of {load['requests']:,} requests" if load["requests"] else "at full load"


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    sizing = document["result"]["sizing"]
    wrapped(console, headline(document))
    if sizing is not None:
        fleets(sizing, console)
        if not sizing["feasible"]:
            _closing(document, console)
            return
        heading(console, "the first of these")
    body(document, console)
    _closing(document, console)


def body(document: Mapping[str, Any], console: Console) -> None:
    """Print what stands between the verdict and the notes."""
    result = document["result"]
    wrapped(console, Text(title(document), style="dim"))
    if result["slo"] is not None:
        targets(result["slo"], console)
    if result["ttft_s"] is not None:
        _speed(result, console)
    if result["split"] is not None:
        sides(result["split"], console)
    if result["percentiles"] is not None:
        _percentiles(result, console)
    if result["feasible"]:
        _step(result["step"], console)
    memory(result, document["inputs"], console)
    changes(result, console)
    if result["curve"]:
        _curve(result, console)
    command(result["launch"], console)


def _closing(document: Mapping[str, Any], console: Console) -> None:
    """Print where intervals come from, what was assumed, and notes."""
    result = document["result"]
    console.print()
    if result["ttft_s"] is not None:
        paragraph(console, "interval", result["interval_basis"])
    if result["assumed"]:
        paragraph(console, "assumed", "; ".join(result["assumed"]))
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def title(document: Mapping[str, Any]) -> str:
    """Name the deployment: model, accelerators, degrees above one, engine, formats, lengths."""
    result, inputs, load = document["result"], document["inputs"], document["result"]["load"]
    degrees = [f"{name} {inputs[name]}" for name in ("dp", "tp", "pp", "ep") if inputs[name] > 1]
    inside = f" ({', '.join(degrees)})" if degrees else ""
    model = f"{result['model']} ({count(result['parameters'])} parameters) on {result['gpus']} x {inputs['gpu']}{inside}"
    engine = f"{inputs['engine']} {inputs['engine_version']}, weights {inputs['weights']}, KV {inputs['kv_dtype']}"
    cached = f", {load['cached_tokens']:,.0f} of them cached" if load["cached_tokens"] else ""
    lengths = f"{load['input_tokens']:,.0f} tokens in{cached}, {load['output_tokens']:,.0f} out"
    return f"{model}; {engine}; {lengths}"


def _speed(result: Mapping[str, Any], console: Console) -> None:
    """Print what users and the owner of the machine see, with intervals."""
    heading(console, "latency and throughput" + ("" if result["basis"] == "closed form" else " (means of the simulation)"))
    parts = [("client", result["client_s"]), ("queue", result["queue_s"]), ("prompt", result["prompt_s"])]
    _line(console, "first token (TTFT)", seconds(result["ttft_s"]), _between(result["ttft_interval_s"], seconds), _split(parts))
    rate = f"{digits(1 / result['itl_s'])} tokens/s of each user" if result["itl_s"] else ""
    if result["itl_s"] is not None:
        _line(console, "token to token (ITL)", seconds(result["itl_s"]), _between(result["itl_interval_s"], seconds), rate)
    lasts, asked = result["duration_s"], result["load"]["requests"]
    whole = f"all {asked:,} in {seconds(lasts)}" if lasts is not None and asked is not None else ""
    _line(console, "whole request", time_or_dash(result["request_s"]), "", whole)
    each = f"{short(result['output_tokens_per_s_per_gpu'])} of each GPU" if result["gpus"] > 1 else ""
    made = result["output_tokens_per_s_interval"]
    _line(console, "output tokens/s", short(result["output_tokens_per_s"]), _between(made, short), each)
    _line(console, "all tokens/s", short(result["total_tokens_per_s"]), "", f"MFU {100 * result['mfu']:.1f} %")
    most = result["capacity_requests_per_s"]
    _line(console, "requests/s", digits(result["requests_per_s"]), "", f"{digits(most)} at most" if most else "")
    why = _BOUND.get(result["bound"], result["bound"])
    held = f"{many(result['max_resident'])} at most" + (" of each replica" if result["replicas"] > 1 else "")
    _line(console, "running at once", digits(result["resident"]), "", f"{held}{'; ' if why else ''}{why}")


def _split(parts: Sequence[tuple[str, float | None]]) -> str:
    """Write the parts of a time; the unit once where it is everybody's.

    >>> _split([("client", 0.00522), ("queue", 0.0), ("prompt", 0.0287)]), _split([("queue", 1.5), ("prompt", 0.02)])
    ('client 5.22, prompt 28.7 ms', 'queue 1.50 s, prompt 20.0 ms')
    """
    written = [(name, *seconds(value).split()) for name, value in parts if value]
    same = len({unit for _, _, unit in written}) == 1
    last = len(written) - 1
    return ", ".join(
        f"{name} {value}" + ("" if same and i < last else f" {unit}") for i, (name, value, unit) in enumerate(written)
    )


def _line(console: Console, name: str, value: str, between: str, rest: str) -> None:
    """Print one quantity: value, interval, and what else there is to say, below where it has no room."""
    line = Text(f"  {name:<20}{value:>9}")
    if between or rest:
        line.append(f"  {between:<17}")
    if len(line) + 2 + len(rest) > console.width:
        line.rstrip()
        console.print(line)
        wrapped(console, Text(f"{'':<33}").append(rest, style="dim"))
        return
    if rest:
        line.append(f"  {rest}", style="dim")
    line.rstrip()
    console.print(line)


def _between(ends: Sequence[float] | None, form: Any) -> str:
    """Write an interval; the unit once where both ends have the same.

    >>> _between([0.0204, 0.0451], seconds), _between([0.5, 2.0], seconds), _between(None, seconds)
    ('20.4 to 45.1 ms', '500 ms to 2.00 s', '')
    """
    if ends is None:
        return ""
    low, high = (form(end) for end in ends)
    unit = high.rpartition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if ' ' in high else low} to {high}"


def _percentiles(result: Mapping[str, Any], console: Console) -> None:
    """Print the simulation's distributions."""
    found, run = result["percentiles"], result["simulation"]
    counted = f"{run['requests']:,} requests, seed {run['seed']}"
    heading(console, f"simulated: {counted}")
    names = ("mean", "p50", "p90", "p95", "p99", "maximum")
    console.print(Text(f"  {'':<21}" + "".join(f"{name.replace('imum', ''):>10}" for name in names[:5]), style="dim"))
    rows = (
        ("ttft_s", "time to first token"),
        ("queue_s", "  of it, in the queue"),
        ("tpot_s", "per token (TPOT)"),
        ("gap_s", "between two tokens"),
        ("request_s", "whole request"),
    )
    for key, name in rows:
        cells = (found[key][each] for each in names[:5])
        console.print(Text(f"  {name:<21}" + "".join(f"{time_or_dash(value):>10}" for value in cells)))
    about = [f"KV pool {100 * run['kv_mean']:.0f} % full, {100 * run['kv_max']:.0f} % at most"]
    about += [f"{run[name]:,} {name}" for name in ("preemptions", "rejected", "unfinished") if run[name]]
    wrapped(console, Text("  " + "; ".join(about), style="dim"))


def _step(step: Mapping[str, Any], console: Console) -> None:
    """Print the terms of the mean step with their bars."""
    total = step["total_s"]
    terms = sorted(step["ledger_s"].items(), key=lambda term: -term[1])
    drawn = [(name, spent) for name, spent in terms if spent >= _LEAST * total]
    if not drawn:
        return
    makes = step["tokens_per_sequence"]
    of = f", {digits(makes)} tokens for each request" if makes > 1 else ""
    heading(console, f"where the {seconds(total)} of a mean step go{of}")
    width, most = max(0, min(_BAR, console.width - 48)), drawn[0][1]
    for name, spent in drawn:
        line = Text(f"  {_TERMS.get(name, name.replace('_', ' ')):<25}{seconds(spent):>10}{100 * spent / total:>7.1f} %  ")
        line.append(bar(spent / most, width, plain=plain(console)), style="cyan").rstrip()
        console.print(line)
    rest = total - sum(spent for _, spent in drawn)
    if rest >= _LEAST * total:
        console.print(Text(f"  {'other':<25}{seconds(rest):>10}{100 * rest / total:>7.1f} %"))


def _curve(result: Mapping[str, Any], console: Console) -> None:
    """Print the curve over concurrency."""
    heading(console, "over concurrency (closed loop)")
    names = ("in flight", "TTFT", "ITL", "tokens/s", "per GPU", "per user")
    console.print(Text("  " + "".join(f"{name:>10}" for name in names) + "  held up by", style="dim"))
    gpus = result["gpus"]
    for row in result["curve"][-_ROWS:]:
        user = row["output_tokens_per_s_per_user"]
        cells = (
            f"{row['concurrency']:,}",
            seconds(row["ttft_s"]),
            time_or_dash(row["itl_s"] or None),
            short(row["output_tokens_per_s"]),
            short(row["output_tokens_per_s_per_gpu"]) if gpus else "",
            "-" if user is None else digits(user),
        )
        line = Text("  " + "".join(f"{cell:>10}" for cell in cells) + "  ")
        line.append(_BOUND.get(row["bound"], row["bound"])).rstrip()
        console.print(line)
