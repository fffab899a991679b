"""Bytes of a model's weights on one accelerator of a serving deployment, by format and layout.

Engines quantise the matrices of the layers and leave embeddings, output projection, routers, norms and convolutions in 16 bits;
files for llama.cpp quantise nearly all.  Where the model's file says how it is stored, its own exemptions hold.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Attention, Embedding, Experts, Head, Linear, Operator
from foretell.arch.stored import matrix_bits
from foretell.dtypes import dtype
from foretell.errors import InputError

__all__ = ["FORMATS", "LayerBytes", "Ranks", "WeightFormat", "layer_bytes", "outer_bytes", "stored_bits", "weight_format"]

HALF: Final = 16.0
"""Bits of what is not quantised."""
VOCAB_PADDING: Final = 64
"""Rows of the token table are padded to a multiple of it (vllm/model_executor/layers/vocab_parallel_embedding.py)."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored: bits per element with scales and zero points."""

    name: str
    bits: float
    """Of the layers' matrices."""
    source: str
    embedding: float = HALF
    head: float = HALF
    wide: float = 0.0
    """Bits more, on average, of value and down projections."""
    experts_only: bool = False
    """Where the model has experts, only these are quantised."""
    no_latent: bool = False
    """Latent attention is left in 16 bits."""


def _bits(name: str) -> float:
    return 8.0 * float(dtype(name).bytes_per_element)


_GGUF = "llama.cpp quantize: blocks of 32 with a 16-bit scale; output projection in q6_k (6.5625 bits)"
_ALL = (
    WeightFormat("fp32", 32.0, "width", 32.0, 32.0),
    WeightFormat("bf16", 16.0, "width"),
    WeightFormat("fp16", 16.0, "width"),
    WeightFormat("fp8", _bits("fp8"), "width; scales of a row or of 128 x 128 are below 0.01 bit"),
    WeightFormat("int8", _bits("int8"), "width; one scale a row"),
    WeightFormat("int4", 4 + (16 + 4) / 128, "AutoAWQ, GPTQModel: a 16-bit scale and a 4-bit zero point per 128"),
    WeightFormat("nvfp4", _bits("nvfp4"), "ModelOpt: blocks of 16, 8-bit scale", no_latent=True),
    WeightFormat("mxfp4", _bits("mxfp4"), "OCP MX v1.0: blocks of 32, 8-bit scale", experts_only=True),
    WeightFormat("mxfp8", _bits("mxfp8"), "OCP MX v1.0: blocks of 32, 8-bit scale"),
    WeightFormat("q4_0", 4.5, _GGUF, 4.5, 6.5625),
    WeightFormat("q4_k_m", 4.5, f"{_GGUF}; q6_k for half of the value and down projections", 4.5, 6.5625, wide=2.0625 / 2),
    WeightFormat("q8_0", 8.5, "llama.cpp quantize: blocks of 32 with a 16-bit scale", 8.5, 8.5),
)
FORMATS: Final = {kind.name: kind for kind in _ALL}
"""Name -> format."""


def weight_format(name: str) -> WeightFormat:
    """Return a format by its name; InputError where it is not known."""
    found = FORMATS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise InputError("is not a format of served weights", field="weights", value=name, allowed=list(FORMATS))
    return found


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many accelerators share what, and what kernels pad experts to."""

    tp: int = 1
    ep: int = 1
    """Ranks among which whole experts are dealt out."""
    expert_tp: int = 1
    """Ranks that share the matrices of one expert."""
    padding: str = ""
    """marlin, hopper or blackwell: kernels for 4-bit experts, by what they pad (:func:`_padded`)."""
    absorbed: bool = False
    """Latent attention keeps its up-projections a second time, in 16 bits."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """One layer on one accelerator."""

    dense: float
    experts: float


def stored_bits(arch: Architecture, kind: WeightFormat) -> tuple[Mapping[str, float | None], ...]:
    """For each layer of the trunk, next-token layers last: bits of its operators' matrices, by name (None: 16)."""
    q = arch.quantized
    if q is not None and any(abs(bits - kind.bits) < 0.75 for bits in (q.bits, *(b for _, b in q.groups))):
        return matrix_bits(arch)
    return _own_bits(arch, kind)


