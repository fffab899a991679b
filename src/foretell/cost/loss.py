"""Output projection and loss, by implementation.

At long sequences this is the largest term of all: logits of ``tokens x vocabulary`` exist several times over.
Each implementation is a list of nodes; the tape finds what lives together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretell.arch.operators import Head, PixelLoss
from foretell.cost.linear import Lin
from foretell.cost.rules_matmul import cast_weights, frozen_saves, lora, narrowed, scale_and_bias
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor
from foretell.cost.weights import LOCAL

CHUNKS = 8
"""Default number of chunks of a chunked loss (torchtune ``CEWithChunkedOutputLoss(num_output_chunks=8)``)."""
LIST_CHUNK = 128
"""Tokens of a chunk (litgpt/finetune/lora.py ``lm_head_chunk_size=128``)."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The output projection as a loss meets it: its input (cast under autocast), and what training its weight costs."""

    x: Tensor
    wgrad: Lin
    trains: bool


@rule(Head)
def head(e: Emitter, op: Head, x: Tensor) -> Tensor:
    """Projection to ``op.rows`` and, for language models, the cross entropy over them."""
    st = e.style
    if st.autocast:
        x = cast(e, x, st.compute, "sp", op.dim, "lm_head.cast")
    tied = op.tied and e.weights.recipe.adapter is None
    trains = tied or (e.weights.trains(op) and not op.tied)
    p = Projection(x, e.weights.tied_gradient(op) if tied else e.weights.gradient(op), trains)
    form = _form(e)
    if form in _PROJECTING:
        return _PROJECTING[form](e, op, p)
    logits = _logits(e, op, p)
    if form in _PIECEWISE:
        return _PIECEWISE[form](e, op, x, logits)
    logits = _tuned(e, op, x, logits)
    return logits if form == "none" else _LOSSES.get(form, _composite)(e, op, logits)


def _form(e: Emitter) -> str:
    """Which implementation runs: the style's, as the rest of the style has it."""
    st = e.style
    if not e.loss:
        return "none"
    if st.loss == "chunked" and st.chunked_head:
        return "chunked-head"
    if st.loss == "compiled" and st.logits_float and st.compute != 4.0:
        return "compiled-float"
    if st.loss == "eager" and st.sequence_parallel:
        return "loss-parallel"
    return st.loss


def _logits(e: Emitter, op: Head, p: Projection) -> Tensor:
    """The matmul alone; under sequence parallelism its input is gathered, once in either direction."""
    st = e.style
    copies = cast_weights(e, op, p.trains)
    keeps = [p.x, *copies] if p.trains else frozen_saves(e, op, p.x)
    work = e.weights.weight_copy(op)
    gather = e.work(op.dim, st.compute, "1") if st.sequence_parallel else Lin()
    return e.tape.node(
        op.name,
        [p.x],
        _all_logits(e, op, st.compute),
        saved=keeps,
        wgrad=p.wgrad,
        narrow=narrowed(e, copies),
        trainable=p.trains,
        work=gather + work[0],
        bwork=gather + work[1],
        unit=st.compute,
    )


def _all_logits(e: Emitter, op: Head, unit: float) -> Lin:
    """Bytes of a tensor of tokens x vocabulary, ``unit`` bytes an element."""
    return e.size(float(op.rows), unit, "tp", "logits")


def _tuned(e: Emitter, op: Head, x: Tensor, logits: Tensor) -> Tensor:
    """What adapters add to the logits, and the soft cap of Gemma 2: ``cap * tanh(logits / cap)``."""
    adapter = e.weights.adapter(op)
    if e.weights.scaled(op):
        logits = scale_and_bias(e, op, logits, float(op.rows), "tp")
    elif adapter is not None:
        logits = lora(e, op, x, logits, adapter, "sp", "tp")
    if op.softcap:
        capped = _all_logits(e, op, logits.unit)
        inner = e.tape.node(f"{op.name}.tanh", [logits], capped, unit=logits.unit)
        e.tape.nodes[-1].saved = (inner,) if inner.grad else ()
        logits = e.tape.node(f"{op.name}.cap", [inner], capped, unit=inner.unit)
    return logits


# -- losses over whole logits ---------------------------------------------------------------------------------


