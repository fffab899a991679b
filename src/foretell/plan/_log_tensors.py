"""Which tensor of a forecast run has the size that could not be allocated.

The same tapes that give a forecast's memory log every allocation with its name, so a failed one can be looked up among them;
where it has another size, what it says of the run's tokens is solved for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from foretell.arch.architecture import Block
from foretell.core._terms import TERM_OF, formula
from foretell.core.forecast import Forecast
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.folder import StageFolder
from foretell.cost.linear import Lin
from foretell.cost.sharding import buffers
from foretell.cost.tape import Trace
from foretell.cost.training_memory import folders, sizes_of
from foretell.readers.logs import Oom
from foretell.units import MIB

__all__ = ["Match", "matched"]

LEAST: Final = 24 * MIB
"""Smaller requests are any tensor's."""
_ROUNDED: Final = 2 * MIB
_STATIC: Final = frozenset(("load", "optimizer", "checkpoint_save", ""))
_LOSS: Final = frozenset(("logits_and_loss", "activation_gradients"))
_PIECE: Final = 0.25
_MOST: Final = 3
"""Names that are given where several tensors have the size."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that a run allocates."""

    name: str
    """"head log_softmax"."""
    phase: str
    form: Lin
    bytes: float


@dataclass(frozen=True, slots=True)
class Match:
    """What a failed allocation is in a forecast run."""

    names: tuple[str, ...]
    term: str
    formula: str
    bytes: float
    """Of the tensor, for the sizes of the forecast."""
    exact: bool
    """The sizes are equal, within rounding.  False: they would be with ``tokens``."""
    tokens: float | None = None
    """Tokens (of a micro-batch, on a rank) that the failed size means."""
    planned: float | None = None
    """... that the forecast was made for."""


def matched(oom: Oom, forecast: Forecast) -> Match | None:
    """Return what the failed allocation is; None where it is too small to say, or like nothing."""
    arch = forecast._architecture  # noqa: SLF001  # kept by forecast() for explanations
    if oom.tried is None or oom.tried < LEAST or arch is None:
        return None
    basis = Basis(sizes_of(forecast.run))
    folder = folders(arch, forecast.run)[forecast.stage]
    made = [_at(one, basis) for one in (*_tensors(folder), *_scores(folder), *_weights(folder))]
    low, high = oom.tried - oom.tried_within, oom.tried + max(0.0, oom.tried_within - _ROUNDED)
    fit = [one for one in made if low <= one.bytes <= high]
    likely = [one for one in fit if _agrees(one, oom)] or ([] if oom.phase else fit)
    if likely:
        return _match(likely, oom, basis, exact=True)
    return _implied([one for one in made if _agrees(one, oom)], oom, basis)


def _at(one: _Made, basis: Basis) -> _Made:
    return _Made(one.name, one.phase, one.form, float(evaluate(one.form.by_monomial(), basis)))


def _term(form: Lin) -> str:
    """Return the term of a breakdown that a tensor is in."""
    category = next(iter(form), ("", ""))[0]
    return TERM_OF.get(category, category)


def _agrees(one: _Made, oom: Oom) -> bool:
    """Whether a traceback and a tensor speak of the same place."""
    if one.phase == "static":
        return oom.phase in _STATIC
    if oom.phase == "loss" or oom.term == "logits_and_loss":
        return one.name.startswith("head ") and _term(one.form) in _LOSS and "norm" not in one.name
    if oom.term in ("gathered_weights", "communication_buffers", "optimizer_workspace"):
        return _term(one.form) == oom.term
    if "scores" in oom.doing:
        return "scores" in one.name
    return one.phase == oom.phase or (oom.phase == "backward" and one.phase in ("forward", "loss")) or not oom.phase


def _match(likely: list[_Made], oom: Oom, basis: Basis, *, exact: bool) -> Match:
    """Describe tensors of one size; those that the traceback names come first."""
    said = " ".join(f"{frame.function} {frame.code}" for frame in oom.frames[-3:])
    likely = sorted(likely, key=lambda one: one.name.split()[-1].split(".")[-1].removeprefix("d_") not in said)
    first = likely[0]
    names = tuple(dict.fromkeys(one.name for one in likely))[:_MOST]
    term = _term(first.form)
    how = "" if first.phase == "static" else formula(first.form, term, basis)
    return Match(names, term, how, first.bytes, exact)


