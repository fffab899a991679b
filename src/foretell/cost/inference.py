"""One forward pass on one device: the operators' own works, without gradients, dropout or loss.

Autoregressive models decode: one token of each sequence, which reads the keys and values (or states) of the tokens before
it.  All others run a whole sample: a sequence, an image, a clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Attention, Experts, Operator, Scan
from foretell.cost.arrays import Value, maximum, minimum
from foretell.cost.evaluate import Basis, Sizes
from foretell.cost.kernels import Device, Efficiency, attention, attention_bytes, matmul, product_bytes, traffic
from foretell.cost.routing import visited
from foretell.cost.training_memory import exceeded, folders
from foretell.cost.works import BlockWorks, Core, Product, Stream, block_works
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import Run, resolve
from foretell.recipe.training import TrainingRecipe

__all__ = ["Forward", "autoregressive", "forward_pass", "forward_works", "latent_widths"]

STATE = 4.0
"""Bytes per element of a recurrent state: kernels keep it in fp32."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward pass of a batch."""

    flops: Value = 0.0
    moved: Value = 0.0
    """Bytes of device memory: weights once, activations, and what was kept of earlier tokens."""
    seconds: Value = 0.0
    """Of the kernels one after the other, each by its shape."""
    launches: Value = 0.0
    cache: Value = 0.0
    """Bytes of keys, values and states that the batch's sequences hold."""
    working: Value = 0.0
    """Bytes of activations that the largest kernel reads and writes."""


def autoregressive(arch: Architecture) -> bool:
    """Whether a model makes a sequence token by token.

    >>> from foretell.arch import load_model
    >>> autoregressive(load_model("llama-3-8b").architecture), autoregressive(load_model("bert-base").architecture)
    (True, False)
    """
    return arch.vocab is not None and arch.reads_tokens and arch.family in ("decoder", "encoder-decoder", "multimodal")


@lru_cache(maxsize=64)
def _blocks(arch: Architecture, wide: bool, bound: int) -> tuple[tuple[Block, int, BlockWorks], ...]:
    """Blocks in the order they run with how often, and what each runs; ``wide``: in fp32, else in 16 bits."""
    recipe = TrainingRecipe(precision="fp32" if wide else "bf16-true", seq_len=1 + bound, dropout=0.0)
    run: Run = resolve(recipe, Parallelism(), profile("generic"))
    folder = folders(arch, run)[0]
    out = []
    for block, count in arch.blocks():
        emitter = folder.emitter(_served(block), input_grad=False)
        emitter.emit()
        out.append((block, count, block_works(emitter, fused_columns=True)))
    return tuple(out)


def forward_works(arch: Architecture) -> tuple[tuple[Block, int, BlockWorks], ...]:
    """Return what a 16-bit forward pass of one token runs, block by block, with how often each block stands in the model."""
    return tuple(
        (block, count, _without_memory(works)) for block, count, works in _blocks(arch, wide=False, bound=exceeded(arch, 1))
    )


@dataclass(slots=True)
class _Pass:
    """What evaluates works at a batch's sizes."""

    arch: Architecture
    basis: Basis
    batch: Value
    context: Value
    """Tokens that a decoded token sees, itself included."""
    decode: bool
    device: Device
    efficiency: Efficiency
    weight: float
    """Bytes per element of a weight, and of what is kept of earlier tokens."""
    unit: float
    """Bytes per element of an activation."""
    low: float
    """1 where products run in the low-precision format."""

    def at(self, form: tuple[str, float]) -> Value:
        return self.basis[form[0]] * form[1]

    def sum(self, form: Mapping[str, float]) -> Value:
        out: Value = 0.0
        for monomial, coefficient in form.items():
            out = out + self.basis[monomial] * coefficient
        return out

    def block(self, works: BlockWorks) -> Iterator[Forward]:
        for work in works.kernels:
            if isinstance(work, Product):
                yield self.product(work)
            elif isinstance(work, Core):
                yield self.core(work)
            elif work.launches:
                yield self.stream(work)

    def stream(self, work: Stream) -> Forward:
        moved = self.sum(work.forward)
        spent = traffic(moved, self.device, self.efficiency, work.launches)
        return Forward(moved=moved, seconds=spent, launches=work.launches, working=moved)

    def product(self, work: Product) -> Forward:
        shards = self.basis.shards
        batch = maximum(self.at(work.batch), 1.0)
        rows = self.at(work.rows)
        if work.spread:  # only experts that a token visits are read
            batch = visited(batch, work.rows[1], self.basis[work.rows[0].split("/")[0] + "/1"])
            rows = rows / batch
        n = self.at(work.inner) if work.inner else work.n * shards[work.n_shard]
        k = self.at(work.deep) if work.deep else work.k * shards[work.k_shard]
        stored = self.weight if work.weighted else self.unit
        ins, outs = self.unit * rows * k * batch, self.unit * rows * n * batch
        spent = matmul(rows, n, k, self.device, self.efficiency, batch=batch, operand=stored, result=self.unit, low=self.low)
        return Forward(
            flops=2.0 * rows * n * k * batch,
            moved=product_bytes(0.0, n, k, batch, stored, 0.0, 0.0)[0] + ins + outs,
            seconds=spent,
            launches=1.0,
            working=ins + outs,
        )

    def core(self, work: Core) -> Forward:
        op, device, e = work.op, self.device, self.efficiency
        queries = self.at((work.rows[0].split("/")[0] + "/1", work.rows[1]))
        heads = op.heads * self.basis.shards["tp"]
        seen: Value = {"T": self.context, "E": self.context, "B": 1.0}[work.keys] * work.per
        own = work.keys == "T" and op.memory == "self"
        if op.window:
            seen = minimum(seen, float(op.window))
        if not self.decode:
            share: Value = 1.0 - 0.5 * seen / (self.context * work.per) if op.causal and own else 1.0
            moved = attention_bytes(queries, heads, op.head_dim, op.v_dim, self.unit)
            pairs = queries * seen * share
            spent = attention(pairs, queries, heads, op.head_dim, op.v_dim, device, e, unit=self.unit)
            return Forward(2.0 * pairs * heads * (op.head_dim + op.v_dim), moved, spent, 1.0, 0.0, moved)
        width, value = latent_widths(self.arch) or (op.head_dim, op.v_dim)
        flops = 2.0 * queries * seen * heads * (width + value)
        kept = self.weight * self.batch * seen * cached(self.arch, op) * self.basis.shards["tp"]
        near = self.unit * queries * heads * (op.head_dim + op.v_dim)
        spent = maximum(flops / (device.peak * e.attention), (kept + near) / (device.bandwidth * e.memory)) + e.floor
        return Forward(flops, kept + near, spent, 1.0, kept if len(op.ins) > 1 else 0.0, near)


