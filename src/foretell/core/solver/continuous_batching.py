"""ContinuousBatchingModel: a server that admits requests as others leave: how many it holds, and how fast they go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.serving import Deployment
from foretell.core.solver._result import Result, Term, gib, ledger
from foretell.core.solver._serving import around, lengths, remarks, served
from foretell.cost.serving_batch import expected_blocks
from foretell.cost.serving_flow import Flow, Traffic, at_concurrency
from foretell.cost.serving_load import Load
from foretell.errors import CombinationError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.validation import MAX_SEQUENCE, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["ContinuousBatchingModel", "ContinuousBatchingResult"]


@dataclass(frozen=True)
class ContinuousBatchingResult(Result):
    """A server with requests always waiting.  Seconds and bytes; the names without `_s` and `_bytes` are pint quantities."""

    title: ClassVar[str] = "memory"

    feasible: bool
    """Whether one request fits beside the weights."""
    throughput_tokens_per_sec: float
    """Output tokens of all requests together, while others' prompts are read; 0 where nothing is served."""
    throughput_interval: tuple[float, float] | None
    """90 % interval of it; None where `efficiency` is a share of the peak."""
    max_active_requests: int
    """Requests that are resident at a time."""
    memory_fragmentation_pct: float | None
    """Share of the blocks held that no token fills: the last block of each request, on average."""
    static_fragmentation_pct: float | None
    """... where each request reserves the longest sequence."""
    paged_kv_cache_size_bytes: float
    """Blocks of the active requests, on one accelerator."""
    ttft_s: float | None
    """Time to first token of a request that is admitted: its prompt is read beside the requests that decode."""
    ttft_interval_s: tuple[float, float] | None
    itl_s: float | None
    """Time between two tokens in a step without prompts, all active requests seeing `mean_request_tokens`: as ServingModel's."""
    tpot_s: float | None
    """Mean time per output token, the reading of prompts in between counted."""
    tpot_interval_s: tuple[float, float] | None
    speedup_vs_static: float | None
    """Throughput over that of a server whose requests reserve the longest sequence each; None where that serves nothing."""
    static_max_active_requests: int
    static_throughput_tokens_per_sec: float
    requests_per_s: float
    """That are answered."""
    bound: str
    """What holds the active requests down: max_batch_size, or memory."""
    mean_request_tokens: float
    """Prompt and answer."""
    output_tokens: float
    page_size: int
    """Tokens of a block."""
    kv_cache_tokens: int
    """That the pool holds."""
    devices: int
    constraint_trace: list[str]
    """Memory down to the pool, and what it holds."""
    notes: list[str]
    """Assumptions made, terms left out."""
    _terms: tuple[Term, ...] = ()

    def terms(self) -> list[Term]:
        """Return the ledger of one accelerator's memory, the KV pool among its terms."""
        return list(self._terms)

    def explain(self) -> str:
        """Return rates and the ledger of one accelerator's memory as text."""
        lines = [f"{self.throughput_tokens_per_sec:.4g} output tokens/s with {self.max_active_requests} active requests"]
        if self.itl_s is not None and self.tpot_s is not None:
            lines.append(f"  {self.itl_s * 1e3:.4g} ms a step without prompts, {self.tpot_s * 1e3:.4g} ms a token with them")
        lines.append(ledger(self.title, self.terms()))
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class ContinuousBatchingModel:
    """How many requests does a server hold that admits one when another leaves, and how many tokens a second does it make?

    Requests have `mean_request_tokens` tokens on average, prompt and answer (`seq_len` where nothing is said; `max_seq_len` is
    another name of it), cut at `seq_len`; of these `output_tokens` are made (None: half).  Keys and values are kept in blocks of
    `page_size` tokens, in what the engine's memory flag leaves after weights and its largest step.  Requests always wait, so that
    the server is full; each step decodes, and reads what prompts the step's budget of tokens has room for.

    `precision`, `weights`, `kv_format`, `efficiency`, `engine` and the sizes: as for ServingModel.  `memory_share`: the engine's
    memory flag (vLLM's gpu_memory_utilization).
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        seq_len: int | None = None,
        max_batch_size: int = 1,
        page_size: int = 16,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        max_seq_len: int | None = None,
        mean_request_tokens: float | None = None,
        output_tokens: int | None = None,
        tp_size: int = 1,
        pp_size: int = 1,
        ep_size: int = 1,
        engine: str | None = None,
        engine_version: str | None = None,
        weights: str | None = None,
        kv_format: str | None = None,
        memory_share: float | None = None,
    ) -> ContinuousBatchingResult:
        """Answer for a full server; InputError or CombinationError for what cannot be served so.

        >>> result = ContinuousBatchingModel().solve("llama-3.1-8b", "h100", 4096, 256, mean_request_tokens=1024)
        >>> result.max_active_requests, round(result.memory_fragmentation_pct, 2), result.static_fragmentation_pct
        (256, 0.76, 75.0)
        """
        server = Server.of(
            load_model(model),
            load_hardware(hardware),
            {
                "seq_len": seq_len,
                "max_seq_len": max_seq_len,
                "mean_request_tokens": mean_request_tokens,
                "output_tokens": output_tokens,
                "max_batch_size": max_batch_size,
                "page_size": page_size,
                "precision": precision,
                "efficiency": efficiency,
                "tp_size": tp_size,
                "pp_size": pp_size,
                "ep_size": ep_size,
                "engine": engine,
                "engine_version": engine_version,
                "weights": weights,
                "kv_format": kv_format,
                "memory_share": memory_share,
            },
        )
        return _answer(server)

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
        from foretell.core.solver._serving_sweep import sweep_batching  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep_batching(load_model(model), load_hardware(hardware), axes, product=product)


@dataclass(frozen=True, slots=True)
class Server:
    """A deployment and the requests that it serves."""

    found: Deployment
    longest: int
    mean: float
    outputs: float
    places: int
    """max_batch_size."""

    @classmethod
    def of(cls, workload: Workload, device: HardwareNode, given: Mapping[str, Any]) -> Server:
        """Check the parameters of `solve`, by name."""
        longest, mean = lengths(given["seq_len"], given["max_seq_len"], given["mean_request_tokens"])
        places = positive_int(given["max_batch_size"], "max_batch_size", maximum=MAX_SEQUENCE)
        page = positive_int(given["page_size"], "page_size", maximum=MAX_SEQUENCE)
        outputs = outputs_of(given["output_tokens"], mean)
        found = served(
            workload,
            device,
            given["precision"],
            given["efficiency"],
            given,
            max_num_seqs=places,
            max_model_len=longest,
            block_size=page,
            memory_share=given["memory_share"],
        )
        return cls(found, longest, mean, outputs, places)

    @property
    def traffic(self) -> Traffic:
        """The requests."""
        return Traffic(max(self.mean - self.outputs, 1.0), self.outputs)

    @property
    def blocks(self) -> float:
        """Blocks that a request holds on average."""
        return expected_blocks(self.mean, self.longest, self.found.capacity.block_size)

    def fitting(self, blocks: float) -> float:
        """Return how many requests of so many blocks the pool holds, fractions of blocks and of requests counted."""
        capacity, size = self.found.capacity, self.found.capacity.block_size
        if not capacity.feasible:
            return 0.0
        least, part = divmod(blocks, 1.0)
        low, high = (float(capacity.concurrency((least + up) * size)) for up in (0.0 if least else 1.0, 1.0))
        return 1.0 / ((1.0 - part) / low + part / high)

    def resident(self, blocks: float) -> int:
        """Return how many requests of so many blocks are resident."""
        return int(min(self.fitting(blocks) * (1.0 + 1e-12), self.places))

    def step_s(self, active: float) -> float:
        """Seconds of a step in which so many requests decode, each seeing all tokens of the mean request."""
        return float(self.found.seconds(Load(decode=active, context=active * self.mean)))

    def flow(self, active: int) -> Flow:
        """Steady state with so many requests."""
        return at_concurrency(self.found, self.traffic, self.found.limits, float(active))

    def figures(self) -> dict[str, Any]:
        """Return the numbers of the answer."""
        blocks, size = self.blocks, self.found.capacity.block_size
        active, reserved = self.resident(blocks), self.resident(float(-(-self.longest // size)))
        out: dict[str, Any] = {
            "feasible": active > 0,
            "max_active_requests": active,
            "static_max_active_requests": reserved,
            "memory_fragmentation_pct": 100.0 * (1.0 - self.mean / (blocks * size)),
            "static_fragmentation_pct": 100.0 * (1.0 - self.mean / self.longest),
            "throughput_tokens_per_sec": 0.0,
            "static_throughput_tokens_per_sec": 0.0,
            "requests_per_s": 0.0,
            "paged_kv_cache_size_bytes": 0.0,
            "ttft_s": None,
            "itl_s": None,
            "tpot_s": None,
            "speedup_vs_static": None,
        }
        if not active:
            return out | {"memory_fragmentation_pct": None, "static_fragmentation_pct": None}
        flow = self.flow(active)
        engine = self.found.steps.engine
        out |= {
            "throughput_tokens_per_sec": flow.rate * self.outputs,
            "requests_per_s": flow.rate,
            "paged_kv_cache_size_bytes": active * self.kept(blocks),
            "ttft_s": flow.prompt_s + (engine.request_s if self.found.steps.share is None else 0.0),
            "itl_s": self.step_s(float(active)),
            "tpot_s": flow.itl_s,
        }
        if reserved:
            other = flow if reserved == active else self.flow(reserved)
            out["static_throughput_tokens_per_sec"] = other.rate * self.outputs
            out["speedup_vs_static"] = flow.rate / other.rate
        return out

    def kept(self, blocks: float) -> float:
        """Bytes of one accelerator that so many blocks of a request take."""
        capacity, size = self.found.capacity, self.found.capacity.block_size
        least, part = divmod(blocks, 1.0)
        low, high = (float(capacity.sequence_bytes((least + up) * size)) for up in (0.0, 1.0))
        return (1.0 - part) * low + part * high


def outputs_of(given: object, mean: float) -> float:
    """Return the tokens of an answer: those given, else half of the request's."""
    if given is None:
        return max(mean / 2.0, 1.0)
    outputs = positive_int(given, "output_tokens", maximum=MAX_SEQUENCE)
    if outputs >= mean:
        raise CombinationError(
            "leaves no prompt of the request's tokens", field="output_tokens", value=given, allowed=f"below {mean:g}"
        )
    return float(outputs)


