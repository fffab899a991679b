"""The model that Megatron-LM's arguments describe.

Defaults: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py`` (``validate_args``) and
``megatron/core/transformer/transformer_config.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder
from foretell.readers.megatron._args import pattern
from foretell.readers.megatron._model import Latent, Shape, UndescribedError, config
from foretell.readers.megatron._vocabulary import vocabulary

if TYPE_CHECKING:
    from foretell.readers.megatron._args import Args

__all__ = ["describe", "kind_of"]

_POSITIONS: Final = {
    "learned_absolute": "learned",
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "relative": "none",
    "none": "none",
}
_ELSEWHERE: Final = (
    (("language_model_type", "vision_model_type", "dataset_provider", "disable_vision_class_token", "dataloader_seq_length"),
     "a model of images and text, whose parts the scripts build"),
    (("retro_add_retriever",), "RETRO, whose retrieval layers have no description here"),
    (("vision_pretraining",), "a vision model"),
    (("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
     "a model whose layers differ, in a file of its own: give its config.json with --model"),
)  # fmt: skip
"""Arguments of models that the others do not describe."""
_SCRIPTS: Final = {
    "pretrain_vlm.py": "a model of images and text, whose parts the script builds",
    "pretrain_retro.py": "RETRO, whose retrieval layers have no description here",
    "pretrain_ict.py": "a pair of encoders",
    "pretrain_vision_classify.py": "a vision model",
    "pretrain_vision_dino.py": "a vision model",
    "pretrain_vision_inpaint.py": "a vision model",
}


def kind_of(args: Args) -> str:
    """Return gpt, bert or t5; the folders of Megatron's tests are named for it."""
    folder = args.document.path.casefold().replace("~", "/")
    if args.program == "pretrain_t5.py" or args.get("encoder_num_layers", "decoder_num_layers") or args.get("decoder_seq_length"):
        return "t5"
    given = args.word("tokenizer_type")
    words = args.get("vocab_file") is not None and args.get("merge_file") is None and not given
    named = "/bert/" in folder or "/bert_" in folder or words or given.startswith("bertwordpiece")
    if args.program == "pretrain_bert.py" or (not args.program and named):
        return "bert"
    return "gpt"


def describe(b: Builder, args: Args, tp: int) -> Shape | None:
    """Tell the builder the model; None (and what is needed) where the arguments do not describe one."""
    other = _SCRIPTS.get(args.program)
    for names, what in _ELSEWHERE:
        if (found := args.get(*names)) is not None and found.node.value is not False:
            other = other or what
    shape = _shape(b, args, tp)
    if other is not None:
        b.needs("model", f"the run trains {other}")
        return None
    if shape is None or "model" in b.needed:
        return shape
    try:
        made = config(shape)
    except UndescribedError as error:
        b.needs("model", str(error))
        return shape
    found = args.get("num_layers", "encoder_num_layers", "hybrid_layer_pattern", "hybrid_override_pattern", "hidden_size")
    b.model(made, found, "built from the model's arguments")
    return shape


def _shape(b: Builder, args: Args, tp: int) -> Shape | None:
    kind = kind_of(args)
    letters = args.get("hybrid_layer_pattern", "hybrid_override_pattern")
    args.looked("is_hybrid_model")
    main, _, ahead = ("", "", "") if letters is None else letters.text().strip("\"'").partition("/")
    stack, parts = main.replace("|", ""), ahead.split("/") if ahead else []
    layers = len(stack) or args.whole("num_layers") or args.whole("encoder_num_layers")
    args.looked("num_layers", "encoder_num_layers")
    decoder = args.whole("decoder_num_layers")
    hidden, heads = args.whole("hidden_size"), args.whole("num_attention_heads")
    stated = None not in (layers, hidden, heads) and "model" not in b.sources.given
    vocab = vocabulary(b if stated else Builder(b.family, b.sources), args, tp, kind)  # else said of a model that is not taken
    positions, max_positions = _positions(b, args), args.whole("max_position_embeddings") or args.whole("seq_length")
    kv = _kv_heads(b, args)
    gated, act = _activation(args)
    bias = args.on("disable_bias_linear") is None
    own = args.on("add_qkv_bias") is not None
    if args.on("qk_l2_norm") and (found := args.get("qk_l2_norm")) is not None:
        b.doubt(found, "more-memory", "normalises queries and keys, which keeps two more tensors a layer")
    spec = args.get("spec")
    if spec is not None and not any(word in ("hybrid_stack_spec", "mamba_stack_spec", "local") for word in spec.listed()):
        b.doubt(spec, "both", "layers are built by code of the run's own: Megatron-Core's are taken")
    latent = _latent(args)
    shape = {
        "kv_heads": kv,
        "head_dim": args.whole("kv_channels"),
        "ffn": args.whole("ffn_hidden_size"),
        "rms": args.word("normalization") == "rmsnorm",
        "tied": args.on("untie_embeddings_and_output_weights") is None,
        "qk_norm": args.on("qk_layernorm") is not None,
        "out_gate": args.on("attention_output_gate") is not None,
        "sinks": args.word("softmax_type") == "learnable",
    }
    dropouts = [args.dropout if (p := args.get(name)) is None else p.real(minimum=0, maximum=1)
                for name in ("hidden_dropout", "attention_dropout")]  # fmt: skip
    space = (
        args.whole("mamba_state_dim", 128) or 128,
        args.whole("mamba_head_dim", 64) or 64,
        args.whole("mamba_num_groups", 8) or 8,
        args.whole("mamba_num_heads"),
    )
    if layers is None or hidden is None or heads is None:
        where = "the checkpoint, whose arguments it takes" if args.on("use_checkpoint_args") else "its script, or a checkpoint"
        b.needs("model", f"number of layers, hidden size and heads are not in the files: the run has them of {where}")
        _experts(args, 1)
        _mixers(b, args, 1)
        return None
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        max_positions=max_positions,
        positions=positions,
        gated=gated,
        act=act,
        bias=bias,
        qkv_bias=bias or own,
        latent=latent,
        hybrid=stack,
        mamba=space,
        kind=kind,
        decoder_layers=decoder,
        predicting=len(parts) or args.whole("mtp_num_layers", 0, minimum=0) or 0,
        ahead=parts[0] if parts else args.word("mtp_hybrid_override_pattern").upper(),
        hidden_dropout=dropouts[0],
        attention_dropout=dropouts[1],
        **shape,  # type: ignore[arg-type]
        **_experts(args, layers),  # type: ignore[arg-type]
        **_mixers(b, args, layers),  # type: ignore[arg-type]
    )


