"""ServingModel: one batch of sequences: time to first token, time between tokens, memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.solver._batch_memory import Held, Node
from foretell.core.solver._result import Result, Term, gib, ledger
from foretell.core.solver._serving import BEYOND, LAYOUT, around, remarks, served
from foretell.cost.arrays import Value, minimum
from foretell.cost.serving_batch import Reading, read_prompts
from foretell.cost.serving_load import Load
from foretell.errors import CombinationError, InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.serving import Speculation
from foretell.units import parse
from foretell.validation import MAX_SEQUENCE, number, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["ServingModel", "ServingResult"]

LEAST_LINK: Final = 1.0
"""Bytes/s; a slower link between two nodes is none."""
_MOST_PROPOSED: Final = 64


@dataclass(frozen=True)
class ServingResult(Result):
    """One batch.  Seconds and bytes; the names without `_s` and `_bytes` are pint quantities.

    Bytes are of one accelerator, the fullest; where prompts are read on another node than the one that decodes, of the tighter
    node (`nodes` has both).
    """

    title: ClassVar[str] = "memory"

    feasible: bool
    """Whether everything fits what a process can use of each accelerator."""
    ttft_s: float
    """Time to first token: all of the batch's prompts are read, and their keys and values sent where another node decodes."""
    ttft_interval_s: tuple[float, float] | None
    """90 % interval; None where `efficiency` is a share of the peak."""
    itl_s: float
    """Time between two tokens of a sequence: one step over what a step makes, all sequences seeing `seq_len` tokens."""
    itl_interval_s: tuple[float, float] | None
    kv_cache_size_bytes: float
    """Keys, values and states of all sequences."""
    model_weights_size_bytes: float
    total_memory_required_bytes: float
    """Weights, keys and values, those of a draft model, the largest step's activations, and the process."""
    available_memory_bytes: float
    """What a process can use of one accelerator."""
    memory_utilization: float
    """Required over available."""
    prompt_cache_hit_ratio: float
    """Share of the tokens that the prefix cache holds."""
    prefill_chunks: int
    """Steps in which one prompt is read."""
    prefill_chunk_time_s: float | None
    """Mean step of a prompt's reading; None without `prefill_chunk_tokens`."""
    decode_stall_bound_s: float | None
    """Longest step of it, the last one: so long sequences that decode may have to wait."""
    throughput_tokens_per_s: float
    """Of all sequences together, while they decode."""
    tokens_per_step: float
    """That a sequence gets on average: more than one where a draft proposes."""
    step_s: float
    """One decoding step, with the draft's."""
    kv_transfer_s: float
    """Sending keys and values from the node that reads to the one that decodes; 0 where they are one."""
    breakdown_bytes: Mapping[str, float]
    """Term -> bytes; they sum to `total_memory_required`."""
    step_breakdown_s: Mapping[str, float]
    """Term -> seconds of the model's own decoding step."""
    nodes: Mapping[str, Mapping[str, Any]]
    """What each node has to hold, by what it does: `serve`, or `prefill` and `decode`."""
    devices: int
    """Accelerators of one node."""
    constraint_trace: list[str]
    """What has to fit where."""
    notes: list[str]
    """Assumptions made, terms left out."""
    _terms: tuple[Term, ...] = ()

    def terms(self) -> list[Term]:
        """Return the ledger's terms, which sum to `total_memory_required`."""
        return list(self._terms)

    def explain(self) -> str:
        """Return the ledger of one accelerator's memory and of one step as text."""
        lines = [
            f"time to first token {self.ttft_s * 1e3:.4g} ms, between tokens {self.itl_s * 1e3:.4g} ms",
            ledger(self.title, self.terms()),
            f"step {self.step_s * 1e3:.4g} ms makes {self.tokens_per_step:.4g} tokens a sequence",
            *(f"  {name:18s} {1e3 * spent:.4g} ms" for name, spent in self.step_breakdown_s.items() if spent > 0),
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class ServingModel:
    """How fast does one batch of sequences answer, and does it fit?

    `batch_size` sequences of `seq_len` tokens (prompt and answer; the prefix cache holds `cached_prefix_len` of them) start
    together.  Time to first token: all tokens are read, causal; time between tokens: one step in which each sequence sees
    `seq_len` tokens.  Both are bound by arithmetic or by traffic, whichever takes longer, kernel by kernel; of routed experts,
    those that the tokens visit count.

    `hardware` reads and decodes, or reads alone where there is a `decode_hardware`, to which keys and values are sent over
    `network_bandwidth`.  `draft_model` proposes `draft_tokens` tokens a step, which the model verifies at once
    (`draft_acceptance_rate`: that a proposed token is accepted).  `prefill_chunk_tokens` cuts prompts into steps.

    `precision` is the format of weights, of keys and values, and of products; `weights` and `kv_format` store them otherwise.
    `efficiency`: a share of the peak for arithmetic, while traffic has all of the bandwidth; "calibrated" prices every kernel by
    its shape and adds the time of `engine` (vLLM where none is named).  `tp_size`, `pp_size`, `ep_size`: accelerators that share
    the model.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        seq_len: int,
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        decode_hardware: HardwareNode | str | None = None,
        network_bandwidth: object = "100 GB/s",
        draft_model: Workload | str | None = None,
        draft_acceptance_rate: float = 0.7,
        cached_prefix_len: int = 0,
        prefill_chunk_tokens: int | None = None,
        draft_tokens: int = 4,
        tp_size: int = 1,
        pp_size: int = 1,
        ep_size: int = 1,
        engine: str | None = None,
        engine_version: str | None = None,
        weights: str | None = None,
        kv_format: str | None = None,
    ) -> ServingResult:
        """Answer for one batch; InputError or CombinationError for what cannot be served so.

        >>> result = ServingModel().solve("llama-3.1-8b", "h100", 2048)
        >>> round(result.kv_cache_size_bytes / 1e9, 3), result.feasible
        (0.268, True)
        """
        pair = Pair.of(
            load_model(model),
            {
                "hardware": hardware,
                "decode_hardware": decode_hardware,
                "precision": precision,
                "efficiency": efficiency,
                "network_bandwidth": network_bandwidth,
                "draft_model": draft_model,
                "draft_acceptance_rate": draft_acceptance_rate,
                "draft_tokens": draft_tokens,
                "prefill_chunk_tokens": prefill_chunk_tokens,
                "tp_size": tp_size,
                "pp_size": pp_size,
                "ep_size": ep_size,
                "engine": engine,
                "engine_version": engine_version,
                "weights": weights,
                "kv_format": kv_format,
            },
        )
        batch = positive_int(batch_size, "batch_size", maximum=MAX_SEQUENCE)
        tokens = positive_int(seq_len, "seq_len", maximum=MAX_SEQUENCE)
        cached = positive_int(cached_prefix_len, "cached_prefix_len", minimum=0, maximum=MAX_SEQUENCE)
        if cached >= tokens:
            problem = "must be shorter than the sequence: its last token is always computed"
            raise CombinationError(problem, field="cached_prefix_len", value=cached, allowed=f"0 to {tokens - 1}")
        return _answer(pair, batch, tokens, cached)

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason, those that do not fit are not `feasible`.
        """
        from foretell.core.solver._serving_sweep import sweep_serving  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep_serving(load_model(model), load_hardware(hardware), axes, product=product)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of batches, numbers or arrays."""

    reading: Reading
    ttft: Value
    step: Value
    itl: Value
    transfer: Value


@dataclass(frozen=True, slots=True)
class Pair:
    """The node that reads and the one that decodes, which may be one, ready for numbers or arrays of batches."""

    reads: Node
    decodes: Node
    link: float
    """Bytes/s between them."""
    chunk: int | None
    speculation: Speculation | None

    @classmethod
    def of(cls, workload: Workload, given: Mapping[str, Any]) -> Pair:
        """Check what does not depend on batches; ``given``: parameters of `solve` by name."""
        link = parse(given["network_bandwidth"], "byte/s", "network_bandwidth")
        if link < LEAST_LINK:
            raise InputError("is no link", field="network_bandwidth", value=given["network_bandwidth"], allowed="above 0")
        acceptance = number(given["draft_acceptance_rate"], "draft_acceptance_rate", maximum=1.0)
        proposed = positive_int(given["draft_tokens"], "draft_tokens", maximum=_MOST_PROPOSED)
        draft = None if given["draft_model"] is None else load_model(given["draft_model"])
        chunk = given["prefill_chunk_tokens"]
        chunk = None if chunk is None else positive_int(chunk, "prefill_chunk_tokens", maximum=MAX_SEQUENCE)
        speculation = None if draft is None else Speculation("draft", proposed, acceptance)
        device = load_hardware(given["hardware"])

        def on(where: HardwareNode) -> Node:
            made = served(
                workload,
                where,
                given["precision"],
                given["efficiency"],
                {name: given[name] for name in given if name in LAYOUT},
                draft=draft,
                speculation=speculation,
            )
            return Node(made, draft)

        reads = on(device)
        decodes = reads if given["decode_hardware"] is None else on(load_hardware(given["decode_hardware"]))
        return cls(reads, decodes, link, chunk, speculation)

    @property
    def apart(self) -> bool:
        """Whether one node reads and another decodes."""
        return self.reads is not self.decodes

    @property
    def budget(self) -> float:
        """Tokens of a step that reads."""
        return float(self.chunk or self.reads.found.limits.tokens)

    @property
    def whole(self) -> bool:
        """Whether a prompt is read in one piece."""
        return self.chunk is None and not self.reads.found.limits.mixed

    def times(self, batch: Value, tokens: Value, cached: Value) -> Times:
        """Return the seconds of batches of so many sequences and tokens."""
        reads, decodes = self.reads.found, self.decodes.found
        reading = read_prompts(reads, tokens * 1.0, cached, batch, self.budget, whole=self.whole)
        transfer = batch * self.sent(tokens) / self.link if self.apart else 0.0
        client = reads.steps.engine.request_s if reads.steps.share is None else 0.0
        step = decodes.seconds(Load(decode=batch * 1.0, context=batch * 1.0 * tokens, width=decodes.width))
        return Times(reading, client + reading.total + transfer, step, step / decodes.made, transfer)

    def sent(self, tokens: Value) -> Value:
        """Bytes of one sequence that go from one node to the other."""
        return self.reads.sent(tokens)

    def held(self, batch: int, tokens: int, cached: int) -> dict[str, tuple[Node, Held]]:
        """Return what each node holds of a batch."""
        step = int(minimum(self.budget, float(batch) * (tokens - cached)))
        if not self.apart:
            return {"serve": (self.reads, self.reads.held(batch, tokens, step))}
        return {
            "prefill": (self.reads, self.reads.held(batch, tokens, step)),
            "decode": (self.decodes, self.decodes.held(batch, tokens, batch)),
        }


def _answer(pair: Pair, batch: int, tokens: int, cached: int) -> ServingResult:
    times, held = pair.times(batch, tokens, cached), pair.held(batch, tokens, cached)
    tight = max(held, key=lambda role: held[role][1].total / held[role][0].available)
    node, most = held[tight]
    feasible = all(one.total <= where.available for where, one in held.values())
    found, terms = pair.decodes.found, tuple(most.terms())
    load = Load(decode=float(batch), context=float(batch) * tokens, width=found.width)
    cut, regime = pair.chunk is not None, "single" if batch == 1 else "static"
    return ServingResult(
        feasible=feasible,
        ttft_s=float(times.ttft),
        ttft_interval_s=around(float(times.ttft), pair.reads.found, regime, "ttft"),
        itl_s=float(times.itl),
        itl_interval_s=around(float(times.itl), found, regime, "itl"),
        kv_cache_size_bytes=most.kept,
        model_weights_size_bytes=most.weights,
        total_memory_required_bytes=most.total,
        available_memory_bytes=node.available,
        memory_utilization=most.total / node.available,
        prompt_cache_hit_ratio=cached / tokens,
        prefill_chunks=int(times.reading.chunks) if cut else 1,
        prefill_chunk_time_s=float(times.reading.mean) if cut else None,
        decode_stall_bound_s=float(times.reading.slowest) if cut else None,
        throughput_tokens_per_s=batch / float(times.itl),
        tokens_per_step=found.made,
        step_s=float(times.step),
        kv_transfer_s=float(times.transfer),
        breakdown_bytes={term.name: term.bytes for term in terms},
        step_breakdown_s={name: float(spent) for name, spent in found.steps.ledger(load).items()},
        nodes={role: _node(where, one) for role, (where, one) in held.items()},
        devices=found.recipe.devices,
        constraint_trace=[_fits(role, where, one) for role, (where, one) in held.items()],
        notes=_notes(pair, feasible=feasible, most=tokens),
        _terms=terms,
    )


def _node(node: Node, held: Held) -> dict[str, Any]:
    return {
        "hardware": node.found.hardware.id or node.found.hardware.name,
        "devices": node.found.recipe.devices,
        "required_bytes": held.total,
        "available_bytes": node.available,
        "feasible": held.total <= node.available,
    }


def _fits(role: str, node: Node, held: Held) -> str:
    """Say whether a node holds what it has to."""
    over = held.total > node.available
    parts = ", ".join(f"{term.name} {gib(term.bytes)}" for term in held.terms())
    verdict = f"{gib(held.total - node.available)} over" if over else "within"
    return f"{role} on {node.found.hardware.name}: {parts}: {gib(held.total)}, {verdict} the {gib(node.available)} available"


def _notes(pair: Pair, *, feasible: bool, most: int) -> list[str]:
    found = pair.decodes.found
    out = [] if feasible else [BEYOND]
    arch = found.workload.architecture.text or found.workload.architecture
    if arch.max_positions and most > arch.max_positions:
        out.append(f"the model was made for {arch.max_positions} tokens at most")
    if pair.speculation is not None:
        s = pair.speculation
        out.append(f"{s.tokens} tokens proposed a step by a draft in 16 bits, verified at once: {s.made:.3g} kept on average")
    if pair.apart:
        out.append("keys and values are sent when all prompts have been read; weights are on both nodes")
        out += remarks(pair.reads.found)
    return list(dict.fromkeys([*out, *remarks(found)]))