def memory_terms(found: Deployment) -> tuple[Term, ...]:
    """Return the ledger of one accelerator's memory: what is taken, what is held back, and what is left for KV."""
    capacity = found.capacity
    taken = [Term(t.name, -t.bytes, t.formula, t.what, t.source) for t in capacity.ledger if t.bytes < 0]
    pool = Term("kv_pool", max(capacity.pool_bytes, 0.0), "", "keys and values", "what is left")
    return (pool, *taken)


def memory_trace(found: Deployment) -> list[str]:
    """Return what is left of an accelerator's memory, and how much is missing where it is not enough."""
    capacity, budget = found.capacity, found.capacity.budget
    share = found.recipe.memory_share
    flag = f"memory flag {share:g} of {gib(budget.device)}" if share else gib(budget.device)
    out = [f"{flag}: weights {gib(budget.weights)}, largest step {gib(budget.activation)}, KV pool {gib(capacity.pool_bytes)}"]
    if not capacity.feasible:
        out.append(f"does not fit: {gib(capacity.shortfall_bytes)} are missing on each accelerator")
    return out


def _answer(server: Server) -> ContinuousBatchingResult:
    found, figures = server.found, server.figures()
    active = figures["max_active_requests"]
    trace = memory_trace(found)
    if found.capacity.feasible:
        trace.append(f"{server.fitting(server.blocks):.1f} requests of {server.mean:g} tokens fit, {server.places} are allowed")
    if not active and found.capacity.feasible:
        trace.append("one request needs more KV than there is")
    out, client = figures["throughput_tokens_per_sec"], figures["ttft_s"]
    return ContinuousBatchingResult(
        **figures,
        throughput_interval=around(out, found, "closed", "throughput") if active else None,
        ttft_interval_s=around(client, found, "closed", "ttft"),
        tpot_interval_s=around(figures["tpot_s"], found, "closed", "itl"),
        bound="max_batch_size" if active >= server.places else "memory",
        mean_request_tokens=server.mean,
        output_tokens=server.outputs,
        page_size=found.capacity.block_size,
        kv_cache_tokens=int(found.limits.kv_tokens),
        devices=found.recipe.devices,
        constraint_trace=trace,
        notes=_notes(server),
        _terms=memory_terms(found),
    )


def _notes(server: Server) -> list[str]:
    found = server.found
    prompt = server.mean - server.outputs
    out = [f"requests of {prompt:.6g} prompt and {server.outputs:.6g} output tokens on average, always some waiting"]
    if server.mean < server.longest:
        out.append(f"lengths vary exponentially, cut at {server.longest} tokens")
    asked = found.recipe.block_size
    if asked is not None and found.capacity.block_size != asked:
        out.append(f"blocks of {found.capacity.block_size} tokens: one has to be as large as a recurrent state")
    return list(dict.fromkeys([*out, *remarks(found)]))
