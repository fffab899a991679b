"""What Megatron-LM's arguments say of number formats, the optimizer, and who keeps which states.

Rules: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py`` (``validate_args``),
``megatron/core/optimizer/optimizer_config.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args
    from foretell.readers.megatron._model import Shape

__all__ = ["states"]

_OPTIMIZERS: Final = {
    "adam": "adamw",
    "sgd": "sgdm",
    "muon": "muon",
    "dist_muon": "muon",
    "adaptive_muon": "muon",
    "lion": "lion",
    "soap": "soap",
}
_FSDP: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` -> ZeRO stage."""
_WORDS: Final = {word: word for word in ("fp32", "bf16", "fp16", "fp8")}


def states(b: Builder, args: Args, shape: Shape | None) -> None:
    """Take formats, optimizer, sharding and what is kept in host memory."""
    half = _precision(b, args)
    _gradients(b, args, half)
    optimizer = args.get("optimizer")
    if optimizer is None:
        b.default("optimizer", "adamw", f"{args.source}: adam, with decoupled weight decay")
    else:
        b.set("optimizer", optimizer.choice(_OPTIMIZERS), optimizer)
        if optimizer.text().casefold() == "adaptive_muon":
            b.doubt(optimizer, "more-memory", "keeps a second moment beside Muon's momentum")
    _sharding(b, args, optimizer)
    _precise(b, args)
    _host(b, args, shape)


def _precision(b: Builder, args: Args) -> str:
    """Take the precision; returns the format of the weights."""
    bf16, fp16 = args.on("bf16"), args.on("fp16")
    half = bf16 or fp16
    low, recipe, four = args.get("fp8_format", "fp8", "fp8_hybrid"), args.get("fp8_recipe"), args.get("fp4_format")
    if bf16 is not None and fp16 is not None:
        raise fp16.error("and bf16 exclude each other", hint="Leave out one of the two")
    name = "fp32" if half is None else "bf16" if bf16 else "fp16"
    if four is not None:
        b.set("precision", "nvfp4", four)
    elif low is not None and low.node.value is not False:
        kind = "" if recipe is None else recipe.text().casefold()
        b.set("precision", "mxfp8" if kind == "mxfp8" else "fp8", low)
        if recipe is not None and kind != "mxfp8":
            b.set("fp8_recipe", kind, recipe)
    elif half is not None:
        b.set("precision", name, half)
    else:
        b.default("precision", "fp32", f"{args.source}: neither --bf16 nor --fp16")
    return name


def _gradients(b: Builder, args: Args, half: str) -> None:
    """Take the format in which gradients accumulate: fp32 for bf16 weights, else that of the weights."""
    wide, narrow, main = (
        args.on("accumulate_allreduce_grads_in_fp32"),
        args.on("grad_reduce_in_bf16"),
        args.get("main_grads_dtype"),
    )
    if main is not None and main.text() != "fp32":
        b.set("grad_dtype", main.choice(_WORDS), main)
    elif half == "bf16" and narrow is not None:
        b.set("grad_dtype", "bf16", narrow)
    elif half == "fp16" and wide is None:
        b.default(
            "grad_dtype", "fp16", f"{args.source}: gradients in the format of the weights (--accumulate-allreduce-grads-in-fp32)"
        )
    if (unfused := args.on("no_gradient_accumulation_fusion")) is not None:
        b.set("grad_accum_fusion", value=False, found=unfused)


def _sharding(b: Builder, args: Args, optimizer: Found | None) -> None:
    """Take who divides the states over data parallelism."""
    own, torch = args.on("use_megatron_fsdp", "use_custom_fsdp"), args.on("use_torch_fsdp2")
    strategy, distributed = args.get("data_parallel_sharding_strategy"), args.on("use_distributed_optimizer")
    instances = args.get("num_distributed_optimizer_instances")
    if own is not None:
        b.set("sharding", "megatron-fsdp", own)
        if strategy is None:
            b.default("zero", 3, f"{args.source}: optim_grads_params")
        else:
            b.set("zero", strategy.choice(_FSDP), strategy)
        for name, key in (("master_dtype", "main_params"), ("grad_dtype", "main_grads")):
            found = args.get(f"megatron_fsdp_{key}_dtype")
            if found is not None and found.text() != "auto":
                b.set(name, found.choice(_WORDS), found)
    elif torch is not None:
        b.set("sharding", "megatron-fsdp", torch, "PyTorch's FSDP2")
        b.set("zero", 3, torch)
        b.doubt(torch, "memory", "PyTorch's FSDP2 under Megatron-LM is counted as Megatron-FSDP, which shards alike")
    elif distributed is not None:
        b.set("zero", 1, distributed)
    elif optimizer is not None and optimizer.text().casefold() == "dist_muon":
        b.set("zero", 1, optimizer, "the states of whole matrices are divided")
    else:
        b.default("zero", 0, f"{args.source}: no use_distributed_optimizer")
    args.looked("data_parallel_sharding_strategy", "megatron_fsdp_main_params_dtype", "megatron_fsdp_main_grads_dtype")
    if instances is not None and instances.whole() > 1:
        b.set("hsdp_replicas", instances.whole(), instances)


def _precise(b: Builder, args: Args) -> None:
    """Take the formats of a precision-aware optimizer; they count only with its flag."""
    flag = args.on("use_precision_aware_optimizer")
    master, first, second = (args.get(name) for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"))
    if flag is None:
        return
    if master is not None and master.text() != "fp32":
        b.set("master_dtype", master.choice(_WORDS), master)
    formats = {found.choice(_WORDS) if found is not None else "fp32" for found in (first, second)}
    given = first or second
    if given is not None and formats != {"fp32"}:
        b.set("optim_dtype", min(formats) if len(formats) == 1 else "fp32", given)
        if len(formats) > 1:
            b.doubt(given, "memory", "the two moments have different formats: fp32 is taken for both")


def _host(b: Builder, args: Args, shape: Shape | None) -> None:
    """Take what lives in host memory."""
    optimizer, share = args.on("optimizer_cpu_offload"), args.get("optimizer_offload_fraction")
    layers = args.get("cpu_offloading_num_layers")
    if optimizer is not None:
        part = 1.0 if share is None else share.real(minimum=0, maximum=1)
        if part > 0:
            b.set("offload", ("optimizer",), optimizer)
        if 0 < part < 1 and share is not None:
            b.doubt(share, "memory", "a part of the optimizer's states stays on the GPU: all of them are taken away")
    if layers is not None and layers.whole(minimum=0) > 0:
        every = shape is not None and layers.whole() >= shape.layers - 1
        kept = "all" if every else "some"
        b.doubt(layers, "less", f"the activations of {kept} layers wait in host memory, which is not counted")
