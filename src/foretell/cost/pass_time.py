"""Seconds of one pass through a block: its kernels priced, its exchanges timed, its launches counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter
from typing import Any

from foretell.cost import collectives
from foretell.cost.arrays import Value, maximum, minimum, power, where
from foretell.cost.evaluate import Basis, Sizes
from foretell.cost.kernels import Device, Efficiency, attention, attention_bytes, matmul, product_bytes, traffic
from foretell.cost.placement import Placement
from foretell.cost.topology import Group, Topology
from foretell.cost.works import BlockWorks, Core, Exchange, Product, Stream

__all__ = ["Network", "Pass", "Passes", "Pricer"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro-batch on one rank: seconds by what they are spent on, before anything overlaps."""

    matmul: Value = 0.0
    low: Value = 0.0
    """Matrix products in the low-precision format."""
    experts: Value = 0.0
    """Grouped products of routed experts, in whichever format."""
    attention: Value = 0.0
    stream: Value = 0.0
    """Everything that only moves bytes."""
    tp: Value = 0.0
    ep: Value = 0.0
    cp: Value = 0.0
    launches: Value = 0.0
    """Kernels that the host has to launch."""
    calls: Value = 0.0
    """Collectives that the host has to launch."""
    routed: Value = 0.0
    """Dispatches of routed tokens, whose sizes the host has to learn."""
    flops: Value = 0.0
    """Arithmetic that is executed, FLOP."""
    core_flops: Value = 0.0
    """Of it, attention's."""
    masked_flops: Value = 0.0
    """Attention of the pairs that a causal mask leaves out, run or not."""
    unseen_flops: Value = 0.0
    """Of the arithmetic, attention of pairs that a mask or a window leaves out."""
    moved: Value = 0.0
    """Bytes that kernels read and write, each operand once."""

    def __add__(self, other: Pass) -> Pass:
        return Pass(*map(add, _PASS(self), _PASS(other)))

    def __mul__(self, factor: Value) -> Pass:
        return Pass(*[part * factor for part in _PASS(self)])


_PASS = attrgetter(*(f.name for f in fields(Pass)))


def total(parts: Sequence[Pass]) -> Pass:
    """Sum of passes."""
    return Pass(*map(sum, zip(*map(_PASS, parts), strict=True)))


@dataclass(frozen=True, slots=True)
class Passes:
    """A block's passes: forward, what is computed again before its backward pass, gradients of inputs and of weights."""

    forward: Pass = field(default_factory=Pass)
    again: Pass = field(default_factory=Pass)
    backward: Pass = field(default_factory=Pass)
    weights: Pass = field(default_factory=Pass)
    repeated: float = 0.0
    """Blocks that are computed again as a whole."""

    def __add__(self, other: Passes) -> Passes:
        return Passes(*map(add, _PASSES(self), _PASSES(other)))

    def __mul__(self, factor: float) -> Passes:
        return Passes(*[part * factor for part in _PASSES(self)])


_PASSES = attrgetter(*(f.name for f in fields(Passes)))


@dataclass(frozen=True, slots=True)
class Network:
    """Who exchanges with whom over what."""

    topology: Topology
    groups: Placement
    algorithm: str | None = None
    """Forced for collectives that know it."""
    deduplicated: bool = False
    """Tokens cross the network once for every domain that their experts sit in (DeepEP, Megatron-Core's flex dispatcher)."""
    flex: bool = False
    """Tokens travel once to every rank that holds one of their experts, inside a domain too (DeepEP)."""
    limit: int = 0
    """Most domains that a token's experts may sit in (node-limited routing); 0: any."""

    def seconds(self, kind: str, size: Value, group: Group) -> Value:
        """Return the seconds of a collective whose kernel was launched ahead."""
        if group.ranks.__class__ is int and group.ranks == 1:
            return 0.0
        force = self.algorithm if self.algorithm in (*collectives.ALGORITHMS, *collectives.SHAPES) else None
        return collectives.seconds(kind, size, group, self.topology, algorithm=force, queued=True)

    def group(self, name: str) -> Group:
        """Return a rank's group."""
        found: Group = getattr(self.groups, name)
        return found

    def routed(self, size: Value, choices: float, group: Group) -> Value:
        """Return the seconds of sending every token to the ranks of its ``choices`` experts (``size`` bytes in all).

        Across domains a token travels once to each domain that holds one of its experts: of ``d`` domains, ``k`` even
        choices reach ``d (1 - (1 - 1/d)^k)``, or no more than the routing allows.
        """
        copies = _reached(group.ranks, choices) if self.flex else choices
        plain = self.seconds("all_to_all", size * copies / choices, group)
        if not self.deduplicated:
            return plain
        domains = group.domains
        reached = _reached(domains, choices)
        if self.limit:
            reached = minimum(reached, float(self.limit))
        once = collectives.seconds("all_to_all", size * reached / choices, group, self.topology, algorithm="deepep", queued=True)
        return where(domains > 1, minimum(plain, once), plain)


