"""The answer of `train` on a screen of 80 columns. Seconds of one optimizer step unless a line says otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.fit_screen import headline as memory_line
from foretell.report.fit_screen import title
from foretell.report.run_screen import run_line, show_run
from foretell.report.screen import bar, digits, gib, heading, paragraph, plain, wrapped
from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["headline", "show"]

_TERMS: Final = {
    "matmul": "matrix products",
    "experts": "experts' products",
    "attention": "attention",
    "stream": "memory-bound kernels",
    "host": "waiting for the host",
    "tensor_parallel": "tensor-parallel traffic",
    "expert_parallel": "expert-parallel traffic",
    "context_parallel": "context-parallel traffic",
    "sharded_states": "sharded states' traffic",
    "bubble": "pipeline bubble",
    "gradients": "gradient traffic",
    "optimizer": "optimizer",
    "fixed": "logging and the like",
    "stragglers": "waiting for stragglers",
    "data_loading": "waiting for data",
}
_MFU: Final = (
    ("mfu", "MFU, causal", "6N + 6Lds FLOP a token, each counted once"),
    ("mfu_full_attention", "MFU, full attention", "6N + 12Lds, masked pairs counted too"),
    ("hfu", "HFU", "all FLOP that run, recomputation included"),
)
_PLAIN: Final = (("mfu", "MFU", "FLOP of a forward and a backward pass, each counted once"), _MFU[-1])
"""Of models that read no tokens: attention has no causal mask."""
_LEAST: Final = 0.0005
"""Share of a step below which a term is not drawn."""
_STAGES: Final = 8
_OPERATORS: Final = 18
_NOTES: Final = 5
_BAR: Final = 26


def headline(document: Mapping[str, Any]) -> Text:
    """Return the step's line: how long, how fast, and a warning where the run cannot start."""
    result = document["result"]
    low, high = result["interval_s"]
    line = Text()
    if not result["runs"]:
        line.append("DOES NOT FIT", style="bold red").append("  would be ")
    number, unit = seconds(result["step_s"]).split()
    size = result["step_s"] / float(number.replace(",", ""))
    line.append(f"{number} {unit} a step ({digits(low / size)} to {digits(high / size)})", style="bold")
    what = "samples" if result["tokens_per_second"] is None else "tokens"
    line.append(f"  {short(result[f'{what}_per_second'])} {what}/s, MFU {100 * result['mfu']:.1f} %", style="bold")
    if result.get("run") is not None:
        line.append(f"; {run_line(result['run'])}", style="bold")
    return line


def show(document: Mapping[str, Any], console: Console, *, operators: bool = False) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, headline(document))
    wrapped(console, Text(title(result, inputs), style="dim"))
    wrapped(console, Text("memory: ").append_text(memory_line({"result": result["memory"]})))
    _speed(result, console)
    _ledger(result, console)
    if len(result["per_stage"]) > 1:
        _stages(result["per_stage"], console)
    if operators and result["operators"] is not None:
        _operators(result["operators"], console)
    _suggestions(result, console)
    if result["run"] is not None:
        show_run(result, inputs["global_batch"], console)
    console.print()
    paragraph(console, "interval", result["interval_basis"])
    if result["assumed"]:
        paragraph(console, "assumed", "; ".join(result["assumed"]))
    for note in document["notes"][:_NOTES]:
        paragraph(console, "note", note)
    if len(document["notes"]) > _NOTES:
        paragraph(console, "note", f"{len(document['notes']) - _NOTES} more under --json")


def seconds(value: float) -> str:
    """Write a time of three digits.

    >>> seconds(2.0634), seconds(0.0451), seconds(312.4), seconds(3.2e-5)
    ('2.06 s', '45.1 ms', '312 s', '32.0 us')
    """
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= 0.9995 * factor or unit == "us":
            return f"{digits(value / factor)} {unit}"
    raise AssertionError  # pragma: no cover


def short(value: float) -> str:
    """Write a rate or an amount.

    >>> short(15870.4), short(1.5e13), short(2.5e6), short(0.72)
    ('15,870', '15.0 T', '2.50 M', '0.72')
    """
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= factor:
            return f"{digits(value / factor)} {unit}"
    return digits(value)


def _speed(result: Mapping[str, Any], console: Console) -> None:
    heading(console, "speed")
    rate = result["tokens_per_second"]
    if rate is None:
        wrapped(console, Text(f"  {'samples/s':<21}{short(result['samples_per_second']):>10}"))
    else:
        each = short(result["tokens_per_second_per_device"])
        wrapped(console, Text(f"  {'tokens/s':<21}{short(rate):>10}  {each} of each GPU"))
    for key, name, convention in _MFU if rate is not None else _PLAIN:
        wrapped(console, Text(f"  {name:<21}{100 * result[key]:>8.1f} %  ").append(convention, style="dim"))
    if result["anchor"] is not None:
        was = seconds(result["measured_step_s"] / result["anchor"])
        text = f"all re-scaled by {result['anchor']:.3f}: the forecast was {was} a step"
        wrapped(console, Text(f"  {'measured':<21}{seconds(result['measured_step_s']):>10}  ").append(text, style="dim"))


