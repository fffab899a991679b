"""Number formats of the states, by precision name, as families of frameworks have them."""

from __future__ import annotations

from foretell.recipe.profile import Formats

_HALF = ("bf16", "fp16")
_LOW = ("fp8", "mxfp8", "nvfp4")
"""Formats of matmul operands; everything stored is bf16 or wider."""


def pure(kind: str) -> Formats:
    """Everything in one format, without masters."""
    return Formats(param=kind, grad=kind, master=None, optim=kind, compute=kind, wgrad=kind)


FP32 = pure("fp32")
PURE = {"fp32": FP32, "bf16-true": pure("bf16"), "fp16-true": pure("fp16")}
BF16 = PURE | {"bf16": pure("bf16")}
"""Frameworks whose ``bf16`` means bf16 throughout."""
HALF = BF16 | {"fp16": pure("fp16")}
"""A model in half precision without autocast."""
MIXED = (
    PURE
    | {p: Formats(p, p, "fp32", "fp32", p, p) for p in _HALF}
    | {p: Formats("bf16", "bf16", "fp32", "fp32", "bf16", "bf16") for p in _LOW}
    | {p: Formats(p, "bf16", "fp32", "fp32", "bf16", "bf16") for p in ("int8", "int4", "nf4")}
)
"""Half weights and gradients, fp32 masters and states: the 2 + 2 + 12 bytes of arXiv 1910.02054, section 3."""
AUTOCAST = PURE | {p: Formats("fp32", "fp32", None, "fp32", p, "fp32") for p in _HALF}
"""fp32 parameters, cast at each use (``torch.autocast``)."""
FSDP = (
    PURE
    | {p: Formats("fp32", "fp32", None, "fp32", p, p) for p in _HALF}
    | {p: Formats("fp32", "fp32", None, "fp32", "bf16", "bf16") for p in _LOW}
)
"""fp32 shards, gathered in the compute format (``MixedPrecisionPolicy(param_dtype, reduce_dtype=torch.float32)``)."""
MEGATRON = (
    PURE
    | {p: Formats(p, "fp32", "fp32", "fp32", p, p) for p in _HALF}
    | {p: Formats("bf16", "fp32", "fp32", "fp32", "bf16", "bf16") for p in _LOW}
)
"""Half weights, fp32 main gradients and masters (Megatron-LM ``--accumulate-allreduce-grads-in-fp32``)."""
DEEPSPEED = PURE | {p: Formats(p, p, "fp32", "fp32", p, p) for p in _HALF}
"""engine.get_data_types: gradients accumulate in the model's format with ZeRO, in fp32 (bf16) without
(:func:`foretell.recipe.resolve.resolve`)."""
