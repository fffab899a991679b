"""What each accelerator of a serving deployment holds: weights, and keys, values and states per token and per sequence.

Layers are dealt out over the pipeline's stages; inside a stage, tensor parallelism splits heads and matrices.  A latent
(arXiv 2405.04434) belongs to all heads, so each rank keeps it whole.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Act, Attention, Experts, Gate, Linear, Rope, Scan
from foretell.cost.inference import STATE, cached
from foretell.cost.served_weights import Ranks, layer_bytes, outer_bytes, stored_bits, weight_format
from foretell.errors import CombinationError, InputError
from foretell.recipe.engines import Engine, Resolved

__all__ = ["KV_BITS", "KvLayer", "Placement", "Stage", "is_latent", "placement", "stages"]

KV_BITS = {
    "bf16": 16.0,
    "fp16": 16.0,
    "auto": 16.0,
    "fp32": 32.0,
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "int8": 8.0,
    "int4": 4.0,
    "nvfp4": 4.5,
    "q8_0": 8.5,
    "q4_0": 4.5,
}
"""Format of keys and values -> bits per element, with the scales that lie beside them in blocks."""
_SCALED = {"int8": 32.0, "int4": 32.0}
"""Bits of scale and zero point of each head's key and of its value (LMDeploy's quantised KV)."""


@dataclass(frozen=True, slots=True)
class KvLayer:
    """What one layer keeps on one accelerator."""

    token: float = 0.0
    """Bytes per token."""
    window: int = 0
    """Tokens back that it reads; 0: all."""
    state: float = 0.0
    """Bytes per sequence, of any length."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage on one of its accelerators, in bytes (and elements per token of a step)."""

    dense: float
    experts: float
    embedding: float
    head: float
    tables: float
    """Sines and cosines of rotary embeddings."""
    kept: tuple[tuple[KvLayer, int], ...]
    """What layers keep, with how many do."""
    count: int
    """Layers."""
    hidden: int
    widest: float
    """Elements per token of the widest intermediate tensors of one layer."""
    last: bool
    vocab: int

    @property
    def weights(self) -> float:
        """Bytes of all that is loaded."""
        return self.dense + self.experts + self.embedding + self.head + self.tables


@dataclass(frozen=True, slots=True)
class Placement:
    """What decides where weights and KV go."""

    weights: str
    kv: str
    tp: int
    pp: int
    ranks: Ranks
    latent: bool
    drafts: int
    """Layers of the model's own width that a draft adds."""
    embedding_whole: bool
    embedding_on_host: bool


def is_latent(arch: Architecture, kept: bool) -> bool:
    """Whether a model's attention keeps a latent, where the engine does (``kept``)."""
    return kept and isinstance(arch.config.get("kv_lora_rank"), int)