def _te_fused(e: Emitter, _: Head, logits: Tensor) -> Tensor:
    """Transformer Engine's kernel: the gradient overwrites the logits."""
    e.tape.nodes[-1].saved = (*e.tape.nodes[-1].saved, logits)
    return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits], passes=True)


def _compiled(e: Emitter, _: Head, logits: Tensor) -> Tensor:
    """A compiled loss reads the logits as they are and keeps two fp32 statistics a token."""
    lse = e.tape.extra("lse", e.size(2, 4.0, "1", "logits"))
    return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits, lse])


def _compiled_float(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """... of logits that the model returns in fp32: its backward fills and scatters a [tokens, vocabulary] tensor beside
    the gradient."""
    size = _all_logits(e, op, 4.0)
    wide = e.tape.node("logits.float", [logits], size, unit=4.0)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], bwork=size)


def _vocab_parallel(e: Emitter, op: Head, logits: Tensor, work: Lin | None = None) -> Tensor:
    """Megatron-Core (tensor_parallel/cross_entropy.py): softmax in place on an fp32 copy, gradient in place on it."""
    wide = e.tape.node("logits.float", [logits], _all_logits(e, op, 4.0), work=work, unit=4.0)
    e.tape.nodes[-1].saved = (wide,)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], passes=True)


def _native_fused(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """Megatron-Core's native fusion: its compiled pieces make a second fp32 copy for a moment."""
    return _vocab_parallel(e, op, logits, _all_logits(e, op, 4.0))


def _vocab_parallel_copies(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """nanotron (parallel/tensor_parallel/functional.py ``sharded_cross_entropy``): the fp32 logits outlive the forward of
    the loss, whose softmax is a new tensor that becomes the gradient in place."""
    size = _all_logits(e, op, 4.0)
    logits.held = e.style.logits_held == "compute"
    wide = cast(e, logits, 4.0, "tp", op.rows, "logits.float")
    wide.size = wide.size.as_category("logits")
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[e.tape.extra("softmax", size)], passes=True, bwork=size * 0.5)


def _loss_parallel(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """Vocabulary-sharded cross entropy of PyTorch (torch/distributed/tensor/parallel/loss.py): the fp32 input, the
    gradient and two products of it are alive together."""
    logits.held = e.style.logits_held == "compute"
    size = _all_logits(e, op, 4.0)
    wide = e.tape.node("logits.float", [logits], size, unit=4.0)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], work=size, bwork=size * 2.0)


