"""Mamba's recurrence as transformers writes it out where the kernels of ``mamba_ssm`` are not installed: a loop over the tokens.

Source: transformers 5.24.0 ``models/mamba/modeling_mamba.py``: ``causal_conv1d_fn``, ``mamba_selective_scan``,
``MambaMixer.forward``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Conv, Linear, Scan
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter, cast
from foretell.cost.tape import Tensor
from foretell.recipe.style import Style

FP32 = 4.0
_LATE = 2
"""Steps that the loop's backward pass has behind it when it is highest: each gives a gradient of the size of all steps, which is
added to that of the step before."""


def padding_mask(arch: Architecture, style: Style) -> Lin:
    """The collator's mask, by which every layer's convolution is multiplied (``apply_mask_to_padding_states``)."""
    scans = any(isinstance(op, Scan) and op.kind == "mamba1" for stack in arch.stacks for b in stack.blocks for op in b.ops)
    return Lin.of("masks", "T/1", 8.0) if style.scan == "eager" and scans else Lin()


def convolved(e: Emitter, op: Conv, made: Tensor) -> Tensor:
    """What becomes of a causal convolution: padded at the end, it is cut, activated, and masked; who multiplies it copies it."""
    st, unit = e.style, made.unit
    size = e.size(op.c_out, unit, "tp")
    padding = Lin.of("activations", "B/tp", float(op.c_out) * (op.kernel[-1] - 1) * unit)
    made.size.add(padding)
    active = e.tape.node(f"{op.name}.silu", [made], size, saved=[made], unit=unit)
    out = e.tape.node(f"{op.name}.masked", [active], Lin(size), unit=unit)
    after = e.block.ops[e.block.ops.index(op) + 1]
    if isinstance(after, Linear) and not after.ins and st.composite:  # it is turned: channels come before tokens
        e.parts[after.name, 0] = e.tape.node(f"{op.name}.turned", [out], Lin(size), unit=unit)
    return out


def widened(e: Emitter, op: Conv, x: Tensor) -> Tensor:
    """The convolution's input in its weights' format, which autocast narrows again."""
    if not e.style.autocast or x.unit == FP32:
        return x
    return cast(e, x, FP32, "tp", op.c_in, f"{op.name}.wide")


def written_out(e: Emitter, op: Scan, x: Tensor, dt: Tensor, rest: Tensor) -> Tensor:
    """The recurrence, token by token; ``rest`` holds B and C."""
    name, node, unit = op.name, e.tape.node, e.style.compute
    inner, all_states, every = float(op.d_inner), float(op.state), e.size(op.state, FP32, "tp")
    soft = FP32 if e.style.autocast else unit
    trains = e.weights.trains(op)

    def states(steps: float, each: float, category: str = "activations") -> Lin:
        """Bytes of the states of so many steps of every sample."""
        return Lin.of(category, "B/tp", steps * all_states * each)

    biased = node(f"{name}.bias", [dt], e.size(inner, soft, "tp"), unit=soft)
    steps = node(f"{name}.softplus", [biased], biased.size, saved=[biased], unit=soft)
    matrix = e.tape.extra(f"{name}.A", Lin.of("activations", "1/tp", 2 * all_states * FP32))  # exp(A_log) and its negative
    decay = node(f"{name}.decay", [steps], every, saved=[steps, matrix], trainable=trains, unit=FP32)
    e.tape.nodes[-1].saved += (decay,) if decay.grad else ()
    b = rest if rest.unit == FP32 else node(f"{name}.B", [rest], e.size(all_states / inner, FP32, "sp"), unit=FP32)
    drive = node(f"{name}.drive", [steps, b], Lin(every), saved=[steps, b], unit=FP32)
    wide = cast(e, x, FP32, "tp", inner, f"{name}.wide")
    driven = node(f"{name}.driven", [drive, wide], Lin(every), saved=[drive, wide], unit=FP32)

    # a product keeps the state of the step before it; one with C keeps the step's own, in the stream's format
    narrow = unit < FP32
    early = Lin(every) + states(-_LATE, FP32) + states(1, unit)  # and the zeros that it begins with
    late = states(1 if narrow else _LATE, FP32)
    if narrow:
        early += e.size(all_states, unit, "tp") + states(-_LATE, unit)
        late += states(_LATE, unit)
    loop = node(
        f"{name}.loop",
        [decay, driven, rest],
        e.size(inner, unit, "tp"),
        saved=[decay, rest, e.tape.extra(f"{name}.states", early)],
        bwork=e.size(op.state, FP32, "tp", "temporaries") + states(1, FP32, "temporaries"),
        unit=unit,
    )
    last = node(f"{name}.last", [loop], view=True, saved=[e.tape.extra(f"{name}.last", late)], unit=unit)
    kept = FP32 if e.style.autocast else unit  # D is in fp32
    return node(
        f"{name}.skip", [last, x], e.size(inner, kept, "tp"), saved=[x], wgrad=e.weights.gradient(op), trainable=trains, unit=kept
    )
