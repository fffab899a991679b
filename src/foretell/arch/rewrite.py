"""The same model as another code base builds it.

Readers of configuration files describe the module that transformers builds.  A framework with model code of its
own may merge or split projections and depart from the configuration; a rewrite says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Attention, Gate, Head, Linear, Operator, PromptAttention, Scan
from foretell.arch.readers import read_config
from foretell.errors import CombinationError

QKV = ("q_proj", "k_proj", "v_proj")
MERGED_QKV = ("query_key_value", "qkv_proj", "wqkv", "Wqkv", "c_attn")


@lru_cache(maxsize=256)
def litgpt(arch: Architecture) -> Architecture:
    """LitGPT's ``GPT`` (``litgpt/model.py``): one qkv projection in every block, gate and up apart, an untied head.

    Projections get names that LitGPT's switches speak of: ``qkv`` (with parts), ``o_proj``, ``mlp.*``.
    """
    if any(isinstance(op, Scan) for stack in arch.stacks for b in stack.blocks for op in b.ops):
        problem = f"has no layers of {arch.model_type}'s kind"
        raise CombinationError(problem, field="framework", value="litgpt", allowed="models whose every layer is attention")
    capped = arch.model_type == "gemma2"
    stacks = tuple(
        replace(stack, blocks=tuple(replace(b, ops=_litgpt_block(b.ops, capped)) for b in stack.blocks)) for stack in arch.stacks
    )
    head = replace(arch.head, ops=tuple(replace(o, tied=False) if isinstance(o, Head) else o for o in arch.head.ops))
    return replace(arch, stacks=stacks, head=head, tied=False)


@lru_cache(maxsize=256)
def merged_qkv(arch: Architecture) -> Architecture:
    """One projection for q, k and v (nanotron/models/llama.py ``qkv_proj``)."""
    return replace(
        arch, stacks=tuple(replace(s, blocks=tuple(replace(b, ops=_merge(b.ops)) for b in s.blocks)) for s in arch.stacks)
    )


def _merge(ops: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Merge ``q_proj``, ``k_proj`` and ``v_proj`` into ``qkv``, or name the merged projection so."""
    out: list[Operator] = []
    names: dict[str, str] = {}
    core = next((o for o in ops if isinstance(o, Attention)), None)
    if core is None:
        return ops
    widths = (core.heads * core.head_dim, core.kv_heads * core.head_dim, core.kv_heads * core.v_dim)
    parts = tuple(zip(QKV, widths, strict=True))
    for read in ops:
        op = replace(read, ins=tuple(names.get(i, i) for i in read.ins))
        if isinstance(op, Linear) and op.name in QKV[1:] and names:
            names[op.name] = "qkv"
        elif isinstance(op, Linear) and op.name in (QKV[0], *MERGED_QKV):
            names[op.name] = "qkv"
            out.append(replace(op, name="qkv", d_out=sum(widths), parts=parts))
        else:
            out.append(op)
    return tuple(out)


def _litgpt_block(ops: tuple[Operator, ...], capped: bool) -> tuple[Operator, ...]:
    out: list[Operator] = []
    names: dict[str, str] = {}
    previous: Operator | None = None
    for merged in _merge(ops):
        source, previous = previous, merged
        op = replace(merged, ins=tuple(names.get(i, i) for i in merged.ins))
        if isinstance(op, Linear) and op.name == "qkv":
            out.append(op)
        elif isinstance(op, Linear) and op.name == "gate_up_proj":
            out.extend(replace(op, name=f"mlp.{half}", d_out=op.d_out // 2) for half in ("gate_proj", "up_proj"))
        elif isinstance(op, Linear):
            new = "o_proj" if isinstance(source, Attention) else f"mlp.{op.name}"
            names[op.name] = new
            out.append(replace(op, name=new))
        elif isinstance(op, Gate) and op.ins == ("gate_up_proj", "gate_up_proj"):
            out.append(replace(op, ins=("mlp.gate_proj", "mlp.up_proj")))
        elif isinstance(op, Attention) and capped:
            out.append(replace(op, fused=False, softcap=True))
        else:
            out.append(op)
    return tuple(out)


@lru_cache(maxsize=256)
def fused_attention(arch: Architecture) -> Architecture:
    """Attention by one kernel, whatever the modules of transformers can do (mosaicml/llm-foundry ``attn_impl: flash``)."""
    return replace(
        arch, stacks=tuple(replace(s, blocks=tuple(replace(b, ops=_fused(b.ops)) for b in s.blocks)) for s in arch.stacks)
    )


def _fused(ops: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(replace(op, fused=True, unfused=False) if isinstance(op, Attention) else op for op in ops)


@lru_cache(maxsize=256)
def megatron_deepspeed(arch: Architecture) -> Architecture:
    """Sailor's OPT modules for Megatron-DeepSpeed (``opt_model.py`` ``OPTModelPipe``): embeddings as wide as the model,
    norms before the sub-layers, a head of its own, whatever the configuration says."""
    if arch.model_type != "opt":
        return arch
    wide = {"word_embed_proj_dim": arch.hidden, "do_layer_norm_before": True, "tie_word_embeddings": False}
    return read_config({**arch.config, **wide})


@lru_cache(maxsize=256)
def prompt_tuned(arch: Architecture, start: int = 2, rows: int = 10) -> Architecture:
    """LLaMA-Adapter's attention over ``rows`` learned tokens in every layer from ``start`` on (litgpt/adapter.py)."""
    main = arch.main
    blocks: list[Block] = list(main.blocks)
    moved: dict[int, int] = {}
    pattern: list[int] = []
    for layer, kind in enumerate(main.pattern):
        if layer >= start and kind not in moved:
            moved[kind] = len(blocks)
            blocks.append(_with_prompt(main.blocks[kind], arch.hidden, rows))
        pattern.append(moved[kind] if layer >= start else kind)
    return replace(arch, stacks=(*arch.stacks[:-1], Stack(main.name, tuple(blocks), tuple(pattern))))


def _with_prompt(block: Block, hidden: int, rows: int) -> Block:
    out: list[Operator] = []
    for op in block.ops:
        out.append(op)
        if isinstance(op, Attention):
            ins = (op.ins[0], op.name)
            sizes = {"heads": op.heads, "head_dim": op.v_dim, "hidden": hidden, "rows": rows}
            out.append(PromptAttention(name=f"{op.name}_prompt", ins=ins, **sizes))
    return replace(block, ops=tuple(out))


REWRITES: dict[str, Callable[[Architecture], Architecture]] = {
    "fused-attention": fused_attention,
    "litgpt": litgpt,
    "merged-qkv": merged_qkv,
    "megatron-deepspeed": megatron_deepspeed,
}
