"""What Megatron-Core with Transformer Engine keeps allocated beside states and activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.arch.operators import Experts, Head, Linear
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, unit

if TYPE_CHECKING:
    from foretell.cost.folder import StageFolder

_FUSED_COLUMNS = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})
"""Matrices that Megatron runs as one."""


def megatron_resident(folder: StageFolder) -> Lin:
    """Bytes that stay for ever.

    * One dummy weight gradient per distinct weight shape, kept for ever, when gradient accumulation is fused into
      the matmul (TransformerEngine ``pytorch/module/base.py`` ``get_dummy_wgrad``; Megatron-LM
      ``core/tensor_parallel/layers.py`` for the output layer).
    * The global buffer that gathers the head's input under sequence parallelism (``layers.py`` ``mpu`` buffer).
    * On later stages the received input of the running micro-batch (``schedules.py``).
    """
    out = Lin()
    hidden = float(folder.arch.hidden)
    wide = unit(folder.plan.formats.compute)
    if folder.style.main_grad_fusion:
        shapes = dict.fromkeys(shape for block, _ in folder.blocks() for shape in fused_matmuls(block))
        for shard, rows, columns in shapes:
            out.add(Lin.of("weight_gradient_scratch", LOCAL[shard], rows * columns * wide))
    if folder.style.sequence_parallel and folder.stage.last:
        out.add(Lin.of("communication_buffers", "T/1", hidden * wide))
    if folder.stage.index > 0 or len(folder.stage.chunks) > 1:
        out.add(Lin.of("communication_buffers", "T/sp", hidden * wide))
    return out


def fused_matmuls(block: Block) -> list[tuple[str, int, int]]:
    """(shard, rows, columns) of every matmul of a block as Megatron runs them: q, k, v and gate, up in one each."""
    out: list[tuple[str, int, int]] = []
    merged: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for op in block.ops:
        if isinstance(op, Linear):
            leaf = op.name.removeprefix("shared_")
            group = next((i for i, names in enumerate(_FUSED_COLUMNS) if leaf in names), None)
            if group is not None:
                merged.setdefault((group, (*op.ins, op.name.removesuffix(leaf))), [0, op.d_in])[0] += op.d_out
            else:
                out.append(("tp" if op.split else "1", op.d_out, op.d_in))
        elif isinstance(op, Experts):
            # grouped matmuls: one buffer per shape of a single expert, divided by expert-tp, not by ep
            out += [("etp", op.ffn * (2 if op.gated else 1), op.dim), ("etp", op.dim, op.ffn)]
        elif isinstance(op, Head):
            out.append(("tp", op.rows, op.dim))
    out += [("tp", rows, columns) for rows, columns in merged.values()]
    return out
