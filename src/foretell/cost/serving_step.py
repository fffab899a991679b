"""Seconds of one step of a serving engine: a batch of sequences that decode, and prompts that are read beside them.

What depends on the number of tokens alone is tabled once, in dense steps (:mod:`foretell.cost.serving_kernels`), and read
between them; attention is added from what the sequences see, and the engine's own time on the host from its calibration
(``catalog/data/calibration/serving.json``).  All of one rank, the slowest.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from foretell.arch.architecture import Architecture
from foretell.cost import collectives
from foretell.cost.arrays import Value, is_array, maximum, minimum, where
from foretell.cost.kernels import Device, Efficiency, attention
from foretell.cost.placement import place
from foretell.cost.serving_host import EngineTime
from foretell.cost.serving_kernels import Formats, Kernels, Layout, Table, read
from foretell.cost.serving_load import Load
from foretell.cost.topology import Topology

__all__ = ["Steps", "step_prices"]


@dataclass(slots=True)
class Steps(Kernels):
    """Prices the steps of one deployment; ``seconds`` takes loads of numbers, or of arrays."""

    eager: bool = False
    """Decoding steps run without CUDA graphs."""
    online: bool = True
    """Tokens are streamed to clients."""
    _table: Table | None = field(default=None, init=False, repr=False, compare=False)

    # -- what a step takes ----------------------------------------------------------------------------------

    def seconds(self, load: Load) -> Value:
        """Return the seconds from one output of the model to the next."""
        load, ways = self._own(load)
        table = self._tabled()
        tokens = load.decode * load.width + load.prefill
        gpu = read(table.tokens, table.total, tokens)
        gpu = gpu + self._decoding(load) + self._reading(load) + self._output(load.decode * load.width + load.prompts)
        return gpu if self.share is not None else self._with_host(gpu, load, ways)

    def layer_seconds(self, load: Load) -> Value:
        """Return the device's seconds for one layer and the output projection."""
        load, _ = self._own(load)
        table = self._tabled()
        layers = read(table.tokens, table.total, load.decode * load.width + load.prefill) + self._decoding(load)
        return layers / self.arch.layers + self._output(load.decode * load.width)

    def ledger(self, load: Load) -> dict[str, Value]:
        """Return seconds by what the step spends them on; they sum to ``seconds``."""
        total = self.seconds(load)
        load, _ = self._own(load)
        table, tokens = self._tabled(), load.decode * load.width + load.prefill
        out = {
            name: read(table.tokens, getattr(table, name), tokens) for name in ("matmul", "experts", "stream", "tensor", "expert")
        }
        names = {"tensor": "tensor_parallel", "expert": "expert_parallel"}
        out = {names.get(name, name): value for name, value in out.items()}
        out["attention_decode"] = self._decoding(load)
        out["attention_prefill"] = self._reading(load)
        out["head"] = self._output(load.decode * load.width + load.prompts)
        out["host"] = total - sum(out.values())
        return out

    def _own(self, load: Load) -> tuple[Load, Value]:
        """Return the part of a load that one rank works on at a time, and the parts that the pipeline's stages work on."""
        sequences = load.decode + load.prompts
        ways = minimum(float(self.layout.pp), maximum(sequences, 1.0)) if self.layout.pp > 1 else 1.0
        parts = ways * self.layout.dp
        if self.layout.pp == 1 and self.layout.dp == 1:
            return load, 1.0
        own = Load(
            load.decode / parts, load.context / parts, load.prefill / parts, load.pairs / parts, load.prompts / parts, load.width
        )
        return own, ways

    def _with_host(self, gpu: Value, load: Load, ways: Value) -> Value:
        """Add the host's time: what launches kernels one by one hides behind the device or the device behind it."""
        e, layers = self.engine, self.arch.layers
        launching = e.eager_layer_s * layers if self.eager else 0.0
        launching = maximum(launching, where(load.prefill > 0, e.prefill_layer_s * layers, 0.0))
        n = (load.decode + load.prompts) * self.layout.dp * ways
        streaming = e.stream_s * n if self.online else 0.0
        gpu = maximum(maximum(gpu, launching), streaming)
        if self.layout.pp > 1:
            gpu = gpu + self.layout.pp * self._handed(load)
        return gpu + e.step_s + e.sequence_s * n

    def _handed(self, load: Load) -> Value:
        """Seconds to hand hidden states to the next stage."""
        size = (load.decode * load.width + load.prefill) * self.arch.hidden * 2.0
        group = place(self.topology, tp=self.layout.tp, pp=self.layout.pp).pp
        return collectives.seconds("p2p", size, group, self.topology, queued=True)

    # -- attention and output -------------------------------------------------------------------------------

    def _decoding(self, load: Load) -> Value:
        """Attention of sequences that decode: what they keep is read once, for all of their tokens in the step."""
        if not is_array(load.decode) and not load.decode:
            return 0.0
        mean = load.context / maximum(load.decode, 1e-9)
        table = self._tabled()
        each: Value = table.state_s
        for window, arithmetic, traffic in table.decoded:
            each = each + minimum(mean, window) * maximum(arithmetic * load.width, traffic)
        return load.decode * each

    def _reading(self, load: Load) -> Value:
        """Attention of prompts."""
        if not is_array(load.prefill) and not load.prefill:
            return 0.0
        out: Value = 0.0
        # of each prompt, the keys that its last token sees: what chunks before it and the prefix cache hold is read once
        kept = load.prompts * load.pairs / maximum(load.prefill, 1e-9) + maximum(load.prefill - load.prompts, 0.0) / 2.0
        for core in self._tabled().cores:
            op = core.op
            pairs = minimum(load.pairs, load.prefill * float(op.window)) if op.window else load.pairs
            keys = minimum(kept, load.prefill + load.prompts * float(op.window)) if op.window else kept
            heads = max(op.heads / self.layout.tp, 1.0)
            if self.share is not None:
                spent = 2.0 * pairs * heads * (op.head_dim + op.v_dim) / (self.device.peak * self.share)
            else:
                spent = (
                    attention(pairs, maximum(load.prefill, 1.0), heads, op.head_dim, op.v_dim, self.device, self.efficiency)
                    - self.efficiency.floor
                )
            spent = maximum(spent, keys * core.seconds)
            out = out + core.layers * where(load.prefill > 0, spent, 0.0)
        return out

    def _output(self, rows: Value) -> Value:
        """The output projection of the rows that a token is sampled of."""
        table = self._tabled()
        return read(table.tokens, table.head, maximum(rows, 1.0))

    def _tabled(self) -> Table:
        if self._table is None:
            self._table = self.table()
        return self._table


@functools.lru_cache(maxsize=512)
def _cached(*args: object) -> Steps:
    return Steps(*args)  # type: ignore[arg-type]  # as step_prices has them


def step_prices(
    arch: Architecture,
    device: Device,
    efficiency: Efficiency,
    topology: Topology,
    layout: Layout,
    formats: Formats,
    engine: EngineTime,
    *,
    eager: bool = False,
    online: bool = True,
    share: float | None = None,
) -> Steps:
    """Return the prices of a deployment's steps, the same object for the same deployment: its table is made once."""
    text = arch.text or arch
    return _cached(text, device, efficiency, topology, layout, formats, engine, share, eager, online)
