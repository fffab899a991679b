"""Seconds of one kernel from its shape: matrix products, attention, and what only moves bytes.

A kernel takes the longer of its arithmetic and its memory traffic (roofline, Williams et al. 2009, CACM 52(4)), joined
smoothly, and never less than a floor.  The arithmetic of a matrix product is counted in tiles: an output of ``m x n`` is cut
into tiles, the tiles go to the device's multiprocessors in waves, and what does not fill a tile or a wave is lost
(NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave quantization).  Under sustained load the clock falls to
what the power limit allows, so that long products run slower than short ones.  The fitted numbers are in
``catalog/data/calibration/kernels.json``; every function takes Python numbers or NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from foretell.cost.arrays import Value, maximum, minimum, power, rounding, where

__all__ = ["Device", "Efficiency", "attention", "attention_bytes", "matmul", "product_bytes", "traffic"]

TILES = ((128, 256), (128, 128), (128, 64), (64, 64))
"""Output tiles that libraries choose from (NVIDIA CUTLASS, "Efficient GEMM"; cuBLAS names its kernels after them)."""
SPLIT = 4.0
"""Shares into which a long inner dimension may be cut where there are few tiles (CUTLASS split-K)."""
LARGEST = 128 * 256 / (128 + 256)
"""Multiply-adds per operand element of the largest tile."""
_TILED = tuple((r, c, 2.0 * r * c, LARGEST * (r + c) / (r * c) - 1.0) for r, c in TILES)
STREAMS = 3.0
"""Expert products that run at a time: Transformer Engine deals them to four streams (``num_cublas_streams``)."""
ALIGNED = 8
"""Tensor cores read operands in 16-byte rows: eight half-precision elements ("Matrix Multiplication Background", alignment)."""
UNALIGNED = 2.0
"""Seconds over those of aligned rows: they are read in pieces (ibid.; a width of 50257 costs nanoGPT a quarter of its step)."""
QUERY_BLOCK = 128
"""Queries of one thread block (FlashAttention-2, arXiv 2307.08691, section 3.3)."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a kernel runs on."""

    peak: float
    """Dense FLOP/s of the compute format."""
    low_peak: float
    """... of the low-precision format of matrix products (equal to ``peak`` where there is none)."""
    bandwidth: float
    """Bytes/s of device memory."""
    processors: float
    """Streaming multiprocessors (compute units, cores)."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What a generation of devices reaches; shares of its datasheet rates, bounded by 0 and 1, and times in seconds."""

    matmul: float
    """Share of the peak that full tiles in full waves reach while the clock is high."""
    wave: float
    """How much of an unfilled last wave is lost: 1 all of it, 0 none (stream-K)."""
    fill: float
    """Inner-dimension elements that filling a tile's pipeline costs."""
    tile: float
    """Loss of smaller tiles, which re-read their operands more often."""
    power: float
    """Seconds that sustained load adds to one second: the clock falls until the power limit is met."""
    onset: float
    """Seconds of load after which half of that is felt."""
    result: float
    """Share of the result's traffic that is not hidden behind arithmetic: a tile is written after its last product."""
    low: float
    """Share of the low-precision peak over the share of the peak."""
    group: float
    """Seconds of host time for the product of one expert: each is a launch of its own."""
    memory: float
    """Share of the memory bandwidth that streaming kernels reach."""
    operand_memory: float
    """... that matrix products reach where they are bound by it."""
    floor: float
    """Seconds that no kernel goes below: launch, first and last wave."""
    attention: float
    """Share of the peak of fused attention, forward."""
    attention_backward: float
    """... backward."""
    attention_fill: float
    """Blocks of queries that each multiprocessor loses at the ends of fused attention."""
    attention_call: float
    """Seconds of a forward call of fused attention beside its kernel, where it is timed alone."""
    wide_head: float
    """Share kept where query and value heads differ (192 and 128 of multi-head latent attention)."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the fitted numbers."""
        return tuple(f.name for f in fields(cls))


def _joined(compute: Value, memory: Value) -> Value:
    """Longer of two times, smoothly: near the ridge both are felt (the fourth root of the sum of fourth powers)."""
    a, b = compute * compute, memory * memory
    return power(a * a + b * b, 0.25)


def _tiled(m: Value, n: Value, k: Value, products: Value, processors: Value, e: Efficiency) -> Value:
    """Return the arithmetic that each multiprocessor has for some products at a time, FLOP, with the best tile."""
    up, larger, smaller = rounding(m, n, k, products, processors)
    wave, whole = e.wave, 1.0 - e.wave
    best: Value = None
    for rows, columns, flops, again in _TILED:
        each = up(m / rows) * up(n / columns) * products / processors
        spent = (whole * larger(each, 1.0) + wave * up(each)) * (flops * (1.0 + e.tile * again))
        best = spent if best is None else smaller(best, spent)
    return best * (k + e.fill)


