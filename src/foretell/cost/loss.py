"""Output projection and loss, by implementation.

At long sequences this is the largest term of all: logits of ``tokens x vocabulary`` exist several times over.
Each implementation is a list of nodes; the tape finds what lives together.
"""

from __future__ import annotations

from foretell.arch.operators import Head, PixelLoss
from foretell.cost.linear import Lin
from foretell.cost.rules_matmul import cast_weights, frozen_saves, lora, scale_and_bias
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor
from foretell.cost.weights import LOCAL

CHUNKS = 8
"""Default number of chunks of a chunked loss (torchtune ``CEWithChunkedOutputLoss(num_output_chunks=8)``)."""


@rule(Head)
def head(e: Emitter, op: Head, x: Tensor) -> Tensor:
    """Projection to ``op.rows`` and, for language models, the cross entropy over them."""
    st = e.style
    if st.autocast:
        x = cast(e, x, st.compute, "sp", op.dim, "lm_head.cast")
    v = float(op.rows)
    trains = e.weights.trains(op) and not op.tied
    tied_grad = op.tied and e.weights.recipe.adapter is None
    wgrad = e.weights.tied_gradient(op) if tied_grad else e.weights.gradient(op)
    keeps = [x, *cast_weights(e, op, True)] if trains or tied_grad else frozen_saves(e, op, x)
    gather = e.work(op.dim, st.compute, "1") if st.sequence_parallel else Lin()
    form = st.loss if e.loss else "none"
    if form == "fused-linear":
        return _fused_linear(e, op, x, wgrad, trains or tied_grad)
    if form == "chunked" and st.chunked_head:
        return _chunked_head(e, op, x, wgrad, trains or tied_grad)
    copy, bcopy = e.weights.weight_copy(op)
    logits = e.tape.node(
        op.name, [x], e.size(v, st.compute, "tp", "logits"), saved=keeps, wgrad=wgrad, trainable=trains or tied_grad,
        work=gather + copy, bwork=gather + bcopy, unit=st.compute,
    )  # fmt: skip
    if form == "output-chunked":
        return _output_chunked(e, op, logits)
    if form == "list-chunked":
        return _list_chunked(e, op, x, logits)
    adapter = e.weights.adapter(op)
    if e.weights.scaled(op):
        logits = scale_and_bias(e, op, logits, v, "tp")
    elif adapter is not None:
        logits = lora(e, op, x, logits, adapter, "sp", "tp")
    if op.softcap:
        capped = e.size(v, logits.unit, "tp", "logits")
        inner = e.tape.node(f"{op.name}.tanh", [logits], capped, unit=logits.unit)
        e.tape.nodes[-1].saved = (inner,) if inner.grad else ()
        logits = e.tape.node(f"{op.name}.cap", [inner], capped, unit=inner.unit)
    if form == "none":
        return logits
    if form == "chunked":
        return _chunked(e, op, logits)
    if form == "te-fused":  # the gradient overwrites the logits
        e.tape.nodes[-1].saved = (*e.tape.nodes[-1].saved, logits)
        return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits], passes=True)
    if form == "compiled" and st.logits_float and st.compute != 4.0:
        # the compiled backward fills and scatters a [tokens, vocabulary] tensor beside the gradient
        size = e.size(v, 4.0, "tp", "logits")
        wide = e.tape.node("logits.float", [logits], size, unit=4.0)
        return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], bwork=size)
    if form == "compiled":
        lse = e.tape.extra("lse", e.size(2, 4.0, "1", "logits"))
        return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits, lse])
    if form in ("vocab-parallel", "native-fused"):
        # Megatron-Core tensor_parallel/cross_entropy.py: softmax in place on an fp32 copy, gradient in place on it;
        # the compiled pieces of the native fusion make a second fp32 copy for a moment
        copy = e.size(v, 4.0, "tp", "logits") if form == "native-fused" else Lin()
        wide = e.tape.node("logits.float", [logits], e.size(v, 4.0, "tp", "logits"), work=copy, unit=4.0)
        e.tape.nodes[-1].saved = (wide,)
        return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], passes=True)
    if form == "vocab-parallel-copies":
        # nanotron parallel/tensor_parallel/functional.py sharded_cross_entropy: the fp32 logits outlive the forward of the
        # loss, whose softmax is a new tensor that becomes the gradient in place
        size = e.size(v, 4.0, "tp", "logits")
        logits.held = st.logits_held == "compute"
        wide = cast(e, logits, 4.0, "tp", v, "logits.float")
        wide.size = wide.size.as_category("logits")
        return e.tape.node("cross_entropy", [wide], Lin(), saved=[e.tape.extra("softmax", size)], passes=True, bwork=size * 0.5)
    logits.held = st.logits_held == "compute"
    if form == "loss-parallel" or (form == "eager" and st.sequence_parallel):
        return _loss_parallel(e, op, logits)
    wide = cast(e, logits, 4.0, "tp", v, "logits.float") if st.logits_upcast and st.compute != 4.0 else logits
    wide.size = wide.size.as_category("logits")
    wide.held = wide.held or st.logits_held == "float"
    if st.frames:
        e.frame.append(logits)
    if st.logits_shift:
        wide = e.tape.node("logits.shift", [wide], wide.size, unit=wide.unit)
    lsm = e.tape.node("log_softmax", [wide], e.size(v, wide.unit, "tp", "logits"), unit=wide.unit)
    e.tape.nodes[-1].saved = ((wide, lsm) if e.style.softmax_input else (lsm,)) if lsm.grad else ()
    return e.tape.node("nll_loss", [lsm], Lin(), saved=[lsm])


