"""Formats of a MaxText run, its optimizer, and what is recomputed.

Sources: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/base.yml``, ``configs/types.py``, ``layers/decoders.py``
get_remat_policy, ``optimizers/optimizers.py``, ``trainers/pre_train/train.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Effect, refused
from foretell.readers.hf._targets import listed_targets
from foretell.readers.maxtext._layers import DEFAULT, Layers

if TYPE_CHECKING:
    from foretell.readers._reading import Builder

__all__ = ["method", "states"]

_REMAT: Final[dict[str, tuple[str, Effect | None, str]]] = {
    "full": ("full", None, ""),
    **{
        f"minimal{more}": ("none", "less", "what lies between the products is recomputed")
        for more in ("", "_flash", "_with_context", "_with_quantization", "_with_context_and_quantization")
    },
    "minimal_offloaded": ("full", "speed", "products are kept in host memory, not recomputed"),
    "qkv_proj_offloaded": ("full", "speed", "projections are kept in host memory, not recomputed"),
    **dict.fromkeys(
        ("save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_dot_except_mlp", "save_qkv_proj", "save_out_proj"),
        ("full", "more", "some products are kept"),
    ),
    "custom": ("full", "more", "what is kept is chosen tensor by tensor"),
}
"""``remat_policy``: how it is counted, and in what it differs."""
_TENSORS: Final = (
    "decoder_layer_input", "indexer_cutoff_threshold", "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0",
    "moe_mlpwi_1", "moe_mlpwo", "query_proj", "key_proj", "value_proj", "kv_proj", "query_wa_proj", "kv_wa_proj", "qkv_proj",
    "out_proj", "mla_q", "mla_kv", "attention_out", "engram",
)  # fmt: skip
"""Of the policy ``custom``."""
_ATTENTIONS: Final = {
    "autoselected": "flash",
    "flash": "flash",
    "cudnn_flash_te": "flash",
    "cudnn_flash_jax": "flash",
    "dot_product": "eager",
    "dot_product_qk_product": "eager",
    "paged": "flash",
    "vllm_rpa": "flash",
}
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_OPTIMIZERS: Final = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}


def states(b: Builder, layers: Layers, *, alone: bool) -> None:
    """Take the formats: fp32 weights, gradients and moments, cast where they are used, unless the file says otherwise."""
    dtype, weights, grads = (layers.get(f"{name}dtype") for name in ("", "weight_", "grad_"))
    kind = "bf16" if dtype is None else str(dtype.choice(_DTYPES))
    kept = "fp32" if weights is None else str(weights.choice(_DTYPES))
    low = layers.get("quantization")
    if kept != "fp32" and weights is not None:
        b.set("precision", f"{kept}-true", weights, "weights, gradients and moments")
        for one in (dtype, grads):
            if one is not None:
                b.harmless(one)
    else:
        fp8 = low is not None and "fp8" in low.text() and kind == "bf16"
        name = "fp8" if fp8 else kind
        place = low if fp8 else dtype
        if place is not None:
            b.set("precision", name, place)
        b.default("precision", name, DEFAULT)
        if kind != "fp32":
            reduced = "fp32" if grads is None else str(grads.choice(_DTYPES))
            for option, value, one in (("param_dtype", "fp32", weights), ("grad_dtype", reduced, grads)):
                if one is not None:
                    b.set(option, value, one)
                b.default(option, value, DEFAULT)
            b.default("master_dtype", "none", f"{DEFAULT}: the weights are fp32 themselves")
        elif weights is not None:
            b.harmless(weights)
        if grads is not None and kind == "fp32":
            b.harmless(grads)
        if fp8 and dtype is not None:
            b.harmless(dtype)
    if low is not None and low.text() and b.given("precision") != "fp8":
        b.doubt(low, "both", "products of fewer bits")
    first = layers.get("mu_dtype")
    if first is not None and first.text():
        if str(first.choice(_DTYPES)) != kept:
            b.doubt(first, "less-memory" if kept == "fp32" else "more-memory", "the first moment has a format of its own")
        else:
            b.harmless(first)
    _optimizer(b, layers, alone=alone)


def _optimizer(b: Builder, layers: Layers, *, alone: bool) -> None:
    found = layers.get("opt_type")
    if found is not None:
        b.set("optimizer", found.choice(_OPTIMIZERS), found)
    elif not alone:
        b.default("optimizer", "adamw", DEFAULT)
    keys = {"optimizer": "optimizer_memory_host_offload", "params": "parameter_memory_host_offload"}
    moved = [(name, one) for name, key in keys.items() if (one := layers.get(key)) is not None]
    parts = tuple(name for name, one in moved if one.flag())
    for name, one in moved:
        if name in parts:
            b.set("offload", parts, one)
        else:
            b.harmless(one)


def method(b: Builder, layers: Layers, *, alone: bool) -> None:
    """Take what is recomputed, attention, the loss, dropout and adapters."""
    policy, custom = layers.get("remat_policy"), {name: layers.get(name) for name in _TENSORS}
    if policy is not None:
        mode, effect, why = policy.choice(_REMAT)
        b.set("recompute", mode, policy, why)
        if effect is not None:
            b.doubt(policy, effect, why)
    elif not alone:
        b.default("recompute", "full", DEFAULT)
    for found in custom.values():
        if found is not None:
            b.harmless(found)
    kernel, tiling = layers.get("attention"), layers.get("num_vocab_tiling")
    if kernel is not None:
        b.set("attention", kernel.choice(_ATTENTIONS), kernel)
    elif not alone:
        b.default("attention", "flash", f"{DEFAULT}: autoselected")
    if tiling is not None and tiling.whole() > 1:
        b.set("loss", "chunked-head", tiling, "the head and the loss run in tiles")
    elif tiling is not None:
        b.harmless(tiling)
    rate, on = layers.get("dropout_rate"), layers.get("enable_dropout")
    share = 0.0 if rate is None or (on is not None and not on.flag()) else rate.real(minimum=0, maximum=1)
    if share and rate is not None:
        b.set("dropout", share, rate)
    for one in (on, None if share else rate):
        if one is not None:
            b.harmless(one)
    _adapters(b, layers)


def _adapters(b: Builder, layers: Layers) -> None:
    on, rank, base = (layers.get(f"lora.{key}") for key in ("enable_lora", "lora_rank", "lora_weight_qtype"))
    turned = on is not None and on.flag()
    for one in (on, None if turned else rank, None if turned else base):
        if one is not None:
            b.harmless(one)
    if not turned or on is None:
        return
    if rank is None or rank.node.value == 0:
        raise refused(on.document, "turns LoRA on without a rank: lora.lora_rank")
    b.set("lora_rank", rank.whole(), rank)
    path = layers.get("lora.lora_module_path")
    if path is not None and path.text():
        listed_targets(b, path)
    b.default("lora_targets", ("all-linear",), "counted so: MaxText's own list, by the kind of model")
    if base is not None:
        b.set("quantization", base.choice({"nf4": "nf4", "int8": "int8"}), base)
