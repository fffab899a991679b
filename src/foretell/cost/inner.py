"""Mamba's fused inner function: from the gated projection to the output projection in one autograd node.

``MambaInnerFn`` (state-spaces/mamba ``mamba_ssm/ops/selective_scan_interface.py``), which transformers calls in training
where the kernels are installed, keeps the projection of gate and input, the projection to dt, B and C, and the scan's
output before its gate; its backward makes the convolution's output, dt and the gated output again (checkpoint level 1).
"""

from __future__ import annotations

from foretell.arch.operators import Norm, Operator, Scan
from foretell.cost.linear import total
from foretell.cost.tape import Tape, Tensor

INSIDE = ("conv1d", "x_proj", "dt_layernorm", "b_layernorm", "c_layernorm", "dt_proj", "scan", "gated", "out_proj")


def applies(ops: tuple[Operator, ...]) -> bool:
    """Whether a block is one that the function covers: Mamba 1, with norms of dt, B and C only if they have no weight."""
    scans = any(isinstance(op, Scan) and op.kind == "mamba1" for op in ops)
    return scans and not any(isinstance(op, Norm) and op.affine and op.name == "dt_layernorm" for op in ops)


def fuse(tape: Tape, env: dict[str, Tensor]) -> None:
    """Let the nodes inside keep nothing but what the function keeps."""
    again = []
    for node in tape.nodes:
        name = node.name.split(".")[0]
        if name not in INSIDE:
            continue
        if name in ("conv1d", "dt_proj", "gated"):
            again.append(node.outs[0].size)
        node.saved = ()
        if node.name == "scan":
            node.saved = (env["in_proj"], env["x_proj"], node.outs[0])
        if node.name == "out_proj":
            node.bwork = node.bwork + total(again).as_category("temporaries")


__all__ = ["applies", "fuse"]