def _chunked(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """The fp32 copies of one chunk at a time; log-probabilities of every chunk stay until their backward."""
    v = float(op.rows)
    wide = e.work(v / CHUNKS, 4.0, "tp") * 1
    lsm = e.tape.extra("log_softmax", e.size(v, 4.0, "tp", "logits"))
    return e.tape.node("cross_entropy", [logits], Lin(), saved=[lsm], work=wide, bwork=wide)


def _output_chunked(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """The chunked loss of torchtune: the output projection gives a list of chunks, the loss reads one after the other.

    Autograd runs every chunk's loss backward before the first projection's, and each chunk's gradient replaces its
    logits (or, in eager code, its fp32 log-probabilities).  The projection's weight gradient is summed over the
    chunks: the sum and one chunk's are there together.
    """
    v, st = float(op.rows), e.style
    node = e.tape.nodes[-1]
    node.saved = (*node.saved, logits)
    node.bwork = node.bwork + node.wgrad.as_category("temporaries")
    chunk = e.work(v / CHUNKS, 1.0, "tp")
    if st.loss_compiled:
        return e.tape.node("cross_entropy", [logits], Lin(), saved=[logits], passes=True, bwork=chunk * st.compute)
    lsm = e.tape.extra("log_softmax", e.size(v, 4.0, "tp", "logits"))
    return e.tape.node(
        "cross_entropy", [logits], Lin(), saved=[lsm, logits], passes=True, work=chunk * 4.0, bwork=chunk * (8.0 + st.compute)
    )


LIST_CHUNK = 128
"""Tokens of a chunk (litgpt/finetune/lora.py ``lm_head_chunk_size=128``)."""


def _list_chunked(e: Emitter, op: Head, x: Tensor, logits: Tensor) -> Tensor:
    """LitGPT's tuning loss: the head gives a list of chunks, Lightning Fabric converts every chunk to fp32, and the
    loop's variable holds them; log-probabilities of every chunk stay, and each is freed as its gradient is made (from
    the gradient of the chunk's log-probabilities: two chunks more at the first).

    Sources: litgpt/model.py, utils.chunked_cross_entropy; lightning fabric/wrappers.py ``_FabricModule`` converts a
    module's outputs to the default dtype.
    """
    v, st = float(op.rows), e.style
    node = e.tape.nodes[-1]
    adapter = e.weights.adapter(op)
    if e.weights.scaled(op):
        node.saved = (*node.saved, e.tape.extra(f"{op.name}.scale", e.size(v, st.compute, "tp", "logits")))
    elif adapter is not None:
        mask = e.tape.extra(f"{op.name}.lora_mask", e.size(op.dim if adapter.dropout else 0, 1.0, "sp"))
        dropped = e.tape.extra(f"{op.name}.lora_dropout", e.size(op.dim, st.compute, "sp")) if adapter.dropout else x
        node.saved = (*node.saved, mask, dropped)
        node.wgrad = node.wgrad + adapter.grad_a + adapter.grad_b
    chunk = Lin.of("temporaries", "B/tp", LIST_CHUNK * v * 4.0)
    size = e.size(v, 4.0, "tp", "logits")
    half = e.size(v, st.compute, "tp", "logits")
    wide = e.tape.node("logits.convert", [logits], size, bwork=half * -1.0 + chunk, unit=4.0)
    wide.held = True
    lsm = e.tape.extra("log_softmax", size)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[lsm], work=chunk, bwork=chunk * 2.0 - size)


def _loss_parallel(e: Emitter, op: Head, logits: Tensor) -> Tensor:
    """Vocabulary-sharded cross entropy of PyTorch (torch/distributed/tensor/parallel/loss.py): the fp32 input, the
    gradient and two products of it are alive together."""
    size = e.size(float(op.rows), 4.0, "tp", "logits")
    wide = e.tape.node("logits.float", [logits], size, unit=4.0)
    return e.tape.node("cross_entropy", [wide], Lin(), saved=[wide], work=size, bwork=size * 2.0)


def _chunked_head(e: Emitter, op: Head, x: Tensor, wgrad: Lin, trains: bool) -> Tensor:
    """Projection and loss chunk by chunk: one chunk of logits (bf16, and three fp32 tensors), hidden and its gradient."""
    v = float(op.rows) / CHUNKS
    chunk = e.work(v, e.style.compute + 12.0, "tp")
    kept = e.tape.extra("d_hidden", x.size.as_category("logits"))
    return e.tape.node("chunked_cross_entropy", [x], Lin(), saved=[x, kept], work=chunk, wgrad=wgrad, trainable=trains)


def _fused_linear(e: Emitter, op: Head, x: Tensor, wgrad: Lin, trains: bool) -> Tensor:
    """Liger's fused linear cross entropy (linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py).

    The forward pass makes the gradients: of the input, and of the weight in the weight's format, to which every chunk's
    product is added as an fp32 copy.  The backward pass hands them on.  A chunk has as many logits as the input has
    elements, rounded up to a power of two of tokens (1.5 times on average is not counted).
    """
    chunk = e.work(op.dim, e.style.compute, "1")
    made = [e.tape.extra("d_hidden", x.size.as_category("logits"))]
    if trains:
        stored = Lin.of("gradients", LOCAL["tp"], float(op.rows) * op.dim * e.style.compute)
        chunk = chunk + stored.as_category("temporaries") * (1.0 + 4.0 / e.style.compute)
        made.append(e.tape.extra("d_weight", stored))
    return e.tape.node(
        "fused_linear_cross_entropy", [x], Lin(), saved=made, work=chunk, wgrad=wgrad, trainable=trains, inplace=True
    )


@rule(PixelLoss)
def pixel_loss(e: Emitter, op: PixelLoss, x: Tensor) -> Tensor:
    """Resized scores (bilinear: nothing kept) and their fp32 log-probabilities."""
    e.rows, e.per = "B", float(op.positions)
    scores = e.tape.node(f"{op.name}.resize", [x], e.size(op.classes, x.unit, "1", "logits"), unit=x.unit)
    wide = cast(e, scores, 4.0, "1", op.classes, f"{op.name}.float")
    lsm = e.tape.node(f"{op.name}.log_softmax", [wide], e.size(op.classes, 4.0, "1", "logits"), unit=4.0)
    e.tape.nodes[-1].saved = ((wide, lsm) if e.style.softmax_input else (lsm,)) if lsm.grad else ()
    return e.tape.node(op.name, [lsm], Lin(), saved=[lsm])
