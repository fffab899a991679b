"""Part of the screen of `serve`: what one GPU's memory goes to, and what would make it fit.  GiB are 2^30 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.screen import heading, wrapped
from foretell.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["changes", "cut", "many", "memory"]

_WEIGHTS: Final = frozenset({"layers", "experts", "embedding", "head", "tables"})
"""Terms of the memory ledger that are loaded."""
_MEMORY: Final = {
    "requested": "share of the device",
    "libraries": "libraries' kernels",
    "communicators": "NCCL buffers",
    "context": "CUDA context",
    "graphs": "CUDA graphs",
}


def memory(result: Mapping[str, Any], inputs: Mapping[str, Any], console: Console) -> None:
    """Print what a GPU's memory goes to, and what the pool holds."""
    kv = result["kv"]
    heading(console, "memory of one GPU (GiB)")
    for name, size, about in _terms(kv["ledger"], inputs):
        line = Text(f"  {name:<25}{size / GIB:>10.2f}  ")
        console.print(line.append(cut(about, console.width - 39), style="dim"))
    line = Text(f"  {'left for KV':<25}{kv['pool_bytes'] / GIB:>10.2f}  ", style="bold")
    if kv["pool_bytes"] <= 0:
        console.print(line.append("that much is missing", style="bold red"))
    else:
        low, high = kv["interval_tokens"]
        console.print(line.append(f"{kv['tokens']:,} tokens ({low:,} to {high:,})"))
        held = f"{kv['blocks']:,} blocks of {kv['block_size']} tokens, {kv['bytes_per_token'] / 1024:.4g} KiB a token"
        wrapped(console, Text(f"  {held}", style="dim"))
        fits = f"{many(kv['max_requests'])} requests of {kv['request_tokens']:,.0f} tokens"
        longest = f"{many(kv['max_concurrency'])} of {kv['max_model_len']:,} (max_model_len)"
        wrapped(console, Text(f"  holds {fits}, {longest}", style="dim"))
    _flag(kv["memory_flag"], console)


def _terms(ledger: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Return the lines of the ledger: weights in one, and in words what each is."""
    weights = [term for term in ledger if term["name"] in _WEIGHTS]
    largest = sorted(weights, key=lambda term: term["bytes"])[:3]
    parts = ", ".join(f"{term['name']} {-term['bytes'] / GIB:.2f}" for term in largest if -term["bytes"] >= 0.05 * GIB)
    out, said = [], False
    for term in ledger:
        name, size, about = term["name"], term["bytes"], term["formula"]
        if name in _WEIGHTS:
            if said:
                continue
            said, name, size, about = True, f"weights in {inputs['weights']}", sum(each["bytes"] for each in weights), parts
        elif name == "held back" and inputs["gpu_memory_utilization"] is None:
            about = f"all but {inputs['max_num_seqs']:,} x {inputs['max_model_len']:,} tokens (max_num_seqs, max_model_len)"
        elif name == "activation":
            name, about = "largest step", f"{inputs['max_num_batched_tokens']:,} tokens, {inputs['max_num_seqs']:,} sampled"
        out.append((_MEMORY.get(name, name), size, about))
    return out


def _flag(flag: Mapping[str, Any] | None, console: Console) -> None:
    """Print which values of the memory flag would do."""
    if flag is None:
        return
    said = f"{flag['name']} {flag['value']:g}"
    if not flag["feasible"]:
        wrapped(console, Text(f"  {said}: no value holds max_model_len; {flag['why']}", style="dim"))
        return
    high = 1.0 if flag["high"] is None else flag["high"]
    wrapped(console, Text(f"  {said}; from {flag['low']:g} to {high:g} it starts and does not run out", style="dim"))


def changes(result: Mapping[str, Any], console: Console) -> None:
    """Print what would make it fit."""
    if not result["fixes"]:
        return
    heading(console, "what would make it fit (each was tried)")
    for fix in result["fixes"]:
        gpus = f"{fix['gpus']} GPU" + ("s" if fix["gpus"] > 1 else "")
        about = f"{gpus}, {int(fix['admitted']):,} requests fit; {fix['price']}"
        line = Text(f"  {fix['option']:<33}", style="green")
        wrapped(console, line.append(about, style="default"))


def cut(text: str, most: int) -> str:
    """Shorten a text to its column.

    >>> cut("eleven words", 9)
    'eleven...'
    """
    return text if len(text) <= most else f"{text[: max(0, most - 3)]}..."


def many(value: float) -> str:
    """Write how many requests fit: whole ones, or a share of one.

    >>> many(346.2), many(0.35)
    ('346', '0.35')
    """
    return f"{int(value):,}" if value >= 1 else f"{value:.2f}"