def placement(arch: Architecture, resolved: Resolved, capability: str | None) -> Placement:
    """Return where a deployment puts things; InputError or CombinationError where it cannot."""
    r, engine = resolved.recipe, resolved.engine
    heads = (arch.text or arch).heads
    if heads and heads % r.tp:
        raise CombinationError(f"must divide the {heads} attention heads", field="tp", value=r.tp)
    kind = weight_format(r.weights)
    if str(r.kv) not in KV_BITS:
        raise InputError("is not a format of keys and values", field="kv", value=r.kv, allowed=list(KV_BITS))
    shared = r.tp * (r.dp if r.dp_kind == "attention" else 1)
    if r.ep > shared or shared % r.ep:
        raise CombinationError(
            f"must divide the {shared} ranks that share the experts (tp x dp of attention)", field="ep", value=r.ep
        )
    spec = r.speculation
    return Placement(
        kind.name,
        str(r.kv),
        r.tp,
        r.pp,
        Ranks(r.tp, r.ep, shared // r.ep, _padding(engine, capability), engine.latent),
        engine.latent,
        1 if spec is not None and spec.method in ("mtp", "eagle", "eagle3", "nextn") else 0,
        engine.embedding_whole,
        engine.embedding_on_host,
    )


def _padding(engine: Engine, capability: str | None) -> str:
    """Kernels that run 4-bit experts: Marlin before Hopper and on consumer Blackwell, TensorRT-LLM's on Blackwell."""
    if not engine.hopper_experts or capability is None or capability.startswith("gfx"):
        return ""
    major = int(capability.split(".")[0])
    return engine.hopper_experts if major == 9 else "marlin" if major < 9 or major >= 12 else "blackwell"


@functools.lru_cache(maxsize=512)
def stages(arch: Architecture, place: Placement) -> tuple[Stage, ...]:
    """Return the stages of the pipeline, first to last.  Raises InputError where there are more of them than layers."""
    pattern = arch.main.pattern
    if place.pp > len(pattern):
        raise InputError("has more stages than the model has layers", field="pp", value=place.pp, allowed=f"1 to {len(pattern)}")
    kind = weight_format(place.weights)
    bits = stored_bits(arch, kind)
    layers = [(arch.main.blocks[which], bits[i]) for i, which in enumerate(pattern)]
    drafts: list[Block] = list(arch.unused[: place.drafts]) or [layers[-1][0]] * place.drafts
    towers = sum(n * outer_bytes(b, kind, place.tp) for s in arch.stacks[:-1] for b, n in zip(s.blocks, s.counts(), strict=True))
    embedding = outer_bytes(arch.embed, kind, place.tp, whole=place.embedding_whole)
    table = 0.0 if place.embedding_on_host and not arch.tied else embedding
    head = outer_bytes(arch.head, kind, place.tp)
    tables = _tables(arch)
    out, start = [], 0
    for stage in range(place.pp):
        first, last = stage == 0, stage == place.pp - 1
        end = start + _share(len(pattern), place.pp, stage)
        own = layers[start:end]
        if last:
            own = [*own, *((block, bits[-1]) for block in drafts)]
        made = [layer_bytes(block, found, place.ranks) for block, found in own]
        kept = Counter(k for block, _ in own for k in _kept(arch.text or arch, block, place) if k.token or k.state)
        out.append(
            Stage(
                dense=sum(b.dense for b in made) + (towers if first else 0.0),
                experts=sum(b.experts for b in made),
                embedding=table if first or (last and arch.tied) else 0.0,
                head=head if last else 0.0,
                tables=tables,
                kept=tuple(kept.items()),
                count=len(own),
                hidden=(arch.text or arch).hidden,
                widest=max(_widest(block, place) for block, _ in own),
                last=last,
                vocab=arch.vocab or 0,
            )
        )
        start = end
    return tuple(out)


def _share(layers: int, stages: int, stage: int) -> int:
    """Layers of a stage: equal shares, and the rest on the later ones but the last (vllm/distributed/utils.py)."""
    base, rest = divmod(layers, stages)
    return base + (stages - 1 - rest <= stage < stages - 1)


def _kept(arch: Architecture, block: Block, place: Placement) -> Iterator[KvLayer]:
    """What a layer keeps of each token, or of each sequence."""
    if block.stream != "text":
        return
    bits = KV_BITS[place.kv]
    latent = is_latent(arch, place.latent)
    for op in block.ops:
        if isinstance(op, Scan):
            yield KvLayer(state=STATE * op.state / place.tp)
        elif isinstance(op, Attention) and op.memory == "self" and len(op.ins) > 1:
            if latent:
                yield KvLayer(_latent_token(arch, op, bits))
                continue
            heads = max(1, math.ceil(op.kv_heads / place.tp))
            yield KvLayer(heads * ((op.head_dim + op.v_dim) * bits + 2 * _SCALED.get(place.kv, 0.0)) / 8, op.window)


def _latent_token(arch: Architecture, op: Attention, bits: float) -> float:
    """Bytes per token of a latent.  Sparse attention (DeepSeek-V3.2) also keeps keys that it selects with, in fp8 with a 32-bit
    scale per 128, and its 8-bit latent has such scales and rotary keys in 16 bits (656 bytes: vllm/v1/kv_cache_interface.py)."""
    size = cached(arch, op) * bits / 8
    width, rank, rope = (arch.config.get(key) for key in ("index_head_dim", "kv_lora_rank", "qk_rope_head_dim"))
    if not isinstance(width, int):
        return size
    if bits == 8 and isinstance(rank, int) and isinstance(rope, int):
        size = rank + 4.0 * rank / 128 + 2.0 * rope
    return size + width + 4.0 * width / 128


def _tables(arch: Architecture) -> float:
    """Bytes of the rotary tables, which each rank holds for the model's longest sequence in the model's format, one for each
    kind of layer (vllm/model_executor/layers/rotary_embedding: ``cos_sin_cache``)."""
    text = arch.text or arch
    kinds = set()
    for block in text.main.blocks:
        windows = {op.window for op in block.ops if isinstance(op, Attention)}
        kinds |= {(op.rotary, bool(window)) for op in block.ops if isinstance(op, Rope) for window in windows}
    rotary = sum(width for width, _ in kinds) if len({w for w, _ in kinds}) > 1 else max((w for w, _ in kinds), default=0)
    return 2.0 * (text.max_positions or 0) * rotary


def _widest(block: Block, place: Placement) -> float:
    """Elements per token of a layer's widest intermediates on one rank: what goes into and comes out of its activation
    (or attention), and for routed experts the copies of each token (vllm fused_moe: caches 1 and 3 share their room)."""
    widest = 0.0
    for op in block.ops:
        if isinstance(op, Attention):
            widest = max(widest, (op.heads * (op.head_dim + op.v_dim) + op.kv_heads * (op.head_dim + op.v_dim)) / place.tp)
        elif isinstance(op, Gate) and not op.name.endswith("attn_gate"):
            widest = max(widest, 3.0 * op.features / place.tp)
        elif isinstance(op, Act):
            widest = max(widest, 2.0 * op.features / place.tp)
        elif isinstance(op, Experts):
            width = op.ffn / place.ranks.expert_tp
            widest = max(widest, op.top_k * (max((2.0 if op.gated else 1.0) * width, op.dim) + width) + op.dim)
        elif isinstance(op, Linear) and op.split == "col":
            widest = max(widest, 2.0 * op.d_out / place.tp)
    return widest