def _composite(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """``log_softmax`` and ``nll_loss`` of PyTorch, on fp32 logits where the code makes them so."""
    st = e.style
    logits.held = st.logits_held == "compute"
    if op.buffer and st.composite:
        unit = 4.0 if st.autocast else logits.unit
        logits = e.tape.node("logits.bias", [logits], _all_logits(e, op, unit), unit=unit)
    upcast = st.logits_upcast and not (op.direct and st.composite)
    wide = cast(e, logits, 4.0, "tp", op.rows, "logits.float") if upcast and st.compute != 4.0 else logits
    wide.size = wide.size.as_category("logits")
    wide.held = wide.held or st.logits_held == "float"
    if st.frames:
        e.frame.append(logits)
    if st.logits_shift:
        wide = e.tape.node("logits.shift", [wide], wide.size, unit=wide.unit)
    loss = _nll(e, wide, _all_logits(e, op, wide.unit), "log_softmax", "nll_loss", labels=8.0)
    if st.outputs_float and st.autocast and logits.unit < 4.0:
        e.tape.node("outputs.float", [logits], _all_logits(e, op, 4.0), unit=4.0)
    return loss


def _nll(e: Emitter, scores: Tensor, size: Lin, softmax: str, loss: str, *, labels: float = 0.0) -> Tensor:
    """Log-probabilities of ``size`` bytes, kept for both their own gradient and the loss's, and labels (bytes a row).

    Autocast widens half-precision log-probabilities for the loss (``nll_loss`` is among its fp32 operators; a softmax that
    is told its format, as ``cross_entropy`` tells it, is left alone).
    """
    lsm = e.tape.node(softmax, [scores], size, unit=scores.unit)
    e.tape.nodes[-1].saved = ((scores, lsm) if e.style.softmax_input else (lsm,)) if lsm.grad else ()
    read = lsm
    if e.style.autocast and lsm.unit < 4.0:
        read = e.tape.node(f"{softmax}.float", [lsm], size * (4.0 / lsm.unit), unit=4.0)
    kept = [e.tape.extra("labels", e.size(1, labels, "1", "logits"))] if labels else []
    return e.tape.node(loss, [read], Lin(), saved=[read, *kept])


def _chunked(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """The fp32 copies of one chunk at a time; log-probabilities of every chunk stay until their backward."""
    wide = e.work(op.rows / CHUNKS, 4.0, "tp")
    lsm = e.tape.extra("log_softmax", _all_logits(e, op, 4.0))
    return e.tape.node("cross_entropy", [logits], Lin(), saved=[lsm], work=wide, bwork=wide)


# -- losses over a list of chunks that the head gives -----------------------------------------------------------


def _output_chunked(e: Emitter, op: Head, _: Tensor, logits: Tensor) -> Tensor:
    """The chunked loss of torchtune: the output projection gives a list of chunks, the loss reads one after the other.

    Autograd runs every chunk's loss backward before the first projection's, and each chunk's gradient replaces its
    logits (or, in eager code, its fp32 log-probabilities).  The projection's weight gradient is summed over the
    chunks: the sum and one chunk's are there together.
    """
    st = e.style
    node = e.tape.nodes[-1]
    node.saved = (*node.saved, logits)
    node.bwork = node.bwork + node.wgrad.as_category("temporaries")
    chunk = e.work(op.rows / CHUNKS, 1.0, "tp")
    if st.loss_compiled:
        return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits], passes=True, bwork=chunk * st.compute)
    lsm = e.tape.extra("log_softmax", _all_logits(e, op, 4.0))
    return e.tape.node(
        "cross_entropy", [logits], Lin(), saved=[lsm, logits], passes=True, work=chunk * 4.0, bwork=chunk * (8.0 + st.compute)
    )


def _list_chunked(e: Emitter, op: Head, x: Tensor, logits: Tensor) -> Tensor:
    """LitGPT's tuning loss: the head gives a list of chunks, Lightning Fabric converts every chunk to fp32, and the
    loop's variable holds them; log-probabilities of every chunk stay, and each is freed as its gradient is made (from
    the gradient of the chunk's log-probabilities: two chunks more at the first).

    Sources: litgpt/model.py, utils.chunked_cross_entropy; lightning fabric/wrappers.py ``_FabricModule`` converts a
    module's outputs to the default dtype.
    """
    st = e.style
    node = e.tape.nodes[-1]
    adapter = e.weights.adapter(op)
    if e.weights.scaled(op):
        node.saved = (*node.saved, e.tape.extra(f"{op.name}.scale", _all_logits(e, op, st.compute)))
    elif adapter is not None:
        mask = e.tape.extra(f"{op.name}.lora_mask", e.size(op.dim if adapter.dropout else 0, 1.0, "sp"))
        dropped = e.tape.extra(f"{op.name}.lora_dropout", e.size(op.dim, st.compute, "sp")) if adapter.dropout else x
        node.saved = (*node.saved, mask, dropped)
        node.wgrad = node.wgrad + adapter.grad_a + adapter.grad_b
    chunk = Lin.of("temporaries", "B/tp", LIST_CHUNK * op.rows * 4.0)
    size = _all_logits(e, op, 4.0)
    half = _all_logits(e, op, st.compute)
    wide = e.tape.node("logits.convert", [logits], size, bwork=half * -1.0 + chunk, unit=4.0)
    wide.held = True
    lsm = e.tape.extra("log_softmax", size)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[lsm], work=chunk, bwork=chunk * 2.0 - size)


# -- losses that project for themselves --------------------------------------------------------------------------


def _chunked_head(e: Emitter, op: Head, p: Projection) -> Tensor:
    """Projection and loss chunk by chunk: one chunk of logits (bf16, and three fp32 tensors), hidden and its gradient."""
    wide, tokens = e.style.compute + 12.0, e.style.chunk_tokens
    chunk = Lin.of("temporaries", "1/1", op.rows * tokens * wide) if tokens else e.work(op.rows / CHUNKS, wide, "tp")
    kept = e.tape.extra("d_hidden", p.x.size.as_category("logits"))
    return e.tape.node("chunked_cross_entropy", [p.x], Lin(), saved=[p.x, kept], work=chunk, wgrad=p.wgrad, trainable=p.trains)


