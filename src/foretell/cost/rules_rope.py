"""Rotary position embedding: by a fused kernel, in place, or written out as transformers does."""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Rope
from foretell.cost.linear import Lin, total
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor
from foretell.recipe.style import Style


@rule(Rope)
def rope(e: Emitter, op: Rope, x: Tensor) -> Tensor:
    """Rotation: linear in ``x``, so only the (shared, small) tables are kept."""
    style = e.style.rope
    if style == "composite":
        return _written_out(e, op, x)
    if style == "inplace":  # the projection itself is turned
        return e.tape.node(op.name, [x], view=True)
    unit, work = e.style.compute, Lin()
    if style == "eager":
        work = e.work(op.width, unit, "tp")
    elif style == "complex":
        work = e.work(op.width, 4.0, "tp") * 2
    return e.tape.node(op.name, [x], e.size(op.width, unit, "tp"), work=work, bwork=work, unit=unit)


def _written_out(e: Emitter, op: Rope, x: Tensor) -> Tensor:
    """``x * cos + turned(x) * sin`` (transformers ``apply_rotary_pos_emb``), in the wider of the formats of x and the tables.

    Where features are left over, or the model's code always does so, what turned is joined to the rest in a new tensor that
    is laid out heads first.
    """
    turns, given = float(op.heads * op.rotary), x
    if op.wide == "operands":
        x = cast(e, x, 4.0, "tp", op.width, f"{op.name}.float")
    unit = max(x.unit, _table_unit(op, e.style))
    size, half = e.size(turns, unit, "tp"), e.work(turns / 2, x.unit, "tp")
    a = e.tape.node(f"{op.name}.cos", [x], size, saved=_own_tables(e, op), unit=unit)
    turned = e.tape.node(f"{op.name}.turn", [x], e.size(turns, x.unit, "tp"), work=half, bwork=half, unit=x.unit)
    b = e.tape.node(f"{op.name}.sin", [turned], size, unit=unit)
    out = e.tape.node(op.name, [a, b], size, passes=True, unit=unit)
    if op.joined or op.rotary < op.dim:
        out = e.tape.node(f"{op.name}.join", [out, x], e.size(op.width, unit, "tp"), unit=unit)
        e.heads_first.add(out)
    return cast(e, out, given.unit, "tp", op.width, f"{op.name}.to") if op.wide else out


def _own_tables(e: Emitter, op: Rope) -> list[Tensor]:
    """The layer's own copies of the tables, which its query and its key share."""
    if op.tables != "own" or "rope_tables" in e.env:
        return []
    e.env["rope_tables"] = e.tape.extra(f"{op.name}.tables", _tables(op, e.style))
    return [e.env["rope_tables"]]


def _table_unit(op: Rope, style: Style) -> float:
    return 4.0 if op.wide == "tables" else style.residual


def _tables(op: Rope, style: Style) -> Lin:
    width = op.rotary / 2 if op.tables == "half" else op.rotary
    return Lin.of("rope_tables", "S/1", 2.0 * width * _table_unit(op, style))


def tables(arch: Architecture, style: Style, *, own: bool = False) -> Lin:
    """Sines and cosines that the layers share, kept for the backward pass of their products (``own``: also those that each
    layer copies, which a checkpointed layer is given all the same)."""
    found = {
        (op.rotary, op.tables, op.wide): _tables(op, style)
        for block in arch.main.blocks
        for op in block.ops
        if isinstance(op, Rope) and (own or op.tables != "own")
    }
    return total(found.values())


__all__ = ["rope", "tables"]
