"""What Megatron-LM's arguments say of kernels, recomputation, experts on their way, and captured graphs.

Rules: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py`` (``validate_args``),
``megatron/core/transformer/transformer_config.py`` (``__post_init__``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.megatron._layout import degree
from foretell.readers.megatron._model import own_dropout

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args
    from foretell.readers.megatron._model import Shape

__all__ = ["MODULES", "kernels"]

MODULES: Final = frozenset(("core_attn", "layernorm", "moe_act", "mlp", "moe", "shared_experts", "mla_up_proj"))
"""Modules of ``--recompute-modules`` that the forecast knows."""
_MODES: Final = {"full": "full", "selective": "selective"}
_METHODS: Final = {"uniform": "uniform", "block": "block"}
_BACKENDS: Final = {"flash": "flash", "fused": "te", "unfused": "eager", "local": "eager", "auto": None}
_DISPATCHERS: Final = {"allgather": None, "alltoall": "alltoall", "alltoall_seq": "alltoall", "flex": "flex"}
_MASK: Final = 2**28
"""Bytes of an attention mask from which it is worth a word."""


def kernels(b: Builder, args: Args, shape: Shape | None) -> None:
    """Take kernels, recomputation, dispatch and graphs."""
    _attention(b, args)
    _loss(b, args)
    _dropout(b, args, shape)
    _unfused(b, args)
    _recompute(b, args)
    _experts(b, args, shape)
    _graphs(b, args)
    _exchange(b, args)
    _mask(b, args)


def _attention(b: Builder, args: Args) -> None:
    backend, flash, impl = args.get("attention_backend"), args.on("use_flash_attn"), args.get("transformer_impl")
    made = None if backend is None else backend.choice(_BACKENDS)
    if made is not None and backend is not None:
        b.set("attention", made, backend)
    elif flash is not None:
        b.set("attention", "flash", flash)
    elif impl is not None and impl.text() == "local":
        b.set("attention", "eager", impl, "Megatron-Core's own attention writes the scores out")
    else:
        b.default("attention", "te", f"{args.source}: Transformer Engine chooses the kernel")


def _loss(b: Builder, args: Args) -> None:
    fused, impl = args.on("cross_entropy_loss_fusion"), args.get("cross_entropy_fusion_impl")
    if fused is None:
        b.default("loss", "vocab-parallel", f"{args.source}: no --cross-entropy-loss-fusion")
    elif impl is not None and impl.text() == "te":
        b.set("loss", "te-fused", impl)
    else:
        b.set("loss", "fused", fused)


def _dropout(b: Builder, args: Args, shape: Shape | None) -> None:
    """Take dropout; a model type with two probabilities has them in its own description."""
    hidden, attention = args.get("hidden_dropout"), args.get("attention_dropout")
    if hidden is None and attention is None:
        b.default("dropout", args.dropout, f"{args.source}: attention_dropout and hidden_dropout")
        return
    p = args.dropout if hidden is None else hidden.real(minimum=0, maximum=1)
    other = args.dropout if attention is None else attention.real(minimum=0, maximum=1)
    found = hidden or attention
    if found is None or (p != other and shape is not None and own_dropout(shape)):
        return
    b.set("dropout", p, found)
    if p != other and attention is not None:
        b.doubt(attention, "memory", f"attention drops with another probability than the rest: {p:g} is taken for both")


def _unfused(b: Builder, args: Args) -> None:
    """Name fusions that are switched off where they would have been on."""
    gated, geglu = args.on("swiglu"), args.on("quick_geglu")
    plain, bias = args.on("squared_relu"), args.on("disable_bias_linear") is None
    rotary = args.on("use_rotary_position_embeddings") or args.word("position_embedding_type") == "rope"
    eager = b.given("attention") == "eager"
    wanted = {
        "no_bias_gelu_fusion": (bias and not (gated or geglu or plain), "bias and GELU keep a tensor each"),
        "no_bias_swiglu_fusion": (gated is not None, "the gate's parts keep a tensor each"),
        "no_rope_fusion": (bool(rotary), "rotary positions make copies of queries and keys"),
        "no_masked_softmax_fusion": (eager, "scores are scaled, masked and normalised one after the other"),
    }
    for name, (counts, why) in wanted.items():
        found = args.on(name)
        if found is not None and counts:
            b.doubt(found, "more", why)


def _recompute(b: Builder, args: Args) -> None:
    mode, short = args.get("recompute_granularity"), args.on("recompute_activations")
    method, count, modules = args.get("recompute_method"), args.get("recompute_num_layers"), args.get("recompute_modules")
    layer = args.on("moe_layer_recompute")
    old = args.get("activations_checkpoint_method", "checkpoint_activations")
    args.looked("activations_checkpoint_num_layers")
    given = old or mode or short or layer
    if given is None:
        b.default("recompute", "none", args.source)
        return
    if old is not None or (mode is not None and mode.choice(_MODES) == "full"):
        b.set("recompute", "full", given)
        method = method or args.get("activations_checkpoint_method")
        groups = 1 if count is None else count.whole()
        if method is not None and (method.choice(_METHODS) != "uniform" or groups > 1):  # uniform, 1: every layer by itself
            b.set("recompute_scope", method.choice(_METHODS), method)
            if count is not None:
                b.set("recompute_layers", groups, count)
        return
    b.set("recompute", "selective", given)
    named = ("core_attn",) if modules is None else _words(modules)
    if layer is not None and "moe" not in named:
        named = (*(named if mode or short else ()), "moe")
    known = tuple(word for word in named if word in MODULES)
    if modules is not None and len(known) < len(named):
        strange = ", ".join(word for word in named if word not in MODULES)
        b.doubt(modules, "both", f"recomputing {strange} has no description here: that part is kept")
    if not known:
        del b.settings["recompute"]
        b.default("recompute", "none", "of what is to be recomputed nothing is known here")
    elif known != ("core_attn",):  # what selective recomputation means in Megatron-Core
        b.set("recompute_scope", "modules", modules or given)
        b.set("recompute_modules", known, modules or given)


def _words(found: Found) -> tuple[str, ...]:
    """Return the words of a list, also of ``[mlp moe]``, which is a list of one to YAML."""
    return tuple(word for part in found.listed() for word in part.split())


def _experts(b: Builder, args: Args, shape: Shape | None) -> None:
    kind, backend = args.get("moe_token_dispatcher_type"), args.get("moe_flex_dispatcher_backend")
    deep, even, grouped = args.on("moe_enable_deepep"), args.on("moe_router_force_load_balancing"), args.on("moe_grouped_gemm")
    capacity = args.get("moe_expert_capacity_factor")
    if shape is None or not shape.experts:
        return
    many = degree(args, "ep") * degree(args, "tp") > 1
    made = None if kind is None else kind.choice(_DISPATCHERS)
    if made is not None and kind is not None:
        b.set("dispatcher", made, kind)
    else:
        b.default("dispatcher", "alltoall", "the nearest to allgather, the default of Megatron-LM")
        why = "gathers all tokens on every rank and has no description here: all-to-all is taken"
        if kind is not None and many:
            b.doubt(kind, "more", why)
        elif many:
            b.doubt_default("moe_token_dispatcher_type", "more", f"allgather {why}")
    if made == "flex" and backend is not None and backend.text() != "deepep" and deep is None:
        b.doubt(backend, "both", "its buffers and kernels are not known here: DeepEP's are taken")
    if grouped is None:
        b.doubt_default("moe_grouped_gemm", "speed", "it is off: experts run one after the other, not in one grouped product")
    if even is not None:
        b.set("imbalance", 1.0, even)
    if capacity is not None and capacity.real() > 0:
        b.doubt(capacity, "both", "tokens beyond an expert's capacity are dropped: all are counted")


def _graphs(b: Builder, args: Args) -> None:
    """Take CUDA graphs of the training step."""
    local, outside = args.on("enable_cuda_graph"), args.on("external_cuda_graph")
    impl, scope = args.get("cuda_graph_impl"), args.get("cuda_graph_modules", "cuda_graph_scope")
    sampling, trained = "perform_rl_step" in args.spelled, args.on("rl_training_cuda_graphs")
    given = local or outside or (impl if impl is not None and impl.text() != "none" else None)
    words = () if scope is None else _words(scope)
    if given is None or (sampling and trained is None):
        return
    whole = (impl is not None and impl.text() == "full_iteration") or "full_iteration" in words
    parts = [word for word in words if word not in ("full", "full_iteration", "full_iteration_inference")]
    b.set("cuda_graphs", "full" if whole else "partial" if parts else "layer", scope if parts and scope is not None else given)
    b.doubt(given, "more-memory", "captured graphs keep their own pools of memory, which are not counted")


def _exchange(b: Builder, args: Args) -> None:
    """Take which exchanges overlap, and name those that are made in another way."""
    tp, comm = args.on("tp_comm_overlap"), args.get("cp_comm_type")
    if tp is not None:
        b.set("tp_overlap", value=True, found=tp)
    else:
        b.default("tp_overlap", value=False, why=args.source)
    args.looked("overlap_grad_reduce", "overlap_param_gather")  # _megatron_layout.world, where the number of GPUs is known
    if comm is not None and degree(args, "cp") > 1 and comm.listed() != ("p2p",):
        b.doubt(comm, "both", "context parallelism exchanges in another way than ring attention, which is taken")


def _mask(b: Builder, args: Args) -> None:
    """Name the attention mask that the data loader makes, where it is large."""
    off, seq = args.on("no_create_attention_mask_in_dataloader"), args.whole("seq_length") or 0
    size = (args.whole("micro_batch_size", 1) or 1) * seq * seq // degree(args, "cp")
    if off is None and size >= _MASK:
        why = f"the data loader makes an attention mask of {size / 2**30:.1f} GiB (--no-create-attention-mask-in-dataloader)"
        b.doubt_default("create_attention_mask_in_dataloader", "more-memory", why)