def latent_widths(arch: Architecture) -> tuple[float, float] | None:
    """Widths of queries and values against the compressed keys of multi-head latent attention (arXiv 2405.04434, section 2.1):
    one latent for all heads, into which the up-projections are absorbed."""
    rank, rope = arch.config.get("kv_lora_rank"), arch.config.get("qk_rope_head_dim")
    return (float(rank) + float(rope), float(rank)) if isinstance(rank, int) and isinstance(rope, int) else None


def cached(arch: Architecture, op: Attention) -> float:
    """Elements that one layer keeps of a token: keys and values of each head, or the latent and the shared rotary key."""
    latent = latent_widths(arch)
    return latent[0] if latent else float(op.kv_heads * (op.head_dim + op.v_dim))


def _states(block: Block, batch: Value) -> Forward:
    """Recurrent states, read and written for each token."""
    size = batch * STATE * sum(op.state for op in block.ops if isinstance(op, Scan))
    return Forward(moved=2.0 * size, cache=size)


def forward_pass(
    arch: Architecture,
    device: Device,
    efficiency: Efficiency,
    *,
    batch: Value,
    seq_len: Value,
    weight: float,
    wide: bool = False,
    low: bool = False,
    tp: Value = 1,
    longest: int | None = None,
) -> Forward:
    """Return one forward pass of a batch: of one token of each sequence where the model is autoregressive.

    ``seq_len``: tokens of a sequence; when decoding, those that the new one sees, itself included.  ``weight``: bytes per
    element of weights and of keys and values; ``wide``: activations are fp32, else 16 bits; ``low``: products run in the
    low-precision format.  ``tp``: ranks that share the matrices (their exchanges are not counted here).
    ``longest``: where sequences are an array, one that exceeds the same attention windows as all of them.
    """
    decode = autoregressive(arch)
    rows = 1.0 if decode else seq_len
    sizes = Sizes(micro_batch=batch, seq_len=rows, encoder_seq_len=rows, tp=tp, sp=False)
    walk = _Pass(
        arch, Basis(sizes), batch, seq_len, decode, device, efficiency, weight, 4.0 if wide else 2.0, 1.0 if low else 0.0
    )
    total = Forward()
    bound = exceeded(arch, int(seq_len) if longest is None else longest)
    for block, count, works in _blocks(arch, wide, bound):
        if decode and block.stream != "text":
            continue  # the encoder and towers ran when the prompt did
        parts = [*walk.block(_without_memory(works) if decode else works), *([_states(block, batch)] if decode else [])]
        for part in parts:
            total = Forward(
                total.flops + count * part.flops,
                total.moved + count * part.moved,
                total.seconds + count * part.seconds,
                total.launches + count * part.launches,
                total.cache + count * part.cache,
                maximum(total.working, part.working),
            )
    return total


def _served(block: Block) -> Block:
    """A block as servers run it: tokens visit their own experts alone, and attention is one kernel, where a model's training code
    runs every expert or writes its scores out."""
    ops = tuple(_kernel_of(op) for op in block.ops)
    return block if ops == block.ops else replace(block, ops=ops)


def _kernel_of(op: Operator) -> Operator:
    if isinstance(op, Experts) and op.dense:
        return replace(op, dense=False)
    if isinstance(op, Attention) and not (op.fused and not op.unfused):
        return replace(op, fused=True, unfused=False)
    return op


def _without_memory(works: BlockWorks) -> BlockWorks:
    """Return works without those on rows of the encoder or of a picture: keys and values of the memory are kept."""
    there = ("E", "B")
    kept = [
        replace(w, forward={m: v for m, v in w.forward.items() if not m.startswith(there)}) if isinstance(w, Stream) else w
        for w in works.kernels
        if isinstance(w, Stream) or not w.rows[0].startswith(there)
    ]
    return BlockWorks(kernels=kept)