def matmul(
    m: Value,
    n: Value,
    k: Value,
    device: Device,
    e: Efficiency,
    *,
    batch: Value = 1.0,
    operand: Value = 2.0,
    result: Value = 2.0,
    accumulate: Value = 0.0,
    low: Value = 0.0,
    grouped: Value = 0.0,
) -> Value:
    """Return seconds of ``batch`` products of ``m x k`` and ``k x n``.

    ``operand`` and ``result``: bytes per element read and written; ``accumulate``: 1 where the result is added to what is
    there; ``low``: 1 where it runs in the low-precision format; ``grouped``: 1 for the products of routed experts, which run a
    few at a time, each filling its own tiles and waves.
    """
    rate = (device.peak + (device.low_peak * e.low - device.peak) * low) * e.matmul / device.processors
    bandwidth = device.bandwidth * e.operand_memory
    read, written = (moved / bandwidth for moved in product_bytes(m, n, k, batch, operand, result, accumulate))
    together = where(grouped, minimum(batch, STREAMS), batch)
    turns = batch / together / rate
    best = _tiled(m, n, k, together, device.processors, e) * turns
    cut = _tiled(m, n, k / SPLIT, together * SPLIT, device.processors, e) * turns
    # partial results are written in fp32 and read once more
    best = minimum(best, cut + (SPLIT + 1.0) * 4.0 * m * n * batch / bandwidth)
    best = where(grouped, best, best * where((n % ALIGNED != 0) | (k % ALIGNED != 0), UNALIGNED, 1.0))
    best = best * (1.0 + e.power * best / (best + e.onset))
    spent = _joined(best + e.result * written, read + written) + e.floor
    return maximum(spent, grouped * e.group * batch)


def product_bytes(
    m: Value, n: Value, k: Value, batch: Value, operand: Value, result: Value, accumulate: Value
) -> tuple[Value, Value]:
    """Return the bytes that a product reads of its operands, each once, and those that it moves for its result."""
    return operand * (m + n) * k * batch, result * (1.0 + accumulate) * m * n * batch


def attention_bytes(queries: Value, heads: Value, head_dim: Value, v_dim: Value, unit: float, *, backward: bool = False) -> Value:
    """Return the bytes that fused attention moves: queries, keys, values and outputs, backward with their gradients."""
    return unit * queries * heads * (head_dim + v_dim) * (4.0 if backward else 2.0)


def attention(
    pairs: Value,
    queries: Value,
    heads: Value,
    head_dim: Value,
    v_dim: Value,
    device: Device,
    e: Efficiency,
    *,
    backward: bool = False,
    unit: float = 2.0,
    alone: bool = False,
) -> Value:
    """Return seconds of fused attention (FlashAttention-2, arXiv 2307.08691).

    ``pairs``: query-key pairs that are computed, over the batch (masked ones left out); ``queries``: rows over the batch;
    ``heads``: of this rank.  The backward pass runs the scores' product again: five products instead of two.  Where there are
    few blocks, the longest one decides: under a causal mask it sees twice the mean.  ``alone``: a call that is timed by itself.
    """
    qk, v = _aligned(head_dim), _aligned(v_dim)
    products = (3.0 * qk + 2.0 * v) if backward else qk + v
    share = where(head_dim != v_dim, e.wide_head, 1.0) * (e.attention_backward if backward else e.attention)
    work = 2.0 * pairs * heads * products / (device.peak * share)
    block = work * device.processors / (maximum(queries / QUERY_BLOCK, 1.0) * heads)
    compute = maximum(work + e.attention_fill * block, 2.0 * block)
    moved = attention_bytes(queries, heads, head_dim, v_dim, unit, backward=backward)
    spent = _joined(compute, moved / (device.bandwidth * e.memory)) + e.floor * (2.0 if backward else 1.0)
    return spent + e.attention_call if alone and not backward else spent


def _aligned(width: Value) -> Value:
    """Width of a head as tensor cores run it."""
    return where(width % ALIGNED == 0, width, UNALIGNED * width)


def traffic(moved: Value, device: Device, e: Efficiency, launches: Value = 1.0) -> Value:
    """Return seconds of kernels that move ``moved`` bytes and do little else."""
    return moved / (device.bandwidth * e.memory) + e.floor * launches