def _ledger(result: Mapping[str, Any], console: Console) -> None:
    """Print the terms with their bars, and what they amount to."""
    step = result["step_s"]
    terms = sorted(result["breakdown"].items(), key=lambda term: -term[1])
    drawn = [(name, spent) for name, spent in terms if spent >= _LEAST * step]
    most = drawn[0][1]
    heading(console, f"where the {seconds(step)} go, on the slowest rank")
    width = max(0, min(_BAR, console.width - 48))
    for name, spent in drawn:
        line = Text(f"  {_TERMS.get(name, name):<25}{seconds(spent):>10}{100 * spent / step:>7.1f} %  ")
        line.append(bar(spent / most, width, plain=plain(console)), style="cyan").rstrip()
        console.print(line)
    rest = sum(spent for _, spent in terms) - sum(spent for _, spent in drawn)
    if rest >= _LEAST * step:
        console.print(Text(f"  {'other':<25}{seconds(rest):>10}{100 * rest / step:>7.1f} %"))
    shares = sorted(((share, name) for name, share in result["shares"].items() if share >= 0.005), reverse=True)
    line = Text("  held up by ").append(result["bottleneck"], style="bold")
    wrapped(console, line.append(": " + ", ".join(f"{name} {100 * share:.0f} %" for share, name in shares)))
    if result["communication_s"] > 0:
        all_of, shown = (seconds(result[key]) for key in ("communication_s", "exposed_communication_s"))
        wrapped(console, Text(f"  a rank's traffic: {all_of}, of it {shown} that nothing hides", style="dim"))


def _stages(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what each pipeline rank spends on one micro-batch."""
    heading(console, "pipeline stages: one micro-batch, forward and backward (ms)")
    names = ("stage", "layers", "total", "compute", "memory", "traffic", "host", "GiB held")
    console.print(Text("  " + "".join(f"{name:>9}" for name in names), style="dim"))
    shown = rows if len(rows) <= _STAGES else [*rows[: _STAGES - 2], None, rows[-1]]
    for row in shown:
        if row is None:
            console.print(f"  ... {len(rows) - _STAGES + 1} more under --json")
            continue
        times = (row[key] for key in ("micro_batch_s", "compute_s", "memory_s", "exchanges_s", "host_s"))
        held = gib(row["total_bytes"]) if row["total_bytes"] is not None else ""
        cells = (str(row["stage"]), str(row["layers"] or ""), *(digits(1e3 * value) for value in times), held)
        console.print(Text("  " + "".join(f"{cell:>9}" for cell in cells)))


def _operators(found: Mapping[str, Any], console: Console) -> None:
    """Print the roofline: the rows that take longest, in the order that they run."""
    rows = found["rows"]
    longest = sorted(rows, key=lambda row: -_total(row))[:_OPERATORS]
    kept = [row for row in rows if any(row is one for one in longest)]
    ridge = found["ridge_flops_per_byte"]
    count = f"{found['layers']} such layers" if found["layers"] > 1 else "one such layer"
    heading(console, f"operators of the main layer ({count}; ridge point {ridge:.0f} FLOP/byte)")
    columns = ("fwd us", "bwd us", "GFLOP", "MB", "FLOP/byte", "bound by")
    head = "".join(f"{name:>9}" for name in columns[:-2]) + f"{columns[-2]:>10}  {columns[-1]}"
    console.print(Text(f"  {'':<22}{head}", style="dim"))
    for row in kept:
        intensity = "" if not row["flops"] else digits(row["flops_per_byte"] or 0.0)
        times = f"{digits(1e6 * row['forward_s']):>9}{digits(1e6 * row['backward_s']):>9}"
        work = f"{digits(1e-9 * row['flops']) if row['flops'] else '':>9}{digits(1e-6 * row['bytes']):>9}{intensity:>10}"
        console.print(Text(f"  {_cut(row['name']):<22}{times}{work}  {row['bound']}"))
    if len(rows) > len(kept):
        rest = [row for row in rows if not any(row is one for one in kept)]
        sums = (1e6 * sum(row[key] for row in rest) for key in ("forward_s", "backward_s"))
        console.print(Text(f"  {f'{len(rest)} others':<22}" + "".join(f"{digits(value):>9}" for value in sums)))


def _cut(name: str) -> str:
    """Shorten a name to its column."""
    text = name.replace("_proj", "") if len(name) > 22 else name
    return text if len(text) <= 22 else f"{text[:19]}..."


def _total(row: Mapping[str, Any]) -> float:
    return float(row["forward_s"] + row["backward_s"])


def _suggestions(result: Mapping[str, Any], console: Console) -> None:
    if not result["suggestions"]:
        return
    sure = all(entry["verdict"] == "fits" for entry in result["suggestions"])
    heading(console, f"what would help most (each was tried, and {'fits' if sure else 'needs no more memory or fits'})")
    for entry in result["suggestions"]:
        doubt = "" if entry["verdict"] == "fits" else "uncertain to fit"
        gain = f"{'-' + seconds(entry['saves_s']):>10}{entry['saves_pct']:>6.1f} %  "
        more = entry["total_bytes"] - result["memory"]["total_bytes"]
        held = f"{more / GIB:+.1f} GiB" if abs(more) >= 0.05 * GIB else ""
        about = "; ".join(filter(None, (entry["change"], held, entry["price"], doubt)))
        flags = f"  {entry['option']}"
        if len(flags) > 33:
            wrapped(console, Text(flags, style="green"))
            flags = ""
        line = Text(f"{flags:<33}", style="green").append(gain, style="bold").append(about, style="default")
        _hung(line, console, 33 + len(gain))


def _hung(text: Text, console: Console, start: int) -> None:
    """Print a line whose end, where it is too long, goes on below its last column."""
    head, tail = text[:start], text[start:]
    parts = list(tail.wrap(console, max(20, console.width - start)))
    for number, part in enumerate(parts):
        part.rstrip()
        console.print((head if number == 0 else Text(" " * start)) + part)
