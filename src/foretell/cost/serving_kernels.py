"""Seconds of a serving engine's kernels on one rank, tabled by the number of tokens in a step.

Operators have the works that they have in training (:mod:`foretell.cost.works`): matrix products by their shape, everything
else by its bytes.  What a rank exchanges with others is in here too, as it goes by the tokens alone.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Attention, Embedding, Experts, Head, Scan
from foretell.cost import collectives
from foretell.cost.arrays import Value, ceil, is_array, maximum, minimum
from foretell.cost.evaluate import Basis, Sizes
from foretell.cost.inference import STATE, forward_works, latent_widths
from foretell.cost.kernels import Device, Efficiency, matmul
from foretell.cost.placement import place
from foretell.cost.routing import visited
from foretell.cost.serving_host import EngineTime
from foretell.cost.topology import Topology
from foretell.cost.works_kinds import Core, Product, Stream

__all__ = ["Formats", "Kept", "Kernels", "Layout", "Table", "read"]

_GRID = tuple(sorted({round(2.0 ** (i / 3)) for i in range(31)} | {1024 + 512 * i for i in range(31)} | {32768, 65536, 131072}))
"""Numbers of tokens at which a step is tabled."""

_NARROW = 8.0
"""Rows of the narrowest product of tensor cores (PTX ISA, mma.m16n8k16, with the weights as its longer side): kernels for few
rows stream the weights past them."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Bytes per element, and what products run in."""

    weight: float
    """Of the layers' matrices."""
    expert: float
    """Of those of routed experts."""
    head: float
    """Of the output projection."""
    kv: float
    unit: float = 2.0
    """Of activations."""
    low: bool = False
    """Products run in the low-precision format."""
    unpacked: bool = False
    """Weights that are stored narrower are unpacked to 16 bits inside the product."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of one deployment that shares nothing with others."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    """Ranks that share the routed experts."""
    dp: int = 1
    """Ranks that hold attention for sequences of their own, with experts spread over all of them."""

    @property
    def expert_tp(self) -> float:
        """Ranks that share the matrices of one expert."""
        return max(1.0, self.tp * self.dp / self.ep)


@dataclass(frozen=True, slots=True)
class Kept:
    """Attention of one shape, and what its layers keep."""

    op: Attention
    layers: float
    seconds: float
    """To read what one layer keeps of one token."""


@dataclass(frozen=True, slots=True)
class Table:
    """Seconds of one step by the number of tokens of a rank, and what depends on no number of tokens."""

    tokens: list[float]
    matmul: list[float]
    experts: list[float]
    stream: list[float]
    tensor: list[float]
    expert: list[float]
    total: list[float]
    head: list[float]
    """Of the output projection, by its rows."""
    cores: tuple[Kept, ...]
    decoded: tuple[tuple[float, float, float], ...]
    """Window (infinite without one), seconds of arithmetic and of traffic for each key that a decoding sequence sees."""
    state_s: float
    """Seconds for each decoding sequence to read and write recurrent states."""


@dataclass(slots=True)
class Kernels:
    """Prices the kernels of one deployment."""

    arch: Architecture
    device: Device
    efficiency: Efficiency
    topology: Topology
    layout: Layout
    formats: Formats
    engine: EngineTime
    share: float | None = None
    """Of the peak for arithmetic, with all of the bandwidth for traffic and nothing else (the reference's scalar)."""

    def table(self) -> Table:
        """Return the table."""
        import numpy as np  # noqa: PLC0415  # 0.1 s

        tokens = np.array(_GRID, dtype=float)
        columns = {name: np.zeros(len(tokens)) for name in ("matmul", "experts", "stream", "tensor", "expert", "head")}
        basis = Basis(Sizes(micro_batch=tokens, seq_len=1.0, encoder_seq_len=1.0, tp=self.layout.tp, sp=False))
        alone = self.share is not None
        floor = 0.0 if alone else self.engine.kernel_s
        shared = self.layout.tp > 1 and not alone
        summed = self.all_reduce(tokens * self.arch.hidden * 2.0) if shared else 0.0
        cores: dict[Attention, float] = {}
        states = 0.0
        for block, count, kernels in self._kernels():
            for work in kernels:
                if isinstance(work, Core):
                    cores[work.op] = cores.get(work.op, 0.0) + count
                    columns["stream"] += count * floor
                    continue
                name, spent = self._priced(work, tokens, basis)
                columns[name] += count * (spent + floor * (1.0 if isinstance(work, Product) else work.launches))
            if not alone and any(isinstance(op, Experts) for op in block.ops):
                columns["experts"] += count * self.engine.expert_layer_s
            if shared:
                columns["tensor"] += count * self._sums(block) * summed
            columns["expert"] += count * self._dispatched(block, tokens)
            states += count * STATE * sum(op.state for op in block.ops if isinstance(op, Scan)) / self.layout.tp
            for op in block.ops:
                if isinstance(op, Head):
                    columns["head"] += self._projected(op, tokens) + floor
        rate = self.device.bandwidth * (1.0 if alone else self.efficiency.memory)
        kept, decoded = self._per_key(cores)
        total = sum(column for name, column in columns.items() if name != "head")
        lists = {name: values.tolist() for name, values in columns.items()}
        return Table(
            tokens=tokens.tolist(),
            total=np.asarray(total).tolist(),
            **lists,
            cores=kept,
            decoded=decoded,
            state_s=2.0 * states / rate,
        )

    def _per_key(self, cores: dict[Attention, float]) -> tuple[tuple[Kept, ...], tuple[tuple[float, float, float], ...]]:
        """Return what the layers keep, and what decoding attention takes for each key that it sees, by window."""
        latent = latent_widths(self.arch)
        found: dict[float, tuple[float, float]] = {}
        kept = []
        e, tp = self.efficiency, self.layout.tp
        peak = self.device.peak * (e.attention if self.share is None else self.share)
        rate = self.device.bandwidth * (self.engine.cache_share if self.share is None else 1.0)
        for op, count in cores.items():
            width, value = latent or (op.head_dim, op.v_dim)
            held = latent[0] if latent else max(op.kv_heads / tp, 1.0) * (op.head_dim + op.v_dim)
            window = float(op.window) if op.window else math.inf
            arithmetic, traffic = found.get(window, (0.0, 0.0))
            arithmetic += count * 2.0 * max(op.heads / tp, 1.0) * (width + value) / peak
            kept.append(Kept(op, count, self.formats.kv * held / rate))
            found[window] = (arithmetic, traffic + count * kept[-1].seconds)
        return tuple(kept), tuple((window, *spent) for window, spent in found.items())

    def _projected(self, op: Head, rows: Value) -> Value:
        """The output projection, in 16 bits, and the gathering of its shards."""
        device = Device(self.device.peak, self.device.peak, self.device.bandwidth, self.device.processors)
        spent = self._product(rows, op.rows / self.layout.tp, float(op.dim), 1.0, device, self.formats.head, low=0.0)
        if self.layout.tp > 1 and self.share is None:
            group = place(self.topology, tp=self.layout.tp).tp
            spent = spent + collectives.seconds("all_gather", rows * op.rows * 2.0, group, self.topology, queued=True)
        return spent

    def _kernels(self) -> Iterator[tuple[Block, int, list[Product | Core | Stream]]]:
        """Blocks with what they run; the output projection is kept apart, as it sees the last token of a sequence alone."""
        for block, count, works in forward_works(self.arch):
            if block.stream != "text":
                continue  # towers and the encoder ran when the prompt did
            heads = {op.name for op in block.ops if isinstance(op, Head)}
            yield block, count, [work for work in works.kernels if work.name not in heads]

    def _priced(self, work: Product | Stream, tokens: Value, basis: Basis) -> tuple[str, Value]:
        """Return the kind and the seconds of one kernel without its floor."""
        if isinstance(work, Stream):
            moved: Value = 0.0
            for monomial, coefficient in work.forward.items():
                moved = moved + basis[monomial] * coefficient
            rate = self.device.bandwidth * (1.0 if self.share is not None else self.efficiency.memory)
            return "stream", moved * self.engine.fused / rate + tokens * 0.0
        layout, formats = self.layout, self.formats
        low = 1.0 if formats.low else 0.0
        if work.spread:
            routed = tokens * layout.dp * work.rows[1]
            experts = work.batch[1]
            busy = visited(experts, work.rows[1], tokens * layout.dp) / layout.ep
            busy = maximum(busy, 1.0 / layout.ep)
            rows = routed / layout.ep / maximum(busy, 1e-9)
            n, k = (
                size / (layout.expert_tp if shard == "etp" else 1.0)
                for size, shard in ((work.n, work.n_shard), (work.k, work.k_shard))
            )
            spent = self._product(rows, n, k, busy, self.device, formats.expert, low=low)
            return "experts", spent * self._unpacking(rows, formats.expert) / (
                1.0 if self.share is not None else self.engine.expert_share
            )
        rows = basis[work.rows[0]] * work.rows[1]
        n, k = work.n * basis.shards[work.n_shard], work.k * basis.shards[work.k_shard]
        batch = maximum(basis[work.batch[0]] * work.batch[1], 1.0)
        stored = formats.weight if work.weighted else formats.unit
        spent = self._product(rows, n, k, batch, self.device, stored, low=low if work.weighted else 0.0)
        return "matmul", spent * self._unpacking(rows, stored)

    def _unpacking(self, rows: Value, stored: float) -> Value:
        """How much longer products take that unpack their weights: nothing while they wait for memory."""
        if not self.formats.unpacked or stored >= self.formats.unit or self.share is not None:
            return 1.0
        return 1.0 + (self.engine.unpack - 1.0) * minimum(rows / 256.0, 1.0)

    def _product(self, rows: Value, n: Value, k: Value, batch: Value, device: Device, stored: float, *, low: float) -> Value:
        if self.share is not None:
            peak = device.low_peak if low else device.peak
            flops, moved = 2.0 * rows * n * k * batch, stored * n * k * batch
            return maximum(flops / (peak * self.share), moved / device.bandwidth)
        e, slower = self.efficiency, self.engine.product
        device = Device(device.peak / slower, device.low_peak / slower, device.bandwidth, device.processors)
        spent = matmul(rows, n, k, device, e, batch=batch, operand=stored, result=self.formats.unit, low=low) - e.floor
        rate = (device.low_peak * e.low if low else device.peak) * e.matmul
        streamed = stored * n * k * batch / (device.bandwidth * e.operand_memory)
        narrow = streamed + 2.0 * ceil(rows / _NARROW) * _NARROW * n * k * batch / rate
        return minimum(spent, narrow)

    def _sums(self, block: Block) -> int:
        """Sums over the tensor-parallel ranks: after attention and after the MLP or the experts, and of the token table."""
        ops, together = block.ops, self.layout.dp == 1
        rows = sum(1 for op in ops if getattr(op, "split", "") == "row")
        experts = sum(1 for op in ops if isinstance(op, Experts)) if together else 0
        tables = sum(1 for op in ops if isinstance(op, Embedding) and op.vocab)
        joined = 1 if experts and rows > 1 else 0  # shared experts are added before the sum
        return rows + experts + tables - joined

    def all_reduce(self, size: Value) -> Value:
        """Seconds of one sum over the tensor-parallel ranks.

        The library's; or, in a fast domain, the engine's own kernels where they are quicker: all send to all, or in two phases.
        """
        group, n, e = place(self.topology, tp=self.layout.tp).tp, self.layout.tp, self.engine
        spent = collectives.seconds("all_reduce", size, group, self.topology, queued=True)
        if n <= self.topology.domain and self.topology.family != "pcie":
            rate = self.topology.inside(group) * e.link_share
            wire = minimum((n - 1.0) * size, 2.0 * size * (n - 1.0) / n + rate * e.reduce_s)
            spent = minimum(spent, wire / rate)
        return e.reduce_s + spent

    def _dispatched(self, block: Block, tokens: Value) -> Value:
        """Tokens on their way to experts of other ranks, and back."""
        layout, out = self.layout, tokens * 0.0
        if layout.dp == 1 or layout.ep == 1 or self.share is not None:
            return out
        group = place(self.topology, tp=layout.tp, dp=layout.dp, ep=layout.ep, etp=1).ep
        for op in block.ops:
            if isinstance(op, Experts):
                sent = tokens * minimum(float(op.top_k), float(layout.ep)) * op.dim
                for unit in (1.0 if self.formats.low else 2.0, 2.0):
                    ways = (
                        collectives.seconds("all_to_all", sent * unit, group, self.topology, algorithm=how, queued=True)
                        for how in (None, "deepep")  # the library's, or kernels made for it: engines take the quicker
                    )
                    out = out + functools.reduce(minimum, ways)
        return out


def read(grid: list[float], values: list[float], at: Value) -> Value:
    """Value of a table between its points; in proportion beyond the last, nothing at zero."""
    if is_array(at):
        import numpy as np  # noqa: PLC0415

        found = np.interp(at, grid, values)
        slope = (values[-1] - values[-2]) / (grid[-1] - grid[-2])
        return np.where(at > grid[-1], values[-1] + (at - grid[-1]) * slope, np.where(at > 0, found, 0.0))
    if at <= grid[0]:
        return values[0] if at > 0 else 0.0
    i = min(bisect_right(grid, at), len(grid) - 1)
    slope = (values[i] - values[i - 1]) / (grid[i] - grid[i - 1])
    return values[i - 1] + (at - grid[i - 1]) * slope
