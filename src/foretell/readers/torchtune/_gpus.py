"""What a torchtune run keeps, recomputes and offloads, and how it is spread over GPUs.

Source: torchtune 0.7.0 (``recipes/full_finetune_distributed.py``, ``torchtune/training/_distributed.py``, ``activations.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretell.arch import load_model
from foretell.readers.torchtune._run import DEFAULT

if TYPE_CHECKING:
    from foretell.readers.torchtune._run import Run

__all__ = ["activations", "gpus"]


def activations(run: Run) -> None:
    """Take what is recomputed and what is kept in host memory; ``ac_mode`` counts only where the plain switch is off."""
    b = run.b
    whole, mode, every = run.on("enable_activation_checkpointing"), run.get("ac_mode"), run.get("ac_option")
    word = "" if mode is None else str(mode.choice({"none": "", "selective": "selective", "full": "full"}))
    if whole is not None and mode is not None:
        b.harmless(mode)
        b.set("recompute", "none", whole, "torchtune recomputes nothing where both this and ac_mode are given")
    elif whole is not None:
        b.set("recompute", "full", whole)
    elif word == "selective" and every is not None and every.whole(minimum=0) > 1:
        assert mode is not None  # noqa: S101  # it has a word
        b.set("recompute", "selective", mode)
        b.set("recompute_scope", "layer", mode, "every so-manieth layer in full (training/activations.py)")
        b.set("recompute_layers", every.whole(), every)
    elif word == "selective" and every is None:
        assert mode is not None  # noqa: S101
        raise mode.error("needs ac_option: how many layers there are to each that is recomputed", hint="Set ac_option: 2")
    elif word:
        assert mode is not None  # noqa: S101
        b.set("recompute", "full", mode)
    b.default("recompute", "none", f"{DEFAULT} (cfg.get('enable_activation_checkpointing', False))")
    if every is not None and b.given("recompute_layers") is None:
        b.harmless(every)
    moved = run.on("enable_activation_offloading")
    if moved is not None and whole is None:
        raise moved.error("needs enable_activation_checkpointing: true: torchtune refuses it alone")
    streams = run.get("activation_offloading_use_streams")
    if streams is not None and moved is not None and not streams.flag():
        b.doubt(streams, "speed", "activations travel in turn with the computation")
    elif streams is not None:
        b.harmless(streams)
    host = run.on("fsdp_cpu_offload") or run.on("fsdp.cpu_offload")
    parts = (["activations"] if moved is not None else []) + (["grads", "optimizer", "params"] if host is not None else [])
    place = host or moved
    if place is not None:
        b.set("offload", tuple(parts), place)


# -- GPUs ----------------------------------------------------------------------------------------------------------------


def gpus(run: Run) -> None:
    """Take how the model is spread: FSDP2, beside tensor and context parallelism (``training.ParallelDims``)."""
    b = run.b
    b.default("framework", "torchtune", "torchtune's own recipes")
    sizes = {key: run.values.get(key) for key in ("tensor_parallel_dim", "context_parallel_dim")}
    for key, found in sizes.items():
        if found is not None and found.whole() > 1:
            b.set({"tensor_parallel_dim": "tp", "context_parallel_dim": "cp"}[key], found.whole(), found)
        elif found is not None:
            b.harmless(found)
    rest = 1
    for found in sizes.values():
        rest *= 1 if found is None else found.whole()
    replicas, shards = (run.values.get(f"data_parallel_{name}_dim") for name in ("replicate", "shard"))
    copies = 1 if replicas is None else replicas.whole()
    if replicas is not None and copies > 1:
        b.set("hsdp_replicas", copies, replicas)
    elif replicas is not None:
        b.harmless(replicas)
    if shards is not None and shards.whole(minimum=-1) > 0 and b.given("gpus") is None:
        b.set("gpus", shards.whole() * copies * rest, shards, "the product of the sizes of all groups")
    elif shards is not None:
        b.harmless(shards)
    _sharding(run)


def _sharding(run: Run) -> None:
    b = run.b
    whole, apart = run.get("fsdp_reshard_after_forward"), run.get("custom_sharded_layers")
    if run.alone:
        b.default("zero", 0, "one GPU: torchtune shards nothing (ParallelDims.dp_shard_enabled)")
        for found in (whole, apart):
            if found is not None:
                b.harmless(found)
        return
    if whole is not None and not whole.flag():
        b.set("zero", 2, whole, "weights stay whole from forward to backward")
    elif whole is not None:
        b.set("zero", 3, whole)
    b.default("zero", 3, f"{DEFAULT}: FSDP2 (training/_distributed.py shard_model)")
    names = () if apart is None else apart.listed()
    embedding, head = (any(name.rpartition(".")[2] == part for name in names) for part in ("tok_embeddings", "output"))
    if embedding:
        assert apart is not None  # noqa: S101  # it has names
        b.set("fsdp_units", "layers" if head or _tied(run) else "split", apart, "embedding or head are gathered apart")
    elif apart is not None:
        b.harmless(apart)
    b.default("fsdp_units", "root", f"{DEFAULT}: embedding and head stay whole from forward to backward (shard_model)")


def _tied(run: Run) -> bool:
    """Whether the head is the embedding."""
    return run.built.model is not None and load_model(run.built.model).architecture.tied