@functools.lru_cache(maxsize=64)
def _own_bits(arch: Architecture, kind: WeightFormat) -> tuple[Mapping[str, float | None], ...]:
    """:func:`stored_bits` by the format's own rule."""
    only_experts = kind.experts_only and arch.experts > 0
    latent = kind.no_latent and isinstance((arch.text or arch).config.get("kv_lora_rank"), int)
    by_block: dict[int, Mapping[str, float | None]] = {}
    blocks = [*(arch.main.blocks[i] for i in arch.main.pattern), *arch.unused]
    for block in blocks:
        if id(block) in by_block:
            continue
        found: dict[str, float | None] = {}
        after = False
        for op in block.ops:
            after = after or op.name in ("norm2", "add1")
            if isinstance(op, Experts):
                found[op.name] = kind.bits + kind.wide / 3
            elif isinstance(op, Linear) and not only_experts:
                wide = kind.wide if op.name.endswith(("v_proj", "down_proj")) else 0.0
                found[op.name] = HALF if latent and not after else kind.bits + wide
        by_block[id(block)] = found
    return tuple(by_block[id(block)] for block in blocks)


def layer_bytes(block: Block, own: Mapping[str, float | None], ranks: Ranks) -> LayerBytes:
    """Return the bytes of one layer on one accelerator."""
    dense = experts = 0.0
    for op in block.ops:
        if block.shared or op.name in block.borrowed:
            continue
        bits = own.get(op.name)
        if isinstance(op, Experts):
            experts += _expert_bytes(op, bits or HALF, ranks)
            continue
        for w in op.weights():
            wide = bits if bits is not None and w.role == "matrix" else HALF
            dense += w.elements * wide / 8 / (ranks.tp if w.shard == "tp" else 1)
        if isinstance(op, Attention):
            dense += _copied(block, op, own, ranks)
        elif ranks.absorbed and op.name == "kv_b_proj":
            dense += op.parameters * HALF / 8 / ranks.tp
    return LayerBytes(dense, experts)


def _copied(block: Block, op: Attention, own: Mapping[str, float | None], ranks: Ranks) -> float:
    """Bytes of key and value projections beyond an even share: a rank holds one whole head at least."""
    if op.kv_heads >= ranks.tp or len(op.ins) < 2:
        return 0.0
    first = next((b for b in own.values() if b is not None), HALF)
    return block.width * (op.head_dim + op.v_dim) * (1 - op.kv_heads / ranks.tp) * first / 8


def _expert_bytes(op: Experts, bits: float, ranks: Ranks) -> float:
    """Routed experts: whole ones are dealt out over ``ep`` ranks, the width of each over ``expert_tp``."""
    count = -(-op.experts // ranks.ep)
    rows = 2 if op.gated else 1
    width = op.ffn / ranks.expert_tp
    up, down, out = _padded(op.dim, width, rows, ranks.padding if bits < 8 else "")
    values = (up + down) * bits
    if ranks.padding == "hopper" and bits < 8:  # scales are not padded
        plain = (rows + 1) * op.dim * width
        values = (up + down) * 4.0 + plain * (bits - 4.0)
    bias = (rows * width + out) * HALF if op.bias else 0.0
    return count * (values + bias) / 8


def _up(value: float, to: int) -> float:
    return -(-value // to) * to


def _padded(hidden: float, width: float, rows: int, padding: str) -> tuple[float, float, float]:
    """Elements of one expert's up and down matrices and the width of its output, as kernels for 4-bit experts hold them.

    vllm/model_executor/layers/quantization/mxfp4.py (0.11.0): Marlin pads the hidden size to 256 and the expert's width to 128,
    the kernels for Blackwell both to 256; the Triton kernels for Hopper pad the dimension that is summed over, to 256 (from the
    weights that vLLM logs for gpt-oss: 13.47 and 64.38 GiB).
    """
    if padding == "marlin":
        hidden, width = _up(hidden, 256), _up(width, 128)
    elif padding == "blackwell":
        hidden, width = _up(hidden, 256), _up(width, 256)
    elif padding == "hopper":
        return rows * width * _up(hidden, 256), hidden * _up(width, 256), hidden
    return rows * width * hidden, hidden * width, hidden


def outer_bytes(block: Block, kind: WeightFormat, tp: int, *, whole: bool = False) -> float:
    """Return the bytes of the input or output block on one accelerator; ``whole``: tables are on each rank."""
    total = 0.0
    for op in block.ops:
        for w in op.weights():
            table = w.role in ("embedding", "head")
            elements = _up(w.shape[0], VOCAB_PADDING) * w.elements / w.shape[0] if table and _vocab(op) else w.elements
            bits = {"embedding": kind.embedding, "head": kind.head}.get(w.role, max(kind.embedding, HALF))
            total += elements * bits / 8 / (tp if w.shard == "tp" and not (whole and table) else 1)
    return total


def _vocab(op: Operator) -> bool:
    return (isinstance(op, Embedding) and op.vocab) or isinstance(op, Head)