def _reached(places: Value, choices: float) -> Value:
    """Places that ``choices`` even picks among so many are expected to hit."""
    return places * (1.0 - power(1.0 - 1.0 / places, choices))


@dataclass(frozen=True, slots=True)
class Pricer:
    """Prices works at a run's sizes."""

    device: Device
    efficiency: Efficiency
    sizes: Sizes
    basis: Basis
    network: Network
    gradient: float = 4.0
    """Bytes per element that a weight gradient is written in."""
    accumulate: float = 1.0
    """1 where weight gradients are added to what is there."""
    low: float = 0.0
    """1 where matrix products that may do so run in the low-precision format."""
    casts: float = 4.0
    """Bytes moved per operand element that is converted: read in half precision, written twice for both its products."""
    imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean."""
    timed: dict[tuple[Any, ...], Pass] = field(default_factory=dict, repr=False, compare=False)
    """Exchanges by group, kind and size: a layer has the same ones many times."""

    def at(self, form: tuple[str, float]) -> Value:
        return self.basis[form[0]] * form[1]

    def sum(self, form: dict[str, float]) -> Value:
        out: Value = 0.0
        for monomial, coefficient in form.items():
            out = out + self.basis[monomial] * coefficient
        return out

    def block(self, works: BlockWorks, again: Callable[[str], bool]) -> Passes:
        """Return the passes of a block; ``again`` tells by a node's name whether it runs once more before its backward."""
        kernels = [self.kernel(work) for work in works.kernels]
        repeated = [bool(again(node)) for node in works.nodes]
        every = bool(repeated) and all(repeated)
        there, back = self.exchanges(works.forward), self.exchanges(works.backward)
        repeat = [f for (f, _, _), run in zip(kernels, repeated, strict=True) if run]
        return Passes(
            total([*(f for f, _, _ in kernels), there]),
            total([*repeat, there] if every else repeat),
            total([*(b for _, b, _ in kernels), back]),
            total([w for _, _, w in kernels]),
            float(every),
        )

    def exchanges(self, all_of: Iterable[Exchange]) -> Pass:
        """Return the seconds of exchanges, by group."""
        found = []
        for one in all_of:
            key = (one.group, one.kind, one.choices, tuple(one.whole.items()))
            if key not in self.timed:
                self.timed[key] = self.exchange(one)
            found.append(self.timed[key])
        return total(found)

    def exchange(self, one: Exchange) -> Pass:
        """Return the seconds of one exchange."""
        group, size = self.network.group(one.group), self.sum(one.whole)
        calls = where(group.ranks > 1, 1.0, 0.0)
        if one.group == "ep":
            # the busiest rank receives what is more than its share
            return Pass(ep=self.network.routed(size * self.imbalance, one.choices, group), calls=calls, routed=1.0)
        if one.group == "cp":
            return Pass(cp=self.network.seconds("all_gather", size * group.ranks, group), calls=calls)
        return Pass(tp=self.network.seconds(one.kind, size, group), calls=calls)

    def kernel(self, work: Product | Core | Stream) -> tuple[Pass, Pass, Pass]:
        """Return the forward pass, the gradient of the inputs and that of the weights."""
        if isinstance(work, Stream):
            return self._stream(work)
        return self._core(work) if isinstance(work, Core) else self._product(work)

    def _stream(self, work: Stream) -> tuple[Pass, Pass, Pass]:
        ahead, behind = self.sum(work.forward), self.sum(work.backward)
        there = traffic(ahead, self.device, self.efficiency, work.launches)
        back = traffic(behind, self.device, self.efficiency, work.launches_backward)
        return (
            Pass(stream=there, launches=work.launches, moved=ahead),
            Pass(stream=back, launches=work.launches_backward, moved=behind),
            Pass(),
        )

    def _product(self, work: Product) -> tuple[Pass, Pass, Pass]:
        shards = self.basis.shards
        batch = maximum(self.at(work.batch), 1.0)
        rows = self.at(work.rows) * (self.imbalance if work.spread else 1.0)
        m = rows / (batch if work.spread else 1.0)
        n = self.at(work.inner) if work.inner else work.n * shards[work.n_shard]
        k = self.at(work.deep) if work.deep else work.k * shards[work.k_shard]
        low = self.low if work.low else 0.0
        common: dict[str, Any] = {
            "batch": batch,
            "operand": 1.0 if low else work.unit,
            "low": low,
            "grouped": float(work.grouped),
        }

        def run(m: Value, n: Value, k: Value, result: float, cast: Value = 0.0, accumulate: float = 0.0) -> Pass:
            spent = matmul(m, n, k, self.device, self.efficiency, result=result, accumulate=accumulate, **common)
            copied = traffic(cast * self.casts, self.device, self.efficiency) if low and work.weighted else 0.0
            read, written = product_bytes(m, n, k, batch, common["operand"], result, accumulate)
            made: dict[str, Value] = {
                "stream": copied,
                "launches": 1.0 + (low if work.weighted else 0.0),
                "flops": 2.0 * m * n * k * batch,
                "moved": read + written + (cast * self.casts if low and work.weighted else 0.0),
            }
            return Pass(**{"experts" if work.grouped else "low" if low else "matmul": spent}, **made)

        # sequence parallelism converts a rank's part of the sequence, then gathers it
        parts = shards["sp"] if "tp" in (work.n_shard, work.k_shard) else 1.0
        whole_in = m * k * batch * (parts if work.k_shard == "1" else 1.0)
        whole_out = m * n * batch * (parts if work.n_shard == "1" else 1.0)
        there = run(m, n, k, work.unit, whole_in)
        back = run(m, k, n, work.unit, whole_out) if work.input_grad else Pass()
        if not work.weighted:  # both operands are activations
            return self._masked(work, there), back + run(k, n, m, work.unit), Pass()
        if not work.trains:
            return there, back, Pass()
        return there, back, run(n, k, m, self.gradient, 0.0, self.accumulate)

    def _masked(self, work: Product, there: Pass) -> Pass:
        """Attention without a kernel of its own computes all pairs, seen or not."""
        form = work.inner or work.deep
        if form is None or not (work.causal or work.window):
            return there
        keys = self.at(form)
        reach = minimum(keys, float(work.window)) / keys if work.window else 1.0
        share = 1.0 - 0.5 * reach if work.causal else 1.0
        flops = there.flops
        return replace(there, masked_flops=flops * reach * (1.0 - share), unseen_flops=flops * (1.0 - reach * share))

    def _core(self, work: Core) -> tuple[Pass, Pass, Pass]:
        op, s = work.op, self.sizes
        queries = self.at((work.rows[0].split("/")[0] + "/1", work.rows[1]))
        heads = op.heads * self.basis.shards["tp"]
        seen: Value = {"T": s.seq_len, "E": s.encoder_seq_len, "B": 1.0}[work.keys] * work.per
        if op.window:
            seen = minimum(seen, float(op.window))
        share: Value = 1.0
        if op.causal and work.keys == "T" and op.memory == "self":
            share = 1.0 - 0.5 * seen / (s.seq_len * work.per)  # the first rows of a window see less than all of it
        pairs = queries * seen * share
        sizes: dict[str, Any] = {"unit": work.unit}
        given = (pairs, queries, heads, op.head_dim, op.v_dim, self.device, self.efficiency)
        flops = 2.0 * pairs * heads * (op.head_dim + op.v_dim)
        return (
            Pass(
                attention=attention(*given, **sizes),
                launches=1.0,
                flops=flops,
                core_flops=flops,
                masked_flops=flops / share - flops,
                moved=attention_bytes(queries, heads, op.head_dim, op.v_dim, work.unit),
            ),
            Pass(
                attention=attention(*given, backward=True, **sizes),
                launches=3.0,
                flops=2.5 * flops,
                moved=attention_bytes(queries, heads, op.head_dim, op.v_dim, work.unit, backward=True),
            ),
            Pass(),
        )