def _implied(agreeing: list[_Made], oom: Oom, basis: Basis) -> Match | None:
    """Solve the size of the loss's (or the scores') tensors for the tokens that it means."""
    if oom.tried is None or not (oom.phase == "loss" or oom.term == "logits_and_loss" or "scores" in oom.doing):
        return None
    kinds = {key.partition("/")[0] for one in agreeing for _, key in one.form}
    rows = "TT" if "scores" in oom.doing and "TT" in kinds else "T"
    grows = [one for one in agreeing if one.bytes and all(key.startswith(f"{rows}/") for _, key in one.form)]
    head = any("lm_head(" in frame.code for frame in oom.frames[-2:])
    grows = [one for one in grows if one.name.endswith(("lm_head", "output"))] if head else grows
    if not grows:
        return None
    largest = max(grows, key=lambda one: one.bytes)
    ratio = oom.tried / largest.bytes
    if ratio < _PIECE:  # a loss in chunks, or another tensor altogether
        return None
    planned = float(basis["S/cp"] if rows == "TT" else basis["T/1"])
    tokens = planned * (math.sqrt(ratio) if rows == "TT" else ratio)
    found = _match([largest], oom, basis, exact=False)
    return Match(found.names, found.term, found.formula, found.bytes, exact=False, tokens=tokens, planned=planned)


# -- what a run allocates -----------------------------------------------------------------------------------


def _tensors(folder: StageFolder) -> Iterator[_Made]:
    """Yield every allocation of one pass through each kind of block, and the buffers beside them."""
    arch = folder.arch
    blocks: list[Block] = [arch.embed] if folder.stage.first else []
    blocks += dict.fromkeys(block for stack in arch.stacks for block in stack.blocks)
    work = buffers(folder)
    for block in blocks:
        yield from _of_block(folder, block, loss=False)
        yield _Made(f"{block.name}: its weights from all shards", "forward", work.forward(block), 0.0)
        yield _Made(f"{block.name}: its buffers in the backward pass", "backward", work.backward(block), 0.0)
    if folder.stage.last:
        yield from _of_block(folder, arch.head, loss=folder.has_loss)
        yield _Made("head: its weights from all shards", "loss", work.head, 0.0)


def _of_block(folder: StageFolder, block: Block, *, loss: bool) -> Iterator[_Made]:
    e = folder.emitter(block, loss=loss, input_grad=True)
    out = e.emit()
    trace: Trace = []
    e.tape.run(out, trace=trace, accumulate=folder.transient)
    back = False
    for kind, key, form in trace:
        back = back or kind == "backward"
        if kind in ("alloc", "weight") and form:
            name, what = key.name, "gradient of " if key.name.startswith("d_") else ""
            what = "weight gradient of " if kind == "weight" else what
            phase = "loss" if block is folder.arch.head else "backward" if back else "forward"
            yield _Made(f"{block.name} {what}{name.removeprefix('d_')}", phase, form, 0.0)


def _scores(folder: StageFolder) -> Iterator[_Made]:
    """Yield attention scores as an unfused attention makes them, whatever the forecast assumed."""
    heads = folder.arch.heads
    if heads:
        for unit, name in ((2.0, "16 bits"), (4.0, "fp32")):
            yield _Made(f"attention scores in {name}", "forward", Lin.of("activations", "TT/tp", heads * unit), 0.0)


def _weights(folder: StageFolder) -> Iterator[_Made]:
    """Yield single weights in 16 and 32 bits, whole and a rank's shard: what loading, an optimizer step and saving move."""
    arch = folder.arch
    blocks = dict.fromkeys([arch.embed, *(block for stack in arch.stacks for block in stack.blocks), arch.head])
    shards = [("1/1", "")] + ([("1/z", "shard of ")] if folder.par.zero and folder.par.dp * folder.par.cp > 1 else [])
    for block in blocks:
        for op in block.ops:
            for weight in op.weights():
                for unit in (2.0, 4.0):
                    for monomial, what in shards:
                        name = f"{what}{block.name} {op.name} ({weight.elements:,} elements of {unit:g} B)"
                        yield _Made(name, "static", Lin.of("weights", monomial, weight.elements * unit), 0.0)
