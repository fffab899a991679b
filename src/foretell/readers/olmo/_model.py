"""The model of an OLMo file, as the content of a config.json.

Source: allenai/OLMo 59a53e3 ``olmo/config.py`` ModelConfig (defaults), ``olmo/model.py`` OLMoSequentialBlock, OLMoLlamaBlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foretell.readers._omegaconf import Fields

if TYPE_CHECKING:
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder

__all__ = ["DEFAULT", "VERSION", "model"]

VERSION: Final = "0.6"
DEFAULT: Final = f"default of OLMo {VERSION} (olmo/config.py)"
_ACTIVATIONS: Final = {"swiglu": "silu", "gelu": "gelu", "relu": "relu"}
_NORMS: Final = {"default": "layernorm", "low_precision": "layernorm", "rms": "rmsnorm"}
_DROPOUTS: Final = ("residual_dropout", "embedding_dropout", "attention_dropout")


def model(b: Builder, values: Values) -> None:
    """Take the model, its attention and its dropout."""
    reader, whole = Fields(values, "model"), values.get("model")
    block = reader.get("block_type")
    llama = block is not None and block.choice({"sequential": False, "llama": True})
    b.model({**_shape(b, reader), "_name_or_path": "OLMo of model.*"}, whole, f"built as OLMo {VERSION} builds it")
    flash, alibi = reader.get("flash_attention"), reader.get("alibi")
    biased = alibi is not None and alibi.flag()
    if llama and block is not None:
        b.set("attention", "eager", block, "scores are written out (olmo/model.py OLMoLlamaBlock)")
        if flash is not None:
            b.harmless(flash)
    elif flash is not None:
        b.set("attention", "flash" if flash.flag() and not biased else "sdpa", flash)
    b.default("attention", "sdpa", DEFAULT)
    if alibi is not None and alibi.flag():
        b.doubt(alibi, "more", "ALiBi gives attention a mask, so that PyTorch's slower kernels run")
    _dropout(b, reader)
    group = reader.get("block_group_size")
    if group is not None and group.whole() > 1:
        b.doubt(group, "both", "blocks are grouped")


def _kv_heads(reader: Fields, heads: int) -> int:
    given, single = reader.get("n_kv_heads"), reader.get("multi_query_attention")
    if given is not None:
        return given.whole()
    return 1 if single is not None and single.flag() else heads


def _rows(reader: Fields) -> int:
    """Return the rows of the embedding: ``embedding_size``, 50304 unless it is null, or else the vocabulary."""
    found, there = reader.get("embedding_size"), reader.values.has("model.embedding_size")
    if found is not None:
        return found.whole()
    vocabulary = reader.whole("vocab_size", 50257)
    return vocabulary if there else max(50304, vocabulary)


def _shape(b: Builder, reader: Fields) -> dict[str, Any]:
    """Return OLMo 1, OLMo 2, a Llama or a plain GPT, whichever has these switches."""
    hidden, heads = reader.whole("d_model", 768), reader.whole("n_heads", 12)
    act = reader.get("activation_type")
    word = "swiglu" if act is None else act.text().strip().casefold()
    fn = "silu" if act is None else str(act.choice(_ACTIVATIONS))
    gated = word == "swiglu"
    width, ratio = reader.get("mlp_hidden_size"), reader.whole("mlp_ratio", 4)
    inner = hidden * ratio if width is None else width.whole()
    bias, norm = reader.flag("include_bias", default=True), reader.get("layer_norm_type")
    kind = "layernorm" if norm is None else str(norm.choice(_NORMS))
    rope, alibi = reader.flag("rope"), reader.flag("alibi")
    normed, after = reader.get("attention_layer_norm"), reader.get("norm_after")
    affine = reader.flag("layer_norm_with_affine", default=True)
    qk = normed is not None and normed.flag()
    made: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": reader.whole("n_layers", 12),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(reader, heads),
        "intermediate_size": inner // 2 if gated else inner,  # ff_proj makes gate and up together
        "vocab_size": _rows(reader),
        "tie_word_embeddings": reader.flag("weight_tying", default=True),
        "hidden_act": fn,
        "attention_bias": bias,
        "mlp_bias": bias,
        "max_position_embeddings": None if rope or alibi else reader.whole("max_sequence_length", 1024),
    }
    plain = rope and gated
    if after is not None and after.flag():
        if not (plain and qk and kind == "rmsnorm" and not bias):
            b.doubt(after, "memory", "norms behind the sub-layers in this combination are counted as OLMo 2's")
        return made | {"model_type": "olmo2"}
    if plain and not qk and not bias and kind == "layernorm" and not affine:
        return made | {"model_type": "olmo"}
    if plain and not qk and kind == "rmsnorm":
        return made | {"model_type": "llama"}
    if qk and normed is not None:
        b.doubt(normed, "memory", "norms of queries and keys over all heads are counted as norms of each head")
    position = "rope" if rope else "none" if alibi else "learned"
    return made | {
        "model_type": "gpt-generic",
        "norm": kind,
        "gated_mlp": gated,
        "position_embedding": position,
        "attention_out_bias": bias,
        "qk_layernorm": qk,
        "lm_head_bias": bias and not made["tie_word_embeddings"],
    }


def _dropout(b: Builder, reader: Fields) -> None:
    """Take the three rates, of which each is 0.1 unless it is said."""
    found = {key: reader.get(key) for key in _DROPOUTS}
    rates = {key: 0.1 if one is None else one.real(minimum=0, maximum=1) for key, one in found.items()}
    same = len(set(rates.values())) == 1
    for key, one in found.items():
        if one is None:
            continue
        if same and rates[key]:
            b.set("dropout", rates[key], one)
        elif rates[key]:
            b.doubt(one, "more-memory", "dropout keeps a mask")
        else:
            b.harmless(one)
    for key, one in found.items():
        if one is None and same:
            b.default("dropout", 0.1, DEFAULT)
        elif one is None:
            b.doubt_default(f"model.{key}", "more-memory", f"{DEFAULT}: 0.1, and dropout keeps a mask")