def _linear_chunked(e: Emitter, op: Head, p: Projection) -> Tensor:
    """torchtune's ``LinearCrossEntropyLoss`` (modules/loss/cross_entropy_loss.py): projection and loss chunk by chunk.

    Nothing is computed again: each chunk's fp32 log-probabilities (compiled: its logits) stay until its own backward
    pass.  The projection's weight gradient is summed over the chunks: the sum and one chunk's are there together.
    """
    st = e.style
    unit = st.compute if st.loss_compiled else 4.0
    kept = e.tape.extra("log_softmax", _all_logits(e, op, unit))
    chunk = e.work(op.rows / CHUNKS, 1.0, "tp")
    back = chunk * (st.compute if st.loss_compiled else 8.0 + st.compute)
    if p.trains:  # the second chunk's, when the first one's is gone
        back = back + p.wgrad.as_category("temporaries") - chunk * unit
    return e.tape.node(
        "linear_cross_entropy",
        [p.x],
        Lin(),
        saved=[p.x, kept] if p.trains else [kept],
        work=chunk * (0.0 if st.loss_compiled else st.compute + 4.0),
        bwork=back,
        wgrad=p.wgrad,
        trainable=p.trains,
    )


def _fused_linear(e: Emitter, op: Head, p: Projection) -> Tensor:
    """Liger's fused linear cross entropy (linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py).

    The forward pass makes the gradients: of the input, and of the weight in the weight's format, to which every chunk's
    product is added as an fp32 copy.  The backward pass hands them on.  A chunk has as many logits as the input has
    elements, rounded up to a power of two of tokens (1.5 times on average is not counted).
    """
    chunk = e.work(op.dim, e.style.compute, "1")
    made = [e.tape.extra("d_hidden", p.x.size.as_category("logits"))]
    if p.trains:
        stored = Lin.of("gradients", LOCAL["tp"], float(op.rows) * op.dim * e.style.compute)
        chunk = chunk + stored.as_category("temporaries") * (1.0 + 4.0 / e.style.compute)
        made.append(e.tape.extra("d_weight", stored))
    return e.tape.node(
        "fused_linear_cross_entropy", [p.x], Lin(), saved=made, work=chunk, wgrad=p.wgrad, trainable=p.trains, inplace=True
    )


_PROJECTING: dict[str, Callable[[Emitter, Head, Projection], Tensor]] = {
    "chunked-head": _chunked_head,
    "fused-linear": _fused_linear,
    "linear-chunked": _linear_chunked,
}
_PIECEWISE: dict[str, Callable[[Emitter, Head, Tensor, Tensor], Tensor]] = {
    "output-chunked": _output_chunked,
    "list-chunked": _list_chunked,
}
_LOSSES: dict[str, Callable[[Emitter, Head, Tensor], Tensor]] = {
    "chunked": _chunked,
    "compiled": _compiled,
    "compiled-float": _compiled_float,
    "loss-parallel": _loss_parallel,
    "native-fused": _native_fused,
    "te-fused": _te_fused,
    "vocab-parallel": _vocab_parallel,
    "vocab-parallel-copies": _vocab_parallel_copies,
}
"""Implementation by name; ``eager``, ``hf`` and any other are PyTorch's composite loss."""


@rule(PixelLoss)
def pixel_loss(e: Emitter, op: PixelLoss, x: Tensor) -> Tensor:
    """Resized scores (bilinear: nothing kept) and their fp32 log-probabilities."""
    e.rows, e.per = "B", float(op.positions)
    scores = e.tape.node(f"{op.name}.resize", [x], e.size(op.classes, x.unit, "1", "logits"), unit=x.unit)
    wide = cast(e, scores, 4.0, "1", op.classes, f"{op.name}.float")
    return _nll(e, wide, e.size(op.classes, 4.0, "1", "logits"), f"{op.name}.log_softmax", op.name)