def _positions(b: Builder, args: Args) -> str:
    """Return how positions are told; the old flag for rotary ones stands above."""
    rotary = args.on("use_rotary_position_embeddings")
    found = args.get("position_embedding_type")
    if found is None or rotary is not None:
        return "rope" if rotary is not None else "learned"
    made: str = found.choice(_POSITIONS)
    if made == "none" and found.text() == "relative":
        b.doubt(found, "both", "a bias is added to the attention scores, which then are written out")
    return made


def _kv_heads(b: Builder, args: Args) -> int | None:
    groups = args.whole("num_query_groups", 1)
    if args.on("group_query_attention") is not None:
        return groups
    if args.get("num_query_groups") is not None:
        b.note("num_query_groups counts only with group_query_attention, which is not given: every head has keys and values")
    return None


def _activation(args: Args) -> tuple[bool, str]:
    """Return (gated, function); ``--swiglu`` excludes the others.  Megatron-Core's own configuration names the function."""
    swiglu, geglu, squared = (args.on(name) is not None for name in ("swiglu", "quick_geglu", "squared_relu"))
    function, gated = args.get("activation_func"), args.on("gated_linear_unit") is not None
    args.looked("openai_gelu")
    if function is not None or gated:
        return gated, "gelu" if function is None else function.text()
    return (True, "silu") if swiglu else (True, "quick_gelu") if geglu else (False, "relu2") if squared else (False, "gelu")


def _latent(args: Args) -> Latent | None:
    sizes = [args.whole(name, default) for name, default in (
        ("q_lora_rank", None), ("kv_lora_rank", 32), ("qk_head_dim", 128), ("qk_pos_emb_head_dim", 64), ("v_head_dim", 128),
    )]  # fmt: skip
    if args.on("multi_latent_attention") is None:
        return None
    return Latent(sizes[0], *(size or 0 for size in sizes[1:]))


def _experts(args: Args, layers: int) -> dict[str, object]:
    """Return the experts' part of a shape."""
    count = args.whole("num_experts", 0, minimum=0) or 0
    frequency = args.get("moe_layer_freq")
    out: dict[str, object] = {
        "experts": count,
        "top_k": args.whole("moe_router_topk", 2),
        "expert_ffn": args.whole("moe_ffn_hidden_size"),
        "shared_ffn": args.whole("moe_shared_expert_intermediate_size", 0, minimum=0),
        "shared_gate": args.on("moe_shared_expert_gate") is not None,
        "moe_latent": args.whole("moe_latent_size", 0, minimum=0),
    }
    if count and frequency is not None:
        out["sparse"] = tuple(bool(n) for n in pattern(frequency, layers, every=True))
    return out


def _mixers(b: Builder, args: Args, layers: int) -> dict[str, object]:
    """Return the windows and the linear attention of a shape."""
    out: dict[str, object] = {}
    window, skip = args.get("window_size"), args.get("window_attn_skip_freq")
    if window is not None:
        left = window.text().strip("() ").partition(",")[0].strip()
        if not left.lstrip("-").isdecimal():
            raise window.error("is not a pair of numbers", allowed="127,0")
        if int(left) >= 0:
            out["window"] = int(left) + 1
            out["windowed"] = () if skip is None else tuple(bool(n) for n in pattern(skip, layers, every=False))
    variant, frequency = args.get("experimental_attention_variant"), args.get("linear_attention_freq")
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    sizes = [args.whole(f"linear_{name}", default) for name, default in zip(names, (16, 32, 128, 128, 4), strict=True)]
    if variant is None:
        return out
    if variant.text() in ("gated_delta_net", "gdn") and frequency is not None:
        out["linear"] = tuple(bool(n) for n in pattern(frequency, layers, every=False))
        out["delta"] = tuple(sizes)
    else:
        b.doubt(variant, "both", "this kind of attention has no description here: ordinary attention is taken")
    return out
