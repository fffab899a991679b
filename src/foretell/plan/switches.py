"""Single switches: changes of a run that are known to save memory, cheapest first.

A switch says what it would change, how that is written on the command line, and what it costs. Whether it
helps is not known here: :mod:`foretell.plan.advice` asks the forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from foretell.plan.launch import Launch
from foretell.recipe import Adapter, Quantization, Recompute
from foretell.recipe.optimizers import optimizer

__all__ = ["SAVING", "Switch"]

Flags = dict[str, str | None]
_SHORTEST = 1024
"""Tokens below which a sequence is not halved further."""


@dataclass(frozen=True)
class Switch:
    """One change of a launch. `rank` orders by what it costs: 0 nothing, 1 little, ... 6 another method."""

    change: str
    flags: Flags = field(hash=False)
    price: str
    rank: int
    launch: Launch
    group: str = ""
    """Degrees of one switch, mildest first: only the mildest that suffices is worth naming."""


Maker = Callable[[Launch], Iterator[Switch]]


def _recipe(launch: Launch, change: str, flags: Flags, price: str, rank: int, group: str = "", **changes: object) -> Switch:
    return Switch(change, flags, price, rank, launch.with_recipe(**changes), group)


def loss(launch: Launch) -> Iterator[Switch]:
    """Keep fewer copies of the logits."""
    given = launch.recipe.loss
    if launch.workload.architecture.vocab is None:
        return
    if given not in ("fused", "fused-linear", "liger") and (launch.par.tp == 1 or "fused" in dict(launch.framework.losses)):
        yield _recipe(
            launch,
            "fused cross entropy",
            {"--loss": "fused"},
            "needs Liger's kernels" if launch.framework.style.rope == "composite" else "needs a fused kernel",
            0,
            loss="fused",
        )
    if given not in ("chunked", "fused", "fused-linear", "liger"):
        yield _recipe(launch, "cross entropy in chunks", {"--loss": "chunked"}, "about as fast", 0, loss="chunked")


def allocator(launch: Launch) -> Iterator[Switch]:
    """Let the allocator grow its segments instead of leaving holes between them."""
    given = launch.recipe.expandable_segments
    on = launch.framework.expandable if given is None else given
    if launch.hardware.cuda_like and not on:
        flags: Flags = {"--expandable-segments": None}
        change, price = "expandable segments", "an environment variable"
        yield _recipe(launch, change, flags, price, 0, expandable_segments=True)


def attention(launch: Launch) -> Iterator[Switch]:
    """Never write the score matrix."""
    if launch.recipe.attention == "eager":
        yield _recipe(launch, "flash attention", {"--attention": "flash"}, "no cost: it is faster", 0, attention="flash")


def sequence_parallel(launch: Launch) -> Iterator[Switch]:
    """Divide the norms' and residuals' activations by the tensor-parallel group."""
    sp = launch.par.sp if launch.par.sp is not None else launch.framework.sequence_parallel
    if launch.par.tp > 1 and not sp:
        yield Switch("sequence parallelism", {"--sp": None}, "about as fast", 0, launch.with_par(sp=True))


def micro_batch(launch: Launch) -> Iterator[Switch]:
    """Give each pass fewer samples and make more passes: the global batch stays."""
    size, passes = launch.recipe.micro_batch, launch.recipe.grad_accum
    small = size
    while small > 1:
        small = small // 2 if small % 2 == 0 else 1
        count = passes * size // small
        flags: Flags = {"--micro-batch": str(small), "--grad-accum": str(count)}
        change = f"micro-batch {small} with {count} accumulation steps"
        more = {"micro_batch": small, "grad_accum": count}
        yield _recipe(launch, change, flags, "smaller kernels, more passes", 1, "micro-batch", **more)


def zero(launch: Launch) -> Iterator[Switch]:
    """Shard more of the states over data parallelism."""
    if launch.par.dp * launch.par.cp == 1:
        return
    for stage in launch.framework.zero:
        if stage > launch.par.zero:
            price = "1.5x data-parallel traffic" if stage == 3 else "about the same traffic"
            flags: Flags = {"--zero": str(stage)}
            yield Switch(f"ZeRO stage {stage}", flags, price, 1, launch.with_par(zero=stage), "zero")


def compiled(launch: Launch) -> Iterator[Switch]:
    """Fuse the pointwise operators, so that their inputs are not kept."""
    if not (launch.recipe.compile or launch.framework.megatron):
        yield _recipe(launch, "torch.compile", {"--compile": None}, "compile time", 1, compile=True)


def recompute(launch: Launch) -> Iterator[Switch]:
    """Run layers again in the backward pass instead of keeping what they made."""
    mode = launch.recipe.recompute.mode
    if mode == "none":
        flags: Flags = {"--recompute": "selective"}
        change, price = "selective recomputation", "a few % more compute"  # arXiv 2205.05198, table 5
        made = Recompute(mode="selective")
        yield _recipe(launch, change, flags, price, 2, "recompute", recompute=made)
    if mode != "full":
        flags = {"--recompute": "full"}
        change, price = "full recomputation", "a third more compute"  # one more forward pass: 4/3
        yield _recipe(launch, change, flags, price, 2, "recompute", recompute=Recompute(mode="full"))


def fused_step(launch: Launch) -> Iterator[Switch]:
    """Update without the copies that a step over lists of tensors makes."""
    used = launch.recipe.optimizer_impl or launch.framework.optimizer_impl
    if used != "fused" and optimizer(launch.recipe.optimizer).name in ("adamw", "sgd") and launch.hardware.cuda_like:
        flags: Flags = {"--optimizer-impl": "fused"}
        yield _recipe(launch, "fused optimizer step", flags, "no cost: it is faster", 0, optimizer_impl="fused")


def pure_bf16(launch: Launch) -> Iterator[Switch]:
    """Keep no fp32 copy of the weights."""
    recipe = launch.recipe
    if recipe.precision == "bf16" and recipe.adapter is None and "bf16-true" in launch.framework.formats:
        flags: Flags = {"--precision": "bf16-true"}
        yield _recipe(launch, "pure bf16", flags, "no fp32 weights: small updates are lost", 4, precision="bf16-true")


def optimizer_8bit(launch: Launch) -> Iterator[Switch]:
    """Keep the optimizer's moments in 8 bits."""
    plain = optimizer(launch.recipe.optimizer).name == "adamw" and launch.recipe.adapter is None
    if plain and launch.hardware.cuda_like:
        flags: Flags = {"--optimizer": "adamw8bit"}
        yield _recipe(launch, "8-bit AdamW", flags, "rounded moments", 3, optimizer="adamw8bit")


