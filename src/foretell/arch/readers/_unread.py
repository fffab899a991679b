"""What a reader left alone in a configuration, and what it took from the class instead: said, never silent."""

from __future__ import annotations

import re

from foretell.arch.architecture import Architecture
from foretell.arch.readers._config import Config

_SHAPE = re.compile(
    r"size|dim|layers|heads|experts|rank|ffn|vocab|hidden|inter|width|depth|groups|expand|kernel|ratio|embd|d_model|^n_|num_"
)
"""Keys that could change a shape."""
_HARMLESS = re.compile(
    r"token|drop|^_|initializer|chunk_size|rope|rotary|ep_size|image_size|max_|pretraining_tp|hidden_act|output_hidden|hidden_states|"
    r"num_beam|num_return|num_labels|num_logits|aux|dtype|norm_eps|epsilon|^bos|^eos|hidden_size_multiplier|embedding_multiplier|"
    r"residual_multiplier|logits_scaling|interpol|topk_group|n_group|group_size|use_cache|vocab_file|sliding|window"
)
"""... and those of them that do not."""
_ACTIVATIONS = frozenset(
    [
        "bloom_gelu",
        "gelu",
        "gelu_10",
        "gelu_accurate",
        "gelu_fast",
        "gelu_new",
        "gelu_python",
        "gelu_python_tanh",
        "gelu_pytorch_tanh",
        "gelu_tanh",
        "gelu-approximate",
        "hardswish",
        "laplace",
        "leaky_relu",
        "linear",
        "mish",
        "prelu",
        "quick_gelu",
        "relu",
        "relu2",
        "relu6",
        "sigmoid",
        "silu",
        "softmax",
        "softplus",
        "sqrtsoftplus",
        "squared_relu",
        "swiglu",
        "swigluoai",
        "swish",
        "tanh",
        "xielu",
        "geglu",
        "reglu",
    ]
)
"""transformers ``activations.py`` ``ACT2CLS``, and names that other libraries' files use."""
_VITAL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def reading_notes(cfg: Config) -> tuple[str, ...]:
    """Notes on keys of the file that look like shapes and were not read, and on vital ones that the class filled in."""
    notes = []
    known = cfg.defaults.keys() | set(cfg.aliases) | cfg.read
    stray = sorted(k for k in cfg.raw if k not in known and _SHAPE.search(k) and not _HARMLESS.search(k))
    if stray and cfg.defaults:
        notes.append(f"keys of the file that {cfg.model_type} does not have, so they are not used: {', '.join(stray[:12])}")
    filled = [
        f"{key} = {value}"
        for key in _VITAL
        if key in cfg.read
        and key not in cfg.raw
        and isinstance(value := cfg.defaults.get(key), int)
        and not any(cfg.aliases.get(alias) == key for alias in cfg.raw)
    ]
    if filled:
        notes.append(f"taken from the default of {cfg.model_type}, because the file does not say: {', '.join(filled)}")
    return tuple(notes)


def activation_notes(arch: Architecture) -> tuple[str, ...]:
    """A note for each activation function that is not known: neither is what it keeps for the backward pass."""
    named = {fn for block, _ in arch.blocks() for op in block.ops if isinstance(fn := getattr(op, "fn", None), str)}
    strange = sorted(fn for fn in named - {""} if fn.lower() not in _ACTIVATIONS)
    return tuple(f"activation {fn[:40]!r} is not known: counted as one that keeps its input alone" for fn in strange)
