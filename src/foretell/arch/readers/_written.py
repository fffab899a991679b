"""How transformers writes out what the readers describe, where that decides which tensors are kept.

Two models with the same operators may run different code: a norm that scales before or after its cast, a rotation in
fp32, a softmax in half precision, a loss that reads half-precision logits.  The tables name the model types whose code
differs from Llama's.

Source: transformers 5.24.0 ``models/<type>/modeling_<type>.py``: the norm's ``forward``, ``apply_rotary_pos_emb``,
``eager_attention_forward`` and the loss at the end of the model's ``forward``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Attention, Head, Norm, Operator, Rope, Router
from foretell.arch.readers._config import Config

NORMS = {
    **dict.fromkeys(("flex_olmo", "gpt_oss", "olmo2", "olmo3", "olmo_hybrid"), "wide"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "recurrent_gemma", "vaultgemma"), "offset"),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), "offset"),
    **dict.fromkeys(("cohere", "cohere2"), "centred"),
    **dict.fromkeys(("mt5", "t5", "umt5"), "apart"),
}
"""Model type -> :attr:`foretell.arch.operators.Norm.written`."""
WIDE_ROPE = {
    **dict.fromkeys(("flex_olmo", "olmo", "olmo2", "olmo3", "olmo_hybrid"), "tables"),
    **dict.fromkeys(("cohere", "cohere2", "modernbert"), "operands"),
}
"""Model type -> :attr:`foretell.arch.operators.Rope.wide`."""
JOINED_ROPE = frozenset({"glm", "glm4", "glm4_moe", "gpt_neox", "mimo_v2_flash", "minimax_m2", "phi3", "qwen3_next"})
"""... whose rotation ends in a ``torch.cat`` even where every feature turns."""
TABLES_BY_KIND = frozenset({"gemma3_text", "modernbert"})
"""Layers with a window and those without have tables of their own."""
TABLES = {**dict.fromkeys(("ernie4_5", "glm", "glm4", "helium"), "own"), "gpt_oss": "half"}
"""Model type -> :attr:`foretell.arch.operators.Rope.tables` of all its layers."""
CHOSEN_FIRST = frozenset({"gpt_oss"})
NORMALISED = frozenset({"mixtral"})
"""... whose router divides by the sum whatever the configuration says."""
WIDE_ROUTER = frozenset({"deepseek_v3", "glm4_moe"})
NARROW_SCORES = frozenset({"gpt_oss", "qwen2_moe", "qwen3_moe"})
_ROUTERS = CHOSEN_FIRST | NORMALISED | WIDE_ROUTER | NARROW_SCORES
NARROW_SOFTMAX = frozenset(
    {
        "albert",
        "bart",
        "bert",
        "camembert",
        "codegen",
        "detr",
        "dinov2",
        "distilbert",
        "electra",
        "falcon",
        "gpt2",
        "gpt_oss",
        "gptj",
        "llama4_text",
        "marian",
        "mbart",
        "mimo_v2_flash",
        "mt5",
        "pegasus",
        "roberta",
        "t5",
        "umt5",
        "wav2vec2",
        "whisper",
        "xlm-roberta",
    }
)
CAST_SOFTMAX = frozenset({"codegen", "gpt2", "gptj"})
"""... and casts its result to the values' format."""
DIRECT_LOSS = frozenset(
    {
        "albert",
        "bart",
        "bert",
        "camembert",
        "deberta-v2",
        "distilbert",
        "electra",
        "marian",
        "mbart",
        "mt5",
        "pegasus",
        "roberta",
        "t5",
        "umt5",
        "whisper",
        "xlm-roberta",
        "xlnet",
    }
)
NO_SDPA = frozenset({"deepseek_v4", "gemma2", "gpt_neo", "gpt_oss", "mimo_v2_flash", "vaultgemma"})
"""... whose class says ``_supports_sdpa = False``."""
LOGITS_BIAS = frozenset({"bart", "marian", "mbart", "pegasus"})
"""... that add a buffer ``final_logits_bias`` to their logits."""
_ALL = frozenset((*NORMS, *WIDE_ROPE, *TABLES)).union(
    JOINED_ROPE, TABLES_BY_KIND, _ROUTERS, NARROW_SOFTMAX, NO_SDPA, LOGITS_BIAS, DIRECT_LOSS, {"falcon"}
)


def as_written(arch: Architecture, cfg: Config) -> Architecture:
    """Return the architecture with what its model type's own code decides."""
    kind = arch.model_type
    if kind not in _ALL:
        return arch
    normalised = kind in NORMALISED or cfg.bool("norm_topk_prob", False)

    def block(read: Block) -> Block:
        window = next((op.window for op in read.ops if isinstance(op, Attention)), 0)
        ops = (_operator(op, kind, sliding=bool(window)) for op in read.ops)
        return replace(read, ops=tuple(replace(op, normalised=normalised) if isinstance(op, Router) else op for op in ops))

    stacks = tuple(replace(stack, blocks=tuple(block(b) for b in stack.blocks)) for stack in arch.stacks)
    return replace(arch, embed=block(arch.embed), stacks=stacks, head=block(arch.head))


def _operator(op: Operator, kind: str, *, sliding: bool) -> Operator:
    if isinstance(op, Norm) and kind in NORMS and op.affine:
        return replace(op, written=NORMS[kind])  # type: ignore[arg-type]
    if isinstance(op, Rope):
        tables = "sliding" if sliding and kind in TABLES_BY_KIND else TABLES.get(kind, "")
        return replace(op, wide=WIDE_ROPE.get(kind, ""), joined=kind in JOINED_ROPE, tables=tables)  # type: ignore[arg-type]
    if isinstance(op, Attention):
        narrow = "" if kind not in NARROW_SOFTMAX else "cast" if kind in CAST_SOFTMAX else "kept"
        broadcast = kind == "falcon" and op.kv_heads == 1
        return replace(op, narrow=narrow, broadcast=broadcast, masked=kind == "falcon", unfused=kind in NO_SDPA)  # type: ignore[arg-type]
    if isinstance(op, Router):
        return replace(op, chosen_first=kind in CHOSEN_FIRST, wide=kind in WIDE_ROUTER, narrow=kind in NARROW_SCORES)
    if isinstance(op, Head):
        return replace(op, direct=op.direct or kind in DIRECT_LOSS, buffer=kind in LOGITS_BIAS)
    return op


__all__ = ["as_written"]