def tensor_parallel(launch: Launch) -> Iterator[Switch]:
    """Divide every layer over more accelerators of the node, as many in all where dp allows."""
    par, wide = launch.par, launch.par.tp * 2
    if launch.framework.tensor and wide <= launch.gpus_per_node:
        dp = par.dp // 2 if par.dp % 2 == 0 else par.dp
        changed = launch.with_par(tp=wide, dp=dp)
        if par.dp != dp:
            changed = changed.with_recipe(grad_accum=launch.recipe.grad_accum * 2)
        price, rank = "traffic in every layer", 3
        if changed.gpus > launch.gpus:
            price, rank = f"{changed.gpus} GPUs, traffic in every layer", 5
        yield Switch(f"tensor parallelism {wide}", degrees(launch, changed), price, rank, changed, "tp")


def offload(launch: Launch) -> Iterator[Switch]:
    """Keep the optimizer's states in host memory."""
    parts = launch.recipe.offload
    if "optimizer" not in parts and launch.recipe.adapter is None and launch.hardware.cuda_like:
        both = frozenset({*parts, "optimizer"})
        flags: Flags = {"--offload": ",".join(sorted(both))}
        yield _recipe(launch, "optimizer in host memory", flags, "slow steps: the update runs on the host", 4, offload=both)


def pipeline(launch: Launch) -> Iterator[Switch]:
    """Give each accelerator half of the layers."""
    par, deep = launch.par, launch.par.pp * 2
    if launch.framework.pipeline and deep <= launch.workload.architecture.layers and par.dp % 2 == 0:
        changed = launch.with_par(pp=deep, dp=par.dp // 2)
        changed = changed.with_recipe(grad_accum=launch.recipe.grad_accum * 2)
        yield Switch(f"pipeline of {deep} stages", degrees(launch, changed), "pipeline bubble", 4, changed, "pp")


def more_gpus(launch: Launch) -> Iterator[Switch]:
    """Shard the states over twice as many accelerators."""
    if launch.par.zero:
        changed, passes = launch.with_par(dp=launch.par.dp * 2), launch.recipe.grad_accum
        if passes % 2 == 0:
            changed = changed.with_recipe(grad_accum=passes // 2)
        yield Switch(f"{changed.gpus} GPUs", degrees(launch, changed), "twice the GPUs", 5, changed, "gpus")


def shorter(launch: Launch) -> Iterator[Switch]:
    """Cut the sequence."""
    length = launch.recipe.seq_len
    while launch.reads_tokens and length >= _SHORTEST and length % 2 == 0:
        length //= 2
        flags: Flags = {"--seq-len": str(length)}
        change, price = f"sequence of {length}", "shorter samples"
        yield _recipe(launch, change, flags, price, 5, "seq-len", seq_len=length)


def adapters(launch: Launch) -> Iterator[Switch]:
    """Train low-rank adapters on a frozen base, last of all: it is another method."""
    if launch.recipe.adapter is not None or not launch.framework.supports_adapters:
        if launch.recipe.adapter is not None and launch.recipe.quantization is None:
            flags: Flags = {"--quantization": "nf4"}
            yield _recipe(
                launch,
                "4-bit base (QLoRA)",
                flags,
                "slower matmuls, rounded base",
                6,
                quantization=Quantization(),
            )
        return
    lora: Flags = {"--lora-rank": "16", "--lora-targets": "all-linear"}
    adapter = Adapter(kind="lora", rank=16, targets=("all-linear",))
    yield _recipe(launch, "LoRA, rank 16", lora, "trains adapters only", 6, adapter=adapter)
    yield _recipe(
        launch, "QLoRA, rank 16", lora | {"--quantization": "nf4"}, "adapters only, 4-bit base", 6,
        adapter=adapter, quantization=Quantization(),
    )  # fmt: skip


def degrees(old: Launch, new: Launch) -> Flags:
    """Write what changed between two launches as flags that agree with what the user stated."""
    one, two = old.par, new.par
    values = {
        "--gpus": (old.gpus, new.gpus, "dp" not in old.given or "gpus" in old.given),
        "--tp": (one.tp, two.tp, True),
        "--pp": (one.pp, two.pp, True),
        "--dp": (one.dp, two.dp, "dp" in old.given),
        "--grad-accum": (old.recipe.grad_accum, new.recipe.grad_accum, True),
        "--global-batch": (old.global_batch, new.global_batch, "global_batch" in old.given),
    }
    return {name: str(after) for name, (before, after, said) in values.items() if said and before != after}


SAVING: tuple[Maker, ...] = (
    loss,
    allocator,
    attention,
    sequence_parallel,
    micro_batch,
    zero,
    compiled,
    fused_step,
    recompute,
    optimizer_8bit,
    tensor_parallel,
    offload,
    pure_bf16,
    pipeline,
    more_gpus,
    shorter,
    adapters,
)
"""Every maker of switches that save memory."""
