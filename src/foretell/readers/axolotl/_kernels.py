"""Recomputation, attention, losses, optimizers and objectives of an axolotl file.  Sources as in
:mod:`foretell.readers.axolotl._run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.axolotl._keys import HARMLESS_PLUGINS, PLUGINS
from foretell.readers.axolotl._run import DEFAULT, on
from foretell.readers.hf._common import attention_settings
from foretell.readers.hf._optimizers import OPTIMIZERS, Optim, optimizer_settings, taken
from foretell.readers.hf._trl_method import paired

if TYPE_CHECKING:
    from foretell.readers._reading import Builder, Effect

__all__ = ["attention", "kernels", "optimizer", "plugins", "preferences", "recompute"]

_OWN_OPTIMIZERS: Final = {
    "adopt_adamw": Optim("adamw", "foreach", why="two states an element, counted as AdamW's"),
    "ao_adamw_4bit": Optim("adamw4bit", "fused"),
    "ao_adamw_8bit": Optim("adamw8bit", "fused"),
    "ao_adamw_fp8": Optim("adamwfp8", "fused"),
    "came_pytorch": Optim("adagrad", "forloop", why="one state an element beside factored ones, counted as Adagrad's"),
    "dion": Optim("muon", "foreach", effect="memory", why="counted as Muon; it keeps a low-rank basis beside the momentum"),
    "flash_adam": Optim("adamw8bit", "fused", effect="memory", why="FlashOptim's compressed states are counted as 8-bit ones"),
    "flash_adamw": Optim("adamw8bit", "fused", effect="memory", why="FlashOptim's compressed states are counted as 8-bit ones"),
    "flash_lion": Optim("lion", "fused", effect="less-memory", why="FlashOptim's compressed momentum is counted in full"),
    "flash_sgd": Optim("sgdm", "fused", effect="less-memory", why="FlashOptim's compressed momentum is counted in full"),
    "flash_sgdw": Optim("sgdm", "fused", effect="less-memory", why="FlashOptim's compressed momentum is counted in full"),
    "lion_pytorch": Optim("lion", "foreach"),
    "muon": Optim("muon", "foreach"),
    "optimi_adamw": Optim("adamw", "forloop", effect="more-memory", why="Kahan summation keeps a buffer for 16-bit weights"),
    "q_galore_adamw8bit": Optim(
        "galore-adamw8bit", "fused", effect="memory", why="counted as GaLore of rank 128 with 8-bit states"
    ),
    "sinkgd": Optim("sgd", "foreach", effect="more-memory", why="embeddings, head and norms have 8-bit AdamW's states"),
}
"""Optimizers that axolotl has beside transformers' (``utils/schemas/enums.py`` CustomSupportedOptimizers,
``core/builders/base.py``; ``lion_pytorch`` until 0.4)."""


def recompute(b: Builder, *, adapters: bool, offloads: bool) -> None:
    """Take what is recomputed or kept in host memory; ``offloads``: foretell can say so for this framework."""
    found, moved = b.sources.get("gradient_checkpointing"), b.sources.get("activation_offloading")
    for key in ("gradient_checkpointing_kwargs.use_reentrant", "gradient_checkpointing_kwargs"):
        if (way := b.sources.get(key)) is not None and way.node.scalar:
            b.harmless(way)  # either way the same inputs of layers are kept
    if found is None:
        b.default("recompute", "none", f"{DEFAULT} (utils/schemas/config.py)")
        if moved is not None and moved.node.value is not False:
            raise moved.error("needs gradient_checkpointing: true, as axolotl has it (utils/schemas/validation.py)")
        return
    word = found.text().strip().casefold()
    legacy = word in ("offload", "offload_disk", "unsloth")
    if not legacy and not found.flag():
        b.set("recompute", "none", found)
        return
    b.set("recompute", "full", found)
    how = "" if moved is None else moved.text().strip().casefold()
    if how not in ("", "true", "false", "legacy", "disk", "hidden_states"):
        assert moved is not None  # noqa: S101  # it has text
        raise moved.error("is no way to offload activations", allowed=("true", "false", "legacy", "disk", "hidden_states"))
    place = found if legacy else moved
    if place is None or how == "false":
        return
    if adapters and word != "unsloth" and how != "hidden_states":
        # activations are offloaded in place of recomputing them (loaders/model.py _apply_activation_checkpointing)
        b.set("recompute", "none", place, "with adapters activations are offloaded, not recomputed")
    if offloads:
        b.set("offload", ("activations",), place)
    else:
        b.doubt(place, "both", "activations are kept in host memory, and counted on the GPU")
    if "disk" in (how, word.removeprefix("offload_")):
        b.doubt(place, "speed", "activations are written to a disk")


_LEGACY: Final = (
    ("xformers_attention", "xformers"),
    ("sage_attention", "sage"),
    ("flex_attention", "flex_attention"),
    ("flash_attention", "flash_attention_2"),
    ("sdp_attention", "sdpa"),
    ("eager_attention", "eager"),
)
"""In the order in which they count (``utils/schemas/enums.py`` LEGACY_ATTN_FLAG_TO_IMPL)."""
_OWN_ATTENTIONS: Final[dict[str, tuple[str, str]]] = {
    "xformers": ("efficient", ""),
    "sage": ("flash", "SageAttention multiplies in 8 bits"),
    "fp8": ("sdpa", "attention multiplies in float8"),
}


def attention(b: Builder) -> bool:
    """Take the attention; return whether axolotl casts embeddings and norms for it (``attn_needs_dtype_cast``)."""
    found = b.sources.get("attn_implementation")
    flags = [(flag, name) for key, name in _LEGACY if (flag := on(b, key)) is not None]
    if found is not None and flags:
        raise found.error(f"cannot be beside {flags[0][0].key}: axolotl takes one of them")
    if found is None and not flags:
        b.default("attention", "sdpa", "default of transformers where the model has it (modeling_utils.py)")
        return False
    place, word = (found, found.text().strip().casefold()) if found is not None else flags[0]
    if word in _OWN_ATTENTIONS:
        name, why = _OWN_ATTENTIONS[word]
        b.set("attention", name, place)
        if why:
            b.doubt(place, "speed", why)
    elif found is not None:
        attention_settings(b, found)
    else:
        b.set("attention", {"flex_attention": "flex", "flash_attention_2": "flash"}.get(word, word), place)
    return word not in ("eager", "sdpa")


def plugins(b: Builder) -> frozenset[str]:
    """Return the names of the plugins' classes; those that change a run by themselves are named."""
    found = b.sources.get("plugins")
    names = frozenset(path.rpartition(".")[2] for path in (found.listed() if found is not None else ()) if path)
    for name in sorted(names - HARMLESS_PLUGINS):
        assert found is not None  # noqa: S101  # it has names
        about: tuple[Effect, str] = PLUGINS.get(name, ("unknown", "a plugin that is not known here"))
        b.doubt(found, about[0], f"{name}: {about[1]}")
    return names


