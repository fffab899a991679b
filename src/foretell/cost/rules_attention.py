"""Attention: which kernel runs, what the fused ones keep, and the prompt attention of adapters."""

from __future__ import annotations

from foretell.arch.operators import Attention, PromptAttention
from foretell.cost.linear import Lin
from foretell.cost.rules_scores import PAIRS, buckets, by_products, eager, repeated, score_rows, written_out
from foretell.cost.saved import Emitter, cast, rule, sized
from foretell.cost.tape import Tensor

ROUNDED, ALIGNED = 32, 16
FLASH_HEAD = 256
"""Widest head of FlashAttention-2 (pytorch ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``)."""


@rule(Attention)
def attention(e: Emitter, op: Attention, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """Attention core: one fused kernel, or scores written out where the style or the operator asks for them."""
    k, v = k or e.outside("keys"), v or e.outside("values")
    if eager(e.style, op):
        return written_out(e, op, q, k, v)
    if e.style.autocast and e.style.composite:  # rotary tables are wider than the operands: cast at the call
        q = cast(e, q, e.style.compute, "tp", op.heads * op.head_dim, f"{op.name}.cast")
        k = cast(e, k, e.style.compute, "tp", op.kv_heads * op.head_dim, f"{op.name}.cast")
        v = cast(e, v, e.style.compute, "tp", op.kv_heads * op.v_dim, f"{op.name}.cast")
    kernel = _kernel(e, op)
    return by_products(e, op, q, k, v) if kernel == "math" else _fused(e, op, q, k, v, kernel)


def mask_is_made(e: Emitter, op: Attention) -> bool:
    """Whether transformers makes a mask: always, or only where a sequence is longer than the window (``masking_utils.py``)."""
    bound = 0 < op.window < e.weights.recipe.seq_len
    return e.style.composite and (op.masked or bound) and op.memory == "self"


def _kernel(e: Emitter, op: Attention) -> str:
    """The kernel; PyTorch's own choice is that of 2.13 (``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``).

    FlashAttention wants half precision, no mask, and keys as wide as values; the memory-efficient kernel wants as many
    key heads as query heads, which transformers sees to only where there is a mask (``integrations/sdpa_attention.py``).
    """
    st = e.style
    if st.attention != "sdpa":
        return st.attention
    shared = op.kv_heads != op.heads
    masked = bool(op.position) or mask_is_made(e, op)
    if shared and op.broadcast and st.composite:
        return "math"
    if st.compute < 4.0 and op.head_dim == op.v_dim <= FLASH_HEAD and not masked:
        return "flash"
    return "math" if shared and not masked and not st.gqa_expand else "efficient"


def _fused(e: Emitter, op: Attention, q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Tensor:
    """q, k, v, out and the fp32 log-sum-exp are kept (FlashAttention-2, arXiv 2307.08691), and a mask if there is one."""
    st, unit = e.style, e.style.compute
    if st.gqa_expand or kernel == "efficient":
        k, v = repeated(e, op, "k", k), repeated(e, op, "v", v)
    out_size = e.size(op.width, unit, "tp")
    saved = [q, k, v, e.tape.extra(f"{op.name}.lse", _statistics(e, op, kernel))]
    if kernel == "efficient":
        saved += [*buckets(e, op), *(e.tape.extra(f"{op.name}.mask.{i}", size) for i, size in enumerate(_masks(e, op, k)))]
    keys_and_values = op.kv_heads * (op.head_dim + op.v_dim)
    work, bwork = Lin(), _backward_workspace(e, op, kernel, q)
    if st.packed_kv:
        k = v = e.tape.node(f"{op.name}.pack_kv", [k, v], e.size(keys_and_values, unit, "tp"), unit=unit)
        saved = [q, k, saved[-1]]
    if st.ring:  # keys and values travel from rank to rank, and in the backward pass their gradients as well
        saved.append(e.tape.extra(f"{op.name}.ring", out_size))
        work = e.work(keys_and_values, unit, "tp") * 2.0
        bwork = bwork + work + e.work(op.heads * op.head_dim + keys_and_values, unit, "tp") * 2.0
    out = e.tape.node(
        op.name,
        [q, k, v],
        out_size,
        saved=saved,
        work=work,
        bwork=bwork,
        wgrad=e.weights.gradient(op),
        trainable=e.weights.trains(op),
        unit=unit,
    )
    if out.grad:
        e.tape.nodes[-1].saved = (*saved, out)
    heads_first = st.heads_first or op.heads_first or q in e.heads_first
    if heads_first and kernel != "efficient":  # that one's output is laid out token by token
        out = e.tape.node(f"{op.name}.reshape", [out], out_size, unit=unit)
    return out


def _masks(e: Emitter, op: Attention, k: Tensor) -> list[Lin]:
    """What a kernel keeps as its mask: of a window, made additive in every layer, or biases by position and, where they are
    causal, the condition that they were chosen by.  The kernel reads rows of a multiple of 16 elements."""
    unit, heads = e.style.compute, float(op.heads)
    if mask_is_made(e, op):
        rows, n = score_rows(e, op, k)
        return [Lin.of("mask", f"{rows}/1", n / heads * unit)]
    if op.position == "table":
        condition = [Lin.of("mask", f"{PAIRS[e.rows]}/1", 1.0)] if op.causal else []
        return [Lin.of("mask", f"{PAIRS[e.rows]}/tp", heads * unit), *condition]
    if op.position == "zeros" and any(isinstance(other, Attention) and other.extra for other in e.block.ops):
        return [Lin.of("mask", "SF/tp", heads * unit)]  # the first layer makes them for all
    columns = ALIGNED * -(-op.window // ALIGNED) * heads * unit
    if op.position == "window":
        return [Lin.of("mask", "1/tp", op.window * columns)]
    return [Lin.of("mask", f"{e.rows}/tp", e.per * columns)] if op.position == "shifted" else []


def _statistics(e: Emitter, op: Attention, kernel: str) -> Lin:
    """Log-sum-exp of every query; the memory-efficient kernel rounds queries up to 32 (``attention_forward_generic``), which
    is known where a sample has a fixed number of them."""
    if kernel == "efficient" and e.rows == "B":
        seen = op.window or e.per  # windows of a sample are samples of their own
        return Lin.of("activations", "B/tp", 4.0 * op.heads * e.per / seen * ROUNDED * -(-seen // ROUNDED))
    return e.size(op.heads, 4.0, "tp")


def _backward_workspace(e: Emitter, op: Attention, kernel: str, q: Tensor) -> Lin:
    """What the backward kernels accumulate in: flash an fp32 dq and, where heads share keys, dk and dv of every query head
    (``flash_api.cpp``); the efficient one row sums and, for half precision, an fp32 dq (``kernel_backward.h``)."""
    query = float(op.heads * op.head_dim)
    rows = sized(e, q, op.heads, 4.0, "temporaries")
    if kernel == "flash":
        shared = op.kv_heads != op.heads and not e.style.gqa_expand
        expanded = op.heads * (op.head_dim + op.v_dim) * e.style.compute if shared and e.style.composite else 0.0
        return rows + e.work(query, 4.0, "tp") + e.work(expanded, 1.0, "tp")
    if kernel == "efficient" and e.style.composite:
        return rows + (e.work(query, 4.0, "tp") if e.style.compute < 4.0 else Lin())
    return Lin()


@rule(PromptAttention)
def prompt_attention(e: Emitter, op: PromptAttention, q: Tensor, y: Tensor) -> Tensor:
    """``y + gate * attention(q, prompt)`` (litgpt/adapter.py): the second attention keeps q and its output."""
    size = e.size(op.width, e.style.compute, "tp")
    ay = e.tape.node(f"{op.name}.attn", [q], size, saved=[q], trainable=True, unit=e.style.compute)
    e.tape.nodes[-1].saved = (q, ay)
    gated = e.tape.node(f"{op.name}.gate", [ay], size, saved=[ay], trainable=True, unit=e.style.compute)
    return e.tape.node(op.name, [y, gated], size, passes=True, unit=e.style.compute)
