"""Activation checkpointing of one layer: what is kept, what runs again, and what that costs for a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from foretell.cost.linear import Lin
from foretell.cost.tape import Node, Point, Tape, Tensor, Trace
from foretell.errors import CombinationError
from foretell.recipe.style import Style
from foretell.recipe.training import Recompute


@dataclass(frozen=True, slots=True)
class Pass:
    """One layer under a checkpointing mode: bytes kept per micro-batch, and levels while it runs."""

    saved: Lin
    forward: tuple[Point, ...]
    backward: tuple[Point, ...]
    wgrad: Lin
    keeps: bool = True
    """The first forward pass builds a graph (it is not a checkpointed one)."""


def _starts(*names: str) -> Callable[[str], bool]:
    return lambda node: node.startswith(names)


def _of(names: tuple[str, ...]) -> Callable[[str], bool]:
    """Return what tells nodes of these operators."""
    return lambda node: any(node == name or node.startswith(f"{name}.") for name in names)


MODULES: dict[str, tuple[Callable[[str], bool], bool]] = {
    "core_attn": (_starts("attn"), False),
    "layernorm": (_starts("norm1", "norm2"), True),
    "moe_act": (lambda n: n.startswith("experts.") and n.rsplit(".", 1)[-1] in ("silu", "gelu", "mul", "act"), True),
    "mlp": (_starts("gate_proj", "up_proj", "act", "down_proj"), False),
    "moe": (_starts("router", "experts"), False),
    "shared_experts": (_starts("shared_"), False),
    "mla_up_proj": (_starts("q_b_proj", "kv_b_proj", "q_rope", "k_rope"), True),
}
"""Megatron-Core ``--recompute-modules``: which operators, and whether their output is dropped as well
(``CheckpointWithoutOutput``) or kept (``checkpoint``)."""


def layer_pass(
    tape: Tape,
    out: Tensor,
    mode: str,
    spec: Recompute,
    style: Style,
    *,
    accumulate: bool,
    checkpoints: tuple[tuple[str, ...], ...] | None = None,
    traces: tuple[Trace, Trace] | None = None,
) -> Pass:
    """Replay a layer under ``mode``: ``none``, ``full`` or ``selective`` (as ``spec`` says).

    ``checkpoints``: :attr:`foretell.arch.architecture.Block.checkpoints`.
    ``traces`` receive what the first forward pass and what the backward pass allocate; a pass without recomputation of
    the whole layer writes both into the first.
    """
    log = traces[0] if traces is not None else None
    if mode == "none":
        m = tape.run(out, accumulate=accumulate, trace=log)
        return Pass(m.saved, tuple(m.forward), tuple(m.backward), m.wgrad)
    if mode == "full" and checkpoints is not None:
        parts = [group - {out.storage} for names in checkpoints if (group := _group(tape, _of(names), drop_output=False))]
        m = tape.run(out, accumulate=accumulate, discard=parts, prompt=True, trace=log)
        return Pass(m.saved, tuple(m.forward), tuple(m.backward), m.wgrad)
    if mode == "full":
        return _full(tape, out, accumulate, Lin(), spec, style, traces)
    if mode == "opaque":
        return _full(tape, out, accumulate, _op_outputs(tape, replace(style, sac_every=0)), spec, style, traces)
    if spec.scope in ("op", "compute"):
        return _full(tape, out, accumulate, _op_outputs(tape, style), spec, style, traces)
    names = spec.modules or ("core_attn",)
    groups = []
    for name in names:
        if name not in MODULES:
            raise CombinationError(
                "is not a module that can be recomputed", field="recompute_modules", value=name, allowed=sorted(MODULES)
            )
        group = _group(tape, *MODULES[name])
        if group:
            groups.append(group)
    m = tape.run(out, accumulate=accumulate, discard=groups, trace=log)
    return Pass(m.saved, tuple(m.forward), tuple(m.backward), m.wgrad)


def _full(
    tape: Tape, out: Tensor, accumulate: bool, kept: Lin, spec: Recompute, style: Style, traces: tuple[Trace, Trace] | None
) -> Pass:
    """Only the input (and ``kept``) survives the forward pass; the layer runs again before its backward."""
    ahead, back = traces if traces is not None else (None, None)
    first = tape.run(out, keep=False, trace=ahead)
    again = tape.run(out, accumulate=accumulate, recompute=True, early_stop=style.early_stop, trace=back)
    x = tape.x.size if tape.x is not None else Lin()
    group = spec.layers or 1 if spec.mode == "full" and spec.scope == "uniform" else 1
    forward = tuple(Point(p.phase, p.operator, p.size + kept) for p in first.forward)
    saved = (x + kept) * (1.0 / group)
    backward = again.backward
    if group > 1:
        others = again.saved * float(group - 1)
        backward = [Point(p.phase, p.operator, p.size + others) for p in backward]
    return Pass(saved, forward, tuple(backward), again.wgrad, keeps=False)


def _op_outputs(tape: Tape, style: Style) -> Lin:
    """torchtitan's selective op list (``distributed/activation_checkpoint.py``): the outputs of attention, of every
    second matmul (``mm_count % 2``) and of the reduce-scatters of tensor parallelism."""
    kept = Lin()
    matmuls = 0
    last = max((i for i, n in enumerate(tape.nodes) if _is_matmul(n.name)), default=-1)
    for i, node in enumerate(tape.nodes):
        if node.name == "attn" and style.sac_attention:
            kept.add(node.outs[0].size)
            for t in node.saved:
                if t.name.endswith(".lse"):
                    kept.add(t.size)
        if not _is_matmul(node.name):
            continue
        row = style.sequence_parallel and node.name.endswith(("o_proj", "down_proj"))
        if row and (i != last or style.sac_last):
            kept.add(node.outs[0].size)
        joins = style.fused_qkv and node.name in ("k_proj", "v_proj")
        matmuls += not joins
        if style.sac_every and (matmuls - 1) % style.sac_every == 0 and (i != last or style.sac_last):
            kept.add(node.work.as_category("activations") if row else node.outs[0].size)
    return kept


def _is_matmul(name: str) -> bool:
    return name.endswith("_proj") or name in ("experts.up", "experts.down")


def _group(tape: Tape, inside: Callable[[str], bool], drop_output: bool) -> frozenset[Tensor]:
    """Storages that a recomputed group of nodes need not keep; the group's inputs are kept instead."""
    nodes = [n for n in tape.nodes if inside(n.name)]
    if not nodes:
        return frozenset()
    made = {t.storage for n in nodes for t in n.outs}
    extras = {t.storage for n in nodes for t in n.saved if t.storage not in made and not _is_value(tape, t)}
    outputs = {t.storage for n in tape.nodes if not inside(n.name) for t in n.ins if t.storage in made}
    outside = [t for n in nodes for t in n.ins if t.storage not in made]
    first = nodes[0]
    if first.outs[0].grad:
        first.saved = (*first.saved, *dict.fromkeys(t for t in outside if t not in first.saved))
    return frozenset((made | extras) - (frozenset() if drop_output else outputs))


def _is_value(tape: Tape, t: Tensor) -> bool:
    """Whether ``t`` is an output of some node or the block's input (and not a statistic kept on the side)."""
    return t is tape.x or any(t.storage is o.storage for n in tape.nodes for o in n.outs)


__all__ = ["MODULES", "Node", "Pass", "layer_pass"]