_LIGER: Final = ("fused_linear_cross_entropy", "cross_entropy", "rms_norm", "layer_norm", "rope", "rms_norm_gated")


def kernels(b: Builder, names: frozenset[str]) -> bool:
    """Take the loss and Liger's kernels; return whether the loss needs embeddings in the weights' format."""
    flags = {key: on(b, f"liger_{key}") for key in _LIGER}
    gates = on(b, "liger_glu_activation", "liger_swiglu")
    cut = b.sources.get("cut_cross_entropy")
    some = [found for found in (*flags.values(), gates) if found is not None]
    if some and "LigerPlugin" not in names:
        b.note(f"{some[0].where}: liger_* have no effect without axolotl.integrations.liger.LigerPlugin in plugins")
        some, gates, flags = [], None, dict.fromkeys(flags)
    cuts = "CutCrossEntropyPlugin" in names and (cut is None or cut.flag())
    fused = flags["fused_linear_cross_entropy"]
    place = fused or (cut or b.sources.get("plugins") if cuts else None)
    if place is not None:
        liger = flags["rms_norm"] is not None and gates is not None
        why = "cut cross entropy" if fused is None else ""
        b.set("loss", "fused" if liger else "chunked-head", place, f"{why}: logits are never whole" if why else "")
        if not liger and (flags["rms_norm"] is not None or gates is not None):
            b.doubt(some[0], "less", "Liger's norms or gates are counted as those of transformers")
    elif some:
        b.doubt(some[0], "less", "Liger's kernels are counted as those of transformers, where its fused loss is off")
    if (chunked := on(b, "chunked_cross_entropy")) is not None:
        b.set("loss", "chunked", chunked)
    compiled = b.sources.get("torch_compile")
    if compiled is not None and (compiled.node.value == "auto" or compiled.flag()):
        b.set("compile", True, compiled)
    elif compiled is not None:
        b.harmless(compiled)
    return cuts


# -- the optimizer and the objective ----------------------------------------------------------------------------------------


def optimizer(b: Builder) -> None:
    """Take the optimizer, one of axolotl's own or of transformers."""
    found = b.sources.get("optimizer")
    if found is None:
        b.default("optimizer", "adamw", f"{DEFAULT}: adamw_torch_fused (utils/schemas/training.py)")
        b.default("optimizer_impl", "fused", f"{DEFAULT}: adamw_torch_fused (utils/schemas/training.py)")
        return
    word = found.text().strip().casefold()
    if word in _OWN_OPTIMIZERS:
        taken(b, found, _OWN_OPTIMIZERS[word])
        return
    if word not in OPTIMIZERS:
        found.choice({**OPTIMIZERS, **_OWN_OPTIMIZERS})  # raises, with what is near
    arguments = b.sources.get("optim_args")
    optimizer_settings(b, found, arguments if arguments is not None and arguments.node.scalar else None)
    if arguments is not None and "galore" not in word and "apollo" not in word:
        b.harmless(arguments)


_REFERENCE: Final = "a reference model runs beside it"
_PREFERENCES: Final = {"dpo": _REFERENCE, "ipo": _REFERENCE, "kto": _REFERENCE, "simpo": "", "orpo": ""}


def preferences(b: Builder) -> bool:
    """Take what reinforcement learning and reward models add; return whether a sample is a pair (TRL's trainers)."""
    pairs = False
    found = b.sources.get("rl")
    if found is not None:
        kind: str = found.choice({name: name for name in (*_PREFERENCES, "grpo", "gdpo", "ebft")})
        pairs = kind in _PREFERENCES and kind != "kto"
        if _PREFERENCES.get(kind):
            b.doubt(found, "more", _PREFERENCES[kind])
        elif kind in _PREFERENCES:
            b.harmless(found)
        else:
            b.doubt(found, "both", "samples are generated and scored during training")
    for key in ("reward_model", "process_reward_model"):
        if (trains := on(b, key)) is not None:
            b.doubt(trains, "both", "a head of a few outputs stands in place of the vocabulary's")
            pairs = pairs or key == "reward_model"
    if pairs:
        paired(b)
    return pairs
