"""How many tokens of keys and values a serving deployment can hold, and the ledger that says why.

The engine's own start-up is followed: what its memory flag is a share of, less the weights, the largest step and what else it
counts, in whole blocks.  The largest step is one of ``max_num_batched_tokens`` tokens in ``max_num_seqs`` sequences: its widest
layer, or the sampler's sort of all probabilities, whichever needs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from foretell.arch.architecture import Architecture
from foretell.cost.arrays import Value, maximum
from foretell.cost.inference import autoregressive
from foretell.cost.kv_budget import Budget, budget_of
from foretell.cost.kv_footprint import Footprint, footprint
from foretell.cost.kv_layout import Stage, is_latent, placement, stages
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode
from foretell.recipe.engines import Resolved, resolve_serving
from foretell.recipe.serving import ServingRecipe

__all__ = ["KvCapacity", "Term", "kv_capacity", "with_draft"]

GIB: Final = 2.0**30
LEFTOVERS: Final = 2.0 * GIB
"""Bytes that an engine may count too much (:attr:`foretell.recipe.engines.Engine.leftovers`)."""


class Term(NamedTuple):
    """One line of the ledger; what is taken away is negative."""

    name: str
    bytes: float
    formula: str
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The KV pool of one accelerator, on the pipeline stage that holds the fewest tokens."""

    resolved: Resolved
    budget: Budget
    stage: Stage
    footprint: Footprint
    tokens: int
    """Of context in the pool, as the engine's log counts them; of each rank where attention is data parallel."""
    spread: float
    """Bytes that the pool may be off by (90 %)."""
    notes: tuple[str, ...] = ()
    draft: float = 0.0
    """Bytes of the weights of a draft model beside."""

    @property
    def pool_bytes(self) -> float:
        """Bytes for KV; negative: so much is missing."""
        return self.budget.pool

    @property
    def feasible(self) -> bool:
        """Whether there is room for a block of every layer, beside what has to be there first."""
        return bool(self.budget.pool >= self.footprint.sequence(1))

    @property
    def shortfall_bytes(self) -> float:
        """Bytes that are missing for one block; 0 where it fits."""
        return max(0.0, float(self.footprint.sequence(1)) - self.budget.pool)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.footprint.block

    @property
    def blocks(self) -> int:
        """Blocks of the pool."""
        return max(0, self.tokens // self.footprint.block)

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more token of context takes where every layer grows."""
        return self.footprint.growing / self.footprint.block

    def sequence_bytes(self, length: Value) -> Value:
        """Bytes that a sequence of so many tokens takes of the pool."""
        return self.footprint.sequence(length)

    def concurrency(self, length: Value) -> Value:
        """Sequences of so many tokens that the pool holds at once; 0 where it holds none."""
        engine, prints, pool = self.resolved.engine, self.footprint, max(self.budget.pool, 0.0)
        if prints.state and engine.state_ratio is not None:
            states = pool * engine.state_ratio / (1 + engine.state_ratio) / prints.state
            kept = max(prints.full, 1e-9) * maximum(length, 1) / prints.block
            return _least(pool / (1 + engine.state_ratio) / kept, states)
        return pool / prints.sequence(maximum(length, 1))

    @property
    def max_concurrency(self) -> float:
        """Sequences of ``max_model_len`` tokens that the pool holds at once."""
        return float(self.concurrency(self.resolved.recipe.max_model_len or 1))

    @property
    def holds_longest(self) -> bool:
        """Whether one sequence of ``max_model_len`` fits: engines that do not find it so refuse to start."""
        return self.max_concurrency >= 1.0

    @property
    def interval(self) -> tuple[int, int]:
        """Tokens that hold 90 % of measurements."""
        if self.tokens <= 0 or self.budget.pool <= 0:
            return 0, int(max(0.0, self.budget.pool + self.spread) / max(self.bytes_per_token, 1.0))
        share = self.spread / self.budget.pool
        return int(self.tokens * max(0.0, 1 - share)), int(self.tokens * (1 + share))

    @property
    def ledger(self) -> tuple[Term, ...]:
        """The terms from the device's memory down to the pool; they sum to ``pool_bytes``."""
        return _ledger(self)


def _least(a: Value, b: Value) -> Value:
    return -maximum(-a, -b)


def kv_capacity(arch: Architecture, hardware: HardwareNode, recipe: Resolved | ServingRecipe) -> KvCapacity:
    """Return the KV capacity of a deployment; less than nothing is an answer too (``feasible``, ``shortfall_bytes``).

    Raises InputError for what no engine can be asked, CombinationError for a layout that cannot be.

    >>> from foretell.arch import load_model
    >>> from foretell.machine.hardware import load_hardware
    >>> llama, h100 = load_model("llama-3.1-8b").architecture, load_hardware("h100")
    >>> found = kv_capacity(llama, h100, ServingRecipe(version="0.11.0", max_model_len=16000))
    >>> round(found.pool_bytes / 2**30, 2), found.feasible  # 51.38 GiB in its log
    (51.39, True)
    """
    resolved = recipe if isinstance(recipe, Resolved) else resolve_serving(recipe, hardware, arch)
    if not autoregressive(arch):
        raise InputError("keeps no keys, values or states from token to token", field="model", value=arch.name)
    place = placement(arch, resolved, hardware.compute_capability)
    notes = (*resolved.notes, *_remarks(arch, resolved))
    best: KvCapacity | None = None
    for stage in stages(arch, place):
        if not stage.kept:  # its layers keep nothing: another stage is the limit
            continue
        found = _on_stage(resolved, hardware, stage, notes)
        if best is None or found.budget.pool / found.footprint.growing < best.budget.pool / best.footprint.growing:
            best = found
    if best is None:
        raise InputError("keeps no keys, values or states from token to token", field="model", value=arch.name)
    return best


def _on_stage(resolved: Resolved, hardware: HardwareNode, stage: Stage, notes: tuple[str, ...]) -> KvCapacity:
    """The capacity that one stage leaves."""
    engine, recipe = resolved.engine, resolved.recipe
    paged = engine.share == "total" and engine.windows
    windows = engine.windows
    prints = footprint(stage, recipe.block_size or engine.block_size, windows=windows, paged=paged, spread=engine.spread)
    budget = budget_of(resolved, hardware, stage, prints)
    if budget.pool > 0 and budget.rest < 0:
        short = -budget.rest / GIB
        notes = (*notes, f"the memory flag leaves {short:.2f} GiB too little for a full step with its CUDA graphs")
    tokens = _tokens(resolved, prints, budget.pool)
    return KvCapacity(resolved, budget, stage, prints, tokens, _spread(resolved, budget), notes)


def with_draft(held: KvCapacity, draft: KvCapacity) -> KvCapacity:
    """Return the capacity of a deployment whose accelerators hold a draft model too, which keeps keys and values of its own for
    every token."""
    own, both = draft.footprint, held.footprint
    prints = replace(both, full=both.full + own.full, windows=both.windows + own.windows, state=both.state + own.state)
    budget = replace(held.budget, weights=held.budget.weights + draft.stage.weights, pool=held.budget.pool - draft.stage.weights)
    tokens = _tokens(held.resolved, prints, budget.pool)
    return replace(held, budget=budget, footprint=prints, tokens=tokens, draft=draft.stage.weights)


def _tokens(resolved: Resolved, prints: Footprint, pool: float) -> int:
    """Tokens of context that the engine says the pool holds."""
    engine, recipe = resolved.engine, resolved.recipe
    if pool <= 0:
        return 0
    length = recipe.max_model_len or 1
    if not prints.full and not prints.windows:  # states alone: any length
        return int(pool / prints.state * length) if prints.state else 0
    if engine.share == "slots":
        return int(recipe.max_num_seqs or 1) * length
    if engine.window_ratio is not None and (prints.windows or prints.state):
        kept = pool / (1 + engine.state_ratio) if prints.state and engine.state_ratio else pool
        per_token = prints.full + engine.window_ratio * sum(size for _, size in prints.windows)
        return int(kept / per_token) * prints.block
    if engine.full_tokens and (prints.windows or prints.state):
        return int(pool / prints.largest(length, recipe.max_num_batched_tokens or 1) * length)
    if prints.state and engine.share != "total":  # states of all slots beside the pool
        pool = max(0.0, pool - prints.state * (recipe.max_num_seqs or 1))
        return int(pool / (prints.growing - prints.state)) * prints.block
    return int(pool / prints.growing) * prints.block


def _spread(resolved: Resolved, budget: Budget) -> float:
    """Bytes that the pool may be off by: parts that builds and drivers change, more where the version is not known."""
    off = 0.02 * budget.weights + 0.15 * budget.activation + 0.3 * budget.context + 0.5 * budget.communicators + 0.2 * GIB
    off += LEFTOVERS if resolved.engine.leftovers else 0.0
    return off * (1.0 if resolved.certain else 2.0) + (0.0 if resolved.certain else 0.03 * budget.device)


def _remarks(arch: Architecture, resolved: Resolved) -> Iterator[str]:
    """What a reader has to know of a deployment."""
    recipe, text = resolved.recipe, arch.text or arch
    if text.kv_heads and recipe.tp > text.kv_heads and not is_latent(text, resolved.engine.latent):
        yield f"each of the {text.kv_heads} key and value heads is held by {recipe.tp / text.kv_heads:g} ranks"
    if is_latent(text, resolved.engine.latent) and recipe.tp > 1:
        yield f"the latent is held by each of the {recipe.tp} tensor-parallel ranks"
    if arch.memory is not None:
        yield "keys and values of the encoder's output are not counted"


def _ledger(c: KvCapacity) -> tuple[Term, ...]:
    """See :attr:`KvCapacity.ledger`."""
    engine, recipe, b, s = c.resolved.engine, c.resolved.recipe, c.budget, c.stage
    seqs, tokens, ranks = recipe.max_num_seqs, recipe.max_num_batched_tokens, recipe.tp * recipe.pp
    counted = b.communicators / 2 * engine.communicators
    step = f"max({tokens} tokens in a layer, {engine.sampler:g} B x min({seqs}, {tokens}) x {s.vocab})"
    nccl = f"{engine.communicators} x NCCL of {ranks} ranks"
    captured = f"{len(c.resolved.graph_sizes)} batches x {s.count} layers"
    logs = "engines' start-up logs"
    parts = (
        ("layers", s.dense, f"{recipe.weights}, {s.count} layers, tp {recipe.tp}", "matrices, norms, routers", "parameters"),
        ("experts", s.experts, f"{recipe.weights}, ep {recipe.ep}", "routed experts", "parameters"),
        ("embedding", s.embedding, "vocabulary x hidden", "token table", "parameters"),
        ("head", s.head, "vocabulary x hidden", "output projection", "parameters"),
        ("draft", c.draft, "its own parameters", "draft model", "parameters"),
        ("tables", s.tables, "max_position_embeddings x rotary x 2 B", "rotary embedding", "cos_sin_cache"),
        ("activation", b.activation * engine.activation, step, "largest step", engine.source),
        ("libraries", b.libraries, "0.13 GiB", "kernels loaded on first use", logs),
        ("communicators", counted, nccl, "NCCL buffers", logs),
        ("context", b.context * engine.context, "by compute capability", "CUDA context", "memory calibration"),
        ("graphs", b.graphs * engine.graphs_count, captured, "CUDA graphs", logs),
    )
    terms = [Term(name, -size, formula, what, source) for name, size, formula, what, source in parts if size]
    whole = b.pool - sum(t.bytes for t in terms)
    if engine.share == "total":
        formula = f"{recipe.memory_share} x {b.device / GIB:.2f} GiB"
        return (Term("requested", whole, formula, "share of the device", engine.source), *terms)
    kept = Term("held back", whole - b.device, f"memory flag {recipe.memory_share}", "not given to KV", engine.source)
    return (Term("device", b.device, "memory that processes can use", "device", "catalog"), kept, *terms)
